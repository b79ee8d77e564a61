"""PT and FT jobs on a few generated ECGs: their outputs, and how they resume after a kill."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from metapt.domains.ecg import arms, finetune
from metapt.domains.ecg.config import Split
from metapt.domains.ecg.data import prepare
from metapt.domains.ecg.data.dataset import finetune_indices, open_dataset
from metapt.domains.ecg.data.simulate import generate, write
from metapt.domains.ecg.data.sources import CLASSES
from metapt.domains.ecg.jobs import EcgJobs
from metapt.domains.ecg.resnet1d import load_pretrained
from metapt.domains.ecg.setting import Setting
from metapt.engine.config import validate
from metapt.engine.execute import work_of
from metapt.engine.jobs import Job, Place
from metapt.evaluation import metrics
from metapt.hypergrad import Params
from metapt.machine import Machine
from metapt.sections import JobSettings
from metapt.twostage import finetuning
from metapt.twostage.quantities import FT_TIME
from metapt.twostage.replicates import pair

SEEDS = 2
SECTION: dict[str, Any] = {
    "source": "simulated",
    "width": 2,
    "pretrain_seeds": SEEDS,
    "finetune_seeds": 2,
    "pretrain": {"signals": 16, "epochs": 2, "batch_size": 8},
    "finetune": {"epochs": 2, "linear_epochs": 3, "batch_size": 16},
    "arms": {"meta": {"pretrain_steps": 1, "batch_size": 8}},
}
Make = Callable[..., EcgJobs]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return about 90 prepared ECGs."""
    folder = tmp_path_factory.mktemp("ecg")
    raw = {name: folder / name for name in ("ptbxl_database.csv", "scp_statements.csv", "records.json")}
    write(generate(75, seed=1), raw)
    outputs = {"signals": folder / "signals.npy", "records": folder / "records.csv"}
    prepare.run(JobSettings(), raw, outputs, Machine())
    return outputs


@pytest.fixture
def jobs(prepared: dict[str, Path], tmp_path: Path) -> Make:
    """Return a function (folder, keys) -> the jobs with results in a folder, where the ECGs are prepared."""

    def make(folder: str = "results", **keys: Any) -> EcgJobs:
        section: Any = validate({"ecg": SECTION | keys}).ecg
        made = EcgJobs("ecg", section, Place(str(tmp_path / folder), str(tmp_path), {}, []))
        for name, path in made.prepared().outputs.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(prepared[name], path)
        return made

    return make


def done(job: Job, **inputs: Path) -> dict[str, Path]:
    """Do the work of a job, with other inputs in place of its own, and return its outputs."""
    given, outputs = ({name: Path(path) for name, path in files.items()} for files in (job.inputs, job.outputs))
    work_of(job)(given | inputs, outputs, Machine())
    assert not Path(job.config["checkpoint"]).exists()
    return outputs


