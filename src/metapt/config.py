"""The model of the config, which gives the defaults, validation, the JSON schema and the key tables of its README."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, create_model, model_validator
from pydantic_core import ErrorDetails

from metapt.config_files import Places, read
from metapt.errors import ConfigError
from metapt.fetching.source import place_of
from metapt.registry import DOMAINS, domain
from metapt.schema import TAGS, Json, below, choices, dereferenced, either, of_same_kind, sections
from metapt.sections import NAME, RENAMED, DomainSection, ExperimentSection, Section


def _folder(path: str) -> str:
    """Return the shortest path of a folder that the workflow fills, with `~` expanded.

    Raises ValueError if it can't be the name of a folder, or the workflow must not fill that folder.
    """
    folder = os.path.normpath(os.path.expanduser(path))
    if not path.strip() or not path.isprintable() or any(letter in path for letter in "{}*?") or folder.startswith("~"):
        raise ValueError(
            f"{path!r} is no folder's name (braces, * and ? have a meaning of their own; ~ is a user's home)"
        )
    here = Path(folder).resolve()
    if any(Path(each).resolve().is_relative_to(here) for each in (Path.cwd(), os.path.expanduser("~"))):
        raise ValueError(
            f"{path!r} is {here}, which holds the project, a home or the whole disk, and the workflow fills it: name a "
            "folder of its own, such as results/mine"
        )
    return folder


def _mirror(address: str) -> str:
    """Return the address of a mirror, with `~` expanded. Raises ValueError where it is no address."""
    place = place_of(address)
    return str(place) if isinstance(place, Path) and "://" not in address else address


Folder = Annotated[str, Field(min_length=1), AfterValidator(_folder)]


class Data(Section):
    """Raw data: where they lie, and where they are looked for."""

    folder: Folder = Field("data/raw", description="folder of raw files, shared by all configs")
    mirrors: list[Annotated[str, AfterValidator(_mirror)]] = Field(
        [],
        description="folders, file:// or http(s):// addresses that are tried before the publishers'; "
        "name:password@host is legal",
    )


class _Config(Section):
    """The whole config.

    A default is the paper's value or, where the paper gives none, the released code's; where neither has one, the key's
    description says so.
    A domain or an experiment that is left out is not run.
    """

    results: Folder = Field(
        "results/paper",
        description="folder of everything that the workflow makes; one of the config files must give it",
    )
    data: Data = Data()
    require_gpu: bool = Field(False, description="true: every training asks for a GPU and never falls back to the CPU")

    @model_validator(mode="after")
    def _folders_are_two(self) -> _Config:
        if Path(self.results).resolve() == Path(self.data.folder).resolve():
            raise ValueError(
                "results and data.folder are one folder, where files of both would have the same names: name two"
            )
        return self


if TYPE_CHECKING:
    Config = _Config
else:
    Config = create_model(
        "Config",
        __base__=_Config,
        __doc__=_Config.__doc__,
        **{name: (domain(name).section() | None, Field(None, description=domain(name).title)) for name in DOMAINS},
    )

_LARGEST = 2**63 - 1  # of the integers of torch and NumPy

SCHEMA = dereferenced(Config.model_json_schema())


class _Illegal(ConfigError):
    """A key with an illegal value; the sentence begins with the key."""

    def __init__(self, key: str, said: str) -> None:
        super().__init__(f"{key}{said}")
        self.key = key


def load(paths: Sequence[Path], changes: Mapping[str, Any] | None = None) -> Config:
    """Return the config that files describe, each merged into the ones before it, then with `changes`.

    Raises ConfigError as `metapt.config_files.read` and `validate`; each sentence begins with file and line.
    """
    return validate(*read(paths, changes))


def validate(raw: Mapping[str, Any], places: Places | None = None) -> Config:
    """Return the config that `raw` (merged YAML) describes, with its arms resolved.

    An arm gives only what differs from the arm that its key `extends` names, or from the default arm of its own name.
    Raises ConfigError with a sentence for each illegal key: its place, if `places` has it, its dotted name, what is
    wrong and what is legal.
    """
    try:
        plainly = json.loads(json.dumps(raw, default=str))
    except (ValueError, RecursionError):
        raise ConfigError(
            "the config refers to itself (an alias within what it stands for): write out what is meant."
        ) from None
    wrong: list[_Illegal]
    try:
        resolved = _with_arms(SCHEMA, "", plainly)
        if not (wrong := list(_odd_numbers([], [SCHEMA], resolved))):
            return Config.model_validate(resolved)
    except _Illegal as error:
        wrong = [error]
    except ValidationError as error:
        wrong = _closest([(each["type"], _sentence(each, resolved)) for each in error.errors(include_url=False)])
    raise ConfigError("\n".join(dict.fromkeys(f"{_place(each.key, places or {})}{each}" for each in wrong)))


def _place(key: str, places: Places) -> str:
    """Return where a key, or else the innermost section around it, is written, for the start of a sentence."""
    around = [keys for keys in places if f"{key}.".startswith(f"{'.'.join(keys)}.")]
    return f"{places[max(around, key=len)]}: " if around else ""


def experiments(config: Config) -> dict[str, ExperimentSection]:
    """Return the sections of a config's experiments by the name of their target, `{domain}_{key}`.

    Raises ConfigError if there are none.
    """
    found = {
        f"{name}_{key}": section
        for name, each in config
        if isinstance(each, DomainSection)
        for key, section in each.experiments()
    }
    if not found:
        raise ConfigError("the config has no experiment: add one, for example `mnist: {rotation_mean: {}}`.")
    return found


def _with_arms(node: Json, path: str, raw: Json) -> Json:
    """Return the section `raw` at `path` with each `arms` in it resolved; `node` is its schema.

    Raises ConfigError if a section is empty, or as `_resolve`.
    """
    result = {}
    for key, value in raw.items():
        here = f"{path}.{key}".lstrip(".")
        legal = sections(node.get("properties", {}).get(key, {}))
        if value is None and legal:
            raise _Illegal(here, " is empty: give it keys, write {} for its defaults, or leave it out.")
        if key == "arms" and isinstance(value, dict) and legal:
            result[key] = _resolve(here, value, node["properties"][key].get("default", {}))
        elif isinstance(value, dict) and len(legal) == 1:
            result[key] = _with_arms(legal[0], here, value)
        else:
            result[key] = value
    return result


def _resolve(path: str, arms: Json, defaults: Json) -> Json:
    """Return `arms`, each merged with the arm that it extends or with the default arm of its name.

    An arm that is `false` is left out; others may extend it. Raises ConfigError if an arm is empty, its name can't be
    that of a folder, or `extends` names no arm or is circular.
    """
    names = [*defaults, *(name for name in arms if name not in defaults)]
    resolved: Json = {}

    def resolve(name: str, chain: tuple[str, ...]) -> Any:
        if name in chain:
            raise _Illegal(f"{path}.{chain[0]}.extends", f" runs in a circle: {' -> '.join((*chain, name))}.")
        if name not in resolved:
            arm, base = arms.get(name, {}), defaults.get(name)
            if arm is False:
                if base is None:
                    hint = did_you_mean(name, list(defaults))
                    raise _Illegal(f"{path}.{name}", f" is false, but no default arm has that name{hint}.")
                arm = {}
            if not re.fullmatch(NAME, name):
                raise _Illegal(
                    path,
                    f" has an arm {name[:99]!r}; the name of an arm is made of letters, digits, - and _ (64 at most).",
                )
            if arm is None:
                raise _Illegal(f"{path}.{name}", " is empty: give it keys, or write false, which leaves it out.")
            if isinstance(arm, dict) and "extends" in arm:
                parent = arm["extends"]
                if parent not in names:
                    hint = did_you_mean(parent, names)
                    wrong = f" is {parent!r}, which is no arm there{hint}; legal: {', '.join(names)}."
                    raise _Illegal(f"{path}.{name}.extends", wrong)
                base = resolve(parent, (*chain, name))
                arm = {key: value for key, value in arm.items() if key != "extends"}
            resolved[name] = _merge(base, arm)
        return resolved[name]

    for name in names:
        resolve(name, ())
    return {name: resolved[name] for name in names if arms.get(name) is not False}


def _merge(base: Any, change: Any) -> Any:
    """Return `base` with `change` merged into it, key by key; a section of another kind replaces that of `base`."""
    if not isinstance(base, dict) or not isinstance(change, dict):
        return change
    if any(base.get(tag) != change[tag] for tag in TAGS if tag in base and tag in change):
        return change
    return base | {key: _merge(base.get(key), value) for key, value in change.items()}


def _odd_numbers(keys: list[str], legal: list[Json], value: Any) -> Iterator[_Illegal]:
    """Yield a sentence for each value that pydantic would convert to a number although it is none.

    These are true, false and integers of more than 64 bits.
    """
    if isinstance(value, dict | list):
        nodes = of_same_kind(legal, value)
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _odd_numbers([*keys, str(key)], [each for node in nodes for each in below(node, key)], item)
    elif isinstance(value, bool):
        kinds = {node.get("type") for node in legal}
        if kinds & {"integer", "number"} and "boolean" not in kinds:
            yield _Illegal(".".join(keys), f" is {str(value).lower()}, but must be {either(legal)}.")
    elif isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
        yield _Illegal(".".join(keys), f" is a number of {value.bit_length()} bits; whole numbers have up to 63.")


def _closest(wrong: list[tuple[str, _Illegal]]) -> list[_Illegal]:
    """Return the sentences without those about the kind of a whole list where another one says what is wrong in it.

    Where a key takes a number or a list, pydantic says of a list with a wrong item that it is no number, too. `wrong`
    has pydantic's kinds of errors and their sentences.
    """

    def says_more(kind: str, about: _Illegal, other_kind: str, other: _Illegal) -> bool:
        deeper = other.key.startswith(f"{about.key}.")
        return deeper or (other.key == about.key and other_kind == "value_error" != kind)

    return [said for kind, said in wrong if not any(says_more(kind, said, *other) for other in wrong)]


def _sentence(error: ErrorDetails, raw: Json) -> _Illegal:
    """Return the sentence that explains a validation error."""
    keys, legal = _locate(error, raw)
    key, value, kind = ".".join(keys), error["input"], error["type"]
    if kind == "extra_forbidden":
        names = list(dict.fromkeys(name for node in legal for name in node.get("properties", {})))
        if (new := RENAMED.get(keys[-1])) in names:
            return _Illegal(key, f" is now called {new}.")
        hint = did_you_mean(keys[-1], names) or _further_in(keys, legal)
        return _Illegal(key, f" is not a key of the config{hint}; legal there: {', '.join(names)}.")
    if kind == "missing":
        return _Illegal(key, f" is missing; it must be {either(legal)}.")
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        name = error["ctx"]["discriminator"].strip("'")
        words = choices([node["properties"][name] for node in legal if name in node.get("properties", {})])
        wrong = f"is {value[name]!r}{did_you_mean(value[name], words)}" if name in value else "is missing"
        return _Illegal(f"{key}.{name}", f" {wrong}; legal: {', '.join(words)}.")
    if kind == "value_error":
        return _Illegal(key, f"{': ' if key else ''}{error['ctx']['error']}.")
    legal = [node for node in legal if node.get("type") == "object"] or legal
    given = "empty" if value is None else repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
    return _Illegal(key, f" is {given}, but must be {either(legal)}{did_you_mean(value, choices(legal))}.")


def _further_in(keys: list[str], legal: list[Json]) -> str:
    """Return a hint where a key that stands one section too far out is legal."""
    name = keys[-1]
    inner = [
        ".".join([*keys[:-1], section, name])
        for node in legal
        for section, value in node.get("properties", {}).items()
        if any(name in each.get("properties", {}) for each in sections(value))
    ]
    return f" (it belongs further in: {' or '.join(inner[:3])})" if inner else ""


def _locate(error: ErrorDetails, raw: Json) -> tuple[list[str], list[Json]]:
    """Return the keys that lead to an error, and the schemas that are legal there (for an unknown key, in its section).

    pydantic puts names of union members among the keys; they are not in `raw` and are skipped.
    """
    keys: list[str] = []
    legal: list[Json] = [SCHEMA]
    value: Any = raw
    for place, key in enumerate(error["loc"]):
        last = place == len(error["loc"]) - 1
        inside = (isinstance(value, dict) and key in value) or (isinstance(value, list) and isinstance(key, int))
        if not inside and not (last and error["type"] == "missing"):
            continue
        keys.append(str(key))
        legal = of_same_kind(legal, value)
        if last and error["type"] == "extra_forbidden":
            break
        legal = [each for node in legal for each in below(node, key)]
        value = value[key] if inside else None
    return keys, legal


def did_you_mean(word: Any, legal: list[str]) -> str:
    """Return a hint at the legal word that is most like `word`, such as ` (did you mean 'lr'?)`, or an empty string."""
    near = difflib.get_close_matches(str(word), legal, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
