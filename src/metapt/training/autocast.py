"""A problem whose losses are computed in mixed precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from metapt.hypergrad import MetaProblem, Params, Pretrained
from metapt.hypergrad.problem import Checked
from metapt.hypergrad.trial import is_tested


class Autocast(Checked):
    """A problem whose losses and features are computed under `torch.autocast` in bfloat16, and returned in float32.

    What is float64 stays so.

    As `step_problem` of `MetaPretraining` it serves the plain PT steps, and hypergradients stay in float32. As
    `problem` it serves hypergradients, too, whose second derivatives then have bfloat16's rounding errors. What else
    the problem offers, such as `targets`, is computed as it is.

    Args:
        problem: the losses.
        device: the kind of device, "cuda" or "cpu".
    """

    def __init__(self, problem: MetaProblem, device: str = "cuda") -> None:
        self._problem, self._device = problem, torch.device(device).type

    @property
    def tested(self) -> bool:
        """Return whether tests have compared the second derivatives of the problem (see `is_tested`)."""
        return is_tested(self._problem)

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        """Return the PT loss of `problem`."""
        with torch.autocast(self._device, torch.bfloat16):
            return _single(self._problem.pretrain_loss(pretrained, meta, batch))

    def encode(self, encoder: Params, batch: Any) -> Tensor:
        """Return the features of `problem`."""
        with torch.autocast(self._device, torch.bfloat16):
            return _single(self._problem.encode(encoder, batch))

    def head_loss(self, head: Params, features: Tensor, batch: Any) -> Tensor:
        """Return the FT loss of `problem`."""
        with torch.autocast(self._device, torch.bfloat16):
            return _single(self._problem.head_loss(head, features, batch))


def _single(value: Tensor) -> Tensor:
    return value.to(torch.promote_types(value.dtype, torch.float32))
