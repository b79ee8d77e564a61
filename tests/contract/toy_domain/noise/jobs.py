"""The jobs of this domain."""

from __future__ import annotations

from metapt.domains.noise.config import NoisePretrainSettings, NoiseSettings

from metapt.engine.jobs import Job, Jobs
from metapt.sections import JobSettings
from metapt.twostage.jobs import FinetuneSettings

RAW = ["examples.csv"]
PREPARED = {"examples": "examples.pt"}


class NoiseJobs(Jobs[NoiseSettings]):
    """The jobs of the toy domain; see `Jobs`."""

    def prepared(self) -> Job:
        """Return the job that prepares the generated examples."""
        raw = self.simulate("simulated", RAW)
        return self.prepare("simulated", PREPARED, JobSettings(), raw.outputs, mem_mb=1000, minutes=10)

    def pretrain(self, arm: str, seed: int) -> Job:
        """Return the PT run of an arm with a PT seed."""
        own = self.config.arms[arm].to_run()
        settings = NoisePretrainSettings(arm=arm, seed=seed, arm_settings=own, epochs=self.config.epochs)
        path = f"pretrain/{arm}/all/seed{seed}"
        inputs = self.prepared().outputs
        return self.training("pretrain", path, "domains.noise.pretrain", settings, inputs, mem_mb=1500, minutes=10)

    def finetune(self, arm: str, seed: int) -> Job:
        """Return the FT runs of an arm with a PT seed."""
        seeds, evaluations = self.config.finetune_seeds, ["linear_evaluation"]
        settings = FinetuneSettings(arm=arm, seed=seed, finetune_seeds=seeds, evaluations=evaluations)
        path = f"finetune/{arm}/all/seed{seed}"
        inputs = self.prepared().outputs | {"pretrained": self.pretrain(arm, seed).outputs["pretrained"]}
        return self.training("finetune", path, "domains.noise.finetune", settings, inputs, mem_mb=1500, minutes=10)
