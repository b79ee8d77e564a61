"""Modules and losses of modules."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

from metapt.hypergrad import SGD, FittedHead, Params, Pretrained, Unroll

from . import toys
from .kinds import refused, right
from .toys import META, by_hand, draw, gradient, linear, problem

KEEP = partial(checkpoint, use_reentrant=False)
CHECKPOINTS = "activation checkpointing (`torch.utils.checkpoint`, `use_reentrant=False`)"


class Recomputed(nn.Module):
    """A body that a way of checkpointing calls; without one it is the body itself."""

    def __init__(self, inner: nn.Module, way: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.inner, self.way = inner, way

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x) if self.way is None else self.way(self.inner, x)
        return result


def nested(module: nn.Module, x: Tensor) -> Tensor:
    return KEEP(lambda x: KEEP(module, x), x)


def by_weights(module: nn.Sequential, x: Tensor) -> Tensor:
    return module[1:](KEEP(lambda x: nn.functional.linear(x, module[0].weight, module[0].bias), x))


WAYS = {
    "module": KEEP,
    "sequential": lambda module, x: checkpoint_sequential(module, 2, x, use_reentrant=False),
    "nested": nested,
    "weights": by_weights,
    "selective": partial(KEEP, context_fn=partial(create_selective_checkpoint_contexts, [torch.ops.aten.tanh.default])),
}


def dropped() -> nn.Sequential:
    """A body with dropout and with statistics."""
    return nn.Sequential(linear(10), nn.BatchNorm1d(3, dtype=toys.DTYPE), nn.Dropout(0.5), nn.Tanh(), linear(12))


@pytest.mark.parametrize("way", WAYS)
@right(CHECKPOINTS)
def test_pretraining_with_checkpoints_is_that_without(way: str) -> Any:
    toy = problem(Recomputed(toys.body(), WAYS[way]))
    return toys.pretrained(toy).vector(), by_hand(toys.body(), linear(20, 3, 2))


@right(CHECKPOINTS)
def test_statistics_are_updated_once_a_step_with_checkpoints() -> Any:
    ours, plain = (toys.pretrained(problem(Recomputed(dropped(), way))) for way in (KEEP, None))
    assert ours.buffers["inner.1.num_batches_tracked"] == 20
    return [*ours.vector(), *ours.buffers.values()], [*plain.vector(), *plain.buffers.values()]


@pytest.mark.parametrize("way", [way for way in WAYS if way != "selective"])  # of it torch allows one backward pass
@pytest.mark.parametrize("solver", [Unroll(1, SGD(0.1)), Unroll(1, SGD(0.1), network=True), FittedHead(0.1)])
@right(CHECKPOINTS)
def test_hypergradients_with_checkpoints_are_those_without(way: str, solver: Any) -> Any:
    return tuple(gradient(problem(Recomputed(toys.body(), each)), finetuning=solver) for each in (WAYS[way], None))


@right(CHECKPOINTS)
def test_a_recomputation_has_the_mode_of_its_call() -> Any:
    ours, plain = problem(Recomputed(dropped(), KEEP)), problem(Recomputed(dropped()))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = toys.exact(ours)
        torch.manual_seed(0)
        return first, toys.exact(plain)


@right(CHECKPOINTS)
def test_a_loss_may_make_the_checkpoint() -> Any:
    def loss(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
        return KEEP(lambda x: toys.pretrain_loss(encoder, head, meta, (x, batch[1])), batch[0])

    return gradient(problem(pretrain_loss=loss)), gradient(problem())


@refused("activation checkpointing with `use_reentrant=True`", ("use_reentrant=False",), "give `use_reentrant=False`")
def test_a_reentrant_checkpoint_is_refused() -> None:
    toys.pretrained(problem(Recomputed(toys.body(), partial(checkpoint, use_reentrant=True))))


LISTED = "parameters taken outside of the loss, as by `list(encoder.parameters())`"
TAKE = "take them from the loss's argument"


@pytest.mark.parametrize("part", ["encoder", "head", "finetune_head"])
@pytest.mark.parametrize("function", ["pretrain_loss", "encode", "finetune_loss"])
@refused(LISTED, ("itself", "argument"), TAKE)
def test_a_parameter_that_was_taken_outside_is_refused(part: str, function: str) -> None:
    modules = {"encoder": toys.body(), "head": linear(20, 3, 2), "finetune_head": linear(22, 3, 1)}
    outside = next(modules[part].parameters())
    whole = {
        "pretrain_loss": toys.pretrain_loss,
        "encode": lambda encoder, batch: encoder(batch[0]),
        "finetune_loss": toys.finetune_loss,
    }[function]
    gradient(problem(**modules, **{function: lambda *given: whole(*given) + (outside**2).sum()}))


@right("the module itself in a closure, in place of the argument")
def test_a_closure_over_the_module_gets_the_tensors_of_the_call() -> Any:
    encoder = toys.body()

    def loss(_: Any, head: Any, meta: Params, batch: Any) -> Tensor:
        return toys.pretrain_loss(encoder, head, meta, batch) + sum(p.square().sum() for p in encoder.parameters())

    def plain(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
        return toys.pretrain_loss(encoder, head, meta, batch) + sum(p.square().sum() for p in encoder.parameters())

    toy = problem(encoder, pretrain_loss=loss)
    return toys.pretrained(toy).vector(), by_hand(encoder, linear(20, 3, 2), loss=plain)


HOOKS = "gradient hooks of parameters (`register_hook`, `register_post_accumulate_grad_hook`)"
UNHOOK = "a mask belongs into the module"


@pytest.mark.parametrize("part", ["encoder", "head", "finetune_head"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
@refused(HOOKS, ("hook",), UNHOOK)
def test_a_gradient_hook_is_refused(part: str, when: str, kind: str) -> None:
    modules = {"encoder": toys.body(), "head": linear(20, 3, 2), "finetune_head": linear(22, 3, 1)}
    parameter = next(modules[part].parameters())
    if when == "before":
        getattr(parameter, kind)(lambda _: None)
    toy = problem(**modules)
    getattr(parameter, kind)(lambda _: None)
    gradient(toy)


@pytest.mark.parametrize("what", ["meta", "start"])
@refused(HOOKS, ("hook",), UNHOOK)
def test_a_gradient_hook_of_a_given_tensor_is_refused(what: str) -> None:
    toy, meta = problem(), {"w": torch.zeros(2, dtype=toys.DTYPE, requires_grad=True)}
    start = toy.pretrained.leaves()
    (meta["w"] if what == "meta" else start.encoder["0.weight"]).register_hook(lambda slope: slope.clamp(-1, 1))
    gradient(toy, meta=meta, pretrained=start)


@right("hooks of modules (`register_forward_hook`, `register_full_backward_hook`)")
def test_hooks_of_modules_are_called() -> Any:
    encoder = toys.body()
    encoder[2].register_forward_hook(lambda module, inputs, output: 2 * output)
    encoder[2].register_full_backward_hook(lambda module, slopes, _: (slopes[0].clamp(-0.01, 0.01),))
    return toys.pretrained(problem(encoder)).vector(), by_hand(encoder, linear(20, 3, 2))


class DistributedDataParallel(nn.Module):
    """Has the name of torch's, which needs a group of processes."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


