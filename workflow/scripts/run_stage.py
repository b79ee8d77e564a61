"""Run a Snakemake job as a job of the plan."""

import sys
from pathlib import Path

asked = snakemake  # noqa: F821  (Snakemake defines it)

# In a conda environment of the job's own (--sdm conda) metapt itself is not installed.
sys.path.append(str(Path(asked.scriptdir).parents[1] / "src"))

from metapt.engine.execute import execute  # noqa: E402
from metapt.engine.jobs import Job  # noqa: E402


def paths(files):
    return {name: str(path) for name, path in files.items()}


outputs = paths(asked.output)
job = Job(
    config=asked.params.config,
    inputs=paths(asked.input),
    record=outputs.pop("run", None) or str(asked.log.run),
    outputs=outputs,
    log=str(asked.log[-1]),  # the last one, since Snakemake shows them in this order when a job has failed
    **asked.params.job | {"threads": min(asked.threads, asked.params.job["threads"])},
)
required = asked.config.get("require_gpu", False)
sys.exit(execute(job, gpus=asked.resources.get("gpu", 0), require_gpu=required, code=asked.params.code))
