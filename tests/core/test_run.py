"""How a run goes: what begins when, what is skipped, retried, stopped, and what comes out of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from core.run_world import World
from holdfast.api import words
from holdfast.core import run_start
from holdfast.core.advance import refusal
from holdfast.core.run import RunState
from holdfast.core.run_start import OUTPUT_BYTES_MAX
from holdfast.core.run_words import (
    ApprovalDecided,
    AskApproval,
    CancelAsked,
    ChildRunEnded,
    JobEnded,
    Notify,
    NotifySent,
    PauseAsked,
    RerunAsked,
    ResumeAsked,
    StartRun,
    SubmitJob,
    WithdrawApproval,
)
from holdfast.core.states import State


def workflow(steps: str, **fields: Any) -> str:
    head = "\n".join(f"{name}: {msgspec.json.encode(value).decode()}" for name, value in fields.items())
    return f"name: example\n{head}\nsteps:\n{steps}"


CHAIN = workflow(
    """
  - {id: one, kind: job, topic: t, payload: {n: "${input.n}"}}
  - {id: two, kind: job, topic: t, depends_on: [one], payload: "${steps.one.output.m + 1}"}
""",
    output={"last": "${steps.two.output}"},
)


def test_a_chain_hands_outputs_on_and_ends_with_the_output_template() -> None:
    world = World(CHAIN, {"n": 1})
    assert world.started() == ["one"]
    assert world.orders()["one"].payload == b'{"n":1}'  # type: ignore[union-attr]

    world.succeed("one", {"m": 41})
    assert world.orders()["two"].payload == b"42"  # type: ignore[union-attr]
    world.succeed("two", "done")

    assert world.state() is RunState.SUCCEEDED
    assert world.run_output == {"last": "done"}


@pytest.mark.parametrize("where", ["payload", "output"])
def test_what_a_template_makes_has_a_limit(where: str) -> None:
    """Each value is small enough, and many of them together are not."""
    many = ["${steps.one.output}"] * 5
    second = f"  - {{id: two, kind: job, topic: t, depends_on: [one], payload: {many if where == 'payload' else 1}}}"
    world = World(
        workflow(f"  - {{id: one, kind: job, topic: t}}\n{second}", output=many if where == "output" else None)
    )
    world.succeed("one", "x" * (OUTPUT_BYTES_MAX // 4))
    if where == "output":
        world.succeed("two")

    assert world.state() is RunState.FAILED
    failed = world.step("two") if where == "payload" else world.run
    assert failed.error is not None
    assert failed.error["code"] == "expression-failed"
    assert str(OUTPUT_BYTES_MAX) in failed.error["message"]


def test_an_end_is_recorded_once_however_often_it_is_told() -> None:
    world = World(CHAIN, {"n": 1})
    ended = JobEnded("one", world.step("one").ref, State.SUCCEEDED, b'{"m":1}')

    world.hear(ended, ended)
    again = world.hear(ended)

    assert not again.changed
    assert again.commands == []
    assert world.started() == ["one", "two"]


def test_the_end_of_an_earlier_attempt_is_no_end_of_this_one() -> None:
    world = World(workflow("  - {id: a, kind: job, topic: t, retry: {max_attempts: 2, first_s: 1, jitter: false}}"))
    first = world.step("a").ref
    world.fail("a")
    world.wait(1)

    assert not world.hear(JobEnded("a", first, State.SUCCEEDED, b"1")).changed
    assert world.step("a").attempt == 2


DIAMOND = workflow("""
  - {id: check, kind: condition, test: "input.amount > 100"}
  - {id: large, kind: job, topic: t, depends_on: [check=true]}
  - {id: after_large, kind: job, topic: t, depends_on: [large]}
  - {id: small, kind: job, topic: t, depends_on: [check=false]}
  - {id: join, kind: job, topic: t, depends_on: [after_large, small], payload: "${steps.small.state}"}
