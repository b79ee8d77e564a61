"""The validated config, and the functions that rules ask for their files, parameters and resources."""

import sys
from pathlib import Path

import yaml
from snakemake.exceptions import WorkflowError
from snakemake.io import apply_wildcards
from snakemake.logging import logger
from snakemake.settings.types import RerunTrigger

from metapt.config import experiments, load, plain
from metapt.digest import code_digest
from metapt.registry import entry
from metapt.errors import ConfigError
from metapt.records import stale

# Read anew and strictly: of a key that is there twice Snakemake takes the last one.
try:
    CONFIG = load([Path(path) for path in workflow.configfiles], workflow.config_settings.config)
    EXPERIMENTS = experiments(CONFIG)
except ConfigError as error:
    sys.exit(f"error: {error}")  # an exception would point to this line

RESULTS = CONFIG.results
RAW = CONFIG.data.folder

with open(workflow.source_path("../resources/sources.yaml"), encoding="utf-8") as file:
    SOURCES = yaml.safe_load(file)

# Generated sources write the raw files of the source that they stand for.
MNIST_FILES = list(SOURCES["mnist"]["files"])
ECG_FILES = ["ptbxl_database.csv", "scp_statements.csv", "records.json"]


def code(stage, domain=None, experiment=None):
    """The digest of the code of a job."""
    return code_digest(entry(stage, {"domain": domain, "experiment": experiment} if domain else {}))


def recorded(name, inputs=lambda wildcards: {}):
    """An input function of the rule `name` that has its job run again where its run.json says other than it would say now.

    Snakemake compares settings, code and inputs with its own notes, which are lost with .snakemake and don't move with the results.
    """

    def files(wildcards):
        found = inputs(wildcards)
        made = workflow.get_rule(name)
        first = apply_wildcards(made.output[0], wildcards)
        if RerunTrigger.PARAMS in workflow.rerun_triggers and Path(first).exists():
            run = made.output.run if "run" in made.output.keys() else made.log.run
            settings = made.params.config
            settings = settings(wildcards) if callable(settings) else settings
            reason = stale(Path(apply_wildcards(run, wildcards)), settings, made.params.code, found)
            if reason and first not in workflow.dag.forcefiles:
                workflow.dag.forcefiles.add(first)
                if workflow.is_main_process:
                    logger.info(f"The job of {first} is run again: {reason}.")
        return found

    return files


def raw(names):
    """The input function of a rule that reads raw files of the source in its outputs' path."""
    return lambda wildcards: {name: f"{RAW}/{wildcards.source}/{name}" for name in names}


def section(experiment):
    """The config section of an experiment, whose name is {domain}_{key}."""
    if experiment not in EXPERIMENTS:
        domain, key = experiment.split("_", 1)
        raise WorkflowError(
            f"{experiment} is not in the config: add `{key}: {{}}` to the section {domain}, or name a config that has it."
        )
    return EXPERIMENTS[experiment]


def arm_section(experiment, arm):
    arms = section(experiment).arms
    if arm not in arms:
        raise WorkflowError(f"{experiment} has no arm {arm!r} in the config; it has {', '.join(arms)}.")
    return arms[arm]


def summary(experiment):
    """The files that an experiment ends in."""

    def files(wildcards):
        section(experiment)
        domain, key = experiment.split("_", 1)
        return [f"{RESULTS}/{domain}/{key}/{name}" for name in ("table.csv", "figure.svg", "claims.csv", "metrics.csv")]

    return files


def mnist_train_input(wildcards):
    arm = arm_section(f"mnist_{wildcards.experiment}", wildcards.arm)
    files = {"data": f"{RESULTS}/mnist/data/{CONFIG.mnist.source}.pt"}
    other = getattr(arm, "budget_of", None)
    return files | ({"budget": f"{RESULTS}/mnist/{wildcards.experiment}/{other}/metrics.csv"} if other else {})


def mnist_train_config(wildcards):
    settings = plain(section(f"mnist_{wildcards.experiment}"))
    return {
        "domain": "mnist",
        "experiment": wildcards.experiment,
        "arm": wildcards.arm,
        "settings": settings | {"arms": {wildcards.arm: settings["arms"][wildcards.arm]}},
        "checkpoint": f"{RESULTS}/.resume/mnist/{wildcards.experiment}/{wildcards.arm}.pt",
    }


def mnist_summarise_input(wildcards):
    folder = f"{RESULTS}/mnist/{wildcards.experiment}"
    names = {"metrics": "metrics.csv", "series": "series.csv", "run": "run.json"}
    arms = section(f"mnist_{wildcards.experiment}").arms
    return {f"{arm}/{name}": f"{folder}/{arm}/{file}" for arm in sorted(arms) for name, file in names.items()}


def mnist_summarise_config(wildcards):
    settings = plain(section(f"mnist_{wildcards.experiment}"))
    return {
        "domain": "mnist",
        "experiment": wildcards.experiment,
        "arms": sorted(settings["arms"]),
        "settings": settings,
    }


def mnist_threads(wildcards):
    """The arms of the BPTT study are timed, so that each has the scheduler's cores (of a cluster: its own job) to itself.

    Weighting runs its replicates side by side. The other nets are so small that one thread is best.
    """
    if wildcards.experiment == "bptt":
        return workflow.resource_settings.cores or 1
    return min(4, section("mnist_example_weighting").replicates) if wildcards.experiment == "example_weighting" else 1


def mnist_torch_threads(wildcards):
    """A number where it is not that of the job's threads."""
    return 1 if wildcards.experiment == "bptt" else None


def mnist_mem_mb(wildcards, attempt):
    """The imports take 500 MB; backpropagation through a whole PT and FT keeps about 4 MB a step; weighing 3,000 images at once takes
    about 3 GB in each thread."""
    settings = section(f"mnist_{wildcards.experiment}")
    steps = settings.pretrain_steps + settings.finetune_steps if wildcards.experiment == "bptt" else 0
    weighing = mnist_threads(wildcards) if wildcards.experiment == "example_weighting" else 0
    return attempt * (2000 + 4 * steps + 3000 * weighing)


def mnist_runtime(wildcards, attempt):
    """Minutes."""
    settings = section(f"mnist_{wildcards.experiment}")
    outer_steps = getattr(arm_section(f"mnist_{wildcards.experiment}", wildcards.arm), "outer_steps", 0)
    return attempt * (60 + outer_steps)


def collect_input(wildcards):
    names = {"metrics": "metrics.csv", "claims": "claims.csv"}
    folders = {experiment: f"{RESULTS}/{experiment.replace('_', '/', 1)}" for experiment in EXPERIMENTS}
    return {f"{each}/{name}": f"{folder}/{file}" for each, folder in folders.items() for name, file in names.items()}
