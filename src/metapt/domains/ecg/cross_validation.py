"""FT runs that each leave out one fold of the labelled ECGs: the judge of whole PT runs."""

from __future__ import annotations

from statistics import fmean

from metapt.domains.ecg.finetune import EcgFinetuneProblem, Labelled, Sets, check
from metapt.domains.ecg.setting import Setting
from metapt.hypergrad import Pretrained
from metapt.training.seeds import generator
from metapt.twostage.finetuning import full_transfer, linear_evaluation
from metapt.twostage.heads import highest
from metapt.twostage.quantities import FULL_TRANSFER


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
    """Raise DataError, as `check`, if FT can't train without a fold, or no AUROC is defined on it."""
    for name, train, held_out in folds(setting, count):
        check(train, {f"ECGs of {name}": held_out})


def cross_validated_auroc(setting: Setting, count: int, evaluation: str, pretrained: Pretrained) -> float:
    """Return the mean over folds of the AUROC (%) on a fold's ECGs after the best epoch of FT on the other folds'.

    Each FT run has a head and minibatches of its own, which are the same for all encoders. The setting must pass
    `check_folds`.
    """
    finetune = setting.finetune_settings
    assert finetune is not None
    best = []
    for out, (name, train, held_out) in enumerate(folds(setting, count)):
        problem = EcgFinetuneProblem(setting.width, Sets(train, held_out, held_out), finetune)
        draws = generator("ecg run search FT", setting.seed, out)
        if evaluation == FULL_TRANSFER:
            transfer = full_transfer(problem, pretrained, finetune.lr, draws, f"FT without {name}")
            transfer.train(finetune.epochs)
            curve = transfer.curve
        else:
            curve = linear_evaluation(problem, pretrained, [draws])[0].validation_curve
        best.append(curve[highest(curve)])
    return fmean(best)
