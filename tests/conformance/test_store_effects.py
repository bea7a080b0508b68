"""What `holdfast.ports.Store` promises about effects, once, for every store."""

# ruff: noqa: F811  (a fixture is found by the name of a parameter)

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from plane.jobs import ACME, OTHER, dispatched, running, stepped
from plane.store_fixtures import clock, store, url  # noqa: F401

from holdfast.core.effect import Ruling, idempotency_key, place_of
from holdfast.core.job import PARKED_UNTIL, Job, JobId, amend, step
from holdfast.core.record import Kind, Record
from holdfast.core.states import EffectState, Event, Risk
from holdfast.errors import Conflict, Invalid, NotFound, StaleAttempt, VersionMismatch
from holdfast.ports import Change, RecordChange, Store


async def again(store: Store, job: Job, fence: int) -> Job:
    """The job's next attempt, after it lost the one before."""
    back = await stepped(store, job, Event.LOSE)
    sent = await stepped(store, back, Event.DISPATCH, worker="w2", fence=fence)
    return await stepped(store, sent, Event.START, attempts=sent.attempts + 1, lease_until=store.now() + 30)


async def unknown_effect(store: Store, risk: Risk = Risk.HIGH) -> Job:
    """A running job whose first attempt was lost while it charged."""
    job = await running(store, fence=7, risk=risk)
    await store.prepare_effect(job.id, 7, "charge", idempotent=False)
    return await again(store, job, fence=8)


async def test_new_effect_may_run_and_is_prepared(store: Store) -> None:
    job = await running(store, fence=7)

    effect, ruling = await store.prepare_effect(job.id, 7, "charge", idempotent=False)

    assert (ruling, effect.state, effect.fence, effect.attempt) == (Ruling.RUN, EffectState.PREPARED, 7, 1)
    assert effect.idempotency_key == idempotency_key(ACME, job.id, "charge")
    assert await store.list_effects(ACME) == [effect]


async def test_effects_are_listed_from_a_place_on(store: Store) -> None:
    jobs = [await running(store, fence=7), await running(store, fence=8)]
    for job in jobs:
        for key in ["b", "a"]:
            await store.prepare_effect(job.id, job.fence, key, idempotent=False)

    effects = await store.list_effects(ACME)
    places = [place_of(effect) for effect in effects]

    assert len(effects) == 4
    assert places == sorted(places)
    for n, place in enumerate(places):
        assert await store.list_effects(ACME, after=place, limit=2) == effects[n + 1 : n + 3]
    assert await store.list_effects(ACME, job_id=jobs[1].id, after=places[0]) == [
        effect for effect in effects[1:] if effect.job_id == jobs[1].id
    ]


async def test_only_the_running_attempt_prepares(store: Store) -> None:
    job, waiting = await running(store, fence=7), await dispatched(store, fence=9)

    with pytest.raises(StaleAttempt) as caught:
        await store.prepare_effect(job.id, 6, "charge", idempotent=True)
    with pytest.raises(StaleAttempt):
        await store.prepare_effect(waiting.id, 9, "charge", idempotent=True)
    with pytest.raises(NotFound):
        await store.prepare_effect(JobId("none"), 7, "charge", idempotent=True)

    assert caught.value.current_fence == 7
    assert await store.list_effects(ACME) == []


async def test_committed_effect_is_remembered_by_later_attempts(store: Store) -> None:
    job = await running(store, fence=7)
    await store.prepare_effect(job.id, 7, "charge", idempotent=False)
    committed = await store.commit_effect(job.id, 7, "charge", b'"paid"')
    await again(store, job, fence=8)

    assert await store.prepare_effect(job.id, 8, "charge", idempotent=False) == (committed, Ruling.REMEMBERED)
    assert committed.result == b'"paid"'


async def test_commit_said_again_is_answered_the_same(store: Store) -> None:
    job = await running(store, fence=7)
    await store.prepare_effect(job.id, 7, "charge", idempotent=False)
    first = await store.commit_effect(job.id, 7, "charge", b"1")

    assert await store.commit_effect(job.id, 7, "charge", b"1") == first
    with pytest.raises(NotFound):
        await store.commit_effect(job.id, 7, "other", b"1")


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (Event.LOSE, EffectState.UNKNOWN),
        (Event.RETRY, EffectState.UNKNOWN),
        (Event.HAND_BACK, EffectState.UNKNOWN),
        (Event.SUCCEED, EffectState.UNKNOWN),
        (Event.CANCEL, EffectState.UNKNOWN),
        (Event.EXPIRE, EffectState.UNKNOWN),
        (None, EffectState.PREPARED),
    ],
)
async def test_prepared_effect_of_an_attempt_that_ended_is_unknown(
    store: Store, event: Event | None, state: EffectState
) -> None:
    job = await running(store, fence=7)
    await store.prepare_effect(job.id, 7, "charge", idempotent=False)
    if event is None:
        await store.apply([Change(before=job, after=amend(job, progress={"n": 1}), kind="job.progressed")])
    else:
        await stepped(store, job, event)

    [effect] = await store.list_effects(ACME)
    kinds = [e.kind for e in await store.list_events(after=0, limit=10, job_id=job.id)]

    assert effect.state is state
    assert ("effect.unknown" in kinds) is (state is EffectState.UNKNOWN)


