"""J1 to J11 and U1 as checkers over what was committed and what an onlooker saw. Each says what it found."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from flow.stage import Stage
from flow.watched_bus import Seen
from holdfast.core.job import Job, JobId
from holdfast.core.states import TERMINAL, TRANSITIONS, Event, State
from holdfast.ports import JobEvent, Snapshot
from holdfast.reconciler import POLL_S

EVENTS = {
    "job.dispatched": Event.DISPATCH,
    "dispatch.rolled_back": Event.ROLL_BACK,
    "job.requeued": Event.REQUEUE,
    "job.started": Event.START,
    "job.succeeded": Event.SUCCEED,
    "job.retried": Event.RETRY,
    "job.parked": Event.RETRY,
    "job.failed": Event.FAIL,
    "job.lost": Event.LOSE,
    "job.handed_back": Event.HAND_BACK,
    "job.cancelled": Event.CANCEL,
    "job.timed_out": Event.EXPIRE,
    "job.approved": Event.APPROVE,
    "job.denied": Event.DENY,
}
"""The state changes of the history, by their kind. Anything else must leave the state alone."""

OUTCOMES = ("job.succeeded", "job.retried", "job.parked", "job.handed_back")
"""What only an attempt's own word can bring about (a failure may also be recovery's)."""


def histories(events: Iterable[JobEvent]) -> dict[JobId, list[JobEvent]]:
    by_job: dict[JobId, list[JobEvent]] = defaultdict(list)
    for event in events:
        if event.job_id:
            by_job[event.job_id].append(event)
    return by_job


async def check_plane(stage: Stage, *, all_ended: bool = True) -> None:
    """Everything that must hold at the end of any story."""
    await stage.seen.look()
    events = await stage.inner.list_events(after=0, limit=1_000_000)
    assert events == stage.seen.events, "U1: history was rewritten"
    check_audit(events)
    found = await stage.inner.find_jobs(list(histories(events)))
    jobs = [job for job in found if job is not None]
    check_legal_edges(events)
    check_terminal_stable(events, jobs)
    check_state_before_publish(stage.seen)
    check_attempts(events, jobs)
    check_one_result(events, stage.seen)
    check_entered_once(events, stage.seen)
    check_rollback_safe(events)
    check_ack_after_commit(stage.seen)
    if all_ended:
        check_no_loss(stage.seen, jobs)


def check_audit(events: Sequence[JobEvent]) -> None:
    numbers = [event.number for event in events]
    assert numbers == list(range(1, len(numbers) + 1)), f"U1: numbers are not gap-free: {numbers}"


def check_legal_edges(events: Iterable[JobEvent]) -> None:
    for job_id, history in histories(events).items():
        assert history[0].kind == "job.submitted", f"J1: {job_id} began with {history[0]}"
        for before, after in itertools.pairwise(history):
            event = EVENTS.get(after.kind)
            if event is None:
                legal = after.state is before.state or after.kind == "job.decided"
            else:
                assert before.state is not None
                legal = TRANSITIONS.get((before.state, event)) is after.state
            assert legal, f"J1: {job_id} went from {before.state} to {after.state} by {after.kind}"


def check_terminal_stable(events: Iterable[JobEvent], jobs: Iterable[Job]) -> None:
    for job_id, history in histories(events).items():
        ends = [event for event in history if event.kind in EVENTS and event.state in TERMINAL]
        assert len(ends) <= 1, f"J2: {job_id} ended more than once: {ends}"
        if ends:
            later = {event.state for event in history if event.number > ends[0].number}
            assert later <= {ends[0].state}, f"J2: {job_id} left {ends[0].state} for {later}"
    for job in jobs:
        assert job.result is None or job.state is State.SUCCEEDED, f"J2: {job.id} is {job.state} with a result"


def check_state_before_publish(seen: Seen) -> None:
    for delivery, commits in seen.published:
        written = [e for e in seen.events[:commits] if e.kind == "job.dispatched" and e.job_id == delivery.job_id]
        fences = [event.fence for event in written]
        assert delivery.fence in fences, f"J3: {delivery} was published before its DISPATCHED was committed"


def check_attempts(events: Iterable[JobEvent], jobs: Iterable[Job]) -> None:
    by_job = histories(events)
    for job in jobs:
        fences = [event.fence for event in by_job[job.id] if event.kind == "job.dispatched"]
        assert fences == sorted(set(fences)), f"J4: fences of {job.id} do not grow: {fences}"
        kinds = Counter(event.kind for event in by_job[job.id])
        spent = kinds["job.started"] - kinds["job.handed_back"] - kinds["job.parked"]
        assert job.attempts == spent <= job.max_attempts, f"J4: {job.id} counts {job.attempts} attempts, not {spent}"


def check_one_result(events: Iterable[JobEvent], seen: Seen) -> None:
    for job_id, history in histories(events).items():
        outcomes = [event for event in history if event.kind in OUTCOMES]
        fences = [event.fence for event in outcomes]
        assert len(fences) == len(set(fences)), f"J5: one attempt of {job_id} ended more than once: {outcomes}"
        started = {event.fence for event in history if event.kind == "job.started"}
        assert set(fences) <= started, f"J5: an outcome of {job_id} has a fence that nobody started: {outcomes}"
    ended = {(e.job_id, e.fence) for e in seen.events if e.kind in (*OUTCOMES, "job.failed", "job.cancelled")}
    for job_id, fence, end, _ in seen.accepted:
        assert (job_id, fence) in ended, f"J5: {end} of {job_id} under {fence} was answered ok, and is nowhere"


def check_entered_once(events: Iterable[JobEvent], seen: Seen) -> None:
    twice = [entry for entry, times in Counter(seen.entered).items() if times > 1]
    assert not twice, f"J6: handlers entered twice for one attempt: {twice}"
    started = {(event.job_id, event.fence) for event in events if event.kind == "job.started"}
    assert set(seen.entered) <= started, "J6: a handler was entered without its attempt being started"


def check_rollback_safe(events: Iterable[JobEvent]) -> None:
    for job_id, history in histories(events).items():
        changes = [event for event in history if event.kind in EVENTS]
        for before, after in itertools.pairwise(changes):
            if after.kind == "dispatch.rolled_back":
                own = before.kind == "job.dispatched" and before.fence == after.fence
                assert own, f"J7: a rollback of {job_id} undid {before.kind} of fence {before.fence}"


def check_no_loss(seen: Seen, jobs: Iterable[Job]) -> None:
    states = {job.id: job.state for job in jobs}
    lost = {job_id: states.get(job_id) for job_id, _ in seen.acknowledged if states.get(job_id) not in TERMINAL}
    assert not lost, f"J8: acknowledged and not ended: {lost}"


def check_blind_window(seen: Seen, *, bound_s: float, ended_at: float) -> None:
    """J9: per job, the time in DISPATCHED without a message and without a claim. Only for a detached bus."""
    carried = {(delivery.job_id, delivery.fence) for delivery in seen.carried}
    for job_id, history in histories(seen.events).items():
        changes = [event for event in history if event.kind in ("job.submitted", *EVENTS)]
        blind = 0.0
        for event, after in itertools.zip_longest(changes, changes[1:]):
            if event.state is State.DISPATCHED and (job_id, event.fence) not in carried:
                blind += (after.at if after is not None else ended_at) - event.at
        assert blind <= bound_s + 2 * POLL_S, f"J9: {job_id} was unprotected for {blind:.1f} s"


def check_calm(seen: Seen, jobs: Iterable[Job]) -> None:
    """J10: nothing was injected, so nothing was put right."""
    disturbed = {"dispatch.rolled_back", "job.requeued", "job.lost", "attempt.refused"}
    found = [event for event in seen.events if event.kind in disturbed]
    assert not found, f"J10: {found}"
    attempts = {job.id: job.attempts for job in jobs if job.attempts != 1}
    assert not attempts, f"J10: more than one attempt: {attempts}"


def check_ack_after_commit(seen: Seen) -> None:
    for job_id, commits in seen.acknowledged:
        known = any(e.job_id == job_id and e.kind == "job.submitted" for e in seen.events[:commits])
        assert known, f"J11: {job_id} was acknowledged before it was committed"
    for job_id, fence, end, commits in seen.accepted:
        said = [e for e in seen.events[:commits] if (e.job_id, e.fence) == (job_id, fence)]
        assert any(e.state is not State.RUNNING for e in said if e.kind != "job.dispatched"), (
            f"J11: {end} of {job_id} was acknowledged before it was committed"
        )
    for delivery, commits in seen.settled:
        last = [e for e in seen.events[:commits] if e.job_id == delivery.job_id and e.kind in EVENTS]
        waiting = last and last[-1].state is State.DISPATCHED and last[-1].fence == delivery.fence
        assert not waiting, f"J11: {delivery} was settled while its job was still waiting for it"


def check_snapshots(snapshots: Sequence[Snapshot]) -> None:
    """S1: what readers saw only ever grew."""
    marks = [(snapshot.fence, snapshot.seq) for snapshot in snapshots]
    assert marks == sorted(marks), f"S1: snapshots went back: {marks}"
