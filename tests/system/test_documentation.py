"""The site has every page, the reference every public name, and the page of the command every argument."""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import metapt
import metapt.hypergrad
from metapt.cli import parser

from ..unit.evaluation.browser import CHROMIUM, browser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


HOOKS: dict[str, Any] = runpy.run_path(str(DOCS / "hooks.py"))
FITS = "[...document.querySelectorAll('pre, pre > code')].every(each => each.scrollWidth <= each.clientWidth)"

REFERENCE = [
    (page, name, target)
    for page in sorted((DOCS / "reference").glob("*.md"))
    for name, target in HOOKS["REFERENCE"].findall(page.read_text(encoding="utf-8"))
]


def test_every_page_is_in_the_navigation() -> None:
    shown = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.M)
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert sorted(shown) == sorted(pages | HOOKS["PAGES"].keys())
    assert all((ROOT / file).is_file() for file in HOOKS["PAGES"].values())


def turned(markdown: str, page: str) -> str:
    """Return what the hook makes of a page's text; it needs only these two attributes of MkDocs' page."""
    page_of_mkdocs = argparse.Namespace(file=argparse.Namespace(src_uri=page), meta={})
    return str(HOOKS["on_page_markdown"](markdown, page_of_mkdocs, None, None))


@pytest.mark.parametrize(
    ("page", "link", "result"),
    [
        ("index.md", "[a](docs/method.md)", "[a](method.md)"),
        ("index.md", "[a](config/README.md#arms)", "[a](config.md#arms)"),
        ("method.md", "[a](../config/README.md)", "[a](config.md)"),
        ("config.md", "[a](../docs/results/mnist.md)", "[a](results/mnist.md)"),
        ("reference/cli.md", "[`a`](../without-snakemake.md)", "[`a`](../without-snakemake.md)"),
        ("reference/cli.md", "[a](../../README.md)", "[a](../index.md)"),
        ("method.md", "[a](#the-loop), [b](https://example.org/x.md)", "[a](#the-loop), [b](https://example.org/x.md)"),
        ("method.md", "`[a](../README.md)`", "`[a](../README.md)`"),
    ],
)
def test_links_lead_to_pages_of_the_site(page: str, link: str, result: str) -> None:
    assert turned(link, page) == result


def test_links_to_other_files_lead_to_the_repository() -> None:
    links = turned("[a](../src/metapt/cli.py), [b](../LICENSE)", "method.md")
    assert re.fullmatch(r"\[a\]\((https://\S+)/blob/main/src/metapt/cli\.py\), \[b\]\(\1/blob/main/LICENSE\)", links)


def test_a_link_to_nowhere_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    turned("[a](gone.md)", "method.md")
    assert "docs/method.md has a link to gone.md, which is not there" in caplog.text


def test_items_of_the_reference_lead_to_docstrings_and_say_what_they_are() -> None:
    item = "- [`metapt.hypergrad.Neumann`](../../src/metapt/hypergrad/inverse.py)"
    link, _, sentence = turned(item, "reference/hypergrad.md").partition(": ")
    assert link == "- [`metapt.hypergrad.Neumann`][metapt.hypergrad.inverse.Neumann]"
    assert sentence == (metapt.hypergrad.Neumann.__doc__ or "").splitlines()[0]


def test_formulas_become_mathml() -> None:
    pytest.importorskip("latex2mathml")
    shown = HOOKS["on_page_content"](r'(<span class="arithmatex">\(a &lt; b\)</span>).', None, None, None)
    assert re.fullmatch(r'<span class="formula">\(<math .*</math>\)\.</span>', shown)
    assert "<mo>&lt;</mo>" in shown.replace("&#x0003C;", "&lt;")


def test_the_reference_has_every_public_name() -> None:
    names = {name for _, name, _ in REFERENCE}
    assert len(names) == len(REFERENCE)
    assert {f"metapt.{name}" for name in metapt.__all__} <= names
    assert {f"metapt.hypergrad.{name}" for name in metapt.hypergrad.__all__} <= names


@pytest.mark.parametrize(("page", "name", "target"), REFERENCE, ids=[name for _, name, _ in REFERENCE])
def test_a_name_of_the_reference_is_there_and_explained(page: Path, name: str, target: str) -> None:
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    source = (page.parent / target).resolve()
    assert re.search(rf"^(class|def) {attribute}\b|^{attribute} = ", source.read_text(encoding="utf-8"), flags=re.M)
    if inspect.isclass(found) or inspect.isfunction(found):
        assert Path(inspect.getfile(inspect.unwrap(found))) == source
        assert not (found.__doc__ or f"{attribute}(").startswith(f"{attribute}("), f"{name} has no docstring"
    else:
        text = source.read_text(encoding="utf-8")
        assert re.search(rf'^{attribute} = .*\n"""', text, flags=re.M), f"{name} has no docstring"


def test_the_page_of_the_command_has_every_argument() -> None:
    text = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    sections = {part.split("\n")[0]: part for part in text.split("\n## ")[1:]}
    commands = next(each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    assert [*sections] == [f"metapt {name}" for name in commands.choices]
    for each in commands._choices_actions:
        section = sections[f"metapt {each.dest}"]
        assert f"{str(each.help)[0].upper()}{str(each.help)[1:]}." in section
        shown = re.findall(r"^\| `.*$", section, flags=re.M)
        assert shown == list(_rows(commands.choices[each.dest]))


def _rows(command: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the row of each argument."""
    for action in command._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        value = action.metavar or (f"{{{','.join(action.choices)}}}" if action.choices else "")
        names = [", ".join(action.option_strings), str(value), "…" if action.nargs == "+" else ""]
        yield f"| `{' '.join(filter(None, names))}` | {action.help or 'config files'} |"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (make site builds the site without it)")
def test_the_site_fits_its_windows(tmp_path: Path) -> None:
    """In a browser, read from disk: no script error, no request to a server, nothing wider than the window."""
    pytest.importorskip("material", reason="the site needs the extra docs")
    site, environment = tmp_path / "site", os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with browser(tmp_path / "profile") as tab:
        for page in sorted(set(site.rglob("*.html")) - {site / "404.html"}):  # which only a server shows
            for width in (420, 1280):
                tab.open(page, width, dark=False)
                assert tab.errors == [], page
                assert [url for url in tab.requests if not url.startswith("file:")] == [], page
                assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (page, width)
                assert tab.evaluate(FITS), (page, width)
