"""The model of the config, which gives the defaults, validation, the JSON schema and the key tables of its README."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, create_model, model_validator

from metapt.engine.config_files import OPTIMIZER, Places, merge, read
from metapt.engine.domain import DOMAINS, domain
from metapt.engine.schema import TAGS, Json, dereferenced, did_you_mean, sections, sentences
from metapt.errors import ConfigError
from metapt.sections import NAME, OWN_KEYS, DomainSection, ExperimentSection, Section


def _folder(path: str) -> str:
    """Return the shortest path of a folder that the workflow fills, with `~` expanded.

    Raises ValueError if it can't be the name of a folder, or the workflow must not fill that folder.
    """
    folder = os.path.normpath(os.path.expanduser(path))
    if not path.strip() or not path.isprintable() or set("{}*?") & set(path):
        raise ValueError(f"{path!r} is no folder's name (braces, * and ? have a meaning of their own)")
    here = Path(folder).resolve()
    if any(Path(each).resolve().is_relative_to(here) for each in (Path.cwd(), os.path.expanduser("~"))):
        raise ValueError(
            f"{path!r} is {here}, which holds the project, a home or the whole disk, and the workflow fills it: name a "
            "folder of its own, such as results/mine"
        )
    return folder


def _mirror(address: str) -> str:
    """Return the address of a mirror, with `~` expanded. Raises ValueError where it is no address."""
    from metapt.fetching import place_of  # needs httpx

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
    """The whole config. A domain or an experiment that is left out is not run."""

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

SCHEMA = dereferenced(Config.model_json_schema())


def load(paths: Sequence[Path], changes: Mapping[str, Any] | None = None) -> Config:
    """Return the config that files describe, each merged into the ones before it, then with `changes`.

    Raises ConfigError as `metapt.engine.config_files.read` and `validate`; each sentence begins with file and line.
    """
    return validate(*read(paths, changes))


def validate(raw: Mapping[str, Any], places: Places | None = None) -> Config:
    """Return the config that `raw` (merged YAML) describes, with its arms resolved.

    An arm gives only what differs from the arm that its key `extends` names, or from the default arm of its own name.
    Raises ConfigError with a sentence for each illegal key: its place, if `places` has it, its dotted name, what is
    wrong and what is legal.
    """
    plainly = json.loads(json.dumps(raw, default=str), parse_float=_number)
    try:
        resolved = _with_arms(SCHEMA, "", plainly)
        return Config.model_validate_json(json.dumps(resolved), strict=True)
    except _Illegal as error:
        key, said = error.args
        wrong = {key: said}
    except ValidationError as error:
        wrong = sentences(error, SCHEMA, resolved, plainly)
    raise ConfigError("\n".join(f"{_place(key, places or {})}{key}{said}" for key, said in wrong.items()))


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


def _number(text: str) -> float:
    """Return a number, a whole one as an integer, so that 1e3 is legal where a whole number must stand."""
    value = float(text)
    return int(value) if value.is_integer() else value


class _Illegal(Exception):
    """A key, and what is wrong with it, before pydantic has seen it."""


def _with_arms(node: Json, path: str, raw: Json) -> Json:
    """Return the section `raw` at `path` with each `arms` in it resolved; `node` is its schema.

    Raises _Illegal if a section is empty, or as `_resolve`.
    """
    result = {}
    for key, value in raw.items():
        here = f"{path}.{key}".lstrip(".")
        legal = sections(node["properties"].get(key, {}))
        if value is None and legal:
            raise _Illegal(here, " is empty: give it keys, write {} for its defaults, or leave it out.")
        if key == "arms" and isinstance(value, dict) and legal:
            value = _resolve(here, value, node["properties"][key].get("default", {}))
        elif isinstance(value, dict) and len(legal) == 1 and "properties" in legal[0]:
            value = _with_arms(legal[0], here, value)
        result[key] = value
    return result


def _resolve(path: str, arms: Json, defaults: Json) -> Json:
    """Return `arms`, each merged with the arm that it extends or with the default arm of its name.

    A default arm that extends another one follows what the config changes in that.

    An arm that is `false` is left out; others may extend it. Raises _Illegal if the name of an arm can't be that of a
    folder, or `extends` names no arm or is circular.
    """
    names = list(defaults | arms)
    resolved: Json = {}

    def inherited(parent: str, chain: tuple[str, ...]) -> Json:
        arm = resolved.get(parent) or resolve(parent, chain)
        if not isinstance(arm, dict):
            raise _Illegal(f"{path}.{parent}", " is no section (keys with values), and another arm extends it.")
        return {key: value for key, value in arm.items() if key not in OWN_KEYS}

    def resolve(name: str, chain: tuple[str, ...]) -> Any:
        key, arm, base = f"{path}.{name}", arms.get(name, {}), defaults.get(name)
        if name in chain:
            raise _Illegal(f"{path}.{chain[0]}.extends", f" runs in a circle: {' -> '.join((*chain, name))}.")
        if not re.fullmatch(NAME, name):
            raise _Illegal(path, f" has an arm {name!r}; a name is made of letters, digits, - and _ (64 at most).")
        if arm is False and base is None:
            raise _Illegal(key, f" is false, but no default arm has that name{did_you_mean(name, list(defaults))}.")
        if isinstance(arm, dict) and arm.get("extends") is not None:
            parent = arm["extends"]
            if parent not in names:
                hint = did_you_mean(parent, names)
                wrong = f" is {parent!r}, which is no arm there{hint}; legal: {', '.join(names)}."
                raise _Illegal(f"{key}.extends", wrong)
            base = inherited(parent, (*chain, name))
            if (own := arm.get("method", base.get("method"))) != base.get("method"):
                wrong = (
                    f" is {own!r}, and {parent}, which the arm extends, has the method {base.get('method')!r}; legal: "
                )
                raise _Illegal(f"{key}.method", f"{wrong}the same one, or an arm that extends none.")
        elif base is not None and base.get("extends"):
            own = _own(base, defaults[base["extends"]], OWN_KEYS)
            base = merge(inherited(base["extends"], (*chain, name)), own, OPTIMIZER)
        resolved[name] = merge(base, {} if arm is False else arm, OPTIMIZER)
        return resolved[name]

    for name in names:
        resolve(name, ())
    return {name: resolved[name] for name in names if arms.get(name) is not False}


def _own(section: Json, parent: Json, kept: Sequence[str] = TAGS) -> Json:
    """Return the keys that a section has in other values than its parent, those within sections, and the `kept`."""
    return {
        key: value if key in kept or not isinstance(value, dict) else _own(value, parent.get(key) or {})
        for key, value in section.items()
        if key in kept or value != parent.get(key)
    }


def _place(key: str, places: Places) -> str:
    """Return where a key, or else the innermost section around it, is written, for the start of a sentence."""
    around = [keys for keys in places if f"{key}.".startswith(f"{'.'.join(keys)}.")]
    return f"{places[max(around, key=len)]}: " if around else ""
