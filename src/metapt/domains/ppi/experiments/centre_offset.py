"""Experiment `centre_offset`: PT with correct centre nodes, and with those of the released code's batches."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from metapt.domains.ppi import aurocs
from metapt.domains.ppi.aurocs import difference_text, of
from metapt.domains.ppi.config import ArmsSection, Names, PpiSettings, PretrainedPpiArm
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.labels import label
from metapt.domains.ppi.quantities import AUROC
from metapt.domains.ppi.results import PpiResults
from metapt.domains.ppi.settings import FULL_ACCESS, RELEASED_CENTRE
from metapt.evaluation import figures
from metapt.evaluation.comparisons import Comparison
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.tables import Tables
from metapt.sections import key
from metapt.twostage.arms import changed
from metapt.twostage.panels import dots
from metapt.twostage.quantities import EVALUATIONS
from metapt.twostage.seeds import difference_columns
from metapt.twostage.tables import cell_text, numbers_of

CENTRES = {FULL_ACCESS: "right", RELEASED_CENTRE: "released"}
BETWEEN = "right minus released"


class CentreOffset(ArmsSection):
    """PT with correct centre nodes, and with those of the released code's batches. Not in the paper."""

    arms: Names = key(["graph_supervised", "graph_supervised-slow", "meta"], "arms, keys of `ppi.arms`", min_length=1)

    def check(self, domain: PpiSettings) -> None:
        """Raise ValueError as `ArmsSection.check`, and for an arm whose centre nodes are those of the released code."""
        super().check(domain)
        for name in self.arms:
            arm = domain.arms[name]
            if isinstance(arm, PretrainedPpiArm) and not changed(domain.pretrain, arm.pretrain).offset_centres:
                raise ValueError(
                    f".arms names {name!r}, whose pretrain.offset_centres is false, so that it has no PT with right "
                    "centres; legal: arms with true"
                )


def needs(jobs: PpiJobs, section: CentreOffset) -> Needs:
    """Return the FT runs of each arm after PT of both kinds."""
    return Needs(jobs.finetune_all(section.arms, *CENTRES))


def tables(results: PpiResults) -> Tables:
    """Return AUROC after both kinds of PT, and the gains over plain PT."""
    cells = aurocs.auroc_cells(results, list(CENTRES))
    changes = aurocs.differences(results, [((arm, RELEASED_CENTRE), (arm, FULL_ACCESS)) for arm in results.arms])
    texts = {(row["evaluation"], row["arm"]): difference_text(row) for row in changes.to_dict("records")}
    gained, shown = gains(results), []
    for (evaluation, arm), part in cells.groupby(["evaluation", "arm"], sort=False):
        row: dict[str, object] = {"evaluation": EVALUATIONS[str(evaluation)], "arm": label(str(arm))}
        for cell in part.to_dict("records"):
            row |= {"PT seeds": cell["seeds"], CENTRES[cell["setting"]]: cell_text(cell)}
        change = texts.get((evaluation, arm))
        shown.append(row | ({} if change is None else {"released minus right": change}))
    blocks = {
        f"{AUROC} with the centre nodes of PT batches right and as the released code batches them. Mean ± standard "
        f"error over all FT runs; in brackets over PT seeds. Differences {aurocs.DIFFERENCES}": pd.DataFrame(
            shown
        ).fillna("")
    }
    if len(gained):
        blocks["Gain over plain PT (as above), and how much of it stands with the right centre"] = _wide_gains(gained)
    return Tables(blocks, numbers_of(results.name, [cells, changes, gained]))


def gains(results: PpiResults) -> pd.DataFrame:
    """Return each meta arm's gain over plain PT after PT of both kinds, and the difference between the two gains.

    Columns: evaluation, arm, minus, gain (right, released, right minus released), and those of `difference_columns`.
    """
    rows = []
    for evaluation in results.config.evaluations:
        for arm, plain in results.gains():
            words, found = {"evaluation": evaluation, "arm": arm, "minus": plain}, {}
            for setting, name in CENTRES.items():
                try:
                    a, b = (results.runs(each, setting, evaluation) for each in (arm, plain))
                except NotMeasuredError:
                    continue
                rows.append(words | {"gain": name} | difference_columns(a, b))
                found[name] = a - b
            if len(found) == len(CENTRES):
                rows.append(words | {"gain": BETWEEN} | difference_columns(found["right"], found["released"]))
    return pd.DataFrame(rows)


def figure(results: PpiResults) -> Figure:
    """Draw the AUROC after both kinds of PT, and the gains over plain PT."""
    cells, gained = aurocs.auroc_cells(results, list(CENTRES)), gains(results)
    shown = gained[(gained["seeds"] > 1) & (gained["gain"] != BETWEEN)] if len(gained) else gained
    evaluations, height = aurocs.measured(results, cells), max(2.4, 0.62 * len(results.arms) + 1.2)
    drawn, axes = figures.panels(len(evaluations), 2 if len(shown) else 1, width=5.6, height=height)
    for axis, evaluation in zip(axes, evaluations, strict=False):
        part = of(cells, evaluation)
        right, released = (part[part["setting"] == setting] for setting in CENTRES)
        dots(axis, right, released, label, names=("centre nodes right", "released batching"))
        figures.title(axis, EVALUATIONS[evaluation])
    for axis, evaluation in zip(axes[len(evaluations) :], evaluations, strict=False):
        part = of(shown, evaluation)
        names = [f"{label(row['arm'])}, {row['gain']},\nover {label(row['minus'])}" for row in part.to_dict("records")]
        aurocs.intervals(axis, names, part, "gain over plain PT")
    if len(shown):
        figures.same_range(axes[len(evaluations) :], "x")
    figures.legend_above(drawn, axes)
    return drawn


def comparisons(results: PpiResults) -> Iterator[Comparison]:
    """Yield the claims that each meta arm beats plain PT with released batching, and with correct centre nodes."""
    for arm, plain in results.gains():
        for evaluation in results.config.evaluations:
            paper = aurocs.papers_words(results, f"ppi_{FULL_ACCESS}", evaluation, arm, plain)
            released = f"{arm} beats {plain} with released batching"
            yield aurocs.beats(results, released, arm, plain, RELEASED_CENTRE, evaluation, paper)
            right = f"{arm}'s gain over {plain} stands with the right centre"
            yield aurocs.beats(results, right, arm, plain, FULL_ACCESS, evaluation)


def _wide_gains(gained: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for (evaluation, _, _), part in gained.groupby(["evaluation", "arm", "minus"], sort=False):
        found = {row["gain"]: row for row in part.to_dict("records")}
        texts = {name: difference_text(row) for name, row in found.items()}
        if set(CENTRES.values()) <= set(found):
            share = f"{100 * found['right']['mean'] / found['released']['mean']:.0f} %"
            texts["stands"] = share if found["released"]["low"] > 0 else "no clear gain under released batching"
        gain = aurocs.minus(next(iter(found.values())))
        rows.append({"evaluation": EVALUATIONS[str(evaluation)], "gain": gain, **texts})
    return pd.DataFrame(rows).fillna("")


EXPERIMENT = Experiment(
    title="Test AUROC after PT with the centre nodes right, and as the released code batches them",
    section=CentreOffset,
    order=9,
    needs=needs,
    results=PpiResults,
    tables=tables,
    figure=figure,
    comparisons=comparisons,
)
