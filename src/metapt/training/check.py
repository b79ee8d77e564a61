"""The checks of a problem, printed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from metapt.hypergrad import MetaProblem, Params, Pretrained, hypergradient
from metapt.hypergrad.checks import check_arguments, check_problem
from metapt.hypergrad.distributed import local_of
from metapt.hypergrad.nested import listed
from metapt.hypergrad.problem import Checked
from metapt.hypergrad.trial import Given, tried
from metapt.training.batches import Batches, explaining
from metapt.training.guard import NO_VALUE, cause_of
from metapt.training.meta import MetaPretraining
from metapt.training.meta_settings import MetaSettings
from metapt.training.overlap import warn_of_repeated


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
            `check_problem` and `hypergradient`), and ValueError for the first loss, features or derivative that is not
            finite.
    """
    with explaining(batches):
        check_arguments(problem, pretrained, meta, head)
        parts = {"encoder": pretrained.encoder, "PT head": pretrained.head, "buffers": pretrained.buffers}
        for what, params in (parts | {"meta-parameters": meta, "FT head": head}).items():
            print(f"{what}: {_size(params)}")
        loop = MetaPretraining(problem, batches, pretrained, meta, head, settings)  # it has checks of its own
        before = batches.state_dict()
        try:
            pretrain_batch = getattr(batches, "hypergradient", batches.pretrain)()
            train_batches = [batches.train() for _ in range(settings.finetuning.minibatches)]
            validation_batch = batches.validation()
        finally:
            batches.load_state_dict(before)
        finite, uses_head_loss = _Finite(local_of(problem)), settings.finetuning.uses_head_loss
        given = Given(pretrained, meta, head, pretrain_batch, validation_batch)
        check_problem(finite, given, uses_head_loss=uses_head_loss, report=_right)
        warn_of_repeated(settings.finetuning, [*train_batches, validation_batch])
        finite.finetune_batch = "FT training"
        for batch in train_batches:
            features = finite.encode({**pretrained.encoder, **pretrained.buffers}, batch)
            if uses_head_loss:
                finite.head_loss(head, features, batch)
        result = hypergradient(
            problem,
            *given[:3],
            pretrain_batch=pretrain_batch,
            train_batches=train_batches,
            validation_batch=validation_batch,
            inverse=settings.inverse,
            finetuning=settings.finetuning,
            curvature=settings.curvature,
            keep_gradient=settings.reuse_gradient,
            weight_decay=loop.weight_decay,
        )
        figures = result.diagnostics
        cause, advice = cause_of([figures], float(figures.gradient_norm), settings.finetuning)
        if not torch.isfinite(figures.gradient_norm):
            raise ValueError(f"the hypergradient is not finite, {cause}: {advice}")
        for what, gap in tried(local_of(problem)).items():
            if gap is not None and gap.agrees:
                _right(f"{what} agrees with a difference of gradients, relative distance {gap.distance:.1g}")
            elif gap is not None:
                why = "see the warning" if gap.differs else "the loss has kinks, or too little precision, to say more"
                print(f"not sure: {what} is {gap.distance:.1g} off a difference of gradients, relatively; {why}")
        _right(f"the losses can be differentiated twice; FT validation loss {float(figures.validation_loss):.4g}")
        for name, value in result.gradient.items():
            print(f"hypergradient of {name}: norm {float(value.norm()):.4g}")
        if cause.startswith("as "):
            size = "0 up to rounding" if figures.gradient_norm else "exactly 0"
            print(f"wrong: the hypergradient is {size}, {cause}")
        print(f"FT: {figures.fit_status.value}; inverse: {figures.solve_status.value}")


class _Finite(Checked):
    """A problem that raises ValueError where a loss or features are not finite, and says whether its minibatch is."""

    finetune_batch = "FT validation"

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        return self._finite("the PT loss is", super().pretrain_loss(pretrained, meta, batch), "PT", batch)

    def encode(self, encoder: Params, batch: Any) -> Tensor:
        return self._finite("the features (encode) are", super().encode(encoder, batch), self.finetune_batch, batch)

    def head_loss(self, head: Params, features: Tensor, batch: Any) -> Tensor:
        return self._finite("the FT loss is", super().head_loss(head, features, batch), self.finetune_batch, batch)

    def _finite(self, what: str, value: Tensor, data: str, batch: Any) -> Tensor:
        if bool(torch.isfinite(value).all()):
            return value
        number = f" ({float(value.detach()):.4g})" if not value.dim() else ""
        if all(bool(torch.isfinite(tensor).all()) for tensor in listed(batch)):
            cause = f"whose own numbers are finite: look for {NO_VALUE}"
        else:
            cause = "which has numbers that are not finite itself: look for NaN in the data"
        raise ValueError(f"{what} not finite{number} on the first {data} minibatch, {cause}")


def _right(sentence: str) -> None:
    print(f"right: {sentence}")


def _size(params: Params) -> str:
    if not params:
        return "none"
    kinds = sorted({f"{value.dtype}".removeprefix("torch.") + f" on {value.device}" for value in params.values()})
    numbers = sum(value.numel() for value in params.values())
    return f"{', '.join(params)}: {numbers:,} numbers, {' and '.join(kinds)}"
