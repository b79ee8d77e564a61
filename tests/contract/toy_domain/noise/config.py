"""The `noise` section of the config."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from metapt.method import MetaArm, NeumannSeries
from metapt.sections import ArmSection, DomainSection, Positive, Rate
from metapt.twostage.jobs import PretrainSettings


class Fixed(ArmSection):
    """An arm whose noise is fixed."""

    method: Literal["fixed"]
    share: Annotated[float, Field(gt=0, lt=1)] = Field(0.5, description="share of noise in each feature's variance")


class Meta(MetaArm):
    """An arm that learns each feature's noise."""

    pretrain_lr: Rate = Field(0.01, description="learning rate of PT (Adam)")


Arm = Annotated[Fixed | Meta, Field(discriminator="method")]

ARMS: dict[str, Arm] = {
    "fixed": Fixed(method="fixed"),
    "meta": Meta(
        unroll="fitted", folds=2, pretrain_steps=5, meta_lr=0.1, inverse=NeumannSeries(terms=5, step_size=0.1)
    ),
}


class NoiseSettings(DomainSection):
    """Noise on the features of generated examples."""

    pretrain_seeds: Positive = Field(5, description="PT runs of each arm")
    finetune_seeds: Positive = Field(2, description="FT runs of each PT run")
    epochs: Positive = Field(40, description="passes over the 5,000 PT examples, in minibatches of 200")
    arms: dict[str, Arm] = Field(ARMS, description="ways to pre-train")


class NoisePretrainSettings(PretrainSettings):
    """What a PT job reads."""

    arm_settings: Arm
    epochs: int
