"""What jobs on protein graphs leave: PT and its file, FT in each setting, and the comparison of features."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from metapt.domains.ppi.config import Network
from metapt.domains.ppi.data.dataset import on_device, splits
from metapt.domains.ppi.data.graphs import save
from metapt.domains.ppi.experiments.representations import FeaturesSettings
from metapt.domains.ppi.experiments.representations.run import compared, linear_cka
from metapt.domains.ppi.experiments.representations.run import run as compare
from metapt.domains.ppi.finetune import finetune_tasks
from metapt.domains.ppi.gin import GinEncoder, initial_pretrained, load_pretrained
from metapt.domains.ppi.pretrain import weight_numbers
from metapt.domains.ppi.pretraining_setting import PpiSetting
from metapt.domains.ppi.problem import WEIGHTS, task_weights
from metapt.domains.ppi.stages import ONLINE, QUANTILES
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.machine import Machine
from metapt.training.pretrained_file import Learned, save_pretrained
from metapt.twostage import finetuning
from metapt.twostage.quantities import FT_TIME

from ...contract.domain_cases import CASES
from .small_graphs import COARSE, FINE, TEST_SPECIES, small_graphs

PPI, NETWORK = CASES["ppi"], Network(layers=2, width=4)
START = initial_pretrained(2, 4, COARSE, torch.Generator().manual_seed(0))
LEARNED = Learned(START, {WEIGHTS: torch.linspace(-1, 1, COARSE)})
DESCRIBED = [f"planted: {purpose}" for purpose in ["useful"] * 4 + ["irrelevant"] * 3 + ["noise"] * 3]
FT: dict[str, Any] = PPI.section["finetune"] | {"linear_lrs": [1e-3, 3e-2]}
RATES = {"full_transfer": FT["lrs"], "linear_evaluation": FT["linear_lrs"]}
ARMS = ("no_pt", "meta", "meta-stable")
COMPARED = FeaturesSettings(domain="ppi", network=NETWORK, test_species=[TEST_SPECIES], graphs=50)
Files = dict[str, Path]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("ppi")
    save_pretrained(Learned(START, {}), folder / "pretrained.pt")
    return PPI.prepare(folder) | {"pretrained": folder / "pretrained.pt"}


def pretrained(folder: Path, prepared: Files, arm: str, **inputs: Path) -> tuple[Learned, Files]:
    """Return what a job has learned, and its outputs."""
    made = PPI.work(PPI.jobs(folder).pretrain(arm, "full_access", 0), prepared, **inputs)
    return load_pretrained(made["pretrained"], NETWORK, "cpu"), made


def test_a_learner_leaves_its_weights_and_their_way(prepared: Files, tmp_path: Path) -> None:
    """Descriptions of tasks may be empty or meaningless."""
    tasks = prepared["tasks"].read_text().replace("a process", "", 1).replace("a process", "NA", 1)
    (tmp_path / "tasks.csv").write_text(tasks)
    learned, written = pretrained(tmp_path, prepared, "meta", tasks=tmp_path / "tasks.csv")
    found = set(metrics.read(written["metrics"])["metric"])
    series = pd.DataFrame(metrics.read_series_rows(written["series"]))
    assert set(ONLINE.values()) <= found
    assert not any("planted" in name for name in found)
    assert set(series["name"]) == {"learned weight", *ONLINE.values(), *QUANTILES}
    last = series[series["name"] == "learned weight"]
    assert last["step"].tolist() == list(range(COARSE))
    assert last["value"].tolist() == pytest.approx(task_weights(learned.meta).tolist(), rel=1e-6)


@pytest.mark.parametrize("arm", ["no_pt", "graph_supervised"])
def test_an_arm_that_learns_no_weights_leaves_none(arm: str, prepared: Files, tmp_path: Path) -> None:
    learned, written = pretrained(tmp_path, prepared, arm)
    assert learned.meta == {}
    assert metrics.read_series_rows(written["series"]) == []
    assert not any("weight" in name for name in metrics.read(written["metrics"])["metric"])


def test_weights_are_held_against_what_is_known_of_the_tasks(make: Callable[..., PpiSetting]) -> None:
    """The useful tasks, those of lowest number, weigh most; an FT task implies task 3."""
    weights, planted = np.linspace(1.9, 0.1, COARSE), "AUROC of weight against planted use"
    found = weight_numbers(weights, DESCRIBED, make())
    assert found[planted] == 1
    assert found["mean weight of relatives"] == pytest.approx(weights[3])
    assert found["mean weight of others"] == pytest.approx(np.delete(weights, 3).mean())
    assert weight_numbers(weights[::-1].copy(), DESCRIBED, make())[planted] == 0
    for all_alike in ("", "planted: useful", "planted: noise"):
        assert planted not in weight_numbers(weights, [all_alike] * COARSE, make())


def test_an_arm_takes_the_weights_of_its_input(prepared: Files, tmp_path: Path) -> None:
    given = tmp_path / "weights.pt"
    save_pretrained(LEARNED, given)
    weighted, plainly = (
        pretrained(tmp_path, prepared, arm, weights=given)[0].pretrained for arm in ("meta-frozen", "graph_supervised")
    )
    assert not torch.equal(weighted.encoder["node"], plainly.encoder["node"])


def test_equal_tensors_give_equal_bytes_wherever_they_lie(tmp_path: Path) -> None:
    save_pretrained(LEARNED, tmp_path / "a.pt")
    slices = {name: torch.stack([value, value])[1] for name, value in LEARNED.meta.items()}
    save_pretrained(LEARNED._replace(meta=slices), tmp_path / "b.pt")
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()


@pytest.mark.parametrize(
    ("change", "size", "words"),
    [
        (Path.unlink, (2, 4), "is missing: the PT run that writes it has not been made"),
        *((None, size, "has no encoder of {} layers of width {}".format(*size)) for size in ((3, 4), (1, 4), (2, 5))),
        (lambda path: path.write_bytes(path.read_bytes()[:3000]), (2, 4), "is cut or altered"),
        (lambda path: torch.save({"encoder": {}, "meta": [1]}, path), (2, 4), "is not what PT leaves"),
    ],
)
def test_a_file_that_no_pretraining_left_is_one_sentence(change: Any, size: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / "pretrained.pt"
    save_pretrained(LEARNED, path)
    if change:
        change(path)
    with pytest.raises(DataError, match=rf"pretrained\.pt {words}"):
        load_pretrained(path, Network(layers=size[0], width=size[1]), "cpu")


def finetuned(
    folder: Path, prepared: dict[str, Path], setting: str = "full_access", arm: str = "graph_supervised", seed: int = 1,
    evaluations: tuple[str, ...] = tuple(RATES), **changes: Any,
) -> tuple[pd.DataFrame, pd.DataFrame]:  # fmt: skip
    """Do an FT job, and return its tables, without times."""
    jobs = PPI.jobs(folder, evaluations=list(evaluations), finetune=FT | changes)
    made = PPI.work(jobs.finetune(arm, setting, seed), prepared)
    table = metrics.read(made["metrics"])
    return table[table["metric"] != FT_TIME], pd.DataFrame(metrics.read_series_rows(made["series"]))


@pytest.mark.parametrize(
    ("setting", "tasks", "evaluations"),
    [
        ("full_access", list(range(FINE)), tuple(RATES)),
        ("held_out_0", [0], ("linear_evaluation",)),
        ("held_out_3", [3, 4], ("linear_evaluation",)),
    ],
)
def test_the_tasks_of_the_setting_are_tested_by_their_numbers(
    setting: str, tasks: list[int], evaluations: tuple[str, ...], prepared: dict[str, Path], tmp_path: Path
) -> None:
    table, series = finetuned(tmp_path, prepared, setting, evaluations=evaluations)
    for (evaluation, replicate), part in table.groupby(["evaluation", "replicate"]):
        cell = part.set_index("metric")["value"]
        own = series[(series["replicate"] == replicate) & (series["name"] == f"{evaluation}, test AUROC of a task (%)")]
        assert own["step"].tolist() == tasks
        assert cell["mean test AUROC over FT tasks (%)"] == pytest.approx(own["value"].mean())
        assert cell["learning rate"] in RATES[str(evaluation)]


def test_a_task_without_positives_in_validation_is_left_out(prepared: dict[str, Path], tmp_path: Path) -> None:
    graphs = {"graphs": tmp_path / "graphs.npz"}
    save(small_graphs(without_positives=(2,)), graphs["graphs"])
    assert np.isfinite(finetuned(tmp_path, prepared | graphs)[0]["value"]).all()
    save(small_graphs(without_positives=tuple(range(FINE))), graphs["graphs"])
    with pytest.raises(DataError, match="no class has both labels among the 12 validation graphs"):
        finetuned(tmp_path, prepared | graphs)


@pytest.mark.parametrize("arm", ["graph_supervised", "no_pt"])
def test_without_pt_each_ft_seed_has_an_encoder_of_its_own_and_else_pts(
    arm: str, prepared: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: dict[str, list[tuple[Any, ...]]] = {name: [] for name in RATES}

    def spied(name: str, real: Any, *given: Any) -> Any:
        starts[name].append(tuple(given[1].encoder["node"].tolist()))
        return real(*given)

    for name, runs in zip(RATES, ("Transfer", "linear_evaluation"), strict=True):
        monkeypatch.setattr(finetuning, runs, partial(spied, name, getattr(finetuning, runs)))
    finetuned(tmp_path, prepared, arm=arm)
    before = set(starts["full_transfer"])
    assert before == set(starts["linear_evaluation"])
    assert before == {tuple(START.encoder["node"].tolist())} if arm != "no_pt" else len(before) == 2
    finetuned(tmp_path, prepared, arm=arm, seed=2, evaluations=("full_transfer",))
    assert len(set(starts["full_transfer"])) == (4 if arm == "no_pt" else 1)


def test_trials_of_learning_rates_are_the_first_epochs_of_whole_runs(prepared: dict[str, Path], tmp_path: Path) -> None:
    whole, trials = (
        finetuned(tmp_path, prepared, evaluations=("full_transfer",), trial_epochs=epochs)[0] for epochs in (None, 2)
    )
    assert trials.equals(whole)


@pytest.mark.parametrize("count", [4, 6, 10, 40])
def test_held_out_parts_of_the_tasks_are_equal_disjoint_and_all(count: int) -> None:
    folds = [finetune_tasks(f"held_out_{fold}", count) for fold in range(4)]
    assert torch.equal(torch.cat(folds), torch.arange(count))
    assert max(map(len, folds)) - min(map(len, folds)) <= 1
    with pytest.raises(DataError, match="3 FT tasks don't make the 4 parts"):
        finetune_tasks("held_out_0", 3)


OF_ARMS = {
    f"{arm}/{seed}": initial_pretrained(2, 4, COARSE, torch.Generator().manual_seed(10 * place + seed))
    for place, arm in enumerate(ARMS)
    for seed in range(2)
}


def test_every_pair_of_arms_with_the_same_pt_seed_is_compared_on_the_same_graphs(
    prepared: Files, tmp_path: Path
) -> None:
    inputs = prepared.copy()
    for name, network in OF_ARMS.items():
        inputs[f"pretrained/{name}"] = tmp_path / f"{name.replace('/', '')}.pt"
        save_pretrained(Learned(network, {}), inputs[f"pretrained/{name}"])
    outputs = {name: tmp_path / f"{name}.csv" for name in ("metrics", "series")}
    compare(COMPARED, inputs, outputs, Machine())
    assert metrics.read_series_rows(outputs["series"]) == []
    table = metrics.read(outputs["metrics"])
    words = table[["experiment", "setting", "evaluation"]].drop_duplicates()
    assert words.to_numpy().tolist() == [["ppi", "full_access", "representations"]]
    found = table.set_index(["arm", "metric", "replicate"])["value"]
    assert set(found.index) == {(a, f"CKA with {b}", seed) for a in ARMS for b in ARMS if a != b for seed in range(2)}
    dataset = on_device(small_graphs(), "cpu")
    batch = dataset.batch(compared(splits(dataset.graphs, [TEST_SPECIES]), 50))

    def features(arm: str, seed: int) -> torch.Tensor:
        encoder, _, buffers = OF_ARMS[f"{arm}/{seed}"]
        return GinEncoder(2, 4)({**encoder, **buffers}, batch, training=False)

    for arm, metric, seed in found.index:
        other = metric.removeprefix("CKA with ")
        expected = linear_cka(features(arm, seed), features(other, seed))
        assert found[arm, metric, seed] == pytest.approx(expected, abs=1e-6)
        assert found[arm, metric, seed] == pytest.approx(found[other, f"CKA with {arm}", seed], abs=1e-12)


def test_the_compared_graphs_are_a_fixed_draw_of_ft_graphs() -> None:
    parts = splits(small_graphs(), [TEST_SPECIES])
    whole = {*parts.train.tolist(), *parts.validation.tolist(), *parts.test.tolist()}
    some = compared(parts, 30)
    assert len(some.unique()) == 30
    assert set(some.tolist()) <= whole
    assert all(set(some.tolist()) & set(part.tolist()) for part in (parts.train, parts.validation, parts.test))
    assert torch.equal(some, compared(parts, 30))
    assert set(compared(parts, 6400).tolist()) == whole
