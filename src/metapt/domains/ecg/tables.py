"""The tables of the ECG experiments: each is a list of blocks for people (caption -> table), and all numbers for the CSV."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import pandas as pd

from metapt.domains.ecg import quantities
from metapt.domains.ecg.config import Simclr, fixed_arm
from metapt.domains.ecg.data.sources import CLASSES
from metapt.domains.ecg.labels import label, looks
from metapt.domains.ecg.results import (
    AUROC,
    Results,
    auroc_cells,
    papers_cells,
)
from metapt.evaluation.looks import EVALUATIONS
from metapt.evaluation.metrics import NotMeasuredError, select
from metapt.evaluation.statistics import Estimate, estimate_mean
from metapt.evaluation.tables import Tables, mean_and_error, published
from metapt.twostage.cost import PEAK_MEMORY, TIME_PER_STEP, Cost
from metapt.twostage.seeded import difference_columns, seed_means

CELL = ["evaluation", "arm", "size", "meta_size"]
BASELINE, LEARNED = "simclr", "meta"
SIZE, META_SIZE = "|D_FT| = {}", "|D_FT^meta|"


def auroc_tables(results: Results) -> Tables:
    """AUROC beside the paper's, and below it the differences between arms, paired by PT seed."""
    cells = auroc_cells(results)
    papers = papers_cells(results.key, results.arms)
    joined = cells.merge(
        papers.rename(columns={"mean": "paper_mean", "standard_error": "paper_standard_error"}), how="left", on=CELL
    )
    differences = arm_differences(results)
    blocks = {
        f"{AUROC}. Ours: mean ± standard error over all FT runs, as the paper's; in brackets the standard error over the means "
        "of the PT seeds, which knows that FT runs share an encoder": _wide(results, joined)
    }
    if len(differences):
        blocks[
            "Differences between arms (percentage points): mean ± standard error over PT seeds, paired; in brackets the 95% t "
            "interval. The CSV has p-values, and the interval of a bootstrap over PT seeds"
        ] = _wide_differences(differences)
    numbers = pd.concat([joined, differences], ignore_index=True)
    numbers.insert(0, "experiment", results.experiment)
    numbers["n"] = numbers["n"].astype("Int64")
    return Tables(blocks, numbers.drop(columns="meta_size") if results.key != "partial_access" else numbers)


def arm_differences(results: Results) -> pd.DataFrame:
    """Each arm minus SimCLR (in `partial_access`: the baseline), and the paper's meta arm minus each other one.

    Columns: evaluation, arm, minus, size, meta_size, mean, seed_standard_error, seeds, low, high (95% t interval), p_value,
    bootstrap_low, bootstrap_high.
    """
    partial_access = results.key == "partial_access"
    base = results.section.baseline if partial_access else BASELINE
    pairs = [(arm, base) for arm in results.arms if base in results.arms and arm != base]
    if not partial_access and LEARNED in results.arms:
        pairs += [(LEARNED, arm) for arm in results.arms if arm not in (LEARNED, base)]
    rows = []
    for cell in auroc_cells(results).to_dict("records"):
        for arm, minus in pairs:
            if arm != cell["arm"]:
                continue
            meta_size = None if math.isnan(cell["meta_size"]) else int(cell["meta_size"])
            try:
                a = results.runs(arm, cell["size"], cell["evaluation"], meta_size)
                b = results.runs(minus, cell["size"], cell["evaluation"], 0 if partial_access else None)
            except NotMeasuredError:
                continue
            rows.append(
                {
                    "evaluation": cell["evaluation"],
                    "arm": arm,
                    "minus": minus,
                    "size": cell["size"],
                    "meta_size": cell["meta_size"],
                }
                | difference_columns(a, b)
            )
    return pd.DataFrame(rows)


