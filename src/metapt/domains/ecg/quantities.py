"""Names of what the warp study measures, in the table of series: the study writes them, tables and figures read them."""

from __future__ import annotations

DISPLACEMENT = "warp displacement (samples)"
MEAN = "hypergradient mean"
DEVIATION = "hypergradient standard deviation"
POSITIVE = "share of positive signs"
NOT_FINITE = "share not finite"
OLD_HEAD = "FT loss, old head"
REFITTED_HEAD = "FT loss, refitted head"
