"""What a workflow has found, in tables and on a page: one HTML file with its figures and styles inside."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from metapt.engine import records
from metapt.evaluation import comparisons, figures, metrics
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, counts
from metapt.evaluation.metrics import CELL
from metapt.evaluation.results import DIFFERENCES, rows_of
from metapt.evaluation.statistics import summarise
from metapt.evaluation.tables import markdown, mean_and_error, number, read_texts
from metapt.files import atomic_path, reading
from metapt.machine import Machine
from metapt.sections import PageDomain, PageExperiment, PageSettings

DOCS = Path(__file__).parents[3] / "docs"
"""The documentation, where the package lies in a clone of the repository."""
PAGES = {
    "tutorial.md": "the first run and what one sees",
    "method.md": "the method",
    "runs-and-files.md": "files, claims and verdicts",
    "ablation.md": "an ablation of your own",
}
"""Pages of the documentation that the page links, with what they hold."""
CLAIM = ["experiment", "claim", "measured", "criterion", "paper", "verdict"]
"""Columns of the claims in the headline."""
COLOURS = {
    figures.INK.lower(): "ink", figures.QUIET.lower(): "quiet", figures.LINES.lower(): "line", "#ffffff": "paper",
}  # fmt: skip
"""Colours of figures that are those of the page, by the names of the page's variables."""
MOST_NAMES = 8
"""Number of names that a caption gives; of more it gives the number."""

SVG, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
LEAST_SCALE = 0.75
"""Size below which a page does not shrink a figure, so that a text of 10 points keeps 10 pixels; it scrolls instead."""

ET.register_namespace("", SVG[1:-1])
ET.register_namespace("xlink", XLINK[1:-1])

Json = dict[str, Any]


