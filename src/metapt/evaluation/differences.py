"""Paired differences between the arms of an experiment, in each number that both have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd

from metapt.evaluation.results import Results
from metapt.evaluation.statistics import paired_difference
from metapt.sections import OWN_KEYS, ArmSection, Section, plain

COLUMNS = [
    "experiment", "arm", "control", "changed", "setting", "evaluation", "metric",
    "mean", "standard_error", "n", "low", "high", "p_value",
]  # fmt: skip


def compared(arms: Mapping[str, ArmSection], claimed: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return the arms that are compared, as (arm, control), with the settings in which they differ in words.

    They are the arm and the control of each claim on two different arms, whose words are empty, and each arm with the
    one that it extends.
    """
    found = {(arm, control): "" for arm, control in claimed if arm and control and arm != control}
    for name, arm in arms.items():
        parent = arm.extends
        if parent is not None and parent in arms and (name, parent) not in found:
            found[name, parent] = "; ".join(_changed(_flat(arm), _flat(arms[parent])))
    return found


def _changed(ours: dict[str, Any], others: dict[str, Any]) -> Iterator[str]:
    for key in ours | others:
        now, before = (each.get(key, "the domain's") for each in (ours, others))
        if now != before:
            yield f"{key}: {now}, not {before}"


def differences(results: Results, chosen: Mapping[tuple[str, str], str]) -> pd.DataFrame:
    """Return a table with the columns `COLUMNS` and a row for each pair and each number that both arms have.

    Independent replicates are paired, as PT seeds are; arms that do not have the same ones are left out.
    """
    cells = {
        key: results.independent(part.set_index("replicate")["value"], str(key[2]))
        for key, part in results.metrics.dropna(subset="replicate").groupby(
            ["arm", "setting", "evaluation", "metric"], sort=False
        )
    }
    rows: list[dict[str, Any]] = []
    for (arm, control), changed in chosen.items():
        for (name, setting, *cell), ours in cells.items():
            others = cells.get((control, results.setting_of_control(control, str(setting)), *cell))
            if name != arm or others is None or set(ours.index) != set(others.index):
                continue
            d = paired_difference(ours, others)
            numbers = (d.mean, d.standard_error, d.n, d.low, d.high, d.p_value)
            rows.append(
                dict(zip(COLUMNS, (results.name, arm, control, changed, setting, *cell, *numbers), strict=True))
            )
    return pd.DataFrame(rows, columns=COLUMNS)


def _flat(settings: Section | Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return nested settings, without `OWN_KEYS`, as one dictionary with dotted keys; an empty section leaves none."""
    found: dict[str, Any] = {}
    for key, value in (settings if isinstance(settings, Mapping) else plain(settings)).items():
        if key not in OWN_KEYS:
            found |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return found
