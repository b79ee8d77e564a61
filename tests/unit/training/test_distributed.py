"""Two processes learn, each from its share of the minibatches, what one process learns from the whole."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import metapt
from metapt import Checkpoint, MetaPretraining, MetaSettings, OptimizerSpec, Pretrainer, hypergrad
from metapt.errors import ConfigError
from metapt.hypergrad import SGD, Adam, FittedHead, Neumann, Params, Pretrained, Unroll
from metapt.training.interruption import Interrupted, noticed

from ..hypergrad.problems import WithoutRidge
from . import toys
from .kinds import refused, right, warned
from .problems import DTYPE, Batch, Classifier, Normed, OwnStreams, Regressed, classification, same

Made = Callable[[str, int, torch.Generator], Batch]
SGD_STEPS = OptimizerSpec("SGD", {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.01})
TOY = Classifier()  # one for all, so that its derivatives are compared once
SETTINGS = MetaSettings(
    3,
    2,
    inverse=Neumann(1, 0.1),
    finetuning=Unroll(2, Adam(0.1)),
    pretrain_optimizer=SGD_STEPS,
    head_steps_between_updates=1,
    accumulate=2,
    reuse_gradient=True,
)


def joint(name: str, count: int, generator: torch.Generator) -> Batch:
    """Return every second example of a minibatch in each of two processes, the whole in one alone."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    return Batch(*(each[rank::size] for each in classification(name, count, generator)))


def of_seed(seed: int) -> Batch:
    return joint("", 0, torch.Generator().manual_seed(seed))


def one(inverse: Any, solver: Any, toy: Any = TOY, curvature: Any = "hessian") -> list[Tensor]:
    """Return a hypergradient, the FT head and the PT gradient."""
    found = hypergrad.hypergradient(
        metapt.distributed(toy),
        *(toy.pretrained, toy.meta, toy.head),
        pretrain_batch=of_seed(0),
        train_batches=[of_seed(2 + number) for number in range(solver.minibatches)],
        validation_batch=of_seed(1),
        inverse=inverse,
        finetuning=solver,
        curvature=curvature,
        weight_decay=0.01,
    )
    assert found.pretrain_gradient is not None
    return [*found.gradient.values(), *found.head.values(), *found.pretrain_gradient.vector()]


def exact(count: int = 1) -> list[Tensor]:
    toy, batch = TOY, of_seed(0)
    batches = {"pretrain_batches": [batch] * 2, "train_batches": [batch] * count, "validation_batches": [batch]}
    given = metapt.distributed(toy), toy.pretrained, toy.meta, toy.head
    found = hypergrad.exact_hypergradient(*given, **batches, pretrain_optimizer=SGD(0.3), finetune_optimizer=SGD(0.3))
    return list(found.gradient.values())


def plain() -> list[Tensor]:
    toy = TOY
    trainer = Pretrainer(metapt.distributed(toy), OwnStreams(joint), toy.pretrained, SGD_STEPS)
    trainer.run(toy.meta, 3)
    fitted = metapt.finetune_head(trainer.problem, trainer.pretrained, toy.head, [trainer.batches.train()])
    return [trainer.loss, *trainer.pretrained.vector(), *fitted.values()]


def loop(made: Made = joint, toy: Any = TOY) -> MetaPretraining:
    shared = metapt.distributed(toy)
    steps = metapt.Autocast(shared, "cpu")  # leaves float64 as it is
    return MetaPretraining(shared, OwnStreams(made), toy.pretrained, toy.meta, toy.head, SETTINGS, steps)


def learned(run: MetaPretraining) -> list[Tensor]:
    return [*run.meta.values(), *run.pretrained.vector(), *run.pretrained.buffers.values(), *run.head.values()]


def meta() -> list[Tensor]:
    run = loop()
    run.run()
    return [run.loss, *learned(run)]


EQUAL: dict[str, Callable[[], list[Tensor]]] = {
    "Identity, steps of the head": lambda: one(hypergrad.Identity(), Unroll(2, SGD(0.3))),
    "Neumann, steps of the network": lambda: one(Neumann(2, 0.1), Unroll(2, Adam(0.1), network=True)),
    "CG, a fitted head": lambda: one(
        hypergrad.ConjugateGradient(max_steps=2, damping=1.0), FittedHead(1.0, max_steps=2)
    ),
    "Gauss-Newton, cross-fit": lambda: one(
        Neumann(1, 0.1), FittedHead(1.0, max_steps=2, cross_fit=True), WithoutRidge(), "gauss_newton"
    ),
    "through all steps": exact,
    "plain PT, and a head": plain,
    "meta-PT": meta,
}


def interrupted(path: Path) -> dict[str, Any]:
    """Return what a run leaves that has an FT minibatch with NaN and is ended by a signal, both in one process only."""
    rank, ending = dist.get_rank(), False

    def own(name: str, count: int, generator: torch.Generator) -> Batch:
        if count == 0:
            generator.manual_seed(100 * rank + len(name))  # each process draws numbers of its own
        batch = classification(name, count, generator)
        if ending and (rank, name, count) == (1, "validation", 3):
            os.kill(os.getpid(), signal.SIGTERM)
        return batch._replace(inputs=torch.nan * batch.inputs) if (rank, name, count) == (1, "validation", 1) else batch

    toy = Normed()
    whole, begun, goes_on = (loop(own, toy) for _ in range(3))
    whole.run()
    ending = True
    with noticed(), pytest.raises(Interrupted):
        begun.run(checkpoint=Checkpoint(path / f"{rank}", "run"))  # the files show who writes
    ending = False
    goes_on.run(checkpoint=Checkpoint(path / "0", "run"))
    ends = begun.iteration, goes_on.first_iteration
    return {"ends": ends, "skipped": goes_on.guard.skipped, "whole": learned(whole), "resumed": learned(goes_on)}


