"""Experiment `representations`: similarity of the features of the arms' encoders on the same graphs."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from metapt.domains.ppi.config import ArmsSection
from metapt.domains.ppi.experiments.representations import FeaturesSettings
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.results import PpiResults
from metapt.domains.ppi.stages import FULL_ACCESS, cka_with
from metapt.evaluation import figures
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.statistics import estimate_mean
from metapt.evaluation.tables import Tables
from metapt.sections import Positive, key
from metapt.twostage.tables import numbers_of


class Representations(ArmsSection):
    """Centred kernel alignment (CKA; Kornblith et al. 2019) of the arms' features."""

    graphs: Positive = key(6400, "FT graphs that are compared, at most")


def alignment_runs(jobs: PpiJobs, section: Representations) -> Needs:
    """Return the PT runs of each arm, and the job that compares their features."""
    config, arms = jobs.config, section.arms
    settings = FeaturesSettings(graphs=section.graphs, network=config.network, test_species=config.test_species)
    inputs, limits = {"graphs": jobs.prepared().outputs["graphs"]}, {"mem_mb": jobs.mem_mb(256), "minutes": 60}
    study = jobs.study("representations/cka", settings, inputs, arms, FULL_ACCESS, **limits)
    return Needs([*jobs.encoders(arms, FULL_ACCESS), study])


def cka(results: PpiResults) -> pd.DataFrame:
    """Return a row per ordered pair of arms: arm, other, mean, seed_standard_error, seeds, low, high."""
    rows = []
    for arm, other in product(results.arms, repeat=2):
        e = estimate_mean([1.0] if arm == other else results.values(arm, cka_with(other)))
        row = {"arm": arm, "other": other, "mean": e.mean, "seed_standard_error": e.standard_error}
        rows.append(row | {"seeds": e.n, "low": e.low, "high": e.high})
    return pd.DataFrame(rows)


def alignment_tables(results: PpiResults) -> Tables:
    """Return the alignment as a matrix of arms."""
    table = cka(results)
    shown = pd.DataFrame({"arm": [results.label(arm) for arm in results.arms]})
    for other in results.arms:
        column = table[table["other"] == other]
        shown[results.label(other)] = ["" if math.isnan(value) else f"{value:.2f}" for value in column["mean"]]
    caption = (
        "Centred kernel alignment (linear CKA) of the arms' features of FT graphs, mean over PT seeds; 1: the same"
    )
    return Tables({caption: shown}, numbers_of(results.name, [table]))


def draw_alignment(results: PpiResults) -> Figure:
    """Draw a heat map of the alignment between arms, the mean over PT seeds."""
    table = cka(results).pivot(index="arm", columns="other", values="mean").loc[results.arms, results.arms]
    values, names = table.to_numpy(dtype=float), [results.label(arm) for arm in results.arms]
    size = 0.62 * len(names) + 2.3
    drawn, (axis,) = figures.panels(width=size + 1.3, height=size)
    shades = LinearSegmentedColormap.from_list("blues", ["#FFFFFF", figures.PALETTE[0]])
    image = axis.imshow(values, cmap=shades, vmin=0.0, vmax=1.0)
    for i, j in np.ndindex(values.shape):
        text = "–" if math.isnan(values[i, j]) else f"{values[i, j]:.2f}"
        ink = "white" if values[i, j] > 0.65 else figures.INK
        axis.annotate(text, (j, i), ha="center", va="center", fontsize=9, color=ink)
    axis.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
    axis.set_yticks(range(len(names)), names)
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
    drawn.colorbar(image, ax=axis, label="CKA, mean over PT seeds", shrink=0.8)
    return drawn


EXPERIMENT = Experiment(
    title="How alike the arms' features of the same protein graphs are (CKA)",
    section=Representations,
    order=6,
    needs=alignment_runs,
    results=PpiResults,
    tables=alignment_tables,
    figure=draw_alignment,
)
