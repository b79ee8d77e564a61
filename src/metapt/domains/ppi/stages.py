"""What jobs on protein graphs read beside their inputs. Needs no torch."""

from __future__ import annotations

from metapt.domains.ppi.config import Arm, Network, PpiFinetuning, PpiPretraining
from metapt.domains.ppi.data.sections import Source, String
from metapt.sections import JobSettings
from metapt.twostage import jobs


class PpiPrepareSettings(JobSettings):
    """What the job reads that prepares raw files."""

    source: Source
    string: String | None  # the files of STRING and what is made of them; None: the archive is read
    test_species: list[int]  # NCBI taxa


class PpiPretrainSettings(jobs.PretrainSettings):
    """What a PT job reads."""

    arm_settings: Arm  # without its changes of PT and FT
    setting: str  # see `metapt.domains.ppi.settings`
    network: Network
    test_species: list[int]  # NCBI taxa
    pretrain: PpiPretraining  # with the arm's changes


class PpiFinetuneSettings(jobs.FinetuneSettings):
    """What an FT job reads."""

    setting: str  # see `metapt.domains.ppi.settings`
    network: Network
    test_species: list[int]  # NCBI taxa
    finetune: PpiFinetuning  # with the arm's changes