""")


def test_the_way_not_taken_is_skipped_and_the_join_runs_all_the_same() -> None:
    world = World(DIAMOND, {"amount": 5})
    world.succeed("small")

    assert world.states() | {"join": "running"} == {
        "check": "succeeded",
        "large": "skipped",
        "after_large": "skipped",
        "small": "succeeded",
        "join": "running",
    }
    world.succeed("join")
    assert world.state() is RunState.SUCCEEDED


def test_a_step_whose_condition_is_false_is_skipped_and_so_is_who_depends_on_it_alone() -> None:
    world = World(
        workflow("""
  - {id: a, kind: job, topic: t, when: "input.go"}
  - {id: b, kind: job, topic: t, depends_on: [a]}
"""),
        {"go": False},
    )

    assert world.states() == {"a": "skipped", "b": "skipped"}
    assert world.state() is RunState.SUCCEEDED
    assert world.started() == []


@pytest.mark.parametrize(("size", "case"), [(1, "small"), (50, "middle"), (500, None)])
def test_a_switch_takes_the_first_case_that_is_true(size: int, case: str | None) -> None:
    world = World(
        workflow("""
  - {id: size, kind: switch, cases: {small: input.size < 10, middle: input.size < 100}}
  - {id: small, kind: transform, depends_on: [size=small], value: 1}
  - {id: middle, kind: transform, depends_on: [size=middle], value: 1}
"""),
        {"size": size},
    )

    assert world.output("size") == case
    assert [name for name in ("small", "middle") if world.states()[name] == "succeeded"] == ([case] if case else [])


def test_a_failed_step_fails_the_run_and_stops_the_others() -> None:
    world = World(workflow("  - {id: a, kind: job, topic: t}\n  - {id: b, kind: job, topic: t}"))
    world.fail("a")

    assert world.state() is RunState.CANCELLING
    assert world.stopped() == ["b"]
    world.fail("b", State.CANCELLED)
    assert world.state() is RunState.FAILED
    assert world.run.error == {"code": "step-failed", "message": "step a failed", "step": "a", "cause": "boom"}
    assert world.states() == {"a": "failed", "b": "cancelled"}


def test_with_continue_the_next_step_sees_the_error() -> None:
    world = World(
        workflow("""
  - {id: a, kind: job, topic: t, on_error: continue}
  - {id: b, kind: job, topic: t, depends_on: [a], payload: "${steps.a.error.code}"}
