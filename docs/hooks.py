"""What the site does besides MkDocs, so that its pages read as well on GitHub.

- Pages that GitHub expects outside docs/ (`PAGES`) are pages of the site, too.
- A link to a page leads to the page of the site. One to another file of the repository leads to the repository, whose
  address is that in pyproject.toml; what is not there is a warning, and with --strict an error.
- In docs/reference/ an item of a list that is a link from a name to its module (`REFERENCE`) becomes the name's
  docstring.
- $formulas$ become MathML, which browsers show without a script.
"""

from __future__ import annotations

import html
import logging
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "index.md": "README.md",
    "config.md": "config/README.md",
    "benchmarks.md": "benchmarks/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "changelog.md": "CHANGELOG.md",
}
"""Page of the site -> file outside docs/."""

REFERENCE = re.compile(r"^- \[`(metapt[\w.]+)`\]\((\S+)\)$", flags=re.M)
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]*)(#[^)\s]*)?(?=\))")
_CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", flags=re.M | re.S)
_FORMULA = re.compile(r'(\(?)<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\2>([),.:;]*)', flags=re.S)
_DISPLAY = {"span": "inline", "div": "block"}

log = logging.getLogger("mkdocs.hooks")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Link to the repository in the footer. As `repo_url`, each page would ask GitHub for its stars."""
    config.extra["social"] = [{"icon": "fontawesome/brands/git-alt", "link": _repository(), "name": "the repository"}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/."""
    from mkdocs.structure.files import File

    for page, path in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links for the site, and names in the reference into docstrings."""
    here = page.file.src_uri
    if here == "index.md":
        page.meta["hide"] = ["navigation"]  # which would be this page alone
    if here.startswith("reference/"):
        markdown = REFERENCE.sub(r"::: \1", markdown)
    parts = _CODE.split(markdown)  # text and code in turn; a link's text may be code, its target is none
    for index in range(0, len(parts), 2):
        parts[index] = _LINK.sub(lambda link: _turned(link, here), parts[index])
    return "".join(parts)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn formulas into MathML."""
    from latex2mathml.converter import convert

    def mathml(found: re.Match[str]) -> str:
        before, tag, formula, after = found.groups()
        text = f"{before}{convert(html.unescape(formula).strip(), display=_DISPLAY[tag])}{after}"
        return f'<{tag} class="formula">{text}</{tag}>'

    return _FORMULA.sub(mathml, content)


def _turned(link: re.Match[str], here: str) -> str:
    """Return the target of a link on a page of the site."""
    target, anchor = link[1], link[2] or ""
    source = ROOT / PAGES.get(here, f"docs/{here}")
    path = Path(os.path.normpath(source.parent / target))
    if not path.exists() or ROOT not in [path, *path.parents]:
        log.warning("%s has a link to %s, which is not there", source.relative_to(ROOT), target)
        return link[0]
    name = path.relative_to(ROOT).as_posix()
    pages = {file: page for page, file in PAGES.items()}
    if name in pages or name.startswith("docs/"):
        there = pages.get(name, name.removeprefix("docs/"))
        return os.path.relpath(there, Path(here).parent) + anchor
    return f"{_repository()}/{'tree' if path.is_dir() else 'blob'}/main/{name}{anchor}"


def _repository() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Repository"])
