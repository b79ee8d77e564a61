"""Experiment `permuted_90`: searches of group weights where 90 % of the PT tasks have permuted labels."""

from metapt.domains.ppi.searches import searches

EXPERIMENT = searches(90, order=15)
