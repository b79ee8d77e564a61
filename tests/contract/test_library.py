"""The library needs torch, NumPy and SciPy only; what needs more says so in one sentence."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest

import metapt

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "noise_levels.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
"""
OTHERS = {
    "httpx": "httpx", "jinja2": "jinja2", "matplotlib": "matplotlib", "pandas": "pandas", "pydantic": "pydantic",
    "pyyaml": "yaml", "scikit-learn": "sklearn", "snakemake": "snakemake",
    "torch-geometric": "torch_geometric", "tqdm": "tqdm", "wfdb": "wfdb",
}  # fmt: skip
"""Packages of the extra `workflow`, and the names by which they are imported."""


def without_the_extra(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code where the packages of the extra `workflow` can't be imported."""
    command = [sys.executable, "-c", BLOCKED.format(names={*OTHERS.values()}) + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def named(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=]", each)[0] for each in requirements}


def test_the_package_itself_requires_torch_numpy_and_scipy() -> None:
    assert named(PROJECT["dependencies"]) == {"torch", "numpy", "scipy"}
    assert named(PROJECT["optional-dependencies"]["workflow"]) == {*OTHERS}


HEADROOM = """
import torch
from torch import nn
import metapt

encoder, head = nn.Linear(2, 2), nn.Linear(2, 1)
problem = metapt.ModuleProblem(
    encoder,
    head,
    nn.Linear(2, 1),
    pretrain_loss=lambda encoder, head, meta, batch: ((head(encoder(batch)) - meta["target"]) ** 2).mean(),
    finetune_loss=lambda head, features, batch: features.sum(),
)
data = [torch.ones(3, 2)]
found = metapt.headroom(
    problem,
    batches=lambda seed: metapt.LoaderBatches(pretrain=data, train=data, validation=[torch.zeros(3, 2)], seed=seed),
    pretrained=lambda seed: problem.pretrained,
    draw=lambda random: {"target": torch.randn((), generator=random)},
    evaluate=lambda pretrained, seed: float(pretrained.encoder["weight"].sum()) + 0.01 * seed,
    reference={"target": torch.tensor(0.0)},
    steps=5,
    optimizer=metapt.OptimizerSpec("SGD", {"lr": 0.1}),
    settings=6,
    seeds=3,
)
print(found)
found.to_csv(sys.argv[2])
"""
"""A headroom of few and short runs, whose table is kept."""


@pytest.mark.slow
def test_the_library_imports_nothing_else_and_its_example_and_a_headroom_run(tmp_path: Path) -> None:
    modules = ["metapt.hypergrad", *(f"metapt.{place}" for place in metapt._PLACES.values())]
    modules += [
        f"metapt.{package}.{path.stem}"
        for package in ("hypergrad", "hypergrad.layers", "training")
        for path in sorted((ROOT / "src" / "metapt" / package.replace(".", "/")).glob("*.py"))
    ]
    short, table = EXAMPLE.read_text(encoding="utf-8"), tmp_path / "table.csv"
    for setting, less in {"iterations=200": "iterations=5", "warmup=40": "warmup=1"}.items():
        assert setting in short
        short = short.replace(setting, less)
    (tmp_path / "short.py").write_text(short, encoding="utf-8")
    code = f"import runpy; runpy.run_path(sys.argv[1]); import {', '.join(modules)}\n{HEADROOM}"
    done = without_the_extra(code, str(tmp_path / "short.py"), str(table))
    assert done.returncode == 0, done.stderr
    example, _, headroom = done.stdout.partition("settings explain ")
    assert "Learned noise" in example
    assert 0 < headroom.count("\n") <= 12
    assert len(table.read_text().splitlines()) == 1 + 7 * 3


def test_commands_that_need_the_extra_say_so_in_one_sentence() -> None:
    config = "--configfile config/config.yaml"
    commands = [f"check {config}", f"run {config}", f"estimate {config}", "docs --check", "summary x", "headroom x.csv"]
    code = "from metapt.cli import main; sys.exit(sum(main(each.split()) for each in sys.argv[1:]))"
    done = without_the_extra(code, *commands)
    assert done.returncode == len(commands)
    for command, said in zip(commands, done.stderr.splitlines(), strict=True):
        end = r"which is not installed: pip install 'metapt\[workflow\]'"
        assert re.fullmatch(rf"error: metapt {command.split()[0]} needs the package '\w+', {end}", said), said


def test_public_names_are_listed_where_they_are_and_for_type_checkers() -> None:
    tree = ast.parse(Path(metapt.__file__).read_text(encoding="utf-8"))
    shown = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert shown == {name: f"metapt.{place}" for name, place in metapt._PLACES.items()}
    for name in metapt.__all__:
        assert getattr(metapt, name).__module__ == shown[name]
    package = importlib.import_module("metapt.hypergrad")
    assert all(hasattr(package, name) for name in package.__all__)
    assert (Path(metapt.__file__).parent / "py.typed").is_file()


def test_a_problem_takes_at_most_35_statements() -> None:
    """Imports and logging included."""
    tree = ast.parse(EXAMPLE.read_text(encoding="utf-8"))
    assert len([node for node in ast.walk(tree) if isinstance(node, ast.stmt)]) - 1 <= 35  # without its docstring


@pytest.mark.slow
def test_the_wheel_away_from_a_clone(tmp_path: Path) -> None:
    """Installed into an environment of its own, which sees the other packages of this one."""
    programs = tmp_path / "environment" / "bin"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(*command: str) -> str:
        output: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(command, env=environment, cwd=tmp_path, **output)
        assert done.returncode == 0, done.stdout
        return str(done.stdout)

    pip = (sys.executable, "-m", "pip", "--quiet")
    run(sys.executable, "-m", "venv", "--without-pip", str(programs.parent))
    packages = Path(run(f"{programs}/python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    run(*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT))
    wheel = next(tmp_path.glob("metapt-*.whl"))
    run(*pip, "--python", f"{programs}/python", "install", "--no-deps", "--no-index", str(wheel))
    assert Path(run("python", "-c", "import metapt; print(metapt.__file__)").strip()).is_relative_to(packages)
    (tmp_path / "short.yaml").write_text("mnist: {rotation_mean: {replicates: 2, epochs: 1}}")
    tour = ("--configfile", "config/config.yaml", "short.yaml")
    assert "metapt/config/config.yaml short.yaml\n" in run("metapt", "check", *tour)
    run("metapt", "run", "mnist_rotation_mean", *tour, "--jobs", "2")
    assert "mnist_rotation_mean (stand-in data): " in run("metapt", "table", "mnist_rotation_mean")
    results, moved = next((tmp_path / "results").iterdir()), tmp_path / "moved"
    results.rename(moved)
    assert "  meta-shared  " in run("metapt", "table", "mnist_rotation_mean", "moved", "--against", "meta-shared")
    moved.rename(results)
    # The workflow is no part of the wheel: it is copied, as the catalog of workflows does.
    for folder in ("config", "workflow"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    assert "Nothing to be done" in run("python", "-m", "snakemake", "mnist_rotation_mean", "--cores", "2", *tour)
