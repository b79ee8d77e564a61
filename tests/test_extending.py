"""The examples of the guide: each is applied to a copy of the sources and used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"<!-- (file|change): (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)

LOADED = """
import sys
from pathlib import Path
from metapt.config import load
from metapt.plan import planned
plan = planned(load([Path("example.yaml")]))
"""

USES = {
    "An experiment": (
        "ecg: {source: simulated, full_access: {arms: [simclr, meta]}, best_epoch: {}}",
        """
names = {job.name for job in plan.needed(plan.summaries["ecg_best_epoch"])}
assert "ecg/finetune/meta/n500/n500" in names
assert {job.name for job in plan.jobs.values() if job.stage == "finetune"} >= names - {"ecg/best_epoch"} - {
    job.name for job in plan.jobs.values() if job.stage != "finetune"
}
""",
    ),
    "An arm with a new training method": (
        "ecg: {source: simulated, arms: {random: {method: random_strength}}, full_access: {arms: [random]}}",
        """
import inspect
from metapt.domains.ecg import arms
assert plan.jobs["ecg/pretrain/random/n100/seed0"].config["arm_settings"]["range"] == [0.25, 64.0]
assert "_random_strength" in inspect.getsource(arms.pretrain)
""",
    ),
    "An inverse solver": (
        (
            "ecg: {source: simulated, arms: {m: {extends: meta, inverse: {kind: momentum, steps: 200}}}, "
            "full_access: {arms: [m]}}"
        ),
        """
import torch
from pydantic import TypeAdapter
from metapt.method import Inverse
section = plan.jobs["ecg/pretrain/m/n100/seed0"].config["arm_settings"]["inverse"]
solver = TypeAdapter(Inverse).validate_python(section).solver(pretrain_lr=1.0)
matrix = torch.diag(torch.tensor([1.0, 4.0]))
result = solver(lambda v: [matrix @ v[0]], [torch.ones(2)])
assert torch.allclose(result.value[0], torch.tensor([1.0, 0.25]), atol=1e-5), result
from metapt.digest import closure
assert "hypergrad.momentum" in closure("domains.ecg.pretrain")
""",
    ),
    "An FT solver": (
        "mnist: {source: digits, rotation_mean: {}}",
        """
import torch
from metapt import method
from metapt.hypergrad import SGD, Unroll
from torch import nn
from torch.nn import functional as F
from metapt import ModuleProblem
losses = dict(pretrain_loss=lambda *arguments: None, finetune_loss=lambda head, x, batch: F.mse_loss(head(x), batch[1]))
problem = ModuleProblem(nn.Linear(3, 2), nn.Identity(), nn.Linear(2, 1), **losses)
batch, arm = (torch.randn(9, 3), torch.randn(9, 1)), method.MetaArm(unroll="averaged", unroll_steps=1)
inputs = problem, problem.pretrained.encoder, {}, problem.head, None, [batch], batch
averaged, unrolled = method.finetuning(arm, SGD(0.1))(*inputs), Unroll(1, SGD(0.1))(*inputs)
assert torch.allclose(averaged.encoder_gradient["weight"], unrolled.encoder_gradient["weight"])
""",
    ),
}


def section(title: str) -> str:
    """Return the text of a section of the guide."""
    return GUIDE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def apply(title: str, project: Path) -> list[str]:
    """Make the changes of a section's blocks, and return the files that they change."""
    touched = []
    for kind, name, text in BLOCK.findall(section(title)):
        path = project / name
        if kind == "file":
            assert not path.exists()
            path.write_text(text, encoding="utf-8")
        else:
            lines = text.splitlines(keepends=True)
            before = "".join(line[1:] or "\n" for line in lines if not line.startswith("+"))
            after = "".join(line[1:] or "\n" for line in lines if not line.startswith("-"))
            content = path.read_text(encoding="utf-8")
            assert content.count(before) == 1, f"{name} has not once:\n{before}"
            path.write_text(content.replace(before, after), encoding="utf-8")
        touched.append(name)
    return list(dict.fromkeys(touched))


@pytest.mark.slow
@pytest.mark.parametrize("title", USES)
def test_an_example_of_the_guide_is_whole(title: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    apply(title, tmp_path)
    config, use = USES[title]
    (tmp_path / "example.yaml").write_text(f"results: results/example\n{config}\n", encoding="utf-8")
    code = LOADED + use
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("title", "most"),
    [("An experiment", 1), ("An arm with a new training method", 2), ("An inverse solver", 2), ("An FT solver", 2)],
)
def test_adding_one_touches_few_files(title: str, most: int, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    assert len(apply(title, tmp_path)) == most
