"""Measure time and memory of SimCLR pre-training on ECGs: plain PT, meta-PT, the bare encoder, linear evaluation.

    python benchmarks/ecg.py [--widths 8 32] [--batch 256] [--labelled 500] [--rounds 5] [--threads N]
                             [--device cuda] [--precision bfloat16] [--json F]

Signals are random numbers with the shape of PTB-XL's signals, whose values do not affect the results. In each round the
contenders take turns: the bare encoder's forward and backward pass on the same two views, a plain PT step, and
meta-updates with Neumann 1, with the identity, and with Neumann 1 whose PT gradient serves the next PT step. A period
is 10 PT steps and a meta-update. Ratios are of times in the same round. Peak memory is that of a contender's first step
in its own process. "Recomputed" is the meta-update with Neumann 1 and `recompute: true`.
The counted limit is that of `limit.py`, measured in each round.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import multiprocessing
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import pandas as pd
import torch

from limit import Limit, flop, moved
from metapt.domains.ecg import config, finetune
from metapt.domains.ecg.arms import meta_loop
from metapt.domains.ecg.data.dataset import Dataset
from metapt.domains.ecg.data.prepare import EcgRecords
from metapt.domains.ecg.data.sources import CLASSES, LEADS, SAMPLES
from metapt.domains.ecg.problem import views
from metapt.domains.ecg.setting import Setting
from metapt.hypergrad import Identity, Neumann
from metapt.machine import machine_name
from metapt.training.measure import Measured
from metapt.training.seeds import generator

PERIOD = 10
SEEDS = 5
LIMITS = {(8, "float32"): "2.5", (32, "float32"): "1.25", (32, "bfloat16"): "1.35"}
"""At most so many times the counted limit, by width and precision."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--widths", type=int, nargs="+", default=[8, 32], help="channels of the first stage (paper: 32)"
    )
    parser.add_argument("--batch", type=int, default=256, help="ECGs in a PT minibatch, and at most in an FT minibatch")
    parser.add_argument("--labelled", type=int, default=500, help="labelled ECGs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of PT steps")
    parser.add_argument("--json", type=Path, help="write all times here")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    load = os.getloadavg()[0]
    results = [measure(width, arguments) for width in arguments.widths]
    print(f"\n- command: python {shlex.join(sys.argv)}")
    print(
        f"- machine: {machine_name(arguments.device)}, {os.cpu_count()} cores, load before {load:.1f}; "
        f"{arguments.device}"
    )
    print(
        f"- {arguments.threads} threads, PT steps in {arguments.precision}, batch {arguments.batch}, "
        f"{arguments.rounds} rounds; torch {torch.__version__}\n"
    )
    print("| width | what | median (min-max) | at most |\n| --- | --- | --- | --- |")
    for result in results:
        for what, limit, values in result["table"]:
            text = f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"
            print(f"| {result['width']} | {what} | {text} | {limit} |")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


