"""Experiment `permuted_50`: searches of group weights where 50 % of the PT tasks have permuted labels."""

from metapt.domains.ppi.searches import searches

EXPERIMENT = searches(50, order=14)
