"""`holdfast dead-letter`: jobs that were given up, with their evidence, and one more chance."""

from __future__ import annotations

from typing import Unpack

import click

from holdfast.cli.connect import Connection, with_plane
from holdfast.cli.output import Column, json_value, members, moment, print_row, print_rows, text
from holdfast.cli.repeat import Paging, none_of, show_page, with_pages, with_watch

_REPLAYED: Column = ("replayed_as", lambda row: row["replayed_as"] or "-")
_LINE = [text("number"), moment("at"), text("topic"), text("reason"), text("job_id"), _REPLAYED]
_EVENT = [moment("at"), text("kind"), text("state"), text("attempt"), members("detail")]
_SEE = "`holdfast dead-letter list` shows what there is"


@click.group("dead-letter")
def dead_letter() -> None:
    """See the jobs that were given up, and why; replay them."""


@dead_letter.command("list")
@with_pages
@with_watch
@with_plane
def list_letters(connection: Connection, *, watch: bool, **paging: Unpack[Paging]) -> None:
    """Dead letters, newest first."""
    show_page(
        connection,
        lambda client: client.dead_letters(**paging),
        _LINE,
        empty=none_of("dead letter", cursor=paging["cursor"]),
        watch=watch,
    )


@dead_letter.command()
@click.argument("number", type=int)
@with_plane
def show(connection: Connection, *, number: int) -> None:
    """One dead letter: the job as it ended, and everything that happened to it."""
    from msgspec import to_builtins  # noqa: PLC0415

    row = to_builtins(connection.ask(lambda client: client.dead_letter(number), hint=_SEE))
    if connection.output != "table":
        print_row(row, [], connection.output)
        return
    told = {**row, "payload": row["job"]["payload"], "error": row["job"]["error"]}
    print_row(told, [*_LINE, json_value("payload", width=200), json_value("error", width=200)], connection.output)
    click.echo()
    print_rows(row["events"], _EVENT, connection.output)
    if row["replayed_as"] is None:
        click.echo(f"replay it with `holdfast dead-letter replay {number}`", err=True)


@dead_letter.command()
@click.argument("number", type=int)
@with_plane
def replay(connection: Connection, *, number: int) -> None:
    """Submit the job of a dead letter anew. Repeated, it gives the same new job."""
    from msgspec import to_builtins  # noqa: PLC0415

    again = connection.ask(lambda client: client.replay(number), hint=_SEE)
    print_row(to_builtins(again), [text("id"), text("topic"), text("state"), text("replay_of")], connection.output)
    click.echo(f"`holdfast job watch {again.id}` follows it", err=True)
