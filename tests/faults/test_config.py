"""A config of each wrong kind is one sentence that names the key and what is legal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from metapt.cli import main
from metapt.config import experiments, validate
from metapt.errors import ConfigError

TINY = Path(__file__).parents[1] / "workflow" / "tiny.yaml"

WRONG: dict[str, tuple[bytes, str]] = {
    "an empty file": (b"", "must be a section (keys with values)"),
    "a list": (b"- mnist\n", "must be a section (keys with values)"),
    "one word": (b"mnist", "must be a section (keys with values)"),
    "no YAML": (b"mnist: {", "is not YAML"),
    "a tab": (b"mnist:\n\tsource: digits", "is not YAML"),
    "bytes that are no text": (b"\xff\xfe\x00mnist: \x80", "is not YAML"),
    "a zip file": (b"PK\x03\x04" + bytes(range(256)), "is not YAML"),
    "a Python object": (b"mnist: !!python/object/apply:os.system ['false']", "is not YAML"),
    "an endless reference": (b"mnist: &a {rotation_mean: *a}", "refers to itself"),
    "brackets 5,000 deep": (b"[" * 5000, "is not YAML"),
    "an unknown domain": (b"mnits: {rotation_mean: {}}\n", "mnits is not a key of the config (did you mean 'mnist'?)"),
    "an unknown experiment": (b"mnist: {rotation: {}}\n", "mnist.rotation is not a key of the config"),
    "an empty experiment": (
        b"mnist: {rotation_mean: }\n",
        "mnist.rotation_mean is empty: give it keys, write {} for its defaults",
    ),
    "a number for a key": (b"1: 2\nmnist: {rotation_mean: {}}\n", "1 is not a key of the config"),
    "text for a number": (b"mnist: {rotation_mean: {epochs: one}}", "epochs is 'one', but must be a whole number of at least 1"),
    "a negative number": (b"mnist: {rotation_mean: {epochs: -1}}", "epochs is -1, but must be a whole number of at least 1"),
    "a fraction": (b"mnist: {rotation_mean: {epochs: 1.5}}", "epochs is 1.5, but must be a whole number of at least 1"),
    "NaN": (b"mnist: {rotation_mean: {arms: {meta: {pretrain_lr: .nan}}}}", "pretrain_lr is nan, but must be"),
    "infinity": (b"mnist: {rotation_mean: {arms: {meta: {pretrain_lr: .inf}}}}", "pretrain_lr is inf, but must be"),
    "a section for a number": (b"mnist: {rotation_mean: {epochs: {a: 1}}}", "epochs is {'a': 1}, but must be a whole number"),
    "a date for a text": (
        b"results: 2020-01-01\nmnist: {rotation_mean: {epochs: 2020-01-01}}",
        "epochs is '2020-01-01', but must",
    ),
    "an unknown arm": (b"mnist: {rotation_mean: {arms: {a: {extends: mata}}}}", "extends is 'mata', which is no arm there"),
    "arms in a circle": (b"mnist: {rotation_mean: {arms: {a: {extends: b}, b: {extends: a}}}}", "runs in a circle: a -> b -> a"),
    "a folder as an arm's name": (b"mnist: {rotation_mean: {arms: {../x: {extends: meta}}}}", "has an arm '../x'"),
    "an unknown source": (b"mnist: {source: mnits, rotation_mean: {}}", "mnist.source is 'mnits'"),
    "no text for mirrors": (b"data: {mirrors: [1]}\nmnist: {rotation_mean: {}}", "data.mirrors.0 is 1, but must be"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_is_one_sentence(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], note: Callable[..., None]) -> None:
    content, sentence = WRONG[kind]
    (tmp_path / "config.yaml").write_bytes(content)
    status = main(["check", str(tmp_path / "config.yaml")])
    printed = capsys.readouterr()
    assert status == 1
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert sentence in printed.err
    note(f"a config with {kind}", 1, f"“… {sentence} …”")


@pytest.mark.parametrize(("path", "sentence"), [("none.yaml", "No such file or directory"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read(path: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path / path)]) == 1
    assert f"can't be read: {sentence}" in capsys.readouterr().err


def test_a_config_without_experiments() -> None:
    with pytest.raises(ConfigError, match="the config has no experiment: add one"):
        experiments(validate({"results": "x"}))


def test_overlays_are_laid_over_one_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.yaml").write_text("mnist: {rotation_mean: {epochs: 0}}")
    assert main(["check", str(TINY), str(tmp_path / "wrong.yaml")]) == 1
    assert "mnist.rotation_mean.epochs is 0, but must be a whole number of at least 1" in capsys.readouterr().err
