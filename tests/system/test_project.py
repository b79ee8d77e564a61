"""Versions, addresses and pins stand in several files, which must agree."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import metapt
from metapt import cli

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONDA = {"matplotlib-base": "matplotlib", "pytorch": "torch", "pytorch-geometric": "torch-geometric"}
"""Name of a conda package -> name on PyPI, where they differ."""


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def plain(name: str) -> str:
    """Return a package's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


PINS = {
    plain(name): version
    for name, version in re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.M)
}


def test_versions_are_equal() -> None:
    citation = read("CITATION.cff")
    assert citation["version"] == metapt.__version__
    released = re.findall(r"^## (\d\S*) - (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M)
    assert released[0] == (metapt.__version__, str(citation["date-released"]))


def test_every_requirement_has_a_pin() -> None:
    for requirement in requirements():
        name, least = re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)(?:,<\d+)?", requirement).groups()  # type: ignore[union-attr]
        assert numbers(PINS[plain(name)]) >= numbers(least), requirement


def requirements() -> list[str]:
    """Return what the package and its extras require."""
    return [*PROJECT["dependencies"], *(each for extra in PROJECT["optional-dependencies"].values() for each in extra)]


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_the_conda_environment_has_the_same_pins() -> None:
    packages = dict(each.split(" ") for each in read("workflow/envs/metapt.yaml")["dependencies"])
    assert packages.pop("python") == PROJECT["requires-python"]
    found = {CONDA.get(plain(name), plain(name)): version for name, version in packages.items()}
    assert found == {name: f"={PINS[name]}" for name in found}
    # Jobs need what the package and the extra need, but Snakemake, which starts them.
    needed = {plain(re.split(r"[\[<>=]", each)[0]) for each in PROJECT["dependencies"]}
    needed |= {plain(re.split(r"[\[<>=]", each)[0]) for each in PROJECT["optional-dependencies"]["workflow"]}
    assert found.keys() - {"socksio"} == needed - {"snakemake"}


def test_the_workflow_has_what_the_catalog_asks_for() -> None:
    usage = read(".snakemake-workflow-catalog.yml")["usage"]
    assert {*usage} == {"mandatory-flags", "software-stack-deployment", "report"}
    for path in ("README.md", "LICENSE", "config/README.md", "config/config.yaml", "workflow/Snakefile"):
        assert (ROOT / path).is_file()
    for rules in (ROOT / "workflow" / "rules").glob("*.smk"):
        for environment in re.findall(r"conda:\s+\"(\S+)\"", rules.read_text(encoding="utf-8")):
            assert (rules.parent / environment).is_file()


def test_a_config_of_ones_own_comes_before_the_one_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Laid out as in the wheel, which `test_the_wheel_away_from_a_clone` installs."""
    shutil.copytree(ROOT / "config", tmp_path / "site" / "config")
    (tmp_path / "own" / "config").mkdir(parents=True)
    (tmp_path / "own" / "config" / "paper.yaml").write_text("results: r\nmnist: {source: digits, rotation_mean: {}}\n")
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "site" / "cli.py"))
    monkeypatch.chdir(tmp_path / "own")
    for config, results, errors in [("paper", "r", 0), ("config", "results/tour", 1)]:
        assert cli.main(["check", "--configfile", f"config/{config}.yaml"]) == 0
        printed = capsys.readouterr()
        assert f"results: {results}" in printed.out
        assert printed.err.count("the one that came with metapt is read: ") == errors


@pytest.mark.parametrize(("path", "commands"), [("ci", [".ci/run", ".ci/versions"]), ("site", ["make site"])])
def test_github_runs_the_commands_of_the_project(path: str, commands: list[str]) -> None:
    jobs = read(f".github/workflows/{path}.yml")["jobs"].values()
    found = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert [run.partition(" python ")[0] for run in found] == commands


def test_ci_tests_the_oldest_versions_and_newer_ones_than_the_pins() -> None:
    oldest, newer = read(".github/workflows/ci.yml")["jobs"]["versions"]["strategy"]["matrix"]["include"]
    least = next(each for each in PROJECT["dependencies"] if each.startswith("torch>="))
    assert f">={oldest['python']}" == PROJECT["requires-python"]
    assert oldest["torch"].startswith(least.removeprefix("torch>="))
    assert numbers(newer["torch"]) > numbers(PINS["torch"])


def test_the_lock_file_has_the_pins_and_public_addresses() -> None:
    text = (ROOT / "uv.lock").read_text(encoding="utf-8")
    found = {each["name"]: each.get("version") for each in tomllib.loads(text)["package"]}
    assert {name: version for name, version in found.items() if name in PINS and version != PINS[name]} == {}
    needed = {plain(name) for name in re.findall(r"^[\w-]+", "\n".join(requirements()), flags=re.M)}
    assert needed <= found.keys()
    assert set(re.findall(r"https?://([^/\"]+)", text)) == {"pypi.org", "files.pythonhosted.org"}


FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_issue_forms_have_what_github_needs(form: Path) -> None:
    content = yaml.safe_load(form.read_text(encoding="utf-8"))
    if form.stem == "config":
        assert content == {"blank_issues_enabled": True}
        return
    assert content["name"]
    assert content["description"]
    asked = [each for each in content["body"] if each["type"] != "markdown"]
    assert {each["type"] for each in asked} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert len({each["id"] for each in asked}) == len(asked)
    assert all(each["attributes"]["label"] for each in asked)
