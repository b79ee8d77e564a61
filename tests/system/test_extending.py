"""The examples of the guide: each is applied to a copy of the sources and used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"<!-- (file|change): (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)

RUN = """
from pathlib import Path
from metapt.engine.config import load
from metapt.engine.execute import execute
from metapt.engine.plan import planned
plan = planned(load([Path("base.yaml"), Path("guide.yaml"), Path("toy.yaml")]))
for job in plan.needed(plan.summaries[{target!r}]):
    assert execute(job) == 0, job.name
"""

USES = {
    "An experiment": (
        "tiny_ecg.yaml",
        "ecg: {best_epoch: {finetune_size: 30}}",
        "ecg_best_epoch",
        ["| SimCLR ", "| meta (K = 1) ", "the best epoch of meta is at most that of simclr,meta,simclr,best epoch"],
        """
targets = "ecg_best_epoch", "ecg_full_access"
names, others = ({job.name for job in plan.needed(plan.summaries[each])} for each in targets)
assert "ecg/finetune/meta/n30/n30/seed0" in names
assert names - others == {"ecg/best_epoch"}  # nothing is trained again
""",
    ),
    "An arm with a new training method": (
        "tiny_ecg.yaml",
        "ecg: {full_access: {arms: [random]}}",
        "ecg_full_access",
        ["| random "],
        """
import inspect
from metapt.domains.ecg import arms
assert plan.jobs["ecg/pretrain/random/n30/seed0"].config["arm_settings"]["range"] == [0.25, 64.0]
assert "_random_strength" in inspect.getsource(arms.pretrain)
""",
    ),
    "An inverse solver": (
        "tiny_ecg.yaml",
        "ecg: {full_access: {arms: [meta-momentum]}}",
        "ecg_full_access",
        ["| meta-momentum "],
        """
import torch
from pydantic import TypeAdapter
from metapt.method import Inverse
section = plan.jobs["ecg/pretrain/meta-momentum/n30/seed0"].config["arm_settings"]["inverse"]
solver = TypeAdapter(Inverse).validate_python(section | {"steps": 200}).solver(pretrain_lr=1.0)
matrix = torch.diag(torch.tensor([1.0, 4.0]))
result = solver(lambda v: [matrix @ v[0]], [torch.ones(2)])
assert torch.allclose(result.value[0], torch.tensor([1.0, 0.25]), atol=1e-5), result
from metapt.engine.digest import closure
assert "hypergrad.momentum" in closure("domains.ecg.pretrain")
""",
    ),
    "An FT solver": (
        "tiny.yaml",
        "{}",
        "mnist_rotation_mean",
        ["| averaged "],
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
"""By title: a small config, what fits the section's config to its size, the target, what its files say, other uses."""


def section(title: str) -> str:
    """Return the text of a section of the guide."""
    return GUIDE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def apply(title: str, project: Path) -> list[str]:
    """Make the changes of a section's blocks, and return the files that they change."""
    touched = []
    for kind, name, text in BLOCK.findall(section(title)):
        path = project / name
        if kind == "file":
            path.write_text(text, encoding="utf-8")
        else:
            lines = text.splitlines(keepends=True)
            before = "".join(line[1:] or "\n" for line in lines if not line.startswith("+"))
            after = "".join(line[1:] or "\n" for line in lines if not line.startswith("-"))
            content = path.read_text(encoding="utf-8")
            if after not in content:  # it may be in a project that has followed the guide
                assert content.count(before) == 1, f"{name} has not once:\n{before}"
                path.write_text(content.replace(before, after), encoding="utf-8")
        touched.append(name)
    return list(dict.fromkeys(touched))


@pytest.mark.slow
@pytest.mark.parametrize("title", USES)
def test_an_example_of_the_guide_runs_to_its_table(title: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.pyc.*"))  # half of a module
    apply(title, tmp_path)
    base, toy, target, words, use = USES[title]
    shutil.copy(ROOT / "tests" / "system" / "workflow" / base, tmp_path / "base.yaml")
    (tmp_path / "guide.yaml").write_text(re.findall(r"```yaml\n(.*?)```", section(title), re.DOTALL)[-1])
    (tmp_path / "toy.yaml").write_text(toy)
    code = RUN.format(target=target) + use
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "results" / "tiny" / target.replace("_", "/", 1)
    made = (folder / "table.md").read_text() + (folder / "claims.csv").read_text()
    assert [word for word in words if word not in made] == []


@pytest.mark.parametrize(
    ("title", "most"),
    [("An experiment", 1), ("An arm with a new training method", 2), ("An inverse solver", 2), ("An FT solver", 3)],
)
def test_adding_one_touches_few_files(title: str, most: int, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    assert len(apply(title, tmp_path)) == most