class Branched(Classifier):
    """Each process updates statistics of its own in its first PT minibatch, and multiplies by them, which are 1."""

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        pretrained.buffers["01"[dist.get_rank()]] += 1
        return super().pretrain_loss(pretrained, meta, batch) * pretrained.buffers["01"[dist.get_rank()]]


def branches(path: Path) -> list[float]:
    toy = Branched()
    start = toy.pretrained.leaves()
    start.buffers.update({name: torch.zeros((), dtype=DTYPE) for name in "01"})
    losses = [metapt.distributed(each).pretrain_loss(start, toy.meta, of_seed(0)) for each in (toy, TOY)]
    assert same(*(torch.autograd.grad(loss, start.vector()) for loss in losses))
    return [float(start.buffers[name]) for name in "01"]


def sparse(path: Path) -> None:
    """Learn with sparse buffers, and refuse those that differ."""
    toy, matrix = Classifier(), torch.eye(3, dtype=DTYPE)
    buffers = {"coo": matrix.to_sparse(), "csr": matrix.to_sparse_csr()}
    toy.pretrained = toy.pretrained._replace(buffers=buffers)
    loop(toy=toy).run()
    buffers["csr"] = (matrix + dist.get_rank() * matrix).to_sparse_csr()
    with pytest.raises(ConfigError, match=r"'buffers\.csr' differs between the processes 0 and 1"):
        loop(toy=toy).run()


@refused("initial values that differ between processes", "'encoder.bias' differs", "processes 0 and 1")
def unequal(path: Path) -> None:
    toy = Classifier()
    toy.pretrained.encoder["bias"] += dist.get_rank()
    loop(toy=toy).run()


@refused("more FT minibatches in one process", "process 1 has 2 FT training minibatches", "process 0 has 1", "as many")
def uneven(path: Path) -> None:
    toy, count, again = Classifier(), 1 + dist.get_rank(), cache(of_seed)
    with pytest.raises(ConfigError, match="process 1 has 3 different FT minibatches, and process 0 has 2"):
        loop(lambda name, number, _: again(number % count + len(name))).run()
    with pytest.raises(ConfigError, match="process 1 has 2 FT training minibatches"):
        exact(count)
    with pytest.raises(ConfigError, match="process 1 has 2 FT training minibatches"):
        metapt.finetune_head(metapt.distributed(toy), toy.pretrained, toy.head, map(of_seed, range(count)))
    one(hypergrad.Identity(), FittedHead(1.0, minibatches=count))


@refused("`RidgeHead` over several processes", "FittedHead")
def ridge(path: Path) -> None:
    one(hypergrad.Identity(), hypergrad.RidgeHead(), Regressed())


@warned("several processes without `metapt.distributed`", "2 processes", "each of them trains alone")
def unshared(path: Path) -> None:
    toy = toys.problem()
    MetaPretraining(*toys.arguments(metapt.distributed(toy)), metapt.distributed(toy))
    with pytest.raises(ConfigError, match="step_problem is shared"):
        MetaPretraining(*toys.arguments(toy), metapt.distributed(toy))


def work(rank: int, path: Path) -> None:
    """Do all of it in one of two processes; one that waits for the other in vain ends after a minute."""
    torch.set_num_threads(1)
    meeting = path.with_suffix(".meeting")  # the last process does not always remove it
    dist.init_process_group("gloo", f"file://{meeting}", timedelta(minutes=1), rank=rank, world_size=2)
    found: dict[str, Any] = {name: function() for name, function in EQUAL.items()}
    for function in (interrupted, branches, sparse, unequal, uneven, ridge, unshared):
        found[function.__name__] = function(path)
    torch.save(found, path / f"found {rank}")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return what two processes have found, and the names of the files that they have left."""
    path, root = tmp_path_factory.mktemp("distributed"), str(Path(__file__).parents[3])
    with pytest.MonkeyPatch.context() as patch:  # by which they find this module
        patch.syspath_prepend(root)
        torch.multiprocessing.spawn(work, (path,), nprocs=2)  # type: ignore[no-untyped-call]
    first, second = (torch.load(path / f"found {rank}") for rank in range(2))
    return first, second, sorted(each.name for each in path.iterdir())


as_one_process = right("several processes with `metapt.distributed`", 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUAL)
def test_two_processes_learn_what_one_learns_from_the_joint_minibatch(both: Any, name: str) -> None:
    assert same(both[0][name], both[1][name])
    for pair in zip(both[0][name], EQUAL[name](), strict=True):
        as_one_process(lambda pair=pair: pair)()


@pytest.mark.slow
def test_a_run_that_one_process_disturbs_goes_on_to_the_bit_in_both(both: Any) -> None:
    first, second, files = both[0]["interrupted"], both[1]["interrupted"], both[2]
    assert same(first, second)
    assert same(first["whole"], first["resumed"])
    assert first["ends"] == (2, 2)
    assert first["skipped"] == {"not finite": 1, "exploding": 0}
    assert files == ["0", "0.previous", "found 0", "found 1"]  # the first process alone has written


@pytest.mark.slow
def test_statistics_that_one_process_updates_are_means_over_processes(both: Any) -> None:
    assert both[0]["branches"] == both[1]["branches"] == [0.5, 0.5]


def test_one_process_alone_has_its_problem_as_it_is() -> None:
    toy = Classifier()
    assert metapt.distributed(toy) is toy
