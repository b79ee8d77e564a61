"""The examples of the guide and a toy domain: all are added to a copy of the sources and used."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"<!-- (file|change): (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)

TOY = ROOT / "tests" / "contract" / "toy_domain" / "noise"
SMALL = """
ecg:
  pretrain_seeds: 1
  best_epoch: {finetune_size: 30}
  full_access: {arms: [simclr, meta, random, meta-momentum]}
"""
"""What fits the sections' configs to the size of the tiny ones."""

RUN = """
from pathlib import Path
from metapt.engine.config import load
from metapt.engine.execute import execute
from metapt.engine.plan import planned
plan = planned(load([Path("tiny.yaml"), Path("tiny_ecg.yaml"), *sorted(Path("guide").iterdir()), Path("small.yaml")]))
for job in plan.needed("page"):
    assert execute(job) == 0, job.name
"""


class Use(NamedTuple):
    """What comes of a section of the guide."""

    files: int  # that it touches at most
    target: str
    words: list[str]  # of its tables and claims
    code: str  # further use


USES = {
    "An experiment": Use(
        1,
        "ecg_best_epoch",
        ["| SimCLR ", "| meta ", "the best epoch of meta is at most that of simclr,meta,simclr,best epoch"],
        """
targets = "ecg_best_epoch", "ecg_full_access"
names, others = ({job.name for job in plan.needed(plan.summaries[each])} for each in targets)
assert "ecg/finetune/meta/n30/n30/seed0" in names
assert names - others == {"ecg/best_epoch"}  # nothing is trained again
""",
    ),
    "An arm with a new training method": Use(
        2,
        "ecg_full_access",
        ["| random "],
        """
import inspect
from metapt.domains.ecg import arms
assert plan.jobs["ecg/pretrain/random/n30/seed0"].config["arm_settings"]["range"] == [0.25, 64.0]
assert "_random_strength" in inspect.getsource(arms.pretrain)
""",
    ),
    "An inverse solver": Use(
        2,
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
    "An FT solver": Use(
        3,
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


def section(title: str) -> str:
    """Return the text of a section of the guide."""
    return GUIDE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def blocks_of_yaml(title: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", section(title), re.DOTALL)


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


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the project with all that the guide adds, and with the toy domain, which takes a name in `DOMAINS`."""
    folder = tmp_path_factory.mktemp("extended")
    for part in ("src", "workflow"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("*.pyc.*"))  # half of a module
    (folder / "guide").mkdir()
    for title, use in USES.items():
        assert len(apply(title, folder)) == use.files
        (folder / "guide" / f"{title}.yaml").write_text(blocks_of_yaml(title)[-1])
    for base in ("tiny.yaml", "tiny_ecg.yaml"):
        shutil.copy(ROOT / "tests" / "system" / "workflow" / base, folder)
    (folder / "small.yaml").write_text(SMALL)
    shutil.copytree(TOY, folder / "src/metapt/domains/noise", ignore=shutil.ignore_patterns("__pycache__"))
    domains = folder / "src/metapt/engine/domain.py"
    domains.write_text(domains.read_text(encoding="utf-8").replace('    "ppi",\n', '    "ppi",\n    "noise",\n'))
    return folder


def python(project: Path, *arguments: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *arguments], cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_examples_of_the_guide_run_to_their_tables(project: Path) -> None:
    python(project, "-c", RUN + "".join(use.code for use in USES.values()))
    for use in USES.values():
        folder = project / "results" / "tiny" / use.target.replace("_", "/", 1)
        made = (folder / "table.md").read_text() + (folder / "claims.csv").read_text()
        assert [word for word in use.words if word not in made] == []


def test_a_toy_domain_runs_through_the_workflow(project: Path) -> None:
    shown = blocks_of_yaml("A domain")[0]
    assert "pretrain_seeds: 5" in shown
    (project / "toy.yaml").write_text(shown.replace("pretrain_seeds: 5", "pretrain_seeds: 2"))
    python(project, "-m", "snakemake", "--cores", "2", "--configfile", "toy.yaml")
    claims = pd.read_csv(project / "results/toy/noise/gain/claims.csv")
    assert claims[["arm", "control", "verdict"]].values.tolist() == [["meta", "fixed", "too few seeds"]]
    assert claims.loc[0, "low"] > 0
    assert (project / "results/toy/noise/gain/figure.svg").is_file()
    assert "meta beats fixed" in (project / "results/toy/headline.md").read_text(encoding="utf-8")


def test_the_toy_domain_is_short() -> None:
    """At most 300 lines of code without its science."""
    lines = 0
    for path in TOY.rglob("*.py"):
        if path.name not in ("problem.py", "simulate.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            lines += len({node.lineno for node in ast.walk(tree) if hasattr(node, "lineno")})
    assert lines <= 300
