"""`holdfast audit`: who changed what, when and why; and whether that is still what was written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Unpack

import click

from holdfast.cli.connect import Connection, with_plane
from holdfast.cli.output import json_text, json_value, moment, print_row, text
from holdfast.cli.refusals import Misused
from holdfast.cli.repeat import Paging, none_of, show_page, with_pages, with_watch
from holdfast.cli.saying import F

if TYPE_CHECKING:
    from holdfast.api.audit import AuditPage
    from holdfast.client import Client

_LINE = [
    *(text("number"), moment("at"), text("by"), text("action")),
    *(text("subject"), text("reason"), json_value("detail")),
]
_WHOLE = [*_LINE[:-1], json_value("detail", width=1000), text("previous"), text("hash")]
_VERDICT = [text("intact"), text("lines"), moment("first_at"), moment("last_at"), text("hash"), text("why")]
_SEE = "`holdfast audit list` shows what there is"
_KNOWN = re.compile(r"[1-9][0-9]{0,17}:[0-9a-f]{64}")
BROKEN = 1


@click.group()
def audit() -> None:
    """Who changed what, when and why. Every line proves the one before it."""


def with_chain(command: F) -> F:
    return click.option(
        "--plane", "of_plane", is_flag=True, help="What concerns the whole plane, such as its policy, not one tenant."
    )(command)


@audit.command("list")
@with_chain
@click.option("--action", metavar="KIND", help="Only what was done like this, such as job.cancelled.")
@click.option("--subject", metavar="THING", help="Only what was done to this, such as schedule/nightly.")
@with_pages
@with_watch
@with_plane
def list_lines(
    connection: Connection,
    *,
    of_plane: bool,
    action: str | None,
    subject: str | None,
    watch: bool,
    **paging: Unpack[Paging],
) -> None:
    """What people have changed, newest first."""
    show_page(
        connection,
        lambda client: client.audit(plane=of_plane, action=action, subject=subject, **paging),
        _LINE,
        empty=none_of("change", action, subject, cursor=paging["cursor"]),
        watch=watch,
    )


@audit.command()
@click.argument("number", type=click.IntRange(min=1))
@with_chain
@with_plane
def show(connection: Connection, *, number: int, of_plane: bool) -> None:
    """One line, with everything that was kept of the change."""
    from msgspec import to_builtins  # noqa: PLC0415

    found = connection.ask(lambda client: client.audit_line(number, plane=of_plane), hint=_SEE)
    print_row(to_builtins(found), _WHOLE, connection.output)


@audit.command()
@with_chain
@click.option("--known", metavar="NUMBER:HASH", help="A line as an earlier verify told it: is it still in the chain?")
@with_plane
@click.pass_context
def verify(context: click.Context, connection: Connection, *, of_plane: bool, known: str | None) -> None:
    """Read every line and name the first that is not as it was written. Exit code 1 if there is one."""
    from msgspec import to_builtins  # noqa: PLC0415

    if known is not None and not _KNOWN.fullmatch(known):
        raise Misused("--known is a number, a colon and a hash, as `holdfast audit verify` prints them")
    found = connection.ask(lambda client: client.verify_audit(plane=of_plane, known=known))
    print_row(to_builtins(found), _VERDICT, connection.output)
    if found.broken is not None:
        click.echo(f"broken at line {found.broken}: {found.why}", err=True)
        context.exit(BROKEN)
    if found.lines:
        click.echo(f"keep this elsewhere, and give it to --known later: {found.lines}:{found.hash}", err=True)


@audit.command()
@with_chain
@click.option(
    "--after", type=click.IntRange(min=0), default=0, metavar="NUMBER", help="Only what came after this line."
)
@with_plane
def export(connection: Connection, *, of_plane: bool, after: int) -> None:
    """Every line, oldest first, as JSON, one per line: for another store, which nobody here can write to."""
    from msgspec import to_builtins  # noqa: PLC0415

    cursor: str | None = None

    def page(client: Client) -> AuditPage:
        return client.audit(plane=of_plane, oldest_first=True, cursor=cursor, limit=1000)

    while True:
        found = connection.ask(page)
        for line in found.items:
            if line.number > after:
                click.echo(json_text(to_builtins(line)))
        cursor = found.next_cursor
        if cursor is None:
            return
