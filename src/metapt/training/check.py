"""The checks of a problem, printed."""

from __future__ import annotations

from metapt.hypergrad import MetaProblem, Params, Pretrained, hypergradient
from metapt.hypergrad.checks import check_arguments, check_problem
from metapt.training.batches import Batches, explain
from metapt.training.meta import MetaPretraining, MetaSettings


def check(
    problem: MetaProblem, batches: Batches, pretrained: Pretrained, meta: Params, head: Params, settings: MetaSettings
) -> None:
    """Print what a problem consists of, and make the checks of the first hypergradient; print what is found right.

    The last check is one hypergradient with the inverse and the FT solver of `settings`. Nothing is changed: the
    state of the minibatches is restored afterwards.

    Args:
        problem, batches, pretrained, meta, head, settings: as in `MetaPretraining`.

    Raises:
        TypeError, ValueError, RuntimeError, ConfigError: the first thing that is wrong (see `MetaPretraining`,
            `check_problem` and `hypergradient`).
    """
    try:
        _check(problem, batches, pretrained, meta, head, settings)
    except Exception as error:
        explain(error, batches)
        raise


def _check(
    problem: MetaProblem, batches: Batches, pretrained: Pretrained, meta: Params, head: Params, settings: MetaSettings
) -> None:
    check_arguments(problem, pretrained, meta, head)
    parts = {"encoder": pretrained.encoder, "PT head": pretrained.head, "buffers": pretrained.buffers}
    for what, params in (parts | {"meta-parameters": meta, "FT head": head}).items():
        print(f"{what}: {_size(params)}")
    MetaPretraining(problem, batches, pretrained, meta, head, settings)  # it has checks of its own
    before = batches.state_dict()
    try:
        pretrain_batch = getattr(batches, "hypergradient", batches.pretrain)()
        train_batches = [batches.train() for _ in range(settings.finetuning.minibatches)]
        validation_batch = batches.validation()
    finally:
        batches.load_state_dict(before)
    arguments = problem, pretrained, meta, head
    check_problem(
        *arguments,
        pretrain_batch,
        validation_batch,
        uses_head_loss=settings.finetuning.uses_head_loss,
        report=_right,
    )
    result = hypergradient(
        *arguments,
        pretrain_batch=pretrain_batch,
        train_batches=train_batches,
        validation_batch=validation_batch,
        inverse=settings.inverse,
        finetuning=settings.finetuning,
        curvature=settings.curvature,
        keep_gradient=settings.reuse_gradient,
    )
    figures = result.diagnostics
    _right(f"the losses can be differentiated twice; FT validation loss {float(figures.validation_loss):.4g}")
    for name, value in result.gradient.items():
        print(f"hypergradient of {name}: norm {float(value.norm()):.4g}")
    print(f"FT: {figures.fit_status.value}; inverse: {figures.solve_status.value}")


def _right(sentence: str) -> None:
    print(f"right: {sentence}")


def _size(params: Params) -> str:
    if not params:
        return "none"
    kinds = sorted({f"{value.dtype}".removeprefix("torch.") + f" on {value.device}" for value in params.values()})
    numbers = sum(value.numel() for value in params.values())
    return f"{', '.join(params)}: {numbers:,} numbers, {' and '.join(kinds)}"
