"""Draw what could be gained and what each way of choosing hyperparameters gained, from the tables of this folder.

    python docs/results/gains.py

This writes `gains.csv`, a row for each difference in points of test AUROC, and `gains.png`. `kind` says how the
hyperparameters are chosen. Differences that are not `tested` get no verdict on the pages.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from metapt.evaluation import figures
from metapt.evaluation.headroom import headroom
from metapt.evaluation.headroom_table import grids, read
from metapt.evaluation.statistics import Estimate, estimate_mean
from metapt.twostage.quantities import FULL_TRANSFER, LINEAR_EVALUATION

HERE = Path(__file__).parent
CEILING, GRADIENT, RUNS, FIXED = "by test results", "by a gradient", "by trial PT runs", "one value for all PT seeds"
LOOKS = {
    CEILING: (figures.QUIET, "D"),
    GRADIENT: (figures.PALETTE[0], "o"),
    RUNS: (figures.PALETTE[1], "s"),
    FIXED: (figures.PALETTE[2], "^"),
}
LEARNER, RELEASED, CHANGED = "the paper's learner", "with the released code's choices", "the changed learner"
STRENGTHS = "five strengths, short PT runs"
SEARCH, RANDOM = "search of temperature or weights", "random temperatures or weights"
WARP_SEARCH, RANDOM_WARP = "search of the warp's strength", "random strengths of the warp"
WARP, TEMPERATURE = "one smooth, mild warp", "one low temperature"
BEST = "best of 24 settings"
ROWS = {
    BEST: CEILING, LEARNER: GRADIENT, RELEASED: GRADIENT, CHANGED: GRADIENT, STRENGTHS: RUNS, SEARCH: RUNS,
    RANDOM: RUNS, WARP_SEARCH: RUNS, RANDOM_WARP: RUNS, WARP: FIXED, TEMPERATURE: FIXED,
}  # fmt: skip
ECG = [
    (LEARNER, "full_access", "meta", "simclr", True),
    (RELEASED, "second-machine", "meta-released", "simclr-released", True),
    (CHANGED, "full_access", "meta-stable", "meta-stable-start", True),
    (STRENGTHS, "second-machine", "random_search", "simclr", False),
    (SEARCH, "second-machine", "temperature_search", "simclr", True),
    (RANDOM, "second-machine", "temperature_search-random", "simclr", False),
    (WARP_SEARCH, "second-machine", "run_search", "simclr", True),
    (RANDOM_WARP, "second-machine", "run_search-random", "simclr", False),
    (WARP, "full_access", "simclr-mild", "simclr", False),
    (TEMPERATURE, "second-machine", "simclr-low_temperature", "simclr", False),
]
"""On ECGs: how hyperparameters are chosen, the table of its runs, arm, control, and whether that is tested."""

SMALL = "ecg width 8"  # the problem of all runs on ECGs
INTACT, HALF, MOST = (f"protein graphs, {labels}" for labels in ("intact labels", "50 % permuted", "90 % permuted"))
WHOLE, LINEAR = "ECGs, FT", "ECGs, linear evaluation"
PROBLEMS = (WHOLE, LINEAR, INTACT, HALF, MOST)
COLUMNS = {
    (SMALL, FULL_TRANSFER): WHOLE,
    (SMALL, LINEAR_EVALUATION): LINEAR,
    ("ppi 4x64 full_access", LINEAR_EVALUATION): INTACT,
    ("ppi 3x16 permuted_50", LINEAR_EVALUATION): HALF,
    ("ppi 3x16 permuted_90", LINEAR_EVALUATION): MOST,
}
"""The columns of the figure, by problem and evaluation: the problems on which learners were run."""


def difference(runs: pd.DataFrame, arm: str, control: str) -> Estimate:
    """Return the difference between two arms of a table of FT runs, paired by PT seed."""
    means = runs.groupby(["arm", "pretrain_seed"])["test"].mean().unstack("pretrain_seed")
    gains = means.loc[arm] - means.loc[control]
    if gains.isna().any():
        raise ValueError(f"{arm} and {control} have different PT seeds")
    return estimate_mean(gains.tolist())


def gains() -> pd.DataFrame:
    """Return the rows of `gains.csv`."""
    best = {
        (grid.cell["problem"], grid.cell["evaluation"]): headroom(grid).gain
        for grid in grids(read([HERE / "headroom" / f"{name}.csv" for name in ("ecg", "ppi-3x16", "ppi-4x64")]))
    }
    found = [(place, BEST, True, best[cell]) for cell, place in COLUMNS.items()]
    for what, table, arm, control, tested in ECG:
        for evaluation, runs in pd.read_csv(HERE / "ecg" / f"{table}.csv").groupby("evaluation"):
            found.append((COLUMNS[SMALL, str(evaluation)], what, tested, difference(runs, arm, control)))
    intact = pd.read_csv(HERE / "ppi" / "full_access.csv").query("evaluation == @LINEAR_EVALUATION")
    found.append((INTACT, LEARNER, True, difference(intact, "meta", "graph_supervised")))
    found.append((INTACT, RELEASED, True, difference(intact, "meta-released", "graph_supervised-released")))
    second = pd.read_csv(HERE / "ppi" / "second-machine.csv").query("evaluation == @LINEAR_EVALUATION")
    found.append((INTACT, CHANGED, True, difference(second, "meta-stable", "graph_supervised")))
    for problem, runs in pd.read_csv(HERE / "ppi" / "learner.csv").groupby("problem"):
        place = COLUMNS[str(problem), LINEAR_EVALUATION]
        found.append((place, SEARCH, True, difference(runs, "group_search", "graph_supervised")))
        found.append((place, RANDOM, False, difference(runs, "group_search-random", "graph_supervised")))
    for problem, runs in pd.read_csv(HERE / "ppi" / "learner-second-machine.csv").groupby("problem"):
        place = COLUMNS[str(problem), LINEAR_EVALUATION]
        found.append((place, LEARNER, True, difference(runs, "meta", "graph_supervised")))
        found.append((place, CHANGED, True, difference(runs, "meta-stable", "graph_supervised")))
    rows = [
        {"problem": place, "what": what, "kind": ROWS[what], "tested": tested, "n": each.n}
        | {"mean": each.mean, "low": each.low, "high": each.high}
        for place, what, tested, each in found
    ]
    order = {what: i for i, what in enumerate(ROWS)} | {place: i for i, place in enumerate(PROBLEMS)}
    table = pd.DataFrame(rows).sort_values(["problem", "what"], key=lambda names: names.map(order))
    return table.round({"mean": 4, "low": 4, "high": 4}).reset_index(drop=True)


def draw(table: pd.DataFrame) -> Figure:
    """Draw each problem in a column and each way to choose hyperparameters in a row, with 95 % intervals."""
    figure, axes = figures.panels(len(PROBLEMS), width=1.9, height=4.2)
    places = {what: i for i, what in enumerate(ROWS)}
    with figures.style():
        for axis, problem in zip(axes, PROBLEMS, strict=True):
            axis.axvline(0, color=figures.INK, linewidth=1)
            for row in table[table["problem"] == problem].itertuples():
                colour, marker = LOOKS[row.kind]
                bars = [[row.mean - row.low], [row.high - row.mean]]
                inside = colour if row.tested else "white"
                axis.errorbar([row.mean], [places[row.what]], xerr=bars, fmt=marker, color=colour, mfc=inside)
            figures.named_rows(axis, list(ROWS) if axis is axes[0] else [""] * len(ROWS), "")
            axis.set_title(problem.replace(", ", ",\n"))
        figures.same_range(axes, "x")
        figure.supxlabel(
            "gain over the start (points of test AUROC), mean and 95 % interval over PT seeds", fontsize=11
        )
        looks = {kind: {"color": colour, "marker": marker} for kind, (colour, marker) in LOOKS.items()}
        looks["no verdict"] = {"color": figures.INK, "marker": "o", "markerfacecolor": "white"}
        handles = [Line2D([], [], linestyle="none", label=kind, **look) for kind, look in looks.items()]  # type: ignore[arg-type]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


if __name__ == "__main__":
    drawn = gains()
    drawn.to_csv(HERE / "gains.csv", index=False)
    figures.save_png(draw(drawn), HERE / "gains.png")
