"""The setting of a PT job: its data and settings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from metapt.domains.ecg.augment import Policy
from metapt.domains.ecg.batches import LabelledSets, SimclrBatches
from metapt.domains.ecg.config import Warp, steps_per_epoch
from metapt.domains.ecg.data.dataset import Dataset, Labelled, finetune_indices, patient_folds, pretrain_indices
from metapt.domains.ecg.problem import SimclrProblem
from metapt.domains.ecg.resnet1d import Encoder, initial_head, initial_pretrained
from metapt.domains.ecg.stages import EcgPretrainSettings
from metapt.hypergrad import MetaProblem, Params, Pretrained
from metapt.training.batches import Batches
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer
from metapt.training.seeds import generator
from metapt.twostage.pretraining import PretrainSetting


@dataclass(frozen=True)
class Setting(PretrainSetting):
    """What a PT job reads, and what is made of it."""

    job: EcgPretrainSettings
    dataset: Dataset  # all ECGs
    learned: Params | None = None  # the warp that another arm has learned; None: the arm takes none

    @property
    def indices(self) -> np.ndarray:
        """Return the ECGs that are pre-trained on."""
        return pretrain_indices(self.dataset.records, self.job.pretrain.signals)

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(self.job.pretrain, len(self.indices))

    @property
    def optimizer(self) -> OptimizerSpec:
        """Return the optimiser of encoder and projection head; on a GPU its step is one kernel for all parameters."""
        on_gpu = self.dataset.device.startswith("cuda")
        return OptimizerSpec("Adam", {"lr": self.job.pretrain.lr} | ({"fused": True} if on_gpu else {}))

    @property
    def finetune(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the labelled ECGs at meta-PT time: training, validation."""
        assert self.job.meta_size is not None
        assert self.job.split is not None
        return finetune_indices(self.dataset.records, self.job.meta_size, self.job.seed, self.job.split)

    def trainer(self, problem: MetaProblem, batches: Batches, start: Pretrained) -> Pretrainer:
        """Return a trainer of encoder and projection head."""
        return Pretrainer(problem, batches, start, self.optimizer, self.job.capture)

    def problem(self, policy: Policy, kind: type[SimclrProblem] = SimclrProblem) -> SimclrProblem:
        """Return SimCLR with the warp `policy`, for PT steps."""
        pretrain = self.job.pretrain
        return kind(Encoder(self.job.width, pretrain.precision), policy, pretrain.temperature)

    def meta_problem(self, policy: Policy, recompute: bool) -> SimclrProblem:
        """Return the problem of hypergradients, which computes in float32; `recompute`: see `EcgMeta`."""
        return SimclrProblem(Encoder(self.job.width, recompute=recompute), policy, self.job.pretrain.temperature)

    def batches(
        self,
        labelled: LabelledSets | None = None,
        permuted_labels: bool = False,
        kind: type[SimclrBatches] = SimclrBatches,
    ) -> SimclrBatches:
        """Return the minibatches of PT; `labelled` and `permuted_labels`: see `SimclrBatches`."""
        return kind(self.dataset, self.indices, self.job.pretrain, labelled or {}, self.job.seed, permuted_labels)

    def initial(self) -> Pretrained:
        """Return random weights."""
        return initial_pretrained(self.job.width, generator("ecg weights", self.job.seed)).to(self.dataset.device)

    def initial_meta(self, policy: Policy) -> Params:
        """Return the initial meta-parameters of a warp."""
        return self.placed(policy.initial(generator("ecg warp network", self.job.seed)))

    def initial_head(self) -> Params:
        """Return an FT head with random weights."""
        classes = len(self.dataset.records.classes)
        return self.placed(initial_head(self.job.width, classes, generator("ecg head", self.job.seed)))

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
        return Encoder(self.job.width)(network, labelled.signals, training=False), labelled.labels


def policy_of(warp: Warp) -> Policy:
    """Return the warp that a section describes."""
    return Policy(warp.smoothing, warp.scale, warp.initial, warp.network_width)
