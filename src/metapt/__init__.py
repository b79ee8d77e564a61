"""metapt: learn how to pre-train, by gradients through pre-training and fine-tuning (Raghu et al., NeurIPS 2021).

Besides the names here, `metapt.hypergrad` has the hypergradients with their solvers. What imports torch is imported
when it is asked for, since the workflow has jobs that need none.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from metapt.errors import with_extra

if TYPE_CHECKING:  # the same as in _PLACES
    from metapt.hypergrad.distributed import distributed as distributed
    from metapt.hypergrad.distributed import processes_of as processes_of
    from metapt.training.check import check as check
    from metapt.training.checkpoint import Checkpoint as Checkpoint
    from metapt.training.loaders import LoaderBatches as LoaderBatches
    from metapt.training.meta import MetaPretraining as MetaPretraining
    from metapt.training.meta_settings import MetaSettings as MetaSettings
    from metapt.training.module_problem import Autocast as Autocast
    from metapt.training.module_problem import ModuleProblem as ModuleProblem
    from metapt.training.optimizers import OptimizerSpec as OptimizerSpec
    from metapt.training.pretraining import Pretrainer as Pretrainer
    from metapt.training.recorder import Recorder as Recorder
    from metapt.training.supervised import finetune_head as finetune_head
    from metapt.twostage.own_problem import headroom as headroom

__version__ = "0.3.0"
_PLACES = {
    "Autocast": "training.module_problem",
    "Checkpoint": "training.checkpoint",
    "LoaderBatches": "training.loaders",
    "MetaPretraining": "training.meta",
    "MetaSettings": "training.meta_settings",
    "ModuleProblem": "training.module_problem",
    "OptimizerSpec": "training.optimizers",
    "Pretrainer": "training.pretraining",
    "Recorder": "training.recorder",
    "check": "training.check",
    "distributed": "hypergrad.distributed",
    "finetune_head": "training.supervised",
    "headroom": "twostage.own_problem",
    "processes_of": "hypergrad.distributed",
}
__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'metapt' has no attribute {name!r}")
    with with_extra(f"metapt.{name}"):
        return getattr(import_module(f"metapt.{_PLACES[name]}"), name)
