"""The config: one model from which defaults, validation, the JSON schema and the key tables of `config/README.md` come."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from metapt.ecg.config import EcgConfig
from metapt.errors import ConfigError
from metapt.mnist.config import MnistConfig
from metapt.ppi.config import PpiConfig
from metapt.schema import TAGS, Json, below, choices, dereferenced, either, of_same_kind, sections
from metapt.sections import Experiment, Section


class Data(Section):
    """Raw data: where they lie, and where they are looked for."""

    folder: str = Field("data/raw", min_length=1, description="folder of raw files, shared by all configs")
    mirrors: list[str] = Field([], description="folders, file:// or http(s):// addresses that are tried before the publishers'")


class Config(Section):
    """The whole config. Every default is the paper's value; a domain or an experiment that is left out is not run."""

    results: str = Field("results/paper", min_length=1, description="folder of everything that the workflow makes")
    data: Data = Data()
    require_gpu: bool = Field(False, description="true: every training asks for a GPU and never falls back to the CPU")
    mnist: MnistConfig | None = Field(None, description="the MNIST experiments")
    ecg: EcgConfig | None = Field(None, description="SimCLR on ECGs")
    ppi: PpiConfig | None = Field(None, description="multitask PT on protein graphs")


SCHEMA = dereferenced(Config.model_json_schema())


def validate(raw: Mapping[str, Any]) -> Config:
    """The config that `raw` (merged YAML) says, its arms resolved.

    An arm says only what differs: from the arm that its key `extends` names, or from the default arm of its own name.

    Raises:
        ConfigError: a sentence per illegal key, with its dotted name, what is wrong and what is legal.
    """
    try:
        plainly = json.loads(json.dumps(raw, default=str))
    except (ValueError, RecursionError):
        raise ConfigError("the config refers to itself (an alias within what it stands for): write out what is meant.") from None
    resolved = _with_arms(SCHEMA, "", plainly)
    try:
        return Config.model_validate(resolved)
    except ValidationError as error:
        sentences = [_sentence(details, resolved) for details in error.errors(include_url=False)]
        raise ConfigError("\n".join(dict.fromkeys(sentences))) from None


def experiments(config: Config) -> dict[str, Experiment]:
    """The experiments of a config, as {domain}_{key} (the name of their target) -> their section.

    Raises:
        ConfigError: there are none.
    """
    found = {
        f"{domain}_{key}": section
        for domain, domain_section in config
        if isinstance(domain_section, Section)
        for key, section in domain_section
        if isinstance(section, Experiment)
    }
    if not found:
        raise ConfigError("the config has no experiment: add one, for example `mnist: {rotation_mean: {}}`.")
    return found


def plain(section: BaseModel | Mapping[str, Any]) -> Json:
    """A section as sorted dicts, lists and scalars: the same however the YAML was ordered and its numbers were written."""
    values = section.model_dump(mode="json") if isinstance(section, BaseModel) else section
    result: Json = json.loads(json.dumps(values, sort_keys=True))
    return result


def _with_arms(node: Json, path: str, raw: Json) -> Json:
    """The section `raw` at `path` with each `arms` in it resolved; `node` is its schema.

    Raises:
        ConfigError: a section is empty; or as `_resolve`.
    """
    result = {}
    for key, value in raw.items():
        here = f"{path}.{key}".lstrip(".")
        legal = sections(node.get("properties", {}).get(key, {}))
        if value is None and legal:
            raise ConfigError(f"{here} is empty: give it keys, write {{}} for its defaults, or leave it out.")
        if key == "arms" and isinstance(value, dict) and legal:
            result[key] = _resolve(here, value, node["properties"][key].get("default", {}))
        elif isinstance(value, dict) and len(legal) == 1:
            result[key] = _with_arms(legal[0], here, value)
        else:
            result[key] = value
    return result


def _resolve(path: str, arms: Json, defaults: Json) -> Json:
    """`arms` laid over the arms that they extend and over `defaults`.

    Raises:
        ConfigError: an arm is empty or has a name that can't be a folder's, or `extends` names no arm or runs in a circle.
    """
    names = [*defaults, *(name for name in arms if name not in defaults)]
    resolved: Json = {}

    def resolve(name: str, chain: tuple[str, ...]) -> Any:
        if name in chain:
            raise ConfigError(f"{path}.{chain[0]}.extends runs in a circle: {' -> '.join((*chain, name))}.")
        if name not in resolved:
            arm, base = arms.get(name, {}), defaults.get(name)
            if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
                raise ConfigError(f"{path} has an arm {name!r}; the name of an arm is made of letters, digits, - and _.")
            if arm is None:
                raise ConfigError(f"{path}.{name} is empty: give it keys, or leave it out.")
            if isinstance(arm, dict) and "extends" in arm:
                parent = arm["extends"]
                if parent not in names:
                    wrong = f"{path}.{name}.extends is {parent!r}, which is no arm there"
                    raise ConfigError(f"{wrong}{_did_you_mean(parent, names)}; legal: {', '.join(names)}.")
                base = resolve(parent, (*chain, name))
                arm = {key: value for key, value in arm.items() if key != "extends"}
            resolved[name] = _merge(base, arm)
        return resolved[name]

    return {name: resolve(name, ()) for name in names}


def _merge(base: Any, change: Any) -> Any:
    """`base` with `change` laid over it, key by key; a section of another kind replaces the one that was there."""
    if not isinstance(base, dict) or not isinstance(change, dict):
        return change
    if any(base.get(tag) != change[tag] for tag in TAGS if tag in base and tag in change):
        return change
    return base | {key: _merge(base.get(key), value) for key, value in change.items()}


def _sentence(error: ErrorDetails, raw: Json) -> str:
    """What is wrong, for the person who wrote the config."""
    keys, legal = _locate(error, raw)
    key, value, kind = ".".join(keys), error["input"], error["type"]
    if kind == "extra_forbidden":
        names = list(dict.fromkeys(name for node in legal for name in node.get("properties", {})))
        return f"{key} is not a key of the config{_did_you_mean(keys[-1], names)}; legal there: {', '.join(names)}."
    if kind == "missing":
        return f"{key} is missing; it must be {either(legal)}."
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        name = error["ctx"]["discriminator"].strip("'")
        words = choices([node["properties"][name] for node in legal if name in node.get("properties", {})])
        wrong = f"is {value[name]!r}{_did_you_mean(value[name], words)}" if name in value else "is missing"
        return f"{key}.{name} {wrong}; legal: {', '.join(words)}."
    if kind == "value_error":
        return f"{key}: {error['ctx']['error']}."
    legal = [node for node in legal if node.get("type") == "object"] or legal
    given = "empty" if value is None else repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
    return f"{key} is {given}, but must be {either(legal)}{_did_you_mean(value, choices(legal))}."


def _locate(error: ErrorDetails, raw: Json) -> tuple[list[str], list[Json]]:
    """The keys that lead to an error, and the schemas that are legal there (of an unknown key: in its section).

    pydantic puts names of union members among the keys; they are no keys of `raw`, and are passed over.
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


def _did_you_mean(word: Any, legal: list[str]) -> str:
    near = difflib.get_close_matches(str(word), legal, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
