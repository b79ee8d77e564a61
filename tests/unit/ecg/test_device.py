"""What a meta-update of ECGs launches, and what is recorded of a warp without a wait; see also the contract suite."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from metapt.domains.ecg.arms import meta_loop, warp_numbers
from metapt.domains.ecg.config import EcgMeta
from metapt.domains.ecg.setting import Setting, policy_of
from metapt.hypergrad.layers import pairs
from metapt.training.seeds import generator

from .small_ecgs import AT_ONCE, NETWORK

PARAMETERS = 60  # of the encoder


@pytest.mark.slow
def test_a_meta_update_launches_few_kernels(
    make: Callable[..., Setting], launches: Callable[..., Counter[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors take one for a sum or a multiple, three for a norm; a loop over them would launch PARAMETERS more."""
    monkeypatch.setattr(pairs, "faster", lambda *given: False)  # narrow convolutions, as on a GPU
    loop, _ = meta_loop(make(), EcgMeta(warp=NETWORK, **AT_ONCE))
    loop.iterate()
    assert len(loop.pretrained.encoder) == PARAMETERS
    assert sum(launches(loop._meta_update).values()) <= 3640
    counts = launches(loop._meta_update, {"_engine_run_backward", "pretrain_loss", "encode", "head_loss"})
    vectors = {name: counts[f"_foreach_{name}"] for name in ("add", "mul", "div", "norm")}
    assert vectors == {"add": 2, "mul": 3, "div": 1, "norm": 12}
    assert sum(counts.values()) <= 140


def test_what_a_warp_does_is_computed_without_a_wait(rehearse: Callable[..., dict[str, int]]) -> None:
    def numbers(device: str) -> Callable[[], Any]:
        policy = policy_of(NETWORK)
        meta = {name: value.to(device) for name, value in policy.initial(generator("warp")).items()}
        return lambda: warp_numbers(policy, meta, 64)

    assert rehearse(numbers) == {}


def test_a_step_of_pt_takes_one_kernel_for_all_parameters_on_a_gpu(make: Callable[..., Setting]) -> None:
    setting = make()
    for device, fused in {"cpu": False, "cuda": True, "cuda:1": True}.items():
        placed = dataclasses.replace(setting, dataset=dataclasses.replace(setting.dataset, device=device))
        adam = placed.optimizer.build(setting.initial().leaves().encoder)
        assert bool(adam.defaults["fused"]) is fused
