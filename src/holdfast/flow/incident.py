"""Incident: begun with a snapshot and a strict matrix, stopped with both undone, told as a timeline."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.core.audit import Line
from holdfast.core.incident import (
    Happening,
    Incident,
    Remark,
    incident_from,
    incident_id,
    incident_record,
    remarked,
)
from holdfast.core.job import JobId, Tenant
from holdfast.core.matrix import INCIDENT, STRICT, Cell
from holdfast.core.policy_version import PLANE
from holdfast.core.record import Kind
from holdfast.errors import Conflict, NotFound
from holdfast.flow.audit import Entry, list_lines, transact
from holdfast.flow.keep import TRIES, keeps_changing
from holdfast.flow.matrix import list_cells, new_cell, reverting
from holdfast.ports import JobEvent, Note, RecordChange, Store, Transaction

NO_JOB = JobId("")
EVENTS_MAX = 20_000
SHOWN_MAX = 500
LAST_WORDS_S = 5.0
"""After its end: the line that says so is written a moment later."""
NOTABLE = ("attempt.", "dispatch.", "effect.", "freeze.", "matrix.", "policy.", "schedule.failed", "incident.")
"""Kinds of events that the timeline tells one by one; of the others it says how many there were."""


async def list_incidents(*, store: Store, before: int | None = None, limit: int) -> list[Incident]:
    """Newest first."""
    start = "" if before is None else incident_id(before)
    records = await store.list_records(Kind.INCIDENT, PLANE, before=start, limit=limit)
    return [incident_from(record) for record in records]


async def get_incident(number: int, *, store: Store) -> Incident:
    """Raises `NotFound`."""
    [record] = await store.find_records(Kind.INCIDENT, PLANE, [incident_id(number)])
    if record is None:
        raise NotFound(f"there is no incident {number}; `holdfast incident list` shows those there were")
    return incident_from(record)


async def start(draft: Incident, *, store: Store, entry: Entry) -> Incident:
    """Begin one, with the strict cells if it is to be strict, in one transaction. Raises `Conflict` while another is open."""
    for _ in range(TRIES):
        newest = next(iter(await list_incidents(store=store, limit=1)), None)
        if newest is not None and newest.stopped_at is None:
            raise Conflict(f"incident {newest.number} is open; stop it first, or note what is new in it")
        now = store.now()
        incident = replace(draft, number=1 if newest is None else newest.number + 1, started_at=now)
        changes = [RecordChange(after=incident_record(incident), replaces=0)]
        notes = [_note(incident, {"title": incident.title, "by": incident.by}, kind="incident.started")]
        if incident.strict:
            known = {cell.selector: cell for cell in await list_cells(store=store)}
            for selector, rules in STRICT.items():
                reason = f"incident {incident.number}: {incident.title}"
                cell = Cell(
                    selector=INCIDENT + selector, rules=rules, reason=reason, by=incident.by, since=now, until=None
                )
                change, note, _cell = new_cell(cell, known.get(cell.selector), for_s=None, now=now)
                changes.append(change)
                notes.append(note)
        transaction = Transaction(records=changes, notes=notes)
        if await transact(transaction, store=store, entry=entry, number=incident.number, strict=incident.strict):
            return replace(incident, version=1)
    raise keeps_changing(Kind.INCIDENT)


async def remark(number: int, text: str, *, by: str, store: Store) -> Incident:
    """Write something down. It is in the incident, and not in the audit: it changes nothing else."""
    for _ in range(TRIES):
        incident = await get_incident(number, store=store)
        after = remarked(incident, Remark(at=store.now(), by=by, text=text))
        if await transact(Transaction(records=[_stored(after)]), store=store, entry=None):
            return replace(after, version=after.version + 1)
    raise keeps_changing(Kind.INCIDENT)


async def stop(number: int, *, summary: str, by: str, end: dict[str, Any], store: Store, entry: Entry) -> Incident:
    """End it, and its strict cells. Raises `Conflict` if it is over."""
    for _ in range(TRIES):
        incident = await get_incident(number, store=store)
        if incident.stopped_at is not None:
            raise Conflict(f"incident {number} is over; `holdfast incident export --number {number}` tells it")
        after = replace(incident, stopped_at=store.now(), summary=summary, end=end)
        # Read anew with each try: it may be one of them that has moved.
        cells = [cell for cell in await list_cells(store=store) if cell.selector.startswith(INCIDENT)]
        undone = [reverting(cell, reason=f"incident {number} is over", by=by) for cell in cells]
        notes = [note for _, note in undone]
        notes.append(_note(after, {"summary": summary, "by": by}, kind="incident.stopped"))
        transaction = Transaction(records=[_stored(after), *(gone for gone, _ in undone)], notes=notes)
        if await transact(transaction, store=store, entry=entry):
            return replace(after, version=after.version + 1)
    raise keeps_changing(Kind.INCIDENT)


def _stored(after: Incident) -> RecordChange:
    return RecordChange(after=incident_record(after), replaces=after.version)


def _note(incident: Incident, detail: dict[str, Any], *, kind: str) -> Note:
    return Note(PLANE, NO_JOB, kind, {"incident": incident.number, **detail})


# -- what it was --------------------------------------------------------------------------------------


class Story(NamedTuple):
    timeline: list[Happening]
    counts: dict[str, int]
    """Events by kind."""
    cut: bool
    """There was more than is told."""


async def tell(incident: Incident, tenant: Tenant, *, store: Store) -> Story:
    """Notes, what people changed, and what the plane saw, in order: of the plane, and of this tenant."""
    until = store.now() if incident.stopped_at is None else incident.stopped_at + LAST_WORDS_S
    told = [Happening(note.at, "note", note.by, note.text) for note in incident.remarks]
    lines: list[Line] = []
    is_cut = False
    for chain in dict.fromkeys((PLANE, tenant)):
        found = await _lines_since(chain, incident.started_at, until, store=store)
        lines += found[:SHOWN_MAX]
        is_cut |= len(found) > SHOWN_MAX
    told += [_did(line) for line in lines]
    events: list[JobEvent] = []
    after = incident.after
    while len(events) < EVENTS_MAX and (page := await store.list_events(after=after, limit=1000)):
        events += [event for event in page if event.tenant in (PLANE, tenant) and event.at <= until]
        after = page[-1].number
        if page[-1].at > until:
            break
    # Of what people did, the line in the audit tells more than its event, which was written with it.
    did = {(line.action, int(line.at) + second) for line in lines for second in (-1, 0, 1)}
    notable = [event for event in events if event.kind.startswith(NOTABLE) and (event.kind, int(event.at)) not in did]
    told += [_saw(event) for event in notable[:SHOWN_MAX]]
    is_cut |= len(notable) > SHOWN_MAX or len(events) >= EVENTS_MAX
    return Story(sorted(told), dict(Counter(event.kind for event in events)), is_cut)


async def _lines_since(chain: Tenant, since: float, until: float, *, store: Store) -> list[Line]:
    """Newest first until it began, for what came before it may be much; or until there are more than are told."""
    found: list[Line] = []
    before: int | None = None
    while len(found) <= SHOWN_MAX:
        page = await list_lines(chain, store=store, limit=100, before=before)
        found += [line for line in page if since <= line.at <= until]
        if not page or page[-1].at < since:
            break
        before = page[-1].number
    return found


def _did(line: Line) -> Happening:
    reason = f": {line.reason}" if line.reason else ""
    return Happening(line.at, "did", line.by, f"{line.action} {line.subject}{reason}")


def _saw(event: JobEvent) -> Happening:
    about = f" job/{event.job_id}" if event.job_id else ""
    reason = event.detail.get("reason") or event.detail.get("code") or ""
    return Happening(event.at, "saw", "", f"{event.kind}{about}{': ' + str(reason) if reason else ''}")