def run(settings: PageSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Write the tables of all experiments and the page. Raises DataError if an input is not what its name says.

    Args:
        settings: the domains and their experiments.
        inputs: `{experiment}/metrics`, `{experiment}/claims`, `{experiment}/differences`, `{experiment}/table_md`,
            `{experiment}/table_html`, `{experiment}/figure_svg` and `{experiment}/record` of each experiment;
            `{experiment}/{run}/metrics` and `{experiment}/{run}/record` of each run that it reads.
        outputs: `metrics`, `claims`: those of all experiments; `headline`: Markdown with all claims, then the tables of
            each experiment; `page`, whose links to records and tables are relative.
        machine: not used.
    """
    _write_tables([f"{each.name}_{one.key}" for each in settings.domains for one in each.experiments], inputs, outputs)
    runs = Runs(outputs["page"].parent)
    domains = [
        each.model_dump() | {"experiments": [_experiment(each, one, inputs, runs) for one in each.experiments]}
        for each in settings.domains
    ]
    docs = {runs.address(DOCS / file): what for file, what in PAGES.items() if (DOCS / file).is_file()}
    verdicts = [claim["verdict"] for each in domains for one in each["experiments"] for claim in one["claims"]]
    shown: Json = {"results": outputs["page"].parent.name, "domains": domains, "docs": docs, "groups": runs.groups}
    shown |= {"counts": counts(verdicts), "ran": _ran(inputs)}
    shown |= {"number": number, "ends": _ends, "beyond": BEYOND_THE_PAPER}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = (resources.files("metapt.evaluation") / "page.html").read_text(encoding="utf-8")
    with atomic_path(outputs["page"]) as path:
        path.write_text(environment.from_string(template).render(shown), encoding="utf-8")


def _write_tables(experiments: Sequence[str], inputs: Mapping[str, Path], outputs: Mapping[str, Path]) -> None:
    metrics.write(metrics.read([inputs[f"{experiment}/metrics"] for experiment in experiments]), outputs["metrics"])
    parts = [read_texts(inputs[f"{experiment}/claims"], comparisons.COLUMNS, "claims") for experiment in experiments]
    claims = pd.concat(parts, ignore_index=True)
    with atomic_path(outputs["claims"]) as path:
        claims.to_csv(path, index=False)
    found = ", ".join(f"{count} {verdict}" for verdict, count in counts(claims["verdict"]).items()) or "none"
    caption = f"Claims, and what these runs say about them ({found})"
    blocks = [markdown(claims[CLAIM].map(str), caption, dict.fromkeys(CLAIM, False))]
    blocks += [f"## {name}\n\n{_content(inputs[f'{name}/table_md']).decode()}" for name in experiments]
    with atomic_path(outputs["headline"]) as path:
        path.write_text("\n".join(blocks), encoding="utf-8")


def _content(path: Path) -> bytes:
    """Return what a file of an experiment holds. Raises DataError if it can't be read."""
    with reading(path, "run snakemake again") as file:
        return file.read()


class Runs:
    """The records behind numbers. Each group of records is kept once, so that many numbers can refer to it."""

    def __init__(self, root: Path) -> None:
        self.root = root  # folder of the page
        # addresses of records, relative to the page -> number of the group
        self.groups: dict[tuple[str, ...], int] = {}

    def behind(self, records: Iterable[Path]) -> tuple[str, ...]:
        """Return the addresses of records, as a group that is known from now on."""
        group = tuple(sorted({self.address(path) for path in records}))
        self.groups.setdefault(group, len(self.groups))
        return group

    def address(self, path: Path) -> str:
        """Return the address of a file relative to the page."""
        return Path(os.path.relpath(path, self.root)).as_posix()


def _experiment(domain: PageDomain, experiment: PageExperiment, inputs: Mapping[str, Path], runs: Runs) -> Json:
    """Return what the template shows of an experiment."""
    name = f"{domain.name}_{experiment.key}"
    own = {key.removeprefix(f"{name}/"): path for key, path in inputs.items() if key.startswith(f"{name}/")}
    cells = _cells(name, own)
    claims = read_texts(own["claims"], comparisons.COLUMNS, "claims").to_dict("records")
    compared = read_texts(own["differences"], DIFFERENCES, "differences").to_dict("records")
    behind, arms = partial(_behind, cells, runs, own["record"]), Arms(experiment.arms)
    return {
        "name": name,
        "short": experiment.key.replace("_", " "),
        "title": experiment.title,
        "caption": f"{experiment.figure or experiment.title}. {_shown(cells)}",
        "figure": Markup(figure_inside(own["figure_svg"], name, COLOURS)),
        "tables": arms.in_cells(_content(own["table_html"]).decode()),
        "claims": [row | {"behind": behind(row)} for row in claims],
        "counts": counts(row["verdict"] for row in claims),
        "numbers": list(_numbers(cells, runs)),
        "differences": [row | {"behind": behind(row)} for row in compared],
        "record": runs.address(own["record"]),
        "folder": runs.address(own["record"].parent),
        "arm": arms.in_text,
    }


class Arms:
    """The arms of an experiment, which a page explains where one points at their names."""

    def __init__(self, explained: Mapping[str, str]) -> None:
        self._explained = explained  # what an arm is, by its name or label
        names = "|".join(re.escape(escape(name)) for name in sorted(explained, key=len, reverse=True))
        self._names = f"(?:{names or '(?!)'})"  # without a name nothing matches

    def in_text(self, text: str) -> Markup:
        """Return a text as HTML, with each name of an arm explained."""
        return self._with_abbr(rf"(?<![\w-]){self._names}(?![\w-])", str(escape(text)))

    def in_cells(self, html: str) -> Markup:
        """Return a table in HTML, with each cell that is the name of an arm explained."""
        return self._with_abbr(rf"(?<=<td>){self._names}(?=</td>)", html)

    def _with_abbr(self, pattern: str, html: str) -> Markup:
        def abbr(found: re.Match[str]) -> str:
            return f'<abbr title="{escape(self._explained[Markup(found[0]).unescape()])}">{found[0]}</abbr>'

        return Markup(re.sub(pattern, abbr, html))


def _shown(cells: pd.DataFrame) -> str:
    """Return what the runs of an experiment hold, in words: its arms and settings.

    So a caption says that there is one number of labelled examples where the config has one.
    """
    words = []
    for column, what in (("arm", "arms"), ("setting", "settings")):
        found = [str(each).replace("_", " ") for each in cells[column].unique() if each]
        if found:
            names = ", ".join(found) if len(found) <= MOST_NAMES else f"{len(found)}"
            words.append(f"{what if len(found) > 1 else what.removesuffix('s')}: {names}")
    return f"In these runs: {'; '.join(words)}." if words else ""


def _ends(row: Mapping[str, str]) -> str:
    """Return the interval of a claim or a difference in words; empty if it has none."""
    if not row["low"]:
        return ""
    return " to ".join(comparisons.like_mean(float(row[end]), float(row["standard_error"])) for end in ("low", "high"))


def _cells(name: str, own: Mapping[str, Path]) -> pd.DataFrame:
    """Return the metrics table of an experiment's runs, with the `record` that each number comes from."""
    parts = [
        metrics.validate(rows_of(run, own[f"{run}/metrics"])).assign(experiment=name, record=str(own[f"{run}/record"]))
        for run in (key.removesuffix("/metrics") for key in own if key.endswith("/metrics"))
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*metrics.COLUMNS, "record"])


