"""Objects of the method from sections of the config."""

from __future__ import annotations

from metapt import sections
from metapt.hypergrad import ConjugateGradient, Identity, Neumann
from metapt.hypergrad.inverse import Inverse


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
