"""Each study from prepared digits to its tables, figure and verdicts, on tiny settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from metapt.domains.mnist import quantities
from metapt.domains.mnist.arms import Outcome, Run
from metapt.domains.mnist.batches import RotationBatches, SingleBatches, WeightingBatches
from metapt.domains.mnist.config import (
    CURVATURE,
    SHARED,
    BpttArm,
    BpttStudy,
    ExampleWeighting,
    Fidelity,
    MnistMeta,
    RotationMean,
    RotationMeanStd,
    Study,
)
from metapt.domains.mnist.data.prepare import MnistData
from metapt.domains.mnist.domain import DOMAIN
from metapt.domains.mnist.experiments.bptt import run as bptt_study
from metapt.domains.mnist.experiments.example_weighting import run as weighting_study
from metapt.domains.mnist.experiments.fidelity import run as fidelity_study
from metapt.domains.mnist.experiments.rotation_mean import run as rotation_study
from metapt.domains.mnist.jobs import MnistJobs
from metapt.evaluation import metrics
from metapt.evaluation.comparisons import BEYOND_THE_PAPER
from metapt.evaluation.experiment import SUMMARY
from metapt.evaluation.paper import paper_numbers
from metapt.execute import work_of
from metapt.jobs import Place
from metapt.machine import Machine

SIZES: Any = {"pretrain_examples": 60, "finetune_examples": 60, "batch_size": 20}
STUDIES: dict[str, Study] = {
    "rotation_mean": RotationMean(**SIZES, epochs=1),
    "rotation_mean_std": RotationMeanStd(
        **SIZES,
        epochs=1,
        replicates=2,
        arms={**RotationMeanStd().arms, "meta-curvature": CURVATURE.model_copy(update={"epochs": 2})},
    ),
    "example_weighting": ExampleWeighting(
        pretrain_examples=100,
        classes=11,
        batch_size=50,
        epochs=1,
        arms={
            "meta": MnistMeta(pretrain_lr=1e-3, meta_lr=1e-3),
            "meta-warmup": MnistMeta(pretrain_lr=1e-3, meta_lr=1e-3, heads="shared", warmup_epochs=0.5),
        },
    ),
    "bptt": BpttStudy(
        **SIZES,
        pretrain_steps=6,
        finetune_steps=5,
        replicates=2,
        evaluations=2,
        arms={
            name: arm.model_copy(update={"outer_steps": 3}) if isinstance(arm, BpttArm) else arm
            for name, arm in BpttStudy().arms.items()
        },
    ),
    "fidelity": Fidelity(
        replicates=2,
        examples=50,
        finetune_examples=40,
        pretrain_steps=[1, 5],
        neumann_terms=[0, 2],
        unroll_steps=[0, 1],
    ),
}
WORDS = {
    "rotation_mean": {quantities.ERROR, quantities.MEAN, quantities.INITIAL_MEAN},
    "rotation_mean_std": {quantities.MEAN, quantities.DEVIATION},
    "example_weighting": {quantities.RATIO, *map(quantities.MEAN_WEIGHT.format, quantities.KINDS)},
    "bptt": {quantities.ACCURACY, quantities.WALL_TIME, quantities.PEAK_MEMORY},
    "fidelity": {quantities.COSINE, quantities.NORM_RATIO},
}


def jobs(experiment: str, study: Any, results: Path) -> MnistJobs:
    """Return the jobs of a config with this experiment only."""
    config = DOMAIN.section().model_validate({"source": "digits", experiment: study})
    return MnistJobs("mnist", config, Place(results=str(results), raw="raw", sources={}, mirrors=[]))  # type: ignore[arg-type]


def train(experiment: str, study: Any, arm: str, digits_file: Path, results: Path) -> dict[str, Path]:
    """Train an arm by its job on given prepared data; return its files."""
    job = jobs(experiment, study, results).study(experiment, arm)
    outputs = {name: Path(path) for name, path in job.outputs.items()}
    outputs["metrics"].parent.mkdir(parents=True)
    inputs = {name: Path(path) for name, path in job.inputs.items()} | {"data": digits_file}
    work_of(job)(inputs, outputs, Machine())
    kept = job.config.get("checkpoint")
    assert kept is None or not Path(kept).parent.exists() or not list(Path(kept).parent.iterdir()), "it is removed"
    return outputs


def summarise(experiment: str, study: Any, runs: dict[str, dict[str, Path]], folder: Path) -> dict[str, Path]:
    """Summarise the runs of some arms; return the files."""
    some = study.model_copy(update={"arms": {arm: study.arms[arm] for arm in runs}})
    job = DOMAIN.summary(jobs(experiment, some, folder), experiment)
    inputs = {f"{experiment}/{arm}/{name}": path for arm, files in runs.items() for name, path in files.items()}
    assert inputs.keys() == {name for name in job.inputs if not name.endswith("/record")}
    folder.mkdir()
    outputs = {name: folder / file for name, file in SUMMARY.items()}
    job.config["settings"]["source"] = "mnist"  # whose numbers stand beside the paper's
    DOMAIN.experiments[experiment].summarise(job.config, inputs, outputs, Machine())
    return outputs


@pytest.fixture(scope="module")
def runs(digits_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, Path]]]:
    """Experiment -> arm -> its files."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        experiment: {arm: train(experiment, study, arm, digits_file, folder) for arm in study.arm_names()}
        for experiment, study in STUDIES.items()
    }


