"""Answers on stdout: aligned for people, JSON for programs. Everything else goes to stderr."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

FORMATS = ("table", "json", "jsonl")
with_output = click.option("-o", "--output", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True)

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]


def print_rows(rows: Sequence[Row], columns: Sequence[Column], output: str) -> None:
    if output == "json":
        click.echo(json_text(list(rows), indent=2))
    elif output == "jsonl":
        for row in rows:
            click.echo(json_text(row))
    elif rows:
        _print_aligned([[name.upper() for name, _ in columns], *([show(row) for _, show in columns] for row in rows)])


def print_row(row: Row, columns: Sequence[Column], output: str) -> None:
    if output == "json":
        click.echo(json_text(row, indent=2))
    elif output == "jsonl":
        click.echo(json_text(row))
    else:
        _print_aligned([[name, show(row)] for name, show in columns])


def text(name: str) -> Column:
    return name, lambda row: "-" if row[name] is None else printable(str(row[name]))


def seconds_left(name: str) -> Column:
    return "remaining", lambda row: f"{row[name] / 1000:.1f} s"


def moment(name: str) -> Column:
    """A time by the store's clock, in UTC; "-" where nobody knows it."""

    def show(row: Row) -> str:
        at = row[name]
        return "-" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z"

    return name, show


def json_value(name: str, *, width: int = 60) -> Column:
    """Any JSON value in one line, cut where it gets long: `-o json` has it whole. "-" for nothing."""

    def show(row: Row) -> str:
        found = row[name]
        if found is None or found in ({}, []):
            return "-"
        return _cut(printable(json.dumps(found, ensure_ascii=False)), width)

    return name, show


def members(name: str, *, width: int = 100) -> Column:
    """As `json_value`, of an object in the last column: `name=value` for each of its members."""

    def show(row: Row) -> str:
        told = " ".join(f"{member}={_bare(value)}" for member, value in row[name].items())
        return _cut(printable(told), width) or "-"

    return name, show


def _bare(value: object) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"


def age(seconds: float) -> str:
    """A span of time in words that fit into a table."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def printable(value: str) -> str:
    """Keys, holders and reasons are other people's words: none of them may steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)


def printable_lines(value: str) -> str:
    """As `printable`, of a text that has lines."""
    return "\n".join(printable(line.expandtabs()) for line in value.split("\n"))


def json_text(value: object, indent: int | None = None) -> str:
    """JSON for people and programs: letters as they are, and what could steer a terminal as JSON writes it."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, indent=indent, ensure_ascii=False))


_STEERING = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Of what JSON does not escape by itself: controls of eight bits, ends of lines, and turns of direction."""


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _print_aligned(lines: Sequence[Sequence[str]]) -> None:
    for line in aligned(lines):
        click.echo(line)
