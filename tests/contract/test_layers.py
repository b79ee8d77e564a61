"""The structure of the package: directions of imports, and nothing that only forwards."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from metapt.engine.domain import discover

SOURCE = Path(__file__).parents[2] / "src" / "metapt"
MODULES = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in sorted(SOURCE.rglob("*.py"))}
ENGINE = {"digest", "records", "jobs", "schema", "config_files"}
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
    {"engine.config"},
    {"engine.plan"},
    {"engine.execute"},
    {"engine.run", "engine.estimate", "engine.config_docs"},
    {"cli"},
    {"__main__", "__init__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def layer_of(name: str) -> str:
    first, _, rest = name.partition(".")
    return f"engine.{rest.split('.')[0]}" if first == "engine" and rest not in ("", "__init__") else first


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the modules, and names in modules, of the package that some nodes of a syntax tree import."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "metapt":
            base = node.module.removeprefix("metapt").removeprefix(".")
            found |= {base, *(f"{base}.{alias.name}".strip(".") for alias in node.names)} - {""}
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("metapt.") for alias in node.names if alias.name.startswith("metapt.")}
    return found


@cache
def imports(name: str) -> set[str]:
    """Return what a module imports, also in functions."""
    return imported(ast.walk(tree(name)))


def test_every_module_has_a_layer() -> None:
    assert {layer_of(name) for name in MODULES} == set(RANK)


def test_imports_go_downwards() -> None:
    upward = [
        f"{name} imports {each}"
        for name in MODULES
        for each in imports(name)
        if RANK[layer_of(each)] > RANK[layer_of(name)]
    ]
    assert upward == []


def test_domains_do_not_know_one_another() -> None:
    for name in MODULES:
        if name.startswith("domains."):
            known = {each.split(".")[1] for each in imports(name) if each.startswith("domains.")}
            assert known <= {name.split(".")[1]}, name


@pytest.mark.parametrize("domain", ["mnist", "ecg", "ppi"])
def test_adding_an_experiment_touches_one_file_or_one_folder(domain: str) -> None:
    """Check that modules that are no experiments import none, and that each is found by its file or folder."""
    inside = f"domains.{domain}.experiments"
    importing = [name for name in MODULES if not name.startswith(f"{inside}.")]
    users = [name for name in importing if any(each.startswith(inside) for each in imports(name))]
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
        for node in tree(name).body:
            first = node.module if isinstance(node, ast.ImportFrom) else None
            libraries = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [first or ""]
            assert "torch" not in {library.split(".")[0] for library in libraries}, name
        todo += imported(tree(name).body)
        if name == "engine.domain":
            todo += [each for each in MODULES if WITHOUT_TORCH.fullmatch(each) and ".experiments." in each]
            todo += [f"domains.{each}.domain" for each in ("mnist", "ecg", "ppi")]
    assert len(seen) > 30


def undocumented(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements without docstrings."""
    return [each for each in body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]


def test_modules_do_more_than_forward() -> None:
    for name in MODULES:
        statements = undocumented(tree(name).body)
        imports_only = all(isinstance(each, ast.Import | ast.ImportFrom) for each in statements)
        assert not (statements and imports_only) or name.endswith("__init__"), name


def test_public_functions_do_more_than_forward() -> None:
    """A function does not only call another with its own arguments."""
    functions = [(name, node) for name in MODULES for node in undocumented(tree(name).body)]
    for name, node in functions:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        body = undocumented(node.body)
        value = getattr(body[-1], "value", None) if len(body) == 1 else None
        if isinstance(value, ast.Call) and node.args.args:
            given = [ast.unparse(argument) for argument in value.args]
            assert given != [argument.arg for argument in node.args.args] or value.keywords, f"{name}.{node.name}"


def test_public_classes_have_names_of_their_own() -> None:
    """Check all classes but a domain's version of its parent's, such as `PretrainSettings(stages.PretrainSettings)`."""
    names = [
        node.name
        for name in MODULES
        for node in tree(name).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        if f".{node.name}" not in "".join(ast.unparse(base) for base in node.bases)
    ]
    assert [name for name, count in Counter(names).items() if count > 1] == []


TRAINING = re.compile(r"domains\.\w+\.(pretrain|finetune|experiments\.\w+\.run)")
WITHOUT_TORCH = re.compile(r"fetching|evaluation\.page|domains\.\w+\.(data\.simulate|experiments\.\w+(\.report)?)")


@pytest.mark.slow
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
