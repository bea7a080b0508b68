"""Undoing what was done, in the reverse order, and running again from a step."""

from __future__ import annotations

import pytest

from core.run_world import World
from core.test_run import workflow
from holdfast.core.run import RunState, StepState
from holdfast.core.run_words import CancelAsked, RerunAsked, SubmitJob
from holdfast.core.states import State

TRIP = workflow("""
  - {id: car, kind: job, topic: car, compensate: {topic: car.cancel, payload: {booking: "${output.id}"}}}
  - {id: hotel, kind: job, topic: hotel, depends_on: [car], compensate: {topic: hotel.cancel, retry: {max_attempts: 2}}}
  - {id: flight, kind: job, topic: flight, depends_on: [hotel]}
""")


def failed_trip() -> World:
    world = World(TRIP)
    world.succeed("car", {"id": 7})
    world.succeed("hotel", {"id": 8})
    world.fail("flight")
    return world


def test_what_was_done_is_undone_in_the_reverse_order_one_after_the_other() -> None:
    world = failed_trip()
    assert world.state() is RunState.COMPENSATING
    assert list(world.orders()) == ["hotel~undo"]
    world.succeed("hotel~undo")
    order = world.orders()["car~undo"]
    assert isinstance(order, SubmitJob)
    assert (order.topic, order.payload, order.key) == ("car.cancel", b'{"booking":7}', "run/r/car~undo/1")
    world.succeed("car~undo")

    assert world.state() is RunState.FAILED
    assert (world.step("car").state, world.step("hotel").state) == (StepState.COMPENSATED, StepState.COMPENSATED)


def test_a_compensation_is_tried_again_and_a_failed_one_does_not_hold_up_the_rest() -> None:
    world = failed_trip()
    world.fail("hotel~undo")
    assert world.states()["hotel~undo"] == "retrying"
    world.wait(60)
    world.fail("hotel~undo")
    world.succeed("car~undo")

    assert world.state() is RunState.FAILED
    assert world.run.undone_badly == 1
    assert (world.states()["hotel"], world.states()["car"]) == ("succeeded", "compensated")


def test_a_job_that_succeeds_while_it_is_being_stopped_is_undone_too() -> None:
    world = World(
        workflow("""
  - {id: a, kind: job, topic: t, compensate: {topic: undo}}
  - {id: b, kind: job, topic: t}
""")
    )
    world.fail("b")
    assert world.states()["a"] == "stopping"
    world.succeed("a")
    assert list(world.orders()) == ["a~undo"]


@pytest.mark.parametrize(("compensate", "expected"), [(True, RunState.COMPENSATING), (False, RunState.CANCELLED)])
def test_whether_a_cancelled_run_is_undone_is_for_who_cancels_to_say(compensate: bool, expected: RunState) -> None:
    world = World(TRIP)
    world.succeed("car", {"id": 7})
    world.hear(CancelAsked(compensate=compensate))
    world.fail("hotel", State.CANCELLED)

    assert world.state() is expected


def test_on_error_fail_leaves_what_was_done() -> None:
    world = World(TRIP.replace("topic: flight,", "topic: flight, on_error: fail,"))
    world.succeed("car", {"id": 7})
    world.succeed("hotel", {"id": 8})
    world.fail("flight")

    assert world.state() is RunState.FAILED
    assert world.states()["car"] == "succeeded"


def test_items_are_undone_each_with_its_own_item() -> None:
    body = '{kind: job, topic: t, compensate: {topic: undo, payload: "${item}"}}'
    steps = f"  - {{id: f, kind: for_each, items: input.n, parallel: 3, step: {body}}}"
    world = World(workflow(steps), {"n": [10, 20, 30]})
    world.succeed("f[2]")
    world.succeed("f[0]")
    world.fail("f[1]")

    undone = []
    while world.state() is RunState.COMPENSATING:
        [(name, order)] = world.orders().items()
        assert isinstance(order, SubmitJob)
        undone.append(order.payload)
        world.succeed(name)
    assert undone == [b"10", b"30"]


# -- again ----------------------------------------------------------------------------------------------

