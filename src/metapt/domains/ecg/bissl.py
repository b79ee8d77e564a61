"""BiSSL (Zakarias et al. 2024, arXiv 2410.02387): PT near an anchor phi, which FT moves.

Published, in paper and released code: after plain PT, two levels alternate, both from where they are. The lower one
takes 20 PT steps of encoder theta and PT head on L_PT + lambda / 2 |theta - phi|^2. The upper one takes 8 steps of phi
and FT head on L_FT(theta*(phi)) + L_FT(phi), where the first part has the gradient

    (1 + H / (lambda + damping))^-1 dL_FT/dtheta

by 5 steps of conjugate gradients, with H the PT Hessian, lambda 1e-3 and damping 10. phi begins as plain PT's encoder;
before, the FT head is trained on it for 20 epochs. The upper level has the optimiser and the learning rate of FT. The
final FT begins from theta.

Chosen here: Adam throughout, as in all arms; plain PT is a share of the PT steps, so that all arms take as many; H is
that of encoder and PT head (there: of the encoder); BatchNorm in L_FT(theta) uses PT's statistics (there: the
minibatch's); the FT head learns from theta's features alone; FT training ECGs are unchanged, as in FT.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from metapt.domains.ecg import config
from metapt.domains.ecg.batches import SimclrBatches
from metapt.domains.ecg.data.dataset import Labelled
from metapt.domains.ecg.problem import SimclrProblem, UnlabelledBatch, classification_loss
from metapt.hypergrad import Adam, ConjugateGradient, Params, Pretrained, Unroll
from metapt.hypergrad.inverse import Matvec, SolveResult
from metapt.hypergrad.params import Vector, add, leaves, scaled, vjp
from metapt.method import whole_iterations
from metapt.training.diagnosis import Trace
from metapt.training.meta import MetaPretraining
from metapt.training.meta_settings import MetaSettings
from metapt.training.optimizers import OptimizerSpec

PLAIN = 0.5  # share of plain PT in the PT steps
ANCHOR_STEPS, HEAD_EPOCHS, SOLVE_STEPS, DAMPING, CLIP_NORM = 8, 20, 5, 10.0, 10.0


@dataclass(frozen=True)
class DampedInverse:
    """(H + damping)^-1, solved as (1 + H / damping)^-1 / damping.

    A solve that meets negative curvature at once then stands for the identity in the published formula.
    """

    rtol: float = 1e-3
    max_steps: int = SOLVE_STEPS

    def __call__(self, matvec: Matvec, b: Vector) -> SolveResult:
        solve = ConjugateGradient(self.rtol, self.max_steps, damping=1.0)
        solved = solve(lambda vector: scaled(matvec(vector), 1 / DAMPING), b)
        return solved._replace(value=scaled(solved.value, 1 / DAMPING))


@dataclass(frozen=True)
class AnchoredProblem:
    """SimCLR near an anchor: the meta-parameters are weights with the names of the encoder's."""

    tested: ClassVar = True
    simclr: SimclrProblem
    warp: Params  # what SimCLR's warp is given
    weight: float  # lambda

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: UnlabelledBatch) -> Tensor:
        squares = [(value - meta[name]).square().sum() for name, value in pretrained.encoder.items()]
        return self.simclr.pretrain_loss(pretrained, self.warp, batch) + self.weight / 2 * torch.stack(squares).sum()

    def encode(self, encoder: Params, batch: Labelled) -> Tensor:
        return self.simclr.encode(encoder, batch)

    def head_loss(self, head: Params, features: Tensor, batch: Labelled) -> Tensor:
        return self.simclr.head_loss(head, features, batch)


def bissl_settings(arm: config.BiSsl, steps: int, optimizer: OptimizerSpec) -> MetaSettings:
    """Return the settings of `steps` PT steps near the anchor; ConfigError as `whole_iterations`."""
    iterations, remainder = whole_iterations(steps, arm.pretrain_steps)
    return MetaSettings(
        iterations=iterations,
        pretrain_steps=arm.pretrain_steps,
        remainder=remainder,
        inverse=DampedInverse(),
        finetuning=Unroll(0, Adam(arm.meta_lr)),  # the optimiser is that of the FT head between meta-updates
        pretrain_optimizer=optimizer,
        meta_optimizer=OptimizerSpec("Adam", {"lr": arm.meta_lr}),
        clip_norm=CLIP_NORM,
    )


class AnchorPretraining(MetaPretraining):
    """The two levels. FT minibatches, `validation` ones included, are of the FT training set.

    The anchor begins as the encoder of `pretrained`, after `warm` steps of the FT head; else see `MetaPretraining`.
    """

    problem: AnchoredProblem

    def __init__(
        self,
        problem: AnchoredProblem,
        batches: SimclrBatches,
        pretrained: Pretrained,
        head: Params,
        settings: MetaSettings,
        step_problem: AnchoredProblem,
        warm: int,
    ) -> None:
        super().__init__(problem, batches, pretrained, pretrained.encoder, head, settings, step_problem)
        self.trace = Trace(self.meta, ANCHOR_STEPS * settings.iterations)
        self._warm = warm

    def iterate(self) -> None:
        """Take PT steps, then steps of anchor and FT head."""
        for _ in range(self._warm if self.iteration == 0 else 0):
            self._head_step()
        super().iterate()

    def _meta_update(self) -> None:
        for _ in range(ANCHOR_STEPS):
            super()._meta_update()

    def _apply(self, gradient: Vector) -> None:
        """Take a step of the anchor and of the FT head, with the implicit gradient as published.

        Equation 3 has lambda (H + lambda + damping)^-1, since lambda is the mixed derivative.
        """
        super()._apply(add(self.direct_gradient(), gradient, 1 + DAMPING / self.problem.weight))
        self._head_step()

    @torch.enable_grad()
    def direct_gradient(self) -> Vector:
        """Return the gradient of the FT loss at the anchor, where BatchNorm uses the minibatch's statistics."""
        batch, anchor = self.batches.validation(), leaves(self.meta)
        buffers = {name: value.clone() for name, value in self.pretrained.buffers.items()}
        features = self.problem.simclr.encoder({**anchor, **buffers}, batch.signals, training=True)
        return vjp([classification_loss(self.head, features, batch.labels)], list(anchor.values()))
