"""Modules and losses of modules, and what they change in place."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

import metapt
from metapt import Autocast, MetaPretraining, OptimizerSpec
from metapt.hypergrad import SGD, FittedHead, Params, Pretrained, Unroll
from metapt.hypergrad.checks import check_problem
from metapt.hypergrad.trial import Given
from metapt.training.module_problem import encode_first
from metapt.training.seeds import Seeded

from . import toys
from .kinds import ROWS, TESTED, refused, right, warned
from .problems import DTYPE, draw
from .toys import META, X, Y, by_hand, gradient, linear, problem

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
HEAD = Unroll(1, SGD(0.1))


def norm(width: int = 3) -> nn.BatchNorm1d:
    return nn.BatchNorm1d(width, dtype=DTYPE)


def dropped() -> nn.Sequential:
    """A body with dropout and with statistics."""
    return nn.Sequential(linear(10), norm(), nn.Dropout(0.5), nn.Tanh(), linear(12))


def of_pt(way: str) -> Any:
    return toys.pretrained(problem(Recomputed(toys.body(), WAYS[way]))), by_hand(toys.body())


def of_statistics() -> Any:
    """They are updated once a step."""
    ours, plain = (toys.pretrained(problem(Recomputed(dropped(), way))) for way in (KEEP, None))
    assert ours.buffers["inner.1.num_batches_tracked"] == 20
    return ours, plain


def checkpointed(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
    return KEEP(lambda x: toys.pretrain_loss(encoder, head, meta, (x, batch[1])), batch[0])


def of_way(way: str, **how: Any) -> Any:
    return [gradient(problem(Recomputed(toys.body(), each)), **how) for each in (WAYS[way], None)]


class Centred(nn.Module):
    """A layer with a running mean, a buffer that each call in training mode assigns anew, as many modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear(10)
        self.register_buffer("mean", torch.zeros(3, dtype=DTYPE))

    def forward(self, x: Tensor) -> Tensor:
        before = self.mean
        if self.training:
            self.mean = 0.5 * self.mean + x.mean(0)
        return torch.tanh(self.layer(x) * (1 + before) - self.mean)


