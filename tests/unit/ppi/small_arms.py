"""The default arms of each kind, and some with other options, small enough for twelve PT steps on small graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from metapt.domains.ppi import config
from metapt.domains.ppi.config import ARMS, Network, PpiPretraining
from metapt.domains.ppi.data.dataset import PpiDataset
from metapt.domains.ppi.pretraining_setting import PpiSetting
from metapt.domains.ppi.stages import PpiPretrainSettings
from metapt.training.checkpoint import Checkpoint

from .small_graphs import COARSE, TEST_SPECIES

NETWORK = Network(layers=2, width=4)
LEARNED = torch.linspace(-2, 2, COARSE).roll(3)
SMALL: dict[str, dict[str, Any]] = {
    "cotrain_learned_weights": {"pretrain_steps": 2, "warmup_epochs": 0.5},
    "meta": {"pretrain_steps": 2, "warmup_epochs": 0.5, "batch_size": 16},
    "meta-identity": {"pretrain_steps": 2, "warmup_epochs": 0.5, "batch_size": 16},
    "meta-stable": {"pretrain_steps": 2, "warmup_epochs": 0.5, "hypergradient_batch": 20},
}
ALIKE = {name for name in ARMS if name.endswith(("-slow", "-fast", "-released")) or name.startswith("meta-stable-")}
"""Arms that differ from others in the values of settings alone."""
ARMS_HERE = {name: arm.model_copy(update=SMALL.get(name, {})) for name, arm in ARMS.items() if name not in ALIKE} | {
    "meta-fitted": config.PpiMeta(
        pretrain_steps=2,
        warmup_epochs=0.5,
        unroll="fitted",
        folds=3,
        batch_size=None,
        accumulate=2,
        average_decay=0.5,
        reuse_gradient=True,
    ),
    "meta-released": config.PpiMeta(pretrain_steps=2, warmup_epochs=0.5, head_steps_between_updates=1, unroll_steps=2),
}


def setting_in(
    folder: Path,
    dataset: PpiDataset,
    name: str = "full_access",
    seed: int = 0,
    checkpoint: type[Checkpoint] = Checkpoint,
    learned: torch.Tensor | None = LEARNED,
    **changes: Any,
) -> PpiSetting:
    """Return a setting with twelve PT steps on 100 graphs, 68 FT training graphs and 12 validation graphs."""
    pretrain = PpiPretraining(**{"epochs": 2, "batch_size": 16, "online_evaluations": 3, **changes})
    own: Any = {"arm": "meta", "arm_settings": ARMS["meta"], "network": NETWORK, "test_species": [TEST_SPECIES]}
    job = PpiPretrainSettings(seed=seed, setting=name, pretrain=pretrain, **own)
    return PpiSetting(job, dataset, lambda part: checkpoint(folder / f"state{part}.pt", "a test"), learned)
