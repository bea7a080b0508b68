"""What can be read of jobs, in whatever transaction the connection is in. Changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import apsw

from holdfast.core.effect import Effect, EffectPlace
from holdfast.core.job import PARKED_UNTIL, Job, JobId, Tenant
from holdfast.core.states import EffectState, State
from holdfast.ports import DeadLetter, Delivery, JobEvent, JobFilter, Overdue, Snapshot
from holdfast.stores.dispatchable import Without
from holdfast.stores.rows import effect_of, event_of, job_of, json_text
from holdfast.stores.sqlite.queues import HAS_LABEL, KEY, Place, Queue, passing_over
from holdfast.stores.sqlite.rows import SELECT_BARE_JOB, SELECT_EFFECT, SELECT_EVENT, SELECT_JOB, SELECT_LISTED_JOB

T = TypeVar("T")

STATEMENTS_IN_SHORT = 1000
STEPS_IN_SHORT = 100_000
"""Instructions of SQLite in one statement: some milliseconds. A list of 200 jobs takes ten thousand."""

_LIVE = ("INDEXED BY holdfast_jobs_live", "look_at IS NOT NULL")
_UNDECIDED = ("INDEXED BY holdfast_jobs_undecided", "state IN ('PENDING', 'APPROVAL_REQUIRED')")
_IN_HAND = ("INDEXED BY holdfast_jobs_in_hand", "state IN ('DISPATCHED', 'RUNNING')")
_UNLUCKY = ("INDEXED BY holdfast_jobs_unlucky", "state IN ('FAILED', 'CANCELLED', 'TIMEOUT', 'DENIED')")

_WAYS_BY_STATE = {
    # The index to go by, and the condition it was made under, word for word: else it is not taken, and
    # a rare state is looked for among all of the tenant's jobs.
    State.PENDING: _UNDECIDED,
    State.APPROVAL_REQUIRED: _UNDECIDED,
    State.SCHEDULED: _LIVE,
    State.DISPATCHED: _IN_HAND,
    State.RUNNING: _IN_HAND,
    State.FAILED: _UNLUCKY,
    State.CANCELLED: _UNLUCKY,
    State.TIMEOUT: _UNLUCKY,
    State.DENIED: _UNLUCKY,
}

_AMONG_IDS = "id IN (SELECT value FROM json_each(?))"
"""However many: the statement's text must not vary, for that is what keeps it prepared."""


class Turns:
    """Where the turn between tenants stands, for each priority: the last tenant that had its turn."""

    def __init__(self) -> None:
        self.last: dict[int, str] = {}


def in_one_snapshot(connection: apsw.Connection, question: Callable[[Reads], T]) -> T:
    """What several statements say of one moment. For a single one that is nothing but two more."""
    connection.execute("BEGIN")
    try:
        return question(Reads(connection))
    finally:
        connection.execute("COMMIT")


class TooLong(Exception):
    """It takes longer than a loop may wait for it."""


