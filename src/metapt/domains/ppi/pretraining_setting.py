"""The inputs of a PT run: graphs, labels and tasks of its setting, minibatches, and random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metapt.domains.ppi import config
from metapt.domains.ppi.data.dataset import Indices, PpiDataset, Splits, features_of, held_out_tasks, splits
from metapt.domains.ppi.data.graphs import unpack
from metapt.domains.ppi.gin import GinEncoder, initial_head, initial_pretrained
from metapt.domains.ppi.problem import WEIGHTS, PpiBatches
from metapt.domains.ppi.stages import HALF_DATA, HELD_OUT, ONLINE, PpiPretrainSettings
from metapt.errors import ConfigError, DataError
from metapt.hypergrad import Params, Pretrained
from metapt.training.seeds import generator
from metapt.twostage.auroc import mean_auroc
from metapt.twostage.heads import logits
from metapt.twostage.pretraining import PretrainSetting

IMPLIED = 99  # least percentage of the graphs with a fine term that carry a related coarse term
COMMON = 50  # percentage of all graphs from which on a coarse term is not informative
_CHUNK = 4096  # graphs whose labels are floats at a time; all of them would not fit in memory

_Batches = TypeVar("_Batches", bound=PpiBatches)


@dataclass(frozen=True)
class PpiSetting(PretrainSetting):
    """What a PT job reads, and what is made of it."""

    job: PpiPretrainSettings
    dataset: PpiDataset  # all graphs
    learned: Tensor | None = None  # logits of the task weights that another arm has learned; None: the arm takes none

    @property
    def encoder(self) -> GinEncoder:
        """Return the network, computing in float32."""
        return GinEncoder(self.job.network.layers, self.job.network.width)

    def trained(self, recompute: bool = False) -> GinEncoder:
        """Return the network, computing in the precision of PT; `recompute`: see `MetaArm`."""
        return GinEncoder(self.job.network.layers, self.job.network.width, self.job.pretrain.precision, recompute)

    @property
    def parts(self) -> Splits:
        """Return the numbers of the graphs in each part of the data."""
        return splits(self.dataset.graphs, self.job.test_species)

    @property
    def graphs(self) -> Indices:
        """Return the numbers of the PT graphs."""
        return self.parts.pretrain

    @property
    def finetune(self) -> tuple[Indices, Indices]:
        """Return the numbers of the FT graphs that meta-PT may use: training, validation."""
        parts = self.parts
        if self.job.setting != HALF_DATA:
            return parts.train, parts.validation
        random = np.random.default_rng([self.job.seed, 1])
        train, validation = (
            np.sort(random.permutation(part)[: -(-len(part) // 2)]) for part in (parts.train, parts.validation)
        )
        return train, validation

    @property
    def tasks(self) -> Tensor:
        """Return the numbers of the FT tasks that meta-PT may use."""
        count = self.dataset.fine_tasks
        held_out = held_out_tasks(count, HELD_OUT.index(self.job.setting)) if self.job.setting in HELD_OUT else ()
        return torch.tensor([task for task in range(count) if task not in held_out])

    @property
    def steps_per_epoch(self) -> int:
        return max(1, len(self.graphs) // self.job.pretrain.batch_size)

    def groups(self, count: int) -> NDArray[np.int64]:
        """Return the group, from 0 to count - 1, of each PT task by its labels on the PT graphs; see `task_groups`."""
        return task_groups(self._labels(self.graphs), count)

    def relatives(self) -> NDArray[np.bool_]:
        """Return a mask [PT tasks] of the tasks that an FT task implies (see `related`)."""
        known = np.concatenate(self.finetune)
        fine = unpack(self.dataset.graphs.fine[known], self.dataset.fine_tasks)
        return np.asarray(related(self._labels(known), fine[:, self.tasks.numpy()]).any(1))

    def _labels(self, graphs: Indices) -> NDArray[np.uint8]:
        """Return the PT labels [n, PT tasks] of graphs."""
        return unpack(self.dataset.graphs.coarse[graphs], self.dataset.coarse_tasks)

    def sets(self, arm: config.PpiMeta | None = None) -> dict[str, tuple[Indices, int]]:
        """Return the graphs of each set of minibatches and the size of these, for a meta arm or (None) any other arm.

        Raises ConfigError if there are more folds than FT graphs.
        """
        train, validation = self.finetune
        size = self.job.pretrain.batch_size
        if arm is None:
            graphs = {"pretrain": self.graphs, "hypergradient": self.graphs, "train": train, "validation": validation}
            return {name: (part, size) for name, part in (graphs | {"hypergradient train": train}).items()}
        sets = {"pretrain": (self.graphs, size), "hypergradient": (self.graphs, arm.hypergradient_batch or size)}
        if arm.folds is None:
            sizes = [arm.batch_size or len(part) for part in (train, validation)]
            return sets | {"train": (train, sizes[0]), "validation": (validation, sizes[1])}
        # The remainder goes to validation, so that no graph is in two parts of a hypergradient.
        both = np.random.default_rng([self.job.seed, 4]).permutation(np.concatenate([train, validation]))
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
        return kind(self.dataset, self.sets(arm), self.job, self.tasks)

    def initial(self) -> Pretrained:
        """Return the random weights of the PT seed, the same for all arms."""
        network, stream = self.job.network, generator("ppi weights", self.job.seed)
        made = initial_pretrained(network.layers, network.width, self.dataset.coarse_tasks, stream)
        return made.to(self.dataset.device)

    def initial_head(self) -> Params:
        """Return the random FT head of the PT seed."""
        return self.placed(initial_head(self.job.network.width, len(self.tasks), generator("ppi head", self.job.seed)))

    def initial_meta(self, tasks: int) -> Params:
        """Return the logits of task weights of 1."""
        return {WEIGHTS: torch.zeros(tasks, device=self.dataset.device)}

    @torch.no_grad()
    def online(self, encoder: Params, head: Params) -> dict[str, Tensor]:
        """Return the AUROC (%) of an FT head on validation and test graphs, the mean over its tasks.

        Raises DataError if no task has both labels.
        """
        parts = self.parts
        found = {}
        for which, part in (("validation", parts.validation), ("test", parts.test)):
            graphs = torch.from_numpy(part)
            labels = self.dataset.fine(graphs)[:, self.tasks]
            outputs = logits(head, features_of(self.encoder, encoder, self.dataset, graphs))
            auroc = 100 * float(mean_auroc(outputs, labels))
            found[ONLINE[which]] = torch.tensor([auroc])
        return found


def related(coarse_labels: NDArray[Any], fine_labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which coarse terms may be informative ancestors of fine terms: [coarse tasks, fine tasks].

    A coarse term is related to a fine one if at least 99 % of the graphs with the fine term carry it, and less than
    half of all graphs do. Labels are [graphs, tasks] of 0 and 1. A fine term that no graph carries has no related term.
    """
    both = _together(coarse_labels, fine_labels)
    with_fine, with_coarse = (np.asarray(labels).sum(axis=0, dtype=np.int64) for labels in (fine_labels, coarse_labels))
    says_something = 100 * with_coarse < COMMON * len(coarse_labels)
    result: NDArray[np.bool_] = (100 * both >= IMPLIED * with_fine) & (with_fine > 0) & says_something[:, None]
    return result


