"""The text of an expression, before it is compiled: its bounds, its macros, the names in it and where they stand.

Looking at the text is enough for all of that: literals and comments are blanked out first, and what is
left of CEL has brackets, names and operators.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
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


class Macro(NamedTuple):
    at: int
    variable: str
    nesting: int
    """1: in no other macro."""


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


def _macros(bare: str) -> Iterator[Macro]:
    begins = {found.end(1): found for found in _MACRO.finditer(bare)}
    opened: list[bool] = []
    awaited: re.Match[str] | None = None
    for at, character in enumerate(bare):
        awaited = begins.get(at, awaited)
        if character in "([{":
            opened.append(awaited is not None)
            if awaited is not None:
                yield Macro(awaited.start(1), awaited[2] or "", sum(opened))
                awaited = None
        elif character in ")]}" and opened:
            opened.pop()


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
