"""What the JSON schema of the config says is legal at a place, in words, and the sentences about what is not."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

Json = dict[str, Any]

TAGS = ("kind", "method")  # keys whose value tells the kind of a section where several are legal
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def dereferenced(schema: Json) -> Json:
    """Return `schema` with each reference replaced by its target; references must not be circular."""

    def replace(node: Any) -> Any:
        if isinstance(node, list):
            return [replace(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            target = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
            return replace(target | {key: value for key, value in node.items() if key != "$ref"})
        return {key: replace(value) for key, value in node.items() if key not in ("$defs", "discriminator")}

    result: Json = replace(schema)
    return result


def alternatives(node: Any) -> list[Json]:
    """Return the schemas of which a value of `node` must fit one; none if `node` is no schema, but true or missing."""
    if not isinstance(node, dict):
        return []
    members = node.get("anyOf", node.get("oneOf"))
    return [node] if members is None else [each for member in members for each in alternatives(member)]


def sections(node: Json) -> list[Json]:
    """Return the alternatives that are sections (keys with values)."""
    return [each for each in alternatives(node) if each.get("type") == "object"]


def below(node: Json, key: str | int) -> list[Json]:
    """Return the alternatives for the value at `key` of a section or a list."""
    if isinstance(key, int):
        first = node.get("prefixItems", [])
        return alternatives(first[key] if key < len(first) else node.get("items"))
    return alternatives(node.get("properties", {}).get(key, node.get("additionalProperties")))


def tag(node: Json) -> tuple[str, str] | None:
    """Return the key and the value that tell a section from its alternatives, such as `("method", "fixed")`."""
    properties = node.get("properties", {})
    return next(((name, properties[name]["const"]) for name in TAGS if "const" in properties.get(name, {})), None)


def of_same_kind(nodes: list[Json], value: Any) -> list[Json]:
    """Return `nodes` without those whose tag differs from that of `value`."""
    tags = [(node, tag(node)) for node in nodes]
    return [node for node, found in tags if not (found and isinstance(value, dict)) or value.get(found[0]) == found[1]]


def choices(nodes: list[Json]) -> list[str]:
    """Return the legal words, if only certain words are legal."""
    return [str(choice) for node in nodes for choice in ([node["const"]] if "const" in node else node.get("enum", []))]


def either(nodes: list[Json]) -> str:
    """Return the legal values of several schemas in words.

    >>> either([{"type": "integer", "minimum": 1}, {"enum": ["head", "network"]}])
    "a whole number ≥ 1 or 'head' or 'network'"
    """
    return " or ".join(dict.fromkeys(_words(node) for node in nodes))


def _words(node: Json) -> str:
    if words := choices([node]):
        return " or ".join(f"'{word}'" for word in words)
    match node.get("type"):
        case "integer" | "number" as kind:
            name = "a whole number" if kind == "integer" else "a number"
            if {"minimum", "maximum"} <= node.keys():
                return f"{name} from {node['minimum']:g} to {node['maximum']:.10g}"
            limits = " and ".join(f"{sign} {node[bound]:g}" for bound, sign in _BOUNDS.items() if bound in node)
            return f"{name} {limits}".strip()
        case "boolean":
            return "true or false"
        case "string":
            return f"a text of the form {node['pattern']}" if "pattern" in node else "a text"
        case "null":
            return "empty"
        case "array" if "prefixItems" in node:
            return f"[{', '.join(either(alternatives(item)) for item in node['prefixItems'])}]"
        case "array":
            kind = "a non-empty list" if node.get("minItems") else "a list"
            return f"{kind} [{either(alternatives(node['items']))}, …]"
        case _:
            return "a section (keys with values)"


def did_you_mean(word: Any, legal: list[str]) -> str:
    """Return a hint at the legal word that is most like `word`, such as ` (did you mean 'lr'?)`, or an empty string."""
    near = difflib.get_close_matches(str(word), legal, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def sentences(error: ValidationError, schema: Json, raw: Json, written: Json) -> dict[str, str]:
    """Return for each illegal key of `raw` what is wrong; `written` is the config before arms are resolved.

    Where a key takes a number or a list, pydantic says of a list with a wrong item that it is no number, too; only what
    it says of the item is kept. An arm is not told what is said of the arm whose key it takes over.
    """
    found: dict[str, str] = {}
    for each in error.errors(include_url=False):
        key, said = _sentence(each, schema, raw)
        if key not in found or each["type"] == "value_error":
            found[key] = said
    own = {key: said for key, said in found.items() if _is_written(key, written)}
    return {
        key: said
        for key, said in found.items()
        if not any(other.startswith(f"{key}.") for other in found) and (key in own or said not in own.values())
    }


def _is_written(key: str, raw: Any) -> bool:
    """Return whether a dotted key is in the config `raw`."""
    for part in key.split("."):
        if isinstance(raw, list):
            return True
        if not isinstance(raw, dict) or part not in raw:
            return False
        raw = raw[part]
    return True


def _sentence(error: ErrorDetails, schema: Json, raw: Json) -> tuple[str, str]:
    """Return the key with an error, and the rest of the sentence about it."""
    kind, value = error["type"], error["input"]
    if kind in ("extra_forbidden", "missing"):
        keys, section, nodes = _locate(error["loc"][:-1], schema, raw)
        name = str(error["loc"][-1])
        nodes = of_same_kind(nodes, section)
        legal = either([each for node in nodes for each in below(node, error["loc"][-1])])
        said = f" is missing; it must be {legal}." if kind == "missing" else _unknown(keys, name, nodes)
        return ".".join([*keys, name]), said
    keys, _, nodes = _locate(error["loc"], schema, raw)
    key = ".".join(keys)
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        name = error["ctx"]["discriminator"].strip("'")
        words = choices([node["properties"][name] for node in nodes if "properties" in node])
        wrong = f"is {value[name]!r}{did_you_mean(value[name], words)}" if name in value else "is missing"
        return f"{key}.{name}", f" {wrong}; legal: {', '.join(words)}."
    if kind == "value_error":
        return key, f"{': ' if key else ''}{error['ctx']['error']}."
    nodes = [node for node in nodes if node.get("type") == "object"] or nodes
    given = "empty" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    shown = given if len(given) <= 60 else f"{given[:57]}..."
    return key, f" is {shown}, but must be {either(nodes)}{did_you_mean(value, choices(nodes))}."


def _unknown(keys: list[str], name: str, nodes: list[Json]) -> str:
    """Return what is said of a key that its section, of which `nodes` are the schemas, has not."""
    legal = {key: value for node in nodes for key, value in node.get("properties", {}).items()}
    inner = [key for key, value in legal.items() if any(name in each.get("properties", {}) for each in sections(value))]
    places = " or ".join(".".join([*keys, key, name]) for key in inner[:3])
    hint = did_you_mean(name, list(legal)) or (f" (it belongs further in: {places})" if inner else "")
    return f" is not a key of the config{hint}; legal there: {', '.join(legal)}."


def _locate(loc: Sequence[str | int], schema: Json, raw: Any) -> tuple[list[str], Any, list[Json]]:
    """Return the keys that lead to an error, the value there, and the schemas that are legal there.

    pydantic puts names of union members among the keys; they are not in `raw` and are skipped.
    """
    keys, nodes = [], [schema]
    for key in loc:
        if (isinstance(raw, dict) and key in raw) or (isinstance(raw, list) and isinstance(key, int)):
            nodes = [each for node in of_same_kind(nodes, raw) for each in below(node, key)]
            keys.append(str(key))
            raw = raw[key]  # type: ignore[index]
    return keys, raw, nodes
