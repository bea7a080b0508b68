"""Effects and replays of dead letters, inside a ledger's transaction.

Refusals are returned, not raised: the transaction belongs to others too.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.effect import UNSETTLED, Effect, Ruling, idempotency_key, rule_on_repeat
from holdfast.core.job import Job, JobId, Tenant, amend
from holdfast.core.states import EffectState, State
from holdfast.errors import Conflict, Invalid, KeyReused, NotFound, StaleAttempt, VersionMismatch
from holdfast.ports import Accepted, Change, RecordChange, Submission
from holdfast.stores.ledger import Ledger, TopicOf
from holdfast.stores.transactions import may_change_records

_TOLD = {EffectState.COMMITTED: "effect.committed", EffectState.ABSENT: "effect.absent"}
"""A worker's late word."""


def prepare(
    ledger: Ledger, job_id: JobId, fence: int, key: str, *, idempotent: bool
) -> tuple[Effect, Ruling] | NotFound | StaleAttempt:
    job = ledger.find_job(job_id)
    if job is None:
        return NotFound(f"no job {job_id}")
    if job.state is not State.RUNNING or job.fence != fence:
        return _stale(job, fence, current=job.fence)
    known = ledger.find_effect(job.origin, key)
    if known is not None:
        ruling = rule_on_repeat(known, fence=fence, risk=job.risk, idempotent=idempotent)
        if ruling is not Ruling.RUN:
            return known, ruling
    effect = Effect(
        tenant=job.tenant,
        job_id=job.origin,
        key=key,
        state=EffectState.PREPARED,
        fence=fence,
        attempt=job.attempts,
        idempotency_key=idempotency_key(job.tenant, job.origin, key),
        result=None,
        prepared_at=ledger.now,
        settled_at=None,
    )
    ledger.write_effect(effect)
    return effect, Ruling.RUN


def settle(
    ledger: Ledger,
    job_id: JobId,
    fence: int,
    key: str,
    *,
    state: EffectState,
    result: bytes | None,
    topic_of: TopicOf,
) -> Effect | NotFound | Conflict | StaleAttempt:
    """The word of the attempt that prepared it: COMMITTED or ABSENT."""
    job = ledger.find_job(job_id)
    known = None if job is None else ledger.find_effect(job.origin, key)
    if job is None or known is None:
        return NotFound(f"job {job_id} has prepared no effect {key!r}")
    if known.fence == fence and known.state is state:
        return known
    # UNKNOWN too: whoever prepared it last says what became of it, and nobody knows better.
    if known.fence == fence and known.state in UNSETTLED:
        settled = replace(known, state=state, result=result, settled_at=ledger.now)
        ledger.write_effect(settled)
        if known.state is EffectState.UNKNOWN:
            ledger.tell(job, _TOLD[state], {"key": key, "was": known.state})
            _unpark(ledger, job, key, topic_of)
        return settled
    if known.fence == fence and state is EffectState.ABSENT and known.state is EffectState.COMMITTED:
        return Conflict(f"effect {key!r} of job {job_id} is committed: it has happened")
    detail = {
        "key": key,
        "state": known.state,
        "offered_state": state,
        "offered_fence": fence,
        "current_fence": known.fence,
        "result": None if result is None else result.decode(errors="replace"),
    }
    ledger.tell(job, "effect.refused", detail)
    return _stale(job, fence, current=known.fence)


def resolve(
    ledger: Ledger,
    tenant: Tenant,
    job_id: JobId,
    key: str,
    topic_of: TopicOf,
    *,
    state: EffectState,
    result: bytes | None,
    note: str,
    records: Sequence[RecordChange],
) -> Effect | NotFound | Conflict | Invalid:
    if state not in (EffectState.COMMITTED, EffectState.ABSENT):
        return Invalid(f"an effect is resolved as committed or absent, not as {state}")
    job = ledger.find_job(job_id)
    known = None if job is None else ledger.find_effect(job.origin, key)
    if job is None or known is None or known.tenant != tenant:
        return NotFound(f"job {job_id} has no effect {key!r}")
    if known.state is not EffectState.UNKNOWN:
        return Conflict(f"effect {key!r} of job {job_id} is {known.state}: only an unknown one is resolved")
    if not may_change_records(ledger, records):
        return _moved()
    resolved = replace(known, state=state, result=result, settled_at=ledger.now, note=note)
    ledger.write_effect(resolved)
    ledger.tell(job, "effect.resolved", {"key": key, "as": state, "note": note})
    _unpark(ledger, job, key, topic_of)
    for change in records:
        ledger.write_record(change)
    return resolved


def replay_dead_letter(
    ledger: Ledger, tenant: Tenant, number: int, submission: Submission, topic_of: TopicOf
) -> Accepted | NotFound | KeyReused | VersionMismatch:
    letter = ledger.find_dead_letter(tenant, number)
    if letter is None:
        return NotFound(f"no dead letter {number}")
    if letter.replayed_as is not None:
        first = ledger.find_job(letter.replayed_as)
        assert first is not None
        return Accepted(first, repeated=True)
    if not may_change_records(ledger, submission.records):
        return _moved()
    answer = ledger.submit_one(submission, topic_of)
    if not isinstance(answer, Accepted):
        return KeyReused(f"this key was used for another request; it made job {answer.job_id}")
    ledger.mark_replayed(number, answer.job.id)
    ledger.tell(letter.job, "dead_letter.replayed", {"number": number, "replayed_as": answer.job.id})
    return answer


def _unpark(ledger: Ledger, job: Job, key: str, topic_of: TopicOf) -> None:
    """Together with the word it waited for: a crash in between would leave it parked for ever."""
    for parked in ledger.list_parked(job.origin):
        unparked = amend(parked, not_before=ledger.now)
        ledger.apply([Change(before=parked, after=unparked, kind="job.unblocked", detail={"effect": key})], topic_of)


def _moved() -> VersionMismatch:
    return VersionMismatch("a record that belongs to it has changed; try again")


def _stale(job: Job, fence: int, *, current: int) -> StaleAttempt:
    return StaleAttempt(job.id, current_fence=current, offered_fence=fence, state=job.state)
