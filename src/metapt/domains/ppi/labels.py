"""Labels of arms, settings and tasks in tables and figures, and the look of arms in figures."""

from __future__ import annotations

import textwrap
from functools import partial

import pandas as pd

from metapt.evaluation import looks as generic

_LOOKS: generic.Known = {
    "no_pt": ("no PT", 6, 6, "-"),
    "graph_supervised": ("graph supervised", 0, 0, "-"),
    "graph_supervised-slow": ("graph supervised, slow", 0, 1, "--"),
    "no_pt-released": ("no PT, released", 6, 3, ":"),
    "graph_supervised-released": ("graph supervised, released", 0, 3, ":"),
    "cotrain": ("CoTrain", 5, 4, "-"),
    "cotrain_pcgrad": ("CoTrain + PCGrad", 4, 5, "-"),
    "cotrain_pcgrad-shared": ("CoTrain + PCGrad, shared part", 4, 0, "--"),
    "cotrain_learned_weights": ("CoTrain + learned weights", 3, 3, "-"),
    "meta": ("meta", 1, 1, "-"),
    "meta-fast": ("meta, fast", 1, 0, "--"),
    "meta-released": ("meta, released", 1, 3, ":"),
    "meta-identity": ("meta, no inverse", 1, 6, "--"),
    "meta-stable": ("meta-stable", 2, 2, "-"),
    "meta-frozen": ("meta's weights, frozen", 4, 1, "--"),
    "meta-permuted": ("meta's weights, permuted", 6, 1, "--"),
    "meta-stable-frozen": ("meta-stable's weights, frozen", 2, 4, ":"),
    "meta-stable-permuted": ("meta-stable's weights, permuted", 6, 2, ":"),
    "meta-top": ("top quarter of tasks", 2, 0, "--"),
    "meta-bottom": ("bottom quarter of tasks", 3, 5, "--"),
    "related_only": ("related tasks only", 0, 4, "--"),
}

SETTINGS = {
    "full_access": "full access",
    "half_data": "half data",
    "held_out_tasks": "held-out tasks",
    "permuted_tasks": "half of the PT tasks permuted",
    "released_centre": "released batching",
    "permuted_50": "50 % of PT tasks permuted",
    "permuted_90": "90 % of PT tasks permuted",
}

# an arm of the default config has the same label and look everywhere
label = partial(generic.label, known=_LOOKS)
looks = partial(generic.looks, known=_LOOKS)


def task_names(tasks: pd.DataFrame, kind: str, width: int = 48) -> dict[int, str]:
    """Return the description of each task of a kind, by index, or its term if it has none; cut to `width` letters.

    >>> tasks = pd.DataFrame({"kind": ["coarse"], "task": [3], "term": ["GO:0008150"], "description": [""]})
    >>> task_names(tasks, "coarse")
    {3: 'GO:0008150'}
    """
    part = tasks[tasks["kind"] == kind]
    words = zip(part["task"].astype(int), part["description"].fillna(""), part["term"].fillna(""), strict=True)
    return {
        task: textwrap.shorten(str(description or term or f"task {task}"), width, placeholder=" ...")
        for task, description, term in words
    }
