"""Matrix: the cells that people set, and what another one would have made of the last day."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.core.job import JobId
from holdfast.core.matrix import CELLS_MAX, Cell, Rules, cell_from, cell_record, check_selector, governs, ruled
from holdfast.core.policy_version import PLANE
from holdfast.core.record import Kind, first_version
from holdfast.core.renewals import KEPT_S, Episode, counts_from, hour_id, would_be
from holdfast.errors import Invalid, NotFound, TooMany
from holdfast.flow.audit import Entry, transact
from holdfast.flow.keep import TRIES, keeps_changing
from holdfast.locks.policy import LockClass
from holdfast.ports import Note, RecordChange, Store, Transaction

NO_JOB = JobId("")
HOURS_MAX = 5000
"""Records of hours that are looked at: two hundred processes for a day."""


async def list_cells(*, store: Store) -> list[Cell]:
    """By selector. Also those whose time is over and which nobody has reverted yet."""
    records = await store.list_records(Kind.CELL, PLANE, limit=CELLS_MAX + 1)
    return [cell_from(record) for record in records]


async def set_cell(
    cell: Cell, *, classes: Iterable[LockClass], for_s: float | None, store: Store, entry: Entry | None = None
) -> Cell:
    """Put a cell into force, for `for_s` seconds or until it is reset; the same selector again replaces it.

    Raises `Invalid` for a cell that concerns no class, changes nothing, or that some class cannot work with.
    """
    check_cell(cell, classes)
    for _ in range(TRIES):
        known = {one.selector: one for one in await list_cells(store=store)}
        before = known.get(cell.selector)
        if before is None and len(known) >= CELLS_MAX:
            raise TooMany(f"{CELLS_MAX} cells are set; reset some", retry_after_s=60.0)
        change, note, made = new_cell(cell, before, for_s=for_s, now=store.now())
        detail = {"rules": made.rules.settings(), "until": made.until}
        if await transact(Transaction(records=[change], notes=[note]), store=store, entry=entry, **detail):
            return made
    raise keeps_changing(Kind.CELL)


def new_cell(cell: Cell, before: Cell | None, *, for_s: float | None, now: float) -> tuple[RecordChange, Note, Cell]:
    """What is to be written for it, for a transaction of the caller's."""
    until = None if for_s is None else now + for_s
    wanted = Cell(
        selector=cell.selector,
        rules=cell.rules,
        reason=cell.reason,
        by=cell.by,
        since=now,
        until=until,
        version=first_version(now) if before is None else before.version,
    )
    record = cell_record(wanted)
    detail = {
        "cell": cell.selector,
        "rules": cell.rules.settings(),
        "reason": cell.reason,
        "by": cell.by,
        "until": until,
    }
    change = RecordChange(after=record, replaces=0 if before is None else before.version)
    return change, Note(PLANE, NO_JOB, "matrix.set", detail), cell_from(record)


def check_cell(cell: Cell, classes: Iterable[LockClass]) -> None:
    check_selector(cell.selector)
    if not cell.rules.settings():
        raise Invalid("a cell must change something: failures, action, reacquire_s or fallback")
    concerned = [one for one in classes if governs(one) and cell.covers(one)]
    if not concerned:
        raise Invalid(f"{cell.selector}: no lock of the plane that is renewed is of that kind")
    for one in concerned:
        ruled(one, [cell], now=cell.since)


async def reset_cell(selector: str, *, reason: str, by: str, store: Store, entry: Entry | None = None) -> Cell:
    """Raises `NotFound` if it is not set."""
    for _ in range(TRIES):
        [record] = await store.find_records(Kind.CELL, PLANE, [check_selector(selector)])
        if record is None:
            raise NotFound(f"the cell {selector} is not set; `holdfast policy matrix get` shows those that are")
        cell = cell_from(record)
        if await revert(cell, reason=reason, by=by, store=store, entry=entry):
            return cell
    raise keeps_changing(Kind.CELL)


async def revert(cell: Cell, *, reason: str, by: str, store: Store, entry: Entry | None) -> bool:
    """False, and nothing happened, if somebody else has reverted or replaced it."""
    change, note = reverting(cell, reason=reason, by=by)
    return await transact(Transaction(records=[change], notes=[note]), store=store, entry=entry)


def reverting(cell: Cell, *, reason: str, by: str) -> tuple[RecordChange, Note]:
    change = RecordChange(after=cell_record(cell), replaces=cell.version, remove=True)
    return change, Note(PLANE, NO_JOB, "matrix.reverted", {"cell": cell.selector, "reason": reason, "by": by})


# -- simulation ---------------------------------------------------------------------------------------


class Difference(NamedTuple):
    episode: Episode
    times: int
    would: str

    @property
    def changed(self) -> bool:
        return self.would != self.episode.ending


async def simulate(
    selector: str, rules: Rules, *, classes: Iterable[LockClass], cells: Iterable[Cell], store: Store
) -> list[Difference]:
    """What a draft of a cell would have made of the renewals that failed in the last day. Changes nothing."""
    now = store.now()
    draft = Cell(selector=selector, rules=rules, reason="a draft", since=now, until=None)
    known = list(classes)
    check_cell(draft, known)
    others = [cell for cell in cells if cell.selector != selector]
    by_name = {one.name: ruled(one, [*others, draft], now=now) for one in known if governs(one)}
    records = await store.list_records(Kind.RENEWALS, PLANE, after=hour_id(max(0.0, now - KEPT_S), ""), limit=HOURS_MAX)
    return [
        Difference(episode, count, would_be(episode, by_name[episode.namespace]))
        for episode, count in sorted(counts_from(records).items())
        if episode.namespace in by_name
    ]
