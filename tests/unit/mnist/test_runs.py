"""The runs of each experiment, from prepared digits to tables, figure and verdicts, on tiny settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from metapt.domains.mnist.arms import Outcome, Run
from metapt.domains.mnist.batches import SingleBatches
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
)
from metapt.domains.mnist.data.prepare import MnistData
from metapt.domains.mnist.domain import DOMAIN
from metapt.domains.mnist.experiments.bptt import run as bptt_runs
from metapt.domains.mnist.experiments.example_weighting import run as weighting_runs
from metapt.domains.mnist.experiments.fidelity import run as fidelity_runs
from metapt.domains.mnist.experiments.rotation_mean import run as rotation_runs
from metapt.domains.mnist.jobs import MnistJobs
from metapt.domains.mnist.quantities import (
    ACCURACY,
    COSINE,
    ERROR,
    INITIAL_MEAN,
    MEAN,
    NORM_RATIO,
    OUTER_STEPS,
    PEAK_MEMORY,
    SKIPPED,
    VALIDATION_ACCURACY,
    WALL_TIME,
)
from metapt.engine.execute import work_of
from metapt.engine.jobs import Job, Place
from metapt.evaluation import figures, metrics
from metapt.evaluation.experiment import SUMMARY
from metapt.evaluation.tables import paper_numbers
from metapt.machine import Machine

SIZES: Any = {"pretrain_examples": 40, "finetune_examples": 40, "batch_size": 20}
FEW: Any = SIZES | {"pretrain_steps": 2, "finetune_steps": 2}
FEW_TERMS: Any = {"pretrain_steps": [1, 3], "neumann_terms": [0, 2], "unroll_steps": [0, 1]}
WEIGHTED: Any = {"pretrain_examples": 20, "classes": 11, "batch_size": 10}
CURVED = CURVATURE.model_copy(update={"epochs": 2})
OUTER = {
    name: arm.model_copy(update={"outer_steps": 2}) if isinstance(arm, BpttArm) else arm
    for name, arm in BpttStudy().arms.items()
}
LATE = MnistMeta(pretrain_lr=1e-3, meta_lr=1e-3, heads="shared", warmup_epochs=0.5)
STUDIES: dict[str, Any] = {
    "rotation_mean": RotationMean(**SIZES, epochs=1),
    "rotation_mean_std": RotationMeanStd(
        **SIZES, epochs=1, replicates=2, arms=RotationMeanStd().arms | {"meta-curvature": CURVED}
    ),
    "example_weighting": ExampleWeighting(**WEIGHTED, epochs=1, arms=ExampleWeighting().arms | {"meta-warmup": LATE}),
    "bptt": BpttStudy(**FEW, replicates=2, evaluations=1, arms=OUTER),
    "fidelity": Fidelity(**FEW_TERMS, replicates=2, examples=50, finetune_examples=40),
}
Files = dict[str, Path]
Runs = dict[str, dict[str, Files]]
RunAs = Callable[..., Run]


def jobs(experiment: str, study: Any, results: Path) -> MnistJobs:
    """Return the jobs of a config with this experiment only."""
    config: Any = DOMAIN.section().model_validate({"source": "digits", experiment: study})
    return MnistJobs("mnist", config, Place(results=str(results), raw="raw", sources={}, mirrors=[]))


def work(job: Job, digits_file: Path) -> Files:
    """Do a job on prepared digits; return its files."""
    outputs = {name: Path(path) for name, path in job.outputs.items()}
    outputs["metrics"].parent.mkdir(parents=True)
    inputs = {name: Path(path) for name, path in job.inputs.items()} | {"data": digits_file}
    work_of(job)(inputs, outputs, Machine())
    kept = Path(job.config.get("checkpoint") or "none/none").parent
    assert not kept.exists() or not list(kept.iterdir()), "it is removed"
    return outputs


def summarise(experiment: str, study: Any, runs: dict[str, Files], folder: Path) -> Files:
    """Summarise the runs of some arms; return the files."""
    some = study.model_copy(update={"arms": {arm: study.arms[arm] for arm in runs}})
    job = DOMAIN.summary(jobs(experiment, some, folder), experiment)
    job.config["settings"]["source"] = "mnist"  # whose numbers stand beside the paper's
    inputs = {f"{experiment}/{arm}/{name}": path for arm, files in runs.items() for name, path in files.items()}
    outputs = {name: folder / file for name, file in SUMMARY.items()}
    folder.mkdir()
    work_of(job)(inputs, outputs, Machine())
    return outputs


@pytest.fixture(scope="module")
def runs(digits_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Experiment -> arm -> its files."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        key: {arm: work(jobs(key, study, folder).study(key, arm), digits_file) for arm in study.arms}
        for key, study in STUDIES.items()
    }


def values(rows: Any, metric: str) -> dict[Any, float]:
    """Return the values of a metric by setting and replicate."""
    return {(row["setting"], row["replicate"]): row["value"] for row in rows if row["metric"] == metric}


@pytest.mark.slow
def test_the_paper_has_each_of_its_numbers_beside_ours(runs: Runs) -> None:
    """With the paper's replicates, starts and targets our settings have the words of its table."""
    ours = metrics.read([files["metrics"] for arms in runs.values() for files in arms.values()])
    papers = paper_numbers()
    papers = papers[papers["experiment"].str.startswith("mnist_")]
    missing = papers.merge(ours.drop_duplicates(metrics.CELL), how="left", on=metrics.CELL, indicator=True)
    assert len(papers) == 11
    assert (missing["_merge"] == "both").all()
    assert ours.loc[ours["evaluation"] == "", "value"].notna().all()