def in_short(question: Callable[[Reads], T], reads: Reads) -> T:
    """Ask for what is mostly there at once, and may lie behind any number of rows. Raises `TooLong` then."""
    left = STATEMENTS_IN_SHORT
    execute, is_long = reads.execute, False

    def execute_one(*statement: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise TooLong
        return execute(*statement)

    def interrupt() -> bool:
        nonlocal is_long
        is_long = True
        return True

    reads.execute = execute_one
    reads.connection.set_progress_handler(interrupt, STEPS_IN_SHORT)
    try:
        return question(reads)
    except apsw.InterruptError:
        if not is_long:
            raise
        raise TooLong from None
    finally:
        reads.connection.set_progress_handler(None)


class Reads:
    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        # Rows come back as whatever their columns hold; the schema is what types them.
        self.execute: Callable[..., Any] = connection.execute

    def find_job(self, job_id: JobId) -> Job | None:
        row = self.execute(f"{SELECT_JOB} FROM holdfast_jobs WHERE id = ?", (job_id,)).fetchone()
        return None if row is None else job_of(row)

    def find_jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        rows = self.execute(f"{SELECT_JOB} FROM holdfast_jobs WHERE {_AMONG_IDS}", (json_text(ids),))
        found = {row[0]: job_of(row) for row in rows.fetchall()}
        return [found.get(job_id) for job_id in ids]

    def list_jobs(self, tenant: Tenant, wanted: JobFilter, before: JobId | None, limit: int) -> list[Job]:
        where: list[str] = ["tenant = ?"]
        values: list[Any] = [tenant]
        index = ""
        if wanted.state is not None:
            where.append(f"state = '{wanted.state}'")
            if wanted.state in _WAYS_BY_STATE:
                index, condition = _WAYS_BY_STATE[wanted.state]
                where.append(condition)
        if wanted.worker:
            where.append("worker = ?")
            values.append(wanted.worker)
        if wanted.topic.endswith("*"):
            # substr rather than LIKE: a topic may contain what LIKE takes for a wildcard.
            where.append("substr(topic, 1, ?) = ?")
            values += [len(wanted.topic) - 1, wanted.topic[:-1]]
        elif wanted.topic:
            where.append("topic = ?")
            values.append(wanted.topic)
        for name, value in wanted.labels.items():
            where.append(HAS_LABEL)
            values += [name, value]
        if before is not None:
            where.append("id < ?")
            values.append(before)
        rows = self.execute(
            f"{SELECT_JOB} FROM holdfast_jobs {index} WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?",
            (*values, limit),
        )
        return [job_of(row) for row in rows.fetchall()]

    def list_dispatchable(self, now: float, limit: int, turns: Turns, without: Without) -> list[Job]:
        found: list[Job] = []
        priority = self._next_priority(101)
        while priority is not None and len(found) < limit:
            found += self._in_turn(priority, now, limit - len(found), turns, without)
            priority = self._next_priority(priority)
        return found

    def _next_priority(self, below: int) -> int | None:
        row = self.execute(
            "SELECT max(priority) FROM holdfast_jobs WHERE state = 'SCHEDULED' AND behind = 0 AND priority < ?",
            (below,),
        ).fetchone()
        priority: int | None = row[0]
        return priority

    def _in_turn(self, priority: int, now: float, limit: int, turns: Turns, without: Without) -> list[Job]:
        """One job of each tenant, then another of each, and so on; each round oldest first.

        The first round goes on with the tenants where it ended the last time, for there may be more
        of them than fit. Rows are read as they are taken: neither many tenants nor one with many jobs
        cost more than what is returned.
        """
        start = turns.last.get(priority, "")
        tenants = itertools.chain(self._tenants(priority, start, None), self._tenants(priority, "", start))
        passing, left_out = passing_over(without)

        def read(tenant: str, after: Place, many: int) -> list[Job]:
            rows = self.execute(
                f"{SELECT_LISTED_JOB} FROM holdfast_jobs WHERE state = 'SCHEDULED' AND behind = 0 "
                f"AND priority = ? AND tenant = ? AND (not_before, id) > (?, ?) AND not_before <= ? {passing}"
                "ORDER BY not_before, id LIMIT ?",
                (priority, tenant, *after, now, *left_out, many),
            )
            return [job_of(row) for row in rows.fetchall()]

        queues: list[Queue] = []
        for tenant in tenants:
            if tenant in without.tenants:
                continue
            queue = Queue(partial(read, tenant))
            if queue.has_next(1):
                queues.append(queue)
            if len(queues) == limit:
                turns.last[priority] = tenant
                break
        found: list[Job] = []
        while queues and len(found) < limit:
            share = (limit - len(found)) // len(queues) + 1
            queues = [queue for queue in queues if queue.has_next(share)]
            found += _oldest_first(queue.take() for queue in queues)[: limit - len(found)]
        return found

    def _tenants(self, priority: int, after: str, until: str | None) -> Iterator[str]:
        """Tenants with scheduled jobs of a priority, in order, each by one jump through the index."""
        while True:
            row = self.execute(
                "SELECT min(tenant) FROM holdfast_jobs "
                "WHERE state = 'SCHEDULED' AND behind = 0 AND priority = ? AND tenant > ?",
                (priority, after),
            ).fetchone()
            tenant: str | None = row[0]
            if tenant is None or (until is not None and tenant > until):
                return
            yield tenant
            after = tenant

    def list_in_hand(self, workers: Sequence[str], *, bare: bool) -> list[Job]:
        rows = self.execute(
            f"{SELECT_BARE_JOB if bare else SELECT_JOB} FROM holdfast_jobs INDEXED BY holdfast_jobs_in_hand "  # noqa: S608
            "WHERE worker IN (SELECT value FROM json_each(?)) AND state IN ('DISPATCHED', 'RUNNING') ORDER BY id",
            (json_text(list(workers)),),
        )
        return [job_of(row) for row in rows.fetchall()]

    def list_parked(self, origin: JobId) -> list[Job]:
        """The job, and replays of it, that wait for a person's word."""
        rows = self.execute(
            f"{SELECT_JOB} FROM holdfast_jobs "
            "WHERE (id = ?1 OR replay_of = ?1) AND state = 'SCHEDULED' AND not_before >= ?2 ORDER BY id",
            (origin, PARKED_UNTIL),
        )
        return [job_of(row) for row in rows.fetchall()]

    def list_recoverable(self, now: float, states: Collection[State], limit: int, after: str) -> Overdue:
        found: list[Job] = []
        for way in dict.fromkeys(_WAYS_BY_STATE[state] for state in states):
            index, condition = way
            among = ", ".join(f"'{state}'" for state in State if state in states and _WAYS_BY_STATE.get(state) == way)
            rows = self.execute(
                f"{SELECT_LISTED_JOB} FROM holdfast_jobs {index} WHERE {condition} AND state IN ({among}) "
                "AND look_at <= ? AND id > ? ORDER BY id LIMIT ?",
                (now, after, limit),
            )
            found += [job_of(row) for row in rows.fetchall()]
        page = sorted(found, key=lambda job: job.id)[:limit]
        return Overdue(page, page[-1].id if len(page) == limit else "")

    def list_events(
        self, after: int, limit: int, tenant: Tenant | None, job_id: JobId | None, run: str | None
    ) -> list[JobEvent]:
        where: list[str] = ["number > ?"]
        values: list[Any] = [after]
        if job_id is not None:
            where.append("job_id = ?")
            values.append(job_id)
        if run is not None:
            where.append("run = ? AND run != ''")  # the index's own condition, too: else it is not taken
            values.append(run)
        if tenant is not None:
            where.append("tenant = ?")
            values.append(tenant)
        rows = self.execute(
            f"{SELECT_EVENT} WHERE {' AND '.join(where)} ORDER BY number LIMIT ?",
            (*values, limit),
        )
        return [event_of(row) for row in rows.fetchall()]

    def count_jobs(self) -> dict[tuple[Tenant, State], int]:
        rows: Iterable[tuple[str, str, int]] = self.execute(
            "SELECT tenant, state, jobs FROM holdfast_counts WHERE jobs > 0"
        ).fetchall()
        return {(Tenant(tenant), State(state)): jobs for tenant, state, jobs in rows}

    def count_topics(self) -> dict[tuple[Tenant, str], int]:
        rows: Iterable[tuple[str, str, int]] = self.execute(
            "SELECT tenant, topic, count(*) FROM holdfast_jobs INDEXED BY holdfast_jobs_live "
            "WHERE look_at IS NOT NULL GROUP BY 1, 2"
        ).fetchall()
        return {(Tenant(tenant), topic): jobs for tenant, topic, jobs in rows}

    def count_active(self) -> dict[tuple[Tenant, str, str], int]:
        rows: Iterable[tuple[str, str, str, int]] = self.execute(
            f"SELECT tenant, topic, coalesce({KEY}, ''), count(*) "  # noqa: S608  (a literal)
            "FROM holdfast_jobs INDEXED BY holdfast_jobs_in_hand WHERE state IN ('DISPATCHED', 'RUNNING') GROUP BY 1, 2, 3"
        ).fetchall()
        return {(Tenant(tenant), topic, key): jobs for tenant, topic, key, jobs in rows}

    def find_effect(self, job_id: JobId, key: str) -> Effect | None:
        row = self.execute(
            f"{SELECT_EFFECT} WHERE job_id = ? AND key = ?",
            (job_id, key),
        ).fetchone()
        return None if row is None else effect_of(row)

    def list_effects(
        self, tenant: Tenant, state: EffectState | None, job_id: JobId | None, after: EffectPlace | None, limit: int
    ) -> list[Effect]:
        where: list[str] = ["tenant = ?"]
        values: list[Any] = [tenant]
        if state is not None:
            where.append(f"state = '{state}'")
        if job_id is not None:
            where.append("job_id = ?")
            values.append(job_id)
        if after is not None:
            where.append("(prepared_at, job_id, key) > (?, ?, ?)")
            values += after
        rows = self.execute(
            f"{SELECT_EFFECT} WHERE {' AND '.join(where)} ORDER BY prepared_at, job_id, key LIMIT ?",
            (*values, limit),
        )
        return [effect_of(row) for row in rows.fetchall()]

    def list_dead_letters(self, tenant: Tenant, before: int | None, limit: int) -> list[DeadLetter]:
        return self._dead_letters("tenant = ? AND number < ?", (tenant, before or 2**62), limit)

    def find_dead_letter(self, tenant: Tenant, number: int) -> DeadLetter | None:
        letters = self._dead_letters("tenant = ? AND number = ?", (tenant, number), 1)
        return letters[0] if letters else None

    def _dead_letters(self, where: str, values: tuple[Any, ...], limit: int) -> list[DeadLetter]:
        rows = self.execute(
            "SELECT number, tenant, job_id, reason, at, replayed_as "  # noqa: S608  (`where` is one of the two literals above)
            f"FROM holdfast_dead_letters WHERE {where} ORDER BY number DESC LIMIT ?",
            (*values, limit),
        ).fetchall()
        letters = []
        for number, tenant, job_id, reason, at, replayed_as in rows:
            job = self.find_job(job_id)
            assert job is not None
            letters.append(
                DeadLetter(
                    number=number,
                    tenant=tenant,
                    job_id=job_id,
                    topic=job.topic,
                    reason=reason,
                    at=at,
                    job=job,
                    replayed_as=replayed_as,
                )
            )
        return letters

    def read_snapshot(self) -> Snapshot | None:
        row = self.execute("SELECT fence, seq, at, workers FROM holdfast_snapshot").fetchone()
        return None if row is None else Snapshot(*row)

    def list_deliveries(self, worker: str, limit: int) -> list[Delivery]:
        rows = self.execute(
            "SELECT worker, job_id, fence FROM holdfast_deliveries WHERE worker = ? ORDER BY fence, job_id LIMIT ?",
            (worker, limit),
        )
        return [Delivery(*row) for row in rows.fetchall()]

    def list_outbox(self, limit: int) -> list[Delivery]:
        rows = self.execute(
            "SELECT worker, job_id, fence FROM holdfast_deliveries ORDER BY fence, job_id LIMIT ?", (limit,)
        )
        return [Delivery(*row) for row in rows.fetchall()]

    def has_delivery(self, delivery: Delivery) -> bool:
        row = self.execute(
            "SELECT 1 FROM holdfast_deliveries WHERE worker = ? AND fence = ? AND job_id = ?",
            (delivery.worker, delivery.fence, delivery.job_id),
        ).fetchone()
        return row is not None


def _oldest_first(jobs: Iterable[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: (job.not_before, job.id))
