"""Cross-validation on labelled ECGs: FT of linear heads for the judge of short PT runs, whole FT for whole ones."""

from __future__ import annotations

from statistics import fmean

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.domains.ecg.data.dataset import Labelled
from metapt.domains.ecg.finetune import EcgFinetuneProblem, Sets
from metapt.domains.ecg.setting import Setting
from metapt.hypergrad import Pretrained
from metapt.training.seeds import generator
from metapt.twostage.finetuning import Transfer, check_examples
from metapt.twostage.heads import highest, linear_evaluation
from metapt.twostage.quantities import FULL_TRANSFER

_NEWTON_STEPS = 30


def folds(setting: Setting, count: int) -> list[tuple[str, Labelled, Labelled]]:
    """Return for each fold of the labelled ECGs its name, the ECGs of the other folds, and its own.

    All ECGs of a patient are in one fold.
    """
    labelled, fold = setting.labelled(), setting.folds(count)
    parts = []
    for out in range(count):
        train, held_out = (Labelled(labelled.signals[own], labelled.labels[own]) for own in (fold != out, fold == out))
        parts.append((f"fold {out + 1} of {count}", train, held_out))
    return parts


def check_folds(setting: Setting, count: int) -> None:
    """Raise DataError, as `check_examples`, if FT can't train without a fold, or no AUROC is defined on it."""
    for name, train, held_out in folds(setting, count):
        evaluated = {f"ECGs of {name}": held_out.labels}
        check_examples(len(train.signals), evaluated, setting.dataset.records.classes, "ECGs")


def cross_validated_auroc(setting: Setting, count: int, evaluation: str, pretrained: Pretrained) -> float:
    """Return the mean over folds of the AUROC (%) on a fold's ECGs after the best epoch of FT on the other folds'.

    Each FT run has a head and minibatches of its own, which are the same for all encoders. The setting must pass
    `check_folds`.
    """
    finetune = setting.job.finetune
    assert finetune is not None
    best = []
    for out, (name, train, held_out) in enumerate(folds(setting, count)):
        problem = EcgFinetuneProblem(setting.job.width, Sets(train, held_out, held_out), finetune, setting.job.capture)
        draws = generator("ecg run search FT", setting.job.seed, out)
        if evaluation == FULL_TRANSFER:
            transfer = Transfer(problem, pretrained, finetune.lr, draws, f"FT without {name}")
            transfer.train(finetune.epochs)
            curve = transfer.curve
        else:
            curve = linear_evaluation(problem, pretrained, [draws])[0].validation_curve
        best.append(curve[highest(curve)])
    return fmean(best)


def ridge_logistic(features: Tensor, labels: Tensor, l2: float) -> Tensor:
    """Fit a logistic regression of each class to features [n, size], float64, and labels [n, classes], by Newton.

    The loss is the mean over ECGs and classes plus l2 / 2 |head|^2. Returns heads [size + 1, classes], the bias last.
    """
    inputs = torch.cat([features, torch.ones_like(features[:, :1])], dim=1)
    (count, size), classes = inputs.shape, labels.shape[1]
    heads = inputs.new_zeros(size, classes)
    ridge = l2 * classes * count * torch.eye(size, dtype=inputs.dtype, device=inputs.device)
    for _ in range(_NEWTON_STEPS):
        rates = torch.sigmoid(inputs @ heads)
        gradient = inputs.T @ (rates - labels) + ridge @ heads
        curvature = torch.einsum("nf,nc,ng->cfg", inputs, rates * (1 - rates), inputs) + ridge
        step = torch.linalg.solve(curvature, gradient.T.unsqueeze(2)).squeeze(2).T
        # A full step may overshoot far from the minimum; steps of bounded length in the logits do not.
        step = step / (inputs @ step).abs().amax().div(5).clamp_min(1.0)
        heads = heads - step
        if step.abs().max() < 1e-9:
            break
    return heads


def cross_validated_loss(features: Tensor, labels: Tensor, fold: Tensor, l2: float) -> float:
    """Return the mean over folds of the binary cross-entropy of a head that is fitted to the other folds' features.

    `fold` [n] is the fold of each ECG, from 0 on without a gap; see `ridge_logistic`.
    """
    inputs, targets, losses = features.double(), labels.double(), []
    for out in range(int(fold.max()) + 1):
        head = ridge_logistic(inputs[fold != out], targets[fold != out], l2)
        scores = inputs[fold == out] @ head[:-1] + head[-1]
        losses.append(F.binary_cross_entropy_with_logits(scores, targets[fold == out]))
    return float(torch.stack(losses).mean())
