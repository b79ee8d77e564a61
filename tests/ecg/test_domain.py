"""The domain as its stages call it: PT and FT jobs on a few generated ECGs, what they leave, and how they go on after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from metapt.domains.ecg.needs import (
    EXPERIMENTS,
    FinetuneKey,
    PretrainKey,
    StudyKey,
    fixed_arms,
    needs,
)
from metapt.domains.ecg.runs import load_pretrained
from metapt.stages import Machine, finetune, pretrain, study
from metapt.twostage.pairs import pair
from pydantic import TypeAdapter

from metapt.config import plain, validate
from metapt.domains.ecg import finetune_run, pretrain_run
from metapt.domains.ecg.arms import Setting
from metapt.domains.ecg.config import Arm, EcgConfig, arms_of
from metapt.domains.ecg.data.dataset import Split, finetune_indices, open_dataset
from metapt.domains.ecg.data.prepare import prepare
from metapt.domains.ecg.data.simulate import generate, write
from metapt.domains.ecg.data.sources import CLASSES
from metapt.errors import ConfigError, DataError
from metapt.evaluation import metrics
from metapt.registry import domain
from metapt.sections import Experiment

SEEDS = 2
META = {"method": "meta", "pretrain_steps": 1, "batch_size": 8}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """About 90 ECGs."""
    folder = tmp_path_factory.mktemp("ecg")
    raw = {name: folder / name for name in ("ptbxl_database.csv", "scp_statements.csv", "records.json")}
    write(generate(75, seed=1), raw)
    outputs = {"signals": folder / "signals.npy", "records": folder / "records.csv"}
    prepare(raw, outputs)
    return outputs


def pretrain_config(folder: Path, arm: dict[str, Any], **changes: Any) -> dict[str, Any]:
    settings = plain(TypeAdapter(Arm).validate_python(arm))
    config = {
        "domain": "ecg",
        "arm": "mine",
        "arm_settings": settings,
        "seed": 0,
        "meta_size": None,
        "split": "patients",
        "width": 2,
        "samples": 1000,
    }
    section = {"signals": 16, "epochs": 2, "batch_size": 8}
    return config | {"pretrain": section, "checkpoint": str(folder / "resume" / "pt.pt")} | changes


def finetune_config(folder: Path, **changes: Any) -> dict[str, Any]:
    config = {
        "domain": "ecg",
        "arm": "mine",
        "meta_size": None,
        "size": 30,
        "split": "patients",
        "pretrain_seeds": SEEDS,
        "finetune_seeds": 2,
    }
    section = {"epochs": 2, "linear_epochs": 3, "batch_size": 16}
    words = {"evaluations": ["full_transfer", "linear_evaluation"], "width": 2, "samples": 1000}
    return config | words | {"finetune": section, "checkpoint": str(folder / "resume" / "ft.pt")} | changes


def outputs(folder: Path, *names: str) -> dict[str, Path]:
    return {name: folder / (f"{name}.pt" if name == "pretrained" else f"{name}.csv") for name in (*names, "metrics", "series")}


@pytest.fixture(scope="module")
def encoders(prepared: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """pretrained.pt of two PT seeds."""
    found = {}
    for seed in range(SEEDS):
        folder = tmp_path_factory.mktemp(f"seed{seed}")
        written = outputs(folder, "pretrained")
        pretrain.run(pretrain_config(folder, {"method": "no_pt"}, seed=seed), prepared, written, Machine())
        found[f"seed{seed}"] = written["pretrained"]
    return found


@pytest.mark.parametrize(("arm", "meta_size"), [({"method": "simclr"}, None), (META, 20)])
def test_pretraining_leaves_an_encoder_numbers_and_no_checkpoint(
    arm: dict[str, Any], meta_size: int | None, prepared: dict[str, Path], tmp_path: Path
) -> None:
    written = outputs(tmp_path, "pretrained")
    pretrain.run(pretrain_config(tmp_path, arm, meta_size=meta_size, seed=3), prepared, written, Machine())
    learned = load_pretrained(written["pretrained"], 2, "cpu")
    assert learned.meta["scale"].shape == ()
    table = metrics.read(written["metrics"])
    assert set(table["setting"]) == {"" if meta_size is None else "meta_ft_size=20"}
    assert set(table["replicate"]) == {3}
    assert set(table["evaluation"]) == {"pretraining"}
    assert {"PT wall time (s)", "warp displacement (samples)"} <= set(table["metric"])
    assert ("warp scale m" in set(metrics.read_series(written["series"])["name"])) == (meta_size is not None)
    assert not [path for path in (tmp_path / "resume").rglob("*") if path.is_file()]


@pytest.mark.parametrize("split", get_args(Split))
def test_each_pt_seed_is_fine_tuned_from_its_encoder_on_its_ft_set(
    split: Split, prepared: dict[str, Path], encoders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[Any, ...]] = []
    linear = finetune_run.linear_evaluation
    monkeypatch.setattr(finetune_run, "linear_evaluation", lambda *args: given.append(args) or linear(*args))
    config = finetune_config(tmp_path, evaluations=["linear_evaluation"], split=split)
    finetune.run(config, prepared | encoders, outputs(tmp_path), Machine())
    dataset = open_dataset(prepared, 1000, "cpu")
    assert len(given) == SEEDS
    for seed, (_, start, _, _, sets, _, generators) in enumerate(given):
        expected = load_pretrained(encoders[f"seed{seed}"], 2, "cpu").pretrained.encoder
        assert all(torch.equal(value, expected[name]) for name, value in start.items())
        train, validation = finetune_indices(dataset.records, 30, seed, split)
        for part, chosen in zip(sets, (train, validation, dataset.records.test), strict=True):
            assert torch.equal(part.signals, dataset.signals(chosen))
            assert torch.equal(part.labels, dataset.labels(chosen))
        assert len({each.initial_seed() for each in generators}) == 2, "each FT seed has its own stream"
    assert len({each.initial_seed() for arguments in given for each in arguments[-1]}) == 2 * SEEDS


@pytest.mark.parametrize("split", get_args(Split))
def test_pretraining_is_told_how_its_labelled_ecgs_are_split(
    split: Split, prepared: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Setting] = []

    def stop(arm: Arm, setting: Setting) -> None:
        given.append(setting)
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrain_run, "pretrain", stop)
    with pytest.raises(KeyboardInterrupt):
        pretrain.run(
            pretrain_config(tmp_path, META, meta_size=20, seed=3, split=split),
            prepared,
            outputs(tmp_path, "pretrained"),
            Machine(),
        )
    (setting,) = given
    for part, expected in zip(setting.finetune, finetune_indices(setting.dataset.records, 20, 3, split), strict=True):
        assert np.array_equal(part, expected)


def test_equal_runs_leave_equal_bytes(prepared: dict[str, Path], encoders: dict[str, Path], tmp_path: Path) -> None:
    written = outputs(tmp_path, "pretrained")
    pretrain.run(pretrain_config(tmp_path, {"method": "no_pt"}, seed=1), prepared, written, Machine())
    assert written["pretrained"].read_bytes() == encoders["seed1"].read_bytes() != encoders["seed0"].read_bytes()


def test_an_interrupted_pretraining_goes_on_from_its_checkpoint(
    prepared: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, resumed = outputs(tmp_path / "whole", "pretrained"), outputs(tmp_path / "resumed", "pretrained")
    config = pretrain_config(tmp_path, {"method": "simclr"})
    pretrain.run(config, prepared, whole, Machine())

    def broken(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pretrain_run, "save_pretrained", broken)
        with pytest.raises(KeyboardInterrupt):
            pretrain.run(config, prepared, resumed, Machine())
    assert Path(config["checkpoint"]).is_file()
    with monkeypatch.context() as patch:
        patch.setattr("metapt.training.pretraining.Pretrainer.step", broken)
        pretrain.run(config, prepared, resumed, Machine())
    assert resumed["pretrained"].read_bytes() == whole["pretrained"].read_bytes()
    assert not Path(config["checkpoint"]).exists()


@pytest.mark.parametrize(("meta_size", "setting"), [(None, "ft_size=30"), (30, "ft_size=30"), (20, "ft_size=30 meta_ft_size=20")])
def test_finetuning_leaves_the_numbers_of_every_pair_of_seeds(
    meta_size: int | None, setting: str, prepared: dict[str, Path], encoders: dict[str, Path], tmp_path: Path
) -> None:
    written = outputs(tmp_path)
    finetune.run(finetune_config(tmp_path, meta_size=meta_size), prepared | encoders, written, Machine())
    table = metrics.read(written["metrics"])
    assert set(table["setting"]) == {setting}
    assert set(table["evaluation"]) == {"full_transfer", "linear_evaluation"}
    assert set(table["replicate"]) == {pair(first, second) for first in range(SEEDS) for second in range(2)}
    cell = table[(table["replicate"] == pair(1, 0)) & (table["evaluation"] == "full_transfer")].set_index("metric")["value"]
    mean = cell["mean test AUROC over 5 classes (%)"]
    assert mean == pytest.approx(np.nanmean([cell[f"test AUROC {name} (%)"] for name in CLASSES]))
    assert cell["best epoch"] in (1, 2)
    series = metrics.read_series(written["series"])
    curve = series[(series["replicate"] == pair(1, 0)) & series["name"].str.startswith("full_transfer")].set_index("step")[
        "value"
    ]
    assert curve[cell["best epoch"]] == cell["validation AUROC (%)"] == curve.max()
    assert not [path for path in (tmp_path / "resume").rglob("*") if path.is_file()]


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Labels of the FT runs of the whole network; the third breaks off."""
    made: list[str] = []
    real = finetune_run.full_transfer

    def full_transfer(*arguments: Any) -> Any:
        made.append(arguments[-1])
        if len(made) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(finetune_run, "full_transfer", full_transfer)
    return made


