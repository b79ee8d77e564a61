"""Measure a plain PT step whose loss `torch.compile` has compiled, relative to the same step without.

    python benchmarks/compiled.py [--domain ecg|ppi] [--width 8] [--batch 32] [--steps 50] [--rounds 5] [--threads N]
                                  [--device cuda] [--backend inductor] [--mode reduce-overhead]

Data are random, with the shapes of PTB-XL or of the small protein graphs of `ppi.py`. `--mode reduce-overhead` replays
CUDA graphs. Both trainers take the same minibatches. The steps of a round take turns; the first ones compile and are
not timed. How far the losses after all steps are apart is printed, too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from types import SimpleNamespace
from typing import Any

import torch

import ecg
import ppi
from metapt.domains.ecg.setting import policy_of
from metapt.domains.ppi.problem import MultitaskProblem, PpiBatches
from metapt.machine import machine_name
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domain", choices=("ecg", "ppi"), default="ecg")
    parser.add_argument("--width", type=int, default=8, help="of the ECG encoder")
    parser.add_argument("--batch", type=int, default=32, help="ECGs in a minibatch")
    parser.add_argument("--steps", type=int, default=50, help="in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--mode", help="of torch.compile")
    arguments = parser.parse_args()
    arguments.precision, arguments.labelled, arguments.graphs = "float32", 4 * arguments.batch, 512
    torch.set_num_threads(arguments.threads)
    torch._dynamo.utils.counters.clear()
    (plain, meta), (compiled, _) = trainer(arguments), trainer(arguments)
    options = {"backend": arguments.backend} | ({"mode": arguments.mode} if arguments.mode else {})
    compiled.problem = SimpleNamespace(pretrain_loss=torch.compile(compiled.problem.pretrain_loss, **options))
    timed(plain, meta, 5, arguments.device)
    print(f"compilation and five steps: {timed(compiled, meta, 5, arguments.device):.1f} s")
    rounds = [
        [timed(each, meta, arguments.steps, arguments.device) / arguments.steps for each in (plain, compiled)]
        for _ in range(arguments.rounds)
    ]
    ratios = [after / before for before, after in rounds]
    apart = abs(float(plain.step(meta)) - float(compiled.step(meta)))
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    print(f"{machine_name(arguments.device)}, torch {torch.__version__}, {options}")
    print(f"plain step: {1e3 * statistics.median(before for before, _ in rounds):.2f} ms")
    print(f"compiled / plain: {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
    print(f"graph breaks: {breaks}; losses in the end are {apart:.1e} apart")


def trainer(arguments: argparse.Namespace) -> tuple[Pretrainer, Any]:
    """Return a trainer at its start, and its meta-parameters."""
    adam = OptimizerSpec("Adam", {"lr": 1e-3, "fused": True})
    if arguments.domain == "ecg":
        setting, policy = ecg.make_setting(arguments.width, arguments), policy_of(ecg.SMOOTH)
        meta = setting.initial_meta(policy)
        return Pretrainer(setting.problem(policy), setting.batches(), setting.initial(), adam), meta
    graphs = ppi.make_setting(ppi.SHAPES["small"], arguments)
    problem = MultitaskProblem(graphs.trained())
    meta = graphs.initial_meta(graphs.dataset.coarse_tasks)
    return Pretrainer(problem, graphs.batches(PpiBatches), graphs.initial(), adam), meta


def timed(trainer: Pretrainer, meta: Any, steps: int, device: str) -> float:
    """Return the seconds that some steps take."""
    synchronise = torch.cuda.synchronize if device == "cuda" else lambda: None
    synchronise()
    start = time.perf_counter()
    for _ in range(steps):
        trainer.step(meta)
    synchronise()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
