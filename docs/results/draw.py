"""Draw the figures of these pages from the tables beside them.

    python docs/results/draw.py                              # all but the views
    python docs/results/draw.py headroom/gains               # one
    python docs/results/draw.py ecg/views --ptbxl data/raw/ptbxl-1.0.3

In all of them a small dot is a PT seed, a large mark a mean with its 95 % interval, and a diamond the paper's number.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pooled import COMPARISONS, FT, LINEAR, papers, pooled
from render import BANK, ESTIMATES, agreement, problem

from metapt.domains.ecg.augment import Policy, displacement, warp
from metapt.domains.ecg.config import MILD_WARP, Warp
from metapt.domains.ecg.data.sources import LEADS, read_signals
from metapt.evaluation import figures, headroom_report
from metapt.evaluation.statistics import Estimate, estimate_mean
from metapt.twostage.quantities import EVALUATIONS

HERE = Path(__file__).parent
BLUE, RED, GREEN, *_ = figures.PALETTE


def row(axis: Axes, place: float, seeds: list[float], found: Estimate) -> None:
    """Draw the seeds, the mean and the interval of a row."""
    known = figures.once(axis, "PT seed") if seeds else None
    axis.plot(seeds, [place + 0.25] * len(seeds), "o", color=BLUE, ms=4.5, alpha=0.4, mew=0, label=known)
    axis.plot([found.low, found.high], [place, place], color=BLUE, lw=3, alpha=0.9, solid_capstyle="butt")
    axis.plot(found.mean, place, "o", color=BLUE, ms=8, label=figures.once(axis, "mean, 95 % interval"))


def compared(axis: Axes, table: str, rows: list[tuple[str, str, str, str]], xlabel: str) -> None:
    """Draw comparisons (label, arm, control, evaluation) of a table of comparisons.csv, and what the paper has."""
    known = COMPARISONS.replace({"table": {"search": "ecg"}}).reset_index()
    known = known.set_index(["table", "arm", "control", "evaluation"])
    for place, (label, arm, control, evaluation) in enumerate(rows):
        wrong = label[:2] if "permuted" in label and "%" in label else ""  # which problem of protein graphs
        cell = known.loc[[(table, arm, control, evaluation)]]
        cell = cell[cell["text"].str.contains(f"3 x 16, {wrong} ") if wrong else ~cell["text"].str.contains("3 x 16")]
        found = pooled(int(cell["index"].iloc[0]))
        row(axis, place, found.seeds, found.shown())
        paper, _ = papers(found.row)
        if np.isfinite(paper):
            axis.plot(paper, place, "D", color=RED, ms=7, mfc="white", mew=1.8, label=figures.once(axis, "the paper"))
    axis.axvline(0, color=figures.INK, lw=1, zorder=1.5)
    figures.named_rows(axis, [label for label, *_ in rows], xlabel)


def both(table: str, rows: list[tuple[str, str, str]], xlabel: str, height: float) -> Figure:
    """Draw comparisons (label, arm, control) in both evaluations."""
    figure, axes = figures.panels(2, width=4.6, height=height)
    for axis, evaluation in zip(axes, (FT, LINEAR), strict=True):
        compared(axis, table, [(*each, evaluation) for each in rows], xlabel)
        axis.set_title(EVALUATIONS[evaluation])
    axes[1].set_yticklabels([])
    figures.legend_above(figure, axes)
    return figure


def gains() -> Figure:
    """Draw what each way to choose hyperparameters gains over the start, and the paper's effect."""
    figure, (ecgs, graphs) = figures.panels(1, 2, width=7.4, height=2.75)
    compared(ecgs, "ecg", [
        ("learned warp", "meta", "simclr", FT),
        ("the same, released code's choices", "meta-released", "simclr-released", FT),
        ("learned with permuted labels", "meta-permuted_labels", "simclr", FT),
        ("one gentle warp, not learned", "simclr-mild", "simclr", FT),
        ("search with 4 PT runs", "run_search", "simclr", FT),
    ], "gain over SimCLR (points of test AUROC)")  # fmt: skip
    compared(graphs, "ppi", [
        ("learned task weights", "meta", "graph_supervised", LINEAR),
        ("the same, released code's choices", "meta-released", "graph_supervised-released", LINEAR),
        ("changed learner", "meta-stable", "graph_supervised", LINEAR),
        ("50 % of labels permuted: learned", "meta", "graph_supervised", LINEAR),
        ("90 % of labels permuted: learned", "meta", "graph_supervised", LINEAR),
    ], "gain over equal task weights (points of test AUROC)")  # fmt: skip
    ecgs.set_title("ECGs, encoder of width 8, FT of the whole network")
    graphs.set_title("Protein graphs of two bacteria, linear evaluation")
    figures.same_range([ecgs, graphs], "x")
    figures.legend_above(figure, [ecgs, graphs])
    return figure