def test_a_killed_finetuning_repeats_one_run_at_most_and_ends_in_the_same_bytes(
    prepared: dict[str, Path], encoders: dict[str, Path], tmp_path: Path, transfers: list[str]
) -> None:
    config, inputs = finetune_config(tmp_path), prepared | encoders
    with pytest.raises(KeyboardInterrupt):
        finetune.run(config, inputs, outputs(tmp_path / "resumed"), Machine())
    assert len(transfers) == 3
    finetune.run(config, inputs, outputs(tmp_path / "resumed"), Machine())
    assert transfers[2] == transfers[3]
    assert len(transfers) == 2 * SEEDS + 1
    finetune.run(config, inputs, outputs(tmp_path / "whole"), Machine())
    for name, path in outputs(tmp_path / "whole").items():
        assert path.read_bytes() == outputs(tmp_path / "resumed")[name].read_bytes()


def test_a_checkpoint_for_another_encoder_is_passed_over(
    prepared: dict[str, Path], encoders: dict[str, Path], tmp_path: Path, transfers: list[str]
) -> None:
    config = finetune_config(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        finetune.run(config, prepared | encoders, outputs(tmp_path), Machine())
    swapped = prepared | {"seed0": encoders["seed1"], "seed1": encoders["seed0"]}
    finetune.run(config, swapped, outputs(tmp_path), Machine())
    assert len(transfers) == 3 + 2 * SEEDS


def test_a_file_that_no_pretraining_left_is_one_sentence(
    prepared: dict[str, Path], encoders: dict[str, Path], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.pt"
    with pytest.raises(DataError, match=r"wrong\.pt is missing: the PT run that writes it has not been made"):
        load_pretrained(wrong, 2, "cpu")
    wrong.write_bytes(encoders["seed0"].read_bytes()[:5000])
    with pytest.raises(DataError, match=r"wrong\.pt is cut or altered"):
        load_pretrained(wrong, 2, "cpu")
    torch.save({"encoder": {}}, wrong)
    with pytest.raises(DataError, match=r"wrong\.pt is not what PT leaves, which is encoder, head, buffers, meta"):
        finetune.run(finetune_config(tmp_path), prepared | encoders | {"seed0": wrong}, outputs(tmp_path), Machine())
    with pytest.raises(DataError, match="has no encoder of width 3"):
        load_pretrained(encoders["seed0"], 3, "cpu")


def test_what_a_domain_does_not_have_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no domain 'eeg'; legal: mnist, ecg"):
        domain("eeg", "prepare")
    with pytest.raises(ConfigError, match="the domain 'ecg' has no stage 'train'; it has finetune, prepare, pretrain"):
        domain("ecg", "train")
    with pytest.raises(ConfigError, match="the domain 'mnist' has no stage 'pretrain'"):
        domain("mnist", "pretrain")
    with pytest.raises(ConfigError, match="ecg has no study 'cost'; legal: warp_study, augmentations"):
        study.run({"domain": "ecg", "experiment": "cost"}, {}, {}, Machine())


def config_of(**section: Any) -> EcgConfig:
    section = {"pretrain_seeds": 2} | section
    found = validate({"ecg": section}).ecg
    assert found is not None
    return found


def test_full_access_needs_each_arm_at_each_size_and_shares_pretraining_without_labels() -> None:
    found = needs(config_of(full_access={"arms": ["simclr", "meta"], "finetune_sizes": [50, 100]}), "full_access")
    assert found.finetune == [
        FinetuneKey("simclr", "none", 50),
        FinetuneKey("simclr", "none", 100),
        FinetuneKey("meta", "n50", 50),
        FinetuneKey("meta", "n100", 100),
    ]
    runs = [("simclr", "none"), ("meta", "n50"), ("meta", "n100")]
    assert found.pretrain == [PretrainKey(*run, seed) for run in runs for seed in range(2)]
    assert found.study == []
    assert (found.pretrain[0].name, found.finetune[-1].name) == ("pretrain/simclr/none/0", "finetune/meta/n100/n100")


def test_partial_access_needs_no_more_labels_in_pretraining_than_in_finetuning() -> None:
    section = {"arms": ["meta"], "finetune_sizes": [50, 100], "meta_sizes": [10, 50, 100, 200]}
    found = needs(config_of(partial_access=section), "partial_access")
    assert found.finetune == [
        FinetuneKey("simclr", "none", 50),
        FinetuneKey("simclr", "none", 100),
        *(FinetuneKey("meta", f"n{seen}", size) for size, seen in [(50, 10), (50, 50), (100, 10), (100, 50), (100, 100)]),
    ]
    assert len(found.pretrain) == len(set(found.pretrain)) == 2 * 4


@pytest.mark.parametrize("experiment", ["augmentations", "cost"])
def test_some_experiments_need_pretraining_only(experiment: str) -> None:
    found = needs(config_of(**{experiment: {"arms": ["simclr", "meta"], "finetune_size": 50}}), experiment)
    assert [run.access for run in found.pretrain] == ["none", "none", "n50", "n50"]
    assert found.finetune == found.study == []


def test_the_warp_study_needs_fixed_strengths_and_starts() -> None:
    config = config_of(warp_study={"finetune_size": 50})
    found = needs(config, "warp_study")
    assert {run.arm for run in found.pretrain} == {cell.arm for cell in found.finetune} == set(arms_of(config)) - set(config.arms)
    assert {run.access for run in found.pretrain if run.arm.startswith("fixed-")} == {"none"}
    assert {run.access for run in found.pretrain if run.arm.startswith("meta")} == {"n50"}
    assert found.study == [StudyKey(arm, seed) for arm in ("meta", "meta-stable") for seed in range(2)]
    assert fixed_arms(config, "meta") == {strength: f"fixed-paper-{strength:g}" for strength in (0.125, 0.25, 0.5, 1, 2, 4)}
    assert set(fixed_arms(config, "meta-stable").values()) <= set(arms_of(config))


def test_a_start_without_fixed_strengths_beside_it_is_named() -> None:
    section = {"strengths": {"paper": [1.0]}, "starts": {"meta-stable": [1.0]}}
    with pytest.raises(ConfigError, match="none with smoothing velocity and scale log, as the arm 'meta-stable'"):
        fixed_arms(config_of(warp_study=section), "meta-stable")
    with pytest.raises(ConfigError, match=r"ecg\.cost is not in the config: add `cost: \{\}`"):
        needs(config_of(warp_study=section), "cost")


def test_every_experiment_of_the_config_is_known() -> None:
    config = EcgConfig.model_validate({name: {} for name in EXPERIMENTS})
    assert [key for key, section in config if isinstance(section, Experiment)] == list(EXPERIMENTS)
    for name in EXPERIMENTS:
        assert needs(config, name).pretrain
