"""Delays: until when they last, and what is no time to wait for."""

from __future__ import annotations

import pytest

from core.run_world import World
from core.test_run import workflow
from holdfast.core.run import RunState
from holdfast.core.run_words import TimerDue


@pytest.mark.parametrize(
    ("field", "expected"),
    [("seconds: 30", 30), ("seconds: input.n * 2", 14), ("until: run.created_at + 9.0", 9), ("until: input.at", 3600)],
)
def test_a_delay_ends_when_its_time_has_come(field: str, expected: float) -> None:
    world = World(workflow(f"  - {{id: d, kind: delay, {field}}}"), {"n": 7, "at": "1970-01-01T01:16:40Z"})

    assert world.step("d").due == 1_000 + expected
    world.wait(expected - 0.5)
    assert world.state() is RunState.RUNNING
    world.wait(1)
    assert world.state() is RunState.SUCCEEDED


@pytest.mark.parametrize("field", ["seconds", "until"])
@pytest.mark.parametrize("number", ["input.huge", "-input.huge", "double('NaN')", "1.0 / 0.0"])
def test_a_delay_of_no_finite_number_fails_and_waits_for_nothing(field: str, number: str) -> None:
    world = World(workflow(f"  - {{id: d, kind: delay, {field}: {number}}}"), {"huge": 10**400})

    assert world.step("d").error["code"] == "expression-failed"  # type: ignore[index]
    assert world.state() is RunState.FAILED


@pytest.mark.parametrize(("timeout_s", "expected"), [(15, "succeeded"), (10, "succeeded"), (9, "failed")])
def test_a_delay_that_was_over_in_time_is_no_timeout_when_it_is_looked_at_late(timeout_s: int, expected: str) -> None:
    world = World(workflow(f"  - {{id: d, kind: delay, seconds: 10, timeout_s: {timeout_s}}}"))
    world.now += 3600  # everything was down
    world.hear(TimerDue("d"))

    assert world.states() == {"d": expected}