def augmentation_tables(results: Results) -> Tables:
    """The warp at the start and at the end of PT, and at the end for the ECGs of each diagnosis."""
    shown, rows = [], []
    for arm in results.arms:
        ends = _ends(results, arm)
        strength, labels = results.views[f"{arm}/strength"], results.views[f"{arm}/labels"]
        groups = {"all": np.ones(len(strength), dtype=bool)} | {c: labels[:, i] > 0 for i, c in enumerate(CLASSES)}
        for name, members in groups.items():
            part = strength[members]
            quartiles = np.quantile(part, [0.25, 0.5, 0.75]) if part.size else np.full(3, math.nan)
            rows.append(
                {
                    "arm": arm,
                    "diagnosis": name,
                    "ecgs": int(part.size),
                    "first_quartile": quartiles[0],
                    "median": quartiles[1],
                    "third_quartile": quartiles[2],
                }
            )
        start, end = (mean_and_error(e.mean, e.standard_error) for e in ends)
        medians = {row["diagnosis"]: row["median"] for row in rows if row["arm"] == arm}
        shown.append({"arm": label(arm), "PT seeds": ends[1].n, "at the start": start, "at the end": end, **medians})
    caption = (
        "Displacement of the warp (samples; one is 10 ms): typical one at the start and at the end of PT (mean ± standard error "
        "over PT seeds); then its median over the ECGs of one PT run, of all and of each diagnosis"
    )
    numbers = pd.DataFrame(rows)
    numbers.insert(0, "experiment", results.experiment)
    return Tables({caption: pd.DataFrame(shown)}, numbers)


def warp_tables(results: Results) -> Tables:
    """A row per fixed strength: where PT with it leads, and what each arm's hypergradient says there."""
    strengths = strength_table(results)
    shown = pd.DataFrame(
        {
            "warp": strengths["warp"],
            "initial": [f"{value:g}" for value in strengths["initial"]],
            "displacement (samples)": strengths["displacement"],
            **{f"AUROC, {EVALUATIONS[e]} (%)": _with_error(strengths, e) for e in results.config.evaluations},
            "hypergradient of": strengths["arm"],
            "mean": _with_error(strengths, "hypergradient"),
            "t per draw": strengths["t"],
            "positive signs": strengths["positive"],
        }
    )
    caption = (
        "The warp's strength, fixed, and the hypergradient of its scale there. AUROC: mean ± standard error over PT seeds. "
        "Hypergradient: the same, or over the draws where there is one PT seed; positive: the FT loss would fall with less warp. "
        "t per draw: mean over standard deviation of the draws"
    )
    numbers = strengths.copy()
    numbers.insert(0, "experiment", results.experiment)
    return Tables({caption: shown}, numbers)


def strength_table(results: Results) -> pd.DataFrame:
    """A row per fixed strength, and per arm whose warp has its parametrisation.

    Columns: warp, initial, displacement; {evaluation}_mean, {evaluation}_standard_error (over PT seeds), NaN where not run;
    arm, hypergradient_mean, hypergradient_standard_error, t, positive ("" and NaN where there is no such arm).
    """
    study = results.section
    rows = []
    for name, strengths in study.strengths.items():
        warp = study.warps[name]
        arms = [arm for arm in study.starts if _alike(results.config.arms[arm].warp, warp)]  # type: ignore[union-attr]
        for initial in strengths:
            row = {"warp": name, "initial": initial} | _fixed(results, fixed_arm(name, initial))
            rows += [row | {"arm": arm} | _hypergradient(results, arm, initial) for arm in arms] or [row | {"arm": ""}]
    return pd.DataFrame(rows)


PAPERS_COST = {"plain": "1.5 h, 4-5 GB", "meta": "3 h, 8-9 GB"}
PAPERS_RATIOS = {TIME_PER_STEP: 3.0 / 1.5, PEAK_MEMORY: 8.5 / 4.5}
"""Of meta-parameterised over plain PT (appendix "Implementation details"); memory from the middles of the ranges."""


def costs(results: Results) -> Cost:
    """Time and memory of each arm."""
    plain = plain_arm(results)
    papers = {LEARNED: PAPERS_COST["meta"]} | ({} if plain is None else {plain: PAPERS_COST["plain"]})
    look = looks(results.arms)
    return Cost(results.experiment, look, results.pretraining, results.machines, plain, papers, PAPERS_RATIOS)


def plain_arm(results: Results) -> str | None:
    """The first arm that is plain SimCLR; None where there is none."""
    return next((arm for arm in results.arms if isinstance(results.config.arms[arm], Simclr)), None)


