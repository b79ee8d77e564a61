"""The inputs of a PT run: graphs, labels and tasks of its setting, minibatches, and random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metapt.domains.ppi import config
from metapt.domains.ppi.batches import PpiBatches
from metapt.domains.ppi.data.dataset import Indices, PpiDataset, held_out_tasks, splits
from metapt.domains.ppi.data.graphs import pack, unpack
from metapt.domains.ppi.data.task_relations import related, task_groups
from metapt.domains.ppi.features import head_aurocs
from metapt.domains.ppi.gin import GinEncoder, initial_head, initial_pretrained
from metapt.domains.ppi.problem import initial_meta
from metapt.domains.ppi.quantities import ONLINE
from metapt.domains.ppi.settings import HALF_DATA, HELD_OUT, permuted_share
from metapt.errors import ConfigError
from metapt.hypergrad import Params, Pretrained
from metapt.training.checkpoint import Checkpoint
from metapt.training.seeds import generator

_Batches = TypeVar("_Batches", bound=PpiBatches)


@dataclass(frozen=True)
class PpiSetting:
    """The inputs of a PT run."""

    dataset: PpiDataset  # all graphs
    network: config.Network  # the encoder's layers and width
    pretrain: config.PpiPretraining  # settings of PT, with the changes of the arm
    test_species: list[int]  # NCBI taxa
    seed: int  # the PT seed
    name: str  # the setting: one of `metapt.domains.ppi.settings.SETTINGS`, or a name from `permuted`
    learned: Tensor | None  # logits of the task weights that another arm has learned; None if the arm takes none
    checkpoint: Callable[[str], Checkpoint]  # the name of a part of the run -> its checkpoint

    @property
    def encoder(self) -> GinEncoder:
        """Return the network, computing in float32."""
        return GinEncoder(self.network.layers, self.network.width)

    def trained(self, recompute: bool = False) -> GinEncoder:
        """Return the network, computing in the precision of PT; `recompute`: see `MetaArm`."""
        return GinEncoder(self.network.layers, self.network.width, self.pretrain.precision, recompute)

    @property
    def graphs(self) -> Indices:
        """Return the numbers of the PT graphs."""
        return splits(self.dataset.graphs, self.test_species).pretrain

    @property
    def finetune(self) -> tuple[Indices, Indices]:
        """Return the numbers of the FT graphs that meta-PT may use: training, validation."""
        parts = splits(self.dataset.graphs, self.test_species)
        if self.name != HALF_DATA:
            return parts.train, parts.validation
        random = np.random.default_rng([self.seed, 1])
        train, validation = (
            np.sort(random.permutation(part)[: -(-len(part) // 2)]) for part in (parts.train, parts.validation)
        )
        return train, validation

    @property
    def tasks(self) -> Tensor | None:
        """Return the numbers of the FT tasks that meta-PT may use; None: all."""
        if self.name not in HELD_OUT:
            return None
        held_out = held_out_tasks(self.dataset.fine_tasks, HELD_OUT.index(self.name))
        return torch.tensor([task for task in range(self.dataset.fine_tasks) if task not in held_out])

    @property
    def finetune_tasks(self) -> int:
        tasks = self.tasks
        return self.dataset.fine_tasks if tasks is None else len(tasks)

    @property
    def steps_per_epoch(self) -> int:
        return max(1, len(self.graphs) // self.pretrain.batch_size)

    @property
    def steps(self) -> int:
        """Return the number of PT steps of a run."""
        return self.pretrain.epochs * self.steps_per_epoch

    def permuted(self) -> Indices:
        """Return the PT tasks whose labels are permuted over the PT graphs; none in most settings.

        They are the same for all PT seeds, which then share one data set, and those of a larger share include those of
        a smaller one.
        """
        tasks = self.dataset.coarse_tasks
        random = np.random.default_rng([0, 2])
        return np.sort(random.permutation(tasks)[: round(100 * permuted_share(self.name)) * tasks // 100])

    def coarse(self) -> Tensor | None:
        """Return the PT labels of all graphs as bits; None: the labels of the data set."""
        chosen = self.permuted()
        if not len(chosen):
            return None
        graphs, random = self.graphs, np.random.default_rng([0, 3])
        labels = unpack(self.dataset.graphs.coarse, self.dataset.coarse_tasks)
        for task in chosen:
            labels[graphs, task] = labels[random.permutation(graphs), task]
        return torch.from_numpy(pack(labels.astype(np.bool_))).to(self.dataset.device)

    def groups(self, count: int) -> NDArray[np.int64]:
        """Return the group, from 0 to count - 1, of each PT task by its labels on the PT graphs; see `task_groups`."""
        bits = self.coarse()
        coarse = self.dataset.graphs.coarse if bits is None else bits.cpu().numpy()
        return task_groups(unpack(coarse[self.graphs], self.dataset.coarse_tasks), count)

    def relatives(self) -> NDArray[np.bool_]:
        """Return a mask [PT tasks] of the tasks that an FT task implies by the setting's labels (see `related`)."""
        known, bits, tasks = np.concatenate(self.finetune), self.coarse(), self.tasks
        coarse = self.dataset.graphs.coarse if bits is None else bits.cpu().numpy()
        fine = unpack(self.dataset.graphs.fine[known], self.dataset.fine_tasks)
        granted = fine if tasks is None else fine[:, tasks.numpy()]
        return np.asarray(related(unpack(coarse[known], self.dataset.coarse_tasks), granted).any(1))

    def sets(self, arm: config.PpiMeta | None = None) -> dict[str, tuple[Indices, int]]:
        """Return the graphs of each set of minibatches and the size of these, for a meta arm or (None) any other arm.

        Raises ConfigError if there are more folds than FT graphs.
        """
        train, validation = self.finetune
        size = self.pretrain.batch_size
        larger = None if arm is None else arm.hypergradient_batch
        sets = {"pretrain": (self.graphs, size), "hypergradient": (self.graphs, larger or size)}
        if arm is None:
            return sets | {"train": (train, size), "validation": (validation, size)}
        if arm.folds is None:
            sizes = [arm.batch_size or len(part) for part in (train, validation)]
            return sets | {"train": (train, sizes[0]), "validation": (validation, sizes[1])}
        # The remainder goes to validation, so that no graph is in two parts of a hypergradient.
        both = np.random.default_rng([self.seed, 4]).permutation(np.concatenate([train, validation]))
        largest = len(both) // arm.folds
        if not largest:
            raise ConfigError(
                f"folds is {arm.folds}, and there are {len(both)} FT graphs; legal: at most as many folds."
            )
        part = min(arm.batch_size or largest, largest)
        updates = 1 if part == largest else (len(both) - part) // (part * (arm.folds - 1))  # per pass
        rest = len(both) - updates * part * (arm.folds - 1)
        return sets | {"train": (both[rest:], part), "validation": (both[:rest], rest if part == largest else part)}

    def batches(self, kind: type[_Batches], arm: config.PpiMeta | None = None) -> _Batches:
        """Return the minibatches of an arm, of a kind that suits its PT loss."""
        return kind(
            self.dataset,
            self.sets(arm),
            self.network,
            self.pretrain.dropout,
            self.seed,
            coarse=self.coarse(),
            tasks=self.tasks,
            offset_centres=self.pretrain.offset_centres,
        )

    def initial(self) -> Pretrained:
        """Return the random weights of the PT seed, the same for all arms."""
        stream, tasks = generator("ppi weights", self.seed), self.dataset.coarse_tasks
        return initial_pretrained(self.network.layers, self.network.width, tasks, stream).to(self.dataset.device)

    def initial_head(self) -> Params:
        """Return the random FT head of the PT seed."""
        made = initial_head(self.network.width, self.finetune_tasks, generator("ppi head", self.seed))
        return {name: value.to(self.dataset.device) for name, value in made.items()}

    def initial_meta(self, tasks: int) -> Params:
        """Return the logits of task weights of 1."""
        return {name: value.to(self.dataset.device) for name, value in initial_meta(tasks).items()}

    def online(self, encoder: Params, head: Params) -> dict[str, Tensor]:
        """Return the AUROC (%) of an FT head on validation and test graphs."""
        parts = splits(self.dataset.graphs, self.test_species)
        graphs = {ONLINE["validation"]: parts.validation, ONLINE["test"]: parts.test}
        tasks = self.tasks
        return {
            name: torch.tensor([head_aurocs(self.encoder, encoder, head, self.dataset, torch.from_numpy(part), tasks)])
            for name, part in graphs.items()
        }
