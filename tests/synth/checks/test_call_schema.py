"""Tests that calls and tools with a mistake are refused at its place, and that hostile schemas do no harm."""

import copy
import json
import socket
import time

import pytest

from nemo_vfm.synth.checks.call_schema import check_call, check_tools

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "at": {"$ref": "#/$defs/place"},
        "hours": {"type": "array", "items": {"type": "number"}},
    },
    "required": ["city"],
    "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
    {"type": "function", "function": {"name": "any", "parameters": {"type": "object", "additionalProperties": True}}},
]


def call(arguments, name="weather"):
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": text}}


@pytest.mark.parametrize(
    "good",
    [
        call({"city": "Rome"}),
        call({"city": "Rome", "unit": "celsius", "days": 7, "at": {"lat": 1.5}, "hours": [1, 2.5]}),
        call("{}", "now"),
        call({"a": [1]}, "any"),
        {"name": "weather", "arguments": {"city": "Rome"}},
    ],
)
def test_a_call_that_fits_has_no_mistake(good):
    assert check_tools(TOOLS) == [] and check_call(good, TOOLS) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (call({}), "call.arguments: 'city' is a required property"),
        (call({"city": 5}), "call.arguments.city: 5 is not of type 'string'"),
        (call({"city": "Rome", "unit": "kelvin"}), "call.arguments.unit: 'kelvin' is not one of"),
        (call({"city": "Rome", "days": 8}), "call.arguments.days: 8 is greater than the maximum of 7"),
        (call({"city": "Rome", "days": True}), "call.arguments.days: True is not of type 'integer'"),
        (call({"city": "Rome", "town": 1}), "call.arguments: Additional properties are not allowed ('town'"),
        (call({"city": "Rome", "at": {}}), "call.arguments.at: 'lat' is a required property"),
        (call({"city": "Rome", "hours": [1, "x"]}), "call.arguments.hours[1]: 'x' is not of type 'number'"),
        (call({"x": 1}, "now"), "call.arguments.x: the function has no arguments"),
        (call({}, "tomorrow"), "call.name: there is no function 'tomorrow'; there are any, now, weather"),
        (call("{'city': 1}"), "call.arguments: this is not JSON"),
        (call('{"city": "a", "city": "b"}'), "call.arguments: this is not JSON: it has 'city' twice"),
        (call('{"city": NaN}'), "call.arguments: this is not JSON: NaN"),
        (call('{"city": 1e999}'), "call.arguments: this is not JSON: 1e999"),
        (call("[1]"), "call.arguments: expected a JSON object, not [1]"),
        (call("[" * 99_999), "call.arguments: this is not JSON"),
        (call('{"a":' * 40 + "1" + "}" * 40, "any"), "call.arguments: it is nested deeper than 32"),
        (call('{"a": "' + "x" * 100_000 + '"}', "any"), "call.arguments: 100,009 characters, but at most"),
        ({"name": "weather"}, "call.arguments: expected a JSON object, not None"),
        ({"type": "code", "function": {}}, "call.type: expected 'function', not 'code'"),
        ({"function": 5}, "call.function: expected a mapping"),
        ("weather()", "call: expected a mapping"),
    ],
)
def test_a_mistake_in_a_call_is_named_at_its_place(wrong, said):
    (mistake,) = check_call(wrong, TOOLS)
    assert mistake.startswith(said)


def tool(**changes):
    """The first tool with other values, at paths such as parameters__properties."""
    made = copy.deepcopy(TOOLS[0])
    for path, value in changes.items():
        *way, last = path.split("__")
        node = made["function"]
        for name in way:
            node = node[name]
        node[last] = value
    return made


PROPERTY = "parameters__properties__city"


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([], "tools: expected a list"),
        ("weather", "tools: expected a list"),
        ([{"name": "weather"}], "tools[0]: expected a mapping with type 'function'"),
        ([TOOLS[0], TOOLS[0]], "tools: two functions are called 'weather'"),
        ([tool(name="two words")], "tools[0].function.name: expected 1 to 64 letters"),
        ([tool(description=5)], "tools[0].function.description: expected text, not 5"),
        ([tool(returns="x")], "tools[0].function.returns: a function has no such field"),
        ([tool(parameters=[])], "tools[0].function.parameters: expected a schema of type 'object'"),
        ([tool(parameters={"type": "array"})], "tools[0].function.parameters: expected a schema of type 'object'"),
        ([tool(**{PROPERTY: {"type": "text"}})], "tools[0]@.city.type: 'text' is not"),
        ([tool(**{PROPERTY: 5})], "tools[0]@.city: 5 is not of type"),
        ([tool(parameters__required=["town"])], "tools[0].function.parameters.required: 'town' is required, and no"),
        ([tool(**{PROPERTY: {"pattern": "(a+)+$"}})], "tools[0]@.city.pattern: pattern is not"),
        ([tool(**{PROPERTY: {"$ref": "#/$defs/none"}})], "tools[0]@.city.$ref: '#/$defs/none'"),
        ([tool(**{PROPERTY: {"$ref": "#"}})], "tools[0]@.city.$ref: '#' does not lead"),
        ([tool(**{PROPERTY: {"$ref": "file:///etc/passwd"}})], "tools[0]@.city.$ref: 'file"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_tool_is_named_at_its_place(tools, said):
    (mistake,) = check_tools(tools)
    assert mistake.startswith(said.replace("@", ".function.parameters.properties"))


def test_a_property_may_have_the_name_of_a_keyword():
    schema = {"type": "object", "properties": {"pattern": {"type": "string"}, "$id": {"enum": [{"pattern": 1}]}}}
    tools = [tool(parameters=schema)]
    assert check_tools(tools) == [] and check_call(call({"pattern": "(a+)+$"}), tools) == []


def test_no_reference_is_fetched():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        assert check_tools([tool(**{PROPERTY: {"$ref": url}})])
        assert check_tools([tool(**{"parameters__$id": url})])
        with pytest.raises(TimeoutError):
            server.accept()


A = {"$ref": "#/$defs/a"}
DEEP: dict = {}
for _ in range(5000):
    DEEP = {"not": DEEP}
#: Each definition refers twice to the next: 2 to the 20 ways through it.
WIDE = {f"a{i}": {"properties": {"x": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2}}} for i in range(20)}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({**A, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": A}}, "refers to itself"),
        ({"allOf": [A], "$defs": {"a": {"allOf": [A]}}}, "refers to itself"),
        ({"properties": {"x": A}, "$defs": {"a": {"properties": {"x": A}}}}, "refers to itself"),
        (A, "'#/$defs/a' does not lead to a schema"),
        ({"not": DEEP}, "nested deeper than 32 levels"),
        ({"$ref": "#/$defs/a0", "$defs": {**WIDE, "a20": {}}}, "more than 2000 parts"),
        ({"enum": [*range(3000)]}, "more than 2,000 values"),
    ],
)
def test_circles_and_boundless_schemas_are_refused_at_once(schema, said):
    begun = time.process_time()
    assert said in check_tools([tool(parameters={"type": "object", **schema})])[0]
    assert time.process_time() - begun < 1


def test_a_call_with_very_many_values_is_not_checked():
    (mistake,) = check_call(call({"a": [1] * 3000}, "any"), TOOLS)
    assert mistake == "call.arguments: it has more than 2,000 values"