def task_groups(labels: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Return the group, from 0 to count - 1, of each task, given labels [graphs, tasks] of 0 and 1.

    Tasks are joined bottom up by Ward's criterion (Ward, JASA 1963) on the labels of each task, scaled to mean 0 and
    norm 1: their squared distance is 2 (1 - correlation). A task whose labels are all equal correlates with none.
    Groups are numbered by their first task. Raises DataError if there are fewer tasks than groups.
    """
    if labels.shape[1] < count:
        raise DataError(
            f"{labels.shape[1]} PT tasks don't make {count} groups; give fewer groups (or `group_weights`), or prepare "
            "more PT tasks."
        )
    from scipy.cluster.hierarchy import cut_tree, ward  # here, since few PT jobs need it

    distances = np.sqrt(2 * (1 - _correlations(labels)).clip(min=0))
    above = np.triu_indices(len(distances), 1)
    found = cut_tree(ward(distances[above]), count)[:, 0]
    _, first = np.unique(found, return_index=True)
    numbers: NDArray[np.int64] = np.argsort(np.argsort(first))[found]
    return numbers


def _correlations(labels: NDArray[Any]) -> NDArray[np.float64]:
    """Return the correlations [tasks, tasks] of labels [graphs, tasks]; 0 with a task that has no variance."""
    mean = labels.mean(0, dtype=np.float64)
    covariances = _together(labels, labels) / len(labels) - np.outer(mean, mean)
    deviations = np.sqrt(np.diag(covariances).clip(min=0))
    scale = np.outer(deviations, deviations)
    return np.divide(covariances, scale, out=np.zeros_like(covariances), where=scale > 1e-12)


def _together(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.float64]:
    """Return the number of graphs that carry both, [first tasks, second tasks], of labels [graphs, tasks]."""
    both = np.zeros((first.shape[1], second.shape[1]))
    for start in range(0, len(first), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        both += first[chunk].T.astype(np.float32) @ second[chunk].astype(np.float32)
    return both
