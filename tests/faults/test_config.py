"""A config of each wrong kind is one sentence that names the key and what is legal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from metapt.cli import main
from metapt.config import load
from metapt.config_files import check_command_line, read_one

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
    "aliases of aliases": (
        b"a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
        + b"".join(
            b"%c: &%c [%s]\n" % (new, new, b", ".join([b"*%c" % old] * 10)) for old, new in pairwise(b"abcdefghij")
        ),
        "its aliases stand for more than",
    ),
    "merged aliases of aliases": (
        b"a: &a {x: 1}\n"
        + b"".join(
            b"%c: &%c {<<: [%s]}\n" % (new, new, b", ".join([b"*%c" % old] * 10))
            for old, new in pairwise(b"abcdefghij")
        ),
        "its aliases stand for more than",
    ),
    "a key twice": (
        b"mnist:\n  rotation_mean: {epochs: 1}\n  source: digits\n  rotation_mean: {}\n",
        "config.yaml, line 4: the key mnist.rotation_mean is there twice (line 2 has it too)",
    ),
    "a key twice in a list": (b"a: [{x: 1, x: 2}]", "config.yaml, line 1: the key a.x is there twice"),
    "a list for a key": (b"[1, 2]: 3", "a list or a section can't be a key"),
    "two megabytes": (b"a: 1\n#" + b" " * (2 << 20), "is larger than 1048576 bytes"),
    "a date that does not exist": (
        b"results: 2020-13-45",
        "config.yaml, line 1: results is 2020-13-45, which looks like",
    ),
    "an integer of 5,000 digits": (
        b"mnist:\n  rotation_mean:\n    epochs: " + b"1" * 5000,
        "config.yaml, line 3: mnist.rotation_mean.epochs is 1111111111111111111111111111111111111111..., which looks",
    ),
    "an integer of 4,000 digits": (
        b"mnist: {rotation_mean: {epochs: %s}}" % (b"1" * 4000),
        "epochs is a number of 13285 bits",
    ),
    "an integer for a number": (
        b"mnist: {rotation_mean: {target: %s}}" % (b"1" * 400),
        "target is a number of 1326 bits",
    ),
    "a seed of 65 bits": (
        b"ppi: {string: {ego: {seed: 18446744073709551616}}}",
        "ppi.string.ego.seed is a number of 65 bits",
    ),
    "true for a number": (
        b"mnist: {rotation_mean: {epochs: true}}",
        "epochs is true, but must be a whole number of at least 1",
    ),
    "true within a list": (
        b"ecg: {full_access: {finetune_sizes: [1, true]}}",
        "ecg.full_access.finetune_sizes.1 is true, but must be a whole",
    ),
    "true within an arm": (
        b"ppi: {arms: {meta: {pretrain_lr: yes}}}",
        "ppi.arms.meta.pretrain_lr is true, but must be a number above 0",
    ),
    "the disk for the results": (b"results: /", "results: '/' is /, which holds the project, a home or the whole disk"),
    "the project for the results": (b"results: results/..", "which holds the project, a home or the whole disk"),
    "the home for the data": (b"data: {folder: ~/}", "data.folder: '~/' is "),
    "blanks for the results": (b"results: '  '", "results: '  ' is no folder's name"),
    "a wildcard in the results": (b"results: results/{arm}", "results: 'results/{arm}' is no folder's name"),
    "results among the data": (b"results: data/raw", "results and data.folder are one folder"),
    "a path for a version": (
        b"ppi: {string: {version: ../../x}}",
        "ppi.string.version is '../../x', but must be a text of the form",
    ),
    "dots for a version": (
        b"ppi: {string: {version: ..}}",
        "ppi.string.version is '..', but must be a text of the form",
    ),
    "an arm with 300 letters": (b"ecg: {arms: {%s: {extends: meta}}}" % (b"a" * 300), "the name of an arm is made of"),
    "a mirror with half a host": (b"data: {mirrors: ['http://[::1/x']}", "data.mirrors.0: "),
    "a mirror with an odd host": (b"data: {mirrors: ['http://a..b/x']}", "data.mirrors.0: "),
    "a mirror with an odd port": (b"data: {mirrors: ['http://host:port/x']}", "data.mirrors.0: "),
    "a mirror of another kind": (
        b"data: {mirrors: ['ftp://host/x']}",
        "data.mirrors.0: legal are a folder, file:///folder, http",
    ),
    "arms outside of experiments": (
        b"mnist: {arms: {k5: {extends: meta}}}",
        "mnist.arms is not a key of the config (it belongs further in: mnist.rotation_mean.arms or ",
    ),
    "brackets 5,000 deep": (b"[" * 5000, "is not YAML"),
    "an unknown domain": (b"mnits: {rotation_mean: {}}\n", "mnits is not a key of the config (did you mean 'mnist'?)"),
    "an unknown experiment": (b"mnist: {rotation: {}}\n", "mnist.rotation is not a key of the config"),
    "an empty experiment": (
        b"mnist: {rotation_mean: }\n",
        "mnist.rotation_mean is empty: give it keys, write {} for its defaults",
    ),
    "a number for a key": (b"1: 2\nmnist: {rotation_mean: {}}\n", "1 is not a key of the config"),
    "text for a number": (
        b"mnist: {rotation_mean: {epochs: one}}",
        "epochs is 'one', but must be a whole number of at least 1",
    ),
    "a negative number": (
        b"mnist: {rotation_mean: {epochs: -1}}",
        "epochs is -1, but must be a whole number of at least 1",
    ),
    "a fraction": (b"mnist: {rotation_mean: {epochs: 1.5}}", "epochs is 1.5, but must be a whole number of at least 1"),
    "NaN": (b"mnist: {rotation_mean: {arms: {meta: {pretrain_lr: .nan}}}}", "pretrain_lr is nan, but must be"),
    "infinity": (b"mnist: {rotation_mean: {arms: {meta: {pretrain_lr: .inf}}}}", "pretrain_lr is inf, but must be"),
    "a section for a number": (
        b"mnist: {rotation_mean: {epochs: {a: 1}}}",
        "epochs is {'a': 1}, but must be a whole number",
    ),
    "an octal number": (
        b"mnist:\n  rotation_mean:\n    epochs: 010\n",
        "config.yaml, line 3: mnist.rotation_mean.epochs is 010; YAML takes a number with a leading zero or with",
    ),
    "digits after a zero that are not octal": (b"mnist: {rotation_mean: {epochs: 08}}", "epochs is 08; YAML takes"),
    "a negative octal number": (b"mnist: {headroom: {mean: [-012, 0]}}", "mnist.headroom.mean is -012; YAML takes"),
    "an octal number that says its type": (b"mnist: {rotation_mean: {epochs: !!int '010'}}", "epochs is 010; YAML"),
    "a fraction with a leading zero": (b"mnist: {rotation_mean: {target: 090.5}}", "target is 090.5; YAML takes"),
    "a power of ten with a leading zero": (b"ppi: {arms: {meta: {pretrain_lr: 01e-3}}}", "pretrain_lr is 01e-3; YAML"),
    "a number to base 60": (
        b"ppi: {arms: {meta: {pretrain_lr: 1:30}}}",
        "colons to base 8 or 60: write it with decimal digits (10, 0.5, 1e-3), or a text in quotes.",
    ),
    "a fraction to base 60": (b"mnist: {rotation_mean: {target: -1:30.5}}", "target is -1:30.5; YAML takes"),
    "an octal number in an anchor": (
        b"ecg: {arms: {a: {extends: meta, pretrain_lr: &x 010}, b: {extends: meta, pretrain_lr: *x}}}",
        "ecg.arms.a.pretrain_lr is 010; YAML takes",
    ),
    "an octal number in a list": (b"ppi: {test_species: [1, 0_20]}", "ppi.test_species is 0_20; YAML takes"),
    "a date for a text": (
        b"results: 2020-01-01\nmnist: {rotation_mean: {epochs: 2020-01-01}}",
        "epochs is '2020-01-01', but must",
    ),
    "an unknown arm": (
        b"mnist: {rotation_mean: {arms: {a: {extends: mata}}}}",
        "extends is 'mata', which is no arm there",
    ),
    "arms in a circle": (
        b"mnist: {rotation_mean: {arms: {a: {extends: b}, b: {extends: a}}}}",
        "runs in a circle: a -> b -> a",
    ),
    "a folder as an arm's name": (b"mnist: {rotation_mean: {arms: {../x: {extends: meta}}}}", "has an arm '../x'"),
    "a key's old name": (
        b"ecg: {arms: {meta: {scale_lr: 1}}}",
        "config.yaml, line 1: ecg.arms.meta.scale_lr is now called meta_lr.",
    ),
    "an unknown source": (b"mnist: {source: mnits, rotation_mean: {}}", "mnist.source is 'mnits'"),
    "no text for mirrors": (b"data: {mirrors: [1]}\nmnist: {rotation_mean: {}}", "data.mirrors.0 is 1, but must be"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_is_one_sentence(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], note: Callable[..., None]
) -> None:
    content, sentence = WRONG[kind]
    (tmp_path / "base.yaml").write_text("results: somewhere\n")
    (tmp_path / "config.yaml").write_bytes(content)
    status = main(["check", str(tmp_path / "base.yaml"), str(tmp_path / "config.yaml")])
    printed = capsys.readouterr()
    assert status == 1
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert sentence in printed.err
    note(f"a config with {kind}", 1, f"“… {sentence} …”")


@pytest.mark.parametrize(("path", "sentence"), [("none.yaml", "No such file or directory"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read(
    path: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(tmp_path / path)]) == 1
    assert f"can't be read: {sentence}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e1", 10.0),
        ("1e-3", 0.001),
        ("+1E+3", 1000.0),
        (".5e3", 500.0),
        ("5.e-1", 0.5),
        ("1.5e3", 1500.0),
        ("0e0", 0.0),
        ("0.5", 0.5),
        ("0", 0),
        ("-0", 0),
        ("10", 10),
        ("1_000", 1000),
        ("0x1f", 31),
        ("'010'", "010"),
        ('"1:30"', "1:30"),
        ("|-\n  010", "010"),
        ("1e", "1e"),
        ("0-1", "0-1"),
        ("10:00:x", "10:00:x"),
        ("2020-01-01", "2020-01-01"),
        ("2020-01-01T10:00:00Z", "2020-01-01T10:00:00Z"),
    ],
)
def test_a_value_is_what_is_written(text: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"a: {text}\nb: [1]\n")
    found = read_one(tmp_path / "config.yaml")["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("key", ["on", "no", "010", "1:30", "1.50", "1e3", "2020-01-01", "~", "'on'"])
def test_a_key_is_a_text_as_it_is_written(key: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"arms: {{{key}: 1}}\n")
    assert read_one(tmp_path / "config.yaml") == {"arms": {key.strip("'"): 1}}


def test_powers_of_ten_are_whole_numbers_where_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("results: r\nmnist: {rotation_mean: {epochs: 1e1, target: 9e1}}\n")
    found = load([tmp_path / "config.yaml"]).mnist.rotation_mean
    assert (found.epochs, found.target) == (10, 90.0)


def test_the_workflow_refuses_before_snakemake_reads_another_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text("results: r\nmnist: {rotation_mean: {epochs: 010}}\n")
    monkeypatch.setattr(sys, "argv", ["snakemake", "--configfile", str(tmp_path / "config.yaml"), "--dry-run"])
    with pytest.raises(SystemExit, match=r"config.yaml, line 2: mnist.rotation_mean.epochs is 010; YAML takes"):
        check_command_line()


def test_overlays_are_laid_over_one_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.yaml").write_text("mnist: {rotation_mean: {epochs: 0}}")
    assert main(["check", str(TINY), str(tmp_path / "wrong.yaml")]) == 1
    assert "mnist.rotation_mean.epochs is 0, but must be a whole number of at least 1" in capsys.readouterr().err
