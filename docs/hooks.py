"""What the site does besides MkDocs, so that its pages read as well on GitHub.

- Pages that GitHub expects outside docs/ (`PAGES`) are pages of the site, too.
- A link to a page leads to the page of the site. One to another file of the repository leads to the repository, whose
  address is that in pyproject.toml; what is not there is a warning, and with --strict an error. As long as the address
  has a placeholder, such a link leads to the file in the clone, and no page links to the repository itself.
- Each module of `PACKAGES` has a page, below the page of its package. In docs/reference/ an item of a list that is a
  link from a name to its module (`REFERENCE`) leads to the name on that page, and has its first sentence beside it.
- $formulas$ become MathML, which browsers show without a script.
- The drawing of the method stands in the page itself, so that its colours follow the page's.
"""

from __future__ import annotations

import ast
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

PACKAGES = {
    "reference/hypergrad.md": ("hypergrad", "hypergrad/layers"),
    "reference/training.md": ("training",),
}
"""Page of the site -> packages whose modules have pages below it; so have the other modules that the page names."""

REFERENCE = re.compile(r"^- \[`(metapt[\w.]+)`\]\((\S+)\)$", flags=re.M)
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]*)(#[^)\s]*)?(?=\))")
_CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", flags=re.M | re.S)
_FORMULA = re.compile(r'(\(?)<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\2>([),.:;]*)', flags=re.S)
_DRAWING = re.compile(r'<img [^>]*src="pictures/method\.svg"[^>]*>')
_PLACEHOLDER = "OWNER"
_DISPLAY = {"span": "inline", "div": "block"}

log = logging.getLogger("mkdocs.hooks")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the modules into the navigation, and a link to the repository into the footer.

    As `repo_url`, each page would ask GitHub for its stars.
    """
    for section in config.nav or []:
        for entries in section.values():
            for entry in entries if isinstance(entries, list) else []:
                for title, page in entry.items() if isinstance(entry, dict) else ():
                    if page in PACKAGES:
                        below = ({_short(module): _page_of(module)} for module in _modules(page))
                        entry[title] = [{"Overview": page}, *below]
    if _PLACEHOLDER not in _repository():
        link = {"icon": "fontawesome/brands/git-alt", "link": _repository(), "name": "the repository"}
        config.extra["social"] = [link]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/, and those of the modules."""
    from mkdocs.structure.files import File

    for page, path in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    for index in PACKAGES:
        for module in _modules(index):
            text = f"# {module}\n\n::: {module}\n"
            files.append(File.generated(config, _page_of(module), content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links for the site, and names in the reference into docstrings."""
    here = page.file.src_uri
    if here == "index.md":
        page.meta["hide"] = ["navigation"]  # which would be this page alone
    if here.startswith("reference/"):
        markdown = REFERENCE.sub(_described, markdown)
    parts = _CODE.split(markdown)  # text and code in turn; a link's text may be code, its target is none
    for index in range(0, len(parts), 2):
        parts[index] = _LINK.sub(lambda link: _turned(link, here), parts[index])
    return "".join(parts)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn formulas into MathML, and put the drawing into the page."""
    from latex2mathml.converter import convert

    def mathml(found: re.Match[str]) -> str:
        before, tag, formula, after = found.groups()
        text = f"{before}{convert(html.unescape(formula).strip(), display=_DISPLAY[tag])}{after}"
        return f'<{tag} class="formula">{text}</{tag}>'

    drawing = (ROOT / "docs" / "pictures" / "method.svg").read_text(encoding="utf-8")
    return _DRAWING.sub(lambda _: f'<span class="drawing">{drawing}</span>', _FORMULA.sub(mathml, content))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Lead to the clone as long as the repository has no address."""
    if _PLACEHOLDER not in _repository():
        return output
    here = (Path(config.site_dir) / page.file.dest_uri).parent
    return re.sub(rf"{re.escape(_repository())}/(?:blob|tree)/main", os.path.relpath(ROOT, here), output)


def _modules(index: str) -> list[str]:
    """Return the modules whose pages are below a page of the reference."""
    source = ROOT / "src" / "metapt"
    paths = [path for package in PACKAGES[index] for path in sorted((source / package).glob("[!_]*.py"))]
    named = REFERENCE.findall((ROOT / "docs" / index).read_text(encoding="utf-8"))
    paths += [Path(os.path.normpath(ROOT / "docs" / "reference" / target)) for _, target in named]
    return [_module(path) for path in dict.fromkeys(paths)]


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)


def _page_of(module: str) -> str:
    return f"reference/{module.removeprefix('metapt.').replace('.', '/')}.md"


def _short(module: str) -> str:
    return re.sub(r"^metapt\.(hypergrad\.|training\.)?", "", module)


def _described(item: re.Match[str]) -> str:
    """Return an item of the reference as a link to the name's docstring, with the first sentence of that."""
    name, target = item.groups()
    path = Path(os.path.normpath(ROOT / "docs" / "reference" / target))
    short = name.rpartition(".")[2]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = next((node for node in tree.body if getattr(node, "name", None) == short), None)
    text = ast.get_docstring(found) if isinstance(found, ast.ClassDef | ast.FunctionDef) else None
    sentence = f": {text.partition(chr(10))[0]}" if text else ""
    return f"- [`{name}`][{_module(path)}.{short}]{sentence}"


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