def stopped(*given: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("arm", ["simclr", "meta"])
def test_pretraining_leaves_an_encoder_numbers_and_no_checkpoint(arm: str, jobs: Make) -> None:
    written = done(jobs().pretrain(arm, "n20/n20", 1))
    assert load_pretrained(written["pretrained"], 2, "cpu").meta["scale"].shape == ()
    table = metrics.read(written["metrics"])
    assert set(table["setting"]) == {"" if arm == "simclr" else "meta_ft_size=20"}
    assert set(table["replicate"]) == {1}
    assert set(table["evaluation"]) == {"pretraining"}
    assert {"PT wall time (s)", "warp displacement (samples)"} <= set(table["metric"])
    assert ("warp scale m" in set(metrics.read_series(written["series"])["name"])) == (arm == "meta")


def test_a_frozen_warp_is_the_learned_one_from_the_first_step(jobs: Make) -> None:
    made = jobs()
    learning, plain, frozen = (made.pretrain(arm, "n20/n20", 0) for arm in ("meta", "simclr", "meta-frozen"))

    def ran(job: Job, **inputs: Path) -> tuple[Params, Params]:
        found = load_pretrained(done(job, **inputs)["pretrained"], 2, "cpu")
        return found.pretrained.encoder, found.meta

    (_, learned), (unlearned, start) = ran(learning), ran(plain)
    assert not torch.equal(learned["scale"], start["scale"])
    encoder, kept = ran(frozen)
    assert all(torch.equal(value, learned[name]) for name, value in kept.items())
    assert not torch.equal(encoder["stem.weight"], unlearned["stem.weight"])
    encoder, _ = ran(frozen, learned=Path(plain.outputs["pretrained"]))
    assert all(torch.equal(value, unlearned[name]) for name, value in encoder.items()), "the same minibatches and views"


@pytest.mark.parametrize("split", get_args(Split))
def test_each_pt_seed_is_fine_tuned_from_its_encoder_on_its_ft_set(
    split: Split, prepared: dict[str, Path], jobs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    problem, linear = finetune.EcgFinetuneProblem, finetuning.linear_evaluation
    monkeypatch.setattr(finetune, "EcgFinetuneProblem", lambda *args: given.append(args[1]) or problem(*args))
    monkeypatch.setattr(finetuning, "linear_evaluation", lambda *args: given.extend(args[1:]) or linear(*args))
    made, dataset, streams = (
        jobs(evaluations=["linear_evaluation"], split=split),
        open_dataset(prepared, 1000, "cpu"),
        [],
    )
    for seed in range(SEEDS):
        encoder = done(made.pretrain("no_pt", "n30/n30", seed))["pretrained"]
        done(made.finetune("no_pt", "n30/n30", seed))
        sets, start, generators = given
        given.clear()
        expected = load_pretrained(encoder, 2, "cpu").pretrained.encoder
        assert all(torch.equal(value, expected[name]) for name, value in start.encoder.items())
        chosen = *finetune_indices(dataset.records, 30, seed, split), dataset.records.test
        for part, indices in zip(sets, chosen, strict=True):
            assert torch.equal(part.signals, dataset.signals(indices))
            assert torch.equal(part.labels, dataset.labels(indices))
        streams += [each.initial_seed() for each in generators]
    assert len(set(streams)) == 2 * SEEDS, "each FT seed has its own stream"


@pytest.mark.parametrize("split", get_args(Split))
def test_pretraining_is_told_how_its_labelled_ecgs_are_split(
    split: Split, jobs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Setting] = []
    monkeypatch.setattr(arms, "pretrain", lambda arm, setting: given.append(setting) or stopped())
    with pytest.raises(KeyboardInterrupt):
        done(jobs(split=split).pretrain("meta", "n20/n20", 1))
    (setting,) = given
    for part, expected in zip(setting.finetune, finetune_indices(setting.dataset.records, 20, 1, split), strict=True):
        assert np.array_equal(part, expected)


def test_an_interrupted_pretraining_goes_on_from_its_checkpoint(jobs: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, job = (jobs(folder).pretrain("simclr", "n20/n20", 0) for folder in ("whole", "resumed"))
    done(whole)
    for place in ("metapt.twostage.pretraining.save_pretrained", "metapt.training.pretraining.Pretrainer.step"):
        with monkeypatch.context() as patch:
            patch.setattr(place, stopped)
            if place.endswith("step"):
                done(job)
            else:
                with pytest.raises(KeyboardInterrupt):
                    done(job)
                assert Path(job.config["checkpoint"]).is_file()
    one, other = (Path(each.outputs["pretrained"]).read_bytes() for each in (whole, job))
    assert one == other


@pytest.mark.parametrize(
    ("arm", "setting", "words"),
    [
        ("no_pt", "n30/n30", "ft_size=30"),
        ("meta", "n30/n30", "ft_size=30"),
        ("meta", "n20/n30", "ft_size=30 meta_ft_size=20"),
    ],
)
def test_finetuning_leaves_the_numbers_of_every_ft_seed(arm: str, setting: str, words: str, jobs: Make) -> None:
    made = jobs()
    done(made.pretrain(arm, setting, 1))
    written = done(made.finetune(arm, setting, 1))
    table, series = metrics.read(written["metrics"]), metrics.read_series(written["series"])
    assert set(table["setting"]) == {words}
    assert set(table["evaluation"]) == {"full_transfer", "linear_evaluation"}
    assert set(table["replicate"]) == {pair(1, 0), pair(1, 1)}
    table, series = (each[each["replicate"] == pair(1, 0)] for each in (table, series))
    cell = table[table["evaluation"] == "full_transfer"].set_index("metric")["value"]
    classes = [cell[f"test AUROC {name} (%)"] for name in CLASSES]
    assert cell["mean test AUROC over 5 classes (%)"] == pytest.approx(np.nanmean(classes))
    curve = series[series["name"].str.startswith("full_transfer")].set_index("step")["value"]
    assert list(curve.index) == [1, 2]
    assert curve[cell["best epoch"]] == cell["validation AUROC (%)"] == curve.max()


def test_a_killed_finetuning_repeats_one_run_at_most_and_starts_again_for_another_encoder(
    jobs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, resumed = jobs("whole"), jobs("resumed")
    for made in (whole, resumed):
        encoders = [done(made.pretrain("no_pt", "n30/n30", seed))["pretrained"] for seed in range(SEEDS)]
    labels: list[str] = []
    real = finetuning.full_transfer

    def full_transfer(*given: Any) -> Any:
        labels.append(given[-1])
        return stopped() if len(labels) in (2, 5) else real(*given)

    monkeypatch.setattr(finetuning, "full_transfer", full_transfer)
    job, other = (made.finetune("no_pt", "n30/n30", 1) for made in (resumed, whole))
    with pytest.raises(KeyboardInterrupt):
        done(job)
    done(job)
    assert len(labels) == 3
    assert labels[1] == labels[2]
    with pytest.raises(KeyboardInterrupt):
        done(other)
    assert len(labels) == 5
    done(other, pretrained=encoders[0])
    assert len(labels) == 5 + 2, "all of them, from another encoder"
    done(other)
    for name in ("metrics", "series"):
        one, again = (Path(each.outputs[name]).read_text().splitlines() for each in (other, job))
        assert all(line == same or FT_TIME in line for line, same in zip(one, again, strict=True))
