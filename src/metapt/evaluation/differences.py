"""Paired differences between the arms of an experiment, in each number that both have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd

from metapt.evaluation.results import Results
from metapt.evaluation.statistics import paired_difference
from metapt.sections import OWN_KEYS, ArmSection, ExperimentSection, Section, plain

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


def explained(section: ExperimentSection, known: Mapping[str, ArmSection]) -> dict[str, str]:
    """Return what each arm that an experiment compares is, by its name and by its label in tables.

    An arm is what its class says, and what its settings change: of the arm that it extends, or of its class's defaults.
    `known` are the arms of the domain, whose names the experiment holds unless it has arms of its own.
    """
    own = getattr(section, "arms", None)
    arms: Mapping[str, ArmSection] = own if isinstance(own, Mapping) else known
    found: dict[str, str] = {}
    for name in section.arm_names():
        if name not in arms:
            continue
        arm = arms[name]
        what = (type(arm).__doc__ or "").split(".")[0].replace("\n", " ").strip()
        parent = arms.get(arm.extends or "")
        if parent is None:
            kept = _flat(arm.model_dump(mode="json", exclude_defaults=True, exclude={"method"}))
            changes = [f"{key}: {value}" for key, value in kept.items()]
        else:
            what, changes = f"{what}, as {arm.extends}", list(_changed(_flat(arm), _flat(parent)))
        text = "; ".join([what, *changes])
        found |= dict.fromkeys((name, getattr(arm, "label", "") or name.replace("_", " ")), text)
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
