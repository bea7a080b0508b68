"""Steps of several parts: items and branches, how many at once, and who is stopped when the rest is decided."""

from __future__ import annotations

import pytest

from core.run_world import World
from core.test_run import workflow
from holdfast.core.run import HELD_S_MIN, Held, RunState
from holdfast.core.run_start import OUTPUT_BYTES_MAX
from holdfast.core.run_words import CancelAsked, CancelRun, ChildRunEnded, PauseAsked, RerunAsked, ResumeAsked, TimerDue
from holdfast.core.states import State
from holdfast.core.workflow import ITEMS_MAX

FOR_EACH = workflow(
    """
  - id: fan
    kind: for_each
    items: input.cities
    parallel: 2
    step: {kind: job, topic: t, payload: {city: "${item}", at: "${index}"}}
  - {id: after, kind: transform, depends_on: [fan], value: "${size(steps.fan.output)}"}
""",
    output="${steps.fan.output}",
)


def test_items_run_a_few_at_a_time_and_their_outputs_come_in_their_order() -> None:
    world = World(FOR_EACH, {"cities": ["Bonn", "Oslo", "Rome"]})
    assert world.started() == ["fan[0]", "fan[1]"]
    world.succeed("fan[1]", "O")
    assert world.orders()["fan[2]"].payload == b'{"city":"Rome","at":2}'  # type: ignore[union-attr]
    world.succeed("fan[2]", "R")
    world.succeed("fan[0]", "B")

    assert world.state() is RunState.SUCCEEDED
    assert world.run_output == ["B", "O", "R"]
    assert world.output("after") == 3


def test_no_items_is_no_work() -> None:
    world = World(FOR_EACH, {"cities": []})

    assert world.state() is RunState.SUCCEEDED
    assert world.run_output == []


@pytest.mark.parametrize("item", ["double('NaN')", "timestamp('2030-01-31T08:00:00Z')", "b'x'", "{1: 2}"])
def test_an_item_that_is_no_json_is_refused_and_not_made_into_something_else(item: str) -> None:
    world = World(FOR_EACH.replace("input.cities", f'"[{item}]"'))

    assert world.step("fan").error["code"] == "expression-failed"  # type: ignore[index]
    assert world.started() == []


def test_an_item_that_fails_stops_the_others_and_fails_the_step() -> None:
    world = World(FOR_EACH, {"cities": ["Bonn", "Oslo", "Rome"]})
    world.fail("fan[1]")

    assert world.stopped() == ["fan[0]"]
    assert world.step("fan").error == {
        "code": "part-failed",
        "message": "fan[1] did not succeed",
        "part": "fan[1]",
        "cause": "boom",
    }
    assert world.states()["fan[2]"] == "cancelled"
    world.fail("fan[0]", State.CANCELLED)
    assert world.state() is RunState.FAILED


def test_items_that_may_fail_leave_a_gap_and_those_not_wanted_are_skipped() -> None:
    world = World(
        workflow(
            """
  - id: fan
    kind: for_each
    items: input.n
    step: {kind: job, topic: t, when: "item > 0", on_error: continue}
""",
            output="${steps.fan.output}",
        ),
        {"n": [0, 1, 2]},
    )
    world.fail("fan[1]")
    world.succeed("fan[2]", "two")

    assert world.states() == {"fan": "succeeded", "fan[0]": "skipped", "fan[1]": "failed", "fan[2]": "succeeded"}
    assert world.run_output == [None, None, "two"]


def test_outputs_that_nobody_wants_are_not_gathered() -> None:
    world = World(
        workflow("  - {id: f, kind: for_each, items: input.n, collect: false, step: {kind: job, topic: t}}"),
        {"n": list(range(20))},
    )
    for n in range(20):
        world.succeed(f"f[{n}]")

    assert world.output("f") == {"succeeded": 20, "failed": 0}
    assert world.reads[-1] == 3


