"""The command `metapt`, except `metapt run`, which `test_execute.py` tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from metapt import cli
from metapt.cli import main
from metapt.engine import records
from metapt.engine.config import Data, load

ROOT = Path(__file__).parents[2]
TINY = str(ROOT / "tests/system/workflow/tiny.yaml")


def test_help_names_the_commands_and_gives_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n    {command} " in printed for command in ("run", "check", "summary", "table", "estimate"))
    with pytest.raises(SystemExit):
        main(["table", "--help"])
    assert "example: metapt table ecg_full_access --against simclr" in capsys.readouterr().out


@pytest.mark.slow
def test_a_closed_pipe_ends_a_command_without_a_traceback() -> None:
    command = f"{sys.executable} -m metapt check --configfile {TINY} | true"
    assert subprocess.run(["bash", "-c", command], capture_output=True, text=True).stderr == ""


def test_ctrl_c_ends_a_command_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def _docs(options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_docs", _docs)
    assert main(["docs"]) == 130
    assert capsys.readouterr().err == "ended by Ctrl-C\n"


@pytest.mark.parametrize("config", [{"experiment": "old", "domain": "ecg", "settings": {}, "section": {}}, {}])
def test_an_arm_of_results_that_another_version_left_can_not_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: dict[str, object]
) -> None:
    compare(tmp_path, config)
    assert "is from another version of metapt" in capsys.readouterr().err


def test_runs_that_were_made_again_are_not_compared_as_if_they_were_the_old_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ecg/finetune").mkdir(parents=True)
    moved = tmp_path / "ecg/finetune/metrics.csv"
    for content in (None, "new"):
        if content:
            moved.write_text(content)
        compare(tmp_path, {}, {"meta/metrics": "results/old/ecg/finetune/metrics.csv"})
        assert f"{moved} is not what {tmp_path}/ecg/full_access was made from" in capsys.readouterr().err


def compare(results: Path, config: dict[str, object], inputs: dict[str, str] | None = None) -> None:
    """Compare an experiment, made elsewhere, with one of its arms, which fails."""
    folder = results / "ecg/full_access"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "differences.csv").touch()
    sums = {"inputs": dict.fromkeys(inputs or {}, "the old content's")}
    outputs = {"metrics": "results/old/ecg/full_access/metrics.csv"}
    record = {"config": config, "inputs": inputs or {}, "outputs": outputs, "sha256": sums}
    records.write(folder / "run.json", record)
    assert main(["table", "ecg_full_access", str(results), "--against", "simclr"]) == 1


def test_check_says_what_would_run_and_where_results_go(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    results = tmp_path / "results"
    places = f"results: {results}\ndata: {{folder: {tmp_path}/raw}}\n"
    overlay.write_text(f"{places}mnist: {{rotation_mean: {{arms: {{k5: {{extends: meta}}}}}}}}")
    assert main(["check", "--configfile", TINY, str(overlay)]) == 0
    jobs = "8 (1 simulate, 1 prepare, 4 study, 1 summarise, 1 page)"
    assert capsys.readouterr().out.splitlines() == [
        f"valid: {TINY} {overlay}, experiments: 1",
        f"jobs: {jobs}",
        f"to run: {jobs}",
        f"hours: metapt estimate --configfile {TINY} {overlay}",
        f"results: {results}",
    ]


def test_check_says_that_there_is_nothing_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("results: x")
    assert main(["check", "--configfile", str(tmp_path / "config.yaml")]) == 1
    assert capsys.readouterr().err.startswith("error: the config has no experiment: add one")


@pytest.mark.parametrize("command", ["check", "estimate"])
def test_an_overlay_alone_names_the_base(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overlay = tmp_path / "k5.yaml"
    overlay.write_text("mnist: {rotation_mean: {arms: {k5: {extends: meta, unroll_steps: 5}}}}")
    assert main([command, "--configfile", str(overlay)]) == 1
    error = capsys.readouterr().err
    assert f"error: {overlay} does not say where results go (`results`)" in error
    assert f"`--configfile config/config.yaml {overlay}`" in error


def test_an_error_names_the_file_and_line_that_it_comes_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text("results: x\nmnist:\n  rotation_mean:\n    epochs: 0\n    replicates: 0\n")
    (tmp_path / "b.yaml").write_text("mnist:\n  rotation_mean: {epochs: -1, arms: {k5: {extends: mata}}}\n")
    (tmp_path / "c.yaml").write_text("mnist:\n\n  rotation_mean: {epochs: -1}\n")
    said = []
    for overlay in ("b.yaml", "c.yaml"):
        assert main(["check", "--configfile", str(tmp_path / "a.yaml"), str(tmp_path / overlay)]) == 1
        said += capsys.readouterr().err.splitlines()
    starts = [
        "error: {}/b.yaml, line 2: mnist.rotation_mean.arms.k5.extends is 'mata'",
        "error: {}/c.yaml, line 3: mnist.rotation_mean.epochs is -1, but must be a whole number ≥ 1.",
        "{}/a.yaml, line 5: mnist.rotation_mean.replicates is 0, but must be a whole number ≥ 1 or a non-empty list [",
    ]
    assert all(line.startswith(start.format(tmp_path)) for line, start in zip(said, starts, strict=True))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_config_of_any_editor_is_read(
    encoding: str, newline: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("results: é\nmnist:\n  rotation_mean: {}\n", encoding=encoding, newline=newline)
    assert main(["check", "--configfile", str(path)]) == 0
    assert capsys.readouterr().out.endswith("results: é\n")


def test_tables_of_runs_are_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "e,d,p,FT,{},{},{},0,{},{}".format
    for seed in (4, 9):
        rows = [line(name, x, seed, x + seed, x + seed) for x, name in enumerate(("reference", "a", "b"))]
        head = "experiment,domain,problem,evaluation,setting,x,pretrain_seed,finetune_seed,validation,test"
        (tmp_path / f"{seed}.csv").write_text("\n".join([head, *rows, ""]))
    drawn = ["--figure", str(tmp_path / "both.png")]
    assert main(["headroom", str(tmp_path / "4.csv"), str(tmp_path / "9.csv"), *drawn]) == 0
    assert {path.name for path in tmp_path.glob("both*")} == {"both.png", "both.svg"}
    printed = capsys.readouterr().out
    assert printed.startswith("p, FT, settings: 2, PT seeds: 2\n")
    assert "gains 2 points (no interval with two" in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert main(["headroom", str(tmp_path / "4.csv")]) == 1
    assert "p, FT has 1 PT seed; a headroom needs at least two." in capsys.readouterr().err


def test_the_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "config.yaml"
    path.write_text("results: ~/results/\ndata: {folder: ~/raw, mirrors: [~/mirror]}\n")
    found = load([path])
    assert found.results == f"{tmp_path}/results"
    assert found.data == Data(folder=f"{tmp_path}/raw", mirrors=[f"{tmp_path}/mirror"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name what to run: a config (--configfile CONFIG.yaml), or a run.json and a folder (--into DIR)."),
        (["a", "b", "--into", "x"], "--into repeats the run of one run.json: name that file, and no --configfile."),
        (["a", "--into", "x", "--threads", "0"], "--threads is 0, but must be at least 1."),
        (["a", "--configfile", TINY, "--jobs", "0"], "--jobs is 0, but must be at least 1."),
        (
            ["mnist_bptl", "--configfile", TINY],
            "mnist_bptl is no target (did you mean 'mnist_bptt'?): name a file, a domain or an ex",
        ),
        (["mnist_bptt", "--configfile", TINY], "mnist_bptt is not in the config: add `bptt: {}` to the section mnist"),
        (["results/tiny/x", "--configfile", TINY], "no job of this config makes the file results/tiny/x"),
    ],
)
def test_run_says_what_it_cannot_run(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["run", *arguments]) == 1
    assert f"error: {sentence}" in capsys.readouterr().err


@pytest.mark.slow
def test_run_runs_what_is_not_up_to_date_and_stops_at_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data, raw = "results/tiny/mnist/data/digits/images.pt", "data/raw/mnist-digits/train-{}-ubyte.gz"
    for reasons in ((f"{raw.format('images-idx3')} is not there", f"{data} is not there"), ("up to date",) * 2):
        assert main(["run", data, "--configfile", TINY]) == 0
        lines = [re.sub(r" \(\d+ s left\)$", "", line) for line in capfd.readouterr().out.splitlines()]
        assert lines == [f"1/2 raw/mnist-digits: {reasons[0]}", f"2/2 mnist/data/digits: {reasons[1]}"]
    labels = tmp_path / raw.format("labels-idx1")
    labels.write_bytes(labels.read_bytes()[:-9])
    (tmp_path / data).unlink()
    assert main(["run", "mnist", "--configfile", TINY]) == 1
    printed = capfd.readouterr()
    begun = [line.split(": ")[0] for line in printed.out.splitlines()]
    assert begun == ["1/6 raw/mnist-digits", "2/6 mnist/data/digits"]
    assert f"{labels.name} is not what its job left" in printed.err
    assert "error: mnist/data/digits has failed; its log is results/tiny/mnist/data/digits/log.txt" in printed.err


def test_docs_are_generated_once_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["docs"]) == 1
    assert "config/README.md is not there; run this in the project's folder." in capsys.readouterr().err
    before, after = "# Title\n\n<!-- keys: generated by `metapt docs` -->", "<!-- end of keys -->\nThe end.\n"
    readme = tmp_path / "config" / "README.md"
    readme.parent.mkdir()
    readme.write_text(f"{before}\nstale words\n{after}")
    assert main(["docs", "--check"]) == 1
    files = "config/README.md, workflow/schemas/config.schema.json"
    assert f"not up to date: {files}; run `metapt docs`" in capsys.readouterr().err
    assert main(["docs"]) == 0
    assert main(["docs", "--check"]) == 0
    text = readme.read_text()
    assert text.startswith(before)
    assert "| `require_gpu` |" in text
    assert "stale words" not in text
    assert text.endswith(after)
    readme.write_text("# Title\n")
    assert main(["docs"]) == 1
    assert "has lost the lines" in capsys.readouterr().err
