"""The defaults are the paper's numbers, or say that the paper has none (Section 6 and its appendix)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from metapt.domains.ecg.arms import meta_settings
from metapt.domains.ecg.config import (
    ARMS,
    BestOf,
    EcgFinetuning,
    EcgMeta,
    EcgPretraining,
    EcgSettings,
    OptSla,
    RandomSearch,
    Simclr,
    Warp,
    WarpOf,
)
from metapt.domains.ecg.data.dataset import finetune_parts
from metapt.domains.ecg.domain import DOMAIN
from metapt.domains.ecg.experiments.cost import EcgCost
from metapt.domains.ecg.experiments.full_access import FullAccess
from metapt.domains.ecg.experiments.partial_access import PartialAccess
from metapt.domains.ecg.experiments.unroll_steps import UnrollSteps
from metapt.domains.ecg.setting import Setting
from metapt.hypergrad import Adam, Neumann, Unroll
from metapt.training.optimizers import OptimizerSpec

DATA, AUGMENTATIONS, DETAILS = "Further dataset details", "ECG Data Augmentations", "Implementation details"
META, OPTSLA = "Further details for Meta-Parameterized PT", "An additional baseline: SimCLR + OptSLA"
EXPERIMENTS, ALGORITHM = "Section 6, Experimental Details", "Section 3 and Algorithm 2"
PAPER: list[tuple[type[BaseModel], str, Any, str]] = [
    (Warp, "smoothing", "displacement", AUGMENTATIONS),
    (Warp, "network_width", 32, META),
    (EcgPretraining, "signals", None, DATA),
    (EcgPretraining, "epochs", 50, DETAILS),
    (EcgPretraining, "batch_size", 256, DETAILS),
    (EcgPretraining, "lr", 1e-4, DETAILS),
    (EcgPretraining, "temperature", 0.5, DETAILS),
    (EcgPretraining, "jitter", "fixed", AUGMENTATIONS),
    (EcgPretraining, "noise", 0.1, AUGMENTATIONS),
    (EcgPretraining, "crop", 0.5, AUGMENTATIONS),
    (EcgFinetuning, "epochs", 200, DETAILS),
    (EcgFinetuning, "batch_size", 256, DETAILS),
    (EcgFinetuning, "lr", 1e-3, DETAILS),
    (EcgMeta, "pretrain_steps", 10, META),
    (EcgMeta, "warmup_epochs", 1, META),
    (EcgMeta, "curvature", "hessian", ALGORITHM),
    (EcgMeta, "unroll", "head", "Section 6, Meta-Parameterized SimCLR"),
    (EcgMeta, "unroll_steps", 1, META),
    (EcgMeta, "head_steps_between_updates", 0, ALGORITHM),
    (EcgMeta, "meta_lr", 1, META),
    (EcgMeta, "network_lr", 1e-4, META),
    (EcgMeta, "meta_optimizer", "Adam", META),
    (EcgMeta, "accumulate", 1, ALGORITHM),
    (OptSla, "neumann_terms", 1, OPTSLA),
    (FullAccess, "finetune_sizes", [100, 250, 500, 1000, 2500], "Table 2"),
    (UnrollSteps, "finetune_sizes", [100, 250, 500, 1000], "Table app:tab:simclr-ecg-kvary"),
    (PartialAccess, "baseline", "simclr", "Section 6.2"),
    (PartialAccess, "finetune_sizes", [100, 250, 500, 1000], "Section 6.2 has 500, as the description says"),
    (
        PartialAccess,
        "meta_sizes",
        [10, 25, 50, 100, 250, 500, 1000],
        "Section 6.2 and Implementation details have 10, 25 and 50",
    ),
    (EcgCost, "finetune_size", 500, "a size of Table 2"),
    (EcgSettings, "source", "ptbxl-1.0.3", "1.0.1, as the description says"),
    (EcgSettings, "samples", 1000, DATA),
    (EcgSettings, "width", 32, DETAILS),
    (EcgSettings, "pretrain_seeds", 3, EXPERIMENTS),
    (EcgSettings, "finetune_seeds", 5, EXPERIMENTS),
    (EcgSettings, "evaluations", ["full_transfer", "linear_evaluation"], "the first, as the description says"),
]
RELEASED = [
    (Warp, "scale", "square"),
    (Warp, "initial", 4),
    (EcgMeta, "batch_size", 256),
    (EcgMeta, "finetune_lr", 1e-4),
    (EcgFinetuning, "linear_epochs", 200),
]
"""What the paper leaves open and the released code has."""
SECTIONS: list[type[BaseModel]] = [
    Warp,
    WarpOf,
    EcgPretraining,
    EcgFinetuning,
    Simclr,
    EcgMeta,
    OptSla,
    RandomSearch,
    BestOf,
]
SECTIONS += [*(experiment.section for experiment in DOMAIN.experiments.values()), EcgSettings]


@pytest.mark.parametrize(
    ("section", "key", "value", "where"), PAPER, ids=[f"{s.__name__}-{key}" for s, key, _, _ in PAPER]
)
def test_a_default_is_the_papers_number(section: type[BaseModel], key: str, value: Any, where: str) -> None:
    assert section.model_fields[key].default == value, where


@pytest.mark.parametrize(("section", "key", "value"), RELEASED)
def test_where_the_paper_is_silent_a_default_is_the_released_codes(
    section: type[BaseModel], key: str, value: Any
) -> None:
    field = section.model_fields[key]
    assert field.default == value
    said = re.search(r"released code: (.+)\)$", field.description or "")
    assert said is not None
    assert said[1].split(",")[0] == value if isinstance(value, str) else float(said[1].split(",")[0]) == value


def defaults(section: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Return the keys of a section that are no sections themselves, without those that are empty or off by default."""
    for key, field in section.model_fields.items():
        structure = key in ("method", "arms") or isinstance(field.default, BaseModel)
        if not structure and field.default not in (None, False, {}, PydanticUndefined):
            yield key, field


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_a_default_that_the_paper_has_not_says_so(section: type[BaseModel]) -> None:
    if "Not in the paper." in (section.__doc__ or ""):
        return
    papers = {key for held, key, _, _ in PAPER if held is section}
    says = re.compile(r"\(not in the paper; released code: .+\)")
    silent = {key for key, field in defaults(section) if not says.search(field.description or "")}
    assert silent == papers & {key for key, _ in defaults(section)}