@pytest.mark.slow
def test_learned_rotations_have_a_trajectory_per_replicate_that_ends_at_the_learned_value(runs: Runs) -> None:
    for experiment, replicates in {"rotation_mean": 10, "rotation_mean_std": 4}.items():
        for arm, files in runs[experiment].items():
            series, table = pd.DataFrame(metrics.read_series_rows(files["series"])), metrics.read(files["metrics"])
            last = 4 if arm == "meta-curvature" else 2
            assert sorted(series["replicate"].unique()) == list(range(replicates))
            assert sorted(series["step"].unique()) == list(range(1, last + 1))
            final = series[(series["step"] == last) & (series["name"] == "mean")]["value"]
            assert list(final) == list(table[table["metric"] == MEAN]["value"])
            initial = table[table["metric"] == INITIAL_MEAN]["value"]
            assert (len(initial), initial.between(45, 135).all()) == (initial.nunique(), True)


@pytest.mark.slow
@pytest.mark.parametrize("experiment", STUDIES)
def test_a_summary_is_whole_and_has_the_papers_numbers_beside_its_own_study_only(
    runs: Runs, experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = STUDIES[experiment]
    if experiment != "rotation_mean":  # one picture shows that the second kind is written
        monkeypatch.setattr(figures, "save_png", lambda figure, path: path.write_bytes(b"a picture"))
    first = summarise(experiment, study, runs[experiment], tmp_path / "a")
    assert all(path.stat().st_size > 0 for path in first.values())
    verdicts = pd.read_csv(first["claims"])
    assert set(verdicts["verdict"]) <= {"reproduced", "not reproduced", "inconclusive", "too few seeds"}
    assert len(verdicts) >= len(runs[experiment]) - 2
    assert "diagnosis" not in first["table_md"].read_text()
    assert not pd.read_csv(first["table_csv"])["paper_mean"].notna().any(), "the study is smaller than the paper's"
    monkeypatch.setattr(figures, "save", lambda figure, path: None)
    papers = summarise(experiment, type(study)(), runs[experiment], tmp_path / "papers")
    expected = (paper_numbers()["experiment"] == f"mnist_{experiment}").sum()
    assert pd.read_csv(papers["table_csv"])["paper_mean"].notna().sum() == expected


@pytest.mark.slow
def test_meta_pretraining_moves_the_mean_towards_the_target(digits: MnistData, run_as: RunAs) -> None:
    study = RotationMean(pretrain_examples=300, finetune_examples=300, epochs=4, replicates=3, arms={"meta": SHARED})
    rows = rotation_runs.train(study, run_as("rotation_mean"), digits).metrics
    before = [abs(value - 90) for value in values(rows, INITIAL_MEAN).values()]
    assert sum(before) - sum(values(rows, ERROR).values()) > 3 * 5


def forget(results: Outcome) -> Outcome:
    """Remove the checkpoints, so that the next run does not resume from them."""
    for checkpoint in results.checkpoints:
        checkpoint.remove()
    return results


@pytest.mark.slow
@pytest.mark.parametrize(
    "arm",
    [
        MnistMeta(),
        MnistMeta(heads="shared", normalise=True, meta_optimizer="SGD"),
        MnistMeta(clip_norm=0.1, meta_optimizer="SGD"),
        MnistMeta(unroll="fitted"),
        CURVED.model_copy(update={"epochs": None, "meta_groups": {}}),
    ],
    ids=["unrolled", "normalised", "clipped", "fitted", "conjugate gradients"],
)
def test_a_replicate_of_the_rotation_learns_the_same_among_others_as_alone(
    arm: MnistMeta, digits: MnistData, run_as: RunAs
) -> None:
    def learned(replicates: int | list[int]) -> dict[int, float]:
        study = RotationMean(**SIZES, epochs=1, replicates=replicates, arms={"meta": arm})
        results = forget(rotation_runs.train(study, run_as("rotation_mean"), digits))
        found = {replicate: value for (_, replicate), value in values(results.metrics, MEAN).items()}
        assert {row["replicate"] for row in results.series} == set(found)
        return found

    together = learned([1, 0])
    assert learned(1) == pytest.approx({0: together[0]}, abs=1e-2)
    assert round(together[0], 1) != round(together[1], 1)


def test_each_start_and_seed_has_random_streams_of_its_own(digits: MnistData, run_as: RunAs) -> None:
    def learned(replicates: int | list[int]) -> dict[Any, float]:
        starts = [(10.0, 1.0), (10.0, 1.0 + 1e-6)]
        study = RotationMeanStd(**SIZES, epochs=1, replicates=replicates, starts=starts, target=(45.0, 15.0))
        results = forget(rotation_runs.train(study, run_as("rotation_mean_std"), digits))
        assert len({row["replicate"] for row in results.series}) == 4
        return {(row["setting"], row["replicate"], i): row["value"] for i, row in enumerate(results.metrics[:4])}

    first, second = learned(2), learned([1, 5])
    assert len({round(value, 3) for value in first.values()}) == 4
    (_, alone), (again, other) = list(first.values())[:2], list(second.values())[:2]
    assert again == pytest.approx(alone, abs=1e-2)
    assert other != pytest.approx(alone, abs=1e-2)


def test_a_replicate_of_the_weighting_learns_the_same_among_others_and_in_any_thread(
    digits: MnistData, run_as: RunAs
) -> None:
    def weights(replicates: int | list[int], threads: int) -> list[float]:
        study = ExampleWeighting(pretrain_examples=20, classes=11, batch_size=10, epochs=1, replicates=replicates)
        results = forget(weighting_runs.train(study, run_as("example_weighting", threads=threads), digits))
        return [row["value"] for row in results.series if row["replicate"] == 0 and row["name"].startswith("weight")]

    assert weights(2, threads=2) == weights(1, threads=1) == weights([4, 0], threads=1)


def test_pt_and_ft_behind_the_accuracy_of_every_arm_see_the_same_minibatches(
    digits: MnistData, run_as: RunAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For PT of other experiments see `test_batches`."""
    study = STUDIES["bptt"].model_copy(update={"replicates": 1, "evaluations": 2})
    given: dict[Any, dict[str, list[Any]]] = {}  # by the object that draws them

    def spy(self: Any, draw: Any, name: str) -> Any:
        given.setdefault(self, {"pretrain": [], "train": []})[name].append(draw(self))
        return given[self][name][-1]

    def last(arm: str) -> list[Any]:
        """Return the PT minibatches and the last FT minibatches of the runs that are tested."""
        given.clear()
        forget(bptt_runs.train(study, run_as("bptt", arm, 0.0), digits))
        tested = list(given.values())[-study.evaluations :]
        return [batch for seen in tested for batch in (*seen["pretrain"], *seen["train"][-study.finetune_steps :])]

    for name in ("pretrain", "train"):
        monkeypatch.setattr(SingleBatches, name, partialmethod(spy, getattr(SingleBatches, name), name))
    expected = last("optimal_augmentation")
    assert len(expected) == study.evaluations * (study.pretrain_steps + study.finetune_steps)
    for arm in ("bptt", "meta", "bptt_limited", "initial_augmentation", "bptt-shared", "meta-shared"):
        found = last(arm)
        assert len(found) == len(expected)
        assert all(all(map(torch.equal, *pair)) for pair in zip(found, expected, strict=True)), arm


def bptt(digits: MnistData, run: Run, replicates: int = 1, **keys: Any) -> tuple[pd.DataFrame, list[float]]:
    """Return the metrics by replicate, and the trajectories of the mean, one after the other."""
    arm = BpttArm(method="bptt", **{"outer_steps": 4} | keys)
    study = BpttStudy(**FEW, replicates=replicates, evaluations=1, arms={"bptt": arm})
    results = forget(bptt_runs.train(study, run, digits))
    table = metrics.validate(results.metrics).pivot(index="replicate", columns="metric", values="value")
    return table, [row["value"] for row in results.series]


@pytest.mark.parametrize(("budget", "expected"), [(0.0, 1), (3600.0, 4)], ids=["spent at once", "never spent"])
def test_backpropagation_stops_when_its_budget_is_spent(
    digits: MnistData, run_as: RunAs, budget: float, expected: int
) -> None:
    table, means = bptt(digits, run_as("bptt", "bptt", budget_seconds=budget), budget_of="meta")
    assert table[OUTER_STEPS].item() == len(means) - 1 == expected


def test_each_replicate_learns_a_rotation_of_its_own_and_pretrains_with_it(
    digits: MnistData, run_as: RunAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    pretrain = bptt_runs.Stages.pretrain
    monkeypatch.setattr(bptt_runs.Stages, "pretrain", lambda self, mean: given.append(mean) or pretrain(self, mean))
    table, means = bptt(digits, run_as("bptt", "bptt"), replicates=2)
    alone, first = bptt(digits, run_as("bptt", "bptt"))
    assert (means[:5], means[5]) == (first, 45)
    assert means[6:] != first[1:]
    assert abs(means[1] - 45) == pytest.approx(0.3, rel=1e-3), "Adam's first step is its learning rate"
    assert table[MEAN].tolist() == [means[4], means[9]] == given[:2]
    assert (table[WALL_TIME] > 0).all()
    assert alone.loc[0, ACCURACY] == table.loc[0, ACCURACY]


def test_the_accuracy_of_a_replicate_is_the_mean_of_its_runs(digits: MnistData, run_as: RunAs) -> None:
    def accuracies(replicates: int, evaluations: int) -> list[float]:
        study = BpttStudy(**FEW, replicates=replicates, evaluations=evaluations)
        rows = bptt_runs.train(study, run_as("bptt", "meta"), digits).metrics
        return list(values(rows, ACCURACY).values())

    each = accuracies(4, 1)
    assert accuracies(2, 2) == pytest.approx([(each[0] + each[1]) / 2, (each[2] + each[3]) / 2])
    assert len(set(each)) > 1


def test_an_outer_step_with_an_exploding_hypergradient_is_skipped_and_counted(
    digits: MnistData, run_as: RunAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, calls = bptt_runs.exact_hypergradient, iter(range(20))

    def spiking(*args: Any, **keys: Any) -> Any:
        size = 100.0 if next(calls) == 12 else 1.0
        return exact(*args, **keys)._replace(gradient={"mean": torch.tensor(size)})

    monkeypatch.setattr(bptt_runs, "exact_hypergradient", spiking)
    table, means = bptt(digits, run_as("bptt", "bptt"), outer_steps=15)
    assert table[SKIPPED].tolist() == [1]
    assert [step for step in range(15) if means[step] == means[step + 1]] == [12]


@pytest.mark.slow
def test_interrupted_backpropagation_goes_on_to_the_same_bits(
    digits: MnistData, run_as: RunAs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole, expected = bptt(digits, run_as("bptt", "bptt"), replicates=2)
    assert not list(tmp_path.iterdir()), "checkpoints of a finished run are removed"
    exact, calls = bptt_runs.exact_hypergradient, [0]

    def killed_in_the_second_replicate(*args: Any, **keys: Any) -> Any:
        calls[0] += 1
        if calls[0] == 7:
            raise KeyboardInterrupt
        return exact(*args, **keys)

    monkeypatch.setattr(bptt_runs, "Every", lambda seconds: lambda: True)
    monkeypatch.setattr(bptt_runs, "exact_hypergradient", killed_in_the_second_replicate)
    with pytest.raises(KeyboardInterrupt):
        bptt(digits, run_as("bptt", "bptt"), replicates=2)
    resumed, means = bptt(digits, run_as("bptt", "bptt"), replicates=2)
    assert calls[0] == 7 + 2, "two of the eight outer steps were left"
    assert means == expected
    timed = [WALL_TIME, PEAK_MEMORY]
    pd.testing.assert_frame_equal(resumed.drop(columns=timed), whole.drop(columns=timed))


@pytest.mark.parametrize("arm", ["head", "network"])
def test_a_neumann_term_per_earlier_step_is_exact_in_the_limit_of_small_steps(
    digits: MnistData, run_as: RunAs, arm: str
) -> None:
    """T steps of SGD have the derivative -lr * sum over t < T of (I - lr H)^t times the mixed derivative at step t.

    Our hypergradient takes H and the mixed derivative at the last weights, so the two differ by the order of lr. With
    fewer terms the direction still agrees in this limit, and the norm is that of the terms taken.
    """
    study = Fidelity(**FEW_TERMS, replicates=1, examples=40, finetune_examples=40, pretrain_lr=1e-4)
    rows = fidelity_runs.train(study, run_as("fidelity", arm), digits).metrics
    cosines, ratios = (values(rows, metric) for metric in (COSINE, NORM_RATIO))
    cases = [(steps, k, terms) for steps in (1, 3) for k in (0, 1) for terms in (0, 2)]
    for steps, k, terms in cases:
        cell = study.setting(steps, k, terms), 0
        assert cosines[cell] == pytest.approx(1, abs=1e-3), cell
        assert ratios[cell] == pytest.approx((terms + 1) / steps, rel=1e-2), cell


def test_a_headroom_tests_each_seed_on_its_own(digits_file: Path, tmp_path: Path) -> None:
    def table(*seeds: int) -> pd.DataFrame:
        keys = {"pretrain_examples": 60, "finetune_examples": 60, "pretrain_steps": 10, "finetune_steps": 10}
        made = jobs("headroom", keys | {"settings": 2, "pretrain_seeds": list(seeds)}, tmp_path / str(seeds))
        DOMAIN.summary(made, "headroom")
        found = metrics.read(work(made.made["mnist/headroom/headroom-0-01"], digits_file)["metrics"])
        assert set(found["evaluation"]) == {"full_transfer"}
        return found.set_index(["metric", "replicate"])["value"].unstack("metric")

    both, other = table(3, 5), table(5, 8)
    assert {*both} == {ACCURACY, VALIDATION_ACCURACY}
    assert [*both.index] == [3000, 5000]
    pd.testing.assert_series_equal(both.loc[5000], other.loc[5000])
    assert both[ACCURACY].nunique() == 2
