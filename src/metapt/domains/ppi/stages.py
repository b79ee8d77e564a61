"""What PT and FT runs may see (their settings), what their jobs read, and what they measure. Needs no torch."""

from __future__ import annotations

from metapt.domains.ppi.config import Arm, Network, PpiFinetuning, PpiPretraining, uses_labels
from metapt.domains.ppi.data.sections import String
from metapt.sections import JobSettings
from metapt.twostage import jobs

FOLDS = 4  # number of parts of the FT tasks, each held out in turn

FULL_ACCESS, HALF_DATA = "full_access", "half_data"
HELD_OUT = tuple(f"held_out_{fold}" for fold in range(FOLDS))
SETTINGS = (FULL_ACCESS, HALF_DATA, *HELD_OUT)
"""Names of settings in paths and in the column `setting` of the metrics."""

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


class PpiPrepareSettings(JobSettings):
    """What the job reads that prepares raw files."""

    string: String | None  # the files of STRING and what is made of them; None: the archive is read
    test_species: list[int]  # NCBI taxa


class PpiPretrainSettings(jobs.PretrainSettings):
    """What a PT job reads."""

    arm_settings: Arm  # without its changes of PT and FT
    setting: str  # one of `SETTINGS`
    network: Network
    test_species: list[int]  # NCBI taxa
    pretrain: PpiPretraining  # with the arm's changes


class PpiFinetuneSettings(jobs.FinetuneSettings):
    """What an FT job reads."""

    setting: str  # one of `SETTINGS`
    network: Network
    test_species: list[int]  # NCBI taxa
    finetune: PpiFinetuning  # with the arm's changes


def group(number: int) -> str:
    """Return the name of the weight of a group of PT tasks, in tables of runs."""
    return f"group_{number:02d}"


def pretrain_setting(arm: Arm, setting: str) -> str:
    """Return the setting of the PT run that serves `setting`.

    Half data and held-out tasks change the FT data only, so PT that sees no FT data is then that of full access.
    """
    return setting if uses_labels(arm) else FULL_ACCESS


def finetune_setting(arm: Arm, setting: str) -> str:
    """Return the setting whose FT runs serve `setting`: under half data, PT has fewer FT graphs, and FT all of them."""
    return pretrain_setting(arm, setting) if setting == HALF_DATA else setting


def cka_with(other: str) -> str:
    """Return the name of the centred kernel alignment with another arm."""
    return f"CKA with {other}"
