"""Tool declarations as TypeScript, the way Kimi-K2.5 reads them (its template asks for `tools_ts_str`).

Written from a description of what Moonshot's encoder prints, oddities included (Python's `True` for a default, no
quotes escaped, a blank line in a description without `//`): what counts is what the target has seen. Schemas that
it refuses are a ValueError here too; the template then prints the declarations as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_INDENT = "  "
_UNIONS = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "{}",
    "array": "Array<any>",
}
_LIMITS = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}
_PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
}


def declare(tools: Sequence[Mapping[str, Any]]) -> str:
    """`# Tools` and the namespace of functions; '' where none of the tools is a function."""
    functions = [tool.get("function") for tool in tools if tool.get("type") == "function"]
    declared = [_Declaration().function(function) for function in functions if function]
    if not declared:
        return ""
    return "# Tools\n\n## functions\nnamespace functions {\n" + "\n".join(declared) + "\n}\n"


@dataclass
class _Declaration:
    """One function's declaration; `$defs` become interfaces before it."""

    definitions: dict[str, Any] = field(default_factory=dict)
    refers_to_itself: bool = False

    def function(self, function: Mapping[str, Any]) -> str:
        schema = function.get("parameters") or {}
        parameters = self._object(schema, "")
        lines = []
        if self.refers_to_itself:
            # the root's members in the schema's own order here, and without its additional ones
            members = [self._member(schema, name, _INDENT) for name in schema.get("properties", {})]
            lines.append(f"interface parameters {_braces(members, '')}")
            parameters = "parameters"
        for name, definition in dict(self.definitions).items():
            text = self._type(definition, "")
            lines.append(f"{_comment(definition.get('description'), '')}interface {name} {text}")
        name = function.get("name", "function")
        described = _comment(function.get("description"), "")
        lines.append(f"{described}type {name} = (_: {parameters}) => any;")
        return "\n".join(lines)

    def _type(self, schema: Any, indent: str) -> str:
        if isinstance(schema, bool):
            return "any" if schema else "null"
        if "$ref" in schema:
            return self._reference(schema["$ref"])
        if "anyOf" in schema:
            return " | ".join(self._type(choice, indent) for choice in schema["anyOf"])
        if "enum" in schema:
            return _enum(schema)
        kind = schema.get("type")
        if isinstance(kind, list):
            return " | ".join(_UNIONS[one] for one in kind)
        if kind == "object":
            return self._object(schema, indent)
        if kind == "array":
            return self._array(schema, indent)
        if kind is None and schema:
            raise ValueError(f"a schema without a type: {schema}")
        return "number" if kind == "integer" else str(kind or "any")

    def _object(self, schema: Mapping[str, Any], indent: str) -> str:
        """`{ … }`: required members first, then optional ones, each in the order of the alphabet."""
        self.definitions.update(schema.get("$defs") or {})
        inner, required = indent + _INDENT, schema.get("required", [])
        names = sorted(schema.get("properties", {}), key=lambda name: (name not in required, name))
        members = [self._member(schema, name, inner) for name in names]
        more = schema.get("additionalProperties")
        if more is not None:
            kind = {True: "any", False: "never"}[more] if isinstance(more, bool) else self._type(more, inner)
            members.append(f"{inner}[k: string]: {kind}")
        return _braces(members, indent)

    def _member(self, schema: Mapping[str, Any], name: str, indent: str) -> str:
        member = schema["properties"][name]
        mark = "" if name in schema.get("required", []) else "?"
        default = member.get("default") if isinstance(member, Mapping) else None
        about = _about(member, indent)
        if default is not None:
            plain = isinstance(default, int | float)
            about += f"{indent}// Default: {default if plain else json.dumps(default, ensure_ascii=False)}\n"
        return f"{about}{indent}{name}{mark}: {self._type(member, indent)}"

    def _array(self, schema: Mapping[str, Any], indent: str) -> str:
        items = schema.get("items") or True
        inner = indent + _INDENT
        about = _about(items, inner)
        if about:
            return f"Array<\n{about}{inner}{self._type(items, inner)}\n{indent}>"
        return f"Array<{self._type(items, indent)}>"

    def _reference(self, to: str) -> str:
        if to == "#":
            self.refers_to_itself = True
            return "parameters"
        name = to.removeprefix("#/$defs/")
        if name == to or name.split("/")[-1] not in self.definitions:
            raise ValueError(f"a reference to nothing: {to}")
        return name.split("/")[-1]


def _about(schema: Any, indent: str) -> str:
    """The description and the limits of a value, as comments."""
    if isinstance(schema, bool):
        return ""
    said = _comment(schema.get("description"), indent)
    kind = schema.get("type")
    simple = not {"$ref", "anyOf", "enum"} & schema.keys()
    possible = _LIMITS.get(kind, ()) if isinstance(kind, str) and simple else ()
    limits = [f"{name}: {schema[name]}" for name in possible if name in schema]
    return said + (f"{indent}// {', '.join(limits)}\n" if limits else "")


def _comment(text: str | None, indent: str) -> str:
    lines = text.split("\n") if text else []
    return "".join(f"{indent}// {line}\n" if line else "\n" for line in lines)


def _enum(schema: Mapping[str, Any]) -> str:
    values: list[Any] = schema["enum"]
    kind: Any = schema.get("type")
    if isinstance(kind, list):
        if len(kind) > 2 or (len(kind) == 2 and "null" not in kind):
            raise ValueError(f"an enum of the types {kind}")
        kind = next((one for one in kind if one != "null"), kind[-1])
    expected = _PYTHON_TYPES.get(kind, object)
    if not all(value is None or isinstance(value, expected) for value in values):
        raise ValueError(f"an enum with values that aren't of type {kind}")
    return " | ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in values)


def _braces(members: Sequence[str], indent: str) -> str:
    return "{\n" + ",\n".join(members) + f"\n{indent}}}" if members else "{}"
