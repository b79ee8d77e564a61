"""From sections of the config to the method's objects."""

from __future__ import annotations

from metapt import sections
from metapt.hypergrad import ConjugateGradient, Identity, Neumann
from metapt.hypergrad.inverse import Inverse


def inverse(section: sections.Inverse, pretrain_lr: float) -> Inverse:
    """What stands for the inverse Hessian; without a step of its own a Neumann series takes the PT learning rate, as released."""
    match section:
        case sections.Neumann(terms=terms, step_size=step_size):
            return Neumann(terms, pretrain_lr if step_size is None else step_size)
        case sections.ConjugateGradient(max_steps=max_steps, rtol=rtol, damping=damping, relative_damping=relative):
            return ConjugateGradient(rtol, max_steps, damping, relative)
        case sections.Identity():
            return Identity()
