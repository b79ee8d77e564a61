"""A problem of modules computes what the same problem of dictionaries does, and modules are loaded back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import metapt
from metapt import Autocast, LoaderBatches, MetaPretraining, MetaSettings, ModuleProblem, OptimizerSpec
from metapt.hypergrad import SGD, FittedHead, Neumann, Params, Pretrained, Unroll, hypergradient
from metapt.hypergrad.checks import check_problem
from metapt.training.seeds import Seeded

from .problems import draw

X, Y, LABELS = draw(0, 12, 5).float(), draw(1, 12, 3).float(), (draw(2, 12) > 0).long()
META = {"weight": torch.zeros(3)}
INVERSE, FINETUNING = Neumann(3, 0.1), Unroll(2, SGD(0.1))


def pretrain_loss(encoder: nn.Module, head: nn.Module, meta: Params, batch: Any) -> Tensor:
    x, y = batch
    return (torch.sigmoid(meta["weight"]) * (head(encoder(x)) - y) ** 2).mean()


def finetune_loss(head: nn.Module, features: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(head(features), batch[1])


def modules() -> tuple[nn.Module, nn.Module, nn.Module]:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh())
    return encoder, nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)), nn.Linear(4, 2)


def problem_of(encoder: nn.Module, head: nn.Module, finetune_head: nn.Module, **changes: Any) -> ModuleProblem:
    losses = {"pretrain_loss": pretrain_loss, "finetune_loss": finetune_loss} | changes
    return ModuleProblem(encoder, head, finetune_head, **losses)


def gradient(problem: Any, start: Pretrained, head: Params, batch: Any = (X, Y)) -> Tensor:
    ft = {"train_batches": [(X, LABELS)] * 2, "validation_batch": (X, LABELS)}
    solvers = {"inverse": INVERSE, "finetuning": FINETUNING}
    return hypergradient(problem, start, META, head, pretrain_batch=batch, **ft, **solvers).gradient["weight"]


class Dictionaries:
    """The same problem, written with `functional_call`; the encoder's buffers come before those of the head."""

    def __init__(self) -> None:
        self.encoder, self.pt_head, self.ft_head = modules()

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        head = {name.removeprefix("head."): value for name, value in pretrained.buffers.items() if "head." in name}
        buffers = {name: value for name, value in pretrained.buffers.items() if "head." not in name}
        features = functional_call(self.encoder.train(), {**pretrained.encoder, **buffers}, (batch[0],))
        outputs = functional_call(self.pt_head.train(), {**pretrained.head, **head}, (features,))
        return (torch.sigmoid(meta["weight"]) * (outputs - batch[1]) ** 2).mean()

    def encode(self, encoder: Params, batch: Any) -> Tensor:
        values = {name: value for name, value in encoder.items() if "head." not in name}
        return functional_call(self.encoder.eval(), values, (batch[0],))

    def head_loss(self, head: Params, features: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(functional_call(self.ft_head, head, (features,)), batch[1])


def test_the_hypergradient_is_that_of_the_dictionary_form() -> None:
    problem = problem_of(*modules())
    start, head = problem.pretrained, problem.head
    assert torch.equal(gradient(problem, start, head), gradient(Dictionaries(), start, head))


def test_pretraining_loads_into_the_modules_what_torch_would_have_trained_there() -> None:
    encoder, head, finetune_head = modules()
    theirs = copy.deepcopy((encoder, head))
    problem = problem_of(encoder, head, finetune_head)
    batches = LoaderBatches(pretrain=[(X, Y)], train=[(X, LABELS)], validation=[(X, LABELS)])
    trainer = metapt.Pretrainer(problem, batches, problem.pretrained, OptimizerSpec("SGD", {"lr": 0.1}))
    before = copy.deepcopy(encoder.state_dict())
    trainer.run(META, 5)
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    trainer.pretrained.load_into(encoder, head)
    optimizer = torch.optim.SGD([*theirs[0].parameters(), *theirs[1].parameters()], lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        pretrain_loss(theirs[0].train(), theirs[1].train(), META, (X, Y)).backward()
        optimizer.step()
    for ours, trained in zip((encoder, head), theirs, strict=True):
        for name, value in trained.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[name], value)
    assert int(encoder[1].num_batches_tracked) == 5


def test_parts_are_copies_and_fixed_parameters_are_buffers() -> None:
    encoder, head, _ = modules()
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
        self.first, self.second = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def test_a_shared_weight_is_one_parameter_of_the_encoder_with_the_gradient_of_all_its_uses() -> None:
    encoder, head = Tied(), nn.Linear(5, 5)
    head.weight = encoder.first.weight
    problem = problem_of(encoder, head, nn.Linear(5, 2), pretrain_loss=lambda e, h, meta, x: h(e(x)).square().mean())
    start = problem.pretrained
    assert list(start.encoder) == ["first.weight"]
    assert list(start.head) == ["bias"]
    leaves = start.leaves()
    problem.pretrain_loss(leaves, META, X).backward()
    head(encoder(X)).square().mean().backward()
    torch.testing.assert_close(leaves.encoder["first.weight"].grad, encoder.first.weight.grad)
    Pretrained({"first.weight": torch.ones(5, 5)}, start.head).load_into(encoder, head)
    assert all(torch.equal(part.weight, torch.ones(5, 5)) for part in (encoder.first, encoder.second, head))


def test_random_draws_of_the_loss_belong_to_the_minibatch() -> None:
    encoder, head, finetune_head = modules()
    encoder.append(nn.Dropout(0.5))
    problem = problem_of(encoder, head, finetune_head)
    values = [float(problem.pretrain_loss(problem.pretrained, META, Seeded((X, Y), seed))) for seed in (1, 1, 2)]
    assert values[0] == values[1] != values[2]
    state = torch.get_rng_state()
    problem.pretrain_loss(problem.pretrained, META, Seeded((X, Y), 1))
    assert torch.equal(torch.get_rng_state(), state)
    arguments = problem, problem.pretrained, META, problem.head
    check_problem(*arguments, Seeded((X, Y), 1), (X, LABELS))
    with pytest.raises(ValueError, match="two different numbers in two equal calls"):
        check_problem(*arguments, (X, Y), (X, LABELS))


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (lambda head, features, batch: head(features), r"finetune_loss returned a tensor of shape"),
        (lambda head, features, batch: head(features.detach()).mean(), "finetune_loss depends on no argument features"),
        (
            lambda head, features, batch: Once.apply(head(features)).mean(),
            "finetune_loss can't be differentiated twice",
        ),
    ],
)
def test_errors_name_the_functions_that_the_user_has_written(loss: Any, sentence: str) -> None:
    problem = ModuleProblem(*modules(), pretrain_loss=pretrain_loss, finetune_loss=loss)
    batches = LoaderBatches(pretrain=[(X, Y)], train=[(X, LABELS)], validation=[(-X, LABELS)])
    settings = MetaSettings(2, inverse=INVERSE, finetuning=Unroll(1, SGD(0.1)))
    with pytest.raises((ValueError, RuntimeError), match=sentence):
        metapt.check(problem, batches, problem.pretrained, META, problem.head, settings)