CHAIN = workflow(
    """
  - {id: a, kind: job, topic: t}
  - {id: b, kind: job, topic: t, depends_on: [a]}
  - {id: side, kind: job, topic: t, depends_on: [a]}
  - {id: c, kind: job, topic: t, depends_on: [b], payload: "${steps.a.output}"}
""",
    output="${steps.c.output}",
)


def test_a_rerun_keeps_what_came_before_and_uses_no_key_twice() -> None:
    world = World(CHAIN)
    world.succeed("a", 1)
    world.succeed("side")
    world.succeed("b")
    world.succeed("c", "old")
    assert world.run_output == "old"

    world.hear(RerunAsked("b", "ann"))
    assert world.state() is RunState.RUNNING
    assert world.states() == {"a": "succeeded", "side": "succeeded", "b": "running", "c": "waiting"}
    assert world.step("b").attempt == 2
    world.succeed("b")
    world.succeed("c", "new")

    assert (world.state(), world.run_output, world.run.generation) == (RunState.SUCCEEDED, "new", 1)
    assert world.started() == ["a", "b", "side", "c", "b", "c"]


def test_a_rerun_of_a_failed_run_also_finishes_what_was_stopped() -> None:
    world = World(CHAIN)
    world.succeed("a", 1)
    world.fail("b")
    world.fail("side", State.CANCELLED)
    assert world.state() is RunState.FAILED

    world.hear(RerunAsked("b", "ann"))
    assert set(world.orders()) == {"b", "side"}
    for name in ("b", "side", "c"):
        world.succeed(name)
    assert world.state() is RunState.SUCCEEDED


def test_what_was_undone_is_done_again() -> None:
    world = failed_trip()
    world.succeed("hotel~undo")
    world.succeed("car~undo")

    world.hear(RerunAsked("flight", "ann"))
    assert list(world.orders()) == ["car"]
    world.succeed("car", {"id": 9})
    world.succeed("hotel")
    world.fail("flight")
    world.succeed("hotel~undo")
    order = world.orders()["car~undo"]
    assert isinstance(order, SubmitJob)
    assert (order.payload, order.key) == (b'{"booking":9}', "run/r/car~undo/2")
    world.succeed("car~undo")
    assert world.state() is RunState.FAILED


def test_a_step_whose_items_were_undone_is_done_again() -> None:
    body = "{kind: job, topic: t, compensate: {topic: undo}}"
    world = World(
        workflow(f"""
  - {{id: f, kind: for_each, items: "[1, 2]", step: {body}}}
  - {{id: last, kind: job, topic: t, depends_on: [f]}}
""")
    )
    for name in ("f[0]", "f[1]"):
        world.succeed(name)
    world.fail("last")
    for name in ("f[1]~undo", "f[0]~undo"):
        world.succeed(name)

    world.hear(RerunAsked("last"))
    assert set(world.orders()) == {"f[0]", "f[1]"}


def test_what_was_kept_is_still_undone_when_the_rerun_fails() -> None:
    world = World(TRIP.replace("topic: flight,", "topic: flight, on_error: fail,"))
    world.succeed("car", {"id": 7})
    world.succeed("hotel", {"id": 8})
    world.fail("flight")
    world.hear(RerunAsked("flight", "ann"))
    world.hear(CancelAsked())
    world.fail("flight", State.CANCELLED)

    assert list(world.orders()) == ["hotel~undo"]
    world.succeed("hotel~undo")
    assert list(world.orders()) == ["car~undo"]


@pytest.mark.parametrize("fewer", [False, True])
def test_a_rerun_of_a_step_with_items_makes_them_anew(fewer: bool) -> None:
    steps = """
  - {id: list, kind: job, topic: t}
  - {id: f, kind: for_each, depends_on: [list], items: steps.list.output, step: {kind: job, topic: t}}
"""
    world = World(workflow(steps, output="${steps.f.output}"))
    world.succeed("list", [1, 2])
    world.succeed("f[0]", "a")
    world.succeed("f[1]", "b")

    world.hear(RerunAsked("list" if fewer else "f"))
    if fewer:
        world.succeed("list", [1])
    assert world.step("f[0]").attempt == 2
    for name in list(world.orders()):
        world.succeed(name, "new")
    assert world.run_output == (["new"] if fewer else ["new", "new"])