async def test_effects_that_become_unknown_together_are_told_by_their_keys(store: Store) -> None:
    job = await running(store, fence=7)
    for key in ["mail", "charge", "z"]:
        await store.prepare_effect(job.id, 7, key, idempotent=False)
    await stepped(store, job, Event.FAIL)

    told = [e.detail["key"] for e in await store.list_events(after=0, limit=20) if e.kind == "effect.unknown"]

    assert told == ["charge", "mail", "z"]


async def test_unknown_effect_blocks_the_retry_and_is_left_as_it_is(store: Store) -> None:
    job = await unknown_effect(store)
    [before] = await store.list_effects(ACME, state=EffectState.UNKNOWN)

    effect, ruling = await store.prepare_effect(job.id, 8, "charge", idempotent=True)

    assert (effect, ruling) == (before, Ruling.BLOCKED)
    assert await store.list_effects(ACME, job_id=job.id) == [before]


async def test_low_risk_runs_again_under_the_new_fence_with_the_same_key(store: Store) -> None:
    job = await unknown_effect(store, Risk.LOW)
    [before] = await store.list_effects(ACME)

    effect, ruling = await store.prepare_effect(job.id, 8, "charge", idempotent=False)

    assert (ruling, effect.fence, effect.state) == (Ruling.RUN, 8, EffectState.PREPARED)
    assert effect.idempotency_key == before.idempotency_key


async def test_late_commit_after_a_newer_attempt_prepared_is_refused_and_kept_as_evidence(store: Store) -> None:
    job = await unknown_effect(store, Risk.LOW)
    await store.prepare_effect(job.id, 8, "charge", idempotent=False)

    with pytest.raises(StaleAttempt) as caught:
        await store.commit_effect(job.id, 7, "charge", b'"late"')

    last = (await store.list_events(after=0, limit=20, job_id=job.id))[-1]
    assert caught.value.current_fence == 8
    assert (last.kind, last.detail["result"], last.detail["offered_fence"]) == ("effect.refused", '"late"', 7)


async def test_late_commit_that_nobody_has_overtaken_settles_the_unknown(store: Store) -> None:
    job = await unknown_effect(store)

    committed = await store.commit_effect(job.id, 7, "charge", b'"paid"')

    assert committed.state is EffectState.COMMITTED
    assert await store.prepare_effect(job.id, 8, "charge", idempotent=False) == (committed, Ruling.REMEMBERED)


@pytest.mark.parametrize(
    ("found", "ruling"), [(EffectState.ABSENT, Ruling.RUN), (EffectState.COMMITTED, Ruling.REMEMBERED)]
)
async def test_person_resolves_an_unknown_effect(store: Store, found: EffectState, ruling: Ruling) -> None:
    job = await unknown_effect(store)

    resolved = await store.resolve_effect(ACME, job.id, "charge", state=found, result=b"1", note="asked the bank")

    assert (resolved.state, resolved.note) == (found, "asked the bank")
    assert (await store.prepare_effect(job.id, 8, "charge", idempotent=False))[1] is ruling


async def test_withdrawn_effect_may_run_again_under_the_next_fence(store: Store) -> None:
    job = await running(store, fence=7, risk=Risk.HIGH)
    await store.prepare_effect(job.id, 7, "charge", idempotent=False)
    first = await store.withdraw_effect(job.id, 7, "charge")
    assert await store.withdraw_effect(job.id, 7, "charge") == first
    await again(store, job, fence=8)

    assert first.state is EffectState.ABSENT
    assert (await store.prepare_effect(job.id, 8, "charge", idempotent=False))[1] is Ruling.RUN


