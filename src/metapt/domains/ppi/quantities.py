"""Names of the quantities that PT and FT runs on protein graphs measure, in the tables of metrics and series."""

from __future__ import annotations

AUROC = "mean test AUROC over FT tasks (%)"
TASK_AUROC = "test AUROC of a task (%)"
"""Series of FT runs; its step is the number of the FT task."""

ONLINE = {"validation": "online validation AUROC (%)", "test": "online test AUROC (%)"}
"""AUROC of the FT head that is trained during PT."""

WEIGHT = "learned weight"  # a series of PT runs; its step is the number of the PT task
QUANTILES = {"weight, 10 % quantile": 0.1, "weight, median": 0.5, "weight, 90 % quantile": 0.9}
PLANTED = "AUROC of weight against planted use"
RELATIVES, OTHERS = "mean weight of relatives", "mean weight of others"

REPRESENTATIONS = "representations"  # the evaluation under which comparisons of features are recorded


def cka_with(other: str) -> str:
    """Return the name of the centred kernel alignment with another arm."""
    return f"CKA with {other}"
