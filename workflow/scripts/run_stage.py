"""A Snakemake job as a job of `metapt.stages`."""

import sys
from pathlib import Path

job = snakemake  # noqa: F821  (Snakemake defines it)

# In a conda environment of the job's own (--sdm conda) metapt itself is not installed.
sys.path.append(str(Path(job.scriptdir).parents[1] / "src"))

from metapt.stages import Job, execute  # noqa: E402

TRAINING = ("train", "pretrain", "finetune", "study")


def paths(files):
    return {name: Path(path) for name, path in files.items()}


sys.exit(
    execute(
        Job(
            stage=job.params.stage,
            config=job.params.config,
            inputs=paths(job.input),
            outputs=paths(job.output) | {name: path for name, path in paths(job.log).items() if name != "text"},
            threads=job.params.get("threads") or job.threads,
            gpu=job.resources.get("gpu", 0),
            require_gpu=job.config.get("require_gpu", False) and job.params.stage in TRAINING,
            log=Path(job.log[-1]),  # the last one, since Snakemake shows them in this order when a job has failed
            code=job.params.get("code"),
        )
    )
)
