"""The page of MNIST says what the tables of seeds say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from metapt.domains.mnist.quantities import ACCURACY
from metapt.evaluation.statistics import estimate_mean
from metapt.evaluation.tables import mean_and_error

from .pages import RESULTS, answers_of_the_summary, text_of, words_of

SETTING = "| 10 initialisations |"


def weights() -> pd.DataFrame:
    """Return the mean weights of clean and noisy examples and their ratio by arm, seed and number of updates."""
    table = pd.read_csv(RESULTS / "mnist" / "example_weighting.csv")
    return table.assign(ratio=table["clean"] / table["noisy"]).set_index(["arm", "seed", "update"]).sort_index()


def shown(values: pd.Series[float]) -> str:
    found = estimate_mean(values.tolist())
    return mean_and_error(found.mean, found.standard_error)


def test_the_page_says_what_the_example_weights_are() -> None:
    page = text_of("mnist.md")
    end = weights().query("update == 3000 and seed < 100")
    for arm in ("meta", "meta-warmup"):
        own = end.loc[arm]
        assert len(own) == 10
        for metric, column in (
            ("ratio of mean weight clean/noisy", "ratio"),
            ("mean weight, clean", "clean"),
            ("mean weight, noisy", "noisy"),
        ):
            assert f"| {arm} {SETTING} {metric} | 10 | {shown(own[column])} |" in page
        assert f"log10 of the ratio: {shown(np.log10(own['ratio']))} (n = 10" in page
    ratios = end["ratio"]["meta-warmup"]
    text = (
        f"by factors of {ratios.min():.0f} to {ratios.max():.0f} (median {ratios.median():.0f}), five of them by more"
    )
    assert text in page
    assert ((ratios > 1).all(), (ratios > 100).sum()) == (True, 5)
    summary = answers_of_the_summary("Does the paper's learner gain over its start?")[0]
    assert f"they do, by a factor of {ratios.min():.0f} to {ratios.max():.0f} (n = 10)" in summary
    mean = end.loc["meta-warmup"][["clean", "noisy"]].mean()
    assert f"The ratio of the weights averaged over seeds is {mean['clean'] / mean['noisy']:.0f}." in page


def test_the_page_says_how_the_weights_of_the_papers_settings_saturate() -> None:
    page, own = text_of("mnist.md"), weights().loc["meta"].query("seed < 100")
    early, late = (own.xs(update, level="update") for update in (150, 3000))
    at_two, gone = (early["noisy"] > 1.99).sum(), (early["clean"] < 1e-4).sum()
    assert (at_two, gone) == (6, 3), "After 150 updates six seeds have all weights at 2 and three have them near 0"
    saturated = late["noisy"] > 1.99
    assert saturated.sum() == 8
    assert saturated[early["noisy"] > 1.99].all()
    assert saturated[early["clean"] < 1e-4].sum() == 2, "and two that came back from near 0"
    highest, second = late["ratio"][~saturated].sort_values(ascending=False)
    assert f"ratios of {highest:.0f} and {second:.0f}." in page


def test_the_page_says_what_five_further_seeds_do() -> None:
    page, ends = text_of("mnist.md"), weights().query("update == 3000").loc["meta"]
    ratios = ends["ratio"].droplevel("update")
    low, high = ratios.loc[100:][lambda ratio: ratio > 100].sort_values()
    assert f"ratios of {low:.0f} and {high:,.0f}, and in the other three all weights are at 2" in page
    saturated = ends["noisy"].droplevel("update") > 1.99
    assert (len(ratios), (ratios > 100).sum(), saturated.sum()) == (15, 3, 11), "as the page and the summary say"
    found = estimate_mean(np.log10(ratios.loc[100:]).tolist())
    assert f"(95 % interval of the logarithm {found.low:.1f} to {found.high:.1f})" in page


def replicates() -> pd.DataFrame:
    """Return accuracy, learned mean, outer steps, time and memory by arm and replicate."""
    return pd.read_csv(RESULTS / "mnist" / "bptt.csv").set_index(["arm", "replicate"])


def test_the_page_says_what_backpropagation_and_its_controls_do() -> None:
    _, section = (RESULTS / "mnist.md").read_text().split("## The paper's method against backpropagation")
    for arm, own in replicates().groupby("arm"):
        assert len(own) == 5
        (row,) = (line for line in section.partition("\n## ")[0].splitlines() if line.startswith(f"| {arm} |"))
        numbers = [words_of(own["accuracy"]), shown(own["seconds"]), shown(own["peak_mb"].dropna())]
        if own["mean"].notna().all():
            numbers.append(words_of(own["mean"]))
        if own["skipped"].any():
            numbers.append(shown(own["skipped"]))
        assert all(f"| {each} |" in row for each in numbers), row


def test_the_claims_on_the_accuracy_of_backpropagation_are_those_of_the_replicates() -> None:
    claims = pd.read_csv(RESULTS / "claims" / "mnist_bptt.csv")
    claims = claims[claims["metric"] == ACCURACY]
    accuracy = replicates()["accuracy"]
    for row in claims.itertuples():
        found = estimate_mean((accuracy[row.arm] - accuracy[row.control]).tolist())
        assert (abs(found.mean), found.standard_error) == pytest.approx((abs(row.mean), row.standard_error), abs=1e-3)
        assert found.n == row.n
    assert len(claims) == 8


def test_the_page_says_in_which_replicates_backpropagation_finds_the_rotation() -> None:
    page, runs = text_of("mnist.md"), replicates()
    ends = {arm: sorted(round(mean) for mean in runs.loc[arm, "mean"]) for arm in ("bptt", "bptt-shared")}
    assert ends == {"bptt": [48, 60, 90, 90, 91], "bptt-shared": [44, 51, 82, 89, 92]}, "as the page says"
    both = [runs.loc[f"bptt{head}"] for head in ("", "-shared")]
    gains = [
        own["accuracy"] - runs.loc[f"initial_augmentation{head}", "accuracy"]
        for own, head in zip(both, ("", "-shared"), strict=True)
    ]
    assert f"({words_of(gains[0])} and {words_of(gains[1])} points)" in page
    stays = pd.concat(both)["mean"] < 75
    assert (stays.sum(), pd.concat(gains)[stays].max() < 1.5) == (4, True)
    moved = pd.concat(both)["mean"][stays] - 45
    assert f"it moves theirs by {moved.min():.0f} to {moved.max():.0f}." in page
    skipped = pd.concat(both)["skipped"]
    assert f"running median: {skipped.min():.0f} to {skipped.max():.0f} of 500" in page
    shared, separate = (runs.loc[arm, "mean"] - 90 for arm in ("meta-shared", "meta"))
    assert f"ends {shared.min():.0f} to {shared.max():.0f} degrees beyond 90 in all five" in page
    *near, far = sorted(separate.abs())
    assert f"four replicates end {near[0]:.0f} to {near[-1]:.0f} degrees off, and one at {90 - far:.0f} degrees" in page
