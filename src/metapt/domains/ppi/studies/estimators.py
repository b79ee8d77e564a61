"""Experiment `estimators`: the estimates of one problem and PT seed, at the end of plain PT with equal task weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metapt.domains.ppi.batches import PpiBatches
from metapt.domains.ppi.config import Network, PpiMeta, PpiPretraining, Supervised
from metapt.domains.ppi.data.dataset import open_dataset
from metapt.domains.ppi.pretraining_setting import PpiSetting
from metapt.domains.ppi.problem import WEIGHTS, MultitaskProblem
from metapt.domains.ppi.settings import group
from metapt.evaluation import metrics
from metapt.hypergrad import Adam, Params, RidgeHead, Unroll
from metapt.machine import Machine
from metapt.training.checkpoint import Checkpoint
from metapt.training.estimators import Slope, estimates, pretrain
from metapt.twostage.slopes import rows

L2, FOLDS = 1e-2, 5
FOLDED = PpiMeta(unroll="ridge", l2=L2, folds=FOLDS, batch_size=None, hypergradient_batch=256)
"""Ridge heads are cross-fitted over all FT graphs, and hypergradients have large PT minibatches.

All values stand here and not in the config's defaults, which do not count in the digest of a job's code.
"""
RIDGE = RidgeHead(L2, cross_fit=True, minibatches=FOLDS - 1)


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Pre-train, estimate the slopes along the weights of groups, and write them.

    The config holds `arm` and `arm_settings` (the reference), `setting`, `seed`, `network`, `pretrain`, `test_species`,
    and `study`: `problem` (see `rows`), `groups`, `draws`, `horizons` and `finetune_lr`. The input is `graphs`.
    """
    arm, study, setting = opened(config, inputs, machine)
    found = estimate(setting, arm.pretrain_lr, study["finetune_lr"], study["draws"], study["horizons"])
    groups = torch.from_numpy(setting.groups(study["groups"])).to(machine.device)
    made = rows("ppi_estimators", study["problem"], setting.seed, found, lambda gradient: along(gradient, groups))
    metrics.write(made, outputs["metrics"])
    metrics.write_series([], outputs["series"])


def opened(
    config: dict[str, Any], inputs: dict[str, Path], machine: Machine
) -> tuple[Supervised, dict[str, Any], PpiSetting]:
    """Return the reference, the settings of the study, and the inputs of its PT; see `run`."""

    def no_checkpoint(part: str) -> Checkpoint:
        raise AssertionError("the study keeps no checkpoint")

    setting = PpiSetting(
        dataset=open_dataset(inputs["graphs"], machine.device),
        network=Network.model_validate(config["network"]),
        pretrain=PpiPretraining.model_validate(config["pretrain"]),
        test_species=config["test_species"],
        seed=config["seed"],
        name=config["setting"],
        learned=None,
        checkpoint=no_checkpoint,
    )
    return Supervised.model_validate(config["arm_settings"]), config["study"], setting


def estimate(setting: PpiSetting, lr: float, finetune_lr: float, draws: int, horizons: list[int]) -> list[Slope]:
    """Return the estimates of all estimators at the end of PT with the learning rate `lr`."""
    meta = setting.initial_meta(setting.dataset.coarse_tasks)
    given = MultitaskProblem(setting.trained()), setting.batches(PpiBatches), setting.initial(), meta
    end = pretrain(*given, setting.initial_head(), Adam(lr), setting.steps)
    folds, optimizer = setting.batches(PpiBatches, FOLDED), Adam(finetune_lr)
    return estimates(end, folds, lambda k: Unroll(k, optimizer), RIDGE, lr, draws, horizons)


def along(gradient: Params, groups: Tensor) -> dict[str, float]:
    """Return the derivative w.r.t. the weight of each group, from that w.r.t. the logits at equal weights.

    A weight is 2 sigmoid(phi), whose derivative at 0 is 1/2.
    """
    count = int(groups.max()) + 1
    sums = torch.zeros(count, dtype=torch.float64, device=groups.device)
    sums.index_add_(0, groups, 2 * gradient[WEIGHTS].double())
    return {group(number): value for number, value in enumerate(sums.tolist())}