def ecg() -> Figure:
    """Draw the differences to SimCLR in both evaluations."""
    rows = [
        ("learned warp", "meta", "simclr"),
        ("learned with permuted labels", "meta-permuted_labels", "simclr"),
        ("one gentle warp", "simclr-mild", "simclr"),
        ("search of the warp's strength", "run_search", "simclr"),
        ("search of the temperature", "temperature_search", "simclr"),
        ("temperature of 0.125", "simclr-low_temperature", "simclr"),
    ]
    return both("ecg", rows, "points of test AUROC over SimCLR", height=3.4)


def warps() -> Figure:
    """Draw where the learned warp ends with each PT seed."""
    found = pd.read_csv(HERE / "ecg" / "warp.csv")
    figure, (axis,) = figures.panels(width=7.4, height=2.1)
    names = {
        "meta": "learned warp",
        "meta-permuted_labels": "with permuted labels",
        "meta-released": "released choices",
    }
    for place, arm in enumerate(names):
        own = found.loc[found["arm"] == arm, "displacement_end"]
        axis.plot(
            own, [place] * len(own), "o", color=BLUE, ms=7, alpha=0.5, mew=0, label=figures.once(axis, "end, a PT seed")
        )
        axis.plot(own.median(), place, "|", color=BLUE, ms=22, mew=3, label=figures.once(axis, "median"))
    axis.axvline(379, color=RED, lw=2, ls="--", label="start, the paper's default")
    axis.axvline(4, color=GREEN, lw=2, ls="--", label="gentle warp")
    axis.set_xscale("log")
    figures.plain_log_ticks(axis.xaxis)
    figures.named_rows(axis, list(names.values()), "typical displacement of the warp (samples of 1,000)")
    figures.legend_above(figure, [axis], columns=4)
    return figure


def graphs() -> Figure:
    """Draw the differences to equal weights in both evaluations."""
    rows = [
        ("learned task weights", "meta", "graph_supervised"),
        ("PT learning rate 1e-4", "meta-slow", "graph_supervised-slow"),
        ("released code's choices", "meta-released", "graph_supervised-released"),
        ("changed learner", "meta-stable", "graph_supervised"),
        ("learned, over co-training", "meta", "cotrain"),
    ]
    return both("ppi", rows, "difference (points of test AUROC)", height=3.1)


def mnist() -> Figure:
    """Draw what is learned with each seed: the rotation, its mean and standard deviation, and beside BPTT."""
    figure, axes = figures.panels(3, width=4.0, height=3.5)
    heads = {"meta": "separate heads", "meta-shared": "shared head", "meta-curvature": "shared head, curvature"}
    colours = dict(zip(heads, (BLUE, RED, GREEN), strict=True))
    alone, both, runs = (
        pd.read_csv(HERE / "mnist" / f"{name}.csv") for name in ("rotation_mean", "rotation_mean_std", "bptt")
    )
    for table, axis, x, y in ((alone, axes[0], "initial", "mean"), (both, axes[1], "mean", "deviation")):
        for arm, own in table.groupby("arm", sort=False):
            axis.plot(own[x], own[y], "o", color=colours[arm], ms=6, alpha=0.7, mew=0, label=heads[arm])
    axes[0].axhline(90, color=figures.INK, lw=1, ls="--")
    figures.note(axes[0], "FT rotation", (128, 86), 0)
    axes[0].set(
        xlabel="mean rotation at the start (degrees)",
        ylabel="learned mean (degrees)",
        title="mean alone",
        xlim=(45, 155),
    )
    axes[1].plot([0, 90], [1, 1], "s", color=figures.QUIET, ms=7, label="start")
    axes[1].plot(45, 15, "*", color=figures.INK, ms=15, label="FT rotation")
    axes[1].set(
        xlabel="learned mean (degrees)", ylabel="learned standard deviation", title="mean and standard deviation"
    )
    arms = {"bptt": "BPTT", "meta": "learned", "bptt-shared": "BPTT,\nshared", "meta-shared": "learned,\nshared"}
    for place, arm in enumerate(arms):
        own, end = runs.loc[runs["arm"] == arm, "accuracy"], "-shared" if "shared" in arm else ""
        axes[2].plot([place] * len(own), own, "o", color=colours.get(arm, figures.QUIET), ms=8, alpha=0.6, mew=0)
        for name, look in (("PT at the FT rotation", "optimal-"), ("PT at the start", "initial:")):
            level = runs.loc[runs["arm"] == f"{look[:-1]}_augmentation{end}", "accuracy"].mean()
            known = figures.once(axes[2], name)
            axes[2].plot([place - 0.35, place + 0.35], [level, level], look[-1], color=figures.INK, lw=1.5, label=known)
    axes[2].set_xticks(range(4), list(arms.values()))
    axes[2].set(ylabel="FT test accuracy (%)", title="beside backpropagation")
    axes[2].legend(loc="center right", fontsize=9.5)
    figures.legend_above(figure, axes[:2])
    return figure