Runs = dict[str, dict[str, dict[str, Path]]]


@pytest.mark.parametrize("experiment", STUDIES)
def test_every_arm_leaves_its_numbers(runs: Runs, experiment: str) -> None:
    for arm, files in runs[experiment].items():
        table = metrics.read(files["metrics"])
        assert set(table["experiment"]) == {f"mnist_{experiment}"}
        assert set(table["arm"]) == {arm}
        assert set(table["metric"]) >= WORDS[experiment]
        numbers = table[table["evaluation"] != "diagnosis"]
        assert numbers["value"].map(pd.notna).all()


def test_learned_rotations_have_a_trajectory_per_replicate(runs: Runs) -> None:
    for experiment, replicates in {"rotation_mean": 10, "rotation_mean_std": 4}.items():
        for arm, files in runs[experiment].items():
            series = metrics.read_series(files["series"])
            assert sorted(series["replicate"].unique()) == list(range(replicates))
            steps = 6 if arm == "meta-curvature" else 3
            assert sorted(series["step"].unique()) == list(range(1, steps + 1))


def test_the_last_point_of_a_trajectory_is_the_learned_value(runs: Runs) -> None:
    files = runs["rotation_mean"]["meta"]
    series = metrics.read_series(files["series"])
    learned = metrics.select(
        metrics.read(files["metrics"]), experiment="mnist_rotation_mean", arm="meta", metric=quantities.MEAN
    )
    assert list(series[series["step"] == 3]["value"]) == list(learned)


def test_initial_means_lie_in_the_range(runs: Runs) -> None:
    table = metrics.read(runs["rotation_mean"]["meta"]["metrics"])
    initial = table[table["metric"] == quantities.INITIAL_MEAN]["value"]
    assert initial.nunique() == 10
    assert initial.between(45, 135).all()


def test_the_paper_has_each_of_its_numbers_beside_ours(runs: Runs) -> None:
    """With the paper's replicates, starts and targets our settings have the words of its table."""
    ours = metrics.read([files["metrics"] for arms in runs.values() for files in arms.values()])
    papers = paper_numbers()
    papers = papers[papers["experiment"].str.startswith("mnist_")]
    missing = papers.merge(ours.drop_duplicates(metrics.CELL), how="left", on=metrics.CELL, indicator=True)
    assert len(papers) == 11
    assert list(missing[missing["_merge"] == "left_only"][metrics.CELL].itertuples(index=False)) == []


def test_claims_name_the_papers_number_for_its_own_arms_only(runs: Runs, tmp_path: Path) -> None:
    name = "rotation_mean_std"
    study = RotationMeanStd(arms=STUDIES[name].arms)
    claims = pd.read_csv(summarise(name, study, runs[name], tmp_path / "summary")["claims"])
    beyond = claims["paper"] == BEYOND_THE_PAPER
    assert set(claims["arm"][beyond]) == {"meta-curvature"}
    assert set(claims["arm"][~beyond]) == {"meta", "meta-shared"}