def test_outputs_that_are_too_many_bytes_are_not_even_read() -> None:
    """Ten thousand items of a megabyte each would be more than there is memory."""
    each = "{id: f, kind: for_each, on_error: continue, items: input.n, step: {kind: job, topic: t}}"
    world = World(workflow(f"  - {each}"), {"n": [1] * 20})
    for n in range(20):
        world.succeed(f"f[{n}]", "x" * (OUTPUT_BYTES_MAX // 19))

    assert world.step("f").error["code"] == "output-too-large"  # type: ignore[index]
    assert max(world.reads) <= 3


@pytest.mark.parametrize("why", ["cancelled", "part failed", "run again"])
def test_to_stop_a_wide_run_the_outputs_of_its_ended_parts_are_not_read(why: str) -> None:
    """A thousand of them, a megabyte each, would be more than an engine has."""
    each = "{id: f, kind: for_each, items: input.n, parallel: 3, step: {kind: job, topic: t}}"
    world = World(workflow(f"  - {each}"), {"n": [1] * 40})
    for n in range(30):
        world.succeed(f"f[{n}]", "x" * 1000)
    world.reads.clear()
    if why == "part failed":
        world.fail("f[31]")
    else:
        world.hear(CancelAsked())
    for name in world.orders():
        world.fail(name, State.CANCELLED)
    if why == "run again":
        world.hear(RerunAsked("f"))

    assert world.states()["f[39]"] == ("waiting" if why == "run again" else "cancelled")
    assert max(world.reads) <= 1 + 40 - 30  # the step, and those of its parts that had not ended


@pytest.mark.parametrize(
    ("items", "code"), [(list(range(ITEMS_MAX + 1)), "too-many-items"), ("Bonn", "expression-failed")]
)
def test_more_items_than_allowed_or_none_at_all_fail_the_step(items: object, code: str) -> None:
    world = World(FOR_EACH, {"cities": items})

    assert world.step("fan").error["code"] == code  # type: ignore[index]
    assert world.started() == []


def test_items_share_the_limit_of_the_run() -> None:
    world = World(
        workflow(
            """
  - {id: f, kind: for_each, items: input.n, parallel: 4, step: {kind: job, topic: t}}
  - {id: other, kind: job, topic: t}
""",
            max_parallel=3,
        ),
        {"n": [1, 2, 3, 4, 5, 6]},
    )
    for _ in range(7):
        assert len(world.orders()) <= 3
        world.succeed(next(iter(world.orders())))

    assert world.state() is RunState.SUCCEEDED


def test_a_paused_run_begins_no_further_item() -> None:
    world = World(FOR_EACH, {"cities": ["Bonn", "Oslo", "Rome"]})
    world.hear(PauseAsked())
    world.succeed("fan[0]")
    assert world.states()["fan[2]"] == "ready"
    world.hear(ResumeAsked())
    assert world.states()["fan[2]"] == "running"


RACE = """
  - id: race
    kind: parallel
    wait: WAIT
    branches:
      left: {kind: job, topic: t}
      right: {kind: job, topic: t}
      third: {kind: job, topic: t}
  - {id: after, kind: job, topic: t, depends_on: [race]}
"""


def race(wait: str) -> World:
    return World(workflow(RACE.replace("WAIT", wait), output="${steps.race.output}"))


def test_all_branches() -> None:
    world = race("all")
    for branch in ("left", "right", "third"):
        world.succeed(f"race[{branch}]", branch)

    assert world.output("race") == {"left": "left", "right": "right", "third": "third"}


def test_any_branch_stops_the_losers_and_the_run_waits_for_them_before_it_ends() -> None:
    world = race("any")
    world.fail("race[left]")
    world.succeed("race[right]", 2)
    assert world.stopped() == ["race[third]"]
    assert world.output("race") == {"left": None, "right": 2, "third": None}

    world.succeed("after")
    assert world.state() is RunState.RUNNING
    world.fail("race[third]", State.CANCELLED)
    assert world.state() is RunState.SUCCEEDED


def test_two_of_three_cannot_be_reached_when_two_have_failed() -> None:
    world = race("2")
    world.fail("race[left]")
    assert world.state() is RunState.RUNNING
    world.fail("race[right]")
    assert world.stopped() == ["race[third]"]
    assert world.state() is RunState.CANCELLING


def test_cancelling_the_run_stops_the_parts_that_have_begun() -> None:
    world = World(FOR_EACH, {"cities": ["Bonn", "Oslo", "Rome"]})
    world.hear(CancelAsked())

    assert world.stopped() == ["fan[0]", "fan[1]"]
    world.fail("fan[0]", State.CANCELLED)
    world.fail("fan[1]", State.CANCELLED)
    assert world.state() is RunState.CANCELLED


def test_the_cost_of_an_end_does_not_grow_with_the_number_of_items() -> None:
    costs = {}
    for count in (10, 1000):
        world = World(FOR_EACH, {"cities": list(range(count))})
        del world.reads[:], world.writes[:]
        for n in range(count):
            world.succeed(f"fan[{n}]")
        assert world.state() is RunState.SUCCEEDED
        costs[count] = (max(world.reads[:-1]), max(world.writes[:-1]))

    assert costs[1000] == costs[10] == (3, 3)


def test_the_cost_of_an_end_does_not_grow_with_the_number_of_steps() -> None:
    costs = {}
    for count in (10, 1000):
        wide = "\n".join(f"  - {{id: s{n}, kind: job, topic: t}}" for n in range(count))
        every = [f"s{n}" for n in range(count)]
        join = (
            f"  - {{id: join, kind: transform, depends_on: {every}, value: '${{steps.s0.output + steps.s1.output}}'}}"
        )
        world = World(workflow(f"{wide}\n{join}"))
        del world.reads[:], world.writes[:]
        for name in every:
            world.succeed(name, 1)
        assert world.output("join") == 2
        costs[count] = (max(world.reads[:-1]), max(world.writes[:-1]))

    assert costs[1000] == costs[10] == (2, 2)


# -- limits of the tenant -------------------------------------------------------------------------------


def test_without_room_for_another_job_a_run_waits_says_why_and_goes_on_by_itself() -> None:
    world = World(FOR_EACH, {"cities": ["Bonn", "Oslo", "Rome"]})
    world.room.jobs = 0
    world.succeed("fan[0]", "B")
    assert world.states()["fan[2]"] == "ready"
    assert world.run.held == Held(code="too-many-jobs", message="no more jobs", since=world.now)
    assert world.run.due == world.now + HELD_S_MIN

    world.now += 10
    world.hear(TimerDue())
    assert world.notes.count("run.held") == 1
    assert world.run.due == world.now + 10  # asked more and more seldom

    world.room.jobs = 1
    world.now += 10
    world.hear(TimerDue())
    assert world.run.held is None
    world.succeed("fan[2]", "R")
    world.succeed("fan[1]", "O")
    assert world.state() is RunState.SUCCEEDED


def test_without_room_for_another_run_one_after_the_other_is_started() -> None:
    """Not none at all: as many runs as a tenant may have, each waiting for room for one within it, would wait for ever."""
    each = "{id: f, kind: for_each, items: input.n, parallel: 3, step: {kind: workflow, workflow: w}}"
    world = World(workflow(f"  - {each}"), {"n": [1] * 4}, runs=0)
    assert world.started() == ["f[0]"]
    for n in range(4):
        assert world.run.held is not None or n == 3
        world.hear(ChildRunEnded(f"f[{n}]", world.step(f"f[{n}]").ref, RunState.SUCCEEDED, b"1"))

    assert world.state() is RunState.SUCCEEDED


NESTED = workflow("""
  - id: p
    kind: parallel
    wait: WAIT
    on_error: ON_ERROR
    branches:
      nested: {kind: workflow, workflow: other}
      job: {kind: job, topic: t}
""")


def nested_run_stopped(world: World) -> CancelRun:
    [command] = [command for command in world.commands if isinstance(command, CancelRun)]
    return command


@pytest.mark.parametrize(("on_error", "undoes"), [("compensate", True), ("continue", True), ("fail", False)])
def test_a_run_that_is_stopped_for_the_failure_of_another_part_undoes_what_it_did(on_error: str, undoes: bool) -> None:
    world = World(NESTED.replace("WAIT", "all").replace("ON_ERROR", on_error))
    world.fail("p[job]")

    assert nested_run_stopped(world).compensate is undoes


@pytest.mark.parametrize(("on_error", "undoes"), [("compensate", True), ("continue", True), ("fail", False)])
def test_a_run_that_is_stopped_because_the_step_around_it_has_no_more_time_does_likewise(
    on_error: str, undoes: bool
) -> None:
    world = World(NESTED.replace("WAIT", "all\n    timeout_s: 10").replace("ON_ERROR", on_error))
    world.wait(10)

    assert nested_run_stopped(world).compensate is undoes


def test_a_run_that_is_not_needed_any_more_undoes_what_it_did() -> None:
    world = World(NESTED.replace("WAIT", "any").replace("ON_ERROR", "compensate"))
    world.succeed("p[job]")

    assert nested_run_stopped(world).compensate is True


@pytest.mark.parametrize("undoes", [True, False])
def test_a_run_within_a_run_that_is_cancelled_undoes_what_it_did_if_that_is_wanted(undoes: bool) -> None:
    world = World(NESTED.replace("WAIT", "all").replace("ON_ERROR", "compensate"))
    world.hear(CancelAsked(compensate=undoes))

    assert nested_run_stopped(world).compensate is undoes
