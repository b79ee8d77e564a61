"""PT and FT jobs on a few generated ECGs: their outputs, and how they resume after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from metapt.domains.ecg import arms, finetune, pretrain
from metapt.domains.ecg.config import Arm
from metapt.domains.ecg.data import prepare
from metapt.domains.ecg.data.dataset import Split, finetune_indices, open_dataset
from metapt.domains.ecg.data.simulate import generate, write
from metapt.domains.ecg.data.sources import CLASSES
from metapt.domains.ecg.resnet1d import load_pretrained
from metapt.domains.ecg.setting import Setting
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.hypergrad import Params
from metapt.machine import Machine
from metapt.sections import plain
from metapt.twostage.quantities import FT_TIME
from metapt.twostage.replicates import pair

SEEDS = 2
META = {"method": "meta", "pretrain_steps": 1, "batch_size": 8}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return about 90 prepared ECGs."""
    folder = tmp_path_factory.mktemp("ecg")
    raw = {name: folder / name for name in ("ptbxl_database.csv", "scp_statements.csv", "records.json")}
    write(generate(75, seed=1), raw)
    outputs = {"signals": folder / "signals.npy", "records": folder / "records.csv"}
    prepare.run({}, raw, outputs, Machine())
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
        "seed": 1,
        "finetune_seeds": 2,
    }
    section = {"epochs": 2, "linear_epochs": 3, "batch_size": 16}
    words = {"evaluations": ["full_transfer", "linear_evaluation"], "width": 2, "samples": 1000}
    return config | words | {"finetune": section, "checkpoint": str(folder / "resume" / "ft.pt")} | changes


def outputs(folder: Path, *names: str) -> dict[str, Path]:
    return {
        name: folder / (f"{name}.pt" if name == "pretrained" else f"{name}.csv")
        for name in (*names, "metrics", "series")
    }


