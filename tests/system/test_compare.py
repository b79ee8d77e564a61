"""docs/compare.md: hypergradients equal those of other libraries, and which mistakes each of them reports.

A library that is not installed is skipped. To install them without their dependencies, beside this project's torch:
pip install --no-deps --ignore-requires-python betty-ml==0.2.1 torchopt==0.7.3 higher==0.2.1 optree graphviz
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

EXAMPLES = Path(__file__).parents[2] / "examples"
RELEASES = {"betty": ("betty-ml", "0.2.1"), "torchopt": ("torchopt", "0.7.3"), "higher": ("higher", "0.2.1")}
IMPLICIT, UNROLLED = ("textbook", "betty", "torchopt"), ("textbook", "torchopt", "higher")


def load(name: str) -> ModuleType:
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def needs(library: str) -> None:
    """Skip the test if the library is not installed in the release that docs/compare.md describes."""
    if library in RELEASES:
        package, release = RELEASES[library]
        try:
            found = version(package)
        except PackageNotFoundError:
            found = "not installed"
        if found != release:
            pytest.skip(f"needs {package} {release}, which is {found}")


@pytest.fixture
def implicit() -> Any:
    return load("same_gradient_implicit")


@pytest.fixture
def unrolled() -> Any:
    return load("same_gradient_unrolled")


@cache
def weights(steps: int = 2000) -> Tensor:
    implicit: Any = load("same_gradient_implicit")
    values: Tensor = implicit.START
    for _ in range(steps):
        values = values - implicit.LR * torch.func.grad(implicit.pretrain_loss)(values, implicit.PHI)
    return values


def difference(value: Tensor, expected: Tensor) -> float:
    return float((value - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    ("library", "method", "steps"),
    [*((each, "neumann", 100) for each in IMPLICIT), *((each, "cg", 2000) for each in ("textbook", "torchopt"))],
)
def test_the_same_inverse_gives_the_same_hypergradient(implicit: Any, library: str, method: str, steps: int) -> None:
    needs(library)
    at = weights(steps)
    assert difference(getattr(implicit, library)(method, at), implicit.metapt(method, at)) < 1e-10


@pytest.mark.parametrize("library", UNROLLED)
def test_the_same_unrolled_steps_give_the_same_hypergradient(unrolled: Any, library: str) -> None:
    needs(library)
    phi = unrolled.PHI.clone().requires_grad_()
    assert difference(getattr(unrolled, library)(phi), unrolled.metapt(phi)) < 1e-10


def test_bettys_conjugate_gradients_differ(implicit: Any) -> None:
    needs("betty")
    at = weights()
    assert difference(implicit.betty("cg", at), implicit.textbook("cg", at)) > 1


def test_the_examples_print_what_they_find(implicit: Any, unrolled: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = implicit.main() | unrolled.main()
    assert {"neumann", "cg", "unroll"} == {method for method, library in found if library == "textbook"}
    assert len(found) == sum("away from metapt" in line for line in capsys.readouterr().out.splitlines())


class Once(torch.autograd.Function):
    """The hyperbolic tangent, with a derivative that can't be differentiated again."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.tanh(x)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        context.save_for_backward(output)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (output,) = context.saved_tensors
        return gradient * (1 - output * output)


class Partly(Once):
    """The hyperbolic tangent, with a derivative that takes its own value as a constant."""

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (output,) = context.saved_tensors
        return gradient * (1 - output.detach() * output)


def once(x: Tensor) -> Tensor:
    result: Tensor = Once.apply(x)
    return result


def detach_meta(implicit: Any) -> None:
    loss = implicit.pretrain_loss
    implicit.pretrain_loss = lambda weights, phi: loss(weights, phi.detach())


def use_once(implicit: Any) -> None:
    implicit.encode = lambda weights, x: once(x @ weights[:30].view(5, 6))


MISTAKES = [detach_meta, use_once]
SILENT = [(library, mistake) for library in ("betty", "torchopt") for mistake in MISTAKES] + [("textbook", use_once)]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_metapt_reports_a_mistake(implicit: Any, mistake: Callable[[Any], None]) -> None:
    mistake(implicit)
    with pytest.raises(RuntimeError, match=r"differentiated twice|does not depend on the meta-parameters"):
        implicit.metapt("neumann", weights(10))


@pytest.mark.parametrize(("library", "mistake"), SILENT)
def test_after_a_mistake_others_return_zeros(implicit: Any, library: str, mistake: Callable[[Any], None]) -> None:
    needs(library)
    mistake(implicit)
    assert not getattr(implicit, library)("neumann", weights(10)).any()


