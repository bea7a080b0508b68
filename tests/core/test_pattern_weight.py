"""What a pattern takes is estimated from above: whoever writes one must not find a way around it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from holdfast.core.expression import ExpressionFailed, compile_expression
from holdfast.core.expression_patterns import MATCHING_US_MAX
from holdfast.core.pattern_weight import UNKNOWN, UNKNOWN_PLACES, UNKNOWN_US, weigh_pattern
from holdfast.core.schema import compile_schema
from holdfast.errors import Invalid

LARGE = r"\p{L}{100}"
AMBIGUOUS = r"(a|b)*a(a|b){500}c"
"""At each letter of a text nearly all of its places must be tried."""


@pytest.mark.parametrize(
    "pattern",
    [
        LARGE,
        r"\p{L}+{100}",
        r"(\p{L}){100}",
        r"(\p{L}){10}{10}",
        r"((\p{L}){10}x){10}",
        r"(?:\p{L}[](]){100}",
        r"(?P<n>\pL){50,100}",
        r"[\w-]{100}",
        r"[^\d]{100}",
        r"(\p{L})){100}",
        r"(?i:\p{L}{50})",
        r"\p{L}{100,}",
    ],
)
def test_large_pattern_is_large_however_it_is_written(pattern: str) -> None:
    weight = weigh_pattern(pattern)

    assert weight.us >= 40_000
    assert weight.places >= 50


@pytest.mark.parametrize(
    "pattern", ["(?x)( \\p{L} # (\n ){1000}", "(?ix: a )", "a{10000}{10000}", r"(\p{L}{1000}){1000}"]
)
def test_what_is_not_understood_or_without_end_takes_the_most(pattern: str) -> None:
    weight = weigh_pattern(pattern)

    assert (weight.us, weight.places) == (UNKNOWN_US, UNKNOWN_PLACES) == UNKNOWN


@pytest.mark.parametrize(
    ("pattern", "us"),
    [
        ("a", 100),
        (r"^[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}$", 100),
        ("(?i)password|secret|token|private", 200),
        (r"^\d{4}-\d{2}-\d{2}$", 5_000),
        (r"\w+@", 1_000),
    ],
)
def test_patterns_as_people_write_them_are_cheap(pattern: str, us: int) -> None:
    weight = weigh_pattern(pattern)

    assert weight.us <= us
    assert weight.places * 1_000_000 * 6 // 1000 <= MATCHING_US_MAX, "against a text of a megabyte"


def evaluated(text: str, data: Any) -> Any:
    return compile_expression(text, names={"input"}).evaluate({"input": data})


@pytest.mark.parametrize(
    ("text", "data"),
    [
        (r"input.exists(x, x.matches('\\p{L}{100}'))", ["a"] * 9_000),
        (r"input.exists(x, x.matches(r'\p{L}{100}'))", ["a"] * 9_000),
        (r"input.exists(x, x.matches('\x5cp{L}{100}'))", ["a"] * 9_000),
        ("input.exists(x, 'a'.matches(x))", [LARGE] * 9_000),
        (f"input.exists(x, [{','.join('1' * 90)}].exists(y, 'a'.matches(r'{LARGE}')))", ["a"]),
        ("input.matches(r'(a|b)*a(a|b){500}c')", "ab" * 400_000),
        ("(input + input + input).matches(r'(a|b)*a(a|b){50}c')", "ab" * 200_000),
        ("input.exists(x, x.matches(r'(a|b)*a(a|b){100}c'))", ["ab" * 5_000] * 40),
    ],
    ids=["escaped", "raw", "in hexadecimal", "from the data", "over a list of its own", "long", "joined", "many"],
)
def test_expression_does_not_hold_up_the_plane_with_patterns(text: str, data: Any) -> None:
    began = time.process_time()
    with pytest.raises(ExpressionFailed, match="too large for its patterns"):
        evaluated(text, data)

    assert time.process_time() - began < 1


def test_expression_with_too_many_large_patterns_is_refused_when_it_is_written() -> None:
    with pytest.raises(Invalid, match="its patterns take too long"):
        compile_expression(" || ".join([f"input.matches(r'{LARGE}')"] * 10), names={"input"})


def test_patterns_within_bounds_are_matched() -> None:
    assert evaluated("input.exists(x, x.matches('^b+$'))", ["a"] * 5_000 + ["bbb"])
    assert evaluated(r"input.matches('\\p{L}{20}')", "ä" * 20)
    assert evaluated("input.matches('(?i)password|secret')", "x" * 500_000 + "SECRET")


def test_text_that_is_too_long_for_a_pattern_of_somebody_else_is_refused() -> None:
    schema = compile_schema({"pattern": AMBIGUOUS})
    began = time.process_time()
    with pytest.raises(Invalid, match="too long for the patterns of the schema"):
        schema.bind("ab" * 400_000)
    with pytest.raises(Invalid, match="too long for the patterns"):
        compile_schema({"patternProperties": {AMBIGUOUS: {}}}).bind({"ab" * 400_000: 1})

    assert time.process_time() - began < 1
    assert compile_schema({"pattern": "^[^@]+@"}).bind("a@" * 400_000)
    # Whoever runs the plane writes none that it must be kept from.
    assert compile_schema({"properties": {"id": {"pattern": "^[a-z]{1,255}$"}}}, trusted=True).bind(
        {"text": "x" * 900_000}
    )
