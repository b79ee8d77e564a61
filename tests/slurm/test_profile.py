"""What holds of the profile for SLURM, and of the paper's config on a cluster, without one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]


def profile(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "workflow" / "profiles" / name / "config.yaml").read_text())
    return content


def rules() -> dict[str, str]:
    """Rule -> its text."""
    texts = [path.read_text() for path in (ROOT / "workflow" / "rules").glob("*.smk")]
    parts = [re.split(r"^rule (\w+):$", text, flags=re.M) for text in texts]
    return {name: text for part in parts for name, text in zip(part[1::2], part[2::2], strict=True)}


def test_the_jobs_that_keep_a_state_are_told_before_their_time_limit() -> None:
    keep = {name for name, text in rules().items() if re.search(r'stage="(train|pretrain|finetune)"', text)}
    assert {"mnist_train", "ecg_pretrain", "ppi_finetune"} <= keep
    assert profile("slurm")["set-resources"] == {name: {"slurm_extra": "'--signal=TERM@120'"} for name in keep}


def test_every_rule_asks_for_memory_and_time_that_grow_with_the_attempt() -> None:
    functions = "\n".join(path.read_text() for path in (ROOT / "workflow" / "rules").glob("*.smk"))
    for name, text in rules().items():
        for resource in ("mem_mb", "runtime"):
            (asked,) = re.findall(rf"^        {resource}=(.*),$", text, flags=re.M)
            if re.fullmatch(r"\w+", asked):
                assert re.search(rf"^def {asked}\(.*attempt\)", functions, flags=re.M), name
            else:
                assert "attempt" in asked, name


def test_what_the_profiles_share_is_equal() -> None:
    slurm, default = profile("slurm"), profile("default")
    own = {"resources", "cores"}  # what a machine has, and what a cluster
    assert {key: slurm[key] for key in default if key not in own} == {key: default[key] for key in default if key not in own}
    assert "cores" not in slurm


def test_the_dry_run_of_the_whole_paper_takes_seconds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "snakemake", "--snakefile", ROOT / "workflow" / "Snakefile", "--cores", "1", "--dry-run"]
    before = os.times()
    done = subprocess.run(
        [*command, "--configfile", ROOT / "config" / "paper.yaml"], cwd=tmp_path, capture_output=True, text=True
    )
    after = os.times()
    assert done.returncode == 0, done.stderr
    # Of a processor's time: on a busy machine it waits longer for one.
    assert after.children_user + after.children_system - before.children_user - before.children_system < 10