@pytest.mark.parametrize("experiment", STUDIES)
def test_a_summary_is_whole_and_always_the_same_bytes(runs: Runs, experiment: str, tmp_path: Path) -> None:
    first, second = (
        summarise(experiment, STUDIES[experiment], runs[experiment], tmp_path / name) for name in ("a", "b")
    )
    for name, path in first.items():
        assert path.stat().st_size > 0
        assert path.read_bytes() == second[name].read_bytes(), name
    verdicts = pd.read_csv(first["claims"])
    assert set(verdicts["verdict"]) <= {"reproduced", "not reproduced", "inconclusive", "too few seeds"}
    assert len(verdicts) >= len(runs[experiment]) - 2
    assert len(metrics.read(first["metrics"])) == sum(
        len(metrics.read(files["metrics"])) for files in runs[experiment].values()
    )
    assert "diagnosis" not in first["table_md"].read_text()
    assert not pd.read_csv(first["table_csv"])["paper_mean"].notna().any(), "the study is smaller than the paper's"


@pytest.mark.parametrize("experiment", STUDIES)
def test_the_papers_study_stands_beside_all_of_its_numbers(runs: Runs, experiment: str, tmp_path: Path) -> None:
    found = summarise(experiment, type(STUDIES[experiment])(), runs[experiment], tmp_path / "papers")
    papers = (paper_numbers()["experiment"] == f"mnist_{experiment}").sum()
    assert pd.read_csv(found["table_csv"])["paper_mean"].notna().sum() == papers


def test_a_claim_about_an_arm_that_was_not_run_is_not_measured(runs: Runs, tmp_path: Path) -> None:
    some = {arm: runs["bptt"][arm] for arm in ("meta", "initial_augmentation")}
    verdicts = pd.read_csv(summarise("bptt", STUDIES["bptt"], some, tmp_path / "some")["claims"]).set_index("claim")[
        "verdict"
    ]
    assert verdicts["meta comes within 1 point of bptt"] == "not measured"
    assert verdicts["meta is at least 4 points better than initial_augmentation"] != "not measured"


def test_meta_pretraining_moves_the_mean_towards_the_target(digits_file: Path, tmp_path: Path) -> None:
    study = RotationMean(pretrain_examples=300, finetune_examples=300, epochs=10, arms={"meta": SHARED})
    table = metrics.read(train("rotation_mean", study, "meta", digits_file, tmp_path)["metrics"])
    values = table[table["evaluation"] == ""].pivot(index="replicate", columns="metric", values="value")
    before = (values[quantities.INITIAL_MEAN] - 90).abs()
    assert before.mean() - values[quantities.ERROR].mean() > 5


def forget(results: Outcome) -> None:
    """Remove the checkpoints, so that the next run does not resume from them."""
    for checkpoint in results.checkpoints:
        checkpoint.remove()


RunAs = Callable[..., Run]


@pytest.mark.parametrize(
    "arm",
    [
        MnistMeta(),
        MnistMeta(heads="shared", normalise=True, meta_optimizer="SGD"),
        MnistMeta(clip_norm=0.1, meta_optimizer="SGD"),
        MnistMeta(unroll="fitted"),
        CURVATURE.model_copy(update={"epochs": None, "meta_groups": {}}),
    ],
    ids=["unrolled", "normalised", "clipped", "fitted", "conjugate gradients"],
)
def test_a_replicate_of_the_rotation_learns_the_same_among_others_as_alone(
    arm: MnistMeta, digits: MnistData, run_as: RunAs
) -> None:
    def learned(replicates: int | list[int]) -> dict[int, float]:
        study = RotationMean(**SIZES, epochs=2, replicates=replicates, arms={"meta": arm})
        results = rotation_study.train(study, run_as("rotation_mean"), digits)
        forget(results)
        rows = [row for row in results.metrics if row["metric"] == quantities.MEAN]
        assert {row["replicate"] for row in results.series} == {row["replicate"] for row in rows}
        return {row["replicate"]: row["value"] for row in rows}

    together = learned(3)
    assert list(together) == [0, 1, 2]
    assert learned(1) == pytest.approx({0: together[0]}, abs=1e-2)
    assert learned([2, 1]) == pytest.approx({2: together[2], 1: together[1]}, abs=1e-2)
    assert len({round(value, 1) for value in together.values()}) == 3


