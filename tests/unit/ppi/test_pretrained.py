"""What a PT job on protein graphs leaves, and the file that it leaves for FT."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metapt.domains.ppi.config import Network
from metapt.domains.ppi.gin import initial_pretrained, load_pretrained
from metapt.domains.ppi.pretrain import weight_numbers
from metapt.domains.ppi.pretraining_setting import PpiSetting
from metapt.domains.ppi.problem import WEIGHTS, task_weights
from metapt.domains.ppi.quantities import ONLINE, QUANTILES
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.training.pretrained_file import Learned, save_pretrained

from ...contract.domain_cases import CASES
from .small_graphs import COARSE

PPI, NETWORK = CASES["ppi"], Network(layers=2, width=4)
RANDOM = initial_pretrained(2, 4, COARSE, torch.Generator().manual_seed(0))
LEARNED = Learned(RANDOM, {WEIGHTS: torch.linspace(-1, 1, COARSE)})
DESCRIBED = [f"planted: {purpose}" for purpose in ["useful"] * 4 + ["irrelevant"] * 3 + ["noise"] * 3]
Files = dict[str, Path]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return PPI.prepare(tmp_path_factory.mktemp("ppi"))


def pretrained(folder: Path, prepared: Files, arm: str, **inputs: Path) -> tuple[Learned, Files]:
    """Return what a job has learned, and its outputs."""
    made = PPI.work(PPI.jobs(folder).pretrain(arm, "full_access", 0), prepared, **inputs)
    return load_pretrained(made["pretrained"], NETWORK, "cpu"), made


def test_a_learner_leaves_its_weights_and_their_way(prepared: Files, tmp_path: Path) -> None:
    """Descriptions of tasks may be empty or meaningless."""
    tasks = prepared["tasks"].read_text().replace("a process", "", 1).replace("a process", "NA", 1)
    (tmp_path / "tasks.csv").write_text(tasks)
    learned, written = pretrained(tmp_path, prepared, "meta", tasks=tmp_path / "tasks.csv")
    found, series = set(metrics.read(written["metrics"])["metric"]), metrics.read_series(written["series"])
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
    assert len(metrics.read_series(written["series"])) == 0
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
    given, none = tmp_path / "weights.pt", tmp_path / "none.pt"
    save_pretrained(LEARNED, given)
    save_pretrained(Learned(RANDOM, {}), none)
    weighted, plainly = (
        pretrained(tmp_path, prepared, arm, weights=given)[0].pretrained for arm in ("meta-frozen", "graph_supervised")
    )
    assert not torch.equal(weighted.encoder["node"], plainly.encoder["node"])
    with pytest.raises(DataError, match=r"none\.pt holds no learned task weights"):
        pretrained(tmp_path, prepared, "meta-frozen", weights=none)


def test_equal_tensors_give_equal_bytes_wherever_they_lie(tmp_path: Path) -> None:
    save_pretrained(LEARNED, tmp_path / "a.pt")
    slices = {name: torch.stack([value, value])[1] for name, value in LEARNED.meta.items()}
    save_pretrained(LEARNED._replace(meta=slices), tmp_path / "b.pt")
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()


def changed(what: Any) -> Callable[[Path], None]:
    return lambda path: torch.save(what, path)


@pytest.mark.parametrize(
    ("change", "layers", "width", "words"),
    [
        (Path.unlink, 2, 4, "is missing: the PT run that writes it has not been made"),
        *((lambda path: None, *size, "has no encoder of {} layers of width {}") for size in ((3, 4), (1, 4), (2, 5))),
        (lambda path: path.write_bytes(path.read_bytes()[:3000]), 2, 4, "is cut or altered"),
        (changed({"encoder": {}, "head": {}, "buffers": {}, "meta": [1]}), 2, 4, "is not what PT leaves"),
    ],
)
def test_a_file_that_no_pretraining_left_is_one_sentence(
    change: Callable[[Path], object], layers: int, width: int, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "pretrained.pt"
    save_pretrained(LEARNED, path)
    change(path)
    with pytest.raises(DataError, match=rf"pretrained\.pt {words.format(layers, width)}"):
        load_pretrained(path, Network(layers=layers, width=width), "cpu")
