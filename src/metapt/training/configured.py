"""Objects of the method from sections of the config."""

from __future__ import annotations

from typing import Any

from metapt import sections
from metapt.hypergrad import ConjugateGradient, FittedHead, Identity, Neumann, RidgeHead, Unroll
from metapt.hypergrad.finetune import FineTuning
from metapt.hypergrad.inverse import Inverse
from metapt.hypergrad.optimizers import DifferentiableOptimizer
from metapt.training.meta import MetaSettings
from metapt.training.optimizers import OptimizerSpec


def inverse(section: sections.Inverse, pretrain_lr: float) -> Inverse:
    """Return the approximation of the inverse Hessian that a section describes.

    Args:
        section: a section of the config.
        pretrain_lr: the PT learning rate, the step size of a Neumann series without one of its own, as in the released
            code of the paper.
    """
    match section:
        case sections.Neumann(terms=terms, step_size=step_size):
            return Neumann(terms, pretrain_lr if step_size is None else step_size)
        case sections.ConjugateGradient(max_steps=max_steps, rtol=rtol, damping=damping, relative_damping=relative):
            return ConjugateGradient(rtol, max_steps, damping, relative)
        case sections.Identity():
            return Identity()


def finetuning(arm: sections.MetaArm, optimizer: DifferentiableOptimizer) -> FineTuning:
    """Return the FT solver of an arm; `optimizer` takes the unrolled steps."""
    cross_fit, minibatches = arm.folds is not None, (arm.folds or 2) - 1
    match arm.unroll:
        case "fitted":
            return FittedHead(arm.l2, cross_fit=cross_fit, minibatches=minibatches)
        case "ridge":
            return RidgeHead(arm.l2, cross_fit=cross_fit, minibatches=minibatches)
        case solver:
            return Unroll(arm.unroll_steps, optimizer, network=solver == "network")


def meta_settings(
    arm: sections.MetaArm,
    *,
    iterations: int,
    warmup: int,
    pretrain_lr: float,
    pretrain_optimizer: OptimizerSpec,
    finetune_optimizer: DifferentiableOptimizer,
    groups: dict[str, dict[str, Any]] | None = None,
) -> MetaSettings:
    """Return the settings of Algorithm 2 that an arm describes.

    Args:
        arm: a section of the config.
        iterations: number of meta-iterations of P PT steps each.
        warmup: number of first iterations without a meta-update, see `sections.MetaArm.warmup`.
        pretrain_lr: see `inverse`.
        pretrain_optimizer: the optimiser of encoder and PT head.
        finetune_optimizer: takes the unrolled steps.
        groups: settings of the meta-optimiser that differ for meta-parameters whose name matches a pattern.
    """
    return MetaSettings(
        iterations=iterations,
        pretrain_steps=arm.pretrain_steps,
        warmup=warmup,
        inverse=inverse(arm.inverse, pretrain_lr),
        finetuning=finetuning(arm, finetune_optimizer),
        curvature=arm.curvature,
        pretrain_optimizer=pretrain_optimizer,
        meta_optimizer=OptimizerSpec(arm.meta_optimizer, {"lr": arm.meta_lr, **arm.meta_settings}, groups or {}),
        head_steps_between_updates=arm.head_steps_between_updates,
        accumulate=arm.accumulate,
        clip_norm=arm.clip_norm,
        normalise=arm.normalise,
        average_decay=arm.average_decay,
        explosion_factor=arm.explosion_factor,
        max_skipped=arm.max_skipped,
        reuse_gradient=arm.reuse_gradient,
    )
