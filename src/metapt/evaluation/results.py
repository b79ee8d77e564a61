"""The results of an experiment's runs, read once for its tables, figure and comparisons, and its paired differences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from metapt.engine import records
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.evaluation.metrics import CELL, NotMeasuredError
from metapt.evaluation.statistics import paired_difference
from metapt.evaluation.tables import paper_numbers
from metapt.sections import OWN_KEYS, ArmSection, DomainSection, ExperimentSection, Section, SummarySettings, plain

DIFFERENCES = [
    "experiment", "arm", "control", "changed", "setting", "evaluation", "metric",
    "mean", "standard_error", "n", "low", "high", "p_value",
]  # fmt: skip
"""Columns of the table of paired differences."""

_SERIES = ["stage", "arm", "setting", "seed", "replicate", "step", "name", "value"]
_SEED = re.compile(r"seed(\d+)")


@dataclass(frozen=True)
class Results:
    """The results of an experiment."""

    settings: ClassVar[type[DomainSection]] = DomainSection  # the model of `config`

    name: str  # of the experiment, as in the metrics table: `ecg_full_access`
    config: Any  # the settings of its domain, with the arms of the experiment
    section: Any  # its own settings
    metrics: pd.DataFrame  # the metrics table of all its runs, with `name` as experiment
    # the series tables of all its runs: stage, arm, setting, seed (-1 in runs of several seeds), replicate, step, name,
    # value. The first four are from the run's folder.
    series: pd.DataFrame
    machines: dict[str, list[str]]  # names of the machines of PT or of a study, each once, by arm
    files: dict[str, Path]  # paths of further inputs by name

    @property
    def key(self) -> str:
        """The key of the experiment in the section of its domain: `full_access`."""
        return self.name.partition("_")[2]

    @property
    def arms(self) -> list[str]:
        """The arms that the experiment compares, in the order of the config."""
        section: ExperimentSection = self.section
        return section.arm_names()

    def arm_settings(self) -> dict[str, Any]:
        """Return the settings of the arms that the experiment compares, with what they take from other arms.

        There are none if its arms are not in the config.
        Arms of the experiment's own stand in the order of its defaults, and those that the config adds come last.
        """
        own = getattr(self.section, "arms", None)
        if not isinstance(own, Mapping):  # but names of its domain's arms
            known = getattr(self.config, "arms", {})
            return {name: known[name].resolved(known) for name in self.arms if name in known}
        default = list(type(self.section)().arms)
        return {name: own[name] for name in sorted(own, key=lambda each: (*default, each).index(each))}

    def setting_of_control(self, control: str, setting: str) -> str:
        """Return the setting of a control's runs that an arm's runs in `setting` are compared with."""
        return setting

    def independent(self, values: pd.Series[float], evaluation: str) -> pd.Series[float]:
        """Return a value for each independent replicate, given those of a cell of the metrics table by replicate."""
        return values

    @cached_property
    def papers(self) -> pd.DataFrame:
        """The paper's numbers, as `paper_numbers`; none if the data are not the paper's."""
        numbers = paper_numbers()
        return numbers if self.config.papers_data else numbers.iloc[:0]

    def values(
        self, arm: str, metric: str, setting: str | None = None, evaluation: str | None = None
    ) -> pd.Series[float]:
        """Return a number of an arm, indexed by replicate.

        `setting` and `evaluation` may be left out if only one cell of the metrics table remains. Raises
        NotMeasuredError if no row matches, and DataError if rows of several cells do.
        """
        found = self._numbers.get((arm, metric), self.metrics.iloc[:0])
        wanted = {"experiment": self.name, "arm": arm, "metric": metric}
        for column, word in (("setting", setting), ("evaluation", evaluation)):
            if word is not None:
                found, wanted[column] = found[found[column] == word], word
        asked = ", ".join(f"{column} {word!r}" for column, word in wanted.items())
        if found.empty:
            raise NotMeasuredError(f"No run has measured {asked}.")
        cells = found[CELL].drop_duplicates()
        if len(cells) > 1:
            several = "; ".join(f"setting {c.setting!r}, evaluation {c.evaluation!r}" for c in cells.itertuples())
            raise DataError(
                f"{asked} stands for {len(cells)} different numbers ({several}); name the setting and the evaluation."
            )
        return found.set_index("replicate")["value"]

    @cached_property
    def _numbers(self) -> dict[Any, pd.DataFrame]:
        """The rows of the metrics table, by arm and metric."""
        return dict(iter(self.metrics.groupby(["arm", "metric"])))

    @classmethod
    def read(cls, section: type[ExperimentSection], settings: SummarySettings, inputs: Mapping[str, Path]) -> Results:
        """Read the results of an experiment's runs. Raises DataError if a file is missing or is no such table.

        The inputs are `{run}/metrics`, `{run}/series` and `{run}/record` of each run, whose name is its folder below
        the domain's results, such as `pretrain/meta/n500/seed0`; other names are `files`. A PT run that arms share
        stands there for each of them, with its name in place of that of the folder.
        """
        name = f"{settings.domain}_{settings.experiment}"
        tables = {each.removesuffix("/metrics"): path for each, path in inputs.items() if each.endswith("/metrics")}
        rows = [row for run, path in tables.items() for row in rows_of(run, path)]
        series: list[dict[str, Any]] = []
        machines: dict[str, list[str]] = {}
        for each, path in inputs.items():
            run, _, what = each.rpartition("/")
            if what == "series":
                words = run_words(run)
                series += [words | row for row in metrics.read_series_rows(path)]
            elif what == "record" and not run.startswith("finetune/"):
                machines.setdefault(str(run_words(run)["arm"]), []).append(_machine(path))
        return cls(
            name=name,
            config=cls.settings.model_validate(settings.settings),
            section=section.model_validate(settings.section),
            metrics=metrics.validate(rows, f"the metrics table of {name}").assign(experiment=name),
            series=metrics.frame(series, _SERIES),
            machines={arm: list(dict.fromkeys(names)) for arm, names in machines.items()},
            files={each: path for each, path in inputs.items() if "/" not in each},
        )


def rows_of(run: str, path: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's metrics table; those of PT stand under the arm that `run` names, see `Results.read`.

    Raises DataError as `metrics.read_rows`.
    """
    words, rows = run_words(run), metrics.read_rows(path)
    return [row | {"arm": words["arm"]} for row in rows] if words["stage"] == "pretrain" else rows


