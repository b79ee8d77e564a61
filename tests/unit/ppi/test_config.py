"""Illegal sections `ppi` are refused, and the default species are right."""

from __future__ import annotations

import re
from typing import Any

import pytest

from metapt.domains.ppi.config import PpiMeta, PpiSettings
from metapt.engine.config import validate
from metapt.errors import ConfigError
from metapt.twostage.arms import changed

MINE, META = {"method": "supervised"}, PpiMeta()
WEIGHTED = MINE | {"weights": {"of": "meta"}}
REFERENCE = "headroom.reference is 'graph_supervised'; legal: an arm of method supervised"


def headroom(**changes: Any) -> dict[str, Any]:
    """Return a section whose reference of a headroom differs from supervised PT with equal weights."""
    return {"source": "simulated", "headroom": {}, "arms": {"graph_supervised": MINE | changes}}


def arms(experiment: str, *names: str, **mine: Any) -> dict[str, Any]:
    """Return a section with an experiment on some arms, and further arms."""
    return {experiment: {"arms": list(names)}} | ({"arms": mine} if mine else {})


LEARNS_NONE = MINE | {"weights": {"of": "graph_supervised"}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"string": {"species": [7, 511145, 511145]}}, "ppi.string.species: 511145 stands there twice"),
    ({"string": {"min_score": 700, "ego": {"hops": 1}}}, "string has min_score, ego, and source is 'hu2020'"),
    ({"source": "simulated", "string": {"version": "11.5"}}, "string has version, and source is 'simulated'"),
    ({"finetune": {"lrs": [1e-3, 1e-4, 0.001]}}, "ppi.finetune.lrs: 0.001 stands there twice"),
    (arms("full_access", "meta", "no_pt", "meta"), "ppi.full_access.arms: meta stands there twice"),
    ({"evaluations": ["linear_evaluation"] * 2}, "ppi.evaluations: linear_evaluation stands there twice"),
    (arms("full_access", "meat"), "names the arm 'meat', which is not in arms; legal: no_pt, graph_super"),
    (arms("summary", "meat"), "names the arm 'meat', which is not in arms; legal: no_pt, graph_supervised"),
    ({"headroom": {"reference": "meta"}}, "'meta'; legal: an arm of method supervised without weights"),
    ({"headroom": {"weight": [0.1, 2.0]}}, "headroom.weight goes up to 2; legal: weights below 2"),
    (headroom(group_weights=[0.5, 1.5]), REFERENCE),
    (headroom(weights={"of": "meta"}), REFERENCE),
    (arms("cost", "both", both=WEIGHTED | {"group_weights": [1.0, 1.0]}), "weights and group_weights both say"),
    (
        arms("cost", "mine", mine=WEIGHTED | {"pretrain_lr": 1e-2}, meta=META.model_dump()),
        "arms.mine has weights and pretrain_lr; leave pretrain_lr out",
    ),
    (
        arms("cost", "mine", mine=LEARNS_NONE),
        "arms.mine.weights.of is 'graph_supervised', which learns no weights; leg",
    ),
    (arms("cost", "meta", meta={"reuse_gradient": True, "hypergradient_batch": 64}), "exclude each other"),
    ({"string": {"ego": {"max_nodes": 65536}}}, "max_nodes"),
    ({"string": {"min_score": 1001}}, "min_score"),
    ({"source": "simulated"}, "test_species names 9606; legal, as species of simulated: 900001, 900002"),
    ({"source": "string", "test_species": [7]}, "test_species names 7; legal, as species of string: 9606, 3702"),
    ({"source": "simulated", "test_species": [*range(900001, 900006)]}, "test_species names all simulated species"),
    (arms("learned_weights", "no_pt"), "arms names no_pt; legal: at least one arm that learns task weights"),
    (arms("during_pretraining", "graph_supervised"), "whose PT trains no FT head; legal: at least one co-training arm"),
    (arms("negative_transfer", "no_pt"), "arms names no_pt; legal: at least one arm with PT"),
    (
        arms("negative_transfer", "meta", no_pt={"finetune": {"epochs": 7}}),
        "has no arm of method no_pt with its finetune",
    ),
    ({"finetune": {"trial_epochs": 60}}, "ppi: finetune.trial_epochs is 60; legal: at most epochs, 50"),
    (
        {"finetune": {"trial_epochs": 10}, "arms": {"meta": {"finetune": {"epochs": 5}}}, "full_access": {}},
        "arms.meta.finetune.trial_epochs is 10; legal: at most epochs, 5",
    ),
]
"""A section, and what the sentence says of the place and what is legal there."""


@pytest.mark.parametrize(("section", "words"), REFUSED)
def test_what_could_not_be_compared_is_refused_before_any_run(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        validate({"ppi": section})


def test_trials_of_an_arm_end_with_the_epochs_that_it_has() -> None:
    arms = {"meta": {"finetune": {"trial_epochs": 60}}}
    settings = validate({"ppi": {"finetune": {"epochs": 100}, "arms": arms, "full_access": {"arms": ["meta"]}}}).ppi
    assert changed(settings.finetune, settings.arms["meta"].finetune).trial_epochs == 60


def test_the_species_of_string_are_those_of_hu_et_al() -> None:
    """Compare with `species_split` in bio/splitters.py of snap-stanford/pretrain-gnns; 6239 is C. elegans."""
    train = {3702, 6239, 511145, 7227, 10090, 4932, 7955}
    assert set(PpiSettings().string.species) == train | {9606}
    assert PpiSettings().test_species == [9606]
