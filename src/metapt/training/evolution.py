"""Persistent evolution strategies: a derivative along a whole PT run from perturbed runs, without backpropagation.

Vicol, Metz and Sohl-Dickstein 2021, "Unbiased Gradient Estimation in Unrolled Computation Graphs with Persistent
Evolution Strategies" (ICML).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from metapt.hypergrad import MetaProblem, Params, Pretrained
from metapt.hypergrad.finetune import FineTuning
from metapt.hypergrad.optimizers import DifferentiableOptimizer
from metapt.training.batches import Batches
from metapt.training.estimators import Slope, clock
from metapt.training.progress import steps
from metapt.training.replay import joined, parted, pretraining_loss, start, take_step

NAME = "persistent ES, ridge head"
COORDINATES = "coordinates"


def perturbations(pairs: int, windows: int, coordinates: int, size: float, generator: torch.Generator) -> Tensor:
    """Return random perturbations [pairs, windows, coordinates] of +size and -size, in float64."""
    return size * (2.0 * torch.randint(2, (pairs, windows, coordinates), generator=generator).double() - 1)


@dataclass(frozen=True)
class Trajectory:
    """A PT run whose hyperparameters change on the way, with its FT.

    Attributes:
        problem: the three losses.
        pretrained: initial encoder, PT head and buffers.
        head: initial FT head.
        optimizer: optimiser of PT.
        steps: number of PT steps.
        pretrain: where PT minibatches come from.
        finetune: where FT minibatches come from; it may be the same.
        finetuning: the FT solver, which starts from `head` in each window.
    """

    problem: MetaProblem
    pretrained: Pretrained
    head: Params
    optimizer: DifferentiableOptimizer
    steps: int
    pretrain: Batches
    finetune: Batches
    finetuning: FineTuning

    def losses(self, metas: Sequence[Params]) -> tuple[Tensor, float]:
        """Return the FT loss at the end of each window [windows], and the time of the PT steps, seconds.

        `metas` are the meta-parameters of each window. The minibatches are those that come next, and both sources of
        them are where they were when it returns.
        """
        firsts = self.pretrain.state_dict(), self.finetune.state_dict()
        loss = pretraining_loss(self.problem, self.pretrained)
        state = start(joined(self.pretrained.encoder, self.pretrained.head), self.pretrained.buffers, self.optimizer)
        found, seconds = [], 0.0
        for window, meta in enumerate(metas):
            begun = clock(self.pretrained)
            first, last = (self.steps * end // len(metas) for end in (window, window + 1))
            for _ in steps(first, last):
                state = take_step(loss, self.optimizer, state, meta, self.pretrain.pretrain())
            seconds += clock(self.pretrained) - begun
            found.append(self._finetuned(parted(state.weights, self.pretrained, state.buffers)))
        self.pretrain.load_state_dict(firsts[0])
        self.finetune.load_state_dict(firsts[1])
        return torch.stack(found).double().cpu(), seconds

    def _finetuned(self, pretrained: Pretrained) -> Tensor:
        """Return the FT loss on validation data, a scalar."""
        train = [self.finetune.train() for _ in range(self.finetuning.minibatches)]
        given = self.problem, pretrained.encoder, pretrained.buffers, self.head, None
        return self.finetuning(*given, train, self.finetune.validation()).validation_loss


def slope(trajectory: Trajectory, meta: Callable[[Tensor], Params], changes: Tensor, size: float) -> Slope:
    """Estimate the derivative of the mean FT loss over windows w.r.t. coordinates of the hyperparameters.

    The cost of the estimate is the time of all runs with their FT, divided by that of the PT steps of one run.

    Args:
        trajectory: PT and FT.
        meta: returns the meta-parameters, given the change of each coordinate, [coordinates].
        changes: `perturbations` in one run of each pair; in the other run they have the opposite signs.
        size: their absolute value.

    Returns:
        The estimate, with the gradient [coordinates] under the name `COORDINATES`.
    """
    begun = clock(trajectory.pretrained)
    differences, seconds = torch.zeros(changes.shape[:2], dtype=torch.float64), 0.0
    for pair in steps(0, len(changes), "pairs of perturbed runs"):
        for sign in (1, -1):
            losses, own = trajectory.losses([meta(sign * change) for change in changes[pair]])
            differences[pair] += sign * losses
            seconds += own
    plain = seconds / (2 * len(changes))
    gradient = persistent_gradient(changes, differences, size)
    return Slope(NAME, trajectory.steps, {COORDINATES: gradient}, (clock(trajectory.pretrained) - begun) / plain)


def persistent_gradient(changes: Tensor, differences: Tensor, size: float) -> Tensor:
    """Return the estimate of Vicol et al. 2021 from perturbed runs, [coordinates].

    The FT loss of a window depends on the perturbations of this window and of all before it, so the difference of both
    runs of a pair is multiplied by their sum.

    Args:
        changes: perturbations of one run of each pair [pairs, windows, coordinates]; the other one has their opposites.
        differences: FT loss of this run minus that of the other one, at the end of each window [pairs, windows].
        size: absolute value of all perturbations.

    >>> window_1, window_2 = [[0.1], [0.1]], [[0.1], [-0.1]]
    >>> losses_of_both_windows_are_3_phi = torch.tensor([[0.6, 0.6], [0.6, 0.6]])  # phi: that of window 1
    >>> persistent_gradient(torch.tensor([window_1, window_2]), losses_of_both_windows_are_3_phi, 0.1)
    tensor([3.0000])
    """
    until = changes.cumsum(1)
    return (until * differences[..., None]).mean((0, 1)) / (2 * size**2)
