"""The jobs of the PPI domain: their names, paths, threads, memory and time."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from metapt.domains.ppi.config import (
    Arm,
    PpiFinetuning,
    PpiMeta,
    PpiPretraining,
    PpiSettings,
    WithoutPretraining,
    resolved,
    weights_of,
)
from metapt.domains.ppi.data.sources import ARCHIVE, names, string_of
from metapt.domains.ppi.settings import FULL_ACCESS, finetune_setting, pretrain_setting
from metapt.jobs import Job, Jobs, Json
from metapt.sections import seed_numbers
from metapt.twostage.arms import changed, pretrain_settings, sharing

PREPARED = {"graphs": "graphs.npz", "tasks": "tasks.csv", "counts": "counts.csv"}
"""Outputs of `data/prepare.py`: name -> file name."""


class PpiJobs(Jobs[PpiSettings]):
    """The jobs of the section `ppi`. One run serves each experiment that needs it."""

    @property
    def large_products(self) -> bool:
        """Return whether oneDNN may be faster. On Zen 4 it is 1.2 to 1.5 times as fast at width 300, and 0.8 at 64."""
        return self.config.network.width >= 256

    @property
    def pretrain_seeds(self) -> list[int]:
        """Return the PT seeds of each arm."""
        return seed_numbers(self.config.pretrain_seeds)

    @cached_property
    def sharing(self) -> dict[str, str]:
        """See `Jobs.sharing`."""
        return sharing({name: self._pretrain_settings(self._settings(name)) for name in self.config.arms})

    def prepared(self) -> Job:
        """Return the job that prepares the data of the config's source."""
        source, files = self.config.source, names(self.config)
        match source:
            case "simulated":
                raw = self.simulate(source, files).outputs
            case "hu2020":
                raw = {ARCHIVE: self.download(self.place.sources["hu2020"], ARCHIVE, minutes=240).outputs["file"]}
            case "string":
                raw = {file: self.download(self._string(file), file).outputs["file"] for file in files}
        string = None if source == "hu2020" else string_of(self.config)
        return self.prepare(
            source,
            PREPARED,
            config={"source": source, "string": string, "test_species": self.config.test_species},
            inputs=raw,
            # The archive holds the graphs of all species; of STRING's files, one species is read at a time.
            mem_mb=12000 if source == "hu2020" else 3000 + self._graphs() // 20,
            minutes=120,
        )

    def pretrain(self, arm: str, setting: str, seed: int, settings: Arm | None = None) -> Job:
        """Return the PT run, with a PT seed, that serves an arm and a setting.

        `settings` are those of an arm that is not in `ppi.arms`.
        """
        arm = self.sharing.get(arm, arm)
        chosen = self._settings(arm, settings)
        setting, pretrain = pretrain_setting(chosen, setting), self._pretrain(chosen)
        inputs = {name: self.prepared().outputs[name] for name in ("graphs", "tasks")}
        source = weights_of(chosen)
        if source is not None:
            inputs["weights"] = self.pretrain(source, setting, seed).outputs["pretrained"]
        batch = getattr(chosen, "hypergradient_batch", None) or pretrain.batch_size
        return self.training(
            "pretrain",
            f"pretrain/{arm}/{setting}/seed{seed}",
            "domains.ppi.pretrain",
            self.pick("network", "test_species", "source")
            | {"arm": arm, "setting": setting, "seed": seed}
            | self._pretrain_settings(chosen),
            inputs,
            mem_mb=self._mem_mb(max(batch, self._update_graphs(chosen))),
            minutes=self._pretrain_minutes(chosen, pretrain),
        )

    def pretrain_all(self, arms: list[str], setting: str) -> list[Job]:
        """Return the PT runs of arms that serve a setting, of all PT seeds."""
        return [self.pretrain(arm, setting, seed) for arm in arms for seed in self.pretrain_seeds]

    def finetune(self, arm: str, setting: str, seed: int, settings: Arm | None = None) -> Job:
        """Return the job of the FT runs of an arm, with a PT seed, that serve a setting; see `pretrain`."""
        chosen = settings or self.config.arms[arm]
        setting, own = finetune_setting(chosen, setting), changed(self.config.finetune, chosen.finetune)
        inputs = {"graphs": self.prepared().outputs["graphs"]}
        if not isinstance(chosen, WithoutPretraining):  # without PT each FT seed draws an encoder
            inputs["pretrained"] = self.pretrain(arm, setting, seed, settings).outputs["pretrained"]
        keys = "finetune_seeds", "evaluations", "network", "test_species"
        given = {"arm": arm, "method": chosen.method, "setting": setting, "seed": seed, "finetune": own}
        return self.training(
            "finetune",
            f"finetune/{arm}/{setting}/seed{seed}",
            "domains.ppi.finetune",
            self.pick(*keys) | given,
            inputs,
            mem_mb=self._mem_mb(own.batch_size),
            minutes=self._finetune_minutes(own),
        )

    def finetune_all(self, arms: Iterable[str], *settings: str) -> list[Job]:
        """Return the jobs of the FT runs of arms that serve some settings, of all PT seeds."""
        return [
            self.finetune(arm, setting, seed) for arm in arms for setting in settings for seed in self.pretrain_seeds
        ]

    def representations(self, arms: list[str], graphs: int) -> Job:
        """Return the job that compares the features of `graphs` graphs between arms."""
        runs = {
            f"pretrained/{arm}/{seed}": self.pretrain(arm, FULL_ACCESS, seed).outputs["pretrained"]
            for arm in arms
            for seed in self.pretrain_seeds
        }
        return self.training(
            "study",
            "representations/cka",
            "domains.ppi.studies.representations",
            self.pick("network", "test_species") | {"arms": arms, "seeds": self.pretrain_seeds, "graphs": graphs},
            {"graphs": self.prepared().outputs["graphs"]} | runs,
            mem_mb=self._mem_mb(256),
            minutes=60,
            resumable=False,
        )

    def _settings(self, arm: str, settings: Arm | None = None) -> Arm:
        """Return the settings of an arm; `settings` are those of an arm that is not in `ppi.arms`."""
        return resolved(settings or self.config.arms[arm], self.config.arms)

    def _pretrain_settings(self, arm: Arm) -> Json:
        """Return the settings on which the PT of an arm depends."""
        return pretrain_settings(arm, self.config)

    def _pretrain(self, arm: Arm) -> PpiPretraining:
        """Return the settings of an arm's PT."""
        own = self.config.pretrain
        return own if isinstance(arm, WithoutPretraining) else changed(own, arm.pretrain)

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

    def _mem_mb(self, batch: int) -> int:
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
        return min(self._graphs(), (arm.batch_size or self._graphs()) * (arm.folds or 2))

    def _update_passes(self, arm: PpiMeta, batch_size: int) -> int:
        """Return the largest possible number of forward and backward passes of one graph in a meta-update."""
        return arm.accumulate * (arm.passes * (arm.hypergradient_batch or batch_size) + self._update_graphs(arm))

    def _pretrain_minutes(self, arm: Arm, pretrain: PpiPretraining) -> int:
        """Return the time limit in minutes of a PT run."""
        graphs = pretrain.epochs * self._graphs()
        passes = 2.0 * graphs
        if isinstance(arm, PpiMeta):
            updates = graphs / (pretrain.batch_size * arm.pretrain_steps)
            passes += updates * self._update_passes(arm, pretrain.batch_size)
        return self._minutes(passes)

    def _finetune_minutes(self, finetune: PpiFinetuning) -> int:
        """Return the time limit of the FT runs of a PT seed.

        The first FT seed tries all learning rates, and linear evaluation encodes each graph once.
        """
        config = self.config
        runs = config.finetune_seeds - 1 + len(finetune.lrs)
        epochs = finetune.epochs if "full_transfer" in config.evaluations else 0
        return self._minutes((runs * epochs + 1) * self._graphs())
