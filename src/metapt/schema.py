"""Functions on a JSON schema: what is legal at a place, also in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

TAGS = ("kind", "method")  # keys whose value tells the kind of a section where several are legal


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


def alternatives(node: Json) -> list[Json]:
    """Return the schemas of which a value of `node` must fit one."""
    members = node.get("anyOf", node.get("oneOf"))
    return [node] if members is None else [each for member in members for each in alternatives(member)]


def sections(node: Json) -> list[Json]:
    """Return the alternatives that are sections (keys with values)."""
    return [each for each in alternatives(node) if each.get("type") == "object"]


def named(node: Json) -> list[Json]:
    """Return the alternatives for a member of a section whose keys are free names.

    The list is empty if the keys are fixed or members can be anything.
    """
    found = node.get("additionalProperties")
    return alternatives(found) if isinstance(found, dict) else []


def below(node: Json, key: str | int) -> Iterator[Json]:
    """Yield the alternatives for the value at `key` of a section or a list."""
    if isinstance(key, int) and node.get("type") != "array":
        return
    if isinstance(key, int):
        prefix = node.get("prefixItems", [])
        yield from alternatives(prefix[key] if key < len(prefix) else node.get("items", {}))
    elif key in node.get("properties", {}):
        yield from alternatives(node["properties"][key])
    else:
        yield from named(node)


def tag(node: Json) -> tuple[str, str] | None:
    """Return the key and the value that tell a section from its alternatives, such as `("method", "fixed")`."""
    properties = node.get("properties", {})
    return next(((name, properties[name]["const"]) for name in TAGS if "const" in properties.get(name, {})), None)


def of_same_kind(nodes: list[Json], value: Any) -> list[Json]:
    """Return `nodes` without those whose tag differs from that of `value`."""

    def fits(node: Json) -> bool:
        found = tag(node)
        return found is None or not isinstance(value, dict) or value.get(*found) == found[1]

    return [node for node in nodes if fits(node)]


def choices(nodes: list[Json]) -> list[str]:
    """Return the legal words, if only certain words are legal."""
    return [str(choice) for node in nodes for choice in ([node["const"]] if "const" in node else node.get("enum", []))]


def either(nodes: list[Json]) -> str:
    """Return the legal values of several schemas in words."""
    return " or ".join(dict.fromkeys(describe(node) for node in nodes))


def describe(node: Json) -> str:
    """Return the legal values of a schema in words.

    >>> describe({"type": "integer", "minimum": 1}), describe({"enum": ["head", "network"]})
    ('a whole number of at least 1', "'head' or 'network'")
    """
    if words := choices([node]):
        return " or ".join(f"'{word}'" for word in words)
    match node.get("type"):
        case "integer" | "number" as kind:
            bounds = {
                "minimum": "of at least",
                "exclusiveMinimum": "above",
                "maximum": "of at most",
                "exclusiveMaximum": "below",
            }
            limits = " and ".join(f"{word} {node[bound]:.10g}" for bound, word in bounds.items() if bound in node)
            if {"minimum", "maximum"} <= node.keys():
                limits = f"from {node['minimum']:.10g} to {node['maximum']:.10g}"
            return f"{'a whole number' if kind == 'integer' else 'a number'} {limits}".strip()
        case "boolean":
            return "true or false"
        case "string":
            return f"a text of the form {node['pattern']}" if "pattern" in node else "a text"
        case "null":
            return "empty"
        case "array" if "prefixItems" in node:
            return "[" + ", ".join(either(alternatives(item)) for item in node["prefixItems"]) + "]"
        case "array":
            kind = "a list that is not empty" if node.get("minItems") else "a list"
            return f"{kind} (of each: {either(alternatives(node.get('items', {})))})"
        case _:
            return "a section (keys with values)"
