"""Documents: what a text means, where it says so, and what is refused before it can do harm."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.document import BYTES_MAX, NESTING_MAX, NODES_MAX, Refused, load_document

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=50).filter(lambda key: key != "<<"), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(deadline=None)  # the first one imports the parser
@given(value=JSON)
def test_json_is_read_as_what_it_is(value: object) -> None:
    assert load_document(json.dumps(value)).value == value


def test_words_mean_what_they_look_like() -> None:
    text = (
        "on: off\nyes: no\nnothing: ~\ntime: 12:30\ndate: 2030-01-31\nnumber: 12\nhalf: .5\nquoted: '12'\ntrue: true\n"
    )

    assert load_document(text).value == {
        "on": "off",
        "yes": "no",
        "nothing": None,
        "time": "12:30",
        "date": "2030-01-31",
        "number": 12,
        "half": 0.5,
        "quoted": "12",
        "true": True,
    }


def test_it_knows_the_line_of_everything() -> None:
    document = load_document("a: 1\nb:\n  - x: 1\n    y:\n      - 2\n  - z\n")

    assert document.line_of(("a",)) == 1
    assert document.line_of(("b", 0, "y", 0)) == 5
    assert document.line_of(("b", 1)) == 6
    assert document.line_of(("b", 0, "absent", "deeper")) == 3


BOMB = "a: &a [x, x, x]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]\n"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "empty"),
        ("a: 1\na: 2", 2, "twice; the first is on line 1"),
        (BOMB, 1, "anchor"),
        ("a: *x", 1, "alias"),
        ("a: 1\n<<: {b: 2}", 2, "merge"),
        ("a: !!python/object/apply:os.system [ls]", 1, "tag"),
        ("a: 1\n? [k]\n: 2", 2, "name of a member"),
        ("a: [1\nb: 2", 2, "not YAML"),
        ("--- 1\n--- 2", 2, "second document"),
        ("a: \x01", 1, "not text"),
        (b"\xff\xfe\xfa", 1, "not text"),
        ("a: 1e999", 1, "too large"),
        ("a: " + "9" * 30, 1, "digits"),
        ("[" * (NESTING_MAX + 1), 1, "levels"),
        ("- 1\n" * (NODES_MAX + 1), NODES_MAX, "values"),
        ("#" * (BYTES_MAX + 1), 1, "bytes"),
    ],
)
def test_what_cannot_be_taken_is_refused_with_its_line(text: str | bytes, line: int, words: str) -> None:
    with pytest.raises(Refused, match=words) as refused:
        load_document(text)

    assert refused.value.line == line
    assert str(refused.value).startswith(f"line {line}: ")
