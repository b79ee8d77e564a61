"""The page of results: it stands alone, says on which data, links each number, and a browser shows all of it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from metapt.engine import records
from metapt.errors import DataError
from metapt.evaluation import figures, metrics, page, tables
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, COLUMNS, OF_THE_PAPER
from metapt.evaluation.page import LEAST_SCALE, Arms
from metapt.evaluation.results import DIFFERENCES
from metapt.machine import Machine
from metapt.sections import PageDomain, PageExperiment, PageSettings

from .browser import CHROMIUM, Browser, browser

SCALE = "each.getBoundingClientRect().width / (each.viewBox.baseVal.width * 4 / 3)"
"""The size of a figure on the page, relative to that in print."""
METRIC = "absolute error of learned mean (degrees)"
WORDS = {"setting": "10 initialisations in [45,135], target 90"}


def record(path: Path, stage: str, processor: str = "a processor") -> Path:
    machine = {"name": processor, "device": "cpu"}
    words = {"machine": machine, "revision": "0123456789abcdef-dirty", "versions": {"torch": "2.6"}}
    records.write(path, {"stage": stage, "wall_time_s": 60.0, **words})
    return path


@cache
def picture() -> bytes:
    """Return a figure as SVG."""
    drawn, axes = figures.panels(2)
    axes[0].plot([0, 1], [0, 1], "o", label="meta")
    with figures.style():
        drawn.savefig(file := io.BytesIO(), format="svg")
    return file.getvalue()


def experiment(folder: Path, name: str, claims: int = 1) -> dict[str, Path]:
    """Write what the page reads of an experiment with two arms and two PT seeds."""
    own = folder / name.replace("_", "/", 1)
    found = {}
    for arm in ("meta", "k5"):
        for seed in (0, 1):
            run = f"pretrain/{arm}/seed{seed}"
            found[f"{name}/{run}/record"] = record(own / run / "run.json", "pretrain")
            rows = [metrics.row(name, arm, METRIC, 2.0 + seed, replicate=seed, **WORDS)]
            metrics.write(rows, path := own / run / "metrics.csv")
            found[f"{name}/{run}/metrics"] = path
    rows = [row for path in found.values() if path.name == "metrics.csv" for row in metrics.read_rows(path)]
    metrics.write(rows, own / "metrics.csv")
    pair = {"arm": "k5", "control": "meta", "metric": METRIC}
    claim = dict.fromkeys(COLUMNS, "") | pair | {"family": OF_THE_PAPER, "claim": "k5 beats <meta>"}
    claim |= {"experiment": name, "mean": 2.5, "standard_error": 0.5, "n": 2, "low": 1, "high": 4, "verdict": "found"}
    compared = dict.fromkeys(DIFFERENCES, "") | pair | WORDS | {"mean": 0.5, "standard_error": 0.1, "n": 2}
    for what, columns, rows in (("claims", COLUMNS, [claim] * claims), ("differences", DIFFERENCES, [compared])):
        pd.DataFrame(rows, columns=columns).to_csv(path := own / f"{what}.csv", index=False)
        found[f"{name}/{what}"] = path
    columns = {"arm": [f"arm {i}" for i in range(20)], "a number with a long name": [float(i) for i in range(20)]}
    table = pd.DataFrame(columns)
    tables.write_blocks({"A table, mean ± standard error": table}, own / "table", table)
    (own / "figure.svg").write_bytes(picture())
    (own / "figure.png").touch()
    found |= {f"{name}/table_{kind}": own / f"table.{kind}" for kind in ("md", "html")}
    found |= {f"{name}/figure_svg": own / "figure.svg", f"{name}/metrics": own / "metrics.csv"}
    return found | {f"{name}/record": record(own / "run.json", "summarise")}


def written_page(inputs: dict[str, Path], folder: Path, stand_in: bool, **domains: list[str]) -> str:
    """Write the page, and return its text."""

    def experiment(key: str) -> PageExperiment:
        arms = {"meta": "Learn it with <Algorithm 2>", "k5": "Learn it, as meta; unroll_steps: 5, not 1"}
        return PageExperiment(key=key, title=f"The table of {key}", figure=f"The figure of {key}", arms=arms)

    found = [
        PageDomain(
            name=name, title=name.upper(), source="some", stand_in=stand_in, experiments=[*map(experiment, keys)]
        )
        for name, keys in domains.items()
    ]
    outputs = {"metrics": "metrics.csv", "claims": "claims.csv", "headline": "headline.md", "page": "index.html"}
    page.run(PageSettings(domains=found), inputs, {name: folder / file for name, file in outputs.items()}, Machine())
    return (folder / "index.html").read_text()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page of two domains."""
    folder = tmp_path_factory.mktemp("some")
    inputs = experiment(folder, "mnist_rotation_mean") | experiment(folder, "mnist_bptt", 2)
    written_page(inputs | experiment(folder, "ecg_cost"), folder, True, mnist=["rotation_mean", "bptt"], ecg=["cost"])
    return folder / "index.html"


