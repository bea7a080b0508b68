"""The text of an expression, before it is compiled: its bounds, its macros, the names in it and where they stand.

Looking at the text is enough for all of that: literals and comments are blanked out first, and what is
left of CEL has brackets, names and operators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from holdfast.errors import Invalid

LENGTH_MAX = 2_000
NESTING_MAX = 16
"""Brackets within brackets."""
OPERATORS_MAX = 200
MACROS_MAX = 8
MACRO_NESTING_MAX = 2

MACROS = frozenset({"all", "exists", "exists_one", "map", "filter"})
FUNCTIONS = frozenset(
    {
        *("size", "contains", "startsWith", "endsWith", "matches", "has"),
        *("int", "uint", "double", "string", "bytes", "type", "dyn", "duration", "timestamp"),
        *("getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear"),
        *("getHours", "getMinutes", "getSeconds", "getMilliseconds"),
    }
)

LITERAL = r"""
    [rR][bB]?(?:\"\"\".*?\"\"\"|'''.*?'''|"[^"\n]*"|'[^'\n]*')
  | [bB]?(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
"""
_UNREAD = re.compile(rf"{LITERAL}|//[^\n]*", re.VERBOSE | re.DOTALL)
"""Text in which brackets and names mean nothing: literals and comments."""
_OPERATOR = re.compile(r"&&|\|\||[<>=!]=|[-+*/%!<>?:.,\[\(\{]|\bin\b")
_MACRO = re.compile(r"\.\s*(all|exists_one|exists|map|filter)\s*\(\s*([A-Za-z_]\w*)?")
_MEMBER = re.compile(r"\s*\.\s*([A-Za-z_]\w*+)(?!\s*\()")
_WHERE = re.compile(r"<input>:(\d+):(\d+): (?:Syntax error: )?([^\n]*)")


_REFERENCE = re.compile(r"(?<![\w.])([A-Za-z_]\w*+)(?!\s*\()(?:\s*\.\s*([A-Za-z_]\w*+)(?!\s*\())?")
_NO_NAMES = frozenset({"true", "false", "null", "in"})
_MADE = re.compile(r"[,\[{(]")
"""Each may stand for one more value that the text itself makes."""


class Reference(NamedTuple):
    """That a text names a variable, and a member of it; None: the whole of it."""

    name: str
    member: str | None


class Macro(NamedTuple):
    at: int
    variable: str
    nesting: int
    """1: in no other macro."""
    word: str
    own: int
    """How often its body names the macro's variable."""
    others: tuple[Reference, ...]
    """What else the body names."""
    made: int
    """How many values the body makes of nothing, at most."""


class Cost(NamedTuple):
    """What an evaluation copies at most. The interpreter copies a list with all that is in it for each value that it adds,
    and a text for each text: so a short expression, over data that is not large at all, could fill the memory or take
    minutes."""

    named: tuple[Reference, ...]
    """Outside of macros."""
    joins: int
    """`+` outside of macros: what is there may become so much longer."""
    made: int
    indexed: bool
    """Something is taken out of what a macro made: it may be longer than any list of the data."""
    macros: tuple[Macro, ...]

    @property
    def grows(self) -> bool:
        """Whether it makes lists, item by item."""
        return any(macro.word in ("map", "filter") for macro in self.macros)

    def copies(self, weigh: Callable[[Reference], int], *, longest: int) -> int:
        """In values; `weigh` tells how many there are in what a reference names, `longest` is the longest list."""
        held = sum(map(weigh, self.named)) + self.made
        length = max(longest, self.made) * (1 + self.joins)
        copies = held * self.joins
        for macro in self.macros:
            turns = held if macro.nesting > 1 or self.indexed else min(length, held)
            used = macro.own * held + turns * (sum(map(weigh, macro.others)) + macro.made)
            match macro.word:
                case "map":
                    copies += turns * used
                    held += used
                case "filter":
                    copies += turns * held + used
                case _:
                    copies += used
        return copies


def blanked(text: str) -> str:
    """The text with spaces for its literals and comments, everything else where it was."""
    return _UNREAD.sub(lambda found: " " * len(found[0]), text)


def check_bounds(text: str, bare: str) -> list[Macro]:
    """The macros of an expression whose text is within bounds. Raises `Invalid`."""
    if not text.strip():
        raise Invalid("an expression must not be empty")
    if len(text) > LENGTH_MAX:
        raise Invalid(f"an expression has at most {LENGTH_MAX} characters, not {len(text)}")
    _check_size(bare)
    macros = list(_macros(bare))
    if len(macros) > MACROS_MAX:
        raise Invalid(f"{_place(text, macros[MACROS_MAX].at)}: more than {MACROS_MAX} macros ({_all(MACROS)})")
    for macro in macros:
        if macro.nesting > MACRO_NESTING_MAX:
            raise Invalid(f"{_place(text, macro.at)}: more than {MACRO_NESTING_MAX} macros within each other")
    return macros


def members_of(bare: str, name: str) -> frozenset[str] | None:
    """The members of a variable that the text names; None where it reads the variable in another way, too."""
    members = set()
    for found in re.finditer(rf"(?<![\w.]){re.escape(name)}\b", bare):
        member = _MEMBER.match(bare, found.end())
        if member is None:
            return None
        members.add(member[1])
    return frozenset(members) if members else None


def cost_of(text: str, bare: str, macros: Collection[Macro]) -> Cost | None:
    """None for what copies nothing that counts."""
    outside = bare
    for begin, end, _ in bodies_of(bare):
        outside = outside[:begin] + " " * (end - begin) + outside[end:]
    joins = outside.count("+")
    if not macros and not joins:
        return None
    return Cost(
        named=tuple(_references(outside)),
        joins=joins,
        made=_made(outside) + len(text) // 256,
        indexed=re.search(r"\)\s*\[", bare) is not None,
        macros=tuple(macros),
    )


def _macros(bare: str) -> Iterator[Macro]:
    """Those that others are in come before these."""
    begins = {found.end(1): found for found in _MACRO.finditer(bare)}
    for begin, end, nesting in sorted(bodies_of(bare)):
        found = next(begins[at] for at in range(begin - 1, -1, -1) if at in begins)
        variable, body = found[2] or "", bare[begin:end]
        named = list(_references(body))
        yield Macro(
            at=found.start(1),
            variable=variable,
            nesting=nesting,
            word=found[1],
            own=sum(one.name == variable for one in named) - 1,
            others=tuple(one for one in named if one.name != variable),
            made=_made(body) + len(body) // 256,
        )


def bodies_of(bare: str) -> Iterator[tuple[int, int, int]]:
    """Of each macro: where the inside of its brackets begins and ends, and how many macros that is inside of. One that is
    never closed ends with the text: the parser will say what is wrong with it."""
    begins = {found.end(1) for found in _MACRO.finditer(bare)}
    opened: list[tuple[int, bool]] = []
    awaited = False
    for at, character in enumerate(bare):
        awaited = awaited or at in begins
        if character in "([{":
            opened.append((at + 1, awaited))
            awaited = False
        elif character in ")]}" and opened:
            begin, is_macro = opened.pop()
            if is_macro:
                yield begin, at, 1 + sum(macro for _, macro in opened)
    for place, (begin, is_macro) in enumerate(opened):
        if is_macro:
            yield begin, len(bare), 1 + sum(macro for _, macro in opened[:place])


def _references(bare: str) -> Iterator[Reference]:
    for found in _REFERENCE.finditer(bare):
        if found[1] not in _NO_NAMES:
            yield Reference(found[1], found[2])


def _made(bare: str) -> int:
    return 1 + sum(1 for _ in _MADE.finditer(bare))


def _check_size(bare: str) -> None:
    operators = sum(1 for _ in _OPERATOR.finditer(bare))
    if operators > OPERATORS_MAX:
        raise Invalid(f"an expression has at most {OPERATORS_MAX} operators, not {operators}")
    depth = 0
    for at, character in enumerate(bare):
        depth += (character in "([{") - (character in ")]}")
        if depth > NESTING_MAX:
            raise Invalid(f"{_place(bare, at)}: more than {NESTING_MAX} brackets within each other")


def check_names(
    text: str,
    bare: str,
    *,
    functions: Collection[str],
    read: Collection[str],
    macros: Collection[Macro],
    names: Collection[str] | None,
) -> None:
    """The interpreter would find an unknown name only when it is asked for: too late for who wrote it.
    `names` are the variables that there will be; None: any."""
    called = {name for name in functions if re.fullmatch(r"\w+", name)}
    if unknown := sorted(called - FUNCTIONS):
        place = _found_at(text, bare, unknown[0])
        raise Invalid(f"{place}: no such function: {unknown[0]} (there are: {_all(FUNCTIONS)})")
    if names is None:
        return
    if hidden := sorted({macro.variable for macro in macros} & set(names)):
        place = _found_at(text, bare, hidden[0])
        raise Invalid(f"{place}: {hidden[0]} is a variable already; name the macro's otherwise")
    if unknown := sorted(set(read) - set(names)):
        place = _found_at(text, bare, unknown[0])
        raise Invalid(f"{place}: no such variable: {unknown[0]} (there are: {_all(names)})")


def _all(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


def _found_at(text: str, bare: str, name: str) -> str:
    found = re.search(rf"\b{re.escape(name)}\b", bare)
    return _place(text, found.start() if found else 0)


def _place(text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    return f"line {line}, column {column}" if "\n" in text else f"column {column}"


def syntax_error(message: str) -> str:
    found = _WHERE.search(message)
    if found is None:
        return "this is not an expression"
    line, column, words = found.groups()
    # The list of all that would have been possible helps nobody.
    words = words.split(" expecting ")[0].replace("mismatched input '<EOF>'", "it ends too early")
    return f"{f'line {line}, ' if line != '1' else ''}column {column}: {words}"
