"""Strict reading and merging of config files; the file and line of each key are kept."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from metapt.engine.schema import TAGS
from metapt.errors import ConfigError, MetaptError
from metapt.files import regular
from metapt.machine import find_caches

Keys = tuple[str, ...]
Places = dict[Keys, str]
"""Where keys are written, such as "k5.yaml, line 3", by the names of the keys from the outermost to the innermost."""

_TAG = "tag:yaml.org,2002:"
_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$")
_NUMBER = re.compile(
    r"[-+]?((0|[1-9][0-9_]*)(\.[0-9_]*)?|\.[0-9][0-9_]*)(e[-+]?[0-9]+)?$|[-+]?\.inf$|\.nan$", re.IGNORECASE
)


class _Loader(yaml.SafeLoader):
    """PyYAML's loader, but 1e-3 is a number as in YAML 1.2, and 010, 1:30 and dates are texts."""

    yaml_implicit_resolvers = {
        letter: [each for each in forms if each[0].removeprefix(_TAG) not in ("int", "float", "timestamp")]
        for letter, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(f"{_TAG}int", _WHOLE, [*"-+0123456789"])
_Loader.add_implicit_resolver(f"{_TAG}float", _NUMBER, [*"-+.0123456789"])


def read(paths: Sequence[Path], changes: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], Places]:
    """Return the content of config files, each merged into the ones before it, and where each key is written.

    `changes`, of the command line (`--config`), are merged last. Raises ConfigError if a file can't be read, is not
    YAML, is not a section or has a key twice, or no file has `results`.
    """
    merged: dict[str, Any] = {}
    places: Places = {}
    for path in paths:
        merged = merge(merged, read_one(path, places))
    merged = merge(merged, _typed(changes or {}, (), places))
    if "results" not in merged:
        names = " ".join(_short(path) for path in paths)
        raise ConfigError(
            f"{names} does not say where results go (`results`), so it only changes another config: "
            f"name that one first, as in `--configfile config/config.yaml {names}` (or config/paper.yaml)."
        )
    return merged, places


def check_command_line() -> None:
    """End the process with a sentence if a file that snakemake's `--configfile` names can't be read.

    The workflow's profiles call this function, because Snakemake reads these files before the Snakefile and would end
    with a traceback, as it would where the home folder can't be written.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--configfile", "--configfiles", nargs="+", action="extend", type=Path, default=[])
    try:
        find_caches()
        for path in parser.parse_known_args()[0].configfile:
            read_one(path)
    except MetaptError as error:
        sys.exit(f"error: {error}")


def _short(path: Path) -> str:
    """Return the path relative to the working directory where it lies below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


_REPLACED = "meta_settings", "meta_groups"
OPTIMIZER = "Adam"  # of an arm that names none


def merge(base: Any, change: Any, optimizer: str | None = None) -> Any:
    """Return `base` with `change` merged into it, key by key.

    A section of another kind replaces that of `base`; so do the settings of an optimiser, which are no section. Those
    of `base` are not for another optimiser. `optimizer` is that of a base which names none, if it is known.
    """
    if not isinstance(base, dict) or not isinstance(change, dict):
        return change
    if any(base.get(tag) != change[tag] for tag in TAGS if tag in base and tag in change):
        return change
    if (own := base.get("meta_optimizer", optimizer)) is not None and change.get("meta_optimizer", own) != own:
        base = {key: value for key, value in base.items() if key != "meta_settings"}
    return base | {key: value if key in _REPLACED else merge(base.get(key), value) for key, value in change.items()}


def _typed(value: Any, keys: Keys, places: Places) -> Any:
    """Return a value of `--config`, in which Snakemake leaves texts where a file would have numbers, true or false."""
    if keys:
        places[keys] = "--config"
    if isinstance(value, Mapping):
        return {str(key): _typed(each, (*keys, str(key)), places) for key, each in value.items()}
    if isinstance(value, list):
        return [_typed(each, keys, places) for each in value]
    if not isinstance(value, str):
        return value
    loader: Any = _Loader("")
    return loader.construct_object(yaml.ScalarNode(loader.resolve(yaml.ScalarNode, value, (True, False)), value))


def read_one(path: Path, places: Places | None = None) -> dict[str, Any]:
    """Return the content of one YAML file, which need not be a whole config, and add its keys to `places`.

    Raises ConfigError as `read`.
    """
    name = _short(path)
    try:
        with open(path, "rb", opener=regular) as file:
            loader = _Loader(file.read().decode("utf-8-sig"))
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{name} must be a section (keys with values), as config/README.md shows.")
        _note(node, (), name, {} if places is None else places)
        return dict(loader.construct_document(node))
    except OSError as error:
        raise ConfigError(f"{name} can't be read: {error.strerror}.") from error
    except RecursionError as error:
        raise ConfigError(f"{name} is not YAML: nested too deeply, or an alias refers to itself.") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: of bytes that are no text, or of thousands of digits
        raise ConfigError(f"{name} is not YAML: {' '.join(str(error).split())}.") from error


def _note(node: yaml.Node, keys: Keys, name: str, places: Places) -> None:
    """Add the keys below a node to `places`, and make them texts. Raises ConfigError if a section has a key twice."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _note(item, keys, name, {})
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[str, int] = {}
    for key, value in sorted(node.value, key=lambda pair: pair[0].tag != f"{_TAG}merge"):
        if key.tag == f"{_TAG}merge":
            _note(value, keys, name, places)
        elif isinstance(key, yaml.ScalarNode):
            key.tag = f"{_TAG}str"
            here, line = (*keys, key.value), key.start_mark.line + 1
            places[here] = f"{name}, line {line}"
            if first := lines.get(key.value):
                raise ConfigError(f"{places[here]}: the key {'.'.join(here)} is there twice (line {first} has it too).")
            lines[key.value] = line
            _note(value, here, name, places)
