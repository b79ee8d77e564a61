"""The setting of a PT job: its data, its seed, and the settings of PT and FT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from metapt.domains.ecg.augment import Policy
from metapt.domains.ecg.batches import LabelledSets, SimclrBatches
from metapt.domains.ecg.config import EcgFinetuning, EcgPretraining, Split, Warp, steps_per_epoch
from metapt.domains.ecg.data.dataset import Dataset, Labelled, finetune_indices, patient_folds, pretrain_indices
from metapt.domains.ecg.problem import SimclrProblem
from metapt.domains.ecg.resnet1d import Encoder, initial_head, initial_pretrained
from metapt.hypergrad import MetaProblem, Params, Pretrained
from metapt.training.batches import Batches
from metapt.training.checkpoint import Checkpoint
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer
from metapt.training.seeds import generator


@dataclass(frozen=True)
class Setting:
    """The data, the seed and the settings of a PT job, with the arm's own changes, and what is made of them."""

    dataset: Dataset  # all ECGs
    width: int  # of the encoder
    pretrain: EcgPretraining  # SimCLR's settings
    seed: int  # the PT seed
    meta_size: int | None  # labelled ECGs at meta-PT time; None where the arm uses none
    split: Split | None  # of them, into training and validation, see `finetune_indices`; None where there are none
    checkpoint: Callable[[str], Checkpoint]  # the name of a part of the run -> its checkpoint
    learned: Params | None = None  # the warp that another arm has learned; None: the arm takes none
    finetune_settings: EcgFinetuning | None = None  # of the FT runs that judge PT runs; None: none do
    capture: bool = False  # see `EcgSettings`

    @property
    def indices(self) -> np.ndarray:
        """Return the ECGs that are pre-trained on."""
        return pretrain_indices(self.dataset.records, self.pretrain.signals)

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(self.pretrain, len(self.indices))

    @property
    def steps(self) -> int:
        """Return the number of PT steps of a run."""
        return self.pretrain.epochs * self.steps_per_epoch

    @property
    def optimizer(self) -> OptimizerSpec:
        """Return the optimiser of encoder and projection head; on a GPU its step is one kernel for all parameters."""
        on_gpu = self.dataset.device.startswith("cuda")
        return OptimizerSpec("Adam", {"lr": self.pretrain.lr} | ({"fused": True} if on_gpu else {}))

    @property
    def finetune(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the labelled ECGs at meta-PT time: training, validation."""
        assert self.meta_size is not None
        assert self.split is not None
        return finetune_indices(self.dataset.records, self.meta_size, self.seed, self.split)

    def trainer(self, problem: MetaProblem, batches: Batches, start: Pretrained) -> Pretrainer:
        """Return a trainer of encoder and projection head."""
        return Pretrainer(problem, batches, start, self.optimizer, self.capture)

    def problem(self, policy: Policy) -> SimclrProblem:
        """Return SimCLR with the warp `policy`, for PT steps."""
        return SimclrProblem(Encoder(self.width, self.pretrain.precision), policy, self.pretrain.temperature)

    def meta_problem(self, policy: Policy, recompute: bool) -> SimclrProblem:
        """Return the problem of hypergradients, which computes in float32; `recompute`: see `EcgMeta`."""
        return SimclrProblem(Encoder(self.width, recompute=recompute), policy, self.pretrain.temperature)

    def batches(
        self,
        labelled: LabelledSets | None = None,
        permuted_labels: bool = False,
        kind: type[SimclrBatches] = SimclrBatches,
    ) -> SimclrBatches:
        """Return the minibatches of PT; `labelled` and `permuted_labels`: see `SimclrBatches`."""
        return kind(self.dataset, self.indices, self.pretrain, labelled or {}, self.seed, permuted_labels)

    def initial(self) -> Pretrained:
        """Return random weights."""
        return initial_pretrained(self.width, generator("ecg weights", self.seed)).to(self.dataset.device)

    def initial_meta(self, policy: Policy) -> Params:
        """Return the initial meta-parameters of a warp."""
        return self._placed(policy.initial(generator("ecg warp network", self.seed)))

    def initial_head(self) -> Params:
        """Return an FT head with random weights."""
        classes = len(self.dataset.records.classes)
        return self._placed(initial_head(self.width, classes, generator("ecg head", self.seed)))

    def labelled(self) -> Labelled:
        """Return all labelled ECGs at meta-PT time."""
        return self.dataset.labelled(np.concatenate(self.finetune))

    def folds(self, count: int) -> Tensor:
        """Return the fold of each ECG of `labelled`; all ECGs of a patient are in one."""
        patients = self.dataset.records.patients[np.concatenate(self.finetune)]
        return torch.from_numpy(patient_folds(patients, count)).to(self.dataset.device)

    @torch.no_grad()
    def features(self, pretrained: Pretrained, labelled: Labelled) -> tuple[Tensor, Tensor]:
        """Return features [n, size] of labelled ECGs, with BatchNorm in eval mode, and their labels [n, classes]."""
        network = {**pretrained.encoder, **pretrained.buffers}
        return Encoder(self.width)(network, labelled.signals, training=False), labelled.labels

    def _placed(self, params: Params) -> Params:
        return {name: value.to(self.dataset.device) for name, value in params.items()}


def policy_of(warp: Warp) -> Policy:
    """Return the warp that a section describes."""
    return Policy(warp.smoothing, warp.scale, warp.initial, warp.network_width)
