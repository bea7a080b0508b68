"""`holdfast lock`: who holds what, since when, and how to end it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.access import Access, with_access
from holdfast.cli.lock_inventory import classes, evict, top
from holdfast.cli.output import moment, print_row, print_rows, printable, seconds_left, text
from holdfast.cli.refusals import Absent, Clash

if TYPE_CHECKING:
    from holdfast.locks.port import Holder, LockStore, Ownership

_HOLDER = [text("key"), text("fence"), text("holder"), seconds_left("remaining_ms"), text("waiters")]
_HISTORY = [moment("at"), text("event"), text("fence"), text("holder"), text("note")]
_LIMIT = click.IntRange(1, 10_000)


@click.group()
def lock() -> None:
    """See who holds which lock, and release it."""


for command in (classes, top, evict):
    lock.add_command(command)


@lock.command("list")
@click.argument("beginning", default="")
@click.option("--limit", type=_LIMIT, default=100, show_default=True, help="How many to show.")
@click.option("--after", default="", metavar="KEY", help="Begin after this key: the last one of the page before.")
@with_access
def list_locks(access: Access, *, beginning: str, limit: int, after: str) -> None:
    """The locks that are held now, in key order; those whose key starts with BEGINNING, if it is given."""
    begins, after = access.key(beginning), access.key(after) if after else ""
    # One more than is shown, to know whether there are more.
    found = access.ask(lambda store: store.list_holders(begins, after=after, limit=limit + 1))
    shown = found[:limit]
    print_rows([asdict(holder) for holder in shown], _HOLDER, access.output)
    if len(found) > limit:
        click.echo(f"more: --after {shown[-1].key!r}", err=True)
    elif not found and access.output == "table":
        click.echo(f"no lock is held under {begins!r}", err=True)


@lock.command()
@click.argument("key")
@with_access
def show(access: Access, *, key: str) -> None:
    """Who holds KEY, under which fence, for how long yet. The token itself is never shown, only its digest."""
    holder = _get_holder(access, access.key(key))
    print_row(asdict(holder), [*_HOLDER, text("token_digest")], access.output)


@lock.command()
@click.argument("key")
@click.option("--limit", type=_LIMIT, default=100, show_default=True, help="How many lines, counted from the newest.")
@with_access
def history(access: Access, *, key: str, limit: int) -> None:
    """The owners of KEY, oldest first: granted, released, evicted, expired."""
    whole = access.key(key)

    async def read(store: LockStore) -> list[dict[str, Any]]:
        lines = list(await store.list_history(whole, limit=limit))
        ended = bool(lines) and lines[-1].event == "granted" and await store.find_holder(whole) is None
        if ended:
            # Read once more: released between the two questions is not expired.
            ended = (await store.list_history(whole, limit=1))[-1:] == lines[-1:]
        return timeline(lines, last_expired=ended)

    rows = access.ask(read)
    if not rows:
        raise Absent(f"nothing is known about {whole!r}. `holdfast lock list` shows the keys that are held")
    print_rows(rows, _HISTORY, access.output)


@lock.command()
@click.argument("key")
@click.option("--token", metavar="TOKEN", help='Release as its owner. "-" reads the token from stdin, unseen by `ps`.')
@click.option("--fence", type=int, metavar="N", help="Evict, as an operator, the holder that has this fence.")
@click.option("--reason", default="", metavar="TEXT", help="Why; kept in the history. An eviction needs one.")
@click.option("--yes", is_flag=True, help="Do not ask, even on a terminal.")
@with_access
def release(access: Access, *, key: str, token: str | None, fence: int | None, reason: str, yes: bool) -> None:
    """End the lease on KEY: with its token, or with its fence and a reason."""
    whole = access.key(key)
    if (token is None) == (fence is None):
        raise click.UsageError("give either --token (you own the lock) or --fence with --reason (you evict its owner)")
    if token is not None:
        _release(access, whole, _read_token(token))
    elif fence is not None:
        if not reason.strip():
            raise click.UsageError("an eviction needs --reason: it is what the next person on call reads")
        _evict(access, whole, fence, reason, ask_first=not yes)


def timeline(lines: Sequence[Ownership], *, last_expired: bool) -> list[dict[str, Any]]:
    """The lines as rows, with the expiries that no store writes down.

    A grant that follows a grant followed an expiry. When that was is known to nobody: `at` is None.
    """
    rows: list[dict[str, Any]] = []
    for line in lines:
        if rows and rows[-1]["event"] == line.event == "granted":
            rows.append(_expiry(rows[-1]))
        rows.append(asdict(line))
    if last_expired:
        rows.append(_expiry(rows[-1]))
    return rows


def _expiry(granted: dict[str, Any]) -> dict[str, Any]:
    return {**granted, "event": "expired", "at": None, "note": "not released"}


def _release(access: Access, key: str, token: str) -> None:
    if not access.ask(lambda store: store.release(key, token)):
        holder = _get_holder(access, key)
        raise Clash(
            f"{key!r} is held by {printable(holder.holder)} (fence {holder.fence}) with another token. "
            f"An operator ends it with --fence {holder.fence} --reason TEXT",
        )
    print_row({"key": key, "event": "released"}, [text("key"), text("event")], access.output)


def _evict(access: Access, key: str, fence: int, reason: str, *, ask_first: bool) -> None:
    if ask_first and sys.stdin.isatty():
        holder = _get_holder(access, key)
        click.confirm(
            f"End the lease of {printable(holder.holder)} on {key!r} (fence {holder.fence}, {holder.waiters} waiting)?",
            abort=True,
            err=True,
        )
    if not access.ask(lambda store: store.evict(key, fence, reason=reason)):
        holder = _get_holder(access, key)
        raise Clash(
            f"{key!r} has fence {holder.fence} now, not {fence}: {printable(holder.holder)} took over. "
            f"Look again with `holdfast lock show {key}`",
        )
    row = {"key": key, "event": "evicted", "fence": fence, "note": reason}
    print_row(row, [text("key"), text("event"), text("fence"), text("note")], access.output)


def _get_holder(access: Access, key: str) -> Holder:
    holder = access.ask(lambda store: store.find_holder(key))
    if holder is None:
        raise Absent(f"{key!r} is not held. `holdfast lock history {key}` tells what became of it")
    return holder


def _read_token(given: str) -> str:
    token = sys.stdin.readline().strip() if given == "-" else given
    if not token:
        raise click.UsageError("the token is empty")
    return token
