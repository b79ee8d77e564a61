"""What PT and FT jobs read beside their inputs, as far as all domains have it. Needs no torch."""

from __future__ import annotations

from metapt.sections import ResumableSettings


class PretrainSettings(ResumableSettings):
    """What a PT job of an arm reads."""

    arm: str  # its name
    seed: int  # the PT seed


class FinetuneSettings(ResumableSettings):
    """What an FT job of an arm reads: all its FT runs from the encoder of a PT seed."""

    arm: str  # its name
    seed: int  # the PT seed
    finetune_seeds: int  # how many FT runs there are under each evaluation
    evaluations: list[str]  # of `metapt.twostage.quantities.EVALUATIONS`
