"""Files from outside are data: no code of ours can run what is in them, or unpack it by its own names."""

from __future__ import annotations

import ast
import zipfile
from pathlib import Path

import pytest

from metapt.domains.ppi.data.archive import read_archive
from metapt.errors import DataError

ROOT = Path(__file__).parents[3]
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "workflow").rglob("*.py")])

FORBIDDEN_MODULES = {
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "tarfile",
    "ftplib",
    "telnetlib",
}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "extract",
    "extractall",
    "unpack_archive",
    "read_pickle",
    "urlopen",
    "urlretrieve",
}
"""`compile` of the module re is another one, see below."""


def calls(tree: ast.AST) -> list[tuple[str, str, dict[str, ast.expr]]]:
    """What each call's object and function are called, as far as they have names, and its keywords."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            words = {word.arg: word.value for word in node.keywords if word.arg is not None}
            match node.func:
                case ast.Name(id=name):
                    found.append(("", name, words))
                case ast.Attribute(value=ast.Name(id=owner), attr=name):
                    found.append((owner, name, words))
                case ast.Attribute(attr=name):
                    found.append(("?", name, words))
    return found


def is_constant(value: ast.expr | None, expected: object) -> bool:
    return isinstance(value, ast.Constant) and value.value is expected


def faults(text: str) -> list[str]:
    tree = ast.parse(text)
    found = []
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [f"imports {name}" for name in names if name.partition(".")[0] in FORBIDDEN_MODULES]
    for owner, name, words in calls(tree):
        if name in FORBIDDEN_CALLS and (owner, name) != ("re", "compile"):
            found.append(f"calls {owner}.{name}")
        if (owner, name) == ("torch", "load") and not is_constant(words.get("weights_only"), True):
            found.append("calls torch.load without weights_only=True")
        if (
            (owner, name) == ("np", "load")
            and "allow_pickle" in words
            and not is_constant(words["allow_pickle"], False)
        ):
            found.append("calls np.load with allow_pickle")
        if owner == "yaml" and name in ("load", "load_all", "unsafe_load", "full_load"):
            found.append(f"calls yaml.{name}")
        if "shell" in words and not is_constant(words["shell"], False):
            found.append("calls a shell")
    return found


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text, Loader)",
        "zipfile.ZipFile(path).extractall()",
        "subprocess.run(text, shell=True)",
        "eval(text)",
        "urllib.request.urlopen(url)",
    ],
)
def test_the_check_sees(text: str) -> None:
    assert faults(text)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_run(path: Path) -> None:
    assert not faults(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/escaped", "C:\\escaped", "a/../../escaped"])
def test_members_stay_in_the_archive(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an archive's members are called, nothing of it is written anywhere."""
    folder = tmp_path / "inside"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with zipfile.ZipFile(folder / "archive.zip", "w") as file:
        file.writestr(f"{name}/supervised/processed/geometric_data_processed.pt", b"\x80\x02.")
    with pytest.raises(DataError, match="is cut, altered or not the archive"):
        read_archive(folder / "archive.zip")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["archive.zip"]
