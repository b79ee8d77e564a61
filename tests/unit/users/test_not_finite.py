"""Numbers that are not finite, and runs that do not learn."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import metapt
from metapt.errors import TrainingError
from metapt.hypergrad import SGD, ConjugateGradient, FittedHead, Neumann, RidgeHead, Unroll
from metapt.training.diagnosis import Diagnosis

from .kinds import Heard, refused, warned

Arguments = tuple[Any, ...]
FITTED = FittedHead(l2=0.01, tolerance=1e-3)


def pretrain_loss(encoder: nn.Module, head: nn.Module, meta: dict[str, Tensor], batch: Any) -> Tensor:
    x, y = batch
    return F.mse_loss(head(encoder(x * torch.exp(meta["scale"]))), y)


def finetune_loss(head: nn.Module, features: Tensor, batch: Any) -> Tensor:
    return F.binary_cross_entropy_with_logits(head(features).squeeze(1), batch[1])


class Own(metapt.ModuleProblem):
    """A problem with labels for a ridge head."""

    def targets(self, batch: Any) -> Tensor:
        labels: Tensor = batch[1]
        return labels[:, None]


def brought(
    bad: str = "",
    number: int = 0,
    value: float = math.nan,
    pretrain: Any = pretrain_loss,
    finetune: Any = finetune_loss,
    encode: Any = None,
    lr: float = 0.05,
    meta_lr: float = 0.05,
    optimizer: str = "Adam",
    **settings: Any,
) -> Arguments:
    """Return the arguments of `MetaPretraining`, with a number in minibatch `number` of the set `bad`, as "train x"."""
    torch.manual_seed(0)
    data = {
        name: [(x, F.linear(x, torch.ones(4, 4)) if name == "pretrain" else (x.sum(1) > 0).float())]
        for name, x in {"train": torch.randn(16, 4), "validation": torch.randn(16, 4)}.items()
    }
    data["pretrain"] = [(x, x @ torch.ones(4, 4).tril()) for x in torch.randn(10, 16, 4)]
    if bad:
        name, part = bad.split()
        data[name][number]["xy".index(part)][3] = value
    encoder, head, finetune_head = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), nn.Linear(3, 4), nn.Linear(3, 1)
    functions = {"pretrain_loss": pretrain, "finetune_loss": finetune} | ({"encode": encode} if encode else {})
    problem = Own(encoder, head, finetune_head, **functions)
    fields = {"iterations": 40, "inverse": Neumann(2, 0.05), "finetuning": FITTED} | settings
    made = metapt.MetaSettings(
        **fields,
        pretrain_optimizer=metapt.OptimizerSpec(optimizer, {"lr": lr}),
        meta_optimizer=metapt.OptimizerSpec("Adam", {"lr": meta_lr}),
    )
    batches = metapt.LoaderBatches(**data)
    return problem, batches, problem.pretrained, {"scale": torch.zeros(4)}, problem.head, made


def run(arguments: Arguments) -> Diagnosis:
    return metapt.MetaPretraining(*arguments).run()


PT_NAN = "a PT minibatch with NaN, a PT loss that becomes NaN or infinite"
DO_PT = "look for NaN in the minibatch of the named step, then lower the PT learning rate"


@refused(PT_NAN, ("PT loss at PT step 5 is nan", "PT minibatches", "PT learning rate"), DO_PT)
@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("reuse", [False, True])
def test_the_pt_step_of_a_minibatch_with_nan_is_named_and_the_run_stops(steps: int, reuse: bool) -> None:
    sampled = brought("pretrain x", 4, iterations=4000, pretrain_steps=steps, warmup=3000, reuse_gradient=reuse)
    run(sampled)


@refused(PT_NAN, ("PT loss at step 5 is nan", "PT minibatches", "PT learning rate"), DO_PT)
def test_plain_pt_stops_at_a_minibatch_with_nan() -> None:
    problem, batches, start, meta, *_ = brought("pretrain y", 4)
    metapt.Pretrainer(problem, batches, start, metapt.OptimizerSpec("Adam")).run(meta, 100_000)


@refused(PT_NAN, ("PT loss at PT step", "is nan", "a logarithm"), DO_PT)
def test_a_logarithm_of_a_negative_number_after_some_steps_is_a_pt_loss_of_nan() -> None:
    def loss(encoder: nn.Module, head: Any, meta: dict[str, Tensor], batch: Any) -> Tensor:
        return pretrain_loss(encoder, head, meta, batch) + 0.1 * torch.log(0.7 - head.weight.abs().max())

    run(brought(pretrain=loss, iterations=4000, warmup=3000))


@refused(PT_NAN, ("PT loss at PT step", "is inf", "PT learning rate"), DO_PT)
def test_a_pt_learning_rate_that_is_far_too_large_ends_in_infinity() -> None:
    run(brought(lr=1e6, optimizer="SGD", iterations=4000, warmup=3000))


@warned(
    "a PT minibatch with NaN that only a hypergradient uses",
    ("hypergradient at iteration 0 is not applied", "PT loss on the PT minibatch was nan", "NaN in the PT minibatches"),
    "that update is skipped: look for NaN",
)
def test_a_pt_minibatch_of_a_hypergradient_with_nan_is_named() -> None:
    problem, _, *rest = brought(iterations=3)
    clean = brought("pretrain x", 0)[1]
    data = {name: [(torch.randn(8, 4), torch.rand(8).round())] for name in ("train", "validation")}
    pretrain = [(torch.randn(8, 4), torch.randn(8, 4))]
    batches = metapt.LoaderBatches(pretrain=pretrain, **data, hypergradient=[clean.pretrain().batch])
    run((problem, batches, *rest))


FT_NAN = "an FT minibatch with NaN in inputs or labels, an FT loss that is NaN"
DO_FT = "that update is skipped; ten in a row are an error that names the loss"
SOLVERS = {"three steps": Unroll(3), "no step": Unroll(0), "fitted": FITTED, "ridge": RidgeHead(0.1)}


def of_ft(words: str) -> Callable[..., Any]:
    return refused(
        FT_NAN, ("10 hypergradients in a row", "as the FT", f"{words} was nan.", "look for NaN in the FT"), DO_FT
    )


@of_ft("FT validation loss")
@pytest.mark.parametrize("part", ["x", "y"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_nan_in_ft_validation_only_is_named(solver: str, part: str) -> None:
    run(brought(f"validation {part}", finetuning=SOLVERS[solver]))


@of_ft("FT training loss")
@pytest.mark.parametrize("part", ["x", "y"])
@pytest.mark.parametrize("solver", [FITTED, RidgeHead(0.1), replace(FITTED, cross_fit=True)])
def test_nan_in_ft_training_of_a_fitted_head_is_named(solver: Any, part: str) -> None:
    run(brought(f"train {part}", finetuning=solver))


@of_ft("FT training loss after 0 of 3 FT steps")
@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("part", ["x", "y"])
def test_nan_in_ft_training_is_seen_before_the_first_ft_step(part: str, network: bool) -> None:
    run(brought(f"train {part}", finetuning=Unroll(3, network=network)))


@refused(FT_NAN, ("FT training loss after 1 of 3 FT steps was", "lower the FT learning rate"), DO_FT)
@pytest.mark.parametrize("lr", [1e12, 1e30])
def test_ft_steps_that_diverge_are_told_from_nan_in_the_data(lr: float) -> None:
    run(brought(finetune=lambda head, features, batch: head(features).square().mean(), finetuning=Unroll(3, SGD(lr))))


@pytest.mark.parametrize("solver", ["no step", "fitted", "ridge"])
def test_no_advice_on_a_learning_rate_that_is_not_there(solver: str) -> None:
    with pytest.raises(TrainingError) as error:
        run(brought("validation x", finetuning=SOLVERS[solver]))
    assert "learning rate" not in str(error.value)


CHECKED = "numbers that are not finite, in `metapt.check`"
DO_CHECK = "the error names the loss, and says whether the minibatch has such numbers"


@refused(CHECKED, ("the PT loss is not finite", "first PT minibatch", "not finite itself"), DO_CHECK)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_check_names_the_pt_minibatch(value: float) -> None:
    metapt.check(*brought("pretrain y", 0, value))


@refused(CHECKED, ("the PT loss is not finite (nan)", "whose own numbers are finite", "a logarithm"), DO_CHECK)
def test_check_tells_a_loss_without_a_value_from_nan_in_the_data() -> None:
    metapt.check(*brought(pretrain=lambda *given: pretrain_loss(*given) + torch.log(-given[1].weight.square().sum())))


@refused(CHECKED, ("features (encode) are not finite", "FT validation minibatch", "not finite itself"), DO_CHECK)
def test_check_names_the_features() -> None:
    metapt.check(*brought("validation x"))


@refused(CHECKED, ("the FT loss is not finite", "FT validation minibatch", "not finite itself"), DO_CHECK)
def test_check_names_the_labels_of_the_validation_minibatch() -> None:
    metapt.check(*brought("validation y"))


@refused(CHECKED, ("not finite", "FT training minibatch", "not finite itself"), DO_CHECK)
@pytest.mark.parametrize("part", ["x", "y"])
@pytest.mark.parametrize("solver", ["three steps", "fitted"])
def test_check_names_the_ft_training_minibatch(solver: str, part: str) -> None:
    metapt.check(*brought(f"train {part}", finetuning=SOLVERS[solver]))


@refused(
    CHECKED, ("hypergradient is not finite", "FT training loss after 1 of 3 FT steps", "FT learning rate"), DO_CHECK
)
def test_check_names_ft_steps_that_diverge() -> None:
    steps = Unroll(3, SGD(1e30))
    metapt.check(*brought(finetune=lambda head, features, batch: head(features).square().mean(), finetuning=steps))


@refused(CHECKED, ("hypergradient is not finite", "a derivative of the PT loss", "root of 0"), DO_CHECK)
def test_check_names_a_derivative_that_is_not_there() -> None:
    def loss(encoder: nn.Module, head: nn.Module, meta: dict[str, Tensor], batch: Any) -> Tensor:
        return pretrain_loss(encoder, head, meta, batch) + meta["scale"].square().sum().sqrt() * sum(
            value.square().sum() for value in encoder.parameters()
        )

    metapt.check(*brought(pretrain=loss))


def test_check_never_calls_a_number_right_that_is_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    for bad in ("pretrain x", "train x", "train y", "validation x", "validation y"):
        with pytest.raises(ValueError, match="not finite"):
            metapt.check(*brought(bad))
    assert "nan" not in capsys.readouterr().out


ZERO = "round, sign, argmax, a comparison or detach where a derivative is needed"
DO_ZERO = "a differentiable function; diagnosis and `metapt.check` name the derivative that is 0"
OF_FT, OF_PT = "FT validation loss has derivative 0 w.r.t. the encoder", "derivative 0 w.r.t. the meta-parameters"


def of_zero(words: str) -> Callable[..., Any]:
    return warned(ZERO, ("hypergradients were exactly 0", "40 times exactly 0", words, "round, sign"), DO_ZERO)


def rounded(function: Callable[[Tensor], Tensor]) -> Arguments:
    return brought(encode=lambda encoder, batch: function(encoder(batch[0])))


def signed(function: Callable[[Tensor], Tensor]) -> Arguments:
    def loss(encoder: nn.Module, head: nn.Module, meta: dict[str, Tensor], batch: Any) -> Tensor:
        x, y = batch
        return F.mse_loss(head(encoder(x * function(meta["scale"] + 0.5))), y)

    return brought(pretrain=loss)


@of_zero(OF_FT)
@pytest.mark.parametrize("function", [torch.round, torch.sign, lambda x: (x > 0) + 0 * x], ids=["round", "sign", ">"])
def test_a_step_function_in_encode_is_named(function: Callable[[Tensor], Tensor]) -> None:
    run(rounded(function))


@of_zero(OF_PT)
@pytest.mark.parametrize(
    "function", [torch.round, torch.sign, lambda x: x.clamp(max=0.1)], ids=["round", "sign", "max"]
)
def test_a_step_function_of_the_meta_parameters_is_named(function: Callable[[Tensor], Tensor]) -> None:
    run(signed(function))


@pytest.mark.parametrize(("arguments", "words"), [(rounded(torch.round), OF_FT), (signed(torch.sign), OF_PT)])
def test_check_says_that_a_hypergradient_is_exactly_0(
    arguments: Arguments, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    metapt.check(*arguments)
    (wrong,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wrong: ")]
    assert "exactly 0" in wrong
    assert words in wrong


UNSOLVED = "an inverse or a fitted FT head with too few steps"
DO_UNSOLVED = "as the diagnosis says: more `max_steps`, tolerance or damping"


@warned(UNSOLVED, ("not solved as asked", "Of 40 hypergradients: 40 times", "raise max_steps", "damping"), DO_UNSOLVED)
def test_conjugate_gradients_short_of_their_tolerance_are_not_all_well() -> None:
    run(brought(inverse=ConjugateGradient(max_steps=1)))


@warned(UNSOLVED, ("not solved as asked", "40 times FT not fitted", "raise its max_steps", "l2"), DO_UNSOLVED)
def test_heads_short_of_their_tolerance_are_not_all_well() -> None:
    run(brought(finetuning=FittedHead(0.01, max_steps=1)))


@refused(
    "far too large learning rates of the meta-parameters",
    ("the PT loss at PT step", "or that of the meta-parameters, whose norm is 2e+06"),
    "lower them until the diagnosis is well",
)
def test_a_meta_learning_rate_that_is_far_too_large_is_named() -> None:
    run(brought(meta_lr=1e6, iterations=60))


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_a_run_of_a_few_iterations_is_too_short_to_tell(iterations: int) -> None:
    heard = Heard()
    logging.getLogger("metapt").addHandler(heard)
    try:
        diagnosis = run(brought(iterations=iterations))
    finally:
        logging.getLogger("metapt").removeHandler(heard)
    assert not heard.messages
    assert str(diagnosis).startswith("Diagnosis: the run is too short to tell")