def test_a_replicate_of_the_weighting_learns_the_same_among_others_and_in_any_thread(
    digits: MnistData, run_as: RunAs
) -> None:
    def weights(replicates: int | list[int], threads: int) -> list[float]:
        study = ExampleWeighting(pretrain_examples=50, classes=11, batch_size=50, epochs=2, replicates=replicates)
        results = weighting_study.train(study, run_as("example_weighting", threads=threads), digits)
        forget(results)
        return [row["value"] for row in results.series if row["replicate"] == 0 and row["name"].startswith("weight")]

    assert weights(2, threads=2) == weights(1, threads=1) == weights([4, 0], threads=1)


def seen(monkeypatch: pytest.MonkeyPatch, batches: Any, train: Callable[[], Outcome]) -> list[dict[str, list[Any]]]:
    """Return the PT and FT training minibatches of all batches that `train` makes, in the order of their creation."""
    given: dict[Any, dict[str, list[Any]]] = {}

    def watched(kind: str) -> Callable[[Any], Any]:
        draw = getattr(batches, kind)

        def spy(self: Any) -> Any:
            batch = draw(self)
            given.setdefault(self, {"pretrain": [], "train": []})[kind].append(batch)
            return batch

        return spy

    for kind in ("pretrain", "train"):
        monkeypatch.setattr(batches, kind, watched(kind))
    forget(train())
    monkeypatch.undo()
    return list(given.values())


