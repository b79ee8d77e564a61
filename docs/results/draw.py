"""Draw figures of these pages from the tables beside them.

    python docs/results/draw.py                       # all of them
    python docs/results/draw.py estimators/ppi-4x64   # one

The workflow draws the others; objectives/*.png and ecg/temperature_search.png are those of the commit dfc78b7.
"""

from __future__ import annotations

import argparse
import runpy
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.domains.ecg import config as ecg
from metapt.domains.mnist.quantities import ACCURACY
from metapt.domains.ppi import config as ppi
from metapt.evaluation import figures, headroom_report
from metapt.evaluation.headroom_table import read
from metapt.evaluation.paper import paper_numbers
from metapt.evaluation.statistics import estimate_mean
from metapt.twostage.quantities import AUROC_LABEL, EVALUATIONS

HERE = Path(__file__).parent
BANK = runpy.run_path(str(HERE.parents[1] / "benchmarks" / "truth_bank.py"))
ARMS: dict[str, Any] = {"ecg": ecg.ARMS, "ppi": ppi.ARMS}
STARTS = {"ecg": "simclr", "ppi": "graph_supervised"}  # of learners
NAMES = {
    **EVALUATIONS,
    "mean": "mean rotation in PT (degrees)",
    "strength": "strength of the warp (samples)",
    "crop": "largest crop (share of a lead)",
    "noise": "noise (standard deviations of a lead)",
    "temperature": "temperature of NT-Xent",
}
LOOKS = {
    "ours": (figures.PALETTE[0], "o"),
    "the paper's": (figures.QUIET, "D"),
    "by test results": (figures.QUIET, "D"),
    "by a gradient": (figures.PALETTE[0], "o"),
    "by trial PT runs": (figures.PALETTE[1], "s"),
    "one value for all PT seeds": (figures.PALETTE[2], "^"),
}


def rows(axes: list[Axes], found: pd.DataFrame, level: float = 0) -> None:
    """Draw means and half widths of intervals, a panel for each `panel` with its `unit`, a row for each `label`.

    The look is that of `group`, with an empty mark if they are `hollow`. A second mean of a label is drawn below the
    first one. There is a line at `level` if it is among the means.
    """
    labels = list(found["label"].unique())
    found = found.assign(place=found["label"].map(labels.index) + 0.3 * found.duplicated(["panel", "label"]))
    for axis, (panel, own) in zip(axes, found.groupby("panel", sort=False), strict=True):
        for (hollow, group), part in own.groupby(["hollow", "group"]):
            colour, marker = LOOKS[group]
            look: Any = {"color": colour, "fmt": marker, "mfc": "white" if hollow else colour, "label": group}
            axis.errorbar(part["mean"], part["place"], xerr=part["half"].fillna(0), **look)
        low, high = axis.get_xlim()
        if low <= level <= high:
            axis.axvline(level, color=figures.INK, linewidth=1, zorder=1.5)
        figures.named_rows(axis, labels if axis is axes[0] else [""] * len(labels), own["unit"].iloc[0])
        axis.set_title(panel)


def gains() -> Figure:
    """Draw what each way to choose hyperparameters gains on each problem."""
    found = pd.read_csv(HERE / "gains.csv").rename(columns={"what": "label", "kind": "group"})
    found = found.assign(half=found["high"] - found["mean"], hollow=~found["tested"])
    found = found.assign(panel=found["problem"].str.replace(", ", ",\n"), unit="")
    figure, axes = figures.panels(found["panel"].nunique(), width=1.9, height=4.2)
    rows(axes, found)
    figures.same_range(axes, "x")
    figure.supxlabel("gain over the start (points of test AUROC), mean and 95 % interval over PT seeds", fontsize=11)
    figures.legend_above(figure, axes)
    return figure


def headroom(name: str) -> Figure:
    """Draw what the settings of a table of runs gain, and the response along hyperparameters."""
    runs, label = read([HERE / "headroom" / f"{name}.csv"]), ACCURACY if name == "mnist" else AUROC_LABEL
    return headroom_report.figure(runs, NAMES, label)


