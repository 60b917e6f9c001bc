"""Tool declarations as TypeScript, the way Kimi-K2.5 reads them (its template asks for `tools_ts_str`).

Written from the description of Moonshot's encoder in words; tests hold it to token counts of production.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]

_SIMPLE = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean", "null": "null"}


def declare(tools: Sequence[Mapping[str, Any]]) -> str:
    """`# Tools`, the namespace of functions, one type for each."""
    functions = [_function(tool["function"]) for tool in tools]
    return "# Tools\n\n## functions\nnamespace functions {\n" + "\n".join(functions) + "\n}\n"


def _function(function: Mapping[str, Any]) -> str:
    schema = function.get("parameters") or {}
    lines = [*_comment(function.get("description", ""), "")]
    for name, definition in sorted((schema.get("$defs") or {}).items()):
        lines.append(f"interface {name} {_object(definition, '')}")
    lines.append(f"type {function['name']} = (_: {_object(schema, '')}) => any;")
    return "\n".join(lines)


def _object(schema: Schema, indent: str) -> str:
    """`{ … }`: required members first, then optional ones, each in the order of the alphabet."""
    properties = schema.get("properties") or {}
    required = set(schema.get("required") or ())
    names = sorted(properties, key=lambda name: (name not in required, name))
    if not names:
        return "{}"
    inner = indent + "  "
    members = []
    for name in names:
        member = properties[name]
        mark = "" if name in required else "?"
        comments = "".join(f"{line}\n" for line in _about(member, inner))
        members.append(f"{comments}{inner}{name}{mark}: {_type(member, inner)}")
    return "{\n" + ",\n".join(members) + f"\n{indent}}}"


def _about(schema: Schema, indent: str) -> Iterator[str]:
    yield from _comment(schema.get("description", ""), indent)
    if "default" in schema:
        yield f"{indent}// Default: {_json(schema['default'])}"


def _comment(text: str, indent: str) -> Iterator[str]:
    for line in text.split("\n") if text else ():
        yield f"{indent}// {line}"


def _type(schema: Schema, indent: str) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if "enum" in schema:
        return " | ".join(_json(value) for value in schema["enum"])
    if "const" in schema:
        return _json(schema["const"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " | ".join(_type(choice, indent) for choice in schema[key])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_type({**schema, "type": one}, indent) for one in kind)
    if kind == "array":
        items = schema.get("items")
        return f"Array<{_type(items, indent)}>" if items else "Array<any>"
    if kind == "object" or "properties" in schema:
        if schema.get("properties"):
            return _object(schema, indent)
        values = schema.get("additionalProperties")
        of = _type(values, indent) if isinstance(values, Mapping) and values else "any"
        return f"Record<string, {of}>" if kind == "object" and values is not None else "object"
    return _SIMPLE.get(str(kind), "any")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