""")
    )
    world.fail("a")
    assert world.orders()["b"].payload == b'"boom"'  # type: ignore[union-attr]
    world.succeed("b")
    assert world.state() is RunState.SUCCEEDED


RETRIED = workflow("  - {id: a, kind: job, topic: t, retry: {max_attempts: 3, first_s: 2, cap_s: 3, jitter: false}}")


def test_a_failure_is_tried_again_after_a_growing_wait() -> None:
    world = World(RETRIED)
    world.fail("a")
    assert world.step("a").due == world.now + 2
    world.wait(2)
    world.fail("a")
    assert world.step("a").due == world.now + 3
    world.wait(3)
    world.fail("a")

    assert [order.key for order in world.commands if isinstance(order, SubmitJob)] == [
        f"run/r/a/{attempt}" for attempt in (1, 2, 3)
    ]
    assert world.state() is RunState.FAILED


@pytest.mark.parametrize("state", [State.DENIED, State.CANCELLED])
def test_what_was_denied_or_cancelled_is_not_tried_again(state: State) -> None:
    world = World(RETRIED)
    world.fail("a", state)

    assert world.started() == ["a"]
    assert world.state() is RunState.FAILED


def test_an_expression_without_a_value_fails_its_step() -> None:
    world = World(workflow('  - {id: a, kind: job, topic: t, payload: "${input.nowhere}"}'), {"secret": "xyzzy"})

    assert world.state() is RunState.FAILED
    assert world.step("a").error is not None
    assert world.step("a").error["code"] == "expression-failed"  # type: ignore[index]
    assert "xyzzy" not in str(world.step("a"))


# -- kinds ----------------------------------------------------------------------------------------------


def test_an_approval_asks_and_its_decision_is_the_output() -> None:
    world = World(
        workflow(
            '  - {id: ok, kind: approval, message: "Pay ${input.n}?", approvers: [ann], quorum: 1, expires_s: 60}'
        ),
        {"n": 7},
    )
    [asked] = [command for command in world.commands if isinstance(command, AskApproval)]
    assert (asked.message, asked.approvers, asked.expires_s) == ("Pay 7?", ("ann",), 60)

    world.hear(ApprovalDecided("ok", asked.approval, "approved", {"by": "ann"}))
    assert world.output("ok") == {"decision": "approved", "approval": asked.approval, "by": "ann"}
    assert world.state() is RunState.SUCCEEDED


def test_an_answer_is_there_for_later_steps() -> None:
    form = "{type: object, properties: {limit: {type: integer}}}"
    asks = f"  - {{id: ask, kind: approval, message: How much?, choices: [respond, reject], response_schema: {form}, effect_preview: 'pays ${{input.to}}'}}"
    pays = '  - {id: pay, kind: job, topic: t, depends_on: [ask], payload: "${steps.ask.output.response.limit + 1}"}'
    world = World(workflow(f"{asks}\n{pays}"), {"to": "ann"})
    [asked] = [command for command in world.commands if isinstance(command, AskApproval)]
    assert (asked.choices, asked.effect_preview) == (("respond", "reject"), "pays ann")
    assert asked.response_schema == {"type": "object", "properties": {"limit": {"type": "integer"}}}

    world.hear(ApprovalDecided("ask", asked.approval, "approved", {"by": "ann", "response": {"limit": 41}}))
    assert world.orders()["pay"].payload == b"42"  # type: ignore[union-attr]


@pytest.mark.parametrize("decision", ["rejected", "expired"])
def test_a_rejected_approval_fails_the_step(decision: Any) -> None:
    world = World(workflow("  - {id: ok, kind: approval, message: Go?}"))
    world.hear(ApprovalDecided("ok", world.step("ok").ref, decision, {"by": "ann"}))

    assert world.state() is RunState.FAILED
    assert world.step("ok").error == {
        "by": "ann",
        "code": decision,
        "message": f"the approval was {decision}",
        "approval": "id-0",
    }


def test_a_sub_workflow_gives_its_output() -> None:
    world = World(workflow('  - {id: w, kind: workflow, workflow: other, input: {a: "${input.a}"}}'), {"a": 1})
    [order] = [command for command in world.commands if isinstance(command, StartRun)]
    assert (order.workflow, order.input, order.depth) == ("other", b'{"a":1}', 1)

    world.hear(ChildRunEnded("w", order.run, RunState.SUCCEEDED, b'"x"'))
    assert world.output("w") == "x"
    assert world.state() is RunState.SUCCEEDED


def test_a_notification_ends_when_it_has_arrived() -> None:
    world = World(workflow("  - {id: n, kind: notify, webhook: ops, payload: hello}"))
    [order] = [command for command in world.commands if isinstance(command, Notify)]
    world.hear(NotifySent("n", order.post))
    assert world.state() is RunState.SUCCEEDED


def test_steps_that_wrap_each_others_outputs_end_at_a_depth_that_can_be_written() -> None:
    """Each puts 60 levels around the one before; nothing that a run can make must keep it from ending."""
    steps = ["  - {id: s0, kind: transform, value: 1}"]
    for n in range(1, 30):
        wrapped = "[" * 60 + f'"${{steps.s{n - 1}.output}}"' + "]" * 60
        steps.append(f"  - {{id: s{n}, kind: transform, depends_on: [s{n - 1}], value: {wrapped}}}")
    world = World(workflow("\n".join(steps)))

    assert world.state() is RunState.FAILED
    assert world.step("s5").error == {"code": "expression-failed", "message": "its value is nested deeper than 200"}


# -- limits ---------------------------------------------------------------------------------------------


def test_a_step_that_takes_too_long_is_stopped_and_fails_when_its_job_has_ended() -> None:
    world = World(workflow("  - {id: a, kind: job, topic: t, timeout_s: 5, retry: {max_attempts: 9}}"))
    assert world.orders()["a"].deadline == world.now + 5  # type: ignore[union-attr]
    world.wait(5)
    assert (world.stopped(), world.states()) == (["a"], {"a": "stopping"})

    world.fail("a", State.CANCELLED)
    assert world.step("a").error["code"] == "timeout"  # type: ignore[index]
    assert world.state() is RunState.FAILED


def test_a_run_that_takes_too_long_ends_as_timeout() -> None:
    world = World(workflow("  - {id: a, kind: job, topic: t}\n  - {id: ok, kind: approval, message: m}", timeout_s=10))
    world.wait(10)
    assert world.state() is RunState.CANCELLING
    assert [c.step for c in world.commands if isinstance(c, WithdrawApproval)] == ["ok"]

    world.fail("a", State.CANCELLED)
    assert world.state() is RunState.TIMEOUT


def test_no_more_than_max_parallel_jobs_at_once_and_in_order() -> None:
    steps = "\n".join(f"  - {{id: s{n}, kind: job, topic: t}}" for n in range(7))
    world = World(workflow(steps, max_parallel=2))
    for n in range(7):
        assert len(world.orders()) == min(2, 7 - n)
        world.succeed(f"s{n}")

    assert world.started() == [f"s{n}" for n in range(7)]
    assert world.state() is RunState.SUCCEEDED


# -- people ---------------------------------------------------------------------------------------------


def test_a_paused_run_begins_nothing_until_it_is_resumed() -> None:
    world = World(CHAIN, {"n": 1})
    world.hear(PauseAsked("ann", "lunch"))
    world.succeed("one", {"m": 1})
    assert world.states() == {"one": "succeeded", "two": "ready"}

    world.hear(ResumeAsked("ann"))
    assert world.states()["two"] == "running"
    world.succeed("two")
    assert world.state() is RunState.SUCCEEDED


def test_a_cancelled_run_waits_for_its_jobs_and_then_is_cancelled() -> None:
    world = World(CHAIN, {"n": 1})
    world.hear(CancelAsked("ann", "no longer wanted"))
    assert world.state() is RunState.CANCELLING
    world.fail("one", State.CANCELLED)
    assert world.state() is RunState.CANCELLED
    assert world.run.error == {"code": "cancelled", "message": "no longer wanted"}


def test_asking_for_what_cannot_be_is_refused_with_a_reason_and_changes_nothing() -> None:
    world = World(CHAIN, {"n": 1})
    for asked in (ResumeAsked("ann"), RerunAsked("one", "ann")):
        assert refusal(world.graph, world.run, asked)
        assert not world.hear(asked).changed

    world.hear(CancelAsked())
    for late in (CancelAsked(), PauseAsked(), RerunAsked("one")):
        assert refusal(world.graph, world.run, late)
        assert not world.hear(late).changed


def test_the_output_must_follow_its_schema() -> None:
    definition = workflow(
        "  - {id: a, kind: job, topic: t}", output="${steps.a.output}", output_schema={"type": "string"}
    )
    world = World(definition)
    world.succeed("a", 5)

    assert world.state() is RunState.FAILED
    assert world.run.error["code"] == "output-invalid"  # type: ignore[index]


def test_jobs_have_the_session_of_their_run_unless_they_name_their_own() -> None:
    steps = '  - {id: a, kind: job, topic: t}\n  - {id: b, kind: job, topic: t, session: "s-${input.n}"}'
    world = World(workflow(steps), {"n": 7}, session="chat")

    assert {name: order.session for name, order in world.orders().items() if isinstance(order, SubmitJob)} == {
        "a": "chat",
        "b": "s-7",
    }


def test_labels_and_sessions_of_a_step_are_bounded_as_those_of_a_submitted_job() -> None:
    """`core` and `api` know nothing of each other, so each has the limits for itself."""

    def most(kind: object) -> int | None:
        known = msgspec.inspect.type_info(kind)
        assert isinstance(known, msgspec.inspect.StrType)
        return known.max_length

    assert (most(words.Label), most(words.Session)) == (run_start.LABEL_MAX, run_start.SESSION_MAX)
