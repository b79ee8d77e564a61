"""The page of the protein graphs says what the tables say; differences between arms are tested beside."""

from __future__ import annotations

import pandas as pd

from .pages import RESULTS, text_of, words_of


def test_the_page_says_how_well_learned_weights_find_permuted_tasks() -> None:
    found = pd.read_csv(RESULTS / "ppi" / "learned_weights.csv").groupby(["problem", "arm"])["auroc"]
    for _, own in found:
        mean, ends = words_of(100 * own, interval=True)[:-1].split(" (")
        assert any(f"{mean} ({words}{ends})" in text_of("ppi.md") for words in ("", "95 % interval "))
    assert len(found) == 4


def test_the_start_of_the_changed_learner_was_run_twice_with_the_same_result() -> None:
    tables = (pd.read_csv(RESULTS / "ppi" / f"{name}.csv") for name in ("second-machine", "full_access"))
    own, first = (table.set_index(["arm", "evaluation", "pretrain_seed", "finetune_seed"]) for table in tables)
    pd.testing.assert_frame_equal(own.loc["graph_supervised"], first.loc["graph_supervised"])


def test_the_page_says_how_the_frozen_weights_would_be_decided_alone() -> None:
    claims = pd.read_csv(RESULTS / "claims" / "ppi_full_access.csv").set_index(["arm", "control", "evaluation"])
    row = claims.loc[("meta-stable-frozen", "meta-stable-permuted", "linear_evaluation")]
    words = f"(p = {row['p_value']:.2g}, and {row['adjusted_p_value']:.2g} when corrected for {len(claims)} claims)"
    assert words in text_of("ppi.md")
