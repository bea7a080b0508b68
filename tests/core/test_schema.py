"""Schemas: defaults are applied, values are judged, and none of them is told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core.schema import compile_schema, digest, request_digest
from holdfast.errors import Invalid

TRANSFER = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "pattern": "^acct-"},
        "amount": {"type": "integer", "minimum": 1, "default": 5},
        "options": {"type": "object", "default": {}, "properties": {"notify": {"type": "boolean", "default": True}}},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
    },
    "required": ["to"],
    "additionalProperties": False,
    "$defs": {"line": {"allOf": [{"properties": {"tax": {"type": "number", "default": 0}}}]}},
}


def test_defaults_are_filled_in_however_deep() -> None:
    bound = compile_schema(TRANSFER).bind({"to": "acct-1", "lines": [{}, {"tax": 7}]})

    assert bound == {
        "to": "acct-1",
        "amount": 5,
        "options": {"notify": True},
        "lines": [{"tax": 0}, {"tax": 7}],
    }


def test_binding_leaves_what_was_given_as_it_was() -> None:
    given: dict[str, Any] = {"to": "acct-1", "lines": [{}]}

    compile_schema(TRANSFER).bind(given)

    assert given == {"to": "acct-1", "lines": [{}]}


def test_without_defaults_the_very_value_comes_back() -> None:
    value = {"a": 1}

    assert compile_schema({"type": "object"}).bind(value) is value


def test_a_default_is_no_alternatives() -> None:
    """Of `anyOf` nobody knows which one counts before it is validated."""
    schema = compile_schema({"anyOf": [{"properties": {"a": {"default": 1}}}, {"properties": {"b": {"default": 2}}}]})

    assert schema.bind({}) == {}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"to": "hunter2"}, "$.to"),
        ({"to": "acct-1", "amount": "hunter2"}, "$.amount"),
        ({"to": "acct-1", "options": "hunter2"}, "$.options"),
        ({"to": "acct-1", "lines": [{"tax": "hunter2"}]}, "$.lines[0].tax"),
        ("hunter2", "$"),
    ],
)
def test_a_refusal_names_the_path_and_never_the_value(value: Any, path: str) -> None:
    with pytest.raises(Invalid) as refused:
        compile_schema(TRANSFER).bind(value)

    assert str(refused.value).startswith(f"{path}: ")
    assert "hunter2" not in str(refused.value)


def test_of_many_faults_a_few_are_told() -> None:
    schema = compile_schema({"additionalProperties": {"type": "integer"}})

    with pytest.raises(Invalid, match="and 7 more"):
        schema.bind({str(n): "x" for n in range(10)})


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("object", "an object, or true or false"),
        ({"type": "objekt"}, "not a JSON Schema: $.type"),
        ({"pattern": "("}, "not a JSON Schema: $.pattern"),
        ({"$ref": "#/$defs/gone"}, "not a JSON Schema"),
        ({"$ref": "http://127.0.0.1:1/x"}, "points outside"),
        ({"properties": {"a": {"$dynamicRef": "file:///etc/hostname"}}}, "points outside"),
        ({"properties": {"a": {"$ref": "#", "default": {}}}}, "defaults within defaults"),
        ({"enum": ["x" * 100_001]}, "at most 100000 bytes"),
        ({"pattern": "(a+)+(?=b)"}, "not a JSON Schema: $.pattern"),
    ],
)
def test_a_bad_schema_is_refused(document: Any, reason: str) -> None:
    with pytest.raises(Invalid) as refused:
        compile_schema(document)

    assert reason in str(refused.value)


def test_a_digest_does_not_know_the_order_of_members() -> None:
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    assert digest([1, 2]) != digest([2, 1])


@pytest.mark.parametrize(
    "other", ['{"b":[1e2,-0.0],"a":1}', '{"a":1.0,"b":[100,0]}', ' { "b" : [ 100.0, 0e5 ], "a" : 10e-1 }']
)
def test_a_request_is_the_same_however_its_numbers_are_written(other: str) -> None:
    request = msgspec.json.decode('{"a":1,"b":[100,0]}')

    assert request_digest(msgspec.json.decode(other)) == request_digest(request)


def test_another_number_is_another_request() -> None:
    written = ("1", "1.5", "9007199254740993", "9007199254740992.0", "1e300", '"1"', "true", "null")

    assert len({request_digest(msgspec.json.decode(one)) for one in written}) == len(written)


@pytest.mark.parametrize("pointer", ["#/$defs/a{}", "#a{}"])
def test_schema_that_is_short_to_write_and_endless_to_read_is_refused(pointer: str) -> None:
    steps = [
        {"$anchor": f"a{n}", "allOf": [{"$ref": pointer.format(n + 1)}] * 10, "properties": {"n": {"default": n}}}
        for n in range(8)
    ]
    defs = {f"a{n}": step for n, step in enumerate(steps)} | {"a8": {"$anchor": "a8"}}

    with pytest.raises(Invalid, match="parts"):
        compile_schema({"$defs": defs, "$ref": "#/$defs/a0"})


def _twice(target: str) -> dict[str, Any]:
    return {"allOf": [{"$ref": target}, {"$ref": target}]}


@pytest.mark.parametrize(
    "document",
    [
        {"$defs": {f"d{n}": _twice(f"#/%24defs/d{n + 1}") for n in range(40)} | {"d40": {}}, "$ref": "#/$defs/d0"},
        {
            "$defs": {"l": {"allOf": [*(_twice(f"#/$defs/l/allOf/{n + 1}") for n in range(40)), {}]}},
            "$ref": "#/$defs/l/allOf/0",
        },
        {
            "properties": {
                "a": {
                    "$id": "urn:inner",
                    "$defs": {f"d{n}": _twice(f"#/$defs/d{n + 1}") for n in range(40)} | {"d40": {}},
                    "$ref": "#/$defs/d0",
                }
            }
        },
    ],
    ids=["escaped", "in a list", "in a part with a name"],
)
def test_however_a_schema_points_into_itself_it_is_followed(document: Any) -> None:
    """Each doubles what is to be looked at forty times."""
    with pytest.raises(Invalid, match="at most 10000 parts"):
        compile_schema(document)


def test_defaults_behind_a_place_in_a_list_are_filled_in() -> None:
    schema = {
        "$defs": {"all of": {"allOf": [{"properties": {"n": {"default": 1}}}]}},
        "$ref": "#/$defs/all%20of/allOf/0",
    }

    assert compile_schema(schema).bind({}) == {"n": 1}


def test_tree_of_any_depth_is_a_schema_still() -> None:
    tree = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "value": {"type": "integer"}}}

    compile_schema(tree).bind({"left": {"left": {"value": 1}}, "right": {"value": 2}})
    with pytest.raises(Invalid, match=r"\$.left.right.value"):
        compile_schema(tree).bind({"left": {"right": {"value": "x"}}})


def test_what_is_pointed_to_by_its_anchor_gets_no_defaults_of_the_whole() -> None:
    whole = {
        "$defs": {"payee": {"$anchor": "payee", "type": "object"}},
        "properties": {"to": {"$ref": "#payee"}, "currency": {"default": "EUR"}},
    }

    assert compile_schema(whole).bind({"to": {}}) == {"to": {}, "currency": "EUR"}


@pytest.mark.parametrize("patterns", [30, 1700])
def test_patterns_are_bounded_by_what_they_take_and_not_by_how_short_they_are(patterns: int) -> None:
    """Each of these takes megabytes, and holds up everything else in the process for as long as it is compiled."""
    properties = {f"p{n}": {"pattern": rf"\p{{L}}{{20}}x{n}"} for n in range(patterns)}

    with pytest.raises(Invalid, match="patterns are too large, all together"):
        compile_schema({"properties": properties})
    with pytest.raises(Invalid, match="patterns are too large, all together"):
        compile_schema({"patternProperties": {one["pattern"]: {} for one in properties.values()}})


def test_single_pattern_that_takes_too_much_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(Invalid, match=r"not a .regex., or one that is too large: .* maxLength"):
        compile_schema({"pattern": r"^\p{L}{1,100}$"})


def test_patterns_as_people_write_them_fit() -> None:
    written = (
        r"^[^@]+@[^@]+\.[^@]+$",
        r"^\w{1,1000}$",
        r"^[^\s]{1,255}$",
        r"^[\p{L}\p{N} .'-]+$",
        r"^[A-Za-z0-9_.:@/-]{1,2000}$",
    )
    schema = compile_schema({"properties": {f"p{n}": {"pattern": one} for n, one in enumerate(written * 20)}})

    assert schema.bind({"p0": "a@b.c", "p1": "w", "p2": "x", "p3": "Ann-Marie O'Hara", "p4": "t"})
