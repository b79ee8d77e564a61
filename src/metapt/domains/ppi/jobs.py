"""The jobs of the PPI domain: what they read, their memory and time."""

from __future__ import annotations

import json
from typing import Any

from metapt.domains.ppi.config import (
    Arm,
    CoTrain,
    LearnedWeights,
    PpiFinetuning,
    PpiMeta,
    PpiPretraining,
    PpiSettings,
    WithoutPretraining,
    weights_of,
)
from metapt.domains.ppi.data.sections import ARCHIVE, SIMULATED, String, string_names
from metapt.domains.ppi.stages import (
    PpiFinetuneSettings,
    PpiPrepareSettings,
    PpiPretrainSettings,
    finetune_setting,
    pretrain_setting,
)
from metapt.engine.jobs import Job
from metapt.twostage.arms import to_pretrain
from metapt.twostage.jobs import TwoStageJobs, Work

PREPARED = {"graphs": "graphs.npz", "tasks": "tasks.csv", "counts": "counts.csv"}
"""Outputs of `data/prepare.py`: name -> file name."""


class PpiJobs(TwoStageJobs[PpiSettings, Arm]):
    """The jobs of the PPI domain; see `metapt.domains.ppi.stages` for its settings."""

    config: PpiSettings

    def prepared(self) -> Job:
        source, files = self.config.source, raw_names(self.config)
        if source == "string":
            raw = {file: self.download(self._string(file), file).outputs["file"] for file in files}
        else:
            raw = self.raw(files, minutes=240)
        string = None if source == "hu2020" else string_of(self.config)
        settings = PpiPrepareSettings(string=string, test_species=self.config.test_species)
        # The archive holds the graphs of all species; of STRING's files, one species is read at a time.
        mem_mb = 12000 if source == "hu2020" else 3000 + self._graphs() // 20
        return self.prepare(source, PREPARED, settings, raw, mem_mb=mem_mb, minutes=120)

    pretrain_setting = staticmethod(pretrain_setting)
    finetune_setting = staticmethod(finetune_setting)

    def has_encoder(self, arm: Arm) -> bool:
        """Return whether the arm pre-trains; without PT each FT seed draws an encoder."""
        return not isinstance(arm, WithoutPretraining)

    def pretrain_work(self, name: str, arm: Arm, setting: str, seed: int) -> Work:
        pretrain, prepared = self.changed_pretrain(arm), self.prepared().outputs
        inputs = {each: prepared[each] for each in ("graphs", "tasks")}
        source = weights_of(arm)
        if source is not None:
            inputs["weights"] = self.pretrain(source, setting, seed).outputs["pretrained"]
        settings = PpiPretrainSettings(
            arm=name,
            seed=seed,
            arm_settings=to_pretrain(arm),
            setting=setting,
            network=self.config.network,
            test_species=self.config.test_species,
            pretrain=pretrain,
        )
        larger = getattr(arm, "hypergradient_batch", None) or pretrain.batch_size
        mem_mb = self.mem_mb(max(larger, self._update_graphs(arm)))
        return Work(settings, inputs, mem_mb, self._pretrain_minutes(arm, pretrain))

    def finetune_work(self, name: str, arm: Arm, setting: str, seed: int) -> Work:
        config, own = self.config, self.changed_finetune(arm)
        settings = PpiFinetuneSettings(
            arm=name,
            seed=seed,
            finetune_seeds=config.finetune_seeds,
            evaluations=config.evaluations,
            setting=setting,
            network=config.network,
            test_species=config.test_species,
            finetune=own,
        )
        inputs = {"graphs": self.prepared().outputs["graphs"]}
        return Work(settings, inputs, self.mem_mb(own.batch_size), self._finetune_minutes(own))

    def _string(self, file: str) -> dict[str, Any]:
        """Return the entry of sources.yaml for one of STRING's files."""
        taxon, version = file.split(".")[0], self.config.string.version
        text = json.dumps(self.place.sources["string-{version}"])
        source: dict[str, Any] = json.loads(text.replace("{version}", version).replace("{taxon}", taxon))
        return source | {"files": {file: source["files"][file]}}

    def _graphs(self) -> int:
        """Return an estimate of the number of graphs of the source."""
        sizes = {"simulated": 1500, "string": 10000 * len(self.config.string.species), "hu2020": 88000}
        return sizes[self.config.source]

    def _size(self) -> float:
        """Return work and memory of the network relative to the paper's network."""
        return self.config.network.layers * self.config.network.width / (5 * 300)

    def mem_mb(self, batch: int) -> int:
        """Return the memory in MB of training with minibatches of `batch` graphs.

        Imports take 500 MB and 50 prepared graphs 1 MB. At full size, a graph of a minibatch takes 6 MB for its
        derivatives. The result allows for 1 GB more, and for twice the memory of a minibatch.
        """
        return int(1500 + self._graphs() / 50 + 12 * batch * self._size())

    def _minutes(self, graphs: float) -> int:
        """Return the time limit in minutes of a job with this many forward and backward passes of one graph.

        At full size a core processes 190 graphs per second, and a GPU ten times as many.
        """
        return int(60 + graphs * self._size() / (60 * 190 * (10 if self.place.gpu else 1)))

    def _update_graphs(self, arm: Arm) -> int:
        """Return the largest possible number of FT graphs in a hypergradient."""
        if not isinstance(arm, PpiMeta):
            return 0
        parts = arm.folds or (1 + max(1, arm.unroll_steps) if arm.unroll == "head" else 2)
        return min(self._graphs(), (arm.batch_size or self._graphs()) * parts)

    def _pretrain_minutes(self, arm: Arm, pretrain: PpiPretraining) -> int:
        """Return the time limit in minutes of a PT run."""
        graphs = pretrain.epochs * self._graphs() if self.has_encoder(arm) else 0
        passes = 2.0 * graphs
        if isinstance(arm, PpiMeta):
            updates = graphs / (pretrain.batch_size * arm.pretrain_steps)
            size = arm.hypergradient_batch or pretrain.batch_size
            passes += updates * arm.accumulate * (arm.passes * size + self._update_graphs(arm))
        if isinstance(arm, CoTrain | LearnedWeights):  # of PT and FT minibatches
            updates = (3 + arm.neumann_terms) / arm.pretrain_steps if isinstance(arm, LearnedWeights) else 0
            passes += 2 * graphs * (1 + updates)
        return self._minutes(passes)

    def _finetune_minutes(self, finetune: PpiFinetuning) -> int:
        """Return the time limit of the FT runs of a PT seed.

        The first FT seed tries all learning rates, and linear evaluation encodes each graph once.
        """
        config = self.config
        runs = config.finetune_seeds - 1 + len(finetune.lrs)
        epochs = finetune.epochs if "full_transfer" in config.evaluations else 0
        return self._minutes((runs * epochs + 1) * self._graphs())


def raw_names(ppi: PpiSettings) -> list[str]:
    """Return the names of the raw files within their folder."""
    return [ARCHIVE] if ppi.source == "hu2020" else string_names(string_of(ppi))


def string_of(ppi: PpiSettings) -> String:
    """Return the section `string` with the files of the source; generated files have their own species."""
    if ppi.source != "simulated":
        return ppi.string
    files = {key: getattr(SIMULATED, key) for key in ("version", "links", "species")}
    return ppi.string.model_copy(update=files)
