"""Add the FT runs of a results folder to the tables of this folder, and make claims, figure and tables from them.

After `snakemake ecg_full_access --configfile config/real-small.yaml`, or after some of its FT jobs:

    python docs/results/update.py ecg results/real-small

This writes `ecg/full_access.csv` (a row for each FT run), `claims/ecg_full_access.csv` and `ecg/full_access.png`, puts
the numbers of claims into the rows of `ecg.md` and `README.md`, and prints the tables of the page and the rows of
claims that are not there yet. An FT run that is already in the table keeps its place and gets the new numbers. An arm
that has only a part of the PT seeds so far is compared over these, and is not in the figure. With `--further`, for the
results of `config/ablations/further-seeds.yaml`, it writes `ecg/further-seeds.csv` and
`claims/further-seeds/ecg_full_access.csv`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pandas as pd

from metapt import registry
from metapt.config import load
from metapt.domains.ecg.quantities import CLASS_AUROCS
from metapt.evaluation import figures, metrics
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, Comparison, judge
from metapt.evaluation.experiment import Experiment
from metapt.evaluation.tables import markdown
from metapt.twostage.quantities import VALIDATION_AUROC
from metapt.twostage.replicates import SEEDS, pair
from metapt.twostage.results import TwoStageResults

HERE = Path(__file__).parent
KEY = ["evaluation", "arm", "pretrain_seed", "finetune_seed"]
SETTINGS = {"ecg": "ft_size=500", "ppi": "full_access"}


def experiment(domain: str) -> Experiment:
    """Return the experiment whose claims the pages show."""
    return registry.domain(domain).experiments["full_access"]


def results_class(domain: str) -> type[TwoStageResults]:
    """Return the class of its results."""
    return cast(type[TwoStageResults], experiment(domain).results)


def finished(runs: Path, domain: str) -> pd.DataFrame:
    """Return a row for each FT run in a results folder: `KEY`, validation, test, and on ECGs the AUROC by class."""
    table = metrics.read(sorted((runs / domain / "finetune").rglob("metrics.csv")))
    table = table[(table["setting"] == SETTINGS[domain]) & table["replicate"].notna()]
    names = {VALIDATION_AUROC: "validation", results_class(domain).auroc: "test"}
    names |= {long: short for short, long in CLASS_AUROCS.items()}
    wide = table[table["metric"].isin(names)].pivot(
        index=["evaluation", "arm", "replicate"], columns="metric", values="value"
    )
    wide = wide.rename(columns=names).reset_index()
    seeds = wide.pop("replicate").astype(int)
    return wide.assign(pretrain_seed=seeds // SEEDS, finetune_seed=seeds % SEEDS).round(4)


def updated(path: Path, new: pd.DataFrame) -> pd.DataFrame:
    """Return the table of FT runs at `path` with the rows of `new`, sorted, with the columns that it has."""
    old = pd.read_csv(path)
    both = pd.concat([old, new[list(old.columns)]]).drop_duplicates(KEY, keep="last")
    return both.sort_values(KEY).reset_index(drop=True)


def results_of(domain: str, runs: pd.DataFrame) -> TwoStageResults:
    """Return the results of the experiment `full_access` with the arms that have FT runs."""
    kind = results_class(domain)
    settings = getattr(load([HERE.parents[1] / "config" / "real-small.yaml"]), domain)
    section = settings.full_access
    name = f"{domain}_full_access"
    return kind(
        name=name,
        config=settings,
        section=section.model_copy(update={"arms": [arm for arm in section.arms if arm in set(runs["arm"])]}),
        words={},
        metrics=runs.assign(
            experiment=name,
            replicate=[pair(*seeds) for seeds in zip(runs["pretrain_seed"], runs["finetune_seed"], strict=True)],
            setting=SETTINGS[domain],
            metric=kind.auroc,
            value=runs["test"],
        ),
        series=pd.DataFrame(),
        machines={},
        files={},
    )


def by_seeds(domain: str, runs: pd.DataFrame) -> Iterator[tuple[TwoStageResults, list[Comparison]]]:
    """Yield the results with the same PT seeds of all arms, and the comparisons between arms that have just these.

    The results with most seeds come first.
    """
    seeds = runs.groupby("arm")["pretrain_seed"].agg(frozenset)
    shared = {a & b for a in set(seeds) for b in set(seeds)} - {frozenset()}
    for own in sorted(shared, key=len, reverse=True):
        arms = [arm for arm, known in seeds.items() if own <= known]
        results = results_of(domain, runs[runs["arm"].isin(arms) & runs["pretrain_seed"].isin(own)])
        found = experiment(domain).comparisons(results)
        yield results, [each for each in found if seeds[each.arm] & seeds.get(each.control, seeds[each.arm]) == own]


def claims_of(domain: str, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts on all claims, which are corrected together."""
    parts = list(by_seeds(domain, runs))
    return judge(parts[0][0].name, [each for _, comparisons in parts for each in comparisons])


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


def main() -> None:
    """Write the tables, put claims into the pages, and print what is to be put there by hand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("domain", choices=SETTINGS)
    parser.add_argument("runs", type=Path, help="results folder of the runs, such as results/real-small")
    parser.add_argument("--further", action="store_true", help="the runs are those of the further PT seeds")
    arguments = parser.parse_args()
    domain, place = arguments.domain, "further-seeds" if arguments.further else "full_access"
    rows = HERE / domain / f"{place}.csv"
    new = finished(arguments.runs, domain)
    if new.empty:
        parser.error(
            f"{arguments.runs}/{domain}/finetune has no FT run with {SETTINGS[domain]}; make some with snakemake"
        )
    runs = updated(rows, new)
    runs.to_csv(rows, index=False)
    claims = claims_of(domain, runs)
    folder = HERE / "claims" / ("further-seeds" if arguments.further else "")
    claims.to_csv(folder / f"{domain}_full_access.csv", index=False)
    for number, (results, comparisons) in enumerate(by_seeds(domain, runs)):
        if not number and not arguments.further:
            with tempfile.TemporaryDirectory() as temporary:
                figures.save(experiment(domain).figure(results), Path(temporary) / "figure")
                (HERE / domain / "full_access.png").write_bytes((Path(temporary) / "figure.png").read_bytes())
        if number:
            compared = {arm for each in comparisons for arm in (each.arm, each.control)}
            results = results_of(domain, results.metrics[results.metrics["arm"].isin(compared)])
        for caption, block in experiment(domain).tables(results).blocks.items():
            print(markdown(block.map(str), caption, {str(column): False for column in block.columns}))
    if arguments.further:
        return
    of_the_paper = claims[claims["paper"] != BEYOND_THE_PAPER]
    for path, listed, verdict in ((f"{domain}.md", claims, "**{}**"), ("README.md", of_the_paper, "{}")):
        page, missing = with_claims((HERE / path).read_text(encoding="utf-8"), listed, verdict)
        (HERE / path).write_text(page, encoding="utf-8")
        print(f"Claims that are not in {path}:", *(missing or ["none"]), sep="\n")


if __name__ == "__main__":
    main()
