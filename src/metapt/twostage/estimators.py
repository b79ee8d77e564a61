"""What experiments on estimators share: which estimators, their slopes in the metrics table, and pairs of runs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Annotated, Any

import pandas as pd
from pydantic import Field

from metapt.errors import ConfigError
from metapt.evaluation import agreement_report, headroom_table
from metapt.evaluation.agreement import SLOPES, Agreement
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.headroom import hyperparameters as hyperparameters_of
from metapt.evaluation.results import Results
from metapt.files import sha256
from metapt.jobs import Json
from metapt.sections import Count, Distinct, ExperimentSection, Positive, Rate, Section, Seed, key, plain
from metapt.twostage.quantities import EVALUATIONS
from metapt.twostage.seeds import seed_means
from metapt.twostage.slopes import COST, HORIZON, SLOPE


class Evolution(Section):
    """Persistent evolution strategies: pairs of PT runs whose hyperparameters are moved anew in each part of PT."""

    pairs: Count = key(10, "pairs of runs, moved in opposite directions; 0: none")
    windows: Positive = key(10, "parts of PT of equal length, each with random moves of its own")
    size: Rate = Field(
        description="size of each random move up or down: in degrees (mnist), in the natural logarithm of each "
        "hyperparameter (ecg; 0.69 is a factor of 2), in weight (ppi)"
    )


class EstimatorsSection(ExperimentSection):
    """Estimates of the derivative at the end of PT, against the runs of a headroom. Not in the paper."""

    runs: list[str] = Field(
        description="paths, from the project's folder, of the table.csv of headrooms with the same data, network, PT "
        "and FT as this config",
        min_length=1,
    )
    pretrain_seeds: Annotated[list[Seed], Distinct] = key(
        [0, 1, 2, 3, 4], "PT seeds, each with estimates of its own", min_length=1
    )
    draws: Positive = key(32, "draws of minibatches whose mean is an estimate")
    horizons: Annotated[list[Positive], Distinct] = key(
        [1, 10, 100],
        "numbers of last PT steps through which the exact derivative goes; one through all PT steps is always added",
    )
    evolution: Evolution = key(
        Evolution(pairs=0, size=1.0),
        "persistent evolution strategies (Vicol et al. 2021): derivatives from pairs of perturbed PT runs",
    )

    def studies(self, *keys: str) -> dict[str, Json]:
        """Return the settings of the studies that estimate, by the name of their module.

        `keys` are those of the study `estimators`, which makes all estimates but persistent evolution strategies.
        """
        found: dict[str, Json] = {"estimators": {name: getattr(self, name) for name in ("draws", "horizons", *keys)}}
        return found | {"evolution": plain(self.evolution)} if self.evolution.pairs else found


def measured_runs(
    section: EstimatorsSection, problems: Sequence[str], hyperparameters: Sequence[str]
) -> dict[str, Any]:
    """Return the SHA-256 of each table of runs by its path, as further settings of the experiment's summary.

    The summary is then made anew when a table changes. Raises ConfigError if a table is missing, or if together they
    lack a problem of the estimates or have it with other hyperparameters, and DataError if a file is no table of runs.
    """
    for path in section.runs:
        if not Path(path).is_file():
            raise ConfigError(
                f"estimators.runs names {path}, which is not there (looked for from {Path.cwd()}); name the table.csv "
                f"of a headroom."
            )
    rows = headroom_table.read([Path(path) for path in section.runs])
    known, files = list(dict.fromkeys(rows["problem"])), ", ".join(section.runs)
    for problem in problems:
        if problem not in known:
            raise ConfigError(
                f"estimators.runs names {files}, without the problem {problem!r}; name a table of the same data and "
                f"network. There: {', '.join(known)}."
            )
        there = hyperparameters_of(rows[rows["problem"] == problem].to_dict("records"))
        if set(there) != set(hyperparameters):
            raise ConfigError(
                f"estimators.runs names {files}, where {problem!r} has the hyperparameters {', '.join(there)}; the "
                f"estimates are along {', '.join(hyperparameters)}; name the table of a headroom with these."
            )
    return {"runs": {path: sha256(Path(path)) for path in section.runs}}


def slopes_of(found: pd.DataFrame) -> pd.DataFrame:
    """Return the table of slopes (see `SLOPES`) from what `metapt.twostage.slopes.rows` has made."""
    split = found["setting"].str.rpartition(HORIZON)
    words = found.assign(problem=split[0], horizon=split[2]).rename(
        columns={"arm": "estimator", "replicate": "pretrain_seed"}
    )
    run = ["problem", "estimator", "horizon", "pretrain_seed"]
    cost = words[words["metric"] == COST].rename(columns={"value": "cost"})[[*run, "cost"]]
    prefix = SLOPE.format("")
    slopes = words[words["metric"].str.startswith(prefix)].rename(columns={"value": "slope"})
    slopes = slopes.assign(hyperparameter=slopes["metric"].str.removeprefix(prefix))
    joined = slopes.merge(cost, on=run, how="left", validate="many_to_one")
    return joined.assign(horizon=joined["horizon"].astype(int), pretrain_seed=joined["pretrain_seed"].astype(int))[
        SLOPES
    ]


@dataclass(frozen=True)
class RunPair:
    """Two settings at equal distances from the reference, in opposite directions.

    Attributes:
        low, high: their names.
        direction: coordinates of `high` minus those of the reference, by hyperparameter.
    """

    low: str
    high: str
    direction: Mapping[str, float]


def pair(name: str, direction: Mapping[str, float]) -> RunPair:
    """Return a pair, whose settings are named after it."""
    return RunPair(f"{name}-low", f"{name}-high", direction)


def ends(pairs: Iterable[RunPair]) -> list[str]:
    """Return the names of the settings of pairs."""
    return [name for each in pairs for name in (each.low, each.high)]


def perturbations(names: Sequence[str], count: int, size: float) -> list[RunPair]:
    """Return pairs that move all hyperparameters at once by `size`, each with a random sign.

    They are those of SPSA (Spall 1992, IEEE Transactions on Automatic Control 37(3)), which is an antithetic evolution
    strategy with signs for normal draws; a perturbation is kept for the whole run.
    """
    found = []
    for number in range(count):
        random = Random(f"perturbation {number}")
        found.append(pair(f"perturbation-{number:02d}", {name: random.choice((-size, size)) for name in names}))
    return found


def pair_slopes(
    results: Results,
    problem: str,
    estimator: str,
    pairs: Sequence[RunPair],
    metric: str,
    evaluation: str,
    setting: str = "",
) -> pd.DataFrame:
    """Return slopes by the results `metric` of both ends of pairs, which have common seeds.

    A pair's slope along a hyperparameter is the difference of its results over that of its coordinates; the estimate is
    the mean over the pairs that move it, and over FT seeds. A pair costs two PT runs.
    """
    made: dict[tuple[int, str], list[float]] = defaultdict(list)
    for each in pairs:
        low, high = (
            results.values(name, metric, setting=setting, evaluation=evaluation) for name in (each.low, each.high)
        )
        change = seed_means(high - low)
        for seed, difference in change.items():
            for name, length in each.direction.items():
                made[int(str(seed)), name].append(float(difference) / (2 * length))
    cost = 2 * len(pairs)
    rows = [[problem, estimator, math.nan, seed, name, fmean(slopes), cost] for (seed, name), slopes in made.items()]
    return pd.DataFrame(rows, columns=SLOPES)


def experiment(
    section: type[EstimatorsSection],
    *,
    order: int,
    needs: Callable[[Any, Any], Needs],
    results: type[Results],
    slopes: Callable[[Any], pd.DataFrame],
    compared: Callable[[Any, pd.DataFrame], pd.DataFrame] = lambda results, runs: runs,
    logarithmic: tuple[str, ...] = (),
    title: str,
) -> Experiment:
    """Return the record of an experiment on estimators.

    `slopes` returns the table of slopes, given the results; `compared` returns the rows of the tables of
    runs that are used, given the results and all rows; `logarithmic` are the hyperparameters whose coordinate is the
    logarithm.
    """

    def agreed(found: Any) -> list[Agreement]:
        rows = headroom_table.read([Path(path) for path in found.words["runs"]])
        return agreement_report.measured(compared(found, rows), slopes(found), logarithmic)

    return Experiment(
        title=title,
        figure_title=f"{title}: agreement against horizon and against cost",
        section=section,
        order=order,
        needs=needs,
        results=results,
        tables=lambda found: agreement_report.tables(agreed(found), slopes(found), EVALUATIONS),
        figure=lambda found: agreement_report.figure(agreed(found), EVALUATIONS),
        comparisons=lambda found: agreement_report.comparisons(agreed(found), EVALUATIONS),
    )
