"""Checks tools and calls of functions in OpenAI's form: whether names, arguments and schemas fit."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_vfm.core.optional import require
from nemo_vfm.core.types.json_value import each_key_once, finite_number, no_json_number

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_LETTERS, _MAX_VALUES, _MAX_DEPTH, _MAX_SHOWN = 100_000, 2_000, 32, 5
#: Of JSON Schema 2020-12. A pattern that a model wrote may take for ever on a short text; other files are not fetched.
_REFUSED = {
    "pattern": "matching a pattern may never end", "patternProperties": "matching a pattern may never end",
    "$dynamicRef": "only $ref is followed", "$id": "only references within the schema are followed",
    "$schema": "schemas are read as JSON Schema 2020-12",
}  # fmt: skip
#: Keywords whose value is a mapping of the user's names, which are no keywords.
_NAMED = ("properties", "$defs", "definitions", "dependentSchemas", "dependentRequired")
#: Keywords whose value is data.
_DATA = ("enum", "const", "default", "examples", "example")


def check_tools(tools: object) -> list[str]:
    """What is wrong with a list of tools.

    Args:
        tools: each `{"type": "function", "function": {"name", "description", "parameters"}}`; parameters are a JSON
            Schema (2020-12) without patterns, circles and references elsewhere.

    Returns:
        a sentence for each mistake, with its place; empty where there is none.

    Raises:
        MissingPackage: jsonschema is not installed.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, str) or not tools:
        return ["tools: expected a list of at least one tool"]
    wrong = [mistake for i, tool in enumerate(tools) for mistake in _wrong_tool(f"tools[{i}]", tool)]
    names = [tool["function"]["name"] for tool in tools] if not wrong else []
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    return wrong + [f"tools: two functions are called {name!r}" for name in twice]