def estimators(name: str) -> Figure:
    """Draw the right signs of each estimate on each problem."""
    slopes = BANK["read"](HERE / "estimators" / f"{name}.csv")
    bank = [grid for grid in BANK["truth"]() if grid.cell["problem"] in set(slopes["problem"])]
    found = pd.concat([BANK["scores"](slopes, bank), BANK["rivals"](bank)])
    steps = found["horizon"].map("steps back: {:.0f}".format, na_action="ignore").fillna("whole runs")
    cost = found.groupby(["estimator", "horizon"], dropna=False)["cost"].transform("mean").map("{:.2g}".format)
    found["label"] = found["estimator"] + " (" + steps + ", cost: " + cost + ")"
    found["panel"] = found["problem"] + ",\n" + found["evaluation"].map(EVALUATIONS)
    means = found.groupby(["panel", "label"], sort=False)["signs"].agg(mean="mean", half="sem").reset_index()
    figure, axes = figures.panels(len(bank), width=3.5 + 4 / len(bank), height=6.5)
    rows(axes, means.assign(group="ours", hollow=False, unit="right signs (%), mean ± SE"), 50)
    return figure


def arms(name: str, problem: str = "") -> Figure:
    """Draw the AUROC of each arm of a table of FT runs beside the paper's, and its gain over the start of learners."""
    runs = pd.read_csv(HERE / f"{name}.csv").assign(**({} if problem else {"problem": ""})).query("problem == @problem")
    seeds = runs.groupby(["evaluation", "arm", "pretrain_seed"])["test"].mean()
    known, start = ARMS[name[:3]], STARTS[name[:3]]
    labels = {arm: getattr(known.get(arm), "label", "") or arm.replace("_", " ") for arm in runs["arm"].unique()}
    papers = paper_numbers().query("setting in ('ft_size=500', 'full_access')")
    papers = papers[papers["experiment"] == f"{name[:3]}_full_access"].set_index(["evaluation", "arm"]).sort_index()
    found: list[dict[str, Any]] = []
    for evaluation, own in seeds.groupby("evaluation"):
        own, panel = own[evaluation].unstack("pretrain_seed"), EVALUATIONS[str(evaluation)]
        for arm in sorted(own.index, key=lambda arm: ([*known, arm].index(arm), arm)):
            words = {"label": labels[arm], "group": "ours", "hollow": False}
            level = words | {"panel": panel, "unit": "test AUROC (%), mean ± SE"}
            found.append(level | {"mean": own.loc[arm].mean(), "half": own.loc[arm].sem()})
            if not problem and (evaluation, arm) in papers.index:
                mean, error = papers.loc[(evaluation, arm), ["paper_mean", "paper_standard_error"]]
                found.append(level | {"group": "the paper's", "hollow": True, "mean": mean, "half": error})
            if arm != start:
                gain = estimate_mean((own.loc[arm] - own.loc[start]).tolist())
                words |= {"panel": f"{panel},\nminus {labels[start]}", "unit": "points, 95 % interval"}
                found.append(words | {"mean": gain.mean, "half": gain.high - gain.mean})
    table = pd.DataFrame(found)
    figure, axes = figures.panels(table["panel"].nunique(), width=3.6, height=0.4 * table["label"].nunique() + 1.6)
    rows(axes, table)
    figures.legend_above(figure, axes)
    return figure


FIGURES: dict[str, Any] = {"gains": gains}
FIGURES |= {f"{each.__name__}/{name}": partial(each, name) for each in (headroom, estimators) for name in BANK["BANK"]}
FIGURES |= {name: partial(arms, name) for name in ("ecg/full_access", "ppi/full_access")}
FIGURES["ppi/full_access-second-machine"] = partial(arms, "ppi/second-machine")
for _problem in ("permuted_50", "permuted_90"):
    for _end in ("", "-second-machine"):
        FIGURES[f"ppi/{_problem}{_end}"] = partial(arms, f"ppi/learner{_end}", f"ppi 3x16 {_problem}")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", nargs="*", help=f"one of {', '.join(FIGURES)}; default: all")
    for chosen in parser.parse_args().figure or FIGURES:
        if chosen not in FIGURES:
            parser.error(f"there is no figure {chosen!r}; there are {', '.join(FIGURES)}")
        with figures.style():
            figures.save_png(FIGURES[chosen](), HERE / f"{chosen}.png")