WRAPPED = "`DistributedDataParallel`, `DataParallel`, `FullyShardedDataParallel`, `fully_shard`"


@pytest.mark.parametrize("wrapper", [DistributedDataParallel, nn.DataParallel])
@pytest.mark.parametrize("inside", [False, True])
@refused(WRAPPED, ("wrapped in", "process"), "the module itself, in one process")
def test_a_wrapper_for_several_processes_is_refused(wrapper: Any, inside: bool) -> None:
    wrapped = wrapper(toys.body())
    problem(nn.Sequential(linear(30), wrapped) if inside else wrapped)


NAMES = "a `Pretrained` or an FT head with missing, further or misshapen tensors"
FROM = "start from `problem.pretrained` and `problem.head`"


def without(params: Params, name: str) -> Params:
    return {key: value for key, value in params.items() if key != name}


STARTS: dict[str, tuple[str, Callable[[Pretrained], Pretrained]]] = {
    "no bias": ("2.bias", lambda p: p._replace(encoder=without(p.encoder, "2.bias"))),
    "no bias of the head": ("bias", lambda p: p._replace(head=without(p.head, "bias"))),
    "one too many": ("extra", lambda p: p._replace(encoder={**p.encoder, "extra": draw(0, 2)})),
    "one row": ("shape", lambda p: p._replace(encoder={**p.encoder, "0.weight": draw(0, 1, 3)})),
    "one number": ("shape", lambda p: p._replace(encoder={**p.encoder, "0.bias": draw(0, 1)})),
    "no statistics": ("running_mean", lambda p: p._replace(buffers=without(p.buffers, "1.running_mean"))),
    "no buffers": ("1.num_batches_tracked", lambda p: p._replace(buffers={})),
}


