"""Measure time and memory of SimCLR pre-training on ECGs: plain PT, meta-PT, the bare encoder, FT, linear evaluation.

    python benchmarks/ecg.py [--widths 8] [--batch 16] [--labelled 32] [--rounds 3] [--threads N]
                             [--device cuda] [--precision bfloat16] [--json F]

By default it ends within two minutes on two CPU cores. The paper's shape, `--widths 32 --batch 256 --labelled 500`, is
for a GPU: on a CPU a plain PT step of it takes several seconds, and a meta-update five times as long.

Signals are random numbers with the shape of PTB-XL's signals, whose values do not affect the results; the warp is
smooth, so that hypergradients do not explode and none is skipped. Each row is printed when it is measured. In each
round the steps of a row take turns: a plain PT step and the bare encoder's forward and backward pass on the same two
views, or a meta-update with Neumann 1, with the identity, or with Neumann 1 whose PT gradient serves the next PT step.
"Recomputed" is the meta-update with Neumann 1 and `recompute: true`. A period is 10 PT steps and a meta-update. Ratios
are of times in the same round. Peak memory is that of a first step, on a CPU in its own process. The counted limit is
that of `limit.py`, measured in each round. On a GPU all precisions of the plain PT step are timed, and steps as
CUDA graphs; columns are added (see `steps.py`).
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import steps  # isort: skip  # before torch
import numpy as np
import pandas as pd
import torch

from metapt.domains.ecg import config, finetune
from metapt.domains.ecg.arms import meta_loop
from metapt.domains.ecg.augment import views
from metapt.domains.ecg.data.dataset import Dataset
from metapt.domains.ecg.data.prepare import EcgRecords
from metapt.domains.ecg.data.sources import CLASSES, LEADS, SAMPLES
from metapt.domains.ecg.resnet1d import Encoder
from metapt.domains.ecg.setting import Setting
from metapt.domains.ecg.stages import EcgPretrainSettings
from metapt.hypergrad import Identity, Neumann
from metapt.hypergrad.layers.precision import tf32
from metapt.training.guard import HypergradientGuard
from metapt.training.recorder import Measured
from metapt.training.seeds import generator
from metapt.twostage.finetuning import Transfer
from metapt.twostage.heads import linear_evaluation

SEEDS = 5
SMOOTH = config.Warp(smoothing="velocity", scale="log", initial=4.0)
"""The paper's first warp folds so often that its signals depend on how numbers are rounded."""
LIMITS = {(8, "float32"): "2.5", (32, "float32"): "1.25", (32, "bfloat16"): "1.35"}
"""At most so many times the counted limit, by width and precision."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--widths", type=int, nargs="+", default=[8], help="channels of the first stage (paper: 32)")
    made.add_argument("--batch", type=int, default=16, help="ECGs in a minibatch of PT and FT (paper: 256)")
    made.add_argument("--labelled", type=int, default=32, help="labelled ECGs")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--threads", type=int, default=torch.get_num_threads())
    made.add_argument("--device", default="cpu")
    made.add_argument("--precision", choices=("float32", "tf32", "bfloat16"), default="float32", help="of PT steps")
    made.add_argument("--json", type=Path, help="write all rows here")
    return made


def main() -> None:
    arguments = parser().parse_args()
    table = steps.Table(arguments, "width")
    with tf32(False) if table.on_gpu else nullcontext():
        for width in arguments.widths:
            measure(table, width, arguments)


def make_steps(setting: Setting, width: int, arguments: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """Return the functions that are timed; each takes one step from where the last one ended."""
    warp = SMOOTH.model_copy(update={"network_width": width})
    loop, policy = meta_loop(setting, config.EcgMeta(warp=warp, batch_size=arguments.batch, meta_lr=1e-3))
    trainer = loop._pretrainer
    meta = {name: value.detach() for name, value in loop.meta.items()}
    batch = loop.batches.pretrain()
    with torch.no_grad():
        pairs = views(policy, policy.strength(meta, batch.signals), batch.signals, batch.draws)
    encoder = setting.problem(policy).encoder

    def bare() -> None:
        features = encoder({**trainer.pretrained.encoder, **trainer.pretrained.buffers}, pairs, training=True)
        features.sum().backward()
        for value in trainer.pretrained.encoder.values():
            value.grad = None

    def plain(precision: Any) -> Callable[[], object]:
        problem = dataclasses.replace(setting.problem(policy), encoder=Encoder(width, precision))

        def run() -> None:
            trainer.problem = problem
            trainer.step(loop.meta)

        return run

    def update(inverse: Identity | Neumann, reuse: bool = False, recompute: bool = False) -> Callable[[], object]:
        # Norms with the identity are 1 / lr times those with Neumann, which one guard for both would call exploding.
        guard = HypergradientGuard(loop.settings.explosion_factor, loop.settings.max_skipped)

        def run() -> None:
            loop.problem = setting.meta_problem(policy, recompute)
            loop.settings = dataclasses.replace(loop.settings, inverse=inverse, reuse_gradient=reuse)
            loop.guard = guard
            loop._meta_update()

        return run

    others: dict[str, Callable[[], object]] = {}
    if arguments.device == "cuda":
        others = {f"plain, {each}": plain(each) for each in ("tf32", "bfloat16")} | captured(setting, width, arguments)
    return others | {
        "bare": bare,
        "plain": plain(arguments.precision),
        "neumann": update(Neumann(1, setting.job.pretrain.lr)),
        "identity": update(Identity()),
        "reused": update(Neumann(1, setting.job.pretrain.lr), reuse=True),
        "along": loop._pretrain_step,  # the PT step with the reused gradient
        "recomputed": update(Neumann(1, setting.job.pretrain.lr), recompute=True),
        "finetune": steps.finetune_step(transfer(setting, width, arguments)),
    }


def captured(setting: Setting, width: int, arguments: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """Return the steps that are timed as CUDA graphs."""
    warp = SMOOTH.model_copy(update={"network_width": width})
    arm = config.EcgMeta(warp=warp, batch_size=arguments.batch, meta_lr=1e-3)
    loop, _ = meta_loop(dataclasses.replace(setting, job=setting.job.model_copy(update={"capture": True})), arm)
    return {
        "plain, captured": loop._pretrain_step,
        "neumann, captured": loop._meta_update,
        "finetune, captured": steps.finetune_step(transfer(setting, width, arguments, capture=True)),
    }


def transfer(setting: Setting, width: int, arguments: argparse.Namespace, capture: bool = False) -> Transfer:
    """Return an FT run on one minibatch."""
    start, settings = setting.initial(), config.EcgFinetuning(batch_size=arguments.batch, precision=arguments.precision)
    sets = finetune.Sets(*3 * [labelled(setting, 0, arguments.batch)])
    problem = finetune.EcgFinetuneProblem(width, sets, settings, capture)
    return Transfer(problem, start, settings.lr, generator("benchmark", 0))


def labelled(setting: Setting, first: int, last: int) -> finetune.Labelled:
    chosen = np.arange(first, last)
    return finetune.Labelled(setting.dataset.signals(chosen), setting.dataset.labels(chosen))


def peak(name: str, width: int, arguments: argparse.Namespace) -> float:
    """Return the memory in GB that a first step takes on top of what the process held before."""
    torch.set_num_threads(arguments.threads)
    step = make_steps(make_setting(width, arguments), width, arguments)[name]
    gc.collect()
    with Measured(arguments.device) as measured:
        step()
    return measured.peak_bytes / 1e9


def measure(table: steps.Table, width: int, arguments: argparse.Namespace) -> None:
    """Measure all rows of one width."""
    setting = make_setting(width, arguments)
    made, bar = make_steps(setting, width, arguments), LIMITS.get((width, arguments.precision), "")
    steps.step_rows(table, width, made, setting.initial().vector(), bar)
    one, all_seeds = table.in_turn(*(linear(setting, width, arguments, seeds) for seeds in (1, SEEDS)))
    table.row(width, f"linear evaluation, {SEEDS} seeds / 1 seed", steps.ratios(all_seeds, one), "1.5")
    steps.memory_rows(table, width, lambda name: table.alone(peak, name, width, arguments))


def linear(setting: Setting, width: int, arguments: argparse.Namespace, seeds: int) -> Callable[[], object]:
    """Return linear evaluation with some FT seeds."""
    start, cut = setting.initial(), arguments.labelled * 4 // 5
    sets = finetune.Sets(
        labelled(setting, 0, cut), labelled(setting, cut, arguments.labelled), labelled(setting, 0, arguments.labelled)
    )

    def run() -> None:
        problem = finetune.EcgFinetuneProblem(width, sets, config.EcgFinetuning())
        linear_evaluation(problem, start, [generator("benchmark", seed) for seed in range(seeds)])

    return run


def make_setting(width: int, arguments: argparse.Namespace) -> Setting:
    """Return random signals and labels, enough for a PT minibatch and the labelled ECGs."""
    count = max(2 * arguments.batch, 2 * arguments.labelled)
    random = np.random.default_rng(0)
    signals = random.normal(0, 200, (count, len(LEADS), SAMPLES)).astype(np.int16)
    labels = random.integers(0, 2, (count, len(CLASSES))).astype(np.float32)
    table = pd.DataFrame(
        {"ecg_id": range(count), "patient_id": range(count), "fold": 1, **dict(zip(CLASSES, labels.T, strict=True))}
    )
    dataset = Dataset(EcgRecords(signals, table, labels), 0.0, 200.0, SAMPLES, arguments.device)
    pretrain = config.EcgPretraining(batch_size=arguments.batch, precision=arguments.precision)
    own: Any = {"arm": "simclr", "arm_settings": config.ARMS["simclr"], "seed": 0, "split": "patients"}
    sizes = {"meta_size": arguments.labelled, "width": width, "samples": SAMPLES}
    return Setting(EcgPretrainSettings(pretrain=pretrain, **own, **sizes), dataset, no_checkpoint)


def no_checkpoint(part: str) -> Any:
    raise AssertionError("a benchmark keeps no checkpoints")


if __name__ == "__main__":
    main()
