"""Recovery is total: for every state and time one action, and never one that the state does not allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plane.jobs import a_job

from holdfast.core.job import may
from holdfast.core.recovery import Remedy, next_look, recover
from holdfast.core.states import LIVE, TERMINAL, State
from holdfast.core.topic import Topic

TOPIC = Topic(name="t")
SECONDS = st.floats(0, 1e6, allow_nan=False).map(lambda s: round(s, 3))


@st.composite
def jobs(draw: Callable[..., Any]) -> Any:
    since = draw(SECONDS)
    return a_job(
        state=draw(st.sampled_from(State)),
        since=since,
        not_before=draw(SECONDS),
        deadline=draw(st.none() | SECONDS),
        lease_until=draw(SECONDS),
        attempts=draw(st.integers(0, 4)),
        cancel_requested=draw(st.booleans()),
    )


@given(job=jobs(), now=SECONDS)
def test_every_job_has_an_action_at_every_time_and_it_is_legal(job: Any, now: float) -> None:
    action = recover(job, TOPIC, now=now)

    assert action.remedy is Remedy.NOTHING or action.reason
    assert action.event is None or may(job, action.event)
    assert not (job.is_terminal and action.remedy is not Remedy.NOTHING)


@given(job=jobs(), now=SECONDS)
def test_nothing_is_due_before_the_next_look(job: Any, now: float) -> None:
    look = next_look(job, TOPIC, now=0.0)

    if now < look - 1e-6:  # a sum and a difference of floats need not agree to the last bit
        assert recover(job, TOPIC, now=now).remedy is Remedy.NOTHING


@given(job=jobs(), late=st.floats(0.001, 1e6))
def test_something_is_due_at_the_next_look(job: Any, late: float) -> None:
    """So an index on it finds all that is due, and little else."""
    if job.state in TERMINAL:
        assert next_look(job, TOPIC, now=0.0) == float("inf")
    else:
        assert recover(job, TOPIC, now=next_look(job, TOPIC, now=0.0) + late).remedy is not Remedy.NOTHING


@pytest.mark.parametrize("state", LIVE)
def test_no_live_state_is_left_behind_for_ever(state: State) -> None:
    assert recover(a_job(state=state), TOPIC, now=1e9).remedy is not Remedy.NOTHING


@pytest.mark.parametrize(
    ("changes", "now", "remedy", "reason"),
    [
        ({"state": State.PENDING}, 1059.9, Remedy.NOTHING, ""),
        ({"state": State.PENDING}, 1060.0, Remedy.DECIDE, "decision-lost"),
        ({"state": State.APPROVAL_REQUIRED}, 1000.0 + 86400, Remedy.EXPIRE, "approval-expired"),
        ({"state": State.SCHEDULED}, 1009.9, Remedy.NOTHING, ""),
        ({"state": State.SCHEDULED}, 1010.0, Remedy.DISPATCH, "wake-up-lost"),
        ({"state": State.SCHEDULED, "not_before": 1100.0}, 1050.0, Remedy.NOTHING, ""),
        ({"state": State.DISPATCHED}, 1299.9, Remedy.NOTHING, ""),
        ({"state": State.DISPATCHED}, 1300.0, Remedy.REQUEUE, "dispatch-timeout"),
        ({"state": State.DISPATCHED, "retries": {"requeue": 8}}, 1300.0, Remedy.REQUEUE, "dispatch-timeout"),
        ({"state": State.DISPATCHED, "retries": {"requeue": 9}}, 1300.0, Remedy.FAIL, "never-started"),
        (
            {"state": State.DISPATCHED, "retries": {"requeue": 9}, "attempts": 1},
            1300.0,
            Remedy.REQUEUE,
            "dispatch-timeout",
        ),
        ({"state": State.RUNNING, "lease_until": 1030.0}, 1029.9, Remedy.NOTHING, ""),
        ({"state": State.RUNNING, "lease_until": 1030.0, "attempts": 1}, 1030.0, Remedy.RETRY, "lease-expired"),
        (
            {"state": State.RUNNING, "lease_until": 1030.0, "attempts": 3},
            1030.0,
            Remedy.FAIL,
            "lease-expired-no-attempts-left",
        ),
        (
            {"state": State.RUNNING, "lease_until": 1030.0, "cancel_requested": True},
            1030.0,
            Remedy.CANCEL,
            "cancelled-worker-gone",
        ),
        ({"state": State.RUNNING, "lease_until": 9e9}, 1900.0, Remedy.EXPIRE, "running-timeout"),
        ({"state": State.RUNNING, "lease_until": 9e9, "deadline": 1100.0}, 1100.0, Remedy.EXPIRE, "deadline-passed"),
        ({"state": State.SUCCEEDED, "deadline": 1100.0}, 9e9, Remedy.NOTHING, ""),
    ],
)
def test_each_rule_at_its_limit(changes: dict[str, Any], now: float, remedy: Remedy, reason: str) -> None:
    assert recover(a_job(**changes), TOPIC, now=now) == (remedy, reason)


def test_delivery_that_has_not_left_the_outbox_is_never_one_too_many() -> None:
    job = a_job(state=State.DISPATCHED, retries={"requeue": 9})

    assert recover(job, TOPIC, now=1299.9, is_sent=False).remedy is Remedy.NOTHING
    assert recover(job, TOPIC, now=1300.0, is_sent=False) == (Remedy.REQUEUE, "never-sent")
