"""Names of settings and tasks in tables and figures, and how figures draw arms."""

from __future__ import annotations

import textwrap

import pandas as pd

from metapt.evaluation.looks import Style

STYLES: dict[str, Style] = {
    "no_pt": (6, 6, "-"),
    "graph_supervised": (0, 0, "-"),
    "graph_supervised-slow": (0, 1, "--"),
    "no_pt-released": (6, 3, ":"),
    "graph_supervised-released": (0, 3, ":"),
    "cotrain": (5, 4, "-"),
    "cotrain_pcgrad": (4, 5, "-"),
    "cotrain_pcgrad-shared": (4, 0, "--"),
    "cotrain_learned_weights": (3, 3, "-"),
    "meta": (1, 1, "-"),
    "meta-fast": (1, 0, "--"),
    "meta-released": (1, 3, ":"),
    "meta-identity": (1, 6, "--"),
    "meta-stable": (2, 2, "-"),
    "meta-frozen": (4, 1, "--"),
    "meta-permuted": (6, 1, "--"),
    "meta-stable-frozen": (2, 4, ":"),
    "meta-stable-permuted": (6, 2, ":"),
    "meta-top": (2, 0, "--"),
    "meta-bottom": (3, 5, "--"),
    "related_only": (0, 4, "--"),
}
"""How figures draw arms of the default config."""

SETTINGS = {
    "full_access": "full access",
    "half_data": "half data",
    "held_out_tasks": "held-out tasks",
    "permuted_50": "50 % of PT tasks permuted",
    "permuted_90": "90 % of PT tasks permuted",
}


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
