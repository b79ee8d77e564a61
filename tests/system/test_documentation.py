"""The site has every page, the reference every public name, and the page of the command every argument."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import metapt
import metapt.hypergrad
from metapt.cli import parser

from ..unit.evaluation.browser import CHROMIUM, browser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    return _hooks()


def _hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FITS = "[...document.querySelectorAll('pre, pre > code')].every(each => each.scrollWidth <= each.clientWidth)"

REFERENCE = [
    (page, name, target)
    for page in sorted((DOCS / "reference").glob("*.md"))
    for name, target in _hooks().REFERENCE.findall(page.read_text(encoding="utf-8"))
]


def test_every_page_is_in_the_navigation(hooks: ModuleType) -> None:
    shown = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.M)
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert sorted(shown) == sorted(pages | hooks.PAGES.keys())
    for file in hooks.PAGES.values():
        assert (ROOT / file).is_file()


@pytest.mark.parametrize(
    ("page", "link", "turned"),
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
def test_links_lead_to_pages_of_the_site(hooks: ModuleType, page: str, link: str, turned: str) -> None:
    assert hooks.on_page_markdown(link, _Page(page), None, None) == turned


def test_links_to_other_files_lead_to_the_repository(hooks: ModuleType) -> None:
    turned = hooks.on_page_markdown("[a](../src/metapt/cli.py), [b](../LICENSE)", _Page("method.md"), None, None)
    assert re.fullmatch(r"\[a\]\((https://\S+)/blob/main/src/metapt/cli\.py\), \[b\]\(\1/blob/main/LICENSE\)", turned)


def test_a_link_to_nowhere_is_a_warning(hooks: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    hooks.on_page_markdown("[a](gone.md)", _Page("method.md"), None, None)
    assert "docs/method.md has a link to gone.md, which is not there" in caplog.text


def test_items_of_the_reference_lead_to_docstrings_and_say_what_they_are(hooks: ModuleType) -> None:
    item = "- [`metapt.hypergrad.Neumann`](../../src/metapt/hypergrad/inverse.py)"
    turned = hooks.on_page_markdown(item, _Page("reference/hypergrad.md"), None, None)
    link, _, sentence = turned.partition(": ")
    assert link == "- [`metapt.hypergrad.Neumann`][metapt.hypergrad.inverse.Neumann]"
    assert sentence == (metapt.hypergrad.Neumann.__doc__ or "").splitlines()[0]


def test_formulas_become_mathml(hooks: ModuleType) -> None:
    pytest.importorskip("latex2mathml")
    shown = hooks.on_page_content(r'(<span class="arithmatex">\(a &lt; b\)</span>).', None, None, None)
    assert re.fullmatch(r'<span class="formula">\(<math .*</math>\)\.</span>', shown)
    assert "<mo>&lt;</mo>" in shown.replace("&#x0003C;", "&lt;")


class _Page:
    """What the hooks need of MkDocs' page."""

    def __init__(self, path: str) -> None:
        self.file = argparse.Namespace(src_uri=path)
        self.meta: dict[str, Any] = {}


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


@pytest.mark.slow
def test_the_site_is_built_and_fits_its_windows(tmp_path: Path) -> None:
    """No warning, no code among its files; in a browser, read from disk: no script error, no request to a server.

    Nothing is wider than the window, and no block of code scrolls sideways.
    """
    pytest.importorskip("material", reason="the site needs the extra docs")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [path for path in site.rglob("*") if path.suffix in (".py", ".pyc")] == []
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with browser(tmp_path / "profile") as tab:
        for page in sorted(set(site.rglob("*.html")) - {site / "404.html"}):  # which only a server shows
            for width in (420, 1280):
                tab.open(page, width, dark=False)
                assert tab.errors == [], page
                assert [url for url in tab.requests if not url.startswith("file:")] == [], page
                assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (page, width)
                assert tab.evaluate(FITS), (page, width)
