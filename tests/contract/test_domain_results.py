"""Tables, figures and verdicts of the experiments on ECGs and protein graphs, from runs with given numbers."""

from __future__ import annotations

import builtins
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from metapt.evaluation import figures, metrics
from metapt.evaluation.comparisons import STAND_IN
from metapt.evaluation.experiment import SUMMARY
from metapt.machine import Machine

from ..unit.ecg import synthetic_results as ecg
from ..unit.ppi import synthetic_results as ppi
from .domain_cases import CASES

DOMAINS: dict[str, Any] = {"ecg": ecg, "ppi": ppi}
KEYS = [(name, key) for name, module in DOMAINS.items() for key in module.MAKERS]
FEW = {"pretrain_seeds": 1, "finetune_seeds": 1}
PPI_ARMS = {"arms": ["no_pt", "graph_supervised", "cotrain_learned_weights", "meta"]}
SMALL: dict[tuple[str, str], dict[str, Any]] = {
    ("ecg", "full_access"): {"arms": ["no_pt", "simclr", "meta", "meta-stable"], "finetune_sizes": [100, 250]},
    ("ecg", "unroll_steps"): {"finetune_sizes": [100, 500]},
    ("ecg", "partial_access"): {"finetune_sizes": [500], "meta_sizes": [50]},
    **{("ppi", key): PPI_ARMS for key in ("full_access", "half_data", "held_out_tasks", "summary")},
}
"""Sections of experiments that have many runs by default."""
OWN: dict[str, dict[str, Any]] = {
    "ecg": {"simclr": {"method": "simclr"}, "my_arm": {"method": "meta", "controls": {"simclr": []}}},
    "ppi": {
        "no_pt": {"method": "no_pt"},
        "graph_supervised": {"method": "supervised"},
        "my_arm": {"method": "meta", "pretrain_lr": 1e-3, "controls": {"graph_supervised": []}},
    },
}


def runs_of(name: str, key: str, folder: Path, **settings: Any) -> Any:
    """Return the written runs of an experiment, with few arms."""
    runs = DOMAINS[name].runs_of(key, folder, **{key: SMALL.get((name, key), {})} | settings)
    runs.write()
    return runs


def summarised(runs: Any, folder: Path, *, drawn: bool = False) -> tuple[dict[str, Path], Figure]:
    """Return the files of a summary, and its figure, which is only saved if it is to be `drawn`."""
    outputs = {name: folder / "summary" / file for name, file in SUMMARY.items()}
    outputs["metrics"].parent.mkdir()
    made, save, load = [], figures.save, builtins.__import__

    def imported(name: str, among: Any = None, *others: Any) -> Any:
        if (among or {}).get("__name__", "").startswith("metapt"):
            assert name.split(".")[0] != "torch", "a summary is a process that needs no torch"
            assert not name.startswith(("metapt.training", "metapt.hypergrad")), name
        return load(name, among, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "__import__", imported)
        patch.setattr(
            figures, "save", lambda figure, path: made.append(figure) or (save(figure, path) if drawn else None)
        )
        runs.experiment.summarise(runs.settings, runs.inputs, outputs, Machine())
    (figure,) = made
    return outputs, figure


def claims_of(outputs: dict[str, Path]) -> pd.DataFrame:
    return pd.read_csv(outputs["claims"], keep_default_na=False).set_index("claim")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "key"), KEYS)
def test_one_pt_seed_makes_tables_and_a_figure_and_decides_nothing(name: str, key: str, tmp_path: Path) -> None:
    outputs, figure = summarised(runs_of(name, key, tmp_path, **FEW), tmp_path, drawn=key == "cost")
    claims = claims_of(outputs)
    assert set(claims["verdict"]) <= {"too few seeds", "not measured"}
    assert all("agree between PT seeds" in text for text in claims.index[claims["verdict"] == "not measured"])
    assert set(metrics.read(outputs["metrics"])["experiment"]) == {f"{name}_{key}"}
    written = [path for path in outputs.values() if "figure" not in path.name or key == "cost"]
    assert all(path.stat().st_size > 0 for path in written)
    if key == "cost":
        assert imread(outputs["figure_png"])[..., :3].std() > 0.02, "the figure is blank"
    figure.draw_without_rendering()
    whole = figure.bbox.padded(2)
    for axis in figure.axes:
        assert axis.has_data() or axis.images, "an empty panel"
        box = axis.get_tightbbox()
        assert box is not None
        assert whole.x0 < box.x0 <= box.x1 < whole.x1, axis.get_title()
        assert whole.y0 < box.y0 <= box.y1 < whole.y1, axis.get_title()


