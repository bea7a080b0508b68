"""Expressions: what they say, what they refuse, and what they never tell."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from holdfast.core.expression import (
    VALUES_MAX,
    ExpressionFailed,
    Reading,
    compile_expression,
)
from holdfast.core.expression_text import LENGTH_MAX
from holdfast.core.template import FILLED_BYTES_MAX, FilledTooLarge, compile_template
from holdfast.errors import Invalid


@pytest.mark.parametrize(
    ("text", "variables", "value"),
    [
        ("payload.amount > 100", {"payload": {"amount": 101}}, True),
        ("has(payload.amount)", {"payload": {}}, False),
        ("labels['env'] == 'prod'", {"labels": {"env": "prod"}}, True),
        ("payload.items.all(x, x.n > 0)", {"payload": {"items": [{"n": 1}, {"n": 2}]}}, True),
        ("topic.startsWith('mail.') && size(payload) == 1", {"topic": "mail.send", "payload": [1]}, True),
        ("  steps.fetch.output ", {"steps": {"fetch": {"output": [1, 2.5, None]}}}, [1, 2.5, None]),
        ("'a, b.all(' + \"(((\" // (((", {}, "a, b.all(((("),
    ],
)
def test_an_expression_has_the_value_of_its_data(text: str, variables: dict[str, Any], value: object) -> None:
    assert compile_expression(text).evaluate(variables) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must not be empty"),
        ("amount >", "column 9: it ends too early"),
        ("amount >\n  > 5", "line 2, column 3"),
        ("amnt > 5", "column 1: no such variable: amnt (there are: amount, payload)"),
        ("amount > 5 && launch(amount)", "column 15: no such function: launch"),
        ("payload.all(amount, amount > 1)", "column 13: amount is a variable already"),
        ("x" * (LENGTH_MAX + 1), "at most 2000 characters, not 2001"),
        ("(" * 17 + "1" + ")" * 17, "column 17: more than 16 brackets within each other"),
        ("+".join(["1"] * 202), "at most 200 operators, not 201"),
        (" && ".join(["payload.all(x, x)"] * 9), "more than 8 macros"),
        ("payload.all(x, x.all(y, y.all(z, z)))", "column 27: more than 2 macros within each other"),
    ],
)
def test_a_bad_expression_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(Invalid) as refused:
        compile_expression(text, names=("amount", "payload"))

    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("text", "payload"),
    [
        ("payload[payload.key] > 1", {"key": "hunter2"}),
        ("payload.a + 1 > 2", {"a": "hunter2"}),
        ("int(payload.a) > 2", {"a": "hunter2"}),
        ("payload.a + 9223372036854775807 > 2", {"a": 271828182845}),
        ("[1][payload.a] > 2", {"a": 271828182845}),
        ("payload.a / 0 > 2", {"a": 271828182845}),
        ("payload.a.b", {"a": "hunter2"}),
        ("payload.a > 2 && payload.b == 'x'", {"a": 10**400 + 271828182845, "b": "hunter2"}),
    ],
)
def test_a_failure_tells_no_value_of_the_data(text: str, payload: dict[str, Any]) -> None:
    with pytest.raises(ExpressionFailed) as failed:
        compile_expression(text).evaluate({"payload": payload})

    assert "hunter2" not in repr(failed.value)
    assert "271828182845" not in repr(failed.value)
    assert failed.value.__cause__ is None


def test_data_that_is_too_large_is_refused_not_gone_through() -> None:
    many, square = {"a": [1] * (VALUES_MAX + 1)}, {"a": [1] * 400}

    with pytest.raises(ExpressionFailed, match="more than 10000 values"):
        compile_expression("size(payload.a) > 1").evaluate({"payload": many})
    with pytest.raises(ExpressionFailed, match="too large"):
        compile_expression("payload.a.all(x, payload.a.all(y, x == y))").evaluate({"payload": square})


TEN_TIMES = ".map(x, x + x + x + x + x + x + x + x + x + x)"


@pytest.mark.parametrize(
    "text",
    [
        f"size(['0123456789']{TEN_TIMES * 8}) > 0",  # a gigabyte, of nothing
        "size(payload.a.map(x, payload.a)) > 0",
        "size(payload.a.map(x, [x, x, x, x]).map(y, y + y + y + y)) > 0",
        "payload.a.map(x, payload.text)[0] == ''",
        f"[payload.a]{TEN_TIMES}[0].map(y, y) == []",
        "size(" + " + ".join(["payload.text"] * 90) + ") > 0",
        "(payload.a + payload.a + payload.a).filter(x, x > 0) == []",
        "payload.a.all(x, payload.a.map(y, y) == [])",
    ],
)
def test_what_could_grow_out_of_all_bounds_is_refused_and_not_begun(text: str) -> None:
    """Each would take seconds to minutes, or all of the memory."""
    payload = {"a": list(range(2500)), "text": "x" * 1_900_000}

    with pytest.raises(ExpressionFailed, match="the data is too large for it"):
        compile_expression(text, names=("payload",)).evaluate({"payload": payload})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("size(payload.rows.filter(x, x.paid && x.id != payload.name))", 500),
        ("size(payload.rows.map(x, x.id))", 500),
        ("size(payload.rows.filter(x, x.id == 'r7').map(x, {'id': x.id, 'more': x.n + 1}))", 1),
        ("payload.ids.all(x, x != payload.name)", True),
        ("payload.ids.exists(x, x == payload.name + '!')", False),
        ("payload.name in payload.ids", False),
    ],
)
def test_what_people_ask_of_a_list_is_not_refused(text: str, value: object) -> None:
    rows = [{"id": f"r{n}", "n": n, "paid": True} for n in range(500)]
    payload = {"rows": rows, "ids": [f"r{n}" for n in range(5000)], "name": "ann"}

    assert compile_expression(text, names=("payload",)).evaluate({"payload": payload}) == value


def test_only_the_members_that_are_named_count() -> None:
    payload = {"small": 1, "large": [1] * (VALUES_MAX + 1)}

    assert compile_expression("payload.small == 1").evaluate({"payload": payload}) is True


def test_a_path_hands_on_what_it_names_however_large() -> None:
    large = [2**70] * (VALUES_MAX + 1)

    assert compile_expression("steps.fetch").evaluate({"steps": {"fetch": large}}) is large


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("payload.a > 1 && has(payload.b)", {"payload": {"a", "b"}}),
        ("payload.a.payload.b == topic", {"payload": {"a"}, "topic": None}),
        ("payload['a'] == 1 && payload.b == 1", {"payload": None}),
        ("payload.size() > 1", {"payload": None}),
        ("payload.a.all(x, x.payload)", {"payload": {"a"}}),
        ("'payload.a' == 'b'", {}),
    ],
)
def test_what_an_expression_reads_is_known_before(text: str, reads: dict[str, Any]) -> None:
    assert compile_expression(text).reads == reads


def test_expressions_about_the_same_data_share_it() -> None:
    first, second = compile_expression("payload.a > 1"), compile_expression("payload.b > 1 && payload.a > 1")

    facts = Reading((first, second)).over({"payload": {"a": 2, "b": 1, "c": 0}})

    assert (facts.value(first), facts.value(second)) == (True, False)


def test_the_largest_expressions_fit_on_a_small_stack() -> None:
    """A parser that overflows takes the whole process along; half a megabyte is what some systems give a thread."""
    story = """