def test_the_page_needs_no_other_file_and_its_links_lead_somewhere(written: Path) -> None:
    text = written.read_text()
    assert re.findall(r'<(?:link|script|img|iframe|image)[^>]* (?:src|href)="', text) == []
    links = set(re.findall(r'href="([^"#]+)"', text))
    assert {"metrics.csv", "claims.csv", "headline.md", "ecg/cost/pretrain/k5/seed1/run.json"} <= links
    assert [link for link in links if not (written.parent / link).is_file()] == []


def test_tables_and_headline_have_all_experiments(written: Path) -> None:
    folder, names = written.parent, ["mnist_rotation_mean", "mnist_bptt", "ecg_cost"]
    assert list(metrics.read(folder / "metrics.csv")["experiment"]) == [name for name in names for _ in range(4)]
    assert pd.read_csv(folder / "claims.csv")["experiment"].tolist() == [*names[:2], *names[1:]]
    verdicts, *found = (folder / "headline.md").read_text().split("\n## ")
    assert verdicts.startswith("Claims, and what these runs say about them (4 found)")
    texts = [(folder / name.replace("_", "/", 1) / "table.md").read_text() for name in names]
    assert (verdicts.count("k5 beats"), *found) == (4, *map("{}\n\n{}".format, names, texts))


def test_the_page_says_what_was_run_and_on_which_data(written: Path, tmp_path: Path) -> None:
    text = written.read_text()
    assert f"Results in {written.parent.name}" in text
    assert "stand-in data" in text
    assert "real data" not in text
    assert "4 found" in text
    assert "12 pretrain" in text
    assert "together 12.0 min on" in text, "a minute each, without those that summarise"
    assert "0123456789-dirty" in text
    inputs = experiment(tmp_path, "mnist_rotation_mean", claims=0)
    text = written_page(inputs, tmp_path, False, mnist=["rotation_mean"])
    assert "real data" in text
    assert "stand-in" not in text.partition("<body>")[2]
    assert "No claims were tested." in text


def test_the_page_warns_of_runs_on_several_kinds_of_machines(written: Path, tmp_path: Path) -> None:
    warning = "compare arms that ran on the same kind"
    assert warning not in written.read_text()
    inputs = experiment(tmp_path, "mnist_rotation_mean")
    record(inputs["mnist_rotation_mean/pretrain/k5/seed1/record"], "pretrain", "another processor")
    text = written_page(inputs, tmp_path, True, mnist=["rotation_mean"])
    assert "on a processor (cpu), another processor (cpu)." in text
    assert warning in text


def test_the_numbers_of_a_pt_run_that_arms_share_stand_under_each_of_them(tmp_path: Path) -> None:
    inputs = experiment(tmp_path, "ecg_cost")
    shared = {name: inputs[name.replace("/k5/", "/meta/")] for name in inputs if "/k5/" in name}
    text = written_page(inputs | shared, tmp_path, True, ecg=["cost"])
    assert all(f">{arm}</abbr></td><td>{WORDS['setting']}</td>" in text for arm in ("meta", "k5"))
    assert "2 pretrain" in text, "each run counts once"


def test_each_number_leads_to_the_records_behind_it(written: Path) -> None:
    """Those of a claim and of a difference are the runs of the arm and of its control."""
    page = written.read_text()
    text = page.partition('id="ecg_cost"')[2]

    def behind(row: str) -> list[str]:
        [group] = re.findall(r'popovertarget="(\w+)"', row)
        [runs] = re.findall(rf'id="{group}">.*?</div>', page)
        return re.findall(r'href="([^"]+)"', runs)

    k5, meta = ([f"ecg/cost/pretrain/{arm}/seed{seed}/run.json" for seed in (0, 1)] for arm in ("k5", "meta"))
    [row] = re.findall(r">k5</abbr></td><td>10 init[^\n]*\n?[^\n]*2\.5 ± 0\.5.*?</tr>", text)
    assert behind(row) == k5
    [claim] = re.findall(r'<td class="claim">.*?</tr>', text, re.DOTALL)
    [difference] = re.findall(r">k5</abbr></td><td><abbr[^\n]*0\.50 ± 0\.10.*?</tr>", text)
    assert behind(claim) == behind(difference) == k5 + meta


