"""Add the FT runs of a results folder to the tables of this folder, and make claims, figure and tables from them.

After `snakemake ecg_full_access --configfile config/real-small.yaml`, or after some of its FT jobs:

    python docs/results/update.py ecg_full_access results/real-small

This writes `ecg/full_access.csv` (a row for each FT run), `claims/ecg_full_access.csv` and `ecg/full_access.png`, puts
the numbers of claims into the rows of `ecg.md` and `README.md`, and prints the tables of the page and the rows of
claims that are not there yet. `gains.py` draws the figure of the summary anew. An FT run that is already in the table
keeps its place and gets the new numbers. Finish the PT seeds of an arm first: all arms of a table need the same ones.

Machines round differently, which moves single runs by points. So all arms of a table are from one kind of machine.
`--table second-machine` adds to `ecg/second-machine.csv`, which has arms from another kind, with controls of their own.
The claims of both tables are corrected together. `--table further-seeds` and `--table second-machine-further-seeds`,
for the results of `config/ablations/further-seeds.yaml`, add to such tables and write
`claims/further-seeds/ecg_full_access.csv`.

`ppi_full_access` does the same for protein graphs, and `ppi_permuted_50` and `ppi_permuted_90`, with the results of
`config/learner.yaml`, for `ppi/learner.csv`, `ppi/learner-second-machine.csv` and `ppi/learner-further-seeds.csv`. How
well learned weights tell intact PT tasks from permuted ones goes to `ppi/learned_weights.csv`.

The displacements of learned warps go to `ecg/warp.csv`, the first and the last one of each PT run. The candidates of a
search go to a table with the name of its arm, such as `ecg/temperature_search.csv`. `--table second-machine` draws
those of temperatures, and the gains of the search, in `ecg/temperature_search.png`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from metapt import registry
from metapt.config import load
from metapt.domains.ecg.config import EcgMeta, PretrainedEcgArm, RandomSearch, RunSearch
from metapt.domains.ecg.looks import looks
from metapt.domains.ecg.quantities import CANDIDATE_LOSS, CANDIDATE_STRENGTH, CLASS_AUROCS, DISPLACEMENT, FACTOR
from metapt.domains.ecg.setting import policy_of
from metapt.domains.ppi.quantities import INTACT
from metapt.errors import DataError
from metapt.evaluation import figures, metrics
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, judge
from metapt.evaluation.experiment import Experiment
from metapt.evaluation.statistics import estimate_mean
from metapt.evaluation.tables import markdown
from metapt.twostage.arms import changed
from metapt.twostage.quantities import CROSS_VALIDATED_AUROC, EVALUATIONS, VALIDATION_AUROC
from metapt.twostage.replicates import SEEDS, pair
from metapt.twostage.results import TwoStageResults

HERE = Path(__file__).parent
KEY = ["evaluation", "arm", "pretrain_seed", "finetune_seed"]
PROBLEM = "problem"
CANDIDATE = ["table", "pretrain_seed", "candidate"]
WARP = ["table", "arm", "pretrain_seed"]
FOUND = ["problem", "arm", "pretrain_seed"]
_SECOND, _FURTHER = "second-machine", "further-seeds"


@dataclass(frozen=True)
class Source:
    """An experiment whose claims the pages show, and the tables of its FT runs.

    Args:
        domain, experiment, config: its domain, its key there, and its config file.
        setting: the setting of its FT runs.
        tables: for each value of `--table` the name of a file in the domain's folder.
        problem: the value of the column `problem`, if these tables have one.
    """

    domain: str
    experiment: str
    config: str
    setting: str
    tables: dict[str, str]
    problem: str = ""

    @property
    def record(self) -> Experiment:
        """Return the experiment."""
        return registry.domain(self.domain).experiments[self.experiment]

    @property
    def results(self) -> type[TwoStageResults]:
        """Return the class of its results."""
        return cast(type[TwoStageResults], self.record.results)

    def read(self, table: str) -> pd.DataFrame:
        """Return the FT runs of a table, without a column `problem`; no rows if there is no such file."""
        path = self.path(table)
        if not path.exists():
            return pd.DataFrame(columns=[*KEY, "validation", "test"])
        runs = pd.read_csv(path)
        return runs[runs[PROBLEM] == self.problem].drop(columns=PROBLEM) if self.problem else runs

    def path(self, table: str) -> Path:
        """Return the file of a table."""
        return HERE / self.domain / f"{self.tables[table]}.csv"

    def beside(self, table: str) -> list[str]:
        """Return the tables whose claims are corrected together with those of a table, itself among them."""
        return [each for each in self.tables if each.endswith(_FURTHER) == table.endswith(_FURTHER)]


def _permuted(percent: int) -> Source:
    setting = f"permuted_{percent}"
    tables = {"first": "learner", _SECOND: "learner-second-machine", _FURTHER: "learner-further-seeds"}
    return Source("ppi", setting, "learner", setting, tables, f"ppi 3x16 {setting}")


_FULL = {"first": "full_access"} | {each: each for each in (_FURTHER, _SECOND, f"{_SECOND}-{_FURTHER}")}
SOURCES = {
    "ecg_full_access": Source("ecg", "full_access", "real-small", "ft_size=500", _FULL),
    "ppi_full_access": Source("ppi", "full_access", "real-small", "full_access", _FULL),
    "ppi_permuted_50": _permuted(50),
    "ppi_permuted_90": _permuted(90),
}


def small(domain: str, config: str = "real-small") -> Any:
    """Return the settings of a domain in a config."""
    return getattr(load([HERE.parents[1] / "config" / f"{config}.yaml"]), domain)


def finished(runs: Path, name: str) -> pd.DataFrame:
    """Return a row for each FT run in a results folder: `KEY`, validation, test, and on ECGs the AUROC by class."""
    source = SOURCES[name]
    table = metrics.read(sorted((runs / source.domain / "finetune").rglob("metrics.csv")))
    table = table[(table["setting"] == source.setting) & table["replicate"].notna()]
    names = {VALIDATION_AUROC: "validation", source.results.auroc: "test"}
    names |= {long: short for short, long in CLASS_AUROCS.items()}
    wide = table[table["metric"].isin(names)].pivot(
        index=["evaluation", "arm", "replicate"], columns="metric", values="value"
    )
    wide = wide.rename(columns=names).reset_index()
    seeds = wide.pop("replicate").astype(int)
    wide = wide.assign(pretrain_seed=seeds // SEEDS, finetune_seed=seeds % SEEDS).round(4)
    first = [*KEY, "validation", "test"]
    return wide.reindex(columns=[*first, *(name for name in wide.columns if name not in first)])


def searches() -> list[str]:
    """Return the arms that search the temperature."""
    arms = small("ecg").arms.items()
    return [arm for arm, section in arms if isinstance(section, RunSearch) and section.hyperparameter == "temperature"]


def columns_of(arm: RandomSearch | RunSearch) -> dict[str, tuple[str, float]]:
    """Return the columns of the table of a search's candidates: the series of each, and a factor on its values."""
    if isinstance(arm, RandomSearch):
        return {"strength": (CANDIDATE_STRENGTH, 1.0), "loss": (CANDIDATE_LOSS, 1.0)}
    return {arm.hyperparameter: (FACTOR, start_of(arm)), "validation": (CROSS_VALIDATED_AUROC, 1.0)}


