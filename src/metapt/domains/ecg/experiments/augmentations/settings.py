"""What the job of the experiment `augmentations` reads. Needs neither torch nor matplotlib."""

from __future__ import annotations

from metapt.domains.ecg.config import Arm, EcgPretraining
from metapt.sections import JobSettings


class ViewsSettings(JobSettings):
    """What the job reads that makes views and measures the strength of each arm's warp."""

    arms: dict[str, Arm]
    seeds: list[int]  # the PT seeds
    width: int  # of the encoder
    samples: int  # length of a signal
    pretrain: EcgPretraining
