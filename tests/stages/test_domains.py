"""Stages hand over to the domain that the config names, with the threads that they are given."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from metapt.errors import ConfigError
from metapt.stages import Machine

INPUTS, OUTPUTS = {"in": Path("in")}, {"out": Path("out")}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def handed_over(stage: str, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """What the stage asks of a domain and hands to it, and the number of torch's threads then."""
    module, found = import_module(f"metapt.stages.{stage}"), []

    def domain(*asked: str) -> SimpleNamespace:
        return SimpleNamespace(**{stage: lambda *given: found.append((asked, given, torch.get_num_threads()))})

    monkeypatch.setattr(module, "domain", domain)
    module.run(config, INPUTS, OUTPUTS, Machine("cpu", 2))
    (only,) = found
    return only


@pytest.mark.parametrize("stage", ["train", "pretrain", "finetune", "study"])
def test_what_computes_has_its_threads(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"domain": "ecg", "arm": "meta"}
    assert handed_over(stage, config, monkeypatch) == (("ecg", stage), (config, INPUTS, OUTPUTS, Machine("cpu", 2)), 2)


def test_what_does_not_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"domain": "ppi", "source": "simulated"}
    assert handed_over("simulate", config, monkeypatch)[:2] == (("ppi", "simulate"), ("simulated", OUTPUTS))
    assert handed_over("prepare", config, monkeypatch)[:2] == (("ppi", "prepare"), (INPUTS, OUTPUTS, config))
    assert handed_over("summarise", config, monkeypatch)[:2] == (("ppi", "summarise"), (config, INPUTS, OUTPUTS))


@pytest.mark.parametrize(("domain", "sentence"), [("eeg", "no domain 'eeg'; legal: "), ("mnist", "'mnist' has no stage 'pre")])
def test_a_domain_or_stage_that_is_not_there_is_named(domain: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        import_module("metapt.stages.pretrain").run({"domain": domain}, INPUTS, OUTPUTS, Machine())
