"""Sections whose keys are legal one by one but not together are refused with a sentence."""

from __future__ import annotations

import re
from typing import Any

import pytest

from metapt.engine.config import validate
from metapt.errors import ConfigError

META: dict[str, Any] = {"full_access": {"arms": ["meta"]}}
ONE_EPOCH = META | {"pretrain": {"epochs": 1}}


def mine(**keys: Any) -> dict[str, Any]:
    """Return a section with an arm of one's own."""
    return {"arms": {"mine": {"method": "simclr"} | keys}, "full_access": {"arms": ["mine"]}}


def meta(section: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """Return a section with other keys of the arm `meta`."""
    return section | {"arms": {"meta": keys}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"partial_access": {"baseline": "meta"}}, "partial_access.baseline is 'meta', whose PT sees labels; legal: an"),
    ({"partial_access": {"arms": ["simclr-mild"]}}, "'simclr-mild', whose PT sees no labels; legal: arms"),
    ({"partial_access": {"finetune_sizes": [100], "meta_sizes": [250]}}, "meta_sizes begins with 250; legal: one or"),
    ({"evaluations": ["linear_evaluation"] * 2}, "ecg.evaluations: linear_evaluation stands there twice"),
    ({"full_access": {"finetune_sizes": [100, 100]}}, "ecg.full_access.finetune_sizes: 100 stands there twice"),
    ({"finetune_seeds": 1001}, "ecg.finetune_seeds is 1001, but must be"),
    *(({"pretrain_seeds": seeds}, "ecg.pretrain_seeds") for seeds in (0, [], [1, 1], [-1])),
    (mine(warp_of={"of": "simclr"}), "arms.mine.warp_of.of is 'simclr', which learns no warp; legal: optsla, meta, "),
    (mine(warp_of={"of": "mine"}), "arms.mine.warp_of.of is 'mine', which learns no warp"),
    (mine(warp_of={"of": "meta"}, warp={"initial": 2}), "arms.mine has warp and warp_of; leave one of them out"),
    (mine(pretrain={"jiter": "uniform"}), "ecg.arms.mine.pretrain.jiter is not a key of the config (did you mean"),
    (mine(finetune={"batch_norm": "off"}), "ecg.arms.mine.finetune.batch_norm is 'off', but must be 'train' or"),
    *((mine(method="best_of", **{key: value}), f"arms.mine.{key}") for key, value in (("runs", 1), ("folds", 1))),
    (mine(method="best_of", evaluation="none"), "ecg.arms.mine.evaluation"),
    (ONE_EPOCH, "arms.meta.warmup_epochs is 1, which is 8 iterations of 10 PT steps, and pretrain.epochs 1 of 76 "),
    ({"partial_access": {}, "pretrain": {"epochs": 1}}, "of 76 PT steps each make 7"),
    (meta(META, pretrain={"epochs": 1}), "pretrain.epochs 1 of 76 PT steps each make 7"),
    (
        meta(META, warmup_epochs=2) | {"pretrain": {"epochs": 2, "signals": 640, "batch_size": 64}},
        "warmup_epochs is 2, which is 2 iterations of 10 PT steps, and pretrain.epochs 2 of 10 PT steps each mak",
    ),
    (meta(ONE_EPOCH, pretrain_steps=5) | {"source": "simulated"}, "pretrain.epochs 1 of 8 PT steps each make 1"),
    (
        meta(META, pretrain_steps=1) | {"source": "ptbxl-1.0.1", "pretrain": {"epochs": 1, "batch_size": 19634}},
        "1 of 1 PT steps each make 1",
    ),
    (meta(ONE_EPOCH, warmup_epochs=0.8), "legal: at most 0.78"),
    (
        meta(ONE_EPOCH, pretrain_steps=77, warmup_epochs=0),
        "arms.meta.pretrain_steps is 77, and pretrain.epochs 1 of 76",
    ),
    ({"headroom": {"reference": "meta"}}, "headroom.reference is 'meta', whose PT sees labels"),
    ({"headroom": {"reference": "simclr-released"}}, "has batch_norm, batch_size, jitter, linear_lr of its own"),
    ({"headroom": {"crop": [0.5, 1.5]}}, "headroom.crop goes up to 1.5; legal: shares of at most 1"),
    ({"headroom": {"noise": [0.5, 0.5]}}, "0.5 is not below 0.5; a range begins with its lower end"),
    ({"headroom": {"pretrain_seeds": [1, 1]}}, "1 stands there twice"),
    ({"headroom": {"pretrain_seeds": [1]}}, "headroom.pretrain_seeds names 1; legal: 2 or more"),
    ({"headroom": {}, "arms": {"headroom-0-01": {"method": "simclr"}}}, "with the name of arms.headroom-0-01"),
    (
        {"full_access": {"arms": ["simclr", "a_b"]}, "arms": {"simclr": {"label": "a b"}, "a_b": {"extends": "meta"}}},
        "arms.a_b and arms.simclr, which full_access compares, are both called 'a b'",
    ),
    ({"full_access": {"arms": ["simclr", "no_pt"]}, "arms": {"simclr": {"label": "no_pt"}}}, "are both called 'no_pt'"),
]
"""A section, and what the sentence says of the place and what is legal there."""


@pytest.mark.parametrize(("section", "words"), REFUSED)
def test_what_makes_no_runs_is_refused(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        validate({"ecg": section})


@pytest.mark.parametrize(
    "section",
    [
        meta(ONE_EPOCH, warmup_epochs=0.78),
        meta(ONE_EPOCH, pretrain_steps=76, warmup_epochs=0),
        {"pretrain": {"epochs": 1}, "full_access": {"arms": ["no_pt", "simclr"]}},
        {"headroom": {"reference": "low"}, "arms": {"low": {"extends": "simclr", "pretrain": {"temperature": 0.125}}}},
    ],
)
def test_what_is_called_legal_is_legal(section: dict[str, Any]) -> None:
    validate({"ecg": section})