def make_contenders(setting: Setting, width: int, arguments: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """Return the functions that are timed; each takes one step from where the last one ended."""
    arm = config.EcgMeta(warp=config.Warp(network_width=width), batch_size=arguments.batch)
    loop, policy = meta_loop(setting, arm)
    trainer = loop._pretrainer
    meta = {name: value.detach() for name, value in loop.meta.items()}
    batch = loop.batches.pretrain()
    with torch.no_grad():
        pairs = views(policy, meta, batch.signals, batch.draws)
    encoder = setting.problem(policy).encoder

    def bare() -> None:
        features = encoder({**trainer.pretrained.encoder, **trainer.pretrained.buffers}, pairs, training=True)
        features.sum().backward()
        for value in trainer.pretrained.encoder.values():
            value.grad = None

    def update(inverse: Identity | Neumann, reuse: bool = False, recompute: bool = False) -> Callable[[], object]:
        def run() -> None:
            loop.problem = setting.meta_problem(policy, recompute)
            loop.settings = dataclasses.replace(loop.settings, inverse=inverse, reuse_gradient=reuse)
            loop._meta_update()

        return run

    return {
        "bare": bare,
        "plain": lambda: trainer.step(loop.meta),
        "neumann": update(Neumann(1, setting.pretrain.lr)),
        "identity": update(Identity()),
        "reused": update(Neumann(1, setting.pretrain.lr), reuse=True),
        "recomputed": update(Neumann(1, setting.pretrain.lr), recompute=True),
    }


def peak(name: str, width: int, arguments: argparse.Namespace) -> float:
    """Return the memory in GB that a contender's first step takes on top of what the process held before."""
    torch.set_num_threads(arguments.threads)
    contender = make_contenders(make_setting(width, arguments), width, arguments)[name]
    gc.collect()
    with Measured(arguments.device) as measured:
        contender()
    return measured.peak_bytes / 1e9


def measure(width: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return rows (what, limit, a value per round) for one width."""
    setting = make_setting(width, arguments)
    contenders = make_contenders(setting, width, arguments)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    work = {name: flop(contender) for name, contender in contenders.items()}
    state, limit, limits, rates = (
        moved(setting.initial().vector()),
        Limit(getattr(torch, arguments.precision), arguments.device),
        list[float](),
        list[float](),
    )
    synchronise = torch.cuda.synchronize if arguments.device == "cuda" else lambda: None
    for turn in range(arguments.rounds + 1):
        for name, contender in contenders.items():
            gc.collect()
            synchronise()
            start = time.perf_counter()
            contender()
            synchronise()
            if turn:  # the first turn is a warm-up
                times[name].append(time.perf_counter() - start)
            if turn and name == "plain":
                limits.append(limit.seconds(work["plain"], state))
                rates.append(work["plain"] / 1e9 / times["plain"][-1])
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # later processes return freed tensors to the system
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        peaks = {
            name: pool.apply(peak, (name, width, arguments)) for name in ("plain", "neumann", "identity", "recomputed")
        }

    def ratio(top: Callable[..., float]) -> list[float]:
        return [top(*row) for row in zip(*times.values(), strict=True)]

    one, all_seeds = linear(setting, width, arguments)
    table = [
        ("bare encoder, forward and backward, s", "", times["bare"]),
        ("plain PT step, s", "", times["plain"]),
        ("meta-update, Neumann 1, s", "", times["neumann"]),
        ("meta-update, identity, s", "", times["identity"]),
        ("meta-update, Neumann 1, whose PT gradient is reused, s", "", times["reused"]),
        ("plain PT step, GFLOP/s", "", rates),
        (
            "plain PT step / its counted limit",
            LIMITS.get((width, arguments.precision), ""),
            [t / least for t, least in zip(times["plain"], limits, strict=True)],
        ),
        ("plain PT step / bare encoder", "1.15", ratio(lambda b, p, n, i, r, a: p / b)),
        ("meta / plain per 10 PT steps, Neumann 1", "1.50", ratio(lambda b, p, n, i, r, a: 1 + n / (PERIOD * p))),
        ("meta / plain per 10 PT steps, identity", "1.27", ratio(lambda b, p, n, i, r, a: 1 + i / (PERIOD * p))),
        ("meta / plain by counted FLOP, Neumann 1", "", [1 + work["neumann"] / (PERIOD * work["plain"])]),
        ("meta / plain by counted FLOP, identity", "", [1 + work["identity"] / (PERIOD * work["plain"])]),
        ("the same, Neumann 1, gradient reused", "1.40", ratio(lambda b, p, n, i, r, a: (PERIOD - 1 + r / p) / PERIOD)),
        ("peak memory, plain PT step, GB", "", [peaks["plain"]]),
        ("peak memory, meta-update, Neumann 1, GB", "", [peaks["neumann"]]),
        ("peak memory, meta-update, identity, GB", "", [peaks["identity"]]),
        ("peak memory, meta / plain", "", [peaks["neumann"] / peaks["plain"]]),
        ("peak memory, meta / plain, recomputed", "2.0", [peaks["recomputed"] / peaks["plain"]]),
        ("meta-update, recomputed / Neumann 1", "1.2", ratio(lambda b, p, n, i, r, a: a / n)),
        (f"linear evaluation, {SEEDS} seeds / 1 seed", "1.5", [a / b for a, b in zip(all_seeds, one, strict=True)]),
    ]
    return {"width": width, "times": times, "peaks": peaks, "table": table}


def linear(setting: Setting, width: int, arguments: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Return times of linear evaluation with one and with all FT seeds."""
    pretrained = setting.initial()
    indices = np.arange(arguments.labelled)
    signals, labels = setting.dataset.signals(indices), setting.dataset.labels(indices)
    cut = arguments.labelled * 4 // 5
    train = finetune.Labelled(signals[:cut], labels[:cut])
    validation = finetune.Labelled(signals[cut:], labels[cut:])
    sets = finetune.Sets(train, validation, finetune.Labelled(signals, labels))
    times: dict[int, list[float]] = {1: [], SEEDS: []}
    for _ in range(arguments.rounds):
        for seeds, taken in times.items():
            start = time.perf_counter()
            finetune.linear_evaluation(
                setting.encoder,
                pretrained.encoder,
                pretrained.buffers,
                width,
                sets,
                config.EcgFinetuning(),
                [generator("benchmark", seed) for seed in range(seeds)],
            )
            taken.append(time.perf_counter() - start)
    return times[1], times[SEEDS]


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
    settings = config.EcgPretraining(batch_size=arguments.batch, precision=arguments.precision)
    return Setting(dataset, width, settings, 0, arguments.labelled, "patients", no_checkpoint)


def no_checkpoint(part: str) -> Any:
    raise AssertionError("a benchmark keeps no checkpoints")


if __name__ == "__main__":
    main()
