r"""Patterns in expressions: what `matches` takes.

The interpreter compiles a pattern anew for every text that it is held against, and one of a dozen letters may take as long as a
thousand values: `\w` stands for hundreds of ranges of letters, and `{100}` for a hundred of these. So what compiling takes is
estimated from the pattern's text, from above, and is part of what an expression may cost.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from holdfast.core.expression_text import LITERAL, bodies_of
from holdfast.core.pattern_weight import PLACE_NS, UNKNOWN, Weight, weigh_pattern

MATCHING_US_MAX = 200_000
"""For all patterns of one evaluation together, in microseconds."""
_ALONE = re.compile(rf"\s*(?P<literal>{LITERAL})\s*\)", re.VERBOSE | re.DOTALL)


class Patterns(NamedTuple):
    """Of an expression."""

    calls: tuple[tuple[Weight, int], ...]
    """What each `matches` takes, and how many macros it is inside of."""
    made: int
    """How many values the text makes of nothing, at most: lists may be made of them."""
    joins: int
    """Lists and texts that are joined may be so many times as long."""

    @property
    def us_once(self) -> int:
        """What they take where each is asked for once."""
        return sum(weight.us for weight, _ in self.calls)

    def us(self, values: int, texts: Texts) -> int:
        """What they take for data of so many values, at most."""
        turns = (values + self.made) * (1 + self.joins)
        us = 0
        for weight, nesting in self.calls:
            # In a macro it may be held against each text in turn, which are all of them together.
            letters = texts.longest if nesting == 0 else texts.letters * turns ** (nesting - 1)
            us += weight.us * turns**nesting + weight.places * letters * (1 + self.joins) * PLACE_NS // 1000
        return us


class Texts(NamedTuple):
    """Of some data."""

    letters: int
    longest: int


def patterns_of(text: str, bare: str, *, read: Callable[[str], str]) -> Patterns | None:
    """None where there are none. `read` tells what the text of a literal means."""
    bodies = list(bodies_of(bare))
    calls = []
    for call in re.finditer(r"\bmatches\s*\(", bare):
        nesting = max((nested for begin, end, nested in bodies if begin <= call.start() < end), default=0)
        pattern = _ALONE.match(text, call.end())
        calls.append((UNKNOWN if pattern is None else weigh_pattern(read(pattern["literal"])), nesting))
    made = 1 + sum(bare.count(character) for character in ",[{(")
    return Patterns(tuple(calls), made, bare.count("+")) if calls else None
