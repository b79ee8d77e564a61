"""The table of all experiments' metrics, and the headline table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from metapt.errors import DataError
from metapt.evaluation import collect, metrics
from metapt.evaluation.comparisons import COLUMNS
from metapt.machine import Machine
from metapt.sections import CollectSettings


def experiment(folder: Path, name: str, metric: str, values: list[float]) -> dict[str, Path]:
    paths = {f"{name}/metrics": folder / f"{name}.csv", f"{name}/claims": folder / f"{name}-claims.csv"}
    rows = [metrics.row(name, "meta", metric, value, replicate=i, setting=SETTING) for i, value in enumerate(values)]
    metrics.write(rows, paths[f"{name}/metrics"])
    verdicts = pd.DataFrame([dict.fromkeys(COLUMNS, "") | {"experiment": name, "claim": f"the claim of {name}"}])
    verdicts["verdict"] = "too few seeds"
    verdicts.to_csv(paths[f"{name}/claims"], index=False)
    return paths


SETTING = "10 initialisations in [45,135], target 90"


def test_the_headline_puts_ours_beside_the_papers(tmp_path: Path) -> None:
    inputs = experiment(tmp_path, "mnist_rotation_mean", "absolute error of learned mean (degrees)", [2.0, 4.0])
    inputs |= experiment(tmp_path, "mnist_fidelity", "cosine", [0.9])
    outputs = {name: tmp_path / name for name in ("metrics", "claims", "headline")}
    collect.run(
        CollectSettings(experiments=["mnist_rotation_mean", "mnist_fidelity"], stand_ins=[]), inputs, outputs, Machine()
    )
    assert list(metrics.read(outputs["metrics"])["experiment"]) == ["mnist_rotation_mean"] * 2 + ["mnist_fidelity"]
    headline = outputs["headline"].read_text()
    numbers, verdicts = headline.split("Claims, and what these runs say about them")
    assert "3.0 ± 1.0" in numbers
    assert "7.2 ± 1.5" in numbers
    assert "mnist_fidelity" not in numbers, "the paper has no such number"
    assert verdicts.startswith(" (2 too few seeds)")
    assert "the claim of mnist_rotation_mean" in verdicts
    assert "the claim of mnist_fidelity" in verdicts
    claims = pd.read_csv(outputs["claims"])
    assert claims["claim"].tolist() == ["the claim of mnist_rotation_mean", "the claim of mnist_fidelity"]
    stand_ins = ["mnist_rotation_mean"]
    collect.run(CollectSettings(experiments=["mnist_rotation_mean"], stand_ins=stand_ins), inputs, outputs, Machine())
    assert "7.2" not in outputs["headline"].read_text(), "stand-in data have no place beside the paper's numbers"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("claim,verdict\n", r"-claims\.csv is not a table of claims \(it lacks experiment, family, arm, control"),
        (None, r"mnist_fidelity-claims\.csv is missing: run snakemake again"),
    ],
)
def test_what_is_no_table_of_claims_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    inputs = experiment(tmp_path, "mnist_fidelity", "cosine", [0.9])
    inputs["mnist_fidelity/claims"].unlink()
    if content is not None:
        inputs["mnist_fidelity/claims"].write_text(content)
    outputs = {name: tmp_path / name for name in ("metrics", "claims", "headline")}
    with pytest.raises(DataError, match=message):
        collect.run(CollectSettings(experiments=["mnist_fidelity"], stand_ins=[]), inputs, outputs, Machine())
