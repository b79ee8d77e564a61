"""How figures draw arms of the default config."""

from __future__ import annotations

from metapt.evaluation.looks import Style

STYLES: dict[str, Style] = {
    "no_pt": (6, 6, "-"),
    "simclr": (0, 0, "-"),
    "simclr-mild": (0, 5, "--"),
    "optsla": (5, 4, "-"),
    "meta": (1, 1, "-"),
    "meta-frozen": (1, 2, ":"),
    "meta-permuted_labels": (1, 4, "--"),
    "meta-random_sign": (1, 0, "--"),
    "meta-k0": (4, 4, "--"),
    "meta-k5": (3, 3, "--"),
    "meta-k10": (2, 5, "--"),
    "meta-identity": (1, 6, "--"),
    "no_pt-released": (6, 3, ":"),
    "simclr-released": (0, 3, ":"),
    "meta-released": (1, 5, ":"),
    "meta-stable": (2, 2, "-"),
    "meta-stable-start": (2, 0, "--"),
    "meta-stable-frozen": (2, 1, ":"),
    "meta-refitted": (5, 3, "--"),
    "random_search": (3, 3, "-"),
    "best_of_4": (0, 2, ":"),
}