def test_every_section_is_looked_at() -> None:
    fields = [
        *EcgSettings.model_fields.values(),
        *(field for arm in ARMS.values() for field in type(arm).model_fields.values()),
    ]
    nested = {type(arm) for arm in ARMS.values()} | {
        type(field.default) for field in fields if isinstance(field.default, BaseModel)
    }
    nested |= {
        part for field in fields for part in getattr(field.annotation, "__args__", ()) if isinstance(part, type)
    } - {type(None)}
    sections = {part for part in nested if part.__module__ == "metapt.domains.ecg.config"}
    assert sections - set(SECTIONS) == {type(ARMS["no_pt"])}


@pytest.mark.parametrize(
    ("size", "training"), [(10, 5), (25, 15), (50, 40), (100, 80), (250, 200), (500, 400), (2500, 2000)]
)
def test_ft_sets_are_split_as_in_the_paper(size: int, training: int) -> None:
    assert finetune_parts(size) == (training, size - training)


def test_the_warp_is_learned_as_in_the_paper(dataset: Any, tmp_path: Path) -> None:
    setting = Setting(dataset, 2, EcgPretraining(batch_size=3), 0, 25, "patients", lambda part: pytest.fail(part))
    settings = meta_settings(EcgMeta(), setting)  # 63 ECGs: 21 PT steps an epoch
    assert (settings.iterations, settings.pretrain_steps, settings.warmup) == (105, 10, 3)
    assert settings.finetuning == Unroll(1, Adam(1e-4))
    assert settings.inverse == Neumann(1, 1e-4)
    assert settings.pretrain_optimizer == OptimizerSpec("Adam", {"lr": 1e-4})
    assert settings.meta_optimizer == OptimizerSpec("Adam", {"lr": 1.0}, {"network.*": {"lr": 1e-4}})
    assert (settings.accumulate, settings.clip_norm, settings.normalise, settings.average_decay) == (
        1,
        None,
        False,
        None,
    )