def headrooms() -> Figure:
    """Draw each setting minus the reference, in the order of their means, for each problem."""
    figure, axes = figures.panels(3, 3, width=3.3, height=2.6)
    found = [
        grid
        for name in BANK["BANK"]
        for grid in headroom_report.grids(headroom_report.read([HERE / "headroom" / f"{name}.csv"]))
    ]
    for axis, grid in zip(axes, found, strict=True):
        gained = grid.test - grid.reference
        for place, own in enumerate(sorted(gained, key=np.mean)):
            known = estimate_mean(own)
            colour = BLUE if known.mean > 0 else figures.QUIET
            axis.plot([place, place], [known.low, known.high], color=colour, lw=1.5, alpha=0.5)
            axis.plot(place, known.mean, "o", color=colour, ms=4.5)
        axis.axhline(0, color=figures.INK, lw=1.2)
        axis.set_ylim(
            max(axis.get_ylim()[0], gained.mean(1).min() * 1.6 - 1),
            min(axis.get_ylim()[1], gained.mean(1).max() * 1.6 + 2),
        )
        axis.set_title(problem(grid.cell), fontsize=10.5)
        axis.set_xticks([])
        axis.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    for axis in axes[::3]:
        axis.set_ylabel("points over the\nreference")
    for axis in axes[-3:]:
        axis.set_xlabel("24 random settings, in order")
    return figure


def estimators() -> Figure:
    """Draw the right signs of estimates for each problem."""
    found = agreement()
    names = [name for name in dict.fromkeys(ESTIMATES.values()) if not name.startswith("fit")]
    cells = list(found.groupby(["problem", "evaluation"], sort=False))
    figure, axes = figures.panels(3, 2, width=3.4, height=2.9)
    for place, (axis, ((kind, evaluation), part)) in enumerate(zip(axes, cells, strict=True)):
        for line, name in enumerate(names):
            own = part.loc[part["name"] == name, "signs"]
            colour = RED if name == "the paper's" else figures.QUIET if "ceiling" in name else BLUE
            axis.plot(own, [line] * len(own), "o", color=colour, ms=5, alpha=0.35, mew=0)
            axis.plot(own.mean(), line, "|", color=colour, ms=16, mew=3)
        axis.axvline(50, color=figures.INK, lw=1.2)
        figures.named_rows(axis, names if place % 3 == 0 else [""] * len(names), "right signs (%)" if place > 2 else "")
        axis.set_xlim(-3, 103)
        axis.set_title(problem({"problem": kind, "evaluation": evaluation}), fontsize=10.5)
    return figure


def views(folder: Path) -> Figure:
    """Draw one lead of an ECG of PTB-XL, with the paper's default warp and with the gentle one."""
    signals = torch.tensor(
        read_signals(folder, ["records100/00000/00001_lr"])[:, :, :].transpose(0, 2, 1) / 1000.0, dtype=torch.float32
    )
    velocity = torch.randn(1, signals.shape[1], generator=torch.Generator().manual_seed(3))
    figure, axes = figures.panels(1, 3, width=6.4, height=1.0)
    time, lead = np.arange(signals.shape[1]) / 100, LEADS.index("II")
    policies = [
        ("an ECG (one lead, ten seconds)", None, figures.INK),
        ("the paper's default warp", Warp(), RED),
        ("a gentle warp", MILD_WARP, GREEN),
    ]
    for axis, (text, settings, colour) in zip(axes, policies, strict=True):
        shown = signals
        if settings is not None:
            policy = Policy(settings.smoothing, settings.scale, settings.initial, 0)
            strength = policy.global_strength(policy.initial(torch.Generator()))
            shown = warp(signals, displacement(strength.expand(1), velocity, policy.smoothing))
        axis.plot(time, shown[0, :, lead], color=colour, lw=1.6)
        axis.set_title(text, fontsize=17, color=colour, pad=3)
        axis.set_axis_off()
        axis.margins(x=0.01)
    figures.same_range(axes, "y")
    return figure


FIGURES: dict[str, Any] = {
    "gains": gains, "ecg/gains": ecg, "ecg/warps": warps, "ppi/gains": graphs, "mnist/learned": mnist,
    "headroom/gains": headrooms, "estimators/signs": estimators,
}  # fmt: skip

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", nargs="*", help=f"one of {', '.join(FIGURES)}, ecg/views; default: all but the last")
    parser.add_argument(
        "--ptbxl", type=Path, default=Path("data/raw/ptbxl-1.0.3"), help="folder of PTB-XL, for the views"
    )
    given = parser.parse_args()
    for chosen in given.figure or FIGURES:
        if chosen not in FIGURES and chosen != "ecg/views":
            parser.error(f"there is no figure {chosen!r}; there are {', '.join(FIGURES)}, ecg/views")
        with figures.style():
            drawn = views(given.ptbxl) if chosen == "ecg/views" else FIGURES[chosen]()
            figures.save_png(drawn, HERE / f"{chosen}.png")
