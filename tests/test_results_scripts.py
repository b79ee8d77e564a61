"""The scripts in docs/results: runs enter tables, claims and figures are made of them, pages get their numbers."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import image

from metapt.domains.ecg.quantities import AUROC, CANDIDATE_LOSS, CANDIDATE_STRENGTH, DISPLACEMENT, FACTOR
from metapt.domains.mnist import quantities as mnist
from metapt.domains.ppi.quantities import INTACT
from metapt.errors import DataError
from metapt.evaluation import figures, metrics
from metapt.evaluation.agreement import SLOPES
from metapt.evaluation.headroom import RUN
from metapt.twostage.quantities import CROSS_VALIDATED_AUROC, EVALUATIONS, TIME_PER_STEP, VALIDATION_AUROC
from metapt.twostage.replicates import pair

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
UPDATE, TABLES, DRAW = (runpy.run_path(str(RESULTS / f"{name}.py")) for name in ("update", "tables", "draw"))
PARTS = ("headroom", "estimators", "objectives")
PINNED = f"matplotlib=={matplotlib.__version__}" in (ROOT / "constraints.txt").read_text().splitlines()


@pytest.mark.parametrize(
    ("name", "table"),
    [*((name, "first") for name in UPDATE["SOURCES"]), ("ecg_full_access", "further-seeds")],
)
def test_the_claims_are_what_the_code_says_of_the_runs(name: str, table: str) -> None:
    source, folder = UPDATE["SOURCES"][name], "further-seeds" if table == "further-seeds" else "."
    found = UPDATE["claims_of"](name, map(source.read, source.beside(table))).set_index("claim")
    claims = pd.read_csv(RESULTS / "claims" / folder / f"{name}.csv").set_index("claim")
    assert set(found.index) == set(claims.index)
    for column in ("measured", "verdict"):
        assert found[column].to_dict() == claims[column].to_dict()


def test_new_ft_runs_enter_the_table_of_runs_and_those_run_again_replace_their_rows(tmp_path: Path) -> None:
    folder, table = tmp_path / "ecg" / "finetune" / "meta" / "n500" / "n500", tmp_path / "full_access.csv"
    folder.mkdir(parents=True)
    words = {"setting": "ft_size=500", "evaluation": "full_transfer"}
    rows = [
        metrics.row("ecg", "meta", name, value, replicate=pair(11, finetune_seed), **words)
        for finetune_seed in (0, 1)
        for name, value in ((VALIDATION_AUROC, 80.0 + finetune_seed), (AUROC, 70.0 + finetune_seed))
    ]
    metrics.write(rows, folder / "metrics.csv")
    header = "evaluation,arm,pretrain_seed,finetune_seed,validation,test"
    table.write_text(f"{header}\nfull_transfer,simclr,0,0,60.0,50.0\nfull_transfer,meta,11,0,1.0,2.0\n")
    UPDATE["updated"](table, UPDATE["finished"](tmp_path, "ecg_full_access"), UPDATE["KEY"]).to_csv(table, index=False)
    assert table.read_text().splitlines() == [
        header,
        "full_transfer,meta,11,0,80.0,70.0",
        "full_transfer,meta,11,1,81.0,71.0",
        "full_transfer,simclr,0,0,60.0,50.0",
    ]


def test_what_objectives_see_enters_a_table_by_pt_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arm, best in {"simclr": 80.00004, "simclr-mild": 81.0, "simclr-low_temperature": 82.0}.items():
        folder = tmp_path / "ecg" / "labelled_ecgs" / arm / "seed7"
        folder.mkdir(parents=True)
        words: dict[str, Any] = {"setting": "labelled=250", "evaluation": "full_transfer", "replicate": pair(7, 0)}
        metrics.write([metrics.row("ecg", arm, CROSS_VALIDATED_AUROC, best, **words)], folder / "metrics.csv")
        curve = {1: 60.0, 4: 70.0, 5: best}  # the fourth epoch is not in the table
        name = "full_transfer, labelled=250"
        series = [{"replicate": 7, "step": step, "name": name, "value": value} for step, value in curve.items()]
        metrics.write_series(series, folder / "series.csv")
    table = tmp_path / "objectives" / "labelled_ecgs-mild.csv"
    table.parent.mkdir()
    header, kept = "evaluation,arm,pretrain_seed,labelled,epoch,auroc", "full_transfer,simclr,7,500,test,79.0"
    table.write_text(f"{header}\n{kept}\nfull_transfer,simclr,7,250,best,1.0\n")
    monkeypatch.setitem(TABLES["main"].__globals__, "HERE", tmp_path)
    monkeypatch.setattr("sys.argv", ["tables.py", "objectives/labelled_ecgs-mild", str(tmp_path)])
    TABLES["main"]()
    rows = [
        f"full_transfer,{arm},7,250,{epoch}"
        for arm, end in {"simclr": "80.0", "simclr-mild": "81.0"}.items()
        for epoch in (f"best,{end}", "1,60.0", f"5,{end}")
    ]
    assert table.read_text().splitlines() == [header, kept, *rows]


def test_a_folder_without_objectives_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="labelled_ecgs has no runs of simclr or simclr-mild; make ecg_labelled_ecgs"):
        TABLES["objectives"](tmp_path, "labelled_ecgs-mild")


WHOLE_RUNS = {FACTOR: [4.0, 0.25], CROSS_VALIDATED_AUROC: [60.0, 70.00006]}
SHORT_RUNS = {CANDIDATE_STRENGTH: [0.5, 16.25], CANDIDATE_LOSS: [0.25, 0.5000006]}


def test_a_folder_without_ft_runs_is_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("sys.argv", ["update.py", "ecg_full_access", str(tmp_path)])
    with pytest.raises(SystemExit):
        runpy.run_path(str(RESULTS / "update.py"), run_name="__main__")
    assert f"{tmp_path}/ecg/finetune has no FT run with ft_size=500" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arm", "series", "rows"),
    [
        ("temperature_search", WHOLE_RUNS, ["temperature,validation", "7,1,2.0,60.0", "7,2,0.125,70.0001"]),
        ("run_search", WHOLE_RUNS, ["strength,validation", "7,1,6400.0,60.0", "7,2,400.0,70.0001"]),
        ("random_search", SHORT_RUNS, ["strength,loss", "7,1,0.5,0.25", "7,2,16.25,0.500001"]),
    ],
)
def test_candidates_of_a_search_enter_a_table_of_their_own(
    arm: str, series: dict[str, list[float]], rows: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "ecg" / "pretrain" / arm / "n500" / "seed7"
    folder.mkdir(parents=True)
    both = [row for name, values in series.items() for row in metrics.series(name, values)]
    metrics.write_series(both, folder / "series.csv")
    found = UPDATE["candidates"](tmp_path, "further-seeds")
    assert found.keys() == {arm}
    table = tmp_path / "table.csv"
    for _ in range(2):
        UPDATE["updated"](table, found[arm], UPDATE["CANDIDATE"]).to_csv(table, index=False)
    header, *values = rows
    expected = [f"table,pretrain_seed,candidate,{header}", *(f"further-seeds,{each}" for each in values)]
    assert table.read_text().splitlines() == expected


def test_the_displacement_of_each_learned_warp_is_that_before_and_after_pt(tmp_path: Path) -> None:
    for arm, ends in {"meta": (379.0, 6.5), "simclr": (379.0, 379.0), "meta-released": (379.0, 40.25)}.items():
        folder = tmp_path / "ecg" / "pretrain" / arm / "n500" / "seed3"
        folder.mkdir(parents=True)
        steps = [[0, ends[0]], [1, 100.0], [2, ends[1]]]
        rows = [{"replicate": 0, "step": step, "name": DISPLACEMENT, "value": value} for step, value in steps]
        metrics.write_series(rows, folder / "series.csv")
    assert UPDATE["warps"](tmp_path, "full_access").to_numpy().tolist() == [
        ["full_access", "meta", 3, 379.0, 6.5],
        ["full_access", "meta-released", 3, 379.0, 40.25],
    ]


def test_how_well_learned_weights_find_permuted_tasks_enters_a_table(tmp_path: Path) -> None:
    for setting, value in {"permuted_50": 0.56789, "permuted_90": 0.6}.items():
        folder = tmp_path / "ppi" / "pretrain" / "meta" / setting / "seed3"
        folder.mkdir(parents=True)
        numbers = {INTACT: value, TIME_PER_STEP: 0.1}
        words = {"setting": setting, "evaluation": "pretraining"}
        rows = [metrics.row("ppi", "meta", name, each, replicate=3, **words) for name, each in numbers.items()]
        metrics.write(rows, folder / "metrics.csv")
    found = UPDATE["found_tasks"](tmp_path, UPDATE["SOURCES"]["ppi_permuted_50"])
    assert found.to_dict("records") == [
        {"problem": "ppi 3x16 permuted_50", "arm": "meta", "pretrain_seed": 3, "auroc": 0.5679}
    ]


def test_the_figure_of_the_learner_shows_the_gain_of_each_arm_with_each_pt_seed() -> None:
    tried = pd.DataFrame({"pretrain_seed": [0, 0, 1, 1], "candidate": [1, 2] * 2, "validation": [60.0, 70, 62, 74]})
    own = pd.DataFrame({"pretrain_seed": [1], "candidate": [3], "validation": [80.0], "temperature": [0.05]})
    searches = {
        "temperature_search": pd.concat([tried.assign(temperature=[2.0, 0.1] * 2), own], ignore_index=True),
        "temperature_search-random": tried.assign(temperature=[0.2, 0.3, 0.4, 0.5]),
    }
    arms = ("simclr", *searches, "meta-stable")
    words = [(each, arm, seed) for each in EVALUATIONS for arm in arms for seed in (0, 1)]
    runs = pd.DataFrame(words, columns=["evaluation", "arm", "pretrain_seed"])
    values = [70.0, 70, 71, 73, 72, 72, 50, 50, 60, 61, 60.5, 60, 60, 62, 50, 50]
    left, whole, linear = UPDATE["learner_figure"](searches, runs.assign(test=values)).axes
    mean, rest, dots = left.lines[-3:]
    assert rest.get_xydata().tolist() == [[0.05, 80.0]], "tried with one of the PT seeds only"
    assert mean.get_xydata().tolist() == [[0.1, 72.0], [2.0, 61.0]]
    assert dots.get_xydata().tolist() == [[0.2, 60.0], [0.3, 70.0], [0.4, 62.0], [0.5, 74.0]]
    gains = [[axis.lines[i].get_xdata().tolist() for i in (0, 2)] for axis in (whole, linear)]
    assert gains == [[[1.0, 3.0], [2.0, 2.0]], [[0.5, -1.0], [0.0, 1.0]]]
    names = [label.get_text() for label in whole.get_yticklabels()]
    assert names == ["temperature by whole runs", "random temperatures, whole runs"], (
        "only these are about temperatures"
    )


def test_arms_are_compared_on_their_machine_and_all_claims_are_corrected_together() -> None:
    def table(values: dict[str, float], seeds: int) -> pd.DataFrame:
        rows = [
            {"evaluation": evaluation, "arm": arm, "pretrain_seed": seed, "finetune_seed": 0, "validation": 0.0}
            | {"test": value + 0.1 * seed + 0.01 * (seed % 3) * len(arm)}
            for evaluation in EVALUATIONS
            for arm, value in values.items()
            for seed in range(seeds)
        ]
        return pd.DataFrame(rows)

    tables = [table({"no_pt": 70.0, "simclr": 80.0}, 9), table({"simclr": 85.0, "temperature_search": 83.0}, 6)]
    found = UPDATE["claims_of"]("ecg_full_access", tables).set_index(["arm", "control"])
    assert found.loc[("simclr", "no_pt"), "n"].tolist() == [9, 9]
    learner = found.loc[("temperature_search", "simclr")]
    assert learner["n"].tolist() == [6, 6]
    assert (learner["mean"] < 0).all(), "the SimCLR of the other machine is worse"
    assert found["adjusted_p_value"].min() == pytest.approx(4 * found["p_value"].min())
    assert len(found) == 4


def test_claims_are_put_into_the_rows_of_a_page_that_has_them() -> None:
    claim = r"a beats b, \|D_FT\| = 5"
    page = f"# Title\n\n| {claim} | 1 (n = 3) | old |\n\n| {claim} | at least 0 | 1 | yes |\n"
    row = {"measured": "2 (n = 9)", "criterion": "at least 0", "paper": "3", "verdict": "reproduced"}
    claims = pd.DataFrame([row | {"claim": "a beats b, |D_FT| = 5"}, row | {"claim": "c"}])
    new, missing = UPDATE["with_claims"](page, claims, "**{}**")
    assert new == page.replace("1 (n = 3) | old |", "2 (n = 9) | at least 0 | 3 | **reproduced** |")
    assert missing == ["| c | 2 (n = 9) | at least 0 | 3 | **reproduced** |"]


def test_each_table_of_settings_slopes_and_objectives_has_a_figure() -> None:
    drawn = {f"{path.parent.name}/{path.stem}" for part in PARTS for path in (RESULTS / part).glob("*.png")}
    assert drawn == set(DRAW["names"]())


@pytest.mark.parametrize("table", DRAW["names"]())
@pytest.mark.skipif(not PINNED, reason="another matplotlib than that of constraints.txt draws other pixels")
def test_a_figure_is_what_its_tables_give(table: str, tmp_path: Path) -> None:
    figures.save_png(DRAW["draw"](table), tmp_path / "figure.png")
    new, kept = (image.imread(path) for path in (tmp_path / "figure.png", RESULTS / f"{table}.png"))
    assert new.shape == kept.shape
    change = float(np.abs(new - kept).mean())
    assert change < 1e-4, f"run `python docs/results/draw.py {table}`"


def test_a_figure_without_its_tables_is_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "estimators").mkdir()
    script = shutil.copy(RESULTS / "draw.py", tmp_path)
    shutil.copy(RESULTS / "estimators" / "mnist.csv", tmp_path / "estimators")
    (tmp_path / "headroom").mkdir()
    (tmp_path / "estimators" / "ecg.csv").write_text(",".join(SLOPES[:-1]))
    shutil.copy(RESULTS / "headroom" / "ecg.csv", tmp_path / "headroom")
    for table, words in {
        "estimators/mnist": "headroom/mnist.csv is missing",
        "estimators/ecg": "ecg.csv is cut or lacks one of",
        "mnist": "there is no figure of a table 'mnist'",
    }.items():
        monkeypatch.setattr("sys.argv", ["draw.py", table])
        with pytest.raises(SystemExit):
            runpy.run_path(script, run_name="__main__")
        assert words in " ".join(capsys.readouterr().err.split())


def test_the_figure_of_gains_shows_what_the_tables_say() -> None:
    code, kept = runpy.run_path(str(RESULTS / "gains.py")), pd.read_csv(RESULTS / "gains.csv")
    pd.testing.assert_frame_equal(code["gains"](), kept)
    axes = code["draw"](kept).axes
    shown = {
        (problem, line.get_xdata()[0], line.get_ydata()[0])
        for problem, axis in zip(code["PROBLEMS"], axes, strict=True)
        for line in axis.lines
        if line.get_marker() != "None"
    }
    marks = [line for axis in axes for line in axis.lines if line.get_marker() != "None"]
    assert [mark.get_markerfacecolor() != "white" for mark in marks] == kept["tested"].tolist()
    rows = list(code["ROWS"])
    assert shown == {(row.problem, row.mean, rows.index(row.what)) for row in kept.itertuples()}
    claims = pd.concat([pd.read_csv(RESULTS / "claims" / f"{each}_full_access.csv") for each in ("ecg", "ppi")])
    claims = claims.set_index(["arm", "control", "evaluation"]).sort_index()
    for what, _, arm, control, tested in code["ECG"]:
        for problem, evaluation in zip(code["PROBLEMS"], EVALUATIONS, strict=False):
            (mark,) = kept[(kept["what"] == what) & (kept["problem"] == problem)].itertuples()
            assert mark.tested == tested == ((arm, control, evaluation) in claims.index)
            if tested:
                assert mark.mean == pytest.approx(claims.loc[(arm, control, evaluation), "mean"].item(), abs=1e-4)


def test_a_claim_of_two_machines_is_refused() -> None:
    runs = pd.read_csv(RESULTS / "ecg" / "full_access.csv").query("arm in ['no_pt', 'simclr']")
    with pytest.raises(DataError, match=r"more than one machine has runs for \['.*simclr.*no_pt.*'\]"):
        UPDATE["claims_of"]("ecg_full_access", [runs, runs])


def test_an_arm_enters_a_table_with_all_of_its_pt_seeds_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    shutil.copytree(RESULTS, tmp_path / "docs" / "results")
    (tmp_path / "config").symlink_to(ROOT / "config")
    results, arm = tmp_path / "docs" / "results", "temperature_search"

    def update(runs: pd.DataFrame) -> None:
        words = {"setting": "ft_size=500"}
        rows = [
            metrics.row("ecg", each, name, value, replicate=pair(seed, number), **words, evaluation=evaluation)
            for evaluation, each, seed, number, *values in runs.itertuples(index=False)
            for name, value in zip((VALIDATION_AUROC, AUROC), values, strict=True)
        ]
        folder = tmp_path / "runs" / "ecg" / "finetune" / arm / "n500" / "n500"
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        folder.mkdir(parents=True)
        metrics.write(rows, folder / "metrics.csv")
        words = ["ecg_full_access", str(tmp_path / "runs"), "--table", "second-machine"]
        monkeypatch.setattr("sys.argv", ["update.py", *words])
        runpy.run_path(str(results / "update.py"), run_name="__main__")

    table, claims = results / "ecg" / "second-machine.csv", results / "claims" / "ecg_full_access.csv"
    before, claimed = pd.read_csv(table), pd.read_csv(claims)
    own = before["arm"] == arm
    before[~own].to_csv(table, index=False)
    for short in (arm, "simclr-mild"):  # claims are made on the first one only
        few = before[before["arm"] == "simclr"].assign(arm=short).query("pretrain_seed < 2")
        with pytest.raises(SystemExit):
            update(few)
        assert "arms of one table need the same PT seeds" in capsys.readouterr().err
    assert arm not in set(pd.read_csv(table)["arm"])
    update(before[own])
    pd.testing.assert_frame_equal(pd.read_csv(table), before)
    pd.testing.assert_frame_equal(pd.read_csv(claims), claimed, rtol=1e-6)


def test_runs_of_a_headroom_enter_a_table_that_has_already_some(tmp_path: Path) -> None:
    (folder := tmp_path / "ppi" / "headroom").mkdir(parents=True)
    header = "experiment,domain,problem,evaluation,setting,group_00,pretrain_seed,finetune_seed,validation,test"
    cell = "ppi_headroom,ppi,ppi 4x64 full_access,linear_evaluation"
    table = tmp_path / "ppi-4x64.csv"
    table.write_text(f"{header}\n{cell},reference,,1,0,80.0,70.0\n{cell},reference,,0,0,81.0,71.0\n")
    new = f"{cell},headroom-0-00,0.123456,1,0,82.000004,72.12345\n{cell},reference,,1,0,83.0,73.0\n"
    (folder / "table.csv").write_text(f"{header}\n{new}")
    rows = TABLES["updated"](table, TABLES["settings"](tmp_path, "ppi-4x64"), RUN[:-2])
    rows.to_csv(table, index=False)
    assert table.read_text().splitlines()[1:] == [
        f"{cell},reference,,1,0,83.0,73.0",
        f"{cell},reference,,0,0,81.0,71.0",
        f"{cell},headroom-0-00,0.1235,1,0,82.0,72.1234",
    ]


def test_slopes_of_further_pt_seeds_enter_a_table_and_those_made_again_replace_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "estimators").mkdir()
    script, table = shutil.copy(RESULTS / "tables.py", tmp_path), tmp_path / "estimators" / "ppi-4x64.csv"
    monkeypatch.setattr("sys.argv", ["tables.py", "estimators/ppi-4x64", str(tmp_path / "new")])
    with pytest.raises(SystemExit):
        runpy.run_path(script, run_name="__main__")
    assert "table.csv is missing: make the experiment `estimators` with snakemake." in capsys.readouterr().err
    header, cell = ",".join(SLOPES), "ppi 4x64 full_access"
    rows = [f"{cell},perturbed runs,,{seed},group_0{group},{seed}.5,20.0" for seed in (0, 1) for group in (0, 1)]
    table.write_text("\n".join([header, *rows, ""]))
    exact = f'{cell},"exact, K = 1",10,1,group_00,1.23456e-07,1.35802'
    again = f"{cell},perturbed runs,,1,group_00,3.5,20.0"
    (new := tmp_path / "new" / "ppi" / "estimators" / "table.csv").parent.mkdir(parents=True)
    text = exact.replace(",10,", ",ten,")
    for cut in ("", header[:-5], f"{header}\n{again[:-5]}", f"{header}\n{exact[:30]}", f"{header}\n{text}"):
        new.write_text(cut)
        with pytest.raises(SystemExit):
            runpy.run_path(script, run_name="__main__")
        assert "table.csv is cut or lacks one of problem, estimator," in capsys.readouterr().err
    new.write_text("\n".join([header, again, exact.replace("02", "0246"), ""]))
    runpy.run_path(script, run_name="__main__")
    assert table.read_text().splitlines() == [header, *rows[:2], again, rows[3], exact]


def test_replicates_and_example_weights_on_mnist_enter_their_tables(tmp_path: Path) -> None:
    for arm in ("bptt", "initial_augmentation"):
        (folder := tmp_path / "mnist" / "bptt" / arm).mkdir(parents=True)
        numbers = {mnist.ACCURACY: 92.34, mnist.WALL_TIME: 1.23456, mnist.PEAK_MEMORY: 51.26}
        learned = {mnist.MEAN: 90.1044, mnist.OUTER_STEPS: 500, mnist.SKIPPED: 61}
        rows = metrics.rows_of("mnist_bptt", arm, numbers | (learned if arm == "bptt" else {}), replicate=3)
        metrics.write(rows, folder / "metrics.csv")
    table = TABLES["backpropagation"](tmp_path)
    assert list(table) == list(pd.read_csv(RESULTS / "mnist" / "bptt.csv"))
    assert table.fillna(-1.0).to_numpy().tolist() == [
        ["bptt", 3, 92.34, 90.104, 500.0, 61.0, 1.235, 51.3],
        ["initial_augmentation", 3, 92.34, -1.0, -1.0, -1.0, 1.235, 51.3],
    ]
    (folder := tmp_path / "mnist" / "example_weighting" / "meta").mkdir(parents=True)
    series = [
        {"replicate": 7, "step": step, "name": mnist.MEAN_WEIGHT.format(kind), "value": step / weight}
        for step in (0, 150, 3000)
        for kind, weight in (("clean", 3.0), ("noisy", 7.0))
    ]
    metrics.write_series(series, folder / "series.csv")
    table = TABLES["example_weights"](tmp_path)
    assert list(table) == list(pd.read_csv(RESULTS / "mnist" / "example_weighting.csv"))
    assert table.to_numpy().tolist() == [["meta", 7, 150, 50.0, 21.4286], ["meta", 7, 3000, 1000.0, 428.571]]


def test_a_folder_without_the_arms_of_a_table_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"bptt has no arm with metrics\.csv; make the arms of bptt"):
        TABLES["backpropagation"](tmp_path)