def run_words(run: str) -> dict[str, str | int]:
    """Return what a run's folder says: stage (or key of an experiment), arm, setting and seed (-1 without one).

    >>> run_words("pretrain/meta/n500/seed0")
    {'stage': 'pretrain', 'arm': 'meta', 'setting': 'n500', 'seed': 0}
    """
    stage, arm, *rest = run.split("/")
    seed = _SEED.fullmatch(rest[-1]) if rest else None
    words: dict[str, str | int] = {"stage": stage, "arm": arm, "setting": "/".join(rest[:-1] if seed else rest)}
    return words | {"seed": int(seed[1]) if seed else -1}


def _machine(record: Path) -> str:
    machine = records.read(record)["machine"]
    return str(machine["name"]) + ("" if machine["device"] == "cuda" else f", threads: {machine['threads']}")


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
        unsaid = "the domain's" if key.startswith(("pretrain.", "finetune.")) else None
        now, before = (each.get(key, unsaid) for each in (ours, others))
        if now != before:
            yield f"{key}: {now}, not {before}"


def differences(results: Results, chosen: Mapping[tuple[str, str], str]) -> pd.DataFrame:
    """Return a table with the columns `DIFFERENCES` and a row for each pair and each number that both arms have.

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
                dict(zip(DIFFERENCES, (results.name, arm, control, changed, setting, *cell, *numbers), strict=True))
            )
    return pd.DataFrame(rows, columns=DIFFERENCES)


def _flat(settings: Section | Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return nested settings, without `OWN_KEYS`, as one dictionary with dotted keys; an empty section leaves none."""
    found: dict[str, Any] = {}
    for key, value in (settings if isinstance(settings, Mapping) else plain(settings)).items():
        if key not in OWN_KEYS:
            found |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return found
