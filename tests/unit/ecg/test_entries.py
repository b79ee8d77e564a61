"""What PT and FT jobs on ECGs are given and leave; the contract suite has what the jobs of all domains promise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
import torch

from metapt.domains.ecg import arms, finetune
from metapt.domains.ecg.config import ARMS, Split
from metapt.domains.ecg.data.dataset import finetune_indices, open_dataset
from metapt.domains.ecg.data.sources import CLASSES
from metapt.domains.ecg.resnet1d import load_pretrained
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.training.pretrained_file import save_pretrained
from metapt.twostage import finetuning
from metapt.twostage.quantities import pair

from ...contract.domain_cases import CASES
from ..twostage.whole_runs import equal
from .small_ecgs import ARMS as SMALL
from .small_ecgs import SAMPLES

ECG, Files = CASES["ecg"], dict[str, Path]
MINE = SMALL | {"meta": SMALL["meta"].model_copy(update={"warmup_epochs": 0.0}), "meta-frozen": ARMS["meta-frozen"]}
TWO_STEPS = {"signals": 16, "epochs": 1, "batch_size": 8, "lr": 1e-3}
Done = Callable[..., Files]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return ECG.prepare(tmp_path_factory.mktemp("ecgs"))


def jobs_in(folder: Path, **keys: Any) -> Any:
    return ECG.jobs(folder, arms=MINE, pretrain=TWO_STEPS, **keys)


@pytest.fixture
def done(prepared: Files, tmp_path: Path) -> Done:
    """Return a function (stage, arm, setting, seed, other inputs) that does a job and returns its outputs."""

    def do(stage: str, arm: str, setting: str, seed: int, jobs: Any = None, **inputs: Path) -> Files:
        return ECG.work(ECG.small(getattr(jobs or jobs_in(tmp_path), stage)(arm, setting, seed)), prepared, **inputs)

    return do


@pytest.mark.parametrize("arm", ["simclr", "meta"])
def test_pretraining_leaves_the_numbers_of_its_warp(arm: str, done: Done) -> None:
    written = done("pretrain", arm, "n20/n20", 1)
    table = metrics.read(written["metrics"])
    assert set(table["setting"]) == {"" if arm == "simclr" else "meta_ft_size=20"}
    assert "warp displacement (samples)" in set(table["metric"])
    assert ("warp scale m" in {row["name"] for row in metrics.read_series_rows(written["series"])}) == (arm == "meta")


def test_a_frozen_warp_is_the_learned_one_from_the_first_step(done: Done, tmp_path: Path) -> None:
    plain = done("pretrain", "simclr", "n20/n20", 0)["pretrained"]
    start = load_pretrained(plain, 1, "cpu")
    learned = start._replace(meta={name: value + 1 for name, value in start.meta.items()})
    save_pretrained(learned, tmp_path / "learned.pt")
    for given, warp in ((plain, start.meta), (tmp_path / "learned.pt", learned.meta)):
        found = load_pretrained(done("pretrain", "meta-frozen", "n20/n20", 0, learned=given)["pretrained"], 1, "cpu")
        assert equal(found.meta, warp)
        same = equal(found.pretrained.encoder, start.pretrained.encoder)
        assert same == (given is plain), "the same minibatches and views"


@pytest.mark.parametrize("split", get_args(Split))
def test_labelled_ecgs_are_those_of_the_pt_seed_and_the_split(
    split: Split, prepared: Files, done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PT is given some, and FT from the encoder of the PT seed its own; each FT seed has a stream."""
    given: list[Any] = []
    problem, linear = finetune.EcgFinetuneProblem, finetuning.linear_evaluation
    monkeypatch.setattr(finetune, "EcgFinetuneProblem", lambda *args: given.append(args[1]) or problem(*args))
    monkeypatch.setattr(finetuning, "linear_evaluation", lambda *args: given.extend(args[1:]) or linear(*args))
    pretrain, settings = arms.pretrain, list[Any]()
    monkeypatch.setattr(arms, "pretrain", lambda *args: settings.append(args[1]) or pretrain(*args))
    jobs, streams = jobs_in(tmp_path, evaluations=["linear_evaluation"], split=split), []
    dataset = open_dataset(prepared, SAMPLES, "cpu")
    for seed in (0, 1):
        chosen = partial(finetune_indices, dataset.records, seed=seed, split=split)
        done("pretrain", "meta", "n20/n20", seed, jobs)
        assert all(map(np.array_equal, settings[-1].finetune, chosen(size=20)))
        encoder = done("pretrain", "no_pt", "n30/n30", seed, jobs)["pretrained"]
        done("finetune", "no_pt", "n30/n30", seed, jobs)
        sets, start, generators = given
        given.clear()
        assert equal(start.encoder, load_pretrained(encoder, 1, "cpu").pretrained.encoder)
        for part, indices in zip(sets, (*chosen(size=30), dataset.records.test), strict=True):
            assert torch.equal(part.signals, dataset.signals(indices))
            assert torch.equal(part.labels, dataset.labels(indices))
        streams += [each.initial_seed() for each in generators]
    assert len(set(streams)) == 2 * 2


@pytest.mark.slow
def test_finetuning_leaves_the_auroc_of_each_class(done: Done) -> None:
    start = done("pretrain", "no_pt", "n30/n30", 1)["pretrained"]
    some = " meta_ft_size=20"
    for arm, setting, words in (("no_pt", "n30/n30", ""), ("meta", "n30/n30", ""), ("meta", "n20/n30", some)):
        table = metrics.read(done("finetune", arm, setting, 1, pretrained=start)["metrics"])
        assert set(table["setting"]) == {f"ft_size=30{words}"}
        table = table[(table["replicate"] == pair(1, 0)) & (table["evaluation"] == "full_transfer")]
        cell = table.set_index("metric")["value"]
        classes = [cell[f"test AUROC {name} (%)"] for name in CLASSES]
        assert cell["mean test AUROC over 5 classes (%)"] == pytest.approx(np.nanmean(classes))


def test_ecgs_that_can_not_judge_are_refused(prepared: Files, done: Done, tmp_path: Path) -> None:
    start, path = done("pretrain", "no_pt", "n30/n30", 0)["pretrained"], tmp_path / "records.csv"
    table, classes = pd.read_csv(prepared["records"]), list(CLASSES)
    tested = table["fold"] == 10
    for changed, words in (
        (table.assign(**{name: table[name] * ~tested for name in classes}), "among the 7 test ECGs"),
        (table.assign(**{name: table[name] * tested for name in classes}), "among the 6 validation ECGs"),
        (table.assign(fold=1), "no records of fold 10"),
    ):
        changed.to_csv(path, index=False)
        with pytest.raises(DataError, match=words):
            done("finetune", "no_pt", "n30/n30", 0, pretrained=start, records=path)