def start_of(arm: RunSearch) -> float:
    """Return the start of a search, which the factors of its candidates multiply: a temperature, or a strength."""
    if arm.hyperparameter == "temperature":
        return changed(small("ecg").pretrain, arm.pretrain).temperature
    policy = policy_of(arm.warp)
    return float(policy.global_strength(policy.initial(torch.Generator())))


def candidates(runs: Path, table: str) -> dict[str, pd.DataFrame]:
    """Return for each search its candidates: `CANDIDATE`, the hyperparameter, and the validation result.

    `table` is the table of their FT runs.
    """
    found = {}
    for arm, section in small("ecg").arms.items():
        if not isinstance(section, RandomSearch | RunSearch):
            continue
        tables = []
        for path in sorted((runs / "ecg" / "pretrain" / arm / "n500").glob("seed*/series.csv")):
            series = metrics.read_series(path)
            columns = {
                name: factor * series.loc[series["name"] == of, "value"].to_numpy()
                for name, (of, factor) in columns_of(section).items()
            }
            rows = pd.DataFrame(columns).round({name: 4 if name == "validation" else 6 for name in columns})
            seed = int(path.parent.name.removeprefix("seed"))
            for place, name in enumerate(CANDIDATE):
                rows.insert(place, name, (table, seed, range(1, len(rows) + 1))[place])
            tables.append(rows)
        if tables:
            found[arm] = pd.concat(tables, ignore_index=True)
    return found


