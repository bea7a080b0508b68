"""`holdfast incident`: keep together what is seen, said and done while something is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from holdfast.cli.connect import Connection, with_plane
from holdfast.cli.output import Column, moment, print_row, printable_lines, text
from holdfast.cli.refusals import Absent
from holdfast.cli.repeat import Paging, show_page, with_pages
from holdfast.cli.saying import F, with_by

if TYPE_CHECKING:
    from holdfast.api.incidents import IncidentView
    from holdfast.client import Client

_NOTES: Column = ("notes", lambda row: str(len(row["notes"])))
_LINE = [text("number"), text("title"), moment("started_at"), moment("stopped_at"), text("by"), text("strict"), _NOTES]
_SEE = "`holdfast incident list` shows those there were"


@click.group()
def incident() -> None:
    """Start one when something is wrong: what is done from then on is kept together."""


def with_number(command: F) -> F:
    return click.option("--number", type=click.IntRange(min=1), help="Which one.  [default: the newest]")(command)


@incident.command()
@click.option("--title", required=True, metavar="TEXT", help="What is wrong, in a few words.")
@click.option("--keep-matrix", is_flag=True, help="Do not make the policy matrix strict until it is stopped.")
@with_by
@with_plane
def start(connection: Connection, *, title: str, keep_matrix: bool, by: str) -> None:
    """Keep a snapshot of how things stand, and make the policy matrix strict."""
    made = connection.ask(lambda client: client.start_incident(title, strict=not keep_matrix, by=by), hint=_SEE)
    _show(connection, made)


@incident.command()
@click.argument("words")
@with_number
@with_by
@with_plane
def note(connection: Connection, *, words: str, number: int | None, by: str) -> None:
    """Write WORDS down, with the time."""
    _show(
        connection,
        connection.ask(lambda client: client.note_incident(_chosen(client, number), words, by=by), hint=_SEE),
    )


@incident.command()
@click.option("--summary", default="", metavar="TEXT", help="What it was.")
@with_number
@with_by
@with_plane
def stop(connection: Connection, *, summary: str, number: int | None, by: str) -> None:
    """End it: another snapshot, and the matrix as it was."""
    _show(
        connection,
        connection.ask(lambda client: client.stop_incident(_chosen(client, number), summary=summary, by=by), hint=_SEE),
    )


@incident.command("list")
@with_pages
@with_plane
def list_incidents(connection: Connection, **paging: Unpack[Paging]) -> None:
    """Incidents, newest first."""
    show_page(connection, lambda client: client.incidents(**paging), _LINE, empty="there was none")


@incident.command()
@with_number
@with_plane
def export(connection: Connection, *, number: int | None) -> None:
    """A draft of the post-mortem in Markdown, with the timeline; with `-o json` all of it as JSON."""
    from msgspec import to_builtins  # noqa: PLC0415

    found = connection.ask(lambda client: client.export_incident(_chosen(client, number)), hint=_SEE)
    if connection.output == "table":
        click.echo(printable_lines(found.markdown), nl=False)
    else:
        print_row(to_builtins(found), [], connection.output)
    if found.cut:
        click.echo("there was more than is told here; the events have it", err=True)


def _chosen(client: Client, number: int | None) -> int:
    if number is not None:
        return number
    newest = client.incidents(limit=1).items
    if not newest:
        raise Absent("there is no incident. Start one with `holdfast incident start --title TEXT`")
    return newest[0].number


def _show(connection: Connection, found: IncidentView) -> None:
    from msgspec import to_builtins  # noqa: PLC0415

    print_row(to_builtins(found), _LINE, connection.output)
