"""What jobs on ECGs read beside their inputs, and the names of what they measure. Needs no torch."""

from __future__ import annotations

from metapt.domains.ecg.config import Arm, EcgFinetuning, EcgPretraining, Split
from metapt.domains.ecg.data import EcgFolder
from metapt.sections import JobSettings
from metapt.twostage import jobs


class FolderSettings(JobSettings):
    """What the job reads that prepares records of a folder."""

    folder: EcgFolder
    files: str  # digest of the names, sizes and times of change of its files, see `find`


class EcgPretrainSettings(jobs.PretrainSettings):
    """What a PT job reads: the arm, the ECGs that it sees, and the encoder."""

    arm_settings: Arm  # without its changes of PT and FT
    meta_size: int | None  # labelled ECGs that PT sees; None: none
    split: Split | None  # of them, into training and validation; None: there are none
    width: int  # of the encoder
    samples: int  # length of a signal
    pretrain: EcgPretraining  # with the arm's changes
    finetune: EcgFinetuning | None = None  # of the FT runs that judge PT runs, with the arm's changes; None: none do
    capture: bool = False  # see `EcgSettings`


class EcgFinetuneSettings(jobs.FinetuneSettings):
    """What an FT job reads: its ECGs, and how it trains."""

    meta_size: int | None  # labelled ECGs that PT saw; None: none
    size: int  # labelled ECGs of FT
    split: Split  # of them, into training and validation
    width: int  # of the encoder
    samples: int  # length of a signal
    finetune: EcgFinetuning  # with the arm's changes
    capture: bool = False  # see `EcgSettings`


AUROC = "mean test AUROC over 5 classes (%)"  # of PTB-XL; see `mean_auroc`
WARP_SCALE = "warp scale m"
WARP_STRENGTH = "warp strength"
DISPLACEMENT = "warp displacement (samples)"
CANDIDATE_STRENGTH = "candidate strength"  # of a random search with short runs
CANDIDATE_LOSS = "cross-validated FT loss"


def mean_auroc(classes: int) -> str:
    """Return the name of the mean test AUROC over so many classes."""
    return f"mean test AUROC over {classes} class{'es' * (classes > 1)} (%)"