def warps(runs: Path, table: str) -> pd.DataFrame:
    """Return the typical displacement of each learned warp at the beginning and at the end of PT, samples: `WARP`.

    `table` is the table of their FT runs.
    """
    arms = [arm for arm, section in small("ecg").arms.items() if isinstance(section, EcgMeta)]
    rows = []
    for arm in arms:
        for path in sorted((runs / "ecg" / "pretrain" / arm / "n500").glob("seed*/series.csv")):
            series = metrics.read_series(path)
            values = series.loc[series["name"] == DISPLACEMENT, "value"].round(3)
            seed = int(path.parent.name.removeprefix("seed"))
            rows.append([table, arm, seed, values.iloc[0], values.iloc[-1]])
    return pd.DataFrame(rows, columns=[*WARP, "displacement_start", "displacement_end"])


def found_tasks(runs: Path, source: Source) -> pd.DataFrame:
    """Return the AUROC of the learned weights against intact labels, over PT tasks: `FOUND`, auroc."""
    table = metrics.read(sorted((runs / source.domain / "pretrain").rglob("metrics.csv")))
    table = table[(table["setting"] == source.setting) & (table["metric"] == INTACT)]
    seeds = table["replicate"].astype(int)
    values = table[["arm"]].assign(problem=source.problem, pretrain_seed=seeds, auroc=table["value"].round(4))
    return values[[*FOUND, "auroc"]]