class Once(torch.autograd.Function):
    """The square, with a derivative that can't be differentiated."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        context.save_for_backward(x)
        return x.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, dy: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * dy * context.saved_tensors[0]


def test_autocast_rounds_plain_steps_and_leaves_hypergradients_alone() -> None:
    problem = problem_of(*modules())
    mixed = Autocast(problem, "cpu")
    start = problem.pretrained
    losses = [each.pretrain_loss(start, META, (X, Y)) for each in (problem, mixed)]
    assert losses[1].dtype == torch.float32
    assert 0 < abs(float(losses[0] - losses[1])) < 0.02 * float(losses[0])
    batches = LoaderBatches(pretrain=[(X, Y)], train=[(X, LABELS)], validation=[(X, LABELS)])
    settings = MetaSettings(2, inverse=INVERSE, finetuning=Unroll(1, SGD(0.1)))
    ends = []
    for steps in (problem, mixed):
        loop = MetaPretraining(problem, batches, start, META, problem.head, settings, step_problem=steps)
        loop.run()
        ends.append(loop.pretrained.encoder["0.weight"])
    assert not torch.equal(*ends)
    exact, rounded = (gradient(each, start, problem.head) for each in (problem, mixed))
    assert 0 < float((exact - rounded).norm()) < 0.1 * float(exact.norm())


def shared_with_the_head() -> tuple[nn.Module, nn.Module, nn.Module]:
    encoder, head, finetune_head = modules()
    finetune_head.bias = nn.Parameter(torch.zeros(2))
    head[3] = finetune_head
    return encoder, head, finetune_head


def inside() -> tuple[nn.Module, nn.Module, nn.Module]:
    encoder, head, finetune_head = modules()
    return encoder.append(head), head, finetune_head


def lazy() -> tuple[nn.Module, nn.Module, nn.Module]:
    _, head, finetune_head = modules()
    return nn.LazyLinear(4), head, finetune_head


def with_statistics() -> tuple[nn.Module, nn.Module, nn.Module]:
    encoder, head, finetune_head = modules()
    return encoder, head, nn.Sequential(nn.BatchNorm1d(4), finetune_head)


def no_module() -> tuple[Any, nn.Module, nn.Module]:
    _, head, finetune_head = modules()
    return dict(head.named_parameters()), head, finetune_head


@pytest.mark.parametrize(
    ("made", "error", "sentence"),
    [
        (
            shared_with_the_head,
            ValueError,
            "the FT head shares 'weight' with the PT head; legal: parameters of its own",
        ),
        (inside, ValueError, "they have one in common"),
        (lazy, ValueError, "'weight' of the encoder has no values yet"),
        (with_statistics, ValueError, "keeps running statistics"),
        (no_module, TypeError, "the encoder is a dict; legal: a torch.nn.Module"),
    ],
)
def test_what_is_not_supported_is_said(made: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        problem_of(*made())


def test_two_buffers_of_one_name_are_refused() -> None:
    encoder, head = nn.Module(), nn.BatchNorm1d(4)
    encoder.head = nn.BatchNorm1d(4)
    with pytest.raises(ValueError, match=r"both give the name 'head.running_mean' to a tensor"):
        Pretrained.from_modules(encoder, head)


def test_a_fixed_tensor_of_the_head_does_not_take_the_place_of_a_parameter_of_the_encoder() -> None:
    encoder = nn.Sequential()
    encoder.add_module("head", nn.Linear(5, 3))
    with pytest.raises(ValueError, match=r"both give the name 'head.weight' to a tensor: rename a part"):
        problem_of(encoder, nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 2))


def test_a_mapping_needs_a_function_that_encodes_it() -> None:
    problem = problem_of(*modules())
    pretrained = problem.pretrained
    with pytest.raises(TypeError, match="the FT minibatch is a mapping with the keys 'x', 'y'; say which of them"):
        problem.encode({**pretrained.encoder, **pretrained.buffers}, {"x": X, "y": LABELS})


def test_a_problem_in_mixed_precision_can_be_copied() -> None:
    copied = copy.deepcopy(Autocast(problem_of(*modules()), "cpu"))
    assert copied.head.keys() == {"weight", "bias"}


def test_other_modules_are_not_loaded_into() -> None:
    encoder, head, _ = modules()
    start = Pretrained.from_modules(encoder, head)
    with pytest.raises(ValueError, match=r"'3.bias' is missing in the modules"):
        start.load_into(encoder, head[:3])
    with pytest.raises(ValueError, match=r"the shape \[6, 5\] in the modules and \[4, 5\] here"):
        start.load_into(nn.Sequential(nn.Linear(5, 6), *encoder[1:]), head)


def test_the_check_prints_what_it_finds_right_and_raises_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    batches = LoaderBatches(pretrain=[(X, Y)], train=[(X, LABELS)], validation=[(X, LABELS)])
    settings = MetaSettings(2, inverse=INVERSE, finetuning=FittedHead(l2=0.1))
    problem = problem_of(*modules())
    before = batches.state_dict()
    metapt.check(problem, batches, problem.pretrained, META, problem.head, settings)
    printed = capsys.readouterr().out
    assert "encoder: 0.weight, 0.bias, 1.weight, 1.bias: 32 numbers, float32 on cpu" in printed
    assert printed.count("right: ") == 15
    assert "hypergradient of weight: norm" in printed
    assert batches.state_dict() == before
    wrong = problem_of(*modules(), encode=lambda encoder, batch: encoder(batch[0]).detach())
    with pytest.raises(ValueError, match="encode returned a tensor that depends on none of its parameters"):
        metapt.check(wrong, batches, wrong.pretrained, META, wrong.head, settings)
    assert capsys.readouterr().out.count("right: ") == 3
