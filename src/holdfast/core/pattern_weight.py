r"""What a pattern takes: to be compiled, and to be held against a text. Estimated from its own text, and from above.

The engine is linear in the text, and in the pattern as it is compiled: `\w` stands for hundreds of ranges of letters, `{100}` for a
hundred of what is before it, and all of them may have to be tried at every letter of a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

UNKNOWN_US = 120_000
"""Of a pattern that is not understood here: later the engine gives up."""
UNKNOWN_PLACES = 20_000
BEGIN_US = 20
WIDE_US, MIDDLE_US, LETTER_US = 400, 60, 1
"""Of one `\\w`, `\\d` or `\\p{…}`; of one `.`, `\\s` or class that leaves something out; of a letter or a class of letters."""
_INSENSITIVE = {False: 1, True: 4}
"""So many times as much, where large and small letters are the same."""

WRITTEN = 8
"""So many places that are written one by one count as one: words that are looked for are hardly ever tried all at once."""
PLACE_NS = 6
"""Of one place of a pattern, for one letter of a text."""

_WIDE = frozenset("wWdDpP")
_SPACES = frozenset("sS")
_OPENING = re.compile(r"\((?:\?[A-Za-z-]*(?P<end>[:)])|\?P?<\w+>)?")
_WITH_COMMENTS = re.compile(r"\(\?[A-Za-z-]*x")
_FOLDED = re.compile(r"\(\?[A-Za-z-]*i")
_REPEATED = re.compile(r"\{\s*(\d+)\s*(?:,\s*(\d*)\s*)?\}")
_NAMED = re.compile(r"\\[pP](?:\{[^}]*\}|.)")


class Weight(NamedTuple):
    us: int
    """What it takes to compile it, in microseconds."""
    places: int
    """How many letters and classes there are in it, each as often as it is repeated: all may be tried at one letter."""


UNKNOWN = Weight(UNKNOWN_US, UNKNOWN_PLACES)


def texts_in(value: Any) -> Iterator[str]:
    """Every text in it, names of members among them."""
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            rest.extend(one.keys())
            rest.extend(one.values())
        elif isinstance(one, list | tuple):
            rest.extend(one)


def weigh_pattern(pattern: str) -> Weight:
    if _WITH_COMMENTS.search(pattern):
        return UNKNOWN  # in which brackets mean nothing
    us = BEGIN_US + _total(pattern, lambda atom: atom, most=UNKNOWN_US) * _INSENSITIVE[bool(_FOLDED.search(pattern))]
    written = _total(pattern, lambda _: 1, most=UNKNOWN_PLACES, repeated=False)
    places = _total(pattern, lambda _: 1, most=UNKNOWN_PLACES)
    if places < UNKNOWN_PLACES:
        places += 1 - written + written // WRITTEN
    return Weight(min(UNKNOWN_US, us), places)


def _total(pattern: str, count: Callable[[int], int], *, most: int, repeated: bool = True) -> int:
    """Of what each of its atoms counts, `most` at most."""
    groups, last, at = [0], 0, 0
    while at < len(pattern):
        character = pattern[at]
        if again := _REPEATED.match(pattern, at):
            more = last * max(int(number or 0) for number in again.groups()) if repeated else 0
            groups[-1] += more
            last += more
            at = again.end()
        elif character == "(":
            opening = _OPENING.match(pattern, at)
            assert opening is not None
            if opening["end"] != ")":
                groups.append(0)
            at = opening.end()
        elif character == ")":
            # One that closes nothing is refused by the engine, or was misread: then all before it may be meant.
            last = groups[-1]
            if len(groups) > 1:
                groups.pop()
                groups[-1] += last
            at += 1
        elif character in "*+?":
            at += 1  # what they repeat is compiled once, and may be repeated again
        else:
            us, at = _atom(pattern, at)
            last = count(us)
            groups[-1] += last
        if sum(groups) > most:
            return most
    return sum(groups)


def _atom(pattern: str, at: int) -> tuple[int, int]:
    """What the letter or class at this place takes, and where the next begins."""
    match pattern[at]:
        case "\\":
            following = pattern[at + 1 : at + 2]
            named = _NAMED.match(pattern, at)
            us = WIDE_US if following in _WIDE else MIDDLE_US if following in _SPACES else LETTER_US
            return us, named.end() if named else at + 2
        case "[":
            end = _end_of_class(pattern, at)
            return _class_us(pattern[at + 1 : end]), end
        case ".":
            return MIDDLE_US, at + 1
        case _:
            return LETTER_US, at + 1


def _end_of_class(pattern: str, at: int) -> int:
    """Behind its bracket. A closing one that comes first is a letter."""
    depth, place = 1, at + 1
    place += pattern.startswith("^", place)
    place += pattern.startswith("]", place)
    while place < len(pattern) and depth:
        if pattern[place] == "\\":
            place += 1
        elif pattern[place] == "[":
            depth += 1
        elif pattern[place] == "]":
            depth -= 1
        place += 1
    return place


def _class_us(inside: str) -> int:
    escaped = {found[1] for found in re.finditer(r"\\(.)", inside, re.DOTALL)}
    if escaped & _WIDE:
        return WIDE_US * sum(found[1] in _WIDE for found in re.finditer(r"\\(.)", inside, re.DOTALL))
    return MIDDLE_US if "^" in inside or escaped & _SPACES or not inside.isascii() else LETTER_US
