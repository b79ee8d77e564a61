"""Write the tables of these pages from the CSV files beside them, between <!-- table: NAME --> and <!-- end -->.

python docs/results/render.py
"""

from __future__ import annotations

import math
import re
import runpy
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from pooled import COMPARISONS, FT, LINEAR, papers, pooled, runs, verdict

from metapt.evaluation import headroom_report
from metapt.evaluation.headroom import headroom
from metapt.evaluation.statistics import Estimate, estimate_mean
from metapt.evaluation.tables import paper_numbers
from metapt.twostage.quantities import EVALUATIONS

HERE = Path(__file__).parent
BANK = runpy.run_path(str(HERE.parents[1] / "benchmarks" / "truth_bank.py"))
MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
MINUS = str.maketrans("-", "\N{MINUS SIGN}")
LOST = " †"
"""Mark of a row that rests on runs that are not kept."""


def number(value: float) -> str:
    """Return a number as the pages have it."""
    decimals = 0 if abs(value) >= 100 else 1
    return f"{round(value, decimals) + 0.0:.{decimals}f}".translate(MINUS)


def spread(found: Estimate) -> str:
    """Return an estimate with its interval."""
    return f"{number(found.mean)} [{number(found.low)}, {number(found.high)}]"


def paper(row: Any) -> str:
    """Return the paper's number as the pages have it."""
    if ";" in row.paper:  # as it is given
        return row.paper.rstrip(";").replace(";", " ± ").translate(MINUS)
    mean, error = papers(row)
    if math.isnan(mean):
        return "–"
    return number(mean) + (f" ± {error:.1f}" if error > 0 else "")


def markdown(rows: Iterable[dict[str, str]]) -> str:
    """Return a table in Markdown."""
    lines = list(rows)
    cells = [list(lines[0]), ["---"] * len(lines[0]), *([*line.values()] for line in lines)]
    return "".join(f"|{'|'.join(map(str, line))}|\n" for line in cells)


def comparisons(table: str) -> str:
    """Return the comparisons of a domain; where there are two evaluations, they stand side by side."""
    heads = {FT: "FT", LINEAR: "linear"} if table in ("ecg", "ppi", "search") else {"": "ours", "pretraining": "ours"}
    lines: dict[str, dict[str, str]] = {}
    for index, row in COMPARISONS[COMPARISONS["table"] == table].iterrows():
        found, own = pooled(index), f"{heads[row.evaluation]} [95 %]"
        line = lines.setdefault(
            row.text, {"comparison": row.text + LOST * found.lost, "verdict": "", "n": str(found.n)}
        )
        line[own] = spread(found.shown()) + (f" (paper {paper(row)})" if row.paper else "")
        if word := verdict(index):
            word = f"{heads[row.evaluation]}: {word}" if table == "ppi" else word
            line["verdict"] = "; ".join(filter(None, [line["verdict"], word]))
    columns = ["comparison", *dict.fromkeys(f"{head} [95 %]" for head in heads.values()), "n", "verdict"]
    return markdown({key: line.get(key) or "–" for key in columns} for line in lines.values())


def answers() -> str:
    """Return the table of the summary."""
    chosen = COMPARISONS[COMPARISONS["summary"] != ""]
    return markdown(
        {
            "question": row.summary + LOST * pooled(index).lost,
            "ours [95 %]": spread(pooled(index).shown()),
            "n": str(pooled(index).n),
            "paper": paper(row),
            "verdict": verdict(index) or "–",
        }
        for index, row in chosen.iterrows()
    )


