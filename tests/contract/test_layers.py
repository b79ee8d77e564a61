"""The structure of the package: directions of imports, nothing that only forwards, length of files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from metapt.engine.domain import discover

SOURCE = Path(__file__).parents[2] / "src" / "metapt"
MODULES = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in sorted(SOURCE.rglob("*.py"))}

ENGINE = {"digest", "records", "process_memory", "jobs", "schema", "config_files"}
SMALL = {"errors", "files", "machine", "sections", "engine", *(f"engine.{name}" for name in ENGINE)}
LAYERS = [
    SMALL,
    {"hypergrad", "fetching"},
    {"training"},
    {"method"},
    {"evaluation"},
    {"twostage"},
    {"engine.domain"},
    {"domains"},
    {"engine.registry"},
    {"engine.config"},
    {"engine.plan", "engine.remaining"},
    {"engine.execute"},
    {"engine.run", "engine.estimate", "engine.config_docs"},
    {"cli"},
    {"__main__", "__init__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def layer_of(name: str) -> str:
    first, _, rest = name.partition(".")
    return f"engine.{rest.split('.')[0]}" if first == "engine" and rest not in ("", "__init__") else first


def imported(path: Path) -> set[str]:
    """Return the modules of the package that a module imports, also in functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "metapt":
            base = node.module.removeprefix("metapt").removeprefix(".")
            found |= {f"{base}.{alias.name}".strip(".") for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("metapt.") for alias in node.names if alias.name.startswith("metapt.")}
    return found


def test_every_module_has_a_layer() -> None:
    assert {layer_of(name) for name in MODULES} == set(RANK)


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_downwards(name: str) -> None:
    upward = [each for each in imported(MODULES[name]) if RANK[layer_of(each)] > RANK[layer_of(name)]]
    assert not upward


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("domains.")])
def test_domains_do_not_know_one_another(name: str) -> None:
    domain = name.split(".")[1]
    assert {each.split(".")[1] for each in imported(MODULES[name]) if each.startswith("domains.")} <= {domain}


@pytest.mark.parametrize("domain", ["mnist", "ecg", "ppi"])
def test_adding_an_experiment_touches_one_file_or_one_folder(domain: str) -> None:
    """Check that modules that are no experiments import none, and that each is found by its file or folder."""
    inside = f"domains.{domain}.experiments"
    importing = [name for name in MODULES if not name.startswith(f"{inside}.")]
    users = [name for name in importing if any(each.startswith(inside) for each in imported(MODULES[name]))]
    assert users == []
    places = {path.stem for path in (SOURCE / inside.replace(".", "/")).iterdir() if not path.name.startswith("__")}
    assert set(discover(f"metapt.{inside}")) == places


def test_what_the_plan_is_made_of_needs_no_torch() -> None:
    """Check the modules that the plan imports outside of functions, directly or not."""
    todo, seen = ["engine.plan"], set()
    while todo:
        name = todo.pop()
        if name in seen or name not in MODULES:
            continue
        seen.add(name)
        tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.Import):
                assert "torch" not in {alias.name.split(".")[0] for alias in node.names}, name
            elif isinstance(node, ast.ImportFrom):
                assert node.module is not None
                assert node.module.split(".")[0] != "torch", name
                base = node.module.removeprefix("metapt").removeprefix(".")
                todo += [base, *(f"{base}.{alias.name}".strip(".") for alias in node.names)]
        if name == "engine.registry":
            todo += [each for each in MODULES if WITHOUT_TORCH.fullmatch(each) and ".experiments." in each]
            todo += [f"domains.{each}.domain" for each in ("mnist", "ecg", "ppi")]
    assert len(seen) > 30


@pytest.mark.parametrize("name", MODULES)
def test_a_module_does_more_than_forward(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    statements = [
        each for each in tree.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
    ]
    if name.endswith("__init__") or not statements:
        return
    assert any(not isinstance(node, ast.Import | ast.ImportFrom) for node in statements)


@pytest.mark.parametrize("name", MODULES)
def test_a_function_does_more_than_forward(name: str) -> None:
    """Check that no public function of a module only calls another with its own arguments."""
    for node in ast.parse(MODULES[name].read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        body = [each for each in node.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
        value = getattr(body[-1], "value", None) if len(body) == 1 else None
        if isinstance(value, ast.Call) and node.args.args:
            given = [ast.unparse(argument) for argument in value.args]
            assert given != [argument.arg for argument in node.args.args] or value.keywords, f"{name}.{node.name}"


def test_public_classes_have_names_of_their_own() -> None:
    """Check all classes but a domain's version of its parent's, such as `PretrainSettings(stages.PretrainSettings)`."""
    names = [
        node.name
        for path in MODULES.values()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        if f".{node.name}" not in "".join(ast.unparse(base) for base in node.bases)
    ]
    assert [name for name, count in Counter(names).items() if count > 1] == []


@pytest.mark.parametrize("name", MODULES)
def test_a_file_is_read_in_one_sitting(name: str) -> None:
    assert len(MODULES[name].read_text(encoding="utf-8").splitlines()) <= 450


TRAINING = re.compile(r"domains\.\w+\.(pretrain|finetune|experiments\.\w+\.run)")
WITHOUT_TORCH = re.compile(
    r"fetching|evaluation\.(collect|page)|domains\.\w+\.(data\.simulate|experiments\.\w+(\.report)?)"
)


@pytest.mark.parametrize(
    ("jobs", "libraries"),
    [
        (TRAINING, {"pandas", "scipy", "matplotlib", "sklearn", "sympy", "torch._dynamo"}),
        (WITHOUT_TORCH, {"torch", "sklearn"}),
    ],
)
def test_a_job_imports_no_library_that_it_does_not_need(jobs: re.Pattern[str], libraries: set[str]) -> None:
    """Each job is a process of its own, so that an import is paid by each."""
    entries = [f"metapt.{name}" for name in MODULES if jobs.fullmatch(name)]
    assert len(entries) > 5
    code = f"import sys, metapt.engine.execute, {', '.join(entries)}; print(*{libraries} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "\n"
