"""`holdfast effect`: what jobs did to the world outside, and the worklist of what nobody knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import click

from holdfast.cli.connect import Connection, with_plane
from holdfast.cli.job import Json
from holdfast.cli.output import json_value, moment, print_row, text
from holdfast.cli.refusals import Absent
from holdfast.cli.repeat import Paging, none_of, show_page, with_pages, with_watch
from holdfast.cli.saying import with_reason
from holdfast.core.states import EffectState

if TYPE_CHECKING:
    from holdfast.api import EffectView
    from holdfast.client import Client

_LINE = [text("job_id"), text("key"), text("state"), text("attempt"), moment("prepared_at"), text("note")]
_WHOLE = [*_LINE, moment("settled_at"), text("fence"), text("idempotency_key"), json_value("result", width=200)]
_PAGE = 1000


@click.group()
def effect() -> None:
    """See what jobs did to the world outside; settle what nobody knows."""


@effect.command("list")
@click.option("--state", type=click.Choice([*(state.value for state in EffectState), "all"]),
              help="[default: unknown, the worklist; all with --job]")  # fmt: skip
@click.option("--job", "job_id", metavar="JOB", help="Only the effects of this job.")
@with_pages
@with_watch
@with_plane
def list_effects(
    connection: Connection, *, state: str | None, job_id: str | None, watch: bool, **paging: Unpack[Paging]
) -> None:
    """Effects that may or may not have happened: each waits for a person to find out."""
    wanted = state or (EffectState.UNKNOWN.value if job_id is None else "all")
    show_page(
        connection,
        lambda client: client.effects(state=None if wanted == "all" else wanted, job_id=job_id, **paging),
        _LINE,
        empty="no effect waits for a person"
        if wanted == EffectState.UNKNOWN and not (job_id or paging["cursor"])
        else none_of("effect", wanted != "all", job_id, cursor=paging["cursor"]),
        watch=watch,
    )


@effect.command()
@click.argument("job_id", metavar="JOB")
@click.argument("key")
@with_plane
def show(connection: Connection, *, job_id: str, key: str) -> None:
    """One effect: its state, and the idempotency key under which the other side may know it."""

    def find(client: Client) -> EffectView | None:
        cursor: str | None = None
        while True:
            page = client.effects(job_id=job_id, cursor=cursor, limit=_PAGE)
            found = next((effect for effect in page.items if effect.key == key), None)
            cursor = page.next_cursor
            if found is not None or cursor is None:
                return found

    found = connection.ask(find)
    if found is None:
        raise Absent(f"job {job_id} has no effect {key!r}. `holdfast effect list --job {job_id}` shows what it has")
    _show(found, connection.output)
    if found.state == EffectState.UNKNOWN:
        click.echo(
            f"find out whether it happened, then: holdfast effect resolve {job_id} {key} "
            "--state committed|absent --reason TEXT",
            err=True,
        )


@effect.command()
@click.argument("job_id", metavar="JOB")
@click.argument("key")
@click.option("--state", type=click.Choice(["committed", "absent"]), required=True, help="It happened, or it did not.")
@click.option("--result", type=Json(), metavar="JSON", help="What the job is to be told it gave: JSON, @FILE or -.")
@with_reason("How you know; kept with the effect.")
@with_plane
def resolve(connection: Connection, *, job_id: str, key: str, state: str, result: Any, reason: str) -> None:  # noqa: ANN401
    """Say what became of an unknown effect. The next attempt goes by it: a false word here repeats or skips it."""
    from holdfast.api import ResolveEffect  # noqa: PLC0415

    if state == "absent" and result is not None:
        raise click.UsageError("what did not happen has no --result")
    found = ResolveEffect(state=state, result=result, reason=reason)
    hint = f"`holdfast effect list --job {job_id}` shows where its effects stand"
    settled = connection.ask(lambda client: client.resolve_effect(job_id, key, found), hint=hint)
    _show(settled, connection.output)


def _show(found: EffectView, output: str) -> None:
    from msgspec import to_builtins  # noqa: PLC0415

    print_row(to_builtins(found), _WHOLE, output)
