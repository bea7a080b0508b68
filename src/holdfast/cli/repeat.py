"""What list commands have in common: pages, and `--watch`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict, TypeVar

import click

from holdfast.cli.connect import Connection
from holdfast.cli.output import Column, print_rows
from holdfast.cli.refusals import Away

if TYPE_CHECKING:
    from holdfast.client import Client

EVERY_S = 1.0


class Paging(TypedDict):
    """What `with_pages` gives a command, for the client."""

    cursor: str | None
    limit: int


class Listed(Protocol):
    """What the verbs of the client that list things give. Not all of them have a `next_cursor`."""

    @property
    def items(self) -> Sequence[object]: ...


F = TypeVar("F", bound=Callable[..., None])
L = TypeVar("L", bound=Listed)


class _Page(NamedTuple):
    rows: list[dict[str, Any]]
    remark: str = ""
    """For people, on stderr: how to see more, or that there is nothing."""


def with_pages(command: F) -> F:
    command = click.option("--cursor", help="Go on where the page before ended.")(command)
    return click.option(
        "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many to show."
    )(command)


def with_watch(command: F) -> F:
    return click.option("-w", "--watch", is_flag=True, help="Stay, and show it anew whenever it changes.")(command)


def none_of(noun: str, *filters: object, cursor: str | None = None) -> str:
    """What an empty list says: that there is none at all, or none of those that were asked for."""
    if cursor:
        return f"there is no further {noun}"
    return f"there is no {noun} that fits" if any(filters) else f"there is no {noun} yet"


def _how_to_go_on(found: Listed) -> str:
    next_cursor = getattr(found, "next_cursor", None)
    return f"more: --cursor {next_cursor}" if next_cursor else ""


def show_page(
    connection: Connection,
    ask: Callable[[Client], L],
    columns: Sequence[Column],
    *,
    empty: str,
    remark: Callable[[L], str] = _how_to_go_on,
    watch: bool = False,
    hint: str = "",
) -> None:
    """Ask and print once; with `watch`, again whenever the answer is another one, until interrupted."""
    from msgspec import to_builtins  # noqa: PLC0415

    def read(client: Client) -> _Page:
        listed = ask(client)
        rows = [to_builtins(item) for item in listed.items]
        return _Page(rows, remark(listed) or ("" if rows else empty))

    found = connection.ask(read, hint=hint)
    _print(found, columns, connection.output)
    while watch:
        _pause()
        try:
            news = connection.ask(read, hint=hint)
        except Away as error:
            # Who watches a plane wants to see it come back.
            click.echo(f"{error.format_message()} (trying again)", err=True)
            continue
        if news != found:
            found = news
            if connection.output == "table":
                _part(sys.stdout)
            _print(found, columns, connection.output)


def _print(found: _Page, columns: Sequence[Column], output: str) -> None:
    print_rows(found.rows, columns, output)
    if found.remark and (output == "table" or found.rows):
        click.echo(found.remark, err=True)


def _part(stdout: IO[str]) -> None:
    if stdout.isatty():
        click.clear()
    else:
        click.echo()


def _pause() -> None:
    from holdfast.locks.runtime import SYSTEM  # noqa: PLC0415

    SYSTEM.sleep(EVERY_S)
