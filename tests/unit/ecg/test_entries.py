"""What PT and FT jobs on ECGs are given and leave; the contract suite has what the jobs of all domains promise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from metapt.domains.ecg import arms, finetune
from metapt.domains.ecg.config import ARMS, Split
from metapt.domains.ecg.data import prepare
from metapt.domains.ecg.data.dataset import finetune_indices, open_dataset
from metapt.domains.ecg.data.sources import CLASSES
from metapt.domains.ecg.resnet1d import load_pretrained
from metapt.domains.ecg.setting import Setting
from metapt.evaluation import metrics
from metapt.hypergrad import Params
from metapt.twostage import finetuning
from metapt.twostage.replicates import pair

from ...contract.domain_cases import CASES
from .small_ecgs import SAMPLES

ECG, SEEDS = CASES["ecg"], 2


class Jobs:
    """Jobs on 70 short ECGs; their work is done by `pretrain` and `finetune`."""

    def __init__(self, folder: Path, prepared: dict[str, Path], **keys: Any) -> None:
        self.made: Any = ECG.jobs(folder, **keys)
        self.prepared = prepared

    def done(self, stage: str, arm: str, setting: str, seed: int, **inputs: Path) -> dict[str, Path]:
        job = ECG.small(getattr(self.made, stage)(arm, setting, seed))
        return ECG.work(job, self.prepared, **inputs)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return ECG.prepare(tmp_path_factory.mktemp("ecgs"))


@pytest.fixture
def jobs(prepared: dict[str, Path], tmp_path: Path) -> Callable[..., Jobs]:
    """Return a function (keys of the config) -> jobs with results in the test's folder."""
    return lambda **keys: Jobs(tmp_path, prepared, **keys)


@pytest.mark.parametrize("arm", ["simclr", "meta"])
def test_pretraining_leaves_the_numbers_of_its_warp(arm: str, jobs: Callable[..., Jobs]) -> None:
    written = jobs().done("pretrain", arm, "n20/n20", 1)
    assert load_pretrained(written["pretrained"], 1, "cpu").meta["scale"].shape == ()
    table = metrics.read(written["metrics"])
    assert set(table["setting"]) == {"" if arm == "simclr" else "meta_ft_size=20"}
    assert "warp displacement (samples)" in set(table["metric"])
    assert ("warp scale m" in set(metrics.read_series(written["series"])["name"])) == (arm == "meta")


def test_a_frozen_warp_is_the_learned_one_from_the_first_step(jobs: Callable[..., Jobs]) -> None:
    made = jobs(arms=ECG.arms | {"meta-frozen": ARMS["meta-frozen"]})

    def ran(arm: str, **inputs: Path) -> tuple[dict[str, Path], Params, Params]:
        written = made.done("pretrain", arm, "n20/n20", 0, **inputs)
        found = load_pretrained(written["pretrained"], 1, "cpu")
        return written, found.pretrained.encoder, found.meta

    (_, _, learned), (plain, unlearned, start) = ran("meta"), ran("simclr")
    assert not torch.equal(learned["scale"], start["scale"])
    _, encoder, kept = ran("meta-frozen")
    assert all(torch.equal(value, learned[name]) for name, value in kept.items())
    assert not torch.equal(encoder["stem.weight"], unlearned["stem.weight"])
    _, encoder, _ = ran("meta-frozen", learned=plain["pretrained"])
    assert all(torch.equal(value, unlearned[name]) for name, value in encoder.items()), "the same minibatches and views"


@pytest.mark.parametrize("split", get_args(Split))
def test_each_pt_seed_is_fine_tuned_from_its_encoder_on_its_ft_set(
    split: Split, prepared: dict[str, Path], jobs: Callable[..., Jobs], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    problem, linear = finetune.EcgFinetuneProblem, finetuning.linear_evaluation
    monkeypatch.setattr(finetune, "EcgFinetuneProblem", lambda *args: given.append(args[1]) or problem(*args))
    monkeypatch.setattr(finetuning, "linear_evaluation", lambda *args: given.extend(args[1:]) or linear(*args))
    monkeypatch.setattr(prepare, "SAMPLES", SAMPLES)
    made, streams = jobs(evaluations=["linear_evaluation"], split=split), []
    dataset = open_dataset(prepared, SAMPLES, "cpu")
    for seed in range(SEEDS):
        encoder = made.done("pretrain", "no_pt", "n30/n30", seed)["pretrained"]
        made.done("finetune", "no_pt", "n30/n30", seed)
        sets, start, generators = given
        given.clear()
        expected = load_pretrained(encoder, 1, "cpu").pretrained.encoder
        assert all(torch.equal(value, expected[name]) for name, value in start.encoder.items())
        chosen = *finetune_indices(dataset.records, 30, seed, split), dataset.records.test
        for part, indices in zip(sets, chosen, strict=True):
            assert torch.equal(part.signals, dataset.signals(indices))
            assert torch.equal(part.labels, dataset.labels(indices))
        streams += [each.initial_seed() for each in generators]
    assert len(set(streams)) == 2 * SEEDS, "each FT seed has its own stream"


@pytest.mark.parametrize("split", get_args(Split))
def test_pretraining_is_told_how_its_labelled_ecgs_are_split(
    split: Split, jobs: Callable[..., Jobs], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Setting] = []

    def stopped(arm: Any, setting: Setting) -> None:
        given.append(setting)
        raise KeyboardInterrupt

    monkeypatch.setattr(arms, "pretrain", stopped)
    with pytest.raises(KeyboardInterrupt):
        jobs(split=split).done("pretrain", "meta", "n20/n20", 1)
    (setting,) = given
    for part, expected in zip(setting.finetune, finetune_indices(setting.dataset.records, 20, 1, split), strict=True):
        assert np.array_equal(part, expected)


@pytest.mark.parametrize(
    ("arm", "setting", "words"),
    [
        ("no_pt", "n30/n30", "ft_size=30"),
        ("meta", "n30/n30", "ft_size=30"),
        ("meta", "n20/n30", "ft_size=30 meta_ft_size=20"),
    ],
)
def test_finetuning_leaves_the_auroc_of_each_class(
    arm: str, setting: str, words: str, jobs: Callable[..., Jobs]
) -> None:
    made = jobs()
    made.done("pretrain", arm, setting, 1)
    table = metrics.read(made.done("finetune", arm, setting, 1)["metrics"])
    assert set(table["setting"]) == {words}
    table = table[(table["replicate"] == pair(1, 0)) & (table["evaluation"] == "full_transfer")]
    cell = table.set_index("metric")["value"]
    classes = [cell[f"test AUROC {name} (%)"] for name in CLASSES]
    assert cell["mean test AUROC over 5 classes (%)"] == pytest.approx(np.nanmean(classes))
