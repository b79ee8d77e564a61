"""Hypergradients and times of encoders in bfloat16 beside those in float32, per inverse solver and FT solver.

    python benchmarks/precision.py [--width 8] [--batch 16] [--shape small] [--steps 20] [--draws 2] [--threads 1]
                                   [--warp 1]

By default it ends within two minutes on two CPU cores.

Both encoders have the same weights (after some PT steps in float32) and see the same minibatches. "Next minibatch" is
the cosine between two float32 hypergradients on different minibatches: what bfloat16 changes is to be judged beside it.
Data are those of `ecg.py` and `ppi.py`, random numbers of the real shapes; with random labels a hypergradient is small
beside its noise, so that the cosines are rather too low than too high.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

import ecg
import ppi
from metapt.domains.ecg import config as ecg_config
from metapt.domains.ecg import resnet1d
from metapt.domains.ecg.arms import meta_loop as ecg_loop
from metapt.domains.ppi import config as ppi_config
from metapt.domains.ppi import gin
from metapt.domains.ppi.arms import meta_loop as ppi_loop
from metapt.hypergrad import ConjugateGradient, FittedHead, Identity, Neumann, Params, RidgeHead, hypergradient
from metapt.hypergrad.hybrid import Curvature
from metapt.hypergrad.inverse import Inverse
from metapt.training.meta import MetaPretraining

INVERSES: dict[str, tuple[Inverse, Curvature]] = {
    "identity": (Identity(), "hessian"),
    "Neumann 1": (Neumann(1, 1e-4), "hessian"),
    "CG, Gauss-Newton": (ConjugateGradient(max_steps=10, relative_damping=0.1), "gauss_newton"),
}
Draw = Callable[[], dict[str, Any]]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--width", type=int, default=8, help="of the ECG encoder")
    made.add_argument("--batch", type=int, default=16, help="ECGs in a PT minibatch")
    made.add_argument(
        "--shape", choices=list(ppi.SHAPES), default="small", help="of the protein graphs and their encoder"
    )
    made.add_argument("--steps", type=int, default=20, help="PT steps before")
    made.add_argument("--draws", type=int, default=2, help="minibatches that hypergradients are computed on")
    made.add_argument("--warp", type=float, default=1.0, help="m at the start (the paper's 4 makes gradients chaotic)")
    made.add_argument("--threads", type=int, default=1)
    return made


def main() -> None:
    arguments = parser().parse_args()
    torch.set_num_threads(arguments.threads)
    print(
        "| domain | FT solver | inverse | cosine to float32: median (min) | norm / float32's | next minibatch | time |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name, loop, lower in (("ECG", *ecg_problem(arguments)), ("PPI", *ppi_problem(arguments))):
        for row in rows(loop, lower, arguments.draws):
            print(f"| {name} | {' | '.join(row)} |", flush=True)


def ecg_problem(arguments: argparse.Namespace) -> tuple[MetaPretraining, Any]:
    """Return a loop after some PT steps, and its problem with an encoder in bfloat16."""
    setting = ecg.make_setting(
        arguments.width, argparse.Namespace(batch=arguments.batch, labelled=200, device="cpu", precision="float32")
    )
    warp = ecg_config.Warp(network_width=arguments.width, initial=arguments.warp)
    loop, policy = ecg_loop(setting, ecg_config.EcgMeta(warp=warp, batch_size=128))
    advance(loop, arguments.steps)
    encoder = resnet1d.Encoder(arguments.width, "bfloat16")
    return loop, dataclasses.replace(setting.problem(policy), encoder=encoder)


def ppi_problem(arguments: argparse.Namespace) -> tuple[MetaPretraining, Any]:
    """Return the same of protein graphs."""
    setting = ppi.make_setting(
        ppi.SHAPES[arguments.shape], argparse.Namespace(graphs=256, device="cpu", precision="float32")
    )
    loop = ppi_loop(setting, ppi_config.PpiMeta())
    advance(loop, arguments.steps)
    encoder = gin.GinEncoder(setting.job.network.layers, setting.job.network.width, "bfloat16")
    return loop, type(loop.problem)(encoder)  # type: ignore[call-arg]


def advance(loop: MetaPretraining, steps: int) -> None:
    for _ in range(steps):
        loop._pretrain_step()


def rows(loop: MetaPretraining, lower: Any, draws: int) -> Iterator[list[str]]:
    """Yield a row for a PT step, then one for each pair of solvers."""
    step = {name: pretrain_step(loop, problem) for name, problem in (("float32", loop.problem), ("bfloat16", lower))}
    times: dict[str, list[float]] = {name: [] for name in step}
    for turn in range(draws + 3):
        for name, run in step.items():
            seconds = timed(run)
            if turn:
                times[name].append(seconds)
    yield ["PT step, forward and backward", "", "", "", "", ratios(times["bfloat16"], times["float32"])]
    solvers: dict[str, Any] = {"K = 1": loop.settings.finetuning, "fitted": FittedHead()}
    if hasattr(loop.problem, "targets"):
        solvers["ridge"] = RidgeHead()
    for solver, finetuning in solvers.items():
        for inverse, (solve, curvature) in INVERSES.items():
            cosines, norms, neighbours, times = [], [], [], {"float32": [], "bfloat16": []}
            previous: torch.Tensor | None = None
            for _ in range(draws):
                batches = {
                    "pretrain_batch": loop.batches.pretrain(),
                    "train_batches": [loop.batches.train() for _ in range(finetuning.minibatches)],
                    "validation_batch": loop.batches.validation(),
                }
                found: dict[str, Any] = {}
                for name, problem in (("float32", loop.problem), ("bfloat16", lower)):

                    def run(problem: Any = problem, name: str = name) -> None:
                        found[name] = hypergradient(  # noqa: B023 - called at once
                            problem,
                            loop.pretrained,
                            loop.meta,
                            loop.head,
                            **batches,  # noqa: B023
                            inverse=solve,  # noqa: B023
                            finetuning=finetuning,  # noqa: B023
                            curvature=curvature,  # noqa: B023
                            keep_gradient=False,
                        )

                    times[name].append(timed(run))
                exact, other = (flat(found[name].gradient) for name in ("float32", "bfloat16"))
                cosines.append(cosine(exact, other))
                norms.append(float(other.norm() / exact.norm()))
                if previous is not None:
                    neighbours.append(cosine(exact, previous))
                previous = exact
            yield [
                solver,
                inverse,
                f"{statistics.median(cosines):.4f} ({min(cosines):.4f})",
                f"{statistics.median(norms):.3f} ({min(norms):.3f}-{max(norms):.3f})",
                f"{statistics.median(neighbours):.2f}" if neighbours else "",
                ratios(times["bfloat16"], times["float32"]),
            ]


def pretrain_step(loop: MetaPretraining, problem: Any) -> Callable[[], object]:
    """Return the PT loss and its gradient on one minibatch."""
    batch, meta = loop.batches.pretrain(), {name: value.detach() for name, value in loop.meta.items()}

    def run() -> None:
        pretrained = loop.pretrained.leaves()
        torch.autograd.grad(problem.pretrain_loss(pretrained, meta, batch), pretrained.vector())

    return run


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def ratios(top: list[float], bottom: list[float]) -> str:
    values = [a / b for a, b in zip(top, bottom, strict=True)]
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def flat(params: Params) -> torch.Tensor:
    return torch.cat([value.flatten() for value in params.values()]).double()


def cosine(left: torch.Tensor, right: torch.Tensor) -> float:
    return float(torch.dot(left, right) / (left.norm() * right.norm()))


if __name__ == "__main__":
    main()
