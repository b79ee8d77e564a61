"""Lines for the terminal: claims, one experiment's arms and differences, and never a line that is too long."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metapt.cli import main
from metapt.engine import records
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, COLUMNS, STAND_IN
from metapt.evaluation.results import DIFFERENCES
from metapt.evaluation.summary import MARKS, MOST, WIDTH, experiment_text, find, newest, summary
from metapt.files import sha256


def claim(experiment: str, text: str, verdict: str = "reproduced", **changes: Any) -> dict[str, Any]:
    numbers = {"mean": 7.2345, "standard_error": 1.4962, "n": 5, "paper": "7.2 ± 1.5"}
    words = {"experiment": experiment, "claim": text, "verdict": verdict}
    return dict.fromkeys(COLUMNS, "") | numbers | words | changes


def results(folder: Path, *claims: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(claims, columns=COLUMNS).to_csv(folder / "claims.csv", index=False)
    return folder


def written(folder: Path, claims: int = 1) -> Path:
    """Write an experiment with the arms meta and k5, each with three replicates."""
    name, words = "_".join(folder.parts[-2:]), {"setting": "a setting with as many words as it takes to fill a line"}
    rows = [
        metrics.row(name, arm, metric, value + replicate, replicate=replicate, **words)
        for metric in ("error (degrees)", "wall time (s)")
        for arm, value in (("meta", 2.0), ("k5", 1.0))
        for replicate in range(3)
    ]
    metrics.write(rows, folder / "metrics.csv")
    numbers = {"mean": 2.0, "standard_error": 0.6, "n": 3, "paper": STAND_IN}
    results(folder, *[claim(name, "k5 finds it", "too few seeds", metric="error (degrees)", **numbers)] * claims)
    compared = {"arm": "k5", "control": "meta", "changed": "unroll_steps: 5, not 1", "metric": "error (degrees)"}
    compared |= words | {"evaluation": "", "mean": -1.0, "standard_error": 0.3, "n": 3, "low": -2.08, "high": 0.08}
    others = {"other": dict.fromkeys(("mean", "standard_error", "low", "high"))}
    others["same"] = dict.fromkeys(others["other"], 0.0)
    pairs = [compared, *(compared | {"control": control} | numbers for control, numbers in others.items())]
    pd.DataFrame(pairs, columns=DIFFERENCES).to_csv(folder / "differences.csv", index=False)
    return folder


def test_claims_are_counted_in_all_and_by_domain_and_each_has_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = results(
        Path("some"),
        claim("mnist_rotation_mean", "meta recovers the mean", paper=STAND_IN),
        claim("ecg_full_access", "meta beats simclr", "not reproduced"),
        claim("ecg_full_access", "simclr beats no_pt", "inconclusive", paper=STAND_IN),
        claim("ecg_full_access", "meta beats optsla", "too few seeds"),
        claim("ecg_full_access", "meta beats bptt", "control failed"),
        claim("ecg_cost", "meta is cheap", "not measured", mean="", standard_error="", n=""),
    )
    lines = summary(folder, colours=False).splitlines()
    few = "1 too few seeds (<), 1 control failed (!)"
    counts = f"1 reproduced (+), 1 not reproduced (-), 1 inconclusive (?), {few}, 1 not measured (.)"
    found = [line.strip() for line in lines]
    assert " ".join(found[: found.index("")]) == f"6 claims in {folder}: {counts}"
    assert "mnist (stand-in data): 1 reproduced (+)" in lines, "no claim of it has a number of the paper"
    assert f"ecg: 1 not reproduced (-), 1 inconclusive (?), {few}, 1 not measured (.)" in " ".join(lines)
    [found] = [line for line in lines if "recovers the mean" in line]
    assert found.startswith("  + meta recovers the mean ")
    assert found.endswith(" 7.2 ± 1.5 (5)")
    assert [line.split()[0] for line in lines if line.startswith("  ")] == ["+", "-", "?", "<", "!", "."]
    assert any(line.endswith("  not measured") for line in lines)
    assert f"snakemake --report {folder}/report.html" in " ".join(lines)


def test_the_papers_claims_come_first_and_what_does_not_fit_is_counted(tmp_path: Path) -> None:
    own = [claim("ppi_cost", f"own {number}", paper=BEYOND_THE_PAPER) for number in range(MOST)]
    text = summary(results(tmp_path, *own, claim("ppi_cost", "the paper's")), colours=False)
    assert text.index("the paper's") < text.index("own 0")
    assert "own 11" not in text
    assert "and 1 more" in text


@given(
    texts=st.lists(st.text(st.characters(codec="ascii", categories=("L", "N", "P", "Zs")), max_size=150), max_size=4),
    mean=st.floats(allow_nan=True, allow_infinity=True),
    error=st.floats(0, allow_infinity=False),
)
def test_no_line_is_wider_than_a_terminal(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], mean: float, error: float
) -> None:
    folder = tmp_path_factory.mktemp("results")
    claims = [claim("ecg_full_access", text, word, mean=mean, standard_error=error) for text in texts for word in MARKS]
    text = summary(results(folder, *claims), colours=False)
    assert max(map(len, text.splitlines())) <= WIDTH


def test_colours_are_for_terminals_and_change_no_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = results(tmp_path, claim("ecg_full_access", "meta beats simclr"))
    coloured, plain = (summary(folder, colours=colours) for colours in (True, False))
    assert coloured != plain
    assert coloured.replace("\033[32m", "").replace("\033[0m", "") == plain
    assert main(["summary", str(folder)]) == 0
    assert capsys.readouterr().out == f"{plain}\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["summary", str(folder)]) == 0
    assert capsys.readouterr().out == f"{plain}\n"


def test_the_last_results_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"has no results with a claims\.csv"):
        newest(Path("results"))
    for age, name in ((20, "tour"), (10, "paper"), (30, "planted")):
        folder = written(Path("results") / name / "ecg/full_access")
        for path in (results(folder.parents[1]) / "claims.csv", folder / "differences.csv"):
            os.utime(path, (1e9 - age, 1e9 - age))
    assert newest(Path("results")) == Path("results/paper")
    assert find("ecg_full_access", None) == Path("results/paper/ecg/full_access")
    assert find("ecg_full_access", Path("results/tour")) == Path("results/tour/ecg/full_access")
    for name in ("ecg_cost", str(tmp_path), "ecg_*"):
        with pytest.raises(DataError, match="there are ecg_full_access"):
            find(name, Path("results/tour"))


def collected(folder: Path, *names: str) -> Path:
    """Write experiments, and a results folder with the record of its page."""
    paths = {}
    for name in names:
        for file in ("claims.csv", "metrics.csv", "table.md", "meta/metrics.csv", "run.json"):
            path = results(folder / name) / file
            path.parent.mkdir(exist_ok=True)
            path.touch()
            paths[f"{name.replace('/', '_')}/{file.partition('.')[0].replace('run', 'record')}"] = path
    sums = {name: "its own" if name.endswith("/record") else sha256(path) for name, path in paths.items()}
    inputs = {name: str(path) for name, path in paths.items()}
    records.write(folder / "run.json", {"inputs": inputs, "sha256": {"inputs": sums}})
    return results(folder, claim("ecg_cost", "meta is cheap"))


@pytest.mark.parametrize("file", ["claims.csv", "metrics.csv", "table.md"])
def test_an_experiment_that_is_not_on_the_page_as_it_is_now_is_named(tmp_path: Path, file: str) -> None:
    folder = collected(tmp_path / "here", "ecg/cost", "ecg/full_access").rename(tmp_path / "moved")
    os.utime(folder / "ecg/cost/claims.csv", (4e9, 4e9))  # made again, or copied
    assert "as it is now" not in summary(folder, colours=False)
    with (folder / "ecg/full_access" / file).open("a") as opened:
        opened.write("an arm more")
    results(folder / "mnist/bptt")
    text = " ".join(summary(folder, colours=False).split())
    assert "index.html lack ecg_full_access, mnist_bptt as it is now; snakemake without a target adds" in text


@pytest.mark.parametrize(
    "record", ["{", "[]", "{}", '{"inputs": {"a": "b"}, "sha256": {}}', '{"inputs": 1, "sha256": 1}']
)
def test_a_damaged_record_hides_no_claims(tmp_path: Path, record: str) -> None:
    own = written(collected(tmp_path, "ecg/cost") / "ecg/cost")
    (tmp_path / "run.json").write_text(record)
    for text in (summary(tmp_path, colours=False), experiment_text(own)):
        assert "whether claims.csv and index.html are up to date can't be told" in " ".join(text.split())


def test_each_arm_stands_above_its_differences_to_controls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = experiment_text(written(tmp_path / "mnist/rotation_mean"))
    lines = text.splitlines()
    place = lines.index("  k5    2.0 ± 0.6 (3)")
    assert "minus meta: -1.0 ± 0.3 [-2.08, 0.08] (unroll_steps: 5, not 1)" in lines[place + 1]
    assert all(f"minus {words}" in text for words in ("other: nan (", "same: 0.000 ± 0 [0, 0]"))
    assert "  meta  3.0 ± 0.6 (3)" in lines
    assert not any("wall time" in line for line in lines), "no claim is about it"
    assert "mnist_rotation_mean (stand-in data): 1 too few seeds (<)" in lines
    assert any(line.startswith("tables: ") for line in lines)
    assert main(["table", "mnist_rotation_mean", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{text}\n"
    assert "wall time (s)" in experiment_text(written(tmp_path / "mnist/bptt", claims=0)), (
        "without claims all are shown"
    )


def test_no_line_of_an_experiment_is_wider_than_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = experiment_text(written(Path("results/some/mnist/rotation_mean")))
    assert max(map(len, text.splitlines())) <= WIDTH


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "is missing: run snakemake again"), ("", "is not a table of"), ("a,b\n1,2\n", "is not a table of")],
)
def test_other_files_are_refused(tmp_path: Path, content: str | None, message: str) -> None:
    folder = written(tmp_path / "mnist/rotation_mean")
    for name, read in (("differences.csv", experiment_text), ("claims.csv", lambda path: summary(path, False))):
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_text(content)
        with pytest.raises(DataError, match=message):
            read(folder)
