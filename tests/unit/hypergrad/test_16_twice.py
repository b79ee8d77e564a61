"""A loss whose derivative can't be differentiated is an error with advice, never a zero or partial hypergradient."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from metapt.hypergrad import Dense, FittedHead, Identity, Neumann, Params, Pretrained, Unroll
from metapt.training.meta import MetaPretraining
from metapt.training.meta_settings import MetaSettings

from . import problems
from .problems import Batch, called, draw

Function = Callable[[Tensor], Tensor]


class Curved:
    """PT and FT by least squares on tanh(x w) h; phi weighs PT's examples. Each part can be replaced."""

    def __init__(
        self,
        pretrain: Function = torch.tanh,
        encode: Function = torch.tanh,
        head: Function = torch.square,
        weights: Function = torch.sigmoid,
        loss: Function = torch.square,
    ) -> None:
        self.pretrain, self.through, self.head_square, self.weights, self.square = pretrain, encode, head, weights, loss
        self.pretrained = Pretrained({"w": draw(1, 3, 4)}, {"h": draw(2, 4)})
        self.meta = {"phi": draw(3, 6)}

    def pretrain_outputs(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        return self.pretrain(batch.inputs @ pretrained.encoder["w"]) @ pretrained.head["h"]

    def outputs_loss(self, outputs: Tensor, meta: Params, batch: Batch) -> Tensor:
        return (self.weights(meta["phi"]) * self.square(outputs - batch.targets)).mean()

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        return self.outputs_loss(self.pretrain_outputs(pretrained, meta, batch), meta, batch)

    def encode(self, encoder: Params, batch: Batch) -> Tensor:
        return self.through(batch.inputs @ encoder["w"])

    def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
        return self.head_square(features @ head["h"] - batch.targets).mean()


PRETRAIN, TRAIN, VALIDATION = (Batch(draw(10 + i, 6, 3), draw(20 + i, 6)) for i in range(3))
HEAD = {"h": draw(4, 4)}


def call(problem: Any, finetuning: Any = Unroll(0), inverse: Any = Neumann(2, 0.1), **changes: Any) -> Tensor:  # noqa: B008
    given = {"head": HEAD, "pretrain_batch": PRETRAIN, "validation_batch": VALIDATION} | changes
    train = [TRAIN] * getattr(finetuning, "steps", 1)
    phi = called(problem, inverse=inverse, finetuning=finetuning, train_batches=train, **given).gradient["phi"]
    assert phi.any()
    return phi


def exact(problem: Any, network: bool = True) -> Tensor:
    batches = {"pretrain_batches": [PRETRAIN] * 2, "train_batches": [TRAIN], "validation_batches": [VALIDATION]}
    return problems.exact(problem, head=HEAD, network=network, **batches).gradient["phi"]


def compiled(function: Function, backend: str = "aot_eager") -> Function:
    """As `torch.compile` makes it, to its derivatives; without a compiler, which takes seconds."""
    result: Function = torch.compile(lambda value: function(value), backend=backend)
    return result


class Once(torch.autograd.Function):
    """x^2, whose derivative is marked as not differentiable."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(context: Any, *cotangents: Tensor) -> Tensor:
        return 2 * context.saved_tensors[0] * cotangents[0]


class Wrapped(Once):
    """The same below another decorator."""

    backward = staticmethod(torch.amp.custom_bwd(Once.backward, device_type="cuda"))


class Detached(Once):
    """x^2, whose derivative has no graph."""

    @staticmethod
    def backward(context: Any, *cotangents: Tensor) -> Tensor:
        return (2 * context.saved_tensors[0] * cotangents[0]).detach()


CUT = [
    pytest.param(
        lambda: compiled(torch.square), 'torch.compile made; .* backend="eager"', id="compiled", marks=pytest.mark.slow
    ),
    pytest.param(lambda: Once.apply, "Once, whose backward is once_differentiable; use", id="once differentiable"),
    pytest.param(lambda: Wrapped.apply, "Wrapped, whose backward is once_differentiable", id="below a decorator"),
    pytest.param(lambda: Detached.apply, "backward of Detached, .* write it with torch's operations", id="detached"),
]
PLACES: list[Any] = [
    *(
        pytest.param("pretrain_loss", part, run, id=f"{part}-{name}")
        for part in ("pretrain", "loss")
        for name, run in {
            "identity": lambda problem: call(problem, inverse=Identity()),
            "dense": lambda problem: call(problem, inverse=Dense(1.0)),
            "not kept": lambda problem: call(problem, keep_gradient=False),
            "exact": exact,
        }.items()
    ),
    pytest.param("pretrain_outputs", "pretrain", lambda problem: call(problem, curvature="gauss_newton"), id="outputs"),
    pytest.param("outputs_loss", "loss", lambda problem: call(problem, curvature="gauss_newton"), id="outputs_loss"),
    pytest.param("head_loss", "head", lambda problem: call(problem, Unroll(2)), id="head-unrolled"),
    pytest.param("head_loss", "head", lambda problem: call(problem, FittedHead()), id="head-fitted"),
    pytest.param("head_loss", "head", lambda problem: exact(problem, network=False), id="head-exact"),
    pytest.param(
        "head_loss of encode", "encode", lambda problem: call(problem, Unroll(2, network=True)), id="encode-unrolled"
    ),
    pytest.param("head_loss of encode", "encode", exact, id="encode-exact"),
]


@pytest.mark.parametrize(("function", "advice"), CUT)
@pytest.mark.parametrize(("what", "part", "run"), PLACES)
def test_a_derivative_that_cannot_be_differentiated_is_an_error_with_advice(
    what: str, part: str, run: Callable[[Any], Tensor], function: Callable[[], Function], advice: str
) -> None:
    run(Curved(**{part: torch.square}))
    with pytest.raises(RuntimeError, match=f"{what} .*{advice}"):
        run(Curved(**{part: function()}))


@pytest.mark.slow
@pytest.mark.parametrize("function", [lambda: compiled(torch.square), lambda: Once.apply, lambda: Detached.apply])
@pytest.mark.parametrize(
    ("part", "finetuning"),
    [("weights", Unroll(1)), ("encode", Unroll(1)), ("encode", FittedHead()), ("head", Unroll(0))],
)
def test_what_is_differentiated_once_only_may_be_compiled(
    part: str, finetuning: Any, function: Callable[[], Function]
) -> None:
    results = [call(Curved(**{part: made}), finetuning) for made in (torch.square, function())]
    torch.testing.assert_close(*results)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda: compiled(torch.square, backend="eager"), id="compiled without AOTAutograd"),
        pytest.param(lambda: torch.func.vmap(torch.square), id="vmap"),
        pytest.param(
            lambda: torch.func.vmap(torch.func.vmap(torch.func.grad(lambda x: x**3 / 3))), id="torch.func.grad"
        ),
        pytest.param(
            lambda: lambda x: torch.utils.checkpoint.checkpoint(torch.square, x, use_reentrant=False), id="checkpoint"
        ),
    ],
)
def test_transforms_that_can_be_differentiated_twice_may_be_used(function: Callable[[], Function]) -> None:
    for run in (call, exact):
        torch.testing.assert_close(run(Curved(pretrain=function())), run(Curved(pretrain=torch.square)))


def test_a_function_that_stops_the_gradient_is_no_error() -> None:
    class Stopped(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(context: Any, *cotangents: Tensor) -> Tensor:
            return torch.zeros_like(cotangents[0])

    expected = call(Curved(pretrain=lambda value: torch.tanh(value).detach() + value))
    torch.testing.assert_close(call(Curved(pretrain=lambda value: Stopped.apply(torch.tanh(value)) + value)), expected)


@pytest.mark.parametrize("run", [call, exact])
def test_detached_meta_parameters_are_an_error_with_advice(run: Callable[[Any], Tensor]) -> None:
    with pytest.raises(RuntimeError, match=r"does not depend on the meta-parameters \('phi'\).*not detached"):
        run(Curved(weights=torch.no_grad()(torch.square)))


def trained(problem: Any) -> Tensor:
    batches: Any = SimpleNamespace(pretrain=lambda: PRETRAIN, train=lambda: TRAIN, validation=lambda: VALIDATION)
    loop = MetaPretraining(problem, batches, problem.pretrained, problem.meta, HEAD, MetaSettings(iterations=2))
    loop.run()
    return loop.meta["phi"]


@pytest.mark.parametrize("run", [call, exact, trained, lambda problem: call(problem, FittedHead())])
def test_inference_mode_is_an_error_with_advice(run: Callable[[Any], Tensor]) -> None:
    problem = Curved()
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"under torch\.inference_mode: call this outside"):
        run(problem)
    with torch.no_grad():
        run(problem) if run is not trained else None


@pytest.mark.parametrize("run", [call, exact])
@pytest.mark.parametrize("part", ["encoder", "head", "meta"])
def test_parameters_that_were_made_in_inference_mode_are_an_error_with_advice(
    run: Callable[[Any], Tensor], part: str
) -> None:
    problem = Curved()
    params = problem.meta if part == "meta" else getattr(problem.pretrained, part)
    with torch.inference_mode():
        params |= {name: value.clone() for name, value in params.items()}
    with pytest.raises(
        RuntimeError, match=f"the parameter '{next(iter(params))}' was made under torch.inference_mode.*clone"
    ):
        run(problem)


def test_a_minibatch_that_was_made_in_inference_mode_is_an_error_with_advice() -> None:
    with torch.inference_mode():
        batch = Batch(*(value.clone() for value in PRETRAIN))
    with pytest.raises(RuntimeError, match=r"Inference tensors cannot be saved for backward.*clone"):
        call(Curved(), pretrain_batch=batch)