class Tanh(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return once(x)


@pytest.mark.parametrize("library", ["metapt", *UNROLLED])
@pytest.mark.parametrize("mistake", ["detached hyperparameters", "once_differentiable"])
def test_an_unroll_through_a_mistake_is_an_error(unrolled: Any, library: str, mistake: str) -> None:
    needs(library)
    loss = unrolled.pretrain_loss
    if mistake == "once_differentiable":
        unrolled.NETWORK.encoder[1] = Tanh()
    else:
        unrolled.pretrain_loss = lambda outputs, phi: loss(outputs, phi.detach())
    with pytest.raises(RuntimeError, match=r"differentiated twice|does not depend on|not have been used in the graph"):
        getattr(unrolled, library)(unrolled.PHI.clone().requires_grad_())


@pytest.mark.parametrize("library", ["metapt", *IMPLICIT])
def test_only_metapt_finds_a_derivative_that_drops_a_part_of_its_graph(implicit: Any, library: str) -> None:
    needs(library)
    at = weights(100)
    right = implicit.textbook("neumann", at)
    implicit.encode = lambda weights, x: Partly.apply(x @ weights[:30].view(5, 6))
    if library == "metapt":
        with pytest.raises(RuntimeError, match="calls Partly"):
            implicit.metapt("neumann", at)
    else:
        assert difference(getattr(implicit, library)("neumann", at), right) > 1e-3


def batch_norm() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 5)).double()


def run_betty(kind: str, network: nn.Module, implicit: Any) -> None:
    """Take one PT step and one meta-update with Betty, with a problem of the kind as the lower level."""
    from betty import configs, engine, problems

    class Inner(getattr(problems, kind)):
        def training_step(self, batch: Any) -> Tensor:
            errors = (self.forward(implicit.X) - implicit.TARGETS).square().mean(1)
            return (torch.sigmoid(self.outer.module[0]) * errors).mean()

    class Outer(problems.ImplicitProblem):
        def training_step(self, batch: Any) -> Tensor:
            return sum(value.square().sum() for value in self.inner.trainable_parameters())

    def problem(kind: Any, module: nn.Module, **config: Any) -> Any:
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        return kind(kind.__name__.lower(), configs.Config(**config), module, optimizer, None, [(implicit.X,)])

    inner = problem(Inner, network, type="neumann", neumann_alpha=0.1)
    outer = problem(Outer, nn.ParameterList([implicit.PHI.clone()]), first_order=kind == "ImplicitProblem")
    levels = {"u2l": {outer: [inner]}, "l2u": {inner: [outer]}}
    engine.Engine([outer, inner], configs.EngineConfig(train_iters=1, strategy="cpu"), levels).run()


def test_bettys_hypergradient_updates_the_statistics_of_batch_norm(implicit: Any) -> None:
    needs("betty")
    network = batch_norm()
    run_betty("ImplicitProblem", network, implicit)
    assert network[1].num_batches_tracked == 2, "one PT step, and one evaluation for the hypergradient"


def test_bettys_problem_for_unrolling_does_not_start(implicit: Any) -> None:
    needs("betty")
    with pytest.raises(KeyError, match="params"):
        run_betty("IterativeProblem", batch_norm(), implicit)


@pytest.mark.parametrize(("library", "updates"), [("torchopt", 3), ("higher", 0)])
def test_an_unroll_updates_the_statistics_of_the_module_or_of_a_copy(unrolled: Any, library: str, updates: int) -> None:
    needs(library)
    network = batch_norm()
    if library == "torchopt":
        optimizer = import_module("torchopt").MetaSGD(network, 0.1)
        for _ in range(3):
            optimizer.step(network(unrolled.X).square().mean())
    else:
        with import_module("higher").innerloop_ctx(network, torch.optim.SGD(network.parameters(), 0.1)) as (
            copy,
            steps,
        ):
            for _ in range(3):
                steps.step(copy(unrolled.X).square().mean())
            assert copy[1].num_batches_tracked == 3
    assert network[1].num_batches_tracked == updates


def make_indefinite(implicit: Any) -> None:
    loss = implicit.pretrain_loss
    implicit.pretrain_loss = lambda weights, phi: loss(weights, phi) - 0.05 * weights.square().sum()


def test_metapt_says_that_a_solve_failed(implicit: Any) -> None:
    call, statuses = implicit.hypergradient, []
    make_indefinite(implicit)

    def watched(*arguments: Any, **options: Any) -> Any:
        result = call(*arguments, **options)
        statuses.append(result.diagnostics.solve_status.name)
        return result

    implicit.hypergradient = watched
    implicit.metapt("cg", weights())
    assert statuses == ["INDEFINITE"]


@pytest.mark.parametrize(("library", "least", "most"), [("betty", 1e6, float("inf")), ("torchopt", 0, 1e-6)])
def test_others_return_a_number_whether_or_not_a_solve_failed(
    implicit: Any, library: str, least: float, most: float
) -> None:
    needs(library)
    at = weights()
    make_indefinite(implicit)
    assert least < difference(getattr(implicit, library)("cg", at), implicit.textbook("cg", at)) < most
