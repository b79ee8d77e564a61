"""Short ECGs with planted conditions, a setting of a few PT steps on them, and arms of each kind for it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metapt.domains.ecg import arms, bissl, config
from metapt.domains.ecg.augment import Draws, Policy, draw
from metapt.domains.ecg.config import EcgFinetuning, EcgPretraining, Warp
from metapt.domains.ecg.data.dataset import Dataset
from metapt.domains.ecg.data.prepare import KEYS, EcgRecords
from metapt.domains.ecg.data.sources import CLASSES
from metapt.domains.ecg.setting import Setting
from metapt.domains.ecg.stages import EcgPretrainSettings
from metapt.hypergrad import Params
from metapt.method import ConjugateGradients
from metapt.training.checkpoint import Checkpoint

SAMPLES = 64
NETWORK = Warp(smoothing="velocity", scale="log", initial=4.0, network_width=2)
SQUARE = Warp(initial=0.2, network_width=2)
STEPS: dict[str, Any] = {"pretrain_steps": 2, "warmup_epochs": 0.5, "batch_size": 6}
AT_ONCE = STEPS | {"warmup_epochs": 0.0}
FITTED: dict[str, Any] = {
    "warp": NETWORK,
    "unroll": "fitted",
    "folds": 3,
    "curvature": "gauss_newton",
    "inverse": ConjugateGradients(kind="conjugate_gradient", max_steps=2, rtol=1e-2, damping=1e-3),
    "average_decay": 0.5,
    "reuse_gradient": True,
}

ARMS: dict[str, config.Arm] = {
    "no_pt": config.NoPretraining(method="no_pt"),
    "simclr": config.Simclr(method="simclr", warp=SQUARE),
    "meta": config.EcgMeta(warp=SQUARE, **STEPS, meta_lr=0.05, head_steps_between_updates=1),
    "meta-stable": config.EcgMeta(**STEPS | FITTED, meta_lr=0.1, meta_settings={"betas": [0.9, 0.9]}),
    "meta-random_sign": config.EcgMeta(warp=NETWORK, **AT_ONCE, meta_lr=0.05, placebo="random_sign"),
    "meta-permuted_labels": config.EcgMeta(warp=NETWORK, **AT_ONCE, meta_lr=0.05, placebo="permuted_labels"),
    "optsla": config.OptSla(method="optsla", warp=NETWORK, epochs=2, batch_size=6, meta_lr=0.1),
    "random_search": config.RandomSearch(method="random_search", candidates=3, range=(0.5, 8.0)),
    "simclr-joint": config.Joint(method="joint", warp=SQUARE, batch_size=6),
    "bissl": config.BiSsl(method="bissl", warp=SQUARE, pretrain_steps=2, batch_size=6),
    "bissl-start": config.BiSsl(method="bissl", warp=SQUARE, anchor="start"),
    "best_of": config.BestOf(method="best_of", warp=SQUARE, runs=2, folds=3, evaluation="linear_evaluation"),
}


def shorten_bissl(patch: pytest.MonkeyPatch) -> None:
    """Let BiSSL take fewer steps of FT head and anchor than published."""
    patch.setattr(arms, "HEAD_EPOCHS", 1)
    patch.setattr(bissl, "ANCHOR_STEPS", 2)


def records(count: int, samples: int, seed: int = 0) -> EcgRecords:
    """Return ECGs of random walks; each class adds an oscillation to a lead of its own.

    Every tenth is in fold 10, and every second patient has two.
    """
    random = np.random.default_rng(seed)
    labels = (random.random((count, len(CLASSES))) < 0.4).astype(np.int64)
    signals = random.normal(0, 100, (count, 12, samples))
    signals[:, :5] += 300 * labels[:, :, None] * np.sin(0.4 * np.arange(samples))
    index = np.arange(count)
    patient = np.where(index // 10 % 3 == 1, index - 10, index)
    columns = (index + 1, patient, index % 10 + 1, *labels.T)
    table = dict(zip([*KEYS, *CLASSES], columns, strict=True))
    return EcgRecords(signals.astype(np.int16), table, labels.astype(np.float32))


@cache
def dataset(device: str = "cpu") -> Dataset:
    """Return 70 ECGs of 64 samples, 63 of them for training."""
    return Dataset(records(70, SAMPLES), 0.0, 200.0, SAMPLES, device)


def draws(views: int, samples: int = SAMPLES, seed: int = 0, **given: Any) -> Draws:
    """Return draws for views in float64, with other strengths than the default ones."""
    drawn = draw(views, samples, EcgPretraining(**given), torch.Generator().manual_seed(seed))
    return Draws(*(part.double() for part in drawn))


def meta_of(policy: Policy) -> Params:
    """Return the initial meta-parameters of a warp in float64."""
    return {name: value.double() for name, value in policy.initial(torch.Generator().manual_seed(0)).items()}


def setting_in(
    folder: Path,
    seed: int = 0,
    meta_size: int = 25,
    device: str = "cpu",
    checkpoint: type[Checkpoint] = Checkpoint,
    capture: bool = False,
    **changes: Any,
) -> Setting:
    """Return a setting of eight PT steps on 24 ECGs, width 2, and an FT set of 25."""
    pretrain = EcgPretraining(**{"signals": 24, "epochs": 2, "batch_size": 6, "lr": 1e-3, **changes})
    own: Any = {"arm": "simclr", "arm_settings": ARMS["simclr"], "split": "patients", "width": 2, "samples": SAMPLES}
    stages: Any = {
        "pretrain": pretrain,
        "finetune": EcgFinetuning(epochs=2, batch_size=6, linear_epochs=3),
        "capture": capture,
    }
    job = EcgPretrainSettings(seed=seed, meta_size=meta_size, **own, **stages)
    return Setting(job, dataset(device), lambda part: checkpoint(folder / f"state{part}.pt", "a test"))
