"""`holdfast freeze` and `holdfast unfreeze`: let nothing more begin, for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.connect import Connection, with_plane
from holdfast.cli.output import moment, print_row, text
from holdfast.cli.repeat import show_page, with_watch
from holdfast.cli.saying import Span, with_by, with_reason

if TYPE_CHECKING:
    from holdfast.api.freezes import FreezeView

_FREEZE = [text("scope"), moment("since"), moment("until"), text("by"), text("reason")]


@click.group(invoke_without_command=True)
@click.option("--scope", metavar="SCOPE", help="all, tenant=NAME or topic=NAME; a topic may end in * for a family.")
@click.option("--reason", metavar="TEXT", help="Why; everybody who asks is told, and it is kept in the audit.")
@with_by
@click.option("--for", "for_s", type=Span(), metavar="TIME", help="Such as 30m: it ends by itself.")
@with_plane
def freeze(connection: Connection, *, scope: str | None, reason: str | None, by: str, for_s: float | None) -> None:
    """Dispatch nothing of --scope, for a while or until `holdfast unfreeze`; on all replicas within 2 s.

    Submissions are taken and what runs goes on. Jobs that are ready, retried or approved wait, and schedules do not fire.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    if scope is None or reason is None:
        raise click.UsageError("say what and why: --scope SCOPE --reason TEXT")
    _show(connection, connection.ask(lambda client: client.freeze(scope, reason=reason, for_s=for_s, by=by)))


@freeze.command("list")
@with_watch
@with_plane
def list_freezes(connection: Connection, *, watch: bool) -> None:
    """What is frozen: since when, by whom and why, and until when."""
    show_page(connection, lambda client: client.freezes(), _FREEZE, empty="nothing is frozen", watch=watch)


@click.command()
@click.option("--scope", required=True, metavar="SCOPE", help="As it was frozen: all, tenant=NAME or topic=NAME.")
@with_reason("Why; kept in the audit.")
@with_by
@with_plane
def unfreeze(connection: Connection, *, scope: str, reason: str, by: str) -> None:
    """End a freeze: what has waited is dispatched."""
    _show(connection, connection.ask(lambda client: client.unfreeze(scope, reason=reason, by=by)))
    click.echo("it is frozen no more: what has waited is dispatched", err=True)


def _show(connection: Connection, found: FreezeView) -> None:
    from msgspec import to_builtins  # noqa: PLC0415

    print_row(to_builtins(found), _FREEZE, connection.output)