async def test_only_who_prepared_an_effect_withdraws_it_and_not_after_it_has_happened(store: Store) -> None:
    job = await unknown_effect(store, Risk.LOW)
    await store.prepare_effect(job.id, 8, "charge", idempotent=False)

    with pytest.raises(StaleAttempt):
        await store.withdraw_effect(job.id, 7, "charge")
    with pytest.raises(NotFound):
        await store.withdraw_effect(job.id, 8, "other")
    await store.commit_effect(job.id, 8, "charge", b"1")
    with pytest.raises(Conflict):
        await store.withdraw_effect(job.id, 8, "charge")


@pytest.mark.parametrize("happened", [True, False])
async def test_late_word_on_an_effect_sends_the_job_on_that_was_parked_for_it(store: Store, happened: bool) -> None:
    """Nothing is left for a person to resolve, so nobody else would."""
    job = await unknown_effect(store)
    parked = step(job, Event.RETRY, now=store.now(), worker="", not_before=PARKED_UNTIL)
    assert await store.apply([Change(before=job, after=parked, kind="job.parked")]) == [True]

    if happened:
        await store.commit_effect(job.id, 7, "charge", b"1")
    else:
        await store.withdraw_effect(job.id, 7, "charge")

    assert [found.id for found in await store.list_dispatchable(limit=10)] == [job.id]


async def test_only_an_unknown_effect_of_the_tenant_is_resolved(store: Store) -> None:
    job = await running(store, fence=7)
    await store.prepare_effect(job.id, 7, "charge", idempotent=False)

    with pytest.raises(Conflict):
        await store.resolve_effect(ACME, job.id, "charge", state=EffectState.ABSENT, result=None, note="n")
    with pytest.raises(NotFound):
        await store.resolve_effect(OTHER, job.id, "charge", state=EffectState.ABSENT, result=None, note="n")
    with pytest.raises(Invalid):
        await store.resolve_effect(ACME, job.id, "charge", state=EffectState.PREPARED, result=None, note="n")


async def test_a_replay_shares_the_effects_of_the_job_it_began_with(store: Store) -> None:
    """What was done once stays done, however often the job is sent round again."""
    first = await running(store)
    await store.prepare_effect(first.id, first.fence, "charge", idempotent=False)
    await store.commit_effect(first.id, first.fence, "charge", b'"paid"')
    again = await running(store, replay_of=first.id)

    effect, ruling = await store.prepare_effect(again.id, again.fence, "charge", idempotent=False)

    assert ruling is Ruling.REMEMBERED
    assert effect.result == b'"paid"'


async def test_resolving_sends_the_parked_job_on_in_the_same_transaction(store: Store) -> None:
    job = await running(store)
    await store.prepare_effect(job.id, job.fence, "charge", idempotent=False)
    parked = step(job, Event.RETRY, now=store.now(), worker="", not_before=PARKED_UNTIL)
    assert await store.apply([Change(before=job, after=parked, kind="job.parked")]) == [True]
    assert await store.list_dispatchable(limit=10) == []

    await store.resolve_effect(
        job.tenant, job.id, "charge", state=EffectState.ABSENT, result=None, note="asked the bank"
    )

    assert [found.id for found in await store.list_dispatchable(limit=10)] == [job.id]


async def test_job_is_not_parked_for_an_effect_that_was_resolved_meanwhile(store: Store) -> None:
    job = await unknown_effect(store)
    await store.resolve_effect(
        job.tenant, job.id, "charge", state=EffectState.ABSENT, result=None, note="asked the bank"
    )
    parked = step(job, Event.RETRY, now=store.now(), worker="", not_before=PARKED_UNTIL)

    assert await store.apply([Change(before=job, after=parked, kind="job.parked")]) == [True]

    assert [found.id for found in await store.list_dispatchable(limit=10)] == [job.id]


async def test_records_are_written_with_the_word_on_an_effect_or_neither_is(store: Store) -> None:
    job = await unknown_effect(store)
    record = Record(kind=Kind.AUDIT, tenant=ACME, id="1", created_at=0.0, body=b"{}")
    late = RecordChange(after=replace(record, version=2), replaces=1)
    word: dict[str, Any] = {"state": EffectState.ABSENT, "result": None, "note": "n"}

    with pytest.raises(VersionMismatch):
        await store.resolve_effect(ACME, job.id, "charge", **word, records=[late])
    assert [effect.state for effect in await store.list_effects(ACME)] == [EffectState.UNKNOWN]

    await store.resolve_effect(ACME, job.id, "charge", **word, records=[RecordChange(after=record, replaces=0)])
    assert [effect.state for effect in await store.list_effects(ACME)] == [EffectState.ABSENT]
    assert await store.get_record(Kind.AUDIT, ACME, "1") == record
