"""The digest of a job's code changes with what its modules do, and with nothing else."""

from __future__ import annotations

import ast
import fnmatch
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from metapt.engine.config import load
from metapt.engine.digest import EXCLUDED, PACKAGE, _parsed, closure, code_digest
from metapt.engine.plan import planned
from metapt.engine.registry import DOMAINS

SOURCE = '''"""A module."""

LIMIT = 3
"""Of what."""
UNIT = 'metre'


def double(x):
    """Twice x."""
    return 2 * x
'''

ROOT = Path(__file__).parents[2]
CONFIGS = [ROOT / "config/paper.yaml", *sorted((ROOT / "tests/system/workflow").glob("tiny*.yaml"))]


@pytest.fixture(scope="module")
def closures() -> dict[str, dict[str, Path]]:
    """Return the closures of the entry modules of all jobs of some configs, except downloads."""
    plans = [planned(load([path])) for path in CONFIGS]
    entries = {job.entry for plan in plans for job in plan.jobs.values() if job.stage != "download"}
    return {name: closure(name) for name in sorted(entries)}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the package; a test restores what it changes in it."""
    folder = tmp_path_factory.mktemp("copy") / "metapt"
    return Path(shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__")))


@pytest.mark.parametrize("name", ["domains.ecg.experiments.cost", "domains.ppi.data.prepare", "evaluation.collect"])
def test_each_module_of_the_closure_counts_and_no_other(name: str, copy: Path) -> None:
    before = code_digest(name, copy)
    found = closure(name, copy)
    for path in found.values():
        text = path.read_text()
        path.write_text(text + "\nCHANGED = True\n")
        assert code_digest(name, copy) != before, path
        path.write_text(text)
    others = {path: path.read_text() for path in copy.rglob("*.py") if path not in found.values()}
    for path, text in others.items():
        path.write_text(text + "\nCHANGED = True\n")
    assert code_digest(name, copy) == before
    for path, text in others.items():
        path.write_text(text)


@pytest.mark.parametrize(
    ("module", "old", "new", "entry"),
    [
        ("domains/ecg/config.py", "return max(1, signals //", "return 2 * max(1, signals //", "domains.ecg.pretrain"),
        ("domains/ppi/stages.py", "FOLDS = 4 ", "FOLDS = 3 ", "domains.ppi.pretrain"),
        (
            "domains/mnist/config.py",
            "return -(-(self.epochs",
            "return (-(self.epochs",
            "domains.mnist.experiments.rotation_mean.run",
        ),
        ("twostage/arms.py", "if pair in found]", "if pair not in found]", "domains.ecg.experiments.full_access"),
        ("sections.py", "list(range(seeds) if", "list(range(1, seeds) if", "domains.mnist.experiments.bptt.run"),
    ],
)
def test_functions_constants_and_methods_beside_models_of_the_config_count_where_they_are_used(
    module: str, old: str, new: str, entry: str, copy: Path
) -> None:
    path, before = copy / module, code_digest(entry, copy)
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    assert code_digest(entry, copy) != before
    path.write_text(text)


def test_a_new_key_and_a_new_check_of_values_do_not_count(copy: Path) -> None:
    path, entry = copy / "domains/ecg/config.py", "domains.ecg.pretrain"
    before, text = code_digest(entry, copy), path.read_text()
    start = '    method: Literal["simclr"]\n'
    check = '    @model_validator(mode="after")\n    def _mine(self):\n        return self\n\n'
    assert text.count(start) == 1
    path.write_text(text.replace(start, f'{start}    mine: int = key(3, "words")\n\n{check}'))
    assert code_digest(entry, copy) == before
    path.write_text(text)


def test_no_module_of_a_closure_is_imported_by_a_name_that_is_computed(closures: dict[str, dict[str, Path]]) -> None:
    for path in {path for found in closures.values() for path in found.values()}:
        assert "import_module" not in path.read_text(), path


def test_runs_do_not_hang_on_what_draws_tables_and_figures(closures: dict[str, dict[str, Path]]) -> None:
    trainings = [name for name in closures if name.endswith((".pretrain", ".finetune", ".run"))]
    assert len(trainings) >= 8
    for name in trainings:
        assert not [
            module for module in closures[name] if module.startswith(("evaluation.figures", "evaluation.comparisons"))
        ], name
        assert not [module for module in closures[name] if module.endswith((".report", ".simulate"))], name
    for name in {name for name in closures if ".experiments." in name or name == "evaluation.collect"} - {*trainings}:
        assert not [module for module in closures[name] if module.startswith(("hypergrad", "training"))], name


def test_jobs_do_not_hang_on_which_jobs_and_domains_there_are(closures: dict[str, dict[str, Path]]) -> None:
    known = {
        "domain",
        "registry",
        "config",
        "plan",
        *(f"domains.{name}.{module}" for name in DOMAINS for module in ("domain", "jobs")),
    }
    for name, found in closures.items():
        assert found.keys().isdisjoint(known), name


def test_what_is_left_out_is_there_and_has_a_reason() -> None:
    modules = {".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.py")}
    for pattern, reason in EXCLUDED.items():
        assert fnmatch.filter(modules, pattern), pattern
        assert reason


def test_the_digest_imports_nothing_of_what_it_reads() -> None:
    code = "import sys; from metapt.engine.digest import code_digest; code_digest('hypergrad.params')"
    code += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def digest(folder: Path, source: str) -> str:
    """Return the digest of a package with one module."""
    package = folder / "package"
    package.mkdir(exist_ok=True)
    (package / "module.py").write_text(source)
    return code_digest("module", package)


@pytest.mark.parametrize(
    "source",
    [
        SOURCE.replace("return", "# a comment\n\n    return"),
        SOURCE.replace("Twice x.", "x, doubled."),
        SOURCE.replace('    """Twice x."""\n', ""),
        SOURCE.replace("Of what.", "Of something."),
        SOURCE.replace("2 * x", "(2*x)"),
        SOURCE.replace("'metre'", "u'me' \"tre\""),
    ],
    ids=["comment", "docstring", "no docstring", "attribute's docstring", "layout", "prefix and quotes of a text"],
)
def test_words_and_layout_do_not_count(source: str, tmp_path: Path) -> None:
    assert digest(tmp_path, source) == digest(tmp_path, SOURCE)


MANY = """
@cached(1, *a, key=b"2", **c)
class A(B, metaclass=C):
    x: int = 0x10

    def f(self, a, /, b=1e-5, *c, d=None, **e):
        return f"{a!r:>{b}.{d}} {c=}" "" f"{a:{b}}" u"é\U0001fae8" if a else lambda: (a[1:, ...], [], {**c, None: 1j})

    async def g():
        async with a as b, c: return [i async for i in j if not k]

