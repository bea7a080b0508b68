"""`holdfast top`: how the plane stands, live, on one screen."""

from __future__ import annotations

import shutil
import sys
from textwrap import wrap
from typing import TYPE_CHECKING

import click

from holdfast.cli.connect import Connection, with_plane
from holdfast.cli.output import age, aligned, print_row, printable
from holdfast.cli.refusals import Away
from holdfast.cli.repeat import EVERY_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.api.summary import Summary

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Another screen without a cursor, and back to what was there before."""
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_STATES = ("PENDING", "APPROVAL_REQUIRED", "SCHEDULED", "DISPATCHED", "RUNNING")
_LOAD_WIDTH = 20
_MARGIN = " " * 10


@click.command()
@click.option("--once", is_flag=True, help="Show it once, for scripts and pipes.")
@with_plane
def top(connection: Connection, *, once: bool) -> None:
    """How the plane stands, every second: jobs, rates, workers with their load, locks, approvals, freezes, warnings."""
    from msgspec import to_builtins  # noqa: PLC0415

    if connection.output != "table":
        print_row(to_builtins(connection.ask(lambda client: client.summary())), [], connection.output)
    elif once or not sys.stdout.isatty():
        found = connection.ask(lambda client: client.summary())
        click.echo("\n".join(screen(found, None)))
    else:
        _live(connection)


def _live(connection: Connection) -> None:
    """Until Ctrl-C. The whole screen is painted over, so that nothing flickers."""
    from holdfast.locks.runtime import SYSTEM  # noqa: PLC0415

    before: Summary | None = None
    click.echo(_ENTER, nl=False)
    try:
        while True:
            size = shutil.get_terminal_size()
            try:
                found = connection.ask(lambda client: client.summary())
                lines = screen(found, before)
                before = found
            except Away as away:
                lines = [away.format_message(), "trying again"]
            painted = (f"{line}{_REST_OF_LINE}" for line in fitted(lines, columns=size.columns, rows=size.lines - 1))
            click.echo(_HOME + "\n".join(painted) + "\n" + _REST_OF_SCREEN, nl=False)
            SYSTEM.sleep(EVERY_S)
    finally:
        click.echo(_LEAVE, nl=False)


def fitted(lines: Sequence[str], *, columns: int, rows: int) -> list[str]:
    """Folded where the terminal is too narrow: what to type next is at the end of a line. Below it, how much is left."""
    folded = [part for line in lines for part in _fold(line, columns)]
    if len(folded) <= rows:
        return folded
    rest = len(folded) - rows + 1
    return [*folded[: rows - 1], f"({rest} more lines; `holdfast top --once` has them all)"[:columns]]


def _fold(line: str, columns: int) -> list[str]:
    if len(line) <= columns:
        return [line]
    return wrap(line, max(columns, 2 * len(_MARGIN)), subsequent_indent=_MARGIN, break_on_hyphens=False)


def screen(found: Summary, before: Summary | None) -> list[str]:
    """What is to be seen, line by line. Rates are what happened since `before`."""
    lines = [f"{warning.code}: {printable(warning.summary)}   {warning.next}" for warning in found.warnings]
    lines = ["warnings", *(f"  {line}" for line in lines), ""] if lines else ["nothing to worry about", ""]
    lines.append("jobs      " + "  ".join(f"{state} {found.states.get(state, 0)}" for state in _STATES))
    longest = "-" if found.waiting_longest_s is None else age(found.waiting_longest_s)
    lines.append(f"rates     {_rates(found, before)}   waiting longest {longest}")
    if found.topics:
        lines.append("topics    " + "  ".join(f"{printable(topic)} {count}" for topic, count in found.topics.items()))
    lines.append(
        f"people    approvals {found.approvals_pending}  unknown effects {found.effects_unknown}  "
        f"freezes {len(found.freezes)}"
    )
    lines.append(f"locks     held {found.locks_held}  contended {len(found.locks_contended)}")
    lines += [
        f"          {printable(lock.key)}  {lock.waiters} wait for {printable(lock.holder)}"
        for lock in found.locks_contended
    ]
    return [*lines, "", *_workers(found)]


def _rates(found: Summary, before: Summary | None) -> str:
    if before is None or found.at <= before.at:
        return "  ".join(f"{name} {count}" for name, count in found.totals.items()) + " in all"
    passed = found.at - before.at
    # A plane that was started anew counts from zero.
    gained = {name: max(0, count - before.totals.get(name, 0)) for name, count in found.totals.items()}
    return "  ".join(f"{name} {count / passed:.0f}/s" for name, count in gained.items())


def _workers(found: Summary) -> Sequence[str]:
    if not found.workers:
        return ["no worker is known; start one with `holdfast worker MODULE:WORKER`"]
    rows = [["WORKER", "POOL", "CONDITION", "LOAD", "", "HEARD"]]
    for worker in found.workers:
        filled = round(_LOAD_WIDTH * min(1.0, worker.in_hand / worker.slots))
        bar = "#" * filled + "." * (_LOAD_WIDTH - filled)
        heard = f"{age(max(0.0, found.at - worker.last_seen))} ago"
        rows.append(
            [
                printable(worker.id),
                printable(worker.pool),
                worker.condition,
                bar,
                f"{worker.in_hand}/{worker.slots}",
                heard,
            ]
        )
    return aligned(rows)