def _behind(cells: pd.DataFrame, runs: Runs, own: Path, row: Mapping[Any, Any]) -> tuple[str, ...]:
    """Return the records behind a claim or a difference: of its arm's and control's runs, or else of the experiment.

    A control may have runs of another setting only, as that of an arm with half of the FT data.
    """
    found: list[Path] = []
    for arm in (row["arm"], row["control"]) if row["arm"] in set(cells["arm"]) else ():
        part = cells[cells["arm"] == arm]
        for column in ("metric", "evaluation", "setting"):
            same = part[column] == row.get(column, "")
            part = part[same] if row.get(column) and same.any() else part
        found += map(Path, part["record"])
    return runs.behind(found or [own])


def _numbers(cells: pd.DataFrame, runs: Runs) -> Iterator[Json]:
    """Yield each number of an experiment: its mean over replicates, and the records behind it."""
    records = {key: map(Path, part["record"]) for key, part in cells.groupby(CELL, sort=False, dropna=False)}
    for row in summarise(cells).to_dict("records"):
        yield {column: row[column] for column in (*CELL, "n")} | {
            "text": mean_and_error(row["mean"], row["standard_error"]),
            "behind": runs.behind(records[tuple(row[column] for column in CELL)]),
        }


def _ran(inputs: Mapping[str, Path]) -> Json:
    """Return how many jobs have trained by stage, their minutes, machines, revisions and versions of torch."""
    paths = sorted({path for key, path in inputs.items() if key.endswith("/record")})
    trained = [record for record in map(records.read, paths) if record["stage"] != "summarise"]
    return {
        "stages": Counter(record["stage"] for record in trained),
        "minutes": sum(record["wall_time_s"] for record in trained) / 60,
        "machines": sorted({f"{record['machine']['name']} ({record['machine']['device']})" for record in trained}),
        "revisions": sorted({re.sub("^([^-]{10})[^-]*", r"\1", record["revision"] or "unknown") for record in trained}),
        "torch": sorted({record["versions"]["torch"] for record in trained}),
    }


def figure_inside(path: Path, name: str, colours: dict[str, str]) -> str:
    """Return the figure in a file as an element for a page, as wide as in print where the page has room.

    Its ids start with `name`, since all figures of a page share one space of ids. Those of its `colours` that have a
    name of the page's (`var(--{name})`) take it; others are mixed with white as the page's `--keep` says, so that they
    can be seen on a dark page.
    """

    def mixed(colour: str) -> str:
        return f"var(--{colours[colour]})" if colour in colours else f"color-mix(in srgb, {colour} var(--keep), white)"

    root = ET.fromstring(_content(path))
    for parent in root.iter():
        for child in [each for each in parent if each.tag in (f"{SVG}metadata", f"{SVG}style")]:
            parent.remove(child)
    for element in root.iter():
        for key, value in element.items():
            if key == "id":
                element.set(key, f"{name}-{value}")
            elif key == f"{XLINK}href" and value.startswith("#"):
                element.set(key, f"#{name}-{value[1:]}")
            elif key in ("style", "clip-path"):
                value = value.replace("url(#", f"url(#{name}-")
                element.set(key, re.sub(r"#[0-9a-f]{6}\b", lambda found: mixed(found[0]), value))
    width = 4 / 3 * float(root.get("viewBox", "0 0 480 330").split()[2])  # from points to pixels
    for key in ("width", "height"):
        root.attrib.pop(key, None)
    root.set("id", f"{name}-figure")
    root.set("style", f"width: {width:.0f}px; max-width: 100%; min-width: {LEAST_SCALE * width:.0f}px")
    return ET.tostring(root, encoding="unicode")