@pytest.mark.parametrize(("name", "key"), KEYS)
def test_a_claim_says_what_it_compares_and_has_its_paired_differences(name: str, key: str, tmp_path: Path) -> None:
    few = {key: PPI_ARMS} if key in ("negative_transfer", "representations") else {}
    runs = runs_of(name, key, tmp_path, pretrain_seeds=2, finetune_seeds=1, **few)
    outputs, _ = summarised(runs, tmp_path)
    claims, found = claims_of(outputs), pd.read_csv(outputs["differences"])
    assert set(claims["arm"]) <= set(runs.config.arms)
    assert set(claims["control"]) <= {"", *runs.config.arms}
    assert not (claims["arm"] == claims["control"]).any()
    assert (claims["metric"] != "").all()
    assert (claims["least_seeds"] == 5).all()
    if key in ("full_access", "half_data", "partial_access", "cost", "unroll_steps"):
        pairs = {cell: set(part["metric"]) for cell, part in found.groupby(["arm", "control"])}
        for claim in claims[~claims.index.str.contains("gains more over")].itertuples():
            assert claim.metric in pairs[claim.arm, claim.control], claim


@pytest.mark.parametrize(("name", "key"), [each for each in KEYS if each[1] != "partial_access"])
def test_arms_of_ones_own_are_shown(name: str, key: str, tmp_path: Path) -> None:
    if (name, key) == ("ecg", "unroll_steps"):
        pytest.skip("its runs have numbers for the paper's arms only")
    arms = OWN[name]
    section: dict[str, Any] = {"arms": ["my_arm"] if key == "learned_weights" else list(arms)}
    sizes = {"finetune_sizes": [100, 500]} if (name, key) == ("ecg", "full_access") else {}
    others = {"half_data": None, "held_out_tasks": None} if key == "summary" else {}
    runs = runs_of(name, key, tmp_path, **FEW, arms=arms, **{key: section | sizes}, **others)
    outputs, _ = summarised(runs, tmp_path)
    assert "my arm" in outputs["table_md"].read_text()


@pytest.mark.parametrize("name", DOMAINS)
def test_a_diverged_run_decides_nothing(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    section = SMALL[name, "full_access"] | {"arms": ["no_pt", case.plain]}
    runs = runs_of(name, "full_access", tmp_path, full_access=section, finetune_seeds=1)
    runs.gap = lambda *given: math.nan if (given[0], given[-1]) == (case.plain, 1) else 0.0
    runs.write()
    outputs, _ = summarised(runs, tmp_path)
    assert set(claims_of(outputs)["verdict"]) == {"inconclusive"}
    numbers = pd.read_csv(outputs["table_csv"])
    assert numbers.loc[numbers["arm"] == case.plain, "mean"].isna().all()


@pytest.mark.parametrize("name", DOMAINS)
def test_stand_ins_are_not_put_beside_the_papers_numbers(name: str, tmp_path: Path) -> None:
    outputs, _ = summarised(runs_of(name, "full_access", tmp_path, **FEW, source="simulated"), tmp_path)
    assert pd.read_csv(outputs["table_csv"])["paper_mean"].isna().all()
    assert set(claims_of(outputs)["paper"]) == {STAND_IN}


@pytest.mark.parametrize("name", DOMAINS)
def test_times_on_two_machines_do_not_compare(name: str, tmp_path: Path) -> None:
    runs = runs_of(name, "cost", tmp_path, finetune_seeds=1)
    runs.machine = lambda arm: "fast" if arm == "meta" else "slow"
    runs.write()
    claims = claims_of(summarised(runs, tmp_path)[0])
    assert claims.filter(like="meta takes", axis=0)["verdict"].tolist() == ["inconclusive"] * 2
    assert "not all runs were on the same machine" in claims["measured"].iloc[0]
    assert "inconclusive" not in set(claims.filter(like="meta-stable takes", axis=0)["verdict"])
