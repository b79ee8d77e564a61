"""metapt: learn how to pre-train, by gradients through pre-training and fine-tuning (Raghu et al., NeurIPS 2021)."""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name != "headroom":
        raise AttributeError(f"module 'metapt' has no attribute {name!r}")
    # It imports torch and pandas, so only when it is asked for; by name, since it is of a layer above.
    from importlib import import_module

    return import_module("metapt.twostage.own_problem").headroom
