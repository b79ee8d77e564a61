"""Checks of a user's problem and arguments, with error messages for the person who wrote the problem.

Each call of `hypergradient` and `exact_hypergradient` makes the checks that cost nothing (`check_arguments`,
`Checked`), and tries a problem on copies the first time that it sees it (`check_unchanged`). At its first hypergradient
the training loop calls `check_problem`, which evaluates the three functions a few more times.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import torch
from torch import Tensor, nn

from metapt.hypergrad.distributed import local_of
from metapt.hypergrad.nested import by_position, changed, cloned
from metapt.hypergrad.params import Params, Pretrained, gpus_of, leaves, norm
from metapt.hypergrad.problem import LOOK_FOR, Checked, GaussNewtonProblem, MetaProblem, name_of
from metapt.hypergrad.trial import OUTPUTS, UNCHANGED, Given, tried

log = logging.getLogger(__name__)

_METHODS = ("pretrain_loss", "encode", "head_loss")


def check_arguments(problem: MetaProblem, pretrained: Pretrained, meta: Params, head: Params) -> None:
    """Check the types of the arguments and the methods of the problem.

    Raises:
        TypeError: the problem is a class or lacks a method, an argument does not consist of dictionaries of tensors, or
            a tensor that is trained is complex.
        ValueError: a tensor has a gradient hook.
    """
    if isinstance(problem, type):
        raise TypeError(f"the problem is the class {problem.__name__}; give an instance of it: {problem.__name__}(...)")
    missing = [name for name in _METHODS if not callable(getattr(problem, name, None))]
    if missing:
        raise TypeError(
            f"the problem, a {type(problem).__name__}, has no method {' and no method '.join(missing)}; a problem "
            f"needs {', '.join(_METHODS)} (see MetaProblem)"
        )
    check_pretrained(pretrained)
    for what, params in {"set of meta-parameters": meta, "FT head": head}.items():
        check_params(what, params)
    for name, value in (*pretrained.encoder.items(), *pretrained.head.items(), *meta.items(), *head.items()):
        if value.is_complex():  # of whose Hessian products with real columns are a part only
            raise TypeError(f"{name!r} is complex; legal: real parameters, as torch.view_as_real makes them")


def check_pretrained(pretrained: Pretrained) -> None:
    """Check the types of encoder, PT head and buffers as `check_arguments` does."""
    if not isinstance(pretrained, Pretrained):
        raise TypeError(
            f"pretrained is a {type(pretrained).__name__}; legal: Pretrained(encoder, head, buffers), three "
            "dictionaries of tensors. Those of a module are dict(module.named_parameters()) and "
            "dict(module.named_buffers()); torch.func.functional_call calls it with them"
        )
    for what, params in zip(("encoder", "PT head", "set of buffers"), pretrained, strict=True):
        check_params(what, params)


def check_params(what: str, params: Any) -> None:
    """Check that this is a dictionary of tensors without gradient hooks, as `check_arguments` does."""
    if not isinstance(params, dict):
        advice = "dict(module.named_parameters())" if isinstance(params, nn.Module) else 'as in {"weight": tensor}'
        raise TypeError(f"the {what} is a {type(params).__name__}; legal: a dictionary of named tensors, {advice}")
    for name, value in params.items():
        if not isinstance(name, str):
            raise TypeError(f"the {what} has the name {name!r}; legal: texts")
        if not isinstance(value, Tensor):
            raise TypeError(f"{name!r} of the {what} is of type {type(value).__name__}; legal: a tensor")
        if value._backward_hooks or value._post_accumulate_grad_hooks:
            raise ValueError(
                f"{name!r} of the {what} has a gradient hook (register_hook), which would never be called, since a "
                "copy is trained: remove it, and change the loss or the learning rate instead"
            )


def _check_copies(function: str, given: Given, copies: Given) -> None:
    """Raise ValueError if a function, which was called with the copies, has changed one."""
    parts = {
        "parameter of the encoder": (given.pretrained.encoder, copies.pretrained.encoder),
        "parameter of the PT head": (given.pretrained.head, copies.pretrained.head),
        "meta-parameter": (given.meta, copies.meta),
        "parameter of the FT head": (given.head, copies.head),
    }
    for what, (before, after) in parts.items():
        check_same_params(function, what, before, after)
    for name in changed(given.pretrained.buffers, copies.pretrained.buffers):
        raise ValueError(
            f"{function} changes the buffer {name!r}; legal: to change none. Call the encoder in evaluation mode "
            "there: module.eval()"
        )
    check_same(function, given.pretrain_batch, copies.pretrain_batch)
    check_same(function, given.finetune_batch, copies.finetune_batch)


def check_same_params(function: str, what: str, params: Params, copies: Params) -> None:
    """Raise ValueError if a function has changed one of the copies of parameters that it was called with."""
    for name in changed(params, copies):
        raise ValueError(
            f"{function} changes the {what} {name!r} in place; legal: to change none. An Embedding with max_norm does "
            "so: normalise what it returns"
        )


def check_same(function: str, batch: Any, copy: Any) -> None:
    """Raise ValueError if a function has changed the copy of a minibatch that it was called with."""
    if changed(by_position(batch), by_position(copy)):
        raise ValueError(
            f"{function} changes its minibatch in place, which others get, too; legal: to make a new tensor, as in "
            "x = x.clamp(-1, 1) in place of x.clamp_(-1, 1), or x = x - x.mean() in place of x -= x.mean(), and to "
            "take nothing out, as batch.pop(...) does"
        )


@torch.enable_grad()
def check_unchanged(problem: MetaProblem, given: Given, uses_head_loss: bool) -> None:
    """Check on copies that no function of a problem changes parameters or minibatches, once per problem.

    Raises:
        ValueError: one does.
    """
    problem = local_of(problem)
    found = tried(problem)
    if UNCHANGED in found:
        return
    problem, copies = Checked(problem), cloned(given)
    with torch.random.fork_rng(devices=gpus_of(given.pretrained.vector())):
        problem.pretrain_loss(copies.pretrained.leaves(), leaves(copies.meta), copies.pretrain_batch)
        _check_copies("pretrain_loss", given, copies)
        encoder = leaves(copies.pretrained.encoder)
        features = problem.encode({**encoder, **copies.pretrained.buffers}, copies.finetune_batch)
        _check_copies("encode", given, copies)
        if uses_head_loss:
            problem.head_loss(leaves(copies.head), features.detach().requires_grad_(), copies.finetune_batch)
            _check_copies(name_of(problem, "head_loss"), given, copies)
    found[UNCHANGED] = None


def check_outputs(problem: MetaProblem, given: Given) -> None:
    """Raise ValueError if `pretrain_loss` is not `outputs_loss` of `pretrain_outputs`; look once per problem."""
    found = tried(local_of(problem))
    if OUTPUTS in found:
        return
    local = local_of(problem)  # or that of Autocast, which rounds one of the two
    own = cast(GaussNewtonProblem, local._problem if isinstance(local, Checked) else local)
    pretrained, meta, _, batch, _ = given
    first, second = (pretrained._replace(buffers=cloned(pretrained.buffers)) for _ in range(2))
    with torch.no_grad(), torch.random.fork_rng(devices=gpus_of(pretrained.vector())):
        loss = own.outputs_loss(own.pretrain_outputs(first, meta, batch), meta, batch)
        _check_equal(own.pretrain_loss(second, meta, batch), loss, _APART)
    found[OUTPUTS] = None


_APART = (
    "pretrain_loss is not outputs_loss of pretrain_outputs, of which the Gauss-Newton matrix and the hypergradient are "
    'made; legal: equal ones. For a loss with other terms, such as a penalty of weights, curvature="hessian"'
)


@torch.enable_grad()
def check_problem(
    problem: MetaProblem,
    given: Given,
    *,
    uses_head_loss: bool = True,
    report: Callable[[str], object] = lambda sentence: None,
) -> None:
    """Check that the functions of a problem are pure and depend on the tensors by which they are differentiated.

    No argument is changed, and neither are torch's random states. Two numbers count as equal within the square root of
    the precision of the dtype, since sums on a GPU may differ from call to call; numbers that are not finite are not
    compared.

    Args:
        problem, given: the functions, and where they are evaluated.
        uses_head_loss: check `head_loss`, too (see `FineTuning`).
        report: is called after each check with a sentence on what was found right.

    Raises:
        TypeError: a function returns no tensor.
        ValueError: a loss is no scalar; a function returns different numbers in equal calls, changes the result of
            another, or changes a buffer; the PT loss does not depend on one of the meta-parameters (a derivative of 0
            is no error), `encode` not on the encoder, or `head_loss` not on its features or its head.
    """
    problem = local_of(problem)
    found = tried(problem)
    copies: Given = cloned(given)
    problem, phi, psi = Checked(problem), leaves(copies.meta), leaves(copies.head)
    encoder, buffers = leaves(copies.pretrained.encoder), copies.pretrained.buffers

    def pretrain_loss() -> Tensor:
        return problem.pretrain_loss(copies.pretrained.leaves(), phi, copies.pretrain_batch)

    def encode() -> Tensor:
        return problem.encode({**encoder, **buffers}, copies.finetune_batch)

    def features_after(meta: Params) -> Tensor:
        """Return the features with the buffers that a PT step with some hyperparameters leaves."""
        stepped = copies.pretrained.leaves()
        problem.pretrain_loss(stepped, meta, copies.pretrain_batch)
        return problem.encode({**stepped.encoder, **stepped.buffers}, copies.finetune_batch)

    def called_twice(function: str, call: Callable[[], Tensor], result: str, results: str) -> Tensor:
        """Return what a function returns, if it changes no argument and returns the same in another call."""
        first = call()
        _check_copies(function, given, copies)
        what = f"a scalar, {float(first.detach()):.4g}" if result == "number" else f"features of shape {[*first.shape]}"
        report(f"{function} returns {what}")
        _check_equal(first, call(), f"{function} returned two different {results} {_IN_EQUAL_CALLS}")
        report(f"{function} returns the same {result} in two equal calls")
        return first

    with torch.random.fork_rng(devices=gpus_of(given.pretrained.vector())):
        loss = called_twice("pretrain_loss", pretrain_loss, "number", "numbers")
        _check_depends("pretrain_loss", loss, phi, "meta-parameter", every=True)
        report(f"pretrain_loss depends on each of the meta-parameters ({', '.join(phi)})")
        features = called_twice("encode", encode, "features", "tensors")
        _check_depends("encode", features, encoder, "parameter of the encoder")
        report("encode depends on the encoder")
        if uses_head_loss:
            name, leaf = name_of(problem, "head_loss"), features.detach().requires_grad_()
            ft_loss = called_twice(
                name, lambda: problem.head_loss(psi, leaf, copies.finetune_batch), "number", "numbers"
            )
            _check_depends(name, ft_loss, {"features": leaf}, "argument features")
            if psi:
                _check_depends(name, ft_loss, psi, "parameter of the FT head (give {} if it has none)")
            report(f"{name} depends on the features" + (" and on the FT head" if psi else ""))
        _check_equal(
            loss,
            pretrain_loss(),
            "a call of encode changes what pretrain_loss returns: the module that both use keeps something. Call "
            "module.train() at the start of pretrain_loss and module.eval() at that of encode, and put its buffers "
            "into Pretrained.buffers",
        )
        _check_equal(
            features,
            encode(),
            "a call of pretrain_loss changes what encode returns: the module keeps something, such as BatchNorm's "
            "statistics. Put its buffers into Pretrained.buffers, and call it with them: "
            "functional_call(module, {**pretrained.encoder, **pretrained.buffers}, inputs)",
        )
        report("pretrain_loss and encode do not change what the other one returns")
        if buffers:
            _warn_of_statistics(features_after, copies.meta)
    found[UNCHANGED] = None
    report(f"no function changes a parameter or a minibatch, and encode none of the {len(buffers)} buffers")


_IN_EQUAL_CALLS = (
    "in two equal calls; legal: a function of its arguments. Draw random numbers when the minibatch is made and put "
    "them into it, and change nothing that outlives the call"
)


def _check_equal(first: Tensor, second: Tensor, sentence: str) -> None:
    if _differ(first, second):
        raise ValueError(sentence)


def _differ(first: Tensor, second: Tensor) -> bool:
    precision = torch.finfo(first.dtype).eps
    gap, size = norm([first.detach() - second.detach()]), norm([first.detach()])
    return bool(gap > precision**0.5 * size + precision**0.75)  # no comparison with NaN is true


def _warn_of_statistics(features_after: Callable[[Params], Tensor], meta: Params) -> None:
    """Log a warning if the hyperparameters change features by buffers, such as BatchNorm's statistics."""
    before, other = features_after(meta), {name: value + 0.1 * (1 + value.abs()) for name, value in meta.items()}
    with suppress(Exception):  # whatever a function raises with other hyperparameters
        if _differ(before, features_after(other)):
            log.warning(
                "the features depend on the hyperparameters by buffers that pretrain_loss updates, such as BatchNorm's "
                "running statistics. A hypergradient takes them for constants, and may be far off. Use GroupNorm, "
                "LayerNorm, or BatchNorm with track_running_stats=False"
            )


def _check_depends(method: str, output: Tensor, params: Params, what: str, *, every: bool = False) -> None:
    """Raise a ValueError unless the graph of `output` contains one of `params`, or all of them if `every` is true."""
    unused = list(params)
    if output.requires_grad:
        gradients = torch.autograd.grad(output.sum(), list(params.values()), allow_unused=True, retain_graph=True)
        unused = [name for name, gradient in zip(params, gradients, strict=True) if gradient is None]
    if every and unused:
        raise ValueError(
            f"{method} does not depend on the {what} {' and '.join(map(repr, unused))}, so that it can't be learned. "
            f"{LOOK_FOR}. Leave out of meta what is fixed; where other minibatches use it, add 0 * meta[name].sum()"
        )
    if len(unused) == len(params):
        raise ValueError(f"{method} depends on no {what}; legal: a differentiable function of it. {LOOK_FOR}")