def the_same(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(all(map(torch.equal, a, b)) for a, b in zip(first, second, strict=True))


DIFFERENT = {  # as different from the arm "meta" as the sequence of draws goes
    "meta-shared": SHARED,
    "curvature": CURVATURE.model_copy(update={"epochs": 2, "meta_groups": {}}),
    "many": MnistMeta(pretrain_steps=2, warmup_epochs=0.5, accumulate=2, unroll_steps=3),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_pt_steps_of_every_arm_see_the_same_rotated_images(
    name: str, digits: MnistData, run_as: RunAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = RotationMean(**SIZES, epochs=2, replicates=2, arms={"meta": MnistMeta(), **DIFFERENT})
    (first,), others = (
        seen(
            monkeypatch,
            RotationBatches,
            lambda arm=arm: rotation_study.train(study, run_as("rotation_mean", arm), digits),
        )
        for arm in ("meta", name)
    )
    assert len(others) == (2 if name == "curvature" else 1), "its replicates are trained one by one"
    joined = [
        tuple(map(torch.cat, zip(*batches, strict=True)))
        for batches in zip(*(each["pretrain"] for each in others), strict=True)
    ]
    assert len(first["pretrain"]) == 6
    assert the_same(first["pretrain"], joined)


def test_pt_steps_of_every_arm_see_the_same_weighted_images(
    digits: MnistData, run_as: RunAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = STUDIES["example_weighting"].model_copy(update={"replicates": 1, "epochs": 2})
    (first,), (other,) = (
        seen(
            monkeypatch,
            WeightingBatches,
            lambda arm=arm: weighting_study.train(study, run_as("example_weighting", arm), digits),
        )
        for arm in ("meta", "meta-warmup")
    )
    assert len(first["pretrain"]) == 4
    assert the_same(first["pretrain"], other["pretrain"])


@pytest.mark.parametrize("arm", [name for name in BpttStudy().arms if name != "optimal_augmentation"])
def test_pt_and_ft_behind_the_accuracy_of_every_arm_see_the_same_minibatches(
    arm: str, digits: MnistData, run_as: RunAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = STUDIES["bptt"].model_copy(
        update={
            "replicates": 1,
            "arms": BpttStudy().arms
            | {
                "bptt": BpttArm(method="bptt", outer_steps=2),
                "bptt-shared": BpttArm(method="bptt", outer_steps=2, heads="shared"),
            },
        }
    )
    expected, given = (
        seen(monkeypatch, SingleBatches, lambda name=name: bptt_study.train(study, run_as("bptt", name, 0.0), digits))
        for name in ("optimal_augmentation", arm)
    )
    assert len(expected) == study.evaluations
    for first, other in zip(expected, given[-study.evaluations :], strict=True):
        assert len(first["pretrain"]) == study.pretrain_steps
        assert the_same(first["pretrain"], other["pretrain"])
        assert the_same(first["train"], other["train"][-study.finetune_steps :])


def bptt(digits: MnistData, run: Run, replicates: int = 1, **keys: Any) -> tuple[pd.DataFrame, list[float]]:
    """Return the metrics and the trajectories of the mean, one after the other."""
    arm = BpttArm(method="bptt", **{"outer_steps": 4} | keys)
    sizes: Any = SIZES | {"pretrain_steps": 5, "finetune_steps": 4, "replicates": replicates, "evaluations": 1}
    results = bptt_study.train(BpttStudy(**sizes, arms={"bptt": arm}), run, digits)
    forget(results)
    return metrics.validate(results.metrics), [row["value"] for row in results.series]


def outer_steps(table: pd.DataFrame) -> int:
    return int(table.loc[table["metric"] == quantities.OUTER_STEPS, "value"].iloc[0])


@pytest.mark.parametrize(("budget", "expected"), [(0.0, 1), (3600.0, 4)], ids=["spent at once", "never spent"])
def test_backpropagation_stops_when_its_budget_is_spent(
    digits: MnistData, run_as: RunAs, budget: float, expected: int
) -> None:
    table, means = bptt(digits, run_as("bptt", "bptt", budget_seconds=budget), budget_of="meta")
    assert outer_steps(table) == len(means) - 1 == expected


def test_each_replicate_learns_a_rotation_of_its_own_and_has_a_time(digits: MnistData, run_as: RunAs) -> None:
    table, means = bptt(digits, run_as("bptt", "bptt"), replicates=2)
    alone, first = bptt(digits, run_as("bptt", "bptt"))
    assert means[:5] == first
    assert means[5] == 45
    assert means[6:] != first[1:]
    values = table.pivot(index="replicate", columns="metric", values="value")
    assert values[quantities.MEAN].tolist() == [means[4], means[9]]
    assert (values[quantities.WALL_TIME] > 0).all()
    assert values.notna().all(axis=None)
    assert len(values) == 2
    assert alone.set_index("metric").loc[quantities.ACCURACY, "value"] == values.loc[0, quantities.ACCURACY]


def test_the_accuracy_of_a_replicate_is_the_mean_of_its_runs(digits: MnistData, run_as: RunAs) -> None:
    def accuracies(replicates: int, evaluations: int) -> list[float]:
        keys: Any = SIZES | {"pretrain_steps": 3, "finetune_steps": 3}
        study = BpttStudy(**keys, replicates=replicates, evaluations=evaluations)
        rows = bptt_study.train(study, run_as("bptt", "meta"), digits).metrics
        return [row["value"] for row in rows if row["metric"] == quantities.ACCURACY]

    each = accuracies(4, 1)
    assert accuracies(2, 2) == pytest.approx([(each[0] + each[1]) / 2, (each[2] + each[3]) / 2])
    assert len(set(each)) > 1


def test_each_outer_step_moves_the_mean_by_about_the_learning_rate(digits: MnistData, run_as: RunAs) -> None:
    _, means = bptt(digits, run_as("bptt", "bptt"), meta_lr=0.3)
    assert means[0] == 45
    assert abs(means[1] - 45) == pytest.approx(0.3, rel=1e-3), "Adam's first step is its learning rate"
    assert len(set(means)) == 5


def test_an_outer_step_with_an_exploding_hypergradient_is_skipped_and_counted(
    digits: MnistData, run_as: RunAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, calls = bptt_study.exact_hypergradient, iter(range(20))

    def spiking(*args: Any, **keys: Any) -> Any:
        size = 100.0 if next(calls) == 12 else 1.0
        return exact(*args, **keys)._replace(gradient={"mean": torch.tensor(size)})

    monkeypatch.setattr(bptt_study, "exact_hypergradient", spiking)
    table, means = bptt(digits, run_as("bptt", "bptt"), outer_steps=15)
    assert table.loc[table["metric"] == quantities.SKIPPED, "value"].tolist() == [1]
    assert [step for step in range(15) if means[step] == means[step + 1]] == [12]


def test_interrupted_backpropagation_goes_on_to_the_same_bits(
    digits: MnistData, run_as: RunAs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole, expected = bptt(digits, run_as("bptt", "bptt"), replicates=2)
    assert not list(tmp_path.iterdir()), "checkpoints of a finished run are removed"
    exact, calls = bptt_study.exact_hypergradient, [0]

    def killed_in_the_second_replicate(*args: Any, **keys: Any) -> Any:
        calls[0] += 1
        if calls[0] == 7:
            raise KeyboardInterrupt
        return exact(*args, **keys)

    monkeypatch.setattr(bptt_study, "Every", lambda seconds: lambda: True)
    monkeypatch.setattr(bptt_study, "exact_hypergradient", killed_in_the_second_replicate)
    with pytest.raises(KeyboardInterrupt):
        bptt(digits, run_as("bptt", "bptt"), replicates=2)
    resumed, means = bptt(digits, run_as("bptt", "bptt"), replicates=2)
    assert calls[0] == 7 + 2, "two of the eight outer steps were left"
    assert means == expected
    timed = {quantities.WALL_TIME, quantities.PEAK_MEMORY}
    pd.testing.assert_frame_equal(resumed[~resumed["metric"].isin(timed)], whole[~whole["metric"].isin(timed)])


def test_arms_start_alike_and_differ_in_their_rotation_only(digits: MnistData, run_as: RunAs) -> None:
    study = BpttStudy(**SIZES, pretrain_steps=3, finetune_steps=3)
    first, second = (
        bptt_study.Stages(study, run_as("bptt", arm), digits, 0) for arm in ("meta", "optimal_augmentation")
    )
    for one, other in zip(first.pretrain(45.0).values(), second.pretrain(45.0).values(), strict=True):
        assert torch.equal(one, other)
    third = bptt_study.Stages(study, run_as("bptt", "meta"), digits, 0)
    assert not torch.equal(third.pretrain(90.0)["hidden.weight"], second.pretrained.encoder["hidden.weight"])


def test_fine_tuning_changes_encoder_and_head_and_leaves_what_it_started_from(digits: MnistData, run_as: RunAs) -> None:
    study = BpttStudy(**SIZES, pretrain_steps=3, finetune_steps=3)
    stages = bptt_study.Stages(study, run_as("bptt"), digits, 0)
    start = {name: value.clone() for name, value in stages.pretrained.encoder.items()}
    encoder, head = stages.finetune(stages.pretrained.encoder)
    assert not torch.equal(encoder["hidden.weight"], start["hidden.weight"])
    assert not torch.equal(head["output.weight"], stages.head["output.weight"])
    assert torch.equal(stages.pretrained.encoder["hidden.weight"], start["hidden.weight"])


@pytest.mark.parametrize("arm", ["head", "network"])
def test_a_neumann_term_per_earlier_step_is_exact_in_the_limit_of_small_steps(
    digits: MnistData, run_as: RunAs, arm: str
) -> None:
    """T steps of SGD have the derivative -lr * sum over t < T of (I - lr H)^t times the mixed derivative at step t.

    Our hypergradient takes H and the mixed derivative at the last weights, so the two differ by the order of lr. With
    fewer terms the direction still agrees in this limit, and the norm is that of the terms taken.
    """
    study = Fidelity(
        replicates=1,
        examples=40,
        finetune_examples=40,
        pretrain_steps=[1, 3],
        neumann_terms=[0, 2],
        unroll_steps=[0, 1],
        pretrain_lr=1e-4,
    )
    rows = metrics.validate(fidelity_study.train(study, run_as("fidelity", arm), digits).metrics)
    values = {metric: part.set_index("setting")["value"] for metric, part in rows.groupby("metric")}
    for k in (0, 1):
        for steps in (1, 3):
            for terms in (0, 2):
                setting = quantities.setting_fidelity(steps, k, terms)
                assert values[quantities.COSINE][setting] == pytest.approx(1, abs=1e-3), setting
                assert values[quantities.NORM_RATIO][setting] == pytest.approx((terms + 1) / steps, rel=1e-2), setting


def test_two_ways_of_the_same_number_of_terms_are_no_claim(runs: Runs, tmp_path: Path) -> None:
    study = STUDIES["fidelity"].model_copy(update={"neumann_terms": [2]})
    claims = pd.read_csv(summarise("fidelity", study, runs["fidelity"], tmp_path / "one")["claims"])
    assert claims.empty
    assert "verdict" in claims.columns


def test_backpropagation_pretrains_with_the_mean_that_it_ends_with(
    digits: MnistData, run_as: RunAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    pretrain = bptt_study.Stages.pretrain
    monkeypatch.setattr(bptt_study.Stages, "pretrain", lambda self, mean: given.append(mean) or pretrain(self, mean))
    _, means = bptt(digits, run_as("bptt", "bptt"), outer_steps=2)
    assert given == [means[-1]] != [means[0]]


def test_listed_seeds_of_mean_and_deviation_learn_the_same_from_the_first_start_as_among_others(
    digits: MnistData, run_as: RunAs
) -> None:
    def learned(replicates: int | list[int]) -> dict[tuple[str, int], float]:
        study = RotationMeanStd(**SIZES, epochs=1, replicates=replicates, starts=[(10.0, 1.0), (20.0, 1.0)])
        results = rotation_study.train(study, run_as("rotation_mean_std"), digits)
        forget(results)
        assert len({row["replicate"] for row in results.series}) == 4
        rows = [row for row in results.metrics if row["metric"] == quantities.MEAN]
        return {(row["setting"], row["replicate"]): row["value"] for row in rows}

    first, second = learned(2), learned([1, 5])
    assert {seed for _, seed in second} == {1, 5}
    setting = next(iter(first))[0]
    assert second[setting, 1] == pytest.approx(first[setting, 1], abs=1e-2)
    assert second[setting, 5] != pytest.approx(first[setting, 1], abs=1e-2)


def test_starts_of_mean_and_deviation_have_random_streams_of_their_own(digits: MnistData, run_as: RunAs) -> None:
    study = RotationMeanStd(**SIZES, epochs=1, replicates=2, starts=[(10.0, 1.0), (10.0, 1.0 + 1e-6)])
    results = rotation_study.train(study, run_as("rotation_mean_std"), digits)
    learned = [row["value"] for row in results.metrics if row["metric"] == quantities.MEAN]
    assert len(learned) == len({round(value, 3) for value in learned}) == 4


def test_a_start_that_is_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="stands there twice; name it once"):
        RotationMeanStd(starts=[(10.0, 1.0), (10.0, 1.0)])


def test_a_headroom_tests_each_seed_on_its_own(digits_file: Path, tmp_path: Path) -> None:
    def values(seeds: list[int]) -> dict[tuple[str, int], float]:
        keys = {"settings": 2, "pretrain_seeds": seeds, "pretrain_examples": 60, "finetune_examples": 60}
        made = jobs("headroom", keys | {"pretrain_steps": 40, "finetune_steps": 40}, tmp_path)
        needs = DOMAIN.experiments["headroom"].needs(made, made.config.headroom)  # type: ignore[attr-defined]
        job = next(job for job in needs.runs if job.name == "mnist/headroom/headroom-0-01")
        outputs = {name: tmp_path / f"{len(seeds)}-{name}.csv" for name in job.outputs}
        work_of(job)({"data": digits_file}, outputs, Machine())
        table = metrics.read(outputs["metrics"])
        assert set(table["evaluation"]) == {"full_transfer"}
        return {(row["metric"], int(row["replicate"])): row["value"] for row in table.to_dict("records")}

    both, one = values([3, 5]), values([5, 8])
    assert {metric for metric, _ in both} == {quantities.ACCURACY, quantities.VALIDATION_ACCURACY}
    assert {replicate for _, replicate in both} == {3000, 5000}
    assert {key: value for key, value in both.items() if key in one} == {
        key: value for key, value in one.items() if key in both
    }
    assert len({value for (metric, _), value in both.items() if metric == quantities.ACCURACY}) == 2
