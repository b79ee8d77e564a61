"""The hypergradient d(FT validation loss) / d(meta-parameters), through pre-training and fine-tuning (Eq. 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor

from metapt.hypergrad.checks import check_arguments, check_outputs, check_unchanged
from metapt.hypergrad.curvature import gauss_newton, hessian
from metapt.hypergrad.distributed import check_counts
from metapt.hypergrad.finetune import FineTuning
from metapt.hypergrad.inverse import Inverse, Matvec, SolveResult, Status
from metapt.hypergrad.layers.passes import unread
from metapt.hypergrad.optimizers import OptimizerState
from metapt.hypergrad.params import (
    Params,
    Pretrained,
    Vector,
    add,
    detached,
    each_finite,
    leaves,
    like,
    norm,
    scaled,
    unconnected,
    vjp,
    vjp_graph,
    zeros_like,
)
from metapt.hypergrad.problem import Checked, ForwardProblem, GaussNewtonProblem, MetaProblem
from metapt.hypergrad.trial import Given, check_second_derivatives

Curvature = Literal["hessian", "gauss_newton"]


@dataclass(frozen=True)
class Diagnostics:
    """Intermediate quantities of one hypergradient; the tensors are scalars unless a shape is given.

    Attributes:
        finetune_losses: FT losses, as `FineTuned.train_losses`.
        validation_loss: FT loss on the validation minibatch.
        pretrain_loss: PT loss on the PT minibatch.
        head_gradient_norm: norm of the gradient of the FT validation loss w.r.t. the head (part of g1).
        encoder_gradient_norm: norm of g2, the gradient of the FT validation loss w.r.t. the pre-trained encoder.
        inverse_norm: norm of the inverse Hessian times g2.
        gradient_norm: norm of the hypergradient.
        solve_status: how the solve with the Hessian ended; NON_FINITE also if the PT loss or the product with the mixed
            derivative is not finite.
        solve_residual: residual norm of that solve; NaN if it is not known.
        solve_steps: products with the Hessian.
        fit_status: how FT ended.
    """

    finetune_losses: Tensor
    validation_loss: Tensor
    pretrain_loss: Tensor
    head_gradient_norm: Tensor
    encoder_gradient_norm: Tensor
    inverse_norm: Tensor
    gradient_norm: Tensor
    solve_status: Status
    solve_residual: float
    solve_steps: int
    fit_status: Status

    def not_finite(self) -> list[str]:
        """Return the names of the tensors that are not finite, in the order of the attributes."""
        names = [field.name for field in fields(self) if isinstance(getattr(self, field.name), Tensor)]
        finite = each_finite(*([getattr(self, name)] for name in names))
        return [name for name, is_finite in zip(names, finite, strict=True) if not is_finite]


class Hypergradient(NamedTuple):
    """One hypergradient, detached from any graph.

    Attributes:
        gradient: named and shaped like the meta-parameters. It is NaN throughout if the new head or any quantity that
            the gradient is computed from is not finite (see `Diagnostics.not_finite` and the statuses), so that it
            can't be applied by mistake.
        head: the FT head after fine-tuning, the initial head of the next meta-iteration.
        head_state: the state of the head's optimiser after fine-tuning.
        pretrain_gradient: the gradient of the PT loss on the PT minibatch w.r.t. encoder and PT head, without the
            parameters that the loss does not use, and the buffers as the PT loss has updated them. A PT step can use
            it. None if it was not asked for or is not finite.
        diagnostics: intermediate quantities.
    """

    gradient: Params
    head: Params
    head_state: OptimizerState
    pretrain_gradient: Pretrained | None
    diagnostics: Diagnostics


class How(NamedTuple):
    """How `implicit` computes; see the arguments of `hypergradient`, of which `weight_decay` is a list here."""

    inverse: Inverse
    curvature: Curvature
    keep_gradient: bool
    weight_decay: list[float]


class Implicit(NamedTuple):
    """The product of g2 with the inverse Hessian and the mixed derivative, detached from any graph.

    Attributes:
        product: without the minus sign of Eq. 4, one tensor per meta-parameter.
        solved: the product with the inverse Hessian.
        loss: PT loss on the PT minibatch, a scalar.
        gradient: see `Hypergradient.pretrain_gradient`, finite or not; None if it was not asked for.
    """

    product: Vector
    solved: SolveResult
    loss: Tensor
    gradient: Pretrained | None


@torch.enable_grad()
def implicit(problem: MetaProblem, pretrained: Pretrained, meta: Params, batch: Any, g2: Vector, how: How) -> Implicit:
    """Return the product of (g2, 0), one tensor per parameter of encoder and PT head; see `hypergradient`."""
    pt, phi = pretrained.leaves(), leaves(meta)
    zeros = g2[len(pt.encoder) :]
    graph = _Graph(problem, pt, phi, batch, zeros, how)
    solved = how.inverse(graph.matvec, g2)
    # Forward mode is taken only where there is no graph of the PT gradient, with which reverse mode is cheaper.
    if "gradient" in vars(graph) or how.keep_gradient or not hasattr(problem, "mixed_product"):
        loss = graph.loss
        product = vjp(graph.gradient, list(phi.values()), solved.value, needed=unconnected(meta))
    else:
        products, loss = cast(ForwardProblem, problem).mixed_product(pretrained.leaves(), phi, batch, solved.value)
        product = [products[name].detach() for name in meta]
    return Implicit(product, solved, loss.detach(), graph.detached_gradient() if how.keep_gradient else None)


@torch.enable_grad()
def hypergradient(
    problem: MetaProblem,
    pretrained: Pretrained,
    meta: Params,
    head: Params,
    *,
    pretrain_batch: Any,
    train_batches: Sequence[Any],
    validation_batch: Any,
    inverse: Inverse,
    finetuning: FineTuning,
    head_state: OptimizerState | None = None,
    curvature: Curvature = "hessian",
    keep_gradient: bool = True,
    weight_decay: float | Sequence[float] = 0.0,
    solve: Callable[..., Implicit] = implicit,
) -> Hypergradient:
    """Return d(FT validation loss) / d(meta) (Eq. 3; the lines of g1, g2 and the IFT in Algorithm 2).

    The FT solver gives g2. With L the PT loss on `pretrain_batch`, w encoder and PT head, and H = d2L/dw2,

        gradient = - (g2, 0) H^-1 d2L / (dw dmeta)        (Eq. 4; the part of g2 for the PT head is zero)

    H and the mixed derivative share one graph of L, so one minibatch, one dropout mask and one set of batch statistics.
    Memory does not depend on the number of PT steps before. No argument is changed.

    Args:
        problem: the three losses.
        pretrained: encoder, PT head and buffers at the end of the PT steps.
        meta: the meta-parameters; the gradient has their names and shapes.
        head: the FT head to start from.
        pretrain_batch: PT minibatch of the Hessian and the mixed derivative.
        train_batches: FT training minibatches, `finetuning.minibatches` of them.
        validation_batch: FT validation minibatch.
        inverse: `Identity`, `Neumann`, `ConjugateGradient`, `Dense`, or another `Inverse`.
        finetuning: the FT solver: `Unroll`, `FittedHead`, `RidgeHead`, or another `FineTuning`.
        head_state: state of the head's optimiser; a new one if left out.
        curvature: the matrix H: the Hessian, or the Gauss-Newton matrix (needs a `GaussNewtonProblem`).
        keep_gradient: return the PT gradient, too. Without it, a `ForwardProblem` does not compute it if the inverse
            takes no product, and `Convolution` omits a third of the work of the gradient's graph.
        weight_decay: of the PT optimiser, if it is a part of the gradient as in `torch.optim.SGD`: a number, or one for
            each parameter of encoder, then PT head. PT then ends where the gradient of L + weight_decay / 2 |w|^2 is
            zero, so that H has it on its diagonal.
        solve: takes and returns what `implicit` does; the training loop may capture it.

    Raises:
        TypeError: an argument is of a wrong type (see `check_arguments`), or a function of the problem returns no
            tensor.
        ValueError: there are no meta-parameters; the curvature is unknown, or the problem does not offer it; the FT
            minibatches do not suit the FT solver; a loss is no scalar; a loss or features have no graph; or the PT loss
            is not that of the outputs, of which the Gauss-Newton matrix is made.
        ConfigError: processes that share the problem have different numbers of FT minibatches in its first call.
        DataError: all labels of each task are equal in a part of the data of a `RidgeHead`.
        RuntimeError: a loss can't be differentiated twice (see `check_second_derivatives`), the PT gradient depends on
            no meta-parameter, or the call is made under `torch.inference_mode` or `torch.autocast`.
    """
    check_arguments(problem, pretrained, meta, head)
    users, problem = problem, Checked(problem)
    if not meta:
        raise ValueError("there are no meta-parameters to take a gradient for: meta is empty")
    check_curvature(problem, curvature)
    different = len({id(batch) for batch in (*train_batches, validation_batch)})
    counts = {"FT training minibatches": len(train_batches), "different FT minibatches": different}
    check_counts(users, counts, once=True)
    uses_head_loss = getattr(finetuning, "uses_head_loss", True)
    given = Given(pretrained, meta, head, pretrain_batch, validation_batch)
    check_unchanged(users, given, uses_head_loss)
    if curvature == "gauss_newton":
        check_outputs(users, given)
    tuned = finetuning(
        problem, pretrained.encoder, pretrained.buffers, head, head_state, train_batches, validation_batch
    )
    g2 = [*tuned.encoder_gradient.values(), *zeros_like(list(pretrained.head.values()))]
    decay = list(weight_decay) if isinstance(weight_decay, Sequence) else [weight_decay] * len(pretrained.vector())
    how = How(inverse, curvature, keep_gradient, decay)
    product, solved, loss, pretrain_gradient = solve(problem, pretrained, meta, pretrain_batch, g2, how)
    result = scaled(product, -1.0)  # Eq. 4 is linear in g2, so that its sign can be applied last
    inverse_norm, status = norm(solved.value), solved.status
    kept = [] if pretrain_gradient is None else pretrain_gradient.vector()
    solved_finite, loss_finite, result_finite, kept_finite = each_finite([inverse_norm], [loss], result, kept)
    finite = loss_finite and result_finite and kept_finite
    if not kept_finite:
        pretrain_gradient = None
    if solved_finite and not finite:
        status = Status.NON_FINITE  # otherwise the status of the solver says why
    if not solved_finite or not finite or tuned.status is Status.NON_FINITE:
        result = [torch.full_like(value, torch.nan) for value in result]
    check_second_derivatives(
        users,
        given,
        products=curvature == "hessian" and solved.steps > 0,
        head_steps=uses_head_loss and finetuning.minibatches > 0,
        network=getattr(finetuning, "network", False),
    )
    diagnostics = Diagnostics(
        finetune_losses=tuned.train_losses,
        validation_loss=tuned.validation_loss,
        pretrain_loss=loss,
        head_gradient_norm=tuned.head_gradient_norm,
        encoder_gradient_norm=norm(g2),
        inverse_norm=inverse_norm,
        gradient_norm=norm(result),
        solve_status=status,
        solve_residual=solved.residual_norm,
        solve_steps=solved.steps,
        fit_status=tuned.status,
    )
    return Hypergradient(like(meta, result), tuned.head, tuned.head_state, pretrain_gradient, diagnostics)


def check_curvature(problem: MetaProblem, curvature: str) -> None:
    """Raise ValueError if the curvature is unknown, or the problem does not offer it."""
    if curvature not in get_args(Curvature):
        raise ValueError(f"curvature is {curvature!r}; legal: {', '.join(map(repr, get_args(Curvature)))}")
    if curvature == "gauss_newton":
        missing = [name for name in ("pretrain_outputs", "outputs_loss") if not hasattr(problem, name)]
        if missing:
            names = " and ".join(missing)
            raise ValueError(f"the Gauss-Newton matrix needs a GaussNewtonProblem, with {names}; ModuleProblem is none")


@dataclass
class _Graph:
    """The PT loss, its gradient with a graph, and products with its curvature, each computed when first needed."""

    problem: MetaProblem
    pt: Pretrained
    phi: Params
    batch: Any
    zeros: Vector
    how: How

    @cached_property
    def _outputs(self) -> Tensor:
        return cast(GaussNewtonProblem, self.problem).pretrain_outputs(self.pt, self.phi, self.batch)

    @cached_property
    def loss(self) -> Tensor:
        if self.how.curvature == "hessian":
            return self.problem.pretrain_loss(self.pt, self.phi, self.batch)
        return cast(GaussNewtonProblem, self.problem).outputs_loss(self._outputs, self.phi, self.batch)

    @cached_property
    def gradient(self) -> Vector:
        read = self.how.keep_gradient or not self.loss.requires_grad  # vjp_graph raises an error without a graph
        with nullcontext() if read else unread(self.loss, self.pt.vector()):
            return vjp_graph(self.loss, self.pt.vector(), "pretrain_loss")

    @cached_property
    def _product(self) -> Matvec:
        if self.how.curvature == "hessian":
            return hessian(self.gradient, self.pt.vector(), self.zeros)
        return gauss_newton(self._outputs, self.loss, self.pt.vector())

    def matvec(self, vector: Vector) -> Vector:
        product = self._product(vector)
        decay = self.how.weight_decay
        return add(product, scaled(vector, decay)) if any(decay) else product

    def detached_gradient(self) -> Pretrained:
        """Return the gradient without its graph. It lacks parameters that the loss does not use, as in `backward`."""
        found = iter(self.gradient)  # zeros that stand for no gradient have no graph
        encoder, head = (
            {name: value.detach() for name, value in zip(params, found, strict=False) if value.requires_grad}
            for params in (self.pt.encoder, self.pt.head)
        )
        return Pretrained(encoder, head, detached(self.pt.buffers))