import threading
from holdfast.core.expression import compile_expression

def run():
    for text in ("+".join(["1"] * 201), "!" * 200 + "true", "[" * 16 + "1" + "]" * 16, "-" * 200 + "1", "a" + "[0]" * 200):
        try:
            compile_expression(text).evaluate({"a": []})
        except Exception as error:
            assert type(error).__name__ in {"ExpressionFailed", "Invalid"}, error
    print("whole")

threading.stack_size(512 * 1024)
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""
    done = subprocess.run([sys.executable, "-c", story], capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stdout.strip()) == (0, "whole"), done.stderr


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("${n}", 1),
        ("${ n + 1 }", 2),
        ("n is ${n}, m is ${m}", 'n is 1, m is {"k":"v"}'),
        ("$${n} costs $5", "${n} costs $5"),
        ("${ {'}': '}'}['}'] }!", "}!"),
        ({"a": ["${m}", None, True], "${n}": "kept"}, {"a": [{"k": "v"}, None, True], "${n}": "kept"}),
        ("", ""),
    ],
)
def test_a_template_is_filled(template: Any, filled: Any) -> None:
    assert compile_template(template).fill({"n": 1, "m": {"k": "v"}}) == filled


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ({"a": [{"b": "${ n + }"}]}, "$.a[0].b: column 6: it ends too early"),
        ("${n", "$: column 1: ${ without its }"),
        ("${x}", "$: column 1: no such variable: x"),
    ],
)
def test_a_bad_template_is_refused_with_its_path(template: Any, reason: str) -> None:
    with pytest.raises(Invalid) as refused:
        compile_template(template, names=("n",))

    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "text", ["${duration('1h')}", "${1.0 / 0.0}", "${b'bytes'}", "at ${timestamp('2026-01-01T00:00:00Z')}"]
)
def test_what_is_no_json_fills_nothing(text: str) -> None:
    with pytest.raises(ExpressionFailed, match="none of JSON"):
        compile_template(text).fill({})


@pytest.mark.parametrize("template", [["${big}"] * 5, "${big} " * 5, {"a": "${deep}", "b": ["${deep} ${deep}"] * 3}])
def test_what_is_named_often_counts_as_often(template: Any) -> None:
    """Else a template of a few thousand characters would make a text of gigabytes."""
    big = "x" * (FILLED_BYTES_MAX // 4)

    with pytest.raises(FilledTooLarge, match=str(FILLED_BYTES_MAX)):
        compile_template(template).fill({"big": big, "deep": {"of": [big]}})
