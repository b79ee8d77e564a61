"""Claims that compare arms by their test AUROC, one for each evaluation and |D_FT|.

Differences are taken over PT seeds, after the FT runs of each are averaged: FT runs of one PT seed share an encoder and
are not independent. A single PT seed decides no claim. Claims on arms and sizes that the config does not run are left
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from metapt.domains.ecg.auroc_tables import papers_cells
from metapt.domains.ecg.quantities import AUROC
from metapt.domains.ecg.results import EcgResults
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, Comparison
from metapt.evaluation.tables import published
from metapt.twostage.comparisons import better
from metapt.twostage.quantities import EVALUATIONS


class ArmClaim(NamedTuple):
    """The claim that an arm beats its control, or is at most `margin` percentage points worse."""

    arm: str
    control: str
    papers: bool  # whether the paper makes the claim
    margin: float = 0.0


def beats(results: EcgResults, claims: Sequence[ArmClaim]) -> Iterator[Comparison]:
    """Yield the comparisons of claims whose arms are run."""
    for arm, control, papers, margin in claims:
        if not {arm, control} <= set(results.arms):
            continue
        verb = f"is at most {margin:g} points worse than" if margin else "beats"
        for evaluation, size in cells(results):
            runs = partial(results.runs, arm, size, evaluation), partial(results.runs, control, size, evaluation)
            paper = (
                papers_words(results, evaluation, size, (arm, None), (control, None)) if papers else BEYOND_THE_PAPER
            )
            text = f"{arm} {verb} {control}, {where(evaluation, size)}"
            yield better(text, arm, control, AUROC, evaluation, runs, paper=paper, margin=margin)


def cells(results: EcgResults) -> list[tuple[str, int]]:
    """Return each evaluation and |D_FT| of an experiment."""
    return [(evaluation, size) for evaluation in results.config.evaluations for size in results.section.finetune_sizes]


def where(evaluation: str, size: int) -> str:
    """Return the end of a claim's sentence."""
    return f"{EVALUATIONS[evaluation]}, |D_FT| = {size}"


def papers_words(
    results: EcgResults, evaluation: str, size: int, a: tuple[str, int | None], b: tuple[str, int | None]
) -> str:
    """Return the paper's numbers of two arms in words, or `BEYOND_THE_PAPER` unless it has both.

    `a` and `b` are an arm and its FT ECGs at meta-PT time, None where these are |D_FT|.
    """
    papers = papers_cells(results)
    texts = []
    for arm, few in (a, b):
        found = papers[(papers["evaluation"] == evaluation) & (papers["size"] == size) & (papers["arm"] == arm)]
        found = found[found["meta_size"].isna() if few is None else found["meta_size"] == few]
        texts += [published(row["mean"], row["standard_error"]) for row in found.to_dict("records")]
    return f"{texts[0]} against {texts[1]} %" if len(texts) == 2 else BEYOND_THE_PAPER
