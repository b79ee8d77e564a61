"""The digest of a job's code changes with what its modules do, and with nothing else."""

from __future__ import annotations

import ast
import fnmatch
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metapt.engine.config import load
from metapt.engine.digest import EXCLUDED, PACKAGE, _parsed, closure, code_digest
from metapt.engine.plan import planned

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


@contextmanager
def changed(path: Path, old: str, new: str) -> Iterator[None]:
    """Replace a text that is in a file once."""
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    yield
    path.write_text(text)


@pytest.mark.parametrize("name", ["domains.ecg.experiments.cost", "domains.ppi.data.prepare", "evaluation.page"])
def test_each_module_of_the_closure_counts_and_no_other(name: str, copy: Path) -> None:
    before, found = code_digest(name, copy), closure(name, copy)
    texts = {path: path.read_text() for path in copy.rglob("*.py")}
    for path in found.values():
        path.write_text(texts[path] + "\nCHANGED = True\n")
        assert code_digest(name, copy) != before, path
        path.write_text(texts[path])
    for path in texts.keys() - found.values():
        path.write_text(texts[path] + "\nCHANGED = True\n")
    assert code_digest(name, copy) == before
    for path, text in texts.items():
        path.write_text(text)


@pytest.mark.parametrize(
    ("module", "old", "new", "entry"),
    [
        ("domains/ecg/config", "return max(1, signals //", "return 2 * max(1, signals //", "ecg.pretrain"),
        ("domains/ppi/stages", "FOLDS = 4 ", "FOLDS = 3 ", "ppi.pretrain"),
        ("domains/ecg/config", "return not (start or", "return (start or", "ecg.experiments.full_access"),
        ("domains/ecg/config", "= self.warp_of if self", "= None if self", "ecg.experiments.unroll_steps"),
        ("domains/mnist/config", "return -(-(self", "return (-(self", "mnist.experiments.rotation_mean.run"),
        (
            "domains/ecg/config",
            'stand_ins: ClassVar[tuple[str, ...]] = ("sim',
            'stand_ins = ("a", "sim',
            "ecg.experiments.full_access",
        ),
        ("twostage/arms", "if pair in found]", "if pair not in found]", "ecg.experiments.full_access"),
        ("sections", "list(range(seeds) if", "list(range(1, seeds) if", "mnist.experiments.bptt.run"),
    ],
)
def test_functions_constants_and_methods_beside_models_of_the_config_count_where_they_are_used(
    module: str, old: str, new: str, entry: str, copy: Path
) -> None:
    before = code_digest(f"domains.{entry}", copy)
    with changed(copy / f"{module}.py", old, new):
        assert code_digest(f"domains.{entry}", copy) != before


def test_a_new_key_and_a_new_check_of_values_do_not_count(copy: Path) -> None:
    before, start = code_digest("domains.ecg.pretrain", copy), '    method: Literal["simclr"]\n'
    check = '    @model_validator(mode="after")\n    def _mine(self):\n        return self\n\n'
    with changed(copy / "domains/ecg/config.py", start, f'{start}    mine: int = key(3, "words")\n\n{check}'):
        assert code_digest("domains.ecg.pretrain", copy) == before


def test_no_module_of_a_closure_is_imported_by_a_name_that_is_computed(closures: dict[str, dict[str, Path]]) -> None:
    for path in {path for found in closures.values() for path in found.values()}:
        assert "import_module" not in path.read_text(), path


def test_jobs_do_not_hang_on_what_is_no_part_of_them(closures: dict[str, dict[str, Path]]) -> None:
    """Not on which jobs and domains there are; runs not on tables and figures; summaries not on training."""
    plan = ["engine.domain", "engine.config", "engine.plan", "domains.*.domain", "domains.*.jobs"]
    drawing = ["evaluation.figures", "evaluation.comparisons", "*.report", "*.simulate"]
    trainings = [name for name in closures if name.endswith((".pretrain", ".finetune", ".run"))]
    assert len(trainings) >= 8
    for name, found in closures.items():
        summarises = name not in trainings and (".experiments." in name or name == "evaluation.page")
        foreign = [*plan, *(drawing if name in trainings else ["hypergrad*", "training*"] if summarises else [])]
        assert not [module for module in found if any(fnmatch.fnmatch(module, each) for each in foreign)], name


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
    ("old", "new", "counts"),
    [
        ("return", "# a comment\n\n    return", False),
        ("Twice x.", "x, doubled.", False),
        ('    """Twice x."""\n', "", False),
        ("Of what.", "Of something.", False),
        ("2 * x", "(2*x)", False),
        ("'metre'", "u'me' \"tre\"", False),
        ("2 * x", "3 * x", True),
    ],
)
def test_code_counts_and_words_and_layout_do_not(old: str, new: str, counts: bool, tmp_path: Path) -> None:
    assert (digest(tmp_path, SOURCE.replace(old, new)) != digest(tmp_path, SOURCE)) == counts


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


@pytest.mark.parametrize("use", ["from package.sections import f", "from package import sections\nx = sections.f()"])
def test_a_function_beside_models_counts_however_it_is_named(use: str, tmp_path: Path) -> None:
    digest(tmp_path, use)
    (tmp_path / "package" / "sections.py").write_text("def f():\n    return 1")
    before = digest(tmp_path, use)
    (tmp_path / "package" / "sections.py").write_text("def f():\n    return 2")
    assert digest(tmp_path, use) != before


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
