"""What callers hand over is stored as it was meant, or refused."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from holdfast.core.plain_json import to_json


@dataclass
class Score:
    value: float | None


@pytest.mark.parametrize(
    ("value", "document"),
    [
        (None, b"null"),
        ({"a": [1, None, "null"], "b": (1.5, {})}, b'{"a":[1,null,"null"],"b":[1.5,{}]}'),
        ({1: None}, b'{"1":null}'),
        (Score(None), b'{"value":null}'),
        (msgspec.Raw(b"[null]"), b"[null]"),
    ],
)
def test_a_value_becomes_json(value: object, document: bytes) -> None:
    assert to_json(value) == document


@pytest.mark.parametrize(
    "value", [float("nan"), {"a": [1, float("inf")]}, (0, {"b": -float("inf")}), Score(float("nan"))]
)
def test_a_number_without_a_word_is_refused_and_not_made_null(value: object) -> None:
    with pytest.raises(ValueError, match="NaN and infinity are no JSON"):
        to_json(value)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError):
        to_json([None, object()])