try:
    match x:
        case {"a": 1, **rest} | [1, *_] | A(x=None) | None: pass
except* (A, B): raise
"""
"""Much of what the language has."""


def test_the_digest_of_a_text_is_the_same_for_every_version_of_python(tmp_path: Path) -> None:
    assert digest(tmp_path, SOURCE) == "b79cc0362159be5f"
    assert digest(tmp_path, MANY) == "7126951dd011c2b1"


@pytest.mark.parametrize("empty", [None, []])
def test_a_field_that_a_version_of_python_adds_and_leaves_empty_does_not_count(
    empty: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metapt.engine.digest._parsed", _parsed.__wrapped__)  # without its cache
    before = digest(tmp_path, MANY)
    for kind in (ast.ClassDef, ast.FunctionDef, ast.Call, ast.Constant):
        monkeypatch.setattr(kind, "_fields", ("added", *kind._fields))
        monkeypatch.setattr(kind, "added", empty, raising=False)
    assert digest(tmp_path, MANY) == before
    monkeypatch.setattr(ast.Call, "added", "something")
    assert digest(tmp_path, MANY) != before


def test_an_empty_part_that_a_version_of_python_adds_to_an_f_string_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, parse = digest(tmp_path, MANY), ast.parse

    def parsed(text: str) -> ast.Module:
        tree = parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                node.values.append(ast.Constant(""))
        return tree

    monkeypatch.setattr("metapt.engine.digest._parsed", _parsed.__wrapped__)
    with monkeypatch.context() as patch:  # pytest parses, too
        patch.setattr(ast, "parse", parsed)
        after = digest(tmp_path, MANY)
    assert after == before


@pytest.mark.parametrize(
    "changes",
    [
        ("f''", "f'{1}'", "''", "'a'"),
        ("None", "()", "[]", "{}", "...", "[None]", "[[]]"),
        ("1", "1.0", "True", "'1'", "b'1'", "1j", "f'{1}'", "-1"),
        ("f(a)", "f(*a)", "f(a=a)", "f(**a)", "f[a]", "f[a:]", "f[:a]"),
        ("lambda a: 1", "lambda *a: 1", "lambda *, a: 1", "lambda a=None: 1", "lambda *, a=None: 1"),
        ("f'{a}'", "f'{a!r}'", "f'{a:}'", "f'{a:1}'", "f'{a} '", "f'{a:{b}}'", "f'{a}{b}'", "f'a'"),
    ],
)
def test_expressions_that_differ_have_other_digests(changes: tuple[str, ...], tmp_path: Path) -> None:
    assert len({digest(tmp_path, f"x = {each}") for each in changes}) == len(changes)


@pytest.mark.parametrize("key", ["size = Field(1, description='its words')", "size = key(1, 'its words', ge=0)"])
def test_the_description_of_a_key_does_not_count_and_its_default_does(key: str, tmp_path: Path) -> None:
    assert digest(tmp_path, key.replace("its", "other")) == digest(tmp_path, key)
    assert digest(tmp_path, key.replace("1", "2")) != digest(tmp_path, key)


def test_code_counts(tmp_path: Path) -> None:
    assert digest(tmp_path, SOURCE.replace("2", "3")) != digest(tmp_path, SOURCE)


@pytest.mark.parametrize(
    "statement",
    [
        "import package.sub.other",
        "from package.sub import other",
        "from package.sub.other import y",
        "def f():\n    from package.sub.other import y",
    ],
)
def test_an_import_is_followed_whatever_its_form_with_its_packages(statement: str, tmp_path: Path) -> None:
    sub = tmp_path / "package" / "sub"
    sub.mkdir(parents=True)
    (sub / "__init__.py").write_text("")
    (sub / "other.py").write_text("y = 1")
    before = digest(tmp_path, statement)
    (sub / "other.py").write_text("y = 2")
    after = digest(tmp_path, statement)
    (sub / "__init__.py").write_text("z = 1")
    assert len({before, after, digest(tmp_path, statement)}) == 3


def test_a_data_file_counts_for_the_module_that_names_it(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "numbers.csv").write_text("a\n1\n")
    before = digest(tmp_path, "FILE = 'numbers.csv'"), digest(tmp_path, SOURCE)
    (package / "numbers.csv").write_text("a\n2\n")
    after = digest(tmp_path, "FILE = 'numbers.csv'"), digest(tmp_path, SOURCE)
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_a_module_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="has no module 'nowhere'"):
        code_digest("nowhere", tmp_path)
