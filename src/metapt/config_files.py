"""Strict reading and merging of config files; the file and line of each key are kept."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from metapt.errors import ConfigError, MetaptError
from metapt.files import regular
from metapt.machine import find_caches

Keys = tuple[str, ...]
Places = dict[Keys, str]
"""Where keys are written, such as "k5.yaml, line 3", by the names of the keys from the outermost to the innermost."""

_MOST_BYTES = 1 << 20
_MOST_VALUES = 100_000  # an alias counts as all values that it stands for; far more than any config has
_MERGE = "tag:yaml.org,2002:merge"
_DATE = "tag:yaml.org,2002:timestamp"
_ODD_NUMBER = re.compile(r"[-+]?(0[0-9_]+(\.[0-9_]*)?(e[-+]?[0-9]+)?|[0-9_]+(:[0-9]+)+(\.[0-9_]*)?)", re.IGNORECASE)
"""Numbers that YAML 1.1 reads to base 8 (010) or 60 (1:30), and those that look like them (08)."""


def read(paths: Sequence[Path], changes: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], Places]:
    """Return the content of config files, each merged into the ones before it, and where each key is written.

    `changes`, of the command line (`--config`), are merged last. Raises ConfigError if a file can't be read, is not
    YAML, is not a section or has a key twice, or no file has `results`.
    """
    merged: dict[str, Any] = {}
    places: Places = {}
    for path in paths:
        content = _File(path).content(places)
        _overlay(merged, content)
    if changes:
        _overlay(merged, changes)
        _place(changes, (), "--config", places)
    if "results" not in merged:
        names = " ".join(_short(path) for path in paths)
        raise ConfigError(
            f"{names} does not say where results go (`results`), so it only changes another config: "
            f"name that one first, as in `--configfile config/config.yaml {names}` (or config/paper.yaml)."
        )
    return merged, places


def read_one(path: Path) -> dict[str, Any]:
    """Return the content of one YAML file, which need not be a whole config. Raises ConfigError as `read`."""
    return _File(path).content({})


def check_command_line() -> None:
    """End the process with a sentence if a file that snakemake's `--configfile` names can't be read.

    The workflow's profiles call this function, because Snakemake reads these files before the Snakefile and would end
    with a traceback, as it would where the home folder can't be written.
    """
    try:
        find_caches()
        for path in _named(sys.argv[1:]):
            read_one(path)
    except MetaptError as error:
        sys.exit(f"error: {error}")


def _named(arguments: Sequence[str]) -> list[Path]:
    """Return the files after `--configfile`.

    >>> _named(["--cores", "2", "--configfile", "a.yaml", "b.yaml", "--dry-run"])
    [PosixPath('a.yaml'), PosixPath('b.yaml')]
    """
    found: list[Path] = []
    is_file = False
    for argument in arguments:
        if argument.startswith("-"):
            option, _, value = argument.partition("=")
            is_file = option in ("--configfile", "--configfiles")
            found += [Path(value)] if is_file and value else []
        elif is_file:
            found.append(Path(argument))
    return found


def _short(path: Path) -> str:
    """Return the path relative to the working directory where it lies below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _overlay(base: dict[str, Any], change: Mapping[str, Any]) -> None:
    """Merge `change` into `base` in place, key by key, as `snakemake --configfile` does."""
    for key, value in change.items():
        if isinstance(value, Mapping):
            below = base[key] if isinstance(base.get(key), dict) else {}
            base[key] = below
            _overlay(below, value)
        else:
            base[key] = value


def _place(section: Mapping[str, Any], keys: Keys, place: str, places: Places) -> None:
    for key, value in section.items():
        here = (*keys, str(key))
        places[here] = place
        if isinstance(value, Mapping):
            _place(value, here, place, places)


def _is_quoted(node: yaml.ScalarNode) -> bool:
    return node.style is not None and node.tag == yaml.resolver.BaseResolver.DEFAULT_SCALAR_TAG