@pytest.mark.parametrize("change", STARTS)
@pytest.mark.parametrize("use", ["PT", "hypergradient"])
def test_other_names_or_shapes_of_the_start_are_refused(change: str, use: str) -> None:
    encoder = nn.Sequential(linear(10), nn.BatchNorm1d(3, dtype=toys.DTYPE), linear(12))
    word, alter = STARTS[change]
    toy = problem(encoder)

    @refused(NAMES, (word,), FROM)
    def run() -> None:
        if use == "PT":
            toys.Pretrainer(toy, toys.loaders(), alter(toy.pretrained), toys.OptimizerSpec()).run(META, 1)
        else:
            gradient(toy, pretrained=alter(toy.pretrained))

    run()


@refused(NAMES, ("FT head", "bias"), FROM)
def test_another_name_of_the_head_is_refused() -> None:
    toy = problem()
    gradient(toy, head=without(toy.head, "bias"))


FROZEN = "`requires_grad_` after the problem was made"


@pytest.mark.parametrize("frozen", [False, True])
@refused(FROZEN, ("requires_grad", "make a ModuleProblem"), "freeze first")
def test_parameters_that_are_frozen_or_unfrozen_later_are_refused(frozen: bool) -> None:
    encoder = toys.body()
    encoder[0].weight.requires_grad_(not frozen)
    toy = problem(encoder)
    encoder[0].weight.requires_grad_(frozen)
    toys.pretrained(toy, 1)


@right("`load_into`, then a control from `problem.pretrained`")
def test_what_is_loaded_into_the_modules_does_not_change_the_start() -> Any:
    toy = problem()
    before = toy.pretrained.vector(), list(toy.head.values())
    toys.pretrained(toy).load_into(*toy.modules[:2])
    with torch.no_grad():
        next(toy.modules[2].parameters()).zero_()
    toy.pretrained.encoder["0.weight"].zero_()
    return (toy.pretrained.vector(), list(toy.head.values())), before


@right("parametrisations of `torch.nn.utils.parametrize`")
def test_parametrisations_are_trained() -> Any:
    encoder = nn.Sequential(orthogonal(linear(10), orthogonal_map="cayley"), nn.Tanh())
    return toys.pretrained(problem(encoder)).vector(), by_hand(encoder, linear(20, 3, 2))


@refused("`parametrize.cached()` around the training", ("parametrize.cached",), "leave it out")
def test_cached_parametrisations_are_refused() -> None:
    with parametrize.cached():
        toys.pretrained(problem(nn.Sequential(orthogonal(linear(10), orthogonal_map="cayley"))), 1)


@right("the modules after PT: they have their own tensors, as before")
def test_the_modules_stay_as_they_are() -> Any:
    encoder = toys.body()
    before = copy.deepcopy(encoder.state_dict())
    toy = problem(encoder)
    toys.pretrained(toy)
    gradient(toy)
    return encoder.state_dict(), before