def size() -> str:
    """Return the table on the paper's size."""
    known = paper_numbers().query("experiment == 'ecg_full_access' and setting == 'ft_size=500'")
    known = known.set_index("arm")["paper_mean"]
    full, claims = runs("ecg/paper_size")["test"], pd.read_csv(HERE / "claims" / "ecg_paper_size.csv")
    small = pd.concat([runs("ecg/full_access"), runs("ecg/further-seeds")])["test"].sort_index()
    head = ["test AUROC (%)", "no PT", "SimCLR", "SimCLR − no PT [95 %]", "n"]
    (first,) = COMPARISONS.index[COMPARISONS["summary"] == "ECGs at width 8: SimCLR − no PT"]
    gain = paper(COMPARISONS.iloc[first])
    rows = [["FT, the paper", number(known["no_pt"]), number(known["simclr"]), gain, "3"]]
    for claim in claims.itertuples():
        levels = [number(full[claim.evaluation, arm].mean()) for arm in ("no_pt", "simclr")]
        words = f"{number(claim.mean)} [{number(claim.low)}, {number(claim.high)}]{LOST}"
        name = {FT: "FT", LINEAR: "linear"}[claim.evaluation]
        rows.append([f"{name}, ours at the paper's size", *levels, words, str(claim.n)])
    levels = [number(small[FT, arm].mean()) for arm in ("no_pt", "simclr")]
    rows.insert(2, ["FT, ours at width 8", *levels, spread(pooled(first).shown()), str(pooled(first).n)])
    return markdown(dict(zip(head, row, strict=True)) for row in rows)


FINETUNINGS = {
    "no_pt": "the paper's text (training mode, 256)",
    "no_pt-64": "training mode, 64",
    "no_pt-eval": "evaluation mode, 256",
    "no_pt-eval_64": "its released code (evaluation mode, 64)",
}
"""An arm without PT -> its FT."""


def released() -> str:
    """Return the table on FT without PT at the paper's size: that of the text, and its changes in the released code."""
    found = runs("ecg/paper_size-released_ft").loc[FT, "test"].unstack("arm")[list(FINETUNINGS)].dropna()
    known = paper_numbers().query("experiment == 'ecg_full_access' and setting == 'ft_size=500' and arm == 'no_pt'")
    rows = [
        [name, spread(estimate_mean(found[arm])), spread(estimate_mean(found[arm] - found["no_pt"])), str(len(found))]
        for arm, name in FINETUNINGS.items()
    ]
    rows[0][2] = "–"
    rows.append(["the paper", number(known["paper_mean"].item()), "–", "3"])
    head = ["FT without PT, at the paper's size", "test AUROC (%) [95 %]", "minus the text's [95 %]", "n"]
    return markdown(dict(zip(head, row, strict=True)) for row in rows)


def steps() -> str:
    """Return the table on SimCLR by width, PT steps of 256 and number of labelled ECGs."""
    rows = []
    cells = {"text's FT": (FT, ""), "released code's": (FT, "-eval_64"), "linear": (LINEAR, "")}
    for name, without, simclr in (
        ("8, 760", "width8-760_steps", "width8-760_steps"),
        ("8, 3,800", "width8-760_steps", "width8-3800_steps"),
        ("8, 3,800, 100 labels", "width8-labels:n100", "width8-labels:n100"),
        ("8, 3,800, 2,500 labels", "width8-labels:n2500", "width8-labels:n2500"),
        ("16, 760", "width16-760_steps", "width16-760_steps"),
        ("32, 760", "paper_size-released_ft", "width32-760_steps"),
    ):
        start, table = (runs(f"ecg/{each}")["test"].unstack("arm") for each in (without, simclr))
        row = {"width, PT steps": name, "no PT, text's FT [95 %]": spread(estimate_mean(start.loc[FT]["no_pt"]))}
        for head, (evaluation, end) in cells.items():
            known = evaluation in table.index and f"simclr{end}" in table
            gains = table.loc[evaluation][f"simclr{end}"] - start.loc[evaluation][f"no_pt{end}"] if known else None
            row[f"SimCLR − no PT, {head}"] = "–" if gains is None else spread(estimate_mean(gains))
        rows.append(row)
    return markdown(rows)


LABELS = {"full_access": "intact", "permuted_50": "50 % permuted", "permuted_90": "90 % permuted"}
PROBLEMS = {"mnist rotation": "MNIST", "ecg width 8": "ECGs"}
for _net in ("3x16", "4x64"):
    PROBLEMS |= {f"ppi {_net} {kind}": f"proteins {_net.replace('x', ' x ')}, {text}" for kind, text in LABELS.items()}
"""A problem of the headroom -> its name."""


def problem(cell: Any) -> str:
    """Return the name of a problem under its evaluation."""
    end = {FT: ", FT", LINEAR: ", linear"}[cell["evaluation"]] if cell["problem"].startswith("ecg") else ""
    return PROBLEMS[cell["problem"]] + end