def updated(path: Path, new: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return the table at `path` with the rows of `new`, sorted by `key`, with the columns that it has.

    A row with the key of an old one replaces it. A table that does not exist is begun.
    """
    old = pd.read_csv(path) if path.exists() else new.head(0)
    both = pd.concat([old, new[list(old.columns)]]).drop_duplicates(key, keep="last")
    return both.sort_values(key).reset_index(drop=True)


def results_of(name: str, runs: pd.DataFrame) -> TwoStageResults:
    """Return the results of an experiment with the arms that have FT runs."""
    source = SOURCES[name]
    settings = small(source.domain, source.config)
    section = getattr(settings, source.experiment)
    return source.results(
        name=name,
        config=settings,
        section=section.model_copy(update={"arms": [arm for arm in section.arms if arm in set(runs["arm"])]}),
        words={},
        metrics=runs.assign(
            experiment=name,
            replicate=[pair(*seeds) for seeds in zip(runs["pretrain_seed"], runs["finetune_seed"], strict=True)],
            setting=source.setting,
            metric=source.results.auroc,
            value=runs["test"],
        ),
        series=pd.DataFrame(),
        machines={},
        files={},
    )


def learner_figure(tried: dict[str, pd.DataFrame], runs: pd.DataFrame) -> Figure:
    """Draw the candidates of searches of the temperature, and the gain of each arm over `simclr` with each PT seed.

    `tried` has the candidates by arm, as `candidates` returns them. Temperatures that all PT seeds have tried are
    joined by lines, with their mean; others are dots. `runs` are the FT runs on the machine of these arms; of its other
    arms only those with a fixed temperature of their own are drawn.
    """
    settings = small("ecg")
    pretrained = {arm: each for arm, each in settings.arms.items() if isinstance(each, PretrainedEcgArm)}
    fixed = [arm for arm, each in pretrained.items() if "temperature" in each.pretrain.model_fields_set]
    measured = set(runs["arm"]) & {"simclr", *searches(), *fixed}
    arms = looks([arm for arm in settings.full_access.arms if arm in measured])
    start = arms.pop("simclr")
    figure, (left, *rest) = figures.panels(1 + len(EVALUATIONS))
    with figures.style():
        for arm, table in tried.items():
            style: Any = {"color": arms[arm].colour, "marker": arms[arm].marker, "label": arms[arm].label}
            by_temperature = table.pivot(index="pretrain_seed", columns="temperature", values="validation")
            common = by_temperature.dropna(axis="columns")
            if not common.empty:
                left.plot(common.T, color=figures.QUIET, alpha=0.4, linewidth=1)
                left.plot(common.mean(), **style)
                style.pop("label")
            others = table[~table["temperature"].isin(common.columns)]
            if not others.empty:
                left.plot(others["temperature"], others["validation"], linestyle="none", fillstyle="none", **style)
        left.set_xscale("log", base=2)
        left.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        left.set_xlabel("temperature of NT-Xent (logarithmic)")
        left.set_ylabel("cross-fitted AUROC (%)")
        seeds = runs.groupby(["evaluation", "arm", "pretrain_seed"])["test"].mean()
        for axis, evaluation in zip(rest, EVALUATIONS, strict=True):
            for row, (arm, look) in enumerate(arms.items()):
                gains = seeds[evaluation, arm] - seeds[evaluation, "simclr"]
                found = estimate_mean(gains.tolist())
                axis.plot(gains, [row + 0.15] * len(gains), "o", color=figures.QUIET, alpha=0.5)
                interval = [[found.mean - found.low], [found.high - found.mean]]
                axis.errorbar(found.mean, row - 0.1, xerr=interval, fmt=look.marker, color=look.colour)
            axis.axvline(0, color=figures.INK, linewidth=1)
            names = [look.label for look in arms.values()] if axis is rest[0] else [""] * len(arms)
            figures.named_rows(axis, names, f"gain over {start.label} (points of test AUROC)")
    figures.same_range(rest, "x")
    figures.title(left, "Candidates with each PT seed, and mean")
    for axis, name in zip(rest, EVALUATIONS.values(), strict=True):
        figures.title(axis, f"Gain in {name}")
    return figure


def claims_of(name: str, tables: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return the verdicts on the claims of several tables of FT runs, which are corrected together.

    Raises DataError for a claim that stands in two tables.
    """
    measured = [results_of(name, runs) for runs in tables if len(runs)]
    found = [each for results in measured for each in SOURCES[name].record.comparisons(results)]
    claims = judge(name, found)
    twice = claims["claim"][claims["claim"].duplicated()].tolist()
    if twice:
        raise DataError(f"more than one machine has runs for {twice}")
    return claims


def with_claims(page: str, claims: pd.DataFrame, verdict: str = "{}") -> tuple[str, list[str]]:
    """Return a page with the present numbers in the rows of claims, and the rows of the claims that it has not.

    `verdict` is the form of a verdict.
    """
    lines, missing = page.splitlines(), []
    for row in claims.to_dict("records"):
        claim = f"| {row['claim']} |".replace("|D_FT|", r"\|D_FT\|")
        new = f"{claim} {row['measured']} | {row['criterion']} | {row['paper']} | {verdict.format(row['verdict'])} |"
        places = [i for i, line in enumerate(lines) if line.startswith(claim) and "(n = " in line]
        for place in places:
            lines[place] = new
        if not places:
            missing.append(new)
    return "\n".join([*lines, ""]), missing


def pretraining_tables(source: Source, runs: Path, table: str) -> dict[Path, pd.DataFrame]:
    """Return what is kept of PT runs, with those in a results folder, by file.

    On ECGs these are the candidates of searches and, of the first PT seeds, the displacements of warps; where PT tasks
    have permuted labels it is, of the first PT seeds, how well the weights find them.
    """
    found = {}
    if source.domain == "ecg":
        found = {arm: (each, CANDIDATE) for arm, each in candidates(runs, source.tables[table]).items()}
    if not table.endswith(_FURTHER) and source.domain == "ecg":
        found["warp"] = (warps(runs, source.tables[table]), WARP)
    if not table.endswith(_FURTHER) and source.problem:
        found["learned_weights"] = (found_tasks(runs, source), FOUND)
    folder = HERE / source.domain
    return {folder / f"{name}.csv": updated(folder / f"{name}.csv", *each) for name, each in found.items()}


def save_tables(name: str, table: str, folder: Path, new: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Add new FT runs to a table, with what else is kept of their PT runs in `folder`, and write the claims.

    Return the FT runs of the table and the claims. Raises DataError, as `claims_of`, and if the arms have different PT
    seeds. Nothing is written before all is read.
    """
    source, path = SOURCES[name], SOURCES[name].path(table)
    if source.problem:
        new.insert(0, PROBLEM, source.problem)
    whole = updated(path, new, [PROBLEM, *KEY] if source.problem else KEY)
    runs = whole[whole[PROBLEM] == source.problem].drop(columns=PROBLEM) if source.problem else whole
    seeds = runs.groupby("arm")["pretrain_seed"].unique().map(sorted).map(str)
    if seeds.nunique() > 1:
        raise DataError(f"arms of one table need the same PT seeds; they have {seeds.to_dict()}")
    claims = claims_of(name, [runs if each == table else source.read(each) for each in source.beside(table)])
    further = _FURTHER if table.endswith(_FURTHER) else ""
    written = {path: whole, HERE / "claims" / further / f"{name}.csv": claims}
    for file, rows in (written | pretraining_tables(source, folder, table)).items():
        rows.to_csv(file, index=False)
    return runs, claims


def save_figures(name: str, table: str, runs: pd.DataFrame) -> None:
    """Draw the FT runs of a table; on ECGs, of the second machine only the searches of the temperature."""
    source = SOURCES[name]
    if source.domain == "ecg" and table == _SECOND:
        tried = {arm: pd.read_csv(HERE / "ecg" / f"{arm}.csv") for arm in searches() if arm in set(runs["arm"])}
        seen = {arm: each[each["table"] == table] for arm, each in tried.items()}
        figures.save_png(learner_figure(seen, runs), HERE / "ecg" / "temperature_search.png")
        return
    stem = source.experiment if table == "first" else f"{source.experiment}-{table}"
    figures.save_png(source.record.figure(results_of(name, runs)), HERE / source.domain / f"{stem}.png")


def save_pages(domain: str, claims: pd.DataFrame) -> None:
    """Put claims into the page of their domain, and the paper's into the summary; print those that are not there."""
    of_the_paper = claims[claims["paper"] != BEYOND_THE_PAPER]
    for file, listed, verdict in ((f"{domain}.md", claims, "**{}**"), ("README.md", of_the_paper, "{}")):
        page, missing = with_claims((HERE / file).read_text(encoding="utf-8"), listed, verdict)
        (HERE / file).write_text(page, encoding="utf-8")
        print(f"Claims that are not in {file}:", *(missing or ["none"]), sep="\n")


def add(name: str, table: str, folder: Path) -> None:
    """Add the FT runs of an experiment in a results folder to a table; print what is to be put into pages by hand.

    Raises DataError if there are none, as `claims_of`, and as `save_tables`.
    """
    source = SOURCES[name]
    new = finished(folder, name)
    if new.empty:
        raise DataError(
            f"{folder}/{source.domain}/finetune has no FT run with {source.setting}; make some with snakemake"
        )
    runs, claims = save_tables(name, table, folder, new)
    for caption, block in source.record.tables(results_of(name, runs)).blocks.items():
        print(markdown(block.map(str), caption, {str(column): False for column in block.columns}))
    if not table.endswith(_FURTHER):
        save_figures(name, table, runs)
        save_pages(source.domain, claims)


def main() -> None:
    """Add the runs that the command line names; see the head of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=SOURCES)
    parser.add_argument("runs", type=Path, help="results folder of the runs, such as results/real-small")
    parser.add_argument("--table", default="first", help="which kind of table, as said above; default: %(default)s")
    arguments = parser.parse_args()
    name, table, source = arguments.experiment, arguments.table, SOURCES[arguments.experiment]
    if table not in source.tables:
        parser.error(f"{name} has no table {table!r}; legal: {', '.join(source.tables)}")
    try:
        add(name, table, arguments.runs)
    except DataError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