def test_behind_a_difference_are_a_controls_runs_of_another_setting(written: Path) -> None:
    runs, where = page.Runs(written.parent), {arm: written.parent / f"{arm}.json" for arm in ("k5", "meta")}
    cells = pd.DataFrame({"arm": where.keys(), "setting": ["half", "full"], "record": map(str, where.values())})
    row = {"arm": "k5", "control": "meta", "setting": "half"}
    found = page._behind(cells.assign(metric="m", evaluation="e"), runs, written, row)
    assert found == runs.behind(where.values())
    assert page._behind(cells, runs, written, row | {"arm": "the best of several"}) == runs.behind([written])


def test_names_of_arms_are_explained_and_links_are_in_words(written: Path) -> None:
    text = written.read_text()
    assert '<td><abbr title="Learn it with &lt;Algorithm 2&gt;">meta</abbr></td>' in text
    assert '">k5</abbr> beats &lt;<abbr title="Learn it with &lt;Algorithm 2&gt;">meta</abbr>&gt;' in text
    assert '<a href="#mnist_rotation_mean" title="The table of rotation_mean">rotation mean</a>' in text
    assert "In these runs: arms: meta, k5; setting: 10 initialisations in [45,135], target 90." in text
    assert Arms({}).in_text("<meta>") == "&lt;meta&gt;"
    assert Arms({"meta": "m"}).in_text("meta-PT, a_meta") == "meta-PT, a_meta", "parts of other words"


def test_claims_of_the_paper_stand_before_those_beyond_it(tmp_path: Path) -> None:
    inputs = experiment(tmp_path, "ecg_cost", claims=2)
    claims = pd.read_csv(inputs["ecg_cost/claims"], keep_default_na=False)
    claims.loc[0, ["family", "claim"]] = [BEYOND_THE_PAPER, "an own claim"]
    claims.to_csv(inputs["ecg_cost/claims"], index=False)
    text = written_page(inputs, tmp_path, False, ecg=["cost"])
    assert text.index("beats &lt;") < text.index(">beyond the paper</th>") < text.index("an own claim")


def test_a_file_that_is_cut_or_missing_is_named(tmp_path: Path) -> None:
    inputs = experiment(tmp_path, "mnist_bptt")
    for name, message in {"record": r"bptt/run\.json is not the record", "claims": "is not a table of claims"}.items():
        inputs[f"mnist_bptt/{name}"].write_text("{")
        with pytest.raises(DataError, match=message):
            written_page(inputs, tmp_path, True, mnist=["bptt"])
    inputs["mnist_bptt/claims"].unlink()
    with pytest.raises(DataError, match=r"claims\.csv is missing"):
        written_page(inputs, tmp_path, True, mnist=["bptt"])


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [420, 1280, 1920])
def test_a_browser_shows_it_without_errors_and_overflow(tab: Browser, written: Path, width: int, dark: bool) -> None:
    tab.open(written, width, dark)
    tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert tab.errors == []
    assert tab.requests == [written.resolve().as_uri()]
    assert tab.evaluate(f"[...document.querySelectorAll('.figure svg')].every(each => {SCALE} >= {LEAST_SCALE} - 0.01)")
    assert tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    colour = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", colour))) < 3 * 128) == dark
    text = "document.querySelector('.figure [id*=matplotlib\\\\.axis] [id*=text] g')"
    assert tab.evaluate(f"getComputedStyle({text}).fill === getComputedStyle(document.body).color")


def test_long_tables_are_sorted(tab: Browser, written: Path) -> None:
    tab.open(written, 1280, dark=False)
    first = "document.querySelector('figure tbody td:nth-child(2)').textContent"
    head = "document.querySelector('figure th:nth-child(2)').click()"
    assert float(tab.evaluate(first)) == 0
    tab.evaluate(f"{head}; {head}")
    assert float(tab.evaluate(first)) == 19, "by number, not by letter"
    assert tab.errors == []
