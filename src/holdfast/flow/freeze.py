"""Freeze: nothing of a scope is dispatched until it is thawed. What people and clocks make of it, and what holds here now.

Submissions are taken and what runs goes on; jobs that are ready, retried or approved wait. A freeze is
known to every replica within 2 s of its commit: whoever dispatches looks again if it has not
looked for `STALE_S`, and whoever gives a job away as it is stored does so only if somebody has looked within twice that. A dispatch that was decided before that and is committed after the freeze is the one thing
that can slip through: the check and the write are one step of the loop apart.
"""

from __future__ import annotations

from holdfast.core.freeze import SCOPES_MAX, Freeze, Frozen, check_scope, freeze_from, freeze_record, frozen_by
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.policy_version import PLANE
from holdfast.core.record import Kind, first_version
from holdfast.errors import NotFound, TooMany
from holdfast.flow.audit import Entry, transact
from holdfast.flow.keep import TRIES, keeps_changing
from holdfast.ports import Note, RecordChange, Store, Transaction

STALE_S = 1.0
NO_JOB = JobId("")


class LiveFreezes:
    """What is frozen, as this process knows it. `freezes.Freezes` keeps it current; the scheduler sees to it as well."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._frozen = Frozen()
        self._read_at = float("-inf")

    async def refresh(self) -> list[Freeze]:
        """Read them anew. Returns those whose time is over, too."""
        read_at = self._store.now()
        freezes = await list_freezes(store=self._store)
        self._frozen, self._read_at = frozen_by(freezes, now=self._store.now()), read_at
        return freezes

    async def current(self) -> Frozen:
        """No older than `STALE_S`: also a process that was stopped for a while obeys when it goes on."""
        if self._store.now() - self._read_at > STALE_S:
            await self.refresh()
        return self._frozen

    @property
    def known(self) -> Frozen:
        """Without asking the store."""
        return self._frozen

    def of(self, job: Job) -> Freeze | None:
        """The freeze that keeps the job from being dispatched, as far as it is known here."""
        return self._frozen.find(job.tenant, job.topic)

    def lets(self, job: Job) -> bool:
        """Whether the job may be dispatched, for those who cannot ask the store now: not if nobody has asked for long."""
        return self._store.now() - self._read_at <= 2 * STALE_S and self.of(job) is None


async def list_freezes(*, store: Store) -> list[Freeze]:
    """By scope. Also those whose time is over and which nobody has ended yet."""
    records = await store.list_records(Kind.FREEZE, PLANE, limit=SCOPES_MAX + 1)
    return [freeze_from(record) for record in records]


async def freeze(
    scope: str, *, reason: str, by: str = "", for_s: float | None, store: Store, entry: Entry | None = None
) -> Freeze:
    """Dispatch nothing of the scope any more, for `for_s` seconds or until it is thawed. A second time it replaces the first.

    Raises `Invalid` for what is no scope, and `TooMany`.
    """
    check_scope(scope)
    for _ in range(TRIES):
        known = {one.scope: one for one in await list_freezes(store=store)}
        if scope not in known and len(known) >= SCOPES_MAX:
            raise TooMany(f"{SCOPES_MAX} scopes are frozen; freeze all, or thaw some", retry_after_s=60.0)
        now, before = store.now(), known.get(scope)
        frozen = Freeze(
            scope=scope,
            reason=reason,
            by=by,
            since=now,
            until=None if for_s is None else now + for_s,
            version=first_version(now) if before is None else before.version,
        )
        record = freeze_record(frozen)
        note = _note(frozen, {"reason": reason, "by": by, "until": frozen.until}, kind="freeze.began")
        change = RecordChange(after=record, replaces=0 if before is None else before.version)
        transaction = Transaction(records=[change], notes=[note])
        if await transact(transaction, store=store, entry=entry, until=frozen.until):
            return freeze_from(record)
    raise keeps_changing(Kind.FREEZE)


async def thaw(scope: str, *, reason: str, by: str = "", store: Store, entry: Entry | None = None) -> Freeze:
    """End a freeze. Raises `NotFound` if the scope is not frozen."""
    for _ in range(TRIES):
        [record] = await store.find_records(Kind.FREEZE, PLANE, [check_scope(scope)])
        if record is None:
            raise NotFound(f"{scope} is not frozen; `holdfast freeze list` shows what is")
        if await end(freeze_from(record), reason=reason, by=by, store=store, entry=entry):
            return freeze_from(record)
    raise keeps_changing(Kind.FREEZE)


async def end(freeze: Freeze, *, reason: str, by: str, store: Store, entry: Entry | None) -> bool:
    """False, and nothing happened, if somebody else has ended or changed it."""
    note = _note(freeze, {"reason": reason, "by": by, "since": freeze.since}, kind="freeze.ended")
    change = RecordChange(after=freeze_record(freeze), replaces=freeze.version, remove=True)
    return await transact(Transaction(records=[change], notes=[note]), store=store, entry=entry)


def _note(freeze: Freeze, detail: dict[str, object], *, kind: str) -> Note:
    """To the tenant, where it is about one."""
    tenant = Tenant(freeze.name) if freeze.breadth == "tenant" else PLANE
    return Note(tenant, NO_JOB, kind, {"scope": freeze.scope, **detail})
