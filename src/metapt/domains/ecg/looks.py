"""The labels of arms in tables and figures, and their colours, lines and markers."""

from __future__ import annotations

from functools import partial

from metapt.evaluation import looks as generic

_LOOKS: generic.Known = {
    "no_pt": ("no PT", 6, 6, "-"),
    "simclr": ("SimCLR", 0, 0, "-"),
    "simclr-mild": ("SimCLR, mild warp", 0, 5, "--"),
    "simclr-low_temperature": ("SimCLR, low temperature", 0, 4, "--"),
    "optsla": ("SimCLR + OptSLA", 5, 4, "-"),
    "meta": ("meta (K = 1)", 1, 1, "-"),
    "meta-frozen": ("meta's warp, frozen", 1, 2, ":"),
    "meta-permuted_labels": ("meta, permuted labels", 1, 4, "--"),
    "meta-random_sign": ("meta, random signs", 1, 0, "--"),
    "meta-k0": ("meta, K = 0", 4, 4, "--"),
    "meta-k5": ("meta, K = 5", 3, 3, "--"),
    "meta-k10": ("meta, K = 10", 2, 5, "--"),
    "meta-identity": ("meta, no inverse", 1, 6, "--"),
    "no_pt-released": ("no PT, released", 6, 3, ":"),
    "simclr-released": ("SimCLR, released", 0, 3, ":"),
    "meta-released": ("meta, released", 1, 5, ":"),
    "meta-stable": ("meta-stable", 2, 2, "-"),
    "meta-stable-start": ("meta-stable's warp at the start", 2, 0, "--"),
    "meta-stable-frozen": ("meta-stable's warp, frozen", 2, 1, ":"),
    "meta-refitted": ("meta, refitted head", 5, 3, "--"),
    "random_search": ("random search", 3, 3, "-"),
    "best_of_4": ("SimCLR, best of 4 runs", 0, 2, ":"),
}

# an arm of the default config has the same label and look everywhere
label = partial(generic.label, known=_LOOKS)
looks = partial(generic.looks, known=_LOOKS)