@pytest.fixture(scope="module")
def encoders(prepared: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return pretrained.pt of two PT seeds."""
    found = []
    for seed in range(SEEDS):
        folder = tmp_path_factory.mktemp(f"seed{seed}")
        written = outputs(folder, "pretrained")
        pretrain.run(pretrain_config(folder, {"method": "no_pt"}, seed=seed), prepared, written, Machine())
        found.append(written["pretrained"])
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


def test_a_frozen_warp_is_the_learned_one_from_the_first_step(prepared: dict[str, Path], tmp_path: Path) -> None:
    def ran(name: str, arm: dict[str, Any], **inputs: Path) -> tuple[Params, Params]:
        written = outputs(tmp_path / name, "pretrained")
        pretrain.run(pretrain_config(tmp_path, arm, meta_size=20), prepared | inputs, written, Machine())
        found = load_pretrained(written["pretrained"], 2, "cpu")
        return found.pretrained.encoder, found.meta

    frozen = {"method": "simclr", "warp_of": {"of": "meta"}}
    (_, learned), (plain, start) = ran("meta", META), ran("simclr", {"method": "simclr"})
    assert not torch.equal(learned["scale"], start["scale"])
    encoder, kept = ran("frozen", frozen, learned=tmp_path / "meta" / "pretrained.pt")
    assert all(torch.equal(value, learned[name]) for name, value in kept.items())
    assert not torch.equal(encoder["stem.weight"], plain["stem.weight"])
    encoder, _ = ran("unmoved", frozen, learned=tmp_path / "simclr" / "pretrained.pt")
    assert all(torch.equal(value, plain[name]) for name, value in encoder.items()), "the same minibatches and views"


@pytest.mark.parametrize("split", get_args(Split))
def test_each_pt_seed_is_fine_tuned_from_its_encoder_on_its_ft_set(
    split: Split, prepared: dict[str, Path], encoders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[Any, ...]] = []
    linear = finetune.linear_evaluation
    monkeypatch.setattr(finetune, "linear_evaluation", lambda *args: given.append(args) or linear(*args))
    for seed, encoder in enumerate(encoders):
        config = finetune_config(tmp_path, evaluations=["linear_evaluation"], split=split, seed=seed)
        finetune.run(config, prepared | {"pretrained": encoder}, outputs(tmp_path), Machine())
    dataset = open_dataset(prepared, 1000, "cpu")
    assert len(given) == SEEDS
    for seed, (_, start, _, _, sets, _, generators) in enumerate(given):
        expected = load_pretrained(encoders[seed], 2, "cpu").pretrained.encoder
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

    monkeypatch.setattr(arms, "pretrain", stop)
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


def test_equal_runs_leave_equal_bytes(prepared: dict[str, Path], encoders: list[Path], tmp_path: Path) -> None:
    written = outputs(tmp_path, "pretrained")
    pretrain.run(pretrain_config(tmp_path, {"method": "no_pt"}, seed=1), prepared, written, Machine())
    assert written["pretrained"].read_bytes() == encoders[1].read_bytes() != encoders[0].read_bytes()


def test_an_interrupted_pretraining_goes_on_from_its_checkpoint(
    prepared: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, resumed = outputs(tmp_path / "whole", "pretrained"), outputs(tmp_path / "resumed", "pretrained")
    config = pretrain_config(tmp_path, {"method": "simclr"})
    pretrain.run(config, prepared, whole, Machine())

    def broken(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("metapt.twostage.pretraining.save_pretrained", broken)
        with pytest.raises(KeyboardInterrupt):
            pretrain.run(config, prepared, resumed, Machine())
    assert Path(config["checkpoint"]).is_file()
    with monkeypatch.context() as patch:
        patch.setattr("metapt.training.pretraining.Pretrainer.step", broken)
        pretrain.run(config, prepared, resumed, Machine())
    assert resumed["pretrained"].read_bytes() == whole["pretrained"].read_bytes()
    assert not Path(config["checkpoint"]).exists()


@pytest.mark.parametrize(
    ("meta_size", "setting"), [(None, "ft_size=30"), (30, "ft_size=30"), (20, "ft_size=30 meta_ft_size=20")]
)
def test_finetuning_leaves_the_numbers_of_every_ft_seed(
    meta_size: int | None, setting: str, prepared: dict[str, Path], encoders: list[Path], tmp_path: Path
) -> None:
    written = outputs(tmp_path)
    inputs = prepared | {"pretrained": encoders[1]}
    finetune.run(finetune_config(tmp_path, meta_size=meta_size), inputs, written, Machine())
    table = metrics.read(written["metrics"])
    assert set(table["setting"]) == {setting}
    assert set(table["evaluation"]) == {"full_transfer", "linear_evaluation"}
    assert set(table["replicate"]) == {pair(1, 0), pair(1, 1)}
    cell = table[(table["replicate"] == pair(1, 0)) & (table["evaluation"] == "full_transfer")].set_index("metric")[
        "value"
    ]
    mean = cell["mean test AUROC over 5 classes (%)"]
    assert mean == pytest.approx(np.nanmean([cell[f"test AUROC {name} (%)"] for name in CLASSES]))
    assert cell["best epoch"] in (1, 2)
    series = metrics.read_series(written["series"])
    curve = series[(series["replicate"] == pair(1, 0)) & series["name"].str.startswith("full_transfer")].set_index(
        "step"
    )["value"]
    assert curve[cell["best epoch"]] == cell["validation AUROC (%)"] == curve.max()
    assert not [path for path in (tmp_path / "resume").rglob("*") if path.is_file()]


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the labels of the FT runs of the whole network; the second run fails."""
    made: list[str] = []
    real = finetune.full_transfer

    def full_transfer(*arguments: Any) -> Any:
        made.append(arguments[-1])
        if len(made) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(finetune, "full_transfer", full_transfer)
    return made


def test_a_killed_finetuning_repeats_one_run_at_most_and_ends_in_the_same_bytes(
    prepared: dict[str, Path], encoders: list[Path], tmp_path: Path, transfers: list[str]
) -> None:
    config, inputs = finetune_config(tmp_path), prepared | {"pretrained": encoders[1]}
    with pytest.raises(KeyboardInterrupt):
        finetune.run(config, inputs, outputs(tmp_path / "resumed"), Machine())
    assert len(transfers) == 2
    finetune.run(config, inputs, outputs(tmp_path / "resumed"), Machine())
    assert transfers[1] == transfers[2]
    assert len(transfers) == 2 + 1
    assert all(label.startswith("FT of mine, seeds 1 and ") for label in transfers), "of no other PT seed"
    finetune.run(config, inputs, outputs(tmp_path / "whole"), Machine())
    for name, path in outputs(tmp_path / "whole").items():
        whole, resumed = (each.read_text().splitlines() for each in (path, outputs(tmp_path / "resumed")[name]))
        assert all(line == other or FT_TIME in line for line, other in zip(whole, resumed, strict=True))


def test_a_checkpoint_for_another_encoder_is_passed_over(
    prepared: dict[str, Path], encoders: list[Path], tmp_path: Path, transfers: list[str]
) -> None:
    config = finetune_config(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        finetune.run(config, prepared | {"pretrained": encoders[1]}, outputs(tmp_path), Machine())
    finetune.run(config, prepared | {"pretrained": encoders[0]}, outputs(tmp_path), Machine())
    assert len(transfers) == 2 + 2


def test_a_file_that_no_pretraining_left_is_one_sentence(
    prepared: dict[str, Path], encoders: list[Path], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.pt"
    with pytest.raises(DataError, match=r"wrong\.pt is missing: the PT run that writes it has not been made"):
        load_pretrained(wrong, 2, "cpu")
    wrong.write_bytes(encoders[0].read_bytes()[:5000])
    with pytest.raises(DataError, match=r"wrong\.pt is cut or altered"):
        load_pretrained(wrong, 2, "cpu")
    torch.save({"encoder": {}}, wrong)
    with pytest.raises(DataError, match=r"wrong\.pt is not what PT leaves, which is encoder, head, buffers, meta"):
        finetune.run(finetune_config(tmp_path), prepared | {"pretrained": wrong}, outputs(tmp_path), Machine())
    with pytest.raises(DataError, match="has no encoder of width 3"):
        load_pretrained(encoders[0], 3, "cpu")