def check_call(call: object, tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is wrong with a call, given tools in which `check_tools` finds nothing.

    Args:
        call: an item of `tool_calls` of a message, or its `function`: `name` and `arguments`, which is JSON.

    Returns:
        a sentence for each mistake, with its place; empty where there is none.

    Raises:
        MissingPackage: jsonschema is not installed.
    """
    if not isinstance(call, Mapping):
        return ["call: expected a mapping with name and arguments"]
    if "function" in call and call.get("type", "function") != "function":
        return [f"call.type: expected 'function', not {_shorten(call['type'])}"]
    function = call.get("function", call)
    if not isinstance(function, Mapping):
        return ["call.function: expected a mapping with name and arguments"]
    known = {tool["function"]["name"]: tool["function"] for tool in tools}
    if not isinstance(name := function.get("name"), str) or name not in known:
        return [f"call.name: there is no function {_shorten(name)}; there are {', '.join(sorted(known))}"]
    arguments = function.get("arguments")
    if isinstance(arguments, str):  # a model writes JSON as text; some servers give a mapping
        if len(arguments) > _MAX_LETTERS:
            return [f"call.arguments: {len(arguments):,} characters, but at most {_MAX_LETTERS:,} are allowed"]
        try:
            arguments = json.loads(
                arguments, parse_constant=no_json_number, parse_float=finite_number, object_pairs_hook=each_key_once
            )
        except (ValueError, RecursionError) as error:
            return [f"call.arguments: this is not JSON: {error}"]
    if not isinstance(arguments, dict):
        return [f"call.arguments: expected a JSON object, not {_shorten(arguments)}"]
    if big := _too_big(arguments):
        return [f"call.arguments: {big}"]
    if (schema := known[name].get("parameters")) is None:
        return [f"call.arguments.{each}: the function has no arguments" for each in sorted(arguments)][:_MAX_SHOWN]
    # An argument that the schema does not name is a mistake, unless it says that there may be more.
    open_ended = {"additionalProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "$ref"} & {*schema}
    closed = schema if open_ended else {**schema, "additionalProperties": False}
    errors = _first_errors(_jsonschema().Draft202012Validator(closed).iter_errors(arguments))
    texts = [f"{text[:297]}..." if len(text := str(error.message)) > 300 else text for error in errors]
    return [f"call.arguments{_path(error)}: {text}" for error, text in zip(errors, texts, strict=True)]


def _wrong_tool(place: str, tool: object) -> Iterator[str]:
    if not isinstance(tool, Mapping) or tool.get("type") != "function" or not isinstance(tool.get("function"), Mapping):
        yield f"{place}: expected a mapping with type 'function' and a mapping function"
        return
    function = tool["function"]
    if not isinstance(name := function.get("name"), str) or not _NAME.fullmatch(name):
        yield f"{place}.function.name: expected 1 to 64 letters, digits, dashes and underscores, not {_shorten(name)}"
    if not isinstance(function.get("description", ""), str):
        yield f"{place}.function.description: expected text, not {_shorten(function['description'])}"
    for key in sorted(str(key) for key in {*function} - {"name", "description", "parameters", "strict"}):
        yield f"{place}.function.{key}: a function has no such field"
    if (schema := function.get("parameters")) is None:
        return
    place = f"{place}.function.parameters"
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        yield f"{place}: expected a schema of type 'object'"
        return
    if big := _too_big(schema):
        yield f"{place}: {big}"
        return
    if refused := [*_Walk(schema).mistakes(place, schema)]:
        yield from refused[:_MAX_SHOWN]
        return
    validator = _jsonschema().Draft202012Validator
    for error in _first_errors(validator(validator.META_SCHEMA).iter_errors(schema)):
        yield f"{place}{_path(error)}: {error.message}"
    required = schema.get("required", ())
    if isinstance(required, list | tuple) and isinstance(properties := schema.get("properties", {}), Mapping):
        for missing in sorted({*map(str, required)} - {*map(str, properties)}):
            yield f"{place}.required: {missing!r} is required, and no property has that name"


@dataclass(slots=True)
class _Walk:
    """Goes through a schema with what it refers to, and finds what is not followed here."""

    _root: Mapping[str, Any]
    _left: int = _MAX_VALUES

    def mistakes(self, place: str, node: object, inside: frozenset[str] = frozenset()) -> Iterator[str]:
        """Each with its place.

        Args:
            inside: definitions that lead here.
        """
        self._left -= 1
        if self._left == 0:
            yield f"{place}: with all that it refers to, the schema has more than {_MAX_VALUES} parts"
        if self._left <= 0:
            return
        if isinstance(node, Sequence) and not isinstance(node, str):
            for i, item in enumerate(node):
                yield from self.mistakes(f"{place}[{i}]", item, inside)
        elif isinstance(node, Mapping):
            for key, value in node.items():
                at = f"{place}.{key}"
                if key in _REFUSED:
                    yield f"{at}: {key} is not supported here: {_REFUSED[key]}"
                elif key == "$ref":
                    match = re.fullmatch(r"#/(\$defs|definitions)/([\w-]+)", value) if isinstance(value, str) else None
                    definitions = self._root.get(match[1]) if match else None
                    if match is None or not isinstance(definitions, Mapping) or match[2] not in definitions:
                        yield f"{at}: {_shorten(value)} does not lead to a schema under $defs of this one"
                    elif match[0] in inside:
                        yield f"{at}: {_shorten(value)} refers to itself, which is not supported here"
                    else:
                        yield from self.mistakes(at, definitions[match[2]], inside | {match[0]})
                elif key in _NAMED and isinstance(value, Mapping):
                    for name, inner in value.items():
                        yield from self.mistakes(f"{at}.{name}", inner, inside)
                elif key not in _DATA:
                    yield from self.mistakes(at, value, inside)


def _first_errors(errors: Iterator[Any]) -> list[Any]:
    """The first few, each once, by place."""
    found = {(tuple(map(str, error.absolute_path)), error.message): error for error in errors}
    return [found[key] for key in sorted(found)][:_MAX_SHOWN]


def _path(error: Any) -> str:
    parts = error.absolute_path
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


def _too_big(value: object) -> str:
    """Why it is not looked at: the time of a check grows with the product of both sizes. Empty where it is."""
    level, depth, values = [value], 0, 0
    while level:
        mappings = [inner for one in level if isinstance(one, Mapping) for inner in one.values()]
        lists = [inner for one in level if isinstance(one, list | tuple) for inner in one]
        level, depth, values = mappings + lists, depth + 1, values + len(level)
        if depth > _MAX_DEPTH:
            return f"it is nested deeper than {_MAX_DEPTH} levels"
        if values > _MAX_VALUES:
            return f"it has more than {_MAX_VALUES:,} values"
    return ""


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _jsonschema() -> Any:
    return require("jsonschema", purpose="Checking calls of functions")