def two_views(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
    views = (head(encoder(sign * batch[0] + 1)) for sign in (1, -1))
    return sum(((view - batch[1]) ** 2 * meta["w"].exp()).mean() for view in views)  # type: ignore[return-value]


def of_assigned() -> Any:
    return [gradient(problem(Recomputed(Centred(), way), pretrain_loss=two_views)) for way in (KEEP, None)]


def of_mode() -> Any:
    found = []
    for way in (KEEP, None):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            found.append(toys.exact(problem(Recomputed(dropped(), way))))
    return found


RECOMPUTED: dict[str, Callable[[], Any]] = {
    **{f"PT, {way}": partial(of_pt, way) for way in WAYS},
    # of the selective way torch allows one backward pass
    **{way: partial(of_way, way, finetuning=HEAD) for way in WAYS if way != "selective"},
    "network": partial(of_way, "module", finetuning=Unroll(1, SGD(0.1), network=True)),
    "fitted": partial(of_way, "module", finetuning=FittedHead(0.1)),
    "statistics": of_statistics,
    "a recomputation has the mode of its call": of_mode,
    "buffers that are assigned anew": of_assigned,
    "by the loss": lambda: [gradient(problem(pretrain_loss=checkpointed)), gradient(problem())],
}


@pytest.mark.parametrize("what", RECOMPUTED)
@right(CHECKPOINTS)
def test_numbers_with_checkpoints_are_those_without(what: str) -> Any:
    return RECOMPUTED[what]()


@refused("activation checkpointing with `use_reentrant=True`", "use_reentrant=False")
def test_a_reentrant_checkpoint_is_refused() -> None:
    toys.pretrained(problem(Recomputed(toys.body(), partial(checkpoint, use_reentrant=True))))


@pytest.mark.parametrize("part", ["encoder", "head", "finetune_head"])
@pytest.mark.parametrize("function", toys.FUNCTIONS)
@refused("a parameter of a module taken outside of the loss", "itself", "argument")
def test_a_parameter_that_was_taken_outside_is_refused(part: str, function: str) -> None:
    modules, whole = toys.modules(), toys.FUNCTIONS[function]
    outside = next(modules[part].parameters())
    gradient(problem(**modules, **{function: lambda *given: whole(*given) + (outside**2).sum()}))


@right("the module itself, used inside the loss by a closure in place of the argument")
def test_a_closure_over_the_module_gets_the_tensors_of_the_call() -> Any:
    encoder = toys.body()

    def plain(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
        return toys.pretrain_loss(encoder, head, meta, batch) + sum(p.square().sum() for p in encoder.parameters())

    toy = copy.deepcopy(problem(encoder, pretrain_loss=lambda _, *given: plain(encoder, *given)))
    return toys.pretrained(toy), by_hand(encoder, loss=plain)


HOOKS = "gradient hooks of parameters"


@pytest.mark.parametrize("part", ["encoder", "head", "finetune_head"])
@pytest.mark.parametrize(
    ("kind", "before"),
    [("register_hook", True), ("register_hook", False), ("register_post_accumulate_grad_hook", False)],
)
@refused(HOOKS, "hook")
def test_a_gradient_hook_is_refused(part: str, kind: str, before: bool) -> None:
    modules = toys.modules()
    parameter = next(modules[part].parameters())
    if before:
        getattr(parameter, kind)(lambda _: None)
    toy = problem(**modules)
    getattr(parameter, kind)(lambda _: None)
    gradient(toy)


@pytest.mark.parametrize("what", ["meta", "start"])
@refused(HOOKS, "hook")
def test_a_gradient_hook_of_a_given_tensor_is_refused(what: str) -> None:
    toy, meta = problem(), {"w": torch.zeros(2, dtype=DTYPE, requires_grad=True)}
    start = toy.pretrained.leaves()
    (meta["w"] if what == "meta" else start.encoder["0.weight"]).register_hook(lambda slope: slope.clamp(-1, 1))
    gradient(toy, meta=meta, pretrained=start)


def distributed(module: nn.Module) -> nn.Module:
    """Return a `DistributedDataParallel` without the processes that it needs."""
    wrapper = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(wrapper)
    wrapper.module = module
    return wrapper


@pytest.mark.parametrize(("wrapper", "inside"), [(distributed, True), (nn.DataParallel, False)])
@refused("`DistributedDataParallel`, `DataParallel`", "wrapped in", "process", "metapt.distributed(problem)")
def test_a_wrapper_for_several_processes_is_refused(wrapper: Any, inside: bool) -> None:
    wrapped = wrapper(toys.body())
    problem(nn.Sequential(linear(30), wrapped) if inside else wrapped)


def without(params: Params, name: str) -> Params:
    return {key: value for key, value in params.items() if key != name}


STARTS: list[tuple[str, str, Callable[[Params], Params]]] = [
    ("2.bias", "encoder", lambda p: without(p, "2.bias")),
    ("bias", "head", lambda p: without(p, "bias")),
    ("extra", "encoder", lambda p: {**p, "extra": draw(0, 2)}),
    ("shape", "encoder", lambda p: {**p, "0.weight": draw(0, 1, 3)}),
    ("shape", "encoder", lambda p: {**p, "0.bias": draw(0, 1)}),
    ("running_mean", "buffers", lambda p: without(p, "1.running_mean")),
    ("1.num_batches_tracked", "buffers", lambda p: {}),
]
NAMES = "a `Pretrained` or an FT head with a missing, a further or a misshapen tensor"


@pytest.mark.parametrize(("word", "part", "alter"), STARTS)
def test_other_names_or_shapes_of_the_start_are_refused(
    word: str, part: str, alter: Callable[[Params], Params]
) -> None:
    toy = problem(nn.Sequential(linear(10), norm(), linear(12)))
    start = toy.pretrained._replace(**{part: alter(getattr(toy.pretrained, part))})
    refused(NAMES, word)(metapt.Pretrainer(toy, toys.loaders(), start, metapt.OptimizerSpec()).run)(META, 1)
    refused(NAMES, word)(gradient)(toy, pretrained=start)


@refused(NAMES, "FT head", "bias")
def test_another_name_of_the_head_is_refused() -> None:
    toy = problem()
    gradient(toy, head=without(toy.head, "bias"))


@pytest.mark.parametrize("frozen", [False, True])
@refused("parameters frozen or unfrozen", "requires_grad", "make a ModuleProblem")
def test_parameters_that_are_frozen_or_unfrozen_later_are_refused(frozen: bool) -> None:
    encoder = toys.body()
    encoder[0].weight.requires_grad_(not frozen)
    toy = problem(encoder)
    encoder[0].weight.requires_grad_(frozen)
    toys.pretrained(toy, 1)


@pytest.mark.parametrize("schedule", [None, lambda optimizer: CosineAnnealingLR(optimizer, 100)])
@refused("parameters frozen by an optimiser group", "encoder.0.weight", "requires_grad_(False)")
def test_parameters_that_a_group_freezes_are_refused(schedule: Any) -> None:
    groups = {"encoder.0.weight": {"lr": 1e-9}}
    toys.loop(problem(), 1, pretrain_optimizer=OptimizerSpec("SGD", {"lr": 0.1}, groups, schedule))


@right("weights loaded into the modules (`load_into`)")
def test_what_is_loaded_into_the_modules_does_not_change_the_start() -> Any:
    toy = problem()
    before = toy.pretrained.vector(), list(toy.head.values())
    toys.pretrained(toy).load_into(*toy.modules[:2])
    with torch.no_grad():
        next(toy.modules[2].parameters()).zero_()
    toy.pretrained.encoder["0.weight"].zero_()
    return (toy.pretrained.vector(), list(toy.head.values())), before


def parametrised() -> nn.Module:
    return nn.Sequential(orthogonal(linear(10), orthogonal_map="cayley"), nn.Tanh())


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, max_norm=1.0, dtype=DTYPE)
        self.table.weight.data.copy_(4 * draw(50, 5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.table((x[:, 0] > 0).long()))


@pytest.mark.parametrize("use", [toys.gradient, toys.exact, lambda toy: toys.loop(toy).run()])
@refused("`Embedding(max_norm=...)`, in meta-PT and hypergradients", "table.weight", "in place", "max_norm")
def test_an_embedding_that_normalises_its_table_is_refused(use: Callable[..., object]) -> None:
    toy = problem(Words())
    before = toy.pretrained.encoder["table.weight"]
    try:
        use(toy)
    finally:
        assert torch.equal(before, toy.pretrained.encoder["table.weight"])


def hooked() -> nn.Module:
    encoder = toys.body()
    encoder[2].register_forward_hook(lambda module, inputs, output: 2 * output)
    encoder[2].register_full_backward_hook(lambda module, slopes, _: (slopes[0].clamp(-0.01, 0.01),))
    return encoder


TRAINED: dict[str, Callable[[], nn.Module]] = {
    "parametrisations of `torch.nn.utils.parametrize`": parametrised,
    "`Embedding(max_norm=...)`, in plain PT": Words,
    "a buffer that a module assigns anew, as in `self.mean = 0.9 * self.mean + 0.1 * x.mean(0)`": Centred,
    "hooks of modules (`register_forward_hook`, `register_full_backward_hook`)": hooked,
}


@pytest.mark.parametrize(("compares", "make"), [(right(row), make) for row, make in TRAINED.items()], ids=range(4))
def test_plain_pretraining_is_that_of_a_loop_by_hand(compares: Callable[..., Any], make: Callable[[], Any]) -> None:
    encoder = make()
    compares(lambda: (toys.pretrained(problem(encoder)), by_hand(encoder)))()


def test_a_buffer_that_changes_its_shape_is_refused() -> None:
    encoder = Centred()
    encoder.mean = torch.zeros(1, dtype=DTYPE)
    with pytest.raises(ValueError, match=r"the buffer 'encoder.mean' the shape \[3\], and it had \[1\]; legal"):
        toys.pretrained(problem(encoder))


@refused("`parametrize.cached()` around the training", "parametrize.cached")
def test_cached_parametrisations_are_refused() -> None:
    with parametrize.cached():
        toys.pretrained(problem(parametrised()), 1)


@pytest.mark.parametrize(
    "run", [toys.pretrained, gradient, lambda toy: metapt.finetune_head(toy, toy.pretrained, toy.head, [(X, Y)])]
)
@refused("training, FT and hypergradients inside", "torch.autocast", "metapt.Autocast", error=RuntimeError)
def test_casts_of_old_weights_are_refused(run: Callable[[Any], Any]) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        run(problem())


@right("a PT loss that calls `backward` itself, as for adversarial examples")
def test_gradients_of_the_loss_itself_are_no_part_of_a_step() -> Any:
    def attacked(calls: bool, encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
        x = batch[0].clone().requires_grad_()
        loss = toys.pretrain_loss(encoder, head, meta, (x, batch[1]))
        slope = (loss.backward(), x.grad)[1] if calls else torch.autograd.grad(loss, x)[0]
        return toys.pretrain_loss(encoder, head, meta, (batch[0] + 0.1 * slope.sign(), batch[1]))

    return tuple(toys.pretrained(problem(pretrain_loss=partial(attacked, calls))) for calls in (True, False))


class Shift(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.begun: bool | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.begun = True
        return x


@warned("a number, a flag or a buffer without a value that `pretrain_loss` sets", "encoder.0.begun", "buffer")
def test_a_module_that_remembers_is_told() -> None:
    toys.pretrained(problem(nn.Sequential(Shift(), toys.body())), 1)


@pytest.mark.parametrize(("state", "key"), [({"step": 0}, "step"), ([1, 0], 1)])
@warned("a number, a flag or a buffer without a value that `pretrain_loss` sets", "changes state[", "more often")
def test_a_number_around_the_loss_is_told(state: Any, key: Any) -> None:
    def loss(*given: Any) -> Tensor:
        state[key] += 1
        return toys.pretrain_loss(*given)

    toys.pretrained(problem(pretrain_loss=loss), 1)


@warned("a part of encoder or PT head in evaluation mode", "'1' of the encoder", "eval()", "pretrain_loss")
def test_a_part_in_evaluation_mode_is_told() -> None:
    encoder = nn.Sequential(linear(10), norm())
    encoder[1].eval()
    problem(encoder)
    assert [part.training for part in encoder.modules()] == [True, True, False]


@right("a part of encoder or PT head whose `eval()` is called at the start of `pretrain_loss`")
def test_a_part_may_stay_in_evaluation_mode() -> Any:
    def loss(encoder: Any, *given: Any) -> Tensor:
        encoder[1].eval()
        return toys.pretrain_loss(encoder, *given)

    encoder = nn.Sequential(linear(10), norm())
    return toys.pretrained(problem(encoder, pretrain_loss=loss)), by_hand(encoder, loss=loss)


def follow(teacher: Any, encoder: Any, *given: Any) -> Tensor:
    for own, value in zip(teacher.parameters(), encoder.parameters(), strict=True):
        own.data.lerp_(value.detach(), 0.1)
    return toys.pretrain_loss(encoder, *given) + (encoder(X) - teacher(X)).square().mean()


class Student:
    def __init__(self, teacher: nn.Module) -> None:
        self.teacher = teacher

    def loss(self, *given: Any) -> Tensor:
        return follow(self.teacher, *given)


@pytest.mark.parametrize("way", ["method", "closure"])
@warned("a module or a tensor around `pretrain_loss` that it changes", "teacher.0.", "buffer", "more often")
def test_a_teacher_outside_of_the_modules_is_told(way: str) -> None:
    teacher = toys.body().requires_grad_(False)
    loss = Student(teacher).loss if way == "method" else lambda *given: follow(teacher, *given)
    toys.pretrained(problem(toys.body(30), pretrain_loss=loss), 1)


def twice() -> nn.Sequential:
    """An encoder with modules at two places."""
    parts = nn.Sequential(linear(10), norm(), nn.PReLU(dtype=DTYPE))
    return nn.Sequential(*parts, parts)


@pytest.mark.parametrize("encoder", [nn.Sequential(linear(10), norm()), twice()])
@right("the modules after PT and hypergradients: they have their own tensors, as before")
def test_the_modules_stay_as_they_are(encoder: nn.Module) -> Any:
    before, own = copy.deepcopy(encoder.state_dict()), [*encoder.parameters(), *encoder.buffers()]
    toy = problem(encoder)
    toys.pretrained(toy)
    gradient(toy)
    assert all(now is then for now, then in zip((*encoder.parameters(), *encoder.buffers()), own, strict=True))
    return encoder.state_dict(), before


# What the modules compute, and what is loaded into them


@pytest.mark.parametrize("encoder", [nn.Sequential(linear(10), norm(), nn.Tanh()), twice()])
def test_pretraining_loads_into_the_modules_what_torch_would_have_trained_there(encoder: nn.Module) -> None:
    head = nn.Sequential(linear(14), norm(), linear(20, 3, 2))
    toy, plain = problem(encoder, head=head), by_hand(encoder, head, 5)
    trained = toys.pretrained(toy, 5)
    trained.load_into(encoder, head)
    for ours, theirs in zip(Pretrained.from_modules(encoder, head), plain, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert int(head[1].num_batches_tracked) == 5
    features = toy.encode({**trained.encoder, **trained.buffers}, (X, Y))
    torch.testing.assert_close(features, encoder.eval()(X))
    assert torch.equal(toy.head_loss(toy.head, features, (X, Y)), toys.finetune_loss(toy.modules[2], features, (X, Y)))


def test_parts_are_copies_and_fixed_parameters_are_buffers() -> None:
    encoder, head = nn.Sequential(linear(10), norm()), nn.Sequential(linear(20), norm())
    encoder[0].bias.requires_grad_(False)
    start = Pretrained.from_modules(encoder, head)
    assert "0.bias" not in start.encoder
    assert {"0.bias", "1.running_mean", "head.1.running_mean"} < start.buffers.keys()
    with torch.no_grad():
        encoder[0].weight.zero_()
    assert start.encoder["0.weight"].any()
    start.load_into(encoder, head)
    assert torch.equal(encoder[0].weight, start.encoder["0.weight"])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False, dtype=DTYPE), nn.Linear(3, 3, bias=False, dtype=DTYPE)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def test_a_shared_weight_is_one_parameter_of_the_encoder_with_the_gradient_of_all_its_uses() -> None:
    encoder, head = Tied(), linear(20)
    head.weight = encoder.first.weight
    toy = problem(encoder, head=head, pretrain_loss=lambda e, h, meta, x: h(e(x)).square().mean())
    start = toy.pretrained
    assert list(start.encoder) == ["first.weight"]
    assert list(start.head) == ["bias"]
    leaves = start.leaves()
    toy.pretrain_loss(leaves, META, X).backward()
    head(encoder(X)).square().mean().backward()
    torch.testing.assert_close(leaves.encoder["first.weight"].grad, encoder.first.weight.grad)
    Pretrained({"first.weight": torch.ones(3, 3, dtype=DTYPE)}, start.head).load_into(encoder, head)
    assert all((part.weight == 1).all() for part in (encoder.first, encoder.second, head))


def test_random_draws_of_the_loss_belong_to_the_minibatch() -> None:
    toy = problem(nn.Sequential(linear(10), nn.Dropout(0.5)))
    state = torch.get_rng_state()
    values = [float(toy.pretrain_loss(toy.pretrained, META, Seeded((X, Y), seed))) for seed in (1, 1, 2)]
    assert values[0] == values[1] != values[2]
    assert torch.equal(torch.get_rng_state(), state)
    arguments = toy.pretrained, META, toy.head
    check_problem(toy, Given(*arguments, Seeded((X, Y), 1), (X, Y)))
    with pytest.raises(ValueError, match="two different numbers in two equal calls"):
        check_problem(toy, Given(*arguments, (X, Y), (X, Y)))


def test_autocast_rounds_plain_steps_and_leaves_hypergradients_alone() -> None:
    toy = problem(toys.body().float(), head=linear(20, 3, 2).float(), finetune_head=linear(22, 3, 1).float())
    mixed, data, meta = Autocast(toy, "cpu"), (X.float(), Y.float()), {"w": torch.zeros(2)}
    losses = [each.pretrain_loss(toy.pretrained, meta, data) for each in (toy, mixed)]
    assert losses[1].dtype == torch.float32
    assert 0 < abs(float(losses[0] - losses[1])) < 0.02 * float(losses[0])
    ends = []
    for steps in (toy, mixed):
        loop = MetaPretraining(*toys.arguments(toy, data=data, meta=meta), step_problem=steps)
        loop.run()
        ends.append(loop.pretrained.encoder["0.weight"])
    assert not torch.equal(*ends)
    start = {"pretrained": toy.pretrained, "head": toy.head, "meta": meta}
    exact, rounded = (gradient(each, data, **start) for each in (toy, mixed))
    assert 0 < float((exact - rounded).norm()) < 0.1 * float(exact.norm())


SHARED, NAMED, HELD = linear(20, 3, 1), nn.Sequential(linear(10)), nn.Sequential(linear(10))
NAMED.head = norm()
HELD.add_module("head", linear(12))
VIEW = linear(20, 3, 1)
VIEW.weight.data = SHARED.weight.data
BODY, HEAD = toys.body(), linear(20, 3, 1)
for each in (BODY, HEAD):
    each.register_buffer("mean", META["w"])


UNSUPPORTED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"head": nn.Sequential(SHARED), "finetune_head": SHARED}, ValueError, "the FT head shares 'weight' with the PT"),
    ({"encoder": BODY, "finetune_head": HEAD}, ValueError, "the FT head shares 'mean' with the encoder"),
    ({"encoder": nn.Sequential(SHARED), "head": SHARED}, ValueError, "they have one in common"),
    ({"encoder": nn.LazyLinear(4)}, ValueError, "'weight' of the encoder has no values yet"),
    ({"finetune_head": nn.Sequential(norm())}, ValueError, "keeps running statistics"),
    ({"encoder": {"a": 1}}, TypeError, "the encoder is a dict; legal: a torch.nn.Module"),
    ({"encoder": nn.Sequential(SHARED), "head": VIEW}, ValueError, "'weight' lies in the memory of the parameter '0"),
    ({"encoder": NAMED, "head": norm()}, ValueError, "both give the name 'head.running_mean' to a tensor"),
    ({"encoder": HELD, "head": linear(20).requires_grad_(False)}, ValueError, "both give the name 'head.weight'"),
]


@pytest.mark.parametrize(("changes", "error", "sentence"), UNSUPPORTED)
def test_what_is_not_supported_is_said(changes: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        problem(**changes)


def test_other_modules_are_not_loaded_into_and_a_mapping_needs_a_function_that_encodes_it() -> None:
    encoder, head = toys.body(), nn.Sequential(linear(20), linear(22))
    start = Pretrained.from_modules(encoder, head)
    with pytest.raises(ValueError, match=r"'1.bias' is missing in the modules"):
        start.load_into(encoder, head[:1])
    with pytest.raises(ValueError, match=r"the shape \[6, 3\] in the modules and \[3, 3\] here"):
        start.load_into(nn.Sequential(linear(10, 3, 6), *encoder[1:]), head)
    before = copy.deepcopy(encoder.state_dict())
    with pytest.raises(ValueError, match="of the PT head has the shape"):
        Pretrained.from_modules(toys.body(7), head).load_into(encoder, nn.Sequential(linear(20, 3, 9), head[1]))
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items()), "as it was"
    with pytest.raises(TypeError, match="the FT minibatch is a mapping with the keys 'x', 'y'"):
        problem(encode=encode_first).encode(start.encoder, {"x": X, "y": Y})


def test_each_row_of_the_page_has_a_test() -> None:
    for path in Path(__file__).parent.glob("test_*.py"):
        importlib.import_module(f"{__package__}.{path.stem}")
    assert ROWS == TESTED
