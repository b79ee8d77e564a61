"""The defaults are the paper's numbers, or say that the paper has none (Section 6 and its appendix)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from metapt.domains.ecg.arms import meta_settings
from metapt.domains.ecg.config import ARMS, EcgFinetuning, EcgMeta, EcgPretraining, EcgSettings, OptSla, Warp
from metapt.domains.ecg.domain import DOMAIN
from metapt.domains.ecg.experiments.cost import EcgCost
from metapt.domains.ecg.experiments.full_access import FullAccess
from metapt.domains.ecg.experiments.partial_access import PartialAccess
from metapt.domains.ecg.experiments.unroll_steps import UnrollSteps
from metapt.domains.ecg.setting import Setting
from metapt.hypergrad import Adam, Neumann, Unroll
from metapt.training.optimizers import OptimizerSpec

Section = type[BaseModel]
PAPER: dict[Section, dict[str, Any]] = {
    # "ECG Data Augmentations"; the network: "Further details for Meta-Parameterized PT"
    Warp: {"smoothing": "displacement", "network_width": 32},
    # "Implementation details" and "Further dataset details"
    EcgPretraining: {"signals": None, "epochs": 50, "batch_size": 256, "lr": 1e-4, "temperature": 0.5}
    | {"jitter": "fixed", "noise": 0.1, "crop": 0.5},
    EcgFinetuning: {"epochs": 200, "batch_size": 256, "lr": 1e-3},
    # "Further details for Meta-Parameterized PT"; curvature and head: Section 3 and Algorithm 2
    EcgMeta: {"pretrain_steps": 10, "warmup_epochs": 1, "curvature": "hessian", "unroll": "head", "unroll_steps": 1}
    | {"head_steps_between_updates": 0, "meta_lr": 1, "network_lr": 1e-4, "meta_optimizer": "Adam", "accumulate": 1},
    # "An additional baseline: SimCLR + OptSLA"
    OptSla: {"neumann_terms": 1},
    # Tables 2 and app:tab:simclr-ecg-kvary; Section 6.2 has 500, and 10, 25 and 50, as the descriptions say
    FullAccess: {"finetune_sizes": [100, 250, 500, 1000, 2500]},
    UnrollSteps: {"finetune_sizes": [100, 250, 500, 1000]},
    PartialAccess: {"baseline": "simclr", "finetune_sizes": [100, 250, 500, 1000]}
    | {"meta_sizes": [10, 25, 50, 100, 250, 500, 1000]},
    EcgCost: {"finetune_size": 500},
    # Section 6, "Experimental Details"; source and evaluations: as the descriptions say
    EcgSettings: {"source": "ptbxl-1.0.3", "samples": 1000, "width": 32, "pretrain_seeds": 3, "finetune_seeds": 5}
    | {"evaluations": ["full_transfer", "linear_evaluation"]},
}
RELEASED: dict[Section, dict[str, Any]] = {
    Warp: {"scale": "square", "initial": 4},
    EcgMeta: {"batch_size": 256, "finetune_lr": 1e-4},
    EcgFinetuning: {"linear_epochs": 200},
}
"""What the paper leaves open and the released code has."""


def parts(annotation: Any) -> Iterator[Section]:
    """Return the sections of ECGs in a type, and those in them."""
    if getattr(annotation, "__module__", "").startswith("metapt.domains.ecg"):
        yield annotation
        for field in annotation.model_fields.values():
            yield from parts(field.annotation)
    for part in get_args(annotation):
        yield from parts(part)


SECTIONS = {each for kind in (EcgSettings, *(e.section for e in DOMAIN.experiments.values())) for each in parts(kind)}


@pytest.mark.parametrize("section", PAPER, ids=lambda section: section.__name__)
def test_defaults_are_the_papers_numbers(section: Section) -> None:
    assert {key: section.model_fields[key].default for key in PAPER[section]} == PAPER[section]


@pytest.mark.parametrize("section", RELEASED, ids=lambda section: section.__name__)
def test_where_the_paper_is_silent_defaults_are_the_released_codes(section: Section) -> None:
    for key, value in RELEASED[section].items():
        field = section.model_fields[key]
        assert field.default == value
        said = re.search(r"released code: ([^,]+).*\)$", field.description or "")
        assert said is not None
        assert said[1] == value if isinstance(value, str) else float(said[1]) == value


@pytest.mark.parametrize("section", sorted(SECTIONS, key=lambda section: section.__name__))
def test_a_default_that_the_paper_has_not_says_so(section: Section) -> None:
    if "Not in the paper." in (section.__doc__ or ""):
        return
    says = re.compile(r"\(not in the paper; released code: .+\)")
    set_by_default = {
        key: field
        for key, field in section.model_fields.items()
        if key not in ("method", "arms", "label", "controls")
        and not isinstance(field.default, BaseModel)
        and field.default not in (None, False, {}, PydanticUndefined)
    }
    silent = {key for key, field in set_by_default.items() if not says.search(field.description or "")}
    assert silent == PAPER.get(section, {}).keys() & set_by_default.keys()


def test_sections_of_arms_are_looked_at() -> None:
    assert {type(arm) for arm in ARMS.values()} <= SECTIONS


def test_the_warp_is_learned_as_in_the_paper(make: Callable[..., Setting]) -> None:
    setting = make()
    setting = replace(setting, job=setting.job.model_copy(update={"pretrain": EcgPretraining(batch_size=3)}))
    settings = meta_settings(EcgMeta(), setting)  # 63 ECGs: 21 PT steps an epoch
    assert (settings.iterations, settings.pretrain_steps, settings.warmup) == (105, 10, 3)
    assert settings.finetuning == Unroll(1, Adam(1e-4))
    assert settings.inverse == Neumann(1, 1e-4)
    assert settings.pretrain_optimizer == OptimizerSpec("Adam", {"lr": 1e-4})
    assert settings.meta_optimizer == OptimizerSpec("Adam", {"lr": 1.0}, {"network.*": {"lr": 1e-4}})
    off = (settings.accumulate, settings.clip_norm, settings.normalise, settings.average_decay)
    assert off == (1, None, False, None)
