"""The job's life: every edge of the table, and nothing beside it."""

from __future__ import annotations

import itertools

import pytest
from plane.jobs import a_job

from holdfast.core.job import IllegalTransition, amend, may, step
from holdfast.core.states import LIVE, TERMINAL, TRANSITIONS, Event, State

EDGES = sorted(TRANSITIONS)
NON_EDGES = sorted(set(itertools.product(State, Event)) - set(TRANSITIONS))


@pytest.mark.parametrize(("state", "event"), EDGES)
def test_edge_leads_where_the_table_says(state: State, event: Event) -> None:
    job = a_job(state=state, version=4)

    after = step(job, event, now=2000.0, worker="w9")

    assert may(job, event)
    assert (after.state, after.version, after.since, after.worker) == (TRANSITIONS[state, event], 5, 2000.0, "w9")
    assert (after.id, after.payload, after.fence) == (job.id, job.payload, job.fence)


@pytest.mark.parametrize(("state", "event"), NON_EDGES)
def test_anything_else_is_refused(state: State, event: Event) -> None:
    job = a_job(state=state)

    assert not may(job, event)
    with pytest.raises(IllegalTransition):
        step(job, event, now=2000.0)


def test_no_edge_leaves_a_terminal_state() -> None:
    assert {state for state, _ in TRANSITIONS} == set(LIVE)
    assert set(LIVE) | TERMINAL == set(State)


def test_every_state_can_be_reached_and_left_for_an_end() -> None:
    reached = {State.PENDING}
    for _ in State:
        reached |= {target for (state, _), target in TRANSITIONS.items() if state in reached}
    ending = set(TERMINAL)
    for _ in State:
        ending |= {state for (state, _), target in TRANSITIONS.items() if target in ending}

    assert reached == set(State)
    assert ending == set(State)


def test_amending_changes_the_version_and_not_the_state() -> None:
    job = a_job(state=State.RUNNING, since=1.0)

    after = amend(job, progress={"n": 1})

    assert (after.state, after.since, after.version, after.progress) == (State.RUNNING, 1.0, job.version + 1, {"n": 1})