class _Loader(yaml.SafeLoader):
    """PyYAML's loader, which also reads 1e1 and 1e-3 as numbers, as YAML 1.2 does."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)e[-+]?[0-9]+$", re.IGNORECASE),
    [*"-+.0123456789"],
)


class _File:
    """One YAML file. Its content is a tree: an alias is replaced by what it stands for, up to a bound.

    Keys and dates are texts as they are written.
    """

    def __init__(self, path: Path) -> None:
        self._name = _short(path)
        self._left = _MOST_VALUES
        self._path = path
        self._loader: _Loader

    def content(self, places: Places) -> dict[str, Any]:
        """Return what the file says; its keys are added to `places`. Raises ConfigError as `read`."""
        try:
            with open(self._path, "rb", opener=regular) as file:
                content = file.read(_MOST_BYTES + 1)
            if len(content) > _MOST_BYTES:
                raise ConfigError(f"{self._name} is larger than {_MOST_BYTES} bytes, so it is no config.")
            self._loader = _Loader(content.decode("utf-8-sig"))
            node = self._loader.get_single_node()
            if not isinstance(node, yaml.MappingNode):
                raise ConfigError(f"{self._name} must be a section (keys with values), as config/README.md shows.")
            found: dict[str, Any] = self._value(node, (), (), places)
            return found
        except OSError as error:
            raise ConfigError(f"{self._name} can't be read: {error.strerror}.") from error
        except RecursionError as error:
            raise ConfigError(f"{self._name} is not YAML that can be read: it is nested too deeply.") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self._name} is not YAML: {' '.join(str(error).split())}.") from error

    def _value(self, node: yaml.Node, keys: Keys, outer: tuple[yaml.Node, ...], places: Places) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ConfigError(
                f"{self._name}: its aliases stand for more than {_MOST_VALUES} values: write out what is meant."
            )
        if node in outer:
            raise ConfigError(f"{self._at(node)}: an alias refers to itself (it stands within what it stands for).")
        if isinstance(node, yaml.MappingNode) and node.tag == yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG:
            return self._section(node, keys, (*outer, node), places)
        if isinstance(node, yaml.SequenceNode) and node.tag == yaml.resolver.BaseResolver.DEFAULT_SEQUENCE_TAG:
            return [self._value(item, keys, (*outer, node), {}) for item in node.value]
        if isinstance(node, yaml.ScalarNode) and not _is_quoted(node) and _ODD_NUMBER.fullmatch(node.value):
            raise ConfigError(
                f"{self._at(node)}: {'.'.join(keys)} is {node.value}; YAML takes a number with a leading zero or with "
                "colons to base 8 or 60: write it with decimal digits (10, 0.5, 1e-3), or a text in quotes."
            )
        try:
            value = self._loader.construct_object(node)
            return node.value if node.tag == _DATE else value
        except ValueError as error:  # of a date that does not exist, or a number of thousands of digits
            text = str(node.value)
            shown = text if len(text) <= 40 else f"{text[:40]}..."
            raise ConfigError(
                f"{self._at(node)}: {'.'.join(keys)} is {shown}, which looks like a number or a date and can't be read "
                f"({str(error).split(';')[0]}); write a text in quotes."
            ) from error

    def _section(
        self, node: yaml.MappingNode, keys: Keys, outer: tuple[yaml.Node, ...], places: Places
    ) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                value = self._value(value_node, keys, outer, places)
                sections = value if isinstance(value, list) else [value]
                if not all(isinstance(section, dict) for section in sections):
                    raise ConfigError(f"{self._at(key_node)}: << must be followed by sections.")
                for section in reversed(sections):
                    merged |= section
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{self._at(key_node)}: a list or a section can't be a key.")
            key = key_node.value
            here = (*keys, key)
            if key in own:
                first = places.get(here, self._name).rsplit(", ", 1)[-1]
                raise ConfigError(
                    f"{self._at(key_node)}: the key {'.'.join(here)} is there twice ({first} has it too)."
                )
            own[key] = None
            places[here] = self._at(key_node)
            own[key] = self._value(value_node, here, outer, places)
        return merged | own

    def _at(self, node: yaml.Node) -> str:
        return f"{self._name}, line {node.start_mark.line + 1}"
