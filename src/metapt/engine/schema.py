"""What a JSON schema says is legal at a place, also in words."""

from __future__ import annotations

from typing import Any

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
