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


def batches_of() -> LoaderBatches:
    return LoaderBatches(pretrain=[(X, Y)], train=[(X, LABELS)], validation=[(X, LABELS)])


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
    trainer = metapt.Pretrainer(problem, batches_of(), problem.pretrained, OptimizerSpec("SGD", {"lr": 0.1}))
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


def test_autocast_rounds_plain_steps_and_leaves_hypergradients_alone() -> None:
    problem = problem_of(*modules())
    mixed = Autocast(problem, "cpu")
    start = problem.pretrained
    losses = [each.pretrain_loss(start, META, (X, Y)) for each in (problem, mixed)]
    assert losses[1].dtype == torch.float32
    assert 0 < abs(float(losses[0] - losses[1])) < 0.02 * float(losses[0])
    batches, ends = batches_of(), []
    settings = MetaSettings(2, inverse=INVERSE, finetuning=Unroll(1, SGD(0.1)))
    for steps in (problem, mixed):
        loop = MetaPretraining(problem, batches, start, META, problem.head, settings, step_problem=steps)
        loop.run()
        ends.append(loop.pretrained.encoder["0.weight"])
    assert not torch.equal(*ends)
    exact, rounded = (gradient(each, start, problem.head) for each in (problem, mixed))
    assert 0 < float((exact - rounded).norm()) < 0.1 * float(exact.norm())


SHARED, NAMED, HELD = (modules() for _ in range(3))
SHARED[2].bias = nn.Parameter(torch.zeros(2))
SHARED[1][3] = SHARED[2]
NAMED[0].head, FIXED = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
HELD[0].add_module("head", nn.Linear(4, 4))


@pytest.mark.parametrize(
    ("parts", "error", "sentence"),
    [
        (SHARED, ValueError, "the FT head shares 'weight' with the PT head; legal: parameters of its own"),
        ((nn.Sequential(HELD[1]), *HELD[1:]), ValueError, "they have one in common"),
        ((nn.LazyLinear(4), *HELD[1:]), ValueError, "'weight' of the encoder has no values yet"),
        ((*HELD[:2], nn.Sequential(nn.BatchNorm1d(4))), ValueError, "keeps running statistics"),
        (({}, *HELD[1:]), TypeError, "the encoder is a dict; legal: a torch.nn.Module"),
        ((NAMED[0], FIXED, NAMED[2]), ValueError, "both give the name 'head.running_mean' to a tensor: rename a part"),
        (
            (HELD[0], nn.Linear(4, 4).requires_grad_(False), HELD[2]),
            ValueError,
            "both give the name 'head.weight' to a tensor: rename a part",
        ),
    ],
)
def test_what_is_not_supported_is_said(parts: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        problem_of(*parts)


def test_other_modules_are_not_loaded_into_and_a_mapping_needs_a_function_that_encodes_it() -> None:
    encoder, head, finetune_head = modules()
    start = Pretrained.from_modules(encoder, head)
    with pytest.raises(ValueError, match=r"'3.bias' is missing in the modules"):
        start.load_into(encoder, head[:3])
    with pytest.raises(ValueError, match=r"the shape \[6, 5\] in the modules and \[4, 5\] here"):
        start.load_into(nn.Sequential(nn.Linear(5, 6), *encoder[1:]), head)
    with pytest.raises(TypeError, match="the FT minibatch is a mapping with the keys 'x', 'y'; say which of them"):
        problem_of(encoder, head, finetune_head).encode({**start.encoder, **start.buffers}, {"x": X, "y": LABELS})


def test_the_check_prints_what_it_finds_right_and_raises_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    settings = MetaSettings(2, inverse=INVERSE, finetuning=FittedHead(l2=0.1))
    problem, batches = problem_of(*modules()), batches_of()
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
