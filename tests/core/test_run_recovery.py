"""Recovery of runs is total: one rule for each state, and what it asks for makes the run go on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from core.run_world import World
from core.test_run import workflow
from holdfast.core.job import Tenant
from holdfast.core.run import LOOK_S, RUN_TERMINAL, STEP_TERMINAL, Fan, Run, RunState, Step, StepState
from holdfast.core.run_recovery import NOTHING, RunRemedy, lost, recover_run, recover_step
from holdfast.core.run_words import TimerDue

TIMES = st.floats(0, 1e6, allow_nan=False)


def a_run(**fields: Any) -> Run:
    given_fields = {"state": RunState.RUNNING, "since": 0.0, "created_at": 0.0, **fields}
    return Run(id="r", tenant=Tenant("acme"), workflow="w", revision=1, input=Raw(b"{}"), **given_fields)


def a_step(**fields: Any) -> Step:
    given_fields = {"state": StepState.RUNNING, "kind": "job", "since": 0.0, **fields}
    return Step(run="r", tenant=Tenant("acme"), name="s", created_at=0.0, ref="x", **given_fields)


@given(state=st.sampled_from(RunState), due=st.none() | TIMES, deadline=st.none() | TIMES, now=TIMES)
def test_every_run_has_an_action_at_every_time(
    state: RunState, due: float | None, deadline: float | None, now: float
) -> None:
    action = recover_run(a_run(state=state, due=due, deadline=deadline), now=now)

    assert (action == NOTHING) or action.reason
    assert state not in RUN_TERMINAL or action == NOTHING


@given(
    state=st.sampled_from(StepState),
    wake=st.none() | TIMES,
    deadline=st.none() | TIMES,
    fan=st.none() | st.just(Fan(total=1)),
    now=TIMES,
)
def test_every_step_has_an_action_at_every_time(
    state: StepState, wake: float | None, deadline: float | None, fan: Fan | None, now: float
) -> None:
    action = recover_step(a_step(state=state, wake=wake, deadline=deadline, fan=fan), now=now)

    assert (action == NOTHING) or action.reason
    assert state not in STEP_TERMINAL or action == NOTHING


@pytest.mark.parametrize("state", [state for state in RunState if state not in RUN_TERMINAL])
def test_no_live_run_is_forgotten(state: RunState) -> None:
    wanted = RunRemedy.TAKE_TURN if state is RunState.QUEUED else RunRemedy.LOOK

    assert recover_run(a_run(state=state, due=5.0), now=5.0).remedy is wanted
    assert recover_run(a_run(state=state, due=None), now=5.0).remedy is wanted


@pytest.mark.parametrize(
    "state", [StepState.RUNNING, StepState.ASKING, StepState.STOPPING, StepState.READY, StepState.DELAYED]
)
def test_no_step_that_waits_for_the_world_is_forgotten(state: StepState) -> None:
    wake = 10.0 if state is StepState.DELAYED else None

    assert recover_step(a_step(state=state, wake=wake), now=LOOK_S + 1) != NOTHING


def test_a_run_that_was_looked_at_says_when_to_look_again() -> None:
    world = World(workflow("  - {id: a, kind: job, topic: t}"))
    assert world.run.due == world.now + LOOK_S
    world.now += LOOK_S
    assert world.hear(TimerDue()).changed
    assert world.run.due == world.now + LOOK_S


@pytest.mark.parametrize(
    "step", ["job, topic: t", "workflow, workflow: w", "approval, message: m", "notify, webhook: ops"]
)
def test_what_is_lost_fails_its_step(step: str) -> None:
    world = World(workflow(f"  - {{id: a, kind: {step}}}"))
    world.hear(lost(world.step("a")))

    assert world.state() is RunState.FAILED
