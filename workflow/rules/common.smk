"""The validated config, its plan, and what rules ask the plan."""

import logging
import re
import sys
import time
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.io import apply_wildcards
from snakemake.logging import logger
from snakemake.settings.types import RerunTrigger
from snakemake_interface_logger_plugins.common import LogEvent

from metapt.errors import ConfigError, MissingPackage, with_extra

try:
    with with_extra("the workflow"):
        from metapt.engine.config import load
        from metapt.engine.domain import DOMAINS, domain
        from metapt.engine.plan import Remaining, duration, planned
        from metapt.engine.records import stale
    # Read again, strictly: Snakemake accepts a key that is there twice, and takes the last one.
    CONFIG = load([Path(path) for path in workflow.configfiles], workflow.config_settings.config)
    PLAN = planned(CONFIG)
except (ConfigError, MissingPackage) as error:
    sys.exit(f"error: {error}")  # an exception would point to this line

config["require_gpu"] = CONFIG.require_gpu  # for scripts, since Snakemake takes `--config require_gpu=false` for a text

RESULTS = CONFIG.results
RAW = CONFIG.data.folder


# Snakemake's messages for which a line of Progress stands.
FOLLOWED = LogEvent.JOB_STARTED, LogEvent.JOB_FINISHED, LogEvent.PROGRESS
CHOOSING = "Select jobs to execute..."


class Progress(logging.Handler):
    """Writes a line for each job that has ended, with the time that those which are left will take on this machine."""

    def __init__(self):
        super().__init__()
        self.remaining = Remaining()
        self.started = {}
        self.done = set()
        self.ended = []

    def emit(self, record):
        try:
            self.follow(record, getattr(record, "event", None))
        except Exception:  # shown, and the workflow goes on
            self.handleError(record)

    def follow(self, record, event):
        if event == LogEvent.JOB_STARTED:
            self.started |= dict.fromkeys(record.jobs, time.monotonic())
        elif event == LogEvent.JOB_FINISHED:
            self.done.add(record.job_id)
            for number, job in self.jobs():
                if number == record.job_id:
                    self.remaining.finished(PLAN.maker(job.output[0]), self.elapsed(number))
                    self.ended.append(f"{PLAN.maker(job.output[0]).name}: {duration(self.elapsed(number))}")
        elif event == LogEvent.PROGRESS:
            jobs = [(number, job) for number, job in self.jobs() if number not in self.done]
            seconds = self.remaining.seconds(
                (PLAN.maker(job.output[0]), self.share(job), self.elapsed(number)) for number, job in jobs
            )
            rest = f" (about {duration(seconds)} left)" if seconds and workflow.local_exec else ""
            for number, line in enumerate(self.ended, record.done - len(self.ended) + 1):
                logger.info(f"{number}/{record.total} {line}{rest}")
            self.ended.clear()

    def jobs(self):
        """Return the jobs of the plan that run or ran, with their numbers."""
        jobs = ((workflow.dag.jobid(job), job) for job in workflow.dag.needrun_jobs(exclude_finished=False))
        return [(number, job) for number, job in jobs if job.output]

    def elapsed(self, number):
        now = time.monotonic()
        return now - self.started.get(number, now)

    def share(self, job):
        """Return the largest share of the cores or GPUs that a job holds."""
        limits = {
            name: workflow.global_resources[name].value
            for name in ("_cores", "gpu")
            if name in workflow.global_resources
        }
        return max(job.resources.get(name, 0) / limit for name, limit in limits.items() if limit)


if workflow.is_main_process:
    for handler in logger.handlers:
        handler.addFilter(lambda record: getattr(record, "event", None) not in FOLLOWED and record.msg != CHOOSING)
    logger.addHandler(Progress())


class Asked:
    """What the rule `name` asks the plan about the job of its wildcards, which its first output tells."""

    def __init__(self, name):
        self.name = name

    def job(self, wildcards):
        try:
            return PLAN.maker(apply_wildcards(workflow.get_rule(self.name).output[0], wildcards))
        except ConfigError as error:
            raise WorkflowError(str(error)) from None

    def inputs(self, wildcards):
        """Return the job's inputs, and have it run again if its record does not fit its settings, code or inputs.

        Snakemake compares settings, code and inputs with its own records in .snakemake, which may be deleted and do not move
        with the results.
        """
        job = self.job(wildcards)
        first = apply_wildcards(workflow.get_rule(self.name).output[0], wildcards)
        if RerunTrigger.PARAMS in workflow.rerun_triggers and Path(first).exists():
            reason = stale(Path(job.record), job.config, PLAN.code(job), job.inputs)
            if reason and first not in workflow.dag.forcefiles:
                workflow.dag.forcefiles.add(first)
                if workflow.is_main_process:
                    logger.info(f"The job of {first} is run again: {reason}.")
        return job.inputs

    def described(self, wildcards):
        job = self.job(wildcards)
        return {name: getattr(job, name) for name in ("stage", "name", "entry", "threads")}

    def config(self, wildcards):
        return self.job(wildcards).config

    def source(self, wildcards, output):
        """Return the config of a download. As it takes the output, Snakemake does not compare it: other mirrors rerun nothing."""
        return self.config(wildcards)

    def code(self, wildcards):
        return PLAN.code(self.job(wildcards))

    def cores(self, wildcards):
        """Return the CPU cores that it holds: all of them where no other job may run beside it."""
        job = self.job(wildcards)
        return (workflow.resource_settings.cores or 1) if job.alone else job.threads

    def mem_mb(self, wildcards, attempt):
        return self.job(wildcards).mem_mb * attempt

    def minutes(self, wildcards, attempt):
        return self.job(wildcards).minutes * attempt


def summaries(*experiments):
    """Return an input function: the files that experiments end in."""

    def files(wildcards):
        try:
            jobs = [PLAN.summary(experiment) for experiment in experiments]
        except ConfigError as error:
            raise WorkflowError(str(error)) from None
        return [job.outputs[name] for job in jobs for name in ("table_csv", "figure_svg", "claims", "metrics")]

    return files


def experiment(wildcards):
    return domain(wildcards.domain).experiments[wildcards.experiment]


def category(wildcards):
    """Return the title of the domain, under which the report shows its experiments, after the headline."""
    return f"{DOMAINS.index(wildcards.domain) + 2}. {domain(wildcards.domain).title}"


def heading(wildcards):
    """Return the title of the experiment with its key."""
    return f"{experiment(wildcards).title} ({wildcards.experiment})"


OF_EXPERIMENT = {"category": category, "subcategory": heading}
HEADLINE = {"category": "1. Headline"}


def shown(path, caption, what, **place):
    """Return an output that the report shows: its caption is a file, and `what` is its label."""
    return report(f"{RESULTS}/{path}", caption=f"../report/{caption}.rst", labels={"what": what}, **place)
