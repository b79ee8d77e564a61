"""Properties of the SLURM profile that need no SLURM."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from metapt.engine.jobs import TRAINING

ROOT = Path(__file__).parents[3]


def profile(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "workflow" / "profiles" / name / "config.yaml").read_text())
    return content


def rules() -> list[str]:
    """Return the text of each rule that runs a job."""
    texts = [path.read_text() for path in (ROOT / "workflow" / "rules").glob("*.smk")]
    return [text for each in texts for text in re.split(r"^ *rule(?: \w+)?:$", each, flags=re.M)[1:]]


def test_the_jobs_that_train_are_told_before_their_time_limit() -> None:
    assert profile("slurm")["set-resources"] == {name: {"slurm_extra": "'--signal=TERM@120'"} for name in TRAINING}


def test_every_rule_asks_for_memory_and_time_that_grow_with_the_attempt() -> None:
    assert len(rules()) == 5
    for text in rules():
        (asked,) = re.findall(r"mem_mb=(\w+)\.mem_mb,", text)
        assert f"runtime={asked}.minutes," in text
        assert f"threads: {asked}.cores" in text
    functions = (ROOT / "workflow" / "rules" / "common.smk").read_text()
    for name in ("mem_mb", "minutes"):
        assert (
            f"def {name}(self, wildcards, attempt):\n        return self.job(wildcards).{name} * attempt\n" in functions
        )


def test_what_the_profiles_share_is_equal() -> None:
    slurm, default = profile("slurm"), profile("default")
    own = {"resources", "cores"}  # those of one machine, and those of a cluster
    assert {key: slurm[key] for key in default if key not in own} == {
        key: default[key] for key in default if key not in own
    }
    assert "cores" not in slurm
