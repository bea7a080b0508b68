"""`holdfast lock classes|top|evict`: which locks there may be, where they are fought over, and an audited end to one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.access import Access, with_access
from holdfast.cli.connect import Connection, with_plane
from holdfast.cli.output import print_row, print_rows, seconds_left, text
from holdfast.cli.refusals import Clash
from holdfast.cli.saying import with_by, with_reason

if TYPE_CHECKING:
    from holdfast.locks.port import Holder, LockStore

_CLASS = [
    text("name"), text("key_prefix"), text("pattern"), text("ttl_s"), text("renew_every_s"), text("on_renewal_failure"),
    text("wait_s"), text("risk"), text("held"), text("waiters"),
]  # fmt: skip
_CONTENDED = [
    text("key"), text("waiters"), text("grants"), text("holders"), text("expiries"), text("holder"),
    seconds_left("remaining_ms"),
]  # fmt: skip
_EVICTED = [text("key"), text("lock_class"), text("fence"), text("holder")]
HELD_MAX = 10_000
HISTORY_MAX = 1000


@click.command()
@click.option("--strict", is_flag=True, help="Exit code 4 if a key is held that no class declares.")
@with_plane
def classes(connection: Connection, *, strict: bool) -> None:
    """Every class of locks that the plane declares, as it is in force now, and what is held of it."""
    from msgspec import to_builtins  # noqa: PLC0415

    found = connection.ask(lambda client: client.lock_classes())
    if connection.output == "table":
        print_rows([to_builtins(one) for one in found.items], _CLASS, "table")
    else:
        print_row(to_builtins(found), [], connection.output)
    if found.undeclared:
        said = f"held, and declared by no class: {', '.join(found.undeclared[:5])}"
        if strict:
            raise Clash(f"{said}. Declare their class, or give them a prefix of their own")
        click.echo(said, err=True)


@click.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many to show.")
@with_access
def top(access: Access, *, limit: int) -> None:
    """The locks that are held and most fought over: waiters now, and grants, holders and expiries of the last hour."""

    async def read(store: LockStore) -> list[dict[str, Any]]:
        held = await _held(store, access.prefix)
        busiest = sorted(held, key=lambda holder: (-holder.waiters, holder.key))[:limit]
        return [await _contention(store, holder) for holder in busiest]

    rows = sorted(access.ask(read), key=lambda row: (-row["waiters"], -row["grants"], row["key"]))
    print_rows(rows, _CONTENDED, access.output)
    if not rows and access.output == "table":
        click.echo(f"no lock is held under {access.prefix!r}", err=True)


async def _held(store: LockStore, prefix: str) -> list[Holder]:
    held: list[Holder] = []
    while len(held) < HELD_MAX:
        page = await store.list_holders(prefix, after=held[-1].key if held else "", limit=1000)
        held += page
        if len(page) < 1000:
            break
    return held


async def _contention(store: LockStore, holder: Holder) -> dict[str, Any]:
    from holdfast.core.why_lock import expiries  # noqa: PLC0415

    lines = await store.list_history(holder.key, limit=HISTORY_MAX)
    # By the store's own clock: its newest line is not from the future.
    recent = [line for line in lines if line.at >= lines[-1].at - 3600]
    granted = [line for line in recent if line.event == "granted"]
    return {
        **asdict(holder),
        "grants": len(granted),
        "holders": len({line.holder for line in granted}),
        "expiries": len(expiries(recent)),
    }


@click.command()
@click.argument("key")
@click.option("--fence", type=int, required=True, metavar="N", help="Of the holder, as `holdfast why lock KEY` has it.")
@with_reason("Why; kept in the lock's history and in the audit.")
@with_by
@with_plane
def evict(connection: Connection, *, key: str, fence: int, reason: str, by: str) -> None:
    """End the lease on KEY, whoever holds it, through the plane: the audit says who did it, and why."""
    from msgspec import to_builtins  # noqa: PLC0415

    ended = connection.ask(
        lambda client: client.evict_lock(key, fence=fence, reason=reason, by=by),
        hint=f"`holdfast why lock {key}` shows who holds it, `holdfast lock classes` what keys there may be",
    )
    print_row(to_builtins(ended), _EVICTED, connection.output)
