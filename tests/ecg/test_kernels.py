"""The number of kernels of a meta-update on ECGs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from metapt.domains.ecg import config
from metapt.domains.ecg.arms import meta_loop
from metapt.domains.ecg.data.dataset import Dataset
from metapt.domains.ecg.setting import Setting
from metapt.hypergrad.layers import pairs
from metapt.training.checkpoint import Checkpoint
from metapt.training.meta import MetaPretraining

Launches = Callable[..., Counter[str]]
PARAMETERS = 60
"""Of the encoder."""


@pytest.fixture
def loop(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MetaPretraining:
    """Return the loop of an encoder of width 4 with a smooth warp, after its first meta-update."""
    monkeypatch.setattr(pairs, "faster", lambda *given: False)  # as on a GPU
    settings = config.EcgPretraining(signals=24, epochs=20, batch_size=8, lr=1e-3)
    arm = config.EcgMeta(
        warp=config.Warp(smoothing="velocity", scale="log", initial=4.0, network_width=4),
        pretrain_steps=2,
        warmup_epochs=0,
        batch_size=8,
    )
    setting = Setting(dataset, 4, settings, 0, 25, "patients", lambda part: Checkpoint(tmp_path / part, "a test"))
    made, _ = meta_loop(setting, arm)
    made.iterate()
    assert len(made.pretrained.encoder) == PARAMETERS
    return made


def test_a_meta_update_launches_at_most_so_many(loop: MetaPretraining, launches: Launches) -> None:
    assert sum(launches(loop._meta_update).values()) <= 3600


def test_the_arithmetic_of_vectors_takes_a_few(loop: MetaPretraining, launches: Launches) -> None:
    """One for a sum or a multiple, three for a norm; the rest are the FT head, minibatches and scalars."""
    counts = launches(loop._meta_update, {"_engine_run_backward", "pretrain_loss", "encode", "head_loss"})
    vectors = {name: counts[f"_foreach_{name}"] for name in ("add", "mul", "div", "norm")}
    assert vectors == {"add": 2, "mul": 3, "div": 1, "norm": 12}
    assert sum(counts.values()) <= 130  # a loop over the parameters of the encoder would launch PARAMETERS more