def _wide(results: Results, joined: pd.DataFrame) -> pd.DataFrame:
    """A row per evaluation, arm (and meta-PT size), ours and the paper's; a column per |D_FT|."""
    rows = []
    for (evaluation, arm, meta_size), part in joined.groupby(["evaluation", "arm", "meta_size"], sort=False, dropna=False):
        words = {"evaluation": EVALUATIONS[str(evaluation)], "arm": label(str(arm))}
        if results.key == "partial_access":
            words[META_SIZE] = f"{meta_size:.0f}"
        ours = {
            SIZE.format(
                row["size"]
            ): f"{mean_and_error(row['mean'], row['standard_error'])}{_bracketed(row['seed_standard_error'])}"
            for row in part.to_dict("records")
        }
        papers = {
            SIZE.format(row["size"]): published(row["paper_mean"], row["paper_standard_error"])
            for row in part.to_dict("records")
            if not math.isnan(row["paper_mean"])
        }
        rows.append(words | {"whose": "ours", "n": ", ".join(dict.fromkeys(map(str, part["n"])))} | ours)
        if papers:
            rows.append(words | {"whose": "paper", "n": "15"} | papers)
    sizes = [SIZE.format(size) for size in results.section.finetune_sizes]
    table = pd.DataFrame(rows)
    return table[[c for c in table.columns if c not in sizes] + [c for c in sizes if c in table.columns]].fillna("")


def _wide_differences(differences: pd.DataFrame) -> pd.DataFrame:
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for row in differences.to_dict("records"):
        key = (row["evaluation"], row["arm"], row["minus"], str(row["meta_size"]))
        words = {"evaluation": EVALUATIONS[row["evaluation"]], "difference": f"{label(row['arm'])} minus {label(row['minus'])}"}
        if not math.isnan(row["meta_size"]):
            words[META_SIZE] = f"{row['meta_size']:.0f}"
        text = mean_and_error(row["mean"], row["seed_standard_error"])
        if not math.isnan(row["low"]):
            text += f" [{row['low']:.1f}, {row['high']:.1f}]"
        rows.setdefault(key, words | {"PT seeds": str(row["seeds"])})[SIZE.format(row["size"])] = text
    return pd.DataFrame(list(rows.values())).fillna("")


def _bracketed(error: float) -> str:
    return "" if math.isnan(error) else f" [{error:.1f}]"


def _ends(results: Results, arm: str) -> tuple[Estimate, Estimate]:
    """The warp's displacement when PT starts and when it ends, over PT seeds; an arm that learns none keeps its own."""
    final = results.pretraining(arm, quantities.DISPLACEMENT)
    starts = [results.trajectory(arm, int(seed))["value"] for seed in final.index]
    first = [float(s.iloc[0]) if len(s) else float(value) for s, value in zip(starts, final, strict=True)]
    return estimate_mean(first), estimate_mean(final.to_numpy(dtype=float))


def _fixed(results: Results, arm: str) -> dict[str, float]:
    numbers = {"displacement": math.nan}
    with suppress(NotMeasuredError):
        numbers["displacement"] = float(results.pretraining(arm, quantities.DISPLACEMENT).mean())
    for evaluation in results.config.evaluations:
        try:
            e = estimate_mean(seed_means(results.runs(arm, results.section.finetune_size, evaluation)).to_numpy(dtype=float))
        except NotMeasuredError:
            continue
        numbers |= {f"{evaluation}_mean": e.mean, f"{evaluation}_standard_error": e.standard_error}
    return numbers


def _hypergradient(results: Results, arm: str, initial: float) -> dict[str, float]:
    def values(metric: str) -> pd.Series[float]:
        return select(
            results.metrics,
            experiment=results.experiment,
            arm=arm,
            metric=metric,
            setting=f"initial={initial:g}",
            evaluation="hypergradient",
        )

    try:
        mean, deviation, positive = (values(m) for m in (quantities.MEAN, quantities.DEVIATION, quantities.POSITIVE))
    except NotMeasuredError:
        return {}
    e = estimate_mean(mean.to_numpy(dtype=float))
    error = e.standard_error if e.n > 1 else float(deviation.iloc[0]) / math.sqrt(results.section.draws)
    return {
        "hypergradient_mean": e.mean,
        "hypergradient_standard_error": error,
        "t": float((mean / deviation).mean()),
        "positive": float(positive.mean()),
    }


def _alike(one: object, other: object) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in ("smoothing", "scale"))


def _with_error(table: pd.DataFrame, name: str) -> list[str]:
    if f"{name}_mean" not in table:
        return [""] * len(table)
    pairs = zip(table[f"{name}_mean"], table[f"{name}_standard_error"], strict=True)
    return ["" if math.isnan(mean) else mean_and_error(mean, error) for mean, error in pairs]
