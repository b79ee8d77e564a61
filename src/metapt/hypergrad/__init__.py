"""The method: hypergradients through pre-training (PT) and fine-tuning (FT).

The package needs torch and NumPy only. It depends on no domain, no file and no workflow.
"""

from metapt.hypergrad.bptt import ExactHypergradient, exact_hypergradient
from metapt.hypergrad.finetune import FineTuned, FineTuning, Unroll
from metapt.hypergrad.fitted import FittedHead
from metapt.hypergrad.hybrid import Diagnostics, Hypergradient, hypergradient
from metapt.hypergrad.inverse import ConjugateGradient, Dense, Identity, Neumann, SolveResult, Status
from metapt.hypergrad.optimizers import SGD, Adam
from metapt.hypergrad.params import Params, Pretrained
from metapt.hypergrad.problem import ForwardProblem, GaussNewtonProblem, MetaProblem
from metapt.hypergrad.ridge import RidgeHead, TargetsProblem
from metapt.hypergrad.stacked import Stacked

__all__ = [
    "SGD",
    "Adam",
    "ConjugateGradient",
    "Dense",
    "Diagnostics",
    "ExactHypergradient",
    "FineTuned",
    "FineTuning",
    "FittedHead",
    "ForwardProblem",
    "GaussNewtonProblem",
    "Hypergradient",
    "Identity",
    "MetaProblem",
    "Neumann",
    "Params",
    "Pretrained",
    "RidgeHead",
    "SolveResult",
    "Stacked",
    "Status",
    "TargetsProblem",
    "Unroll",
    "exact_hypergradient",
    "hypergradient",
]