def gains() -> str:
    """Return what the best of 24 settings gains on each problem."""
    rows = []
    for name in BANK["BANK"]:
        later = pd.read_csv(HERE / "confirmation" / f"{name}.csv")
        for grid in headroom_report.grids(headroom_report.read([HERE / "headroom" / f"{name}.csv"])):
            found = headroom(grid)
            own = later[(later["problem"] == grid.cell["problem"]) & (later["evaluation"] == grid.cell["evaluation"])]
            means = own.groupby(["setting", "pretrain_seed"])["test"].mean()
            known = [each for each in own["setting"].unique() if each != "reference"]
            further = spread(estimate_mean(means[known[0]] - means["reference"])) if known else "–"
            share = found.shares["settings"]
            rows.append({
                "problem": problem(grid.cell), "best on test [95 %]": spread(found.gain),
                "best on validation": spread(found.validated), "n": str(found.gain.n), "five further seeds": further,
                "settings explain (%)": f"{share.share:.0f} [{share.low:.0f}, {share.high:.0f}]",
            })  # fmt: skip
    return markdown(rows)


ESTIMATES = {
    ("Neumann 1, K = 1", 1): "the paper's",
    ("exact, K = 1", 1): "exact, 1 PT step",
    ("exact, K = 1", 100): "exact, 100 PT steps",
    ("exact, K = 1", 0): "exact, all PT steps",
    ("persistent ES, ridge head", 0): "persistent ES",
    ("secant", -1): "pairs of PT runs",
    ("perturbed runs", -1): "pairs of PT runs",
    ("linear fit to 12 runs", -1): "fit to 12 PT runs",
    ("one run of each setting", -1): "all settings once (ceiling)",
}
"""Estimate and how many PT steps it goes back -> its name; 0: all, -1: whole runs."""


@cache
def agreement() -> pd.DataFrame:
    """Return the share of right signs of `ESTIMATES` by problem, evaluation, name and PT seed, and their cost."""
    slopes = pd.concat([BANK["read"](HERE / "estimators" / f"{name}.csv") for name in BANK["BANK"]])
    bank = [grid for grid in BANK["truth"]() if grid.cell["problem"] in set(slopes["problem"])]
    found = pd.concat([BANK["scores"](slopes, bank), BANK["rivals"](bank)])
    steps = found["horizon"].where(found["horizon"] < found.groupby("problem")["horizon"].transform("max"), 0)
    steps = steps.where(found["horizon"].notna(), -1)
    secant = found["estimator"].str.startswith("secant, ")
    other = secant & (found["estimator"] != "secant, " + found["evaluation"].map(EVALUATIONS))
    names = zip(found["estimator"].where(~secant, "secant"), steps, strict=True)
    return found.assign(name=[ESTIMATES.get(each) for each in names])[~other].dropna(subset="name")


def signs() -> str:
    """Return the right signs of each estimate on each problem."""
    rows = []
    for name, part in sorted(agreement().groupby("name"), key=lambda each: [*ESTIMATES.values()].index(each[0])):
        low, high = part["cost"].min(), part["cost"].max()
        cost = f"{low:.2g}" if f"{low:.2g}" == f"{high:.2g}" else f"{low:.2g} to {high:.2g}"
        cells = {problem({"problem": key[0], "evaluation": key[1]}): f"{own.mean():.0f} ± {own.sem():.0f}"
                 for key, own in part.groupby(["problem", "evaluation"], sort=False)["signs"]}  # fmt: skip
        rows.append({"estimate": name, "PT runs": cost} | cells)
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return markdown({key: row.get(key, "–") for key in keys} for row in rows)


TABLES: dict[str, Callable[[], str]] = {
    "answers": answers,
    "size": size,
    "released": released,
    "steps": steps,
    "headroom": gains,
    "signs": signs,
}
TABLES |= {name: lambda name=name: comparisons(name) for name in COMPARISONS["table"].unique()}


def rendered(text: str) -> str:
    """Return a page with its tables made anew."""
    return MARKED.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", text)


if __name__ == "__main__":
    for page in sorted(HERE.glob("*.md")):
        page.write_text(rendered(page.read_text(encoding="utf-8")), encoding="utf-8")
