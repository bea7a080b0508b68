"""Rules: what an operator changes about leases that are held, while their renewals fail. Row 23, and must-show 5."""

from __future__ import annotations

import asyncio
import itertools
import sys
from types import FrameType
from typing import Any

import pytest

from holdfast.locks import LockClass, LossReason
from holdfast.locks.classes import Classes
from holdfast.locks.runtime import SYSTEM
from locks.faults import Fault
from locks.invariants import Told
from locks.test_renewal import Work, memory
from locks.virtual import VirtualRuntime, on_virtual_time

OBEYED_S = 5.0


@on_virtual_time
async def test_a_held_lease_obeys_another_action_and_then_the_old_one_again(runtime: VirtualRuntime) -> None:
    told = Told()
    run = LockClass("run", ttl=30)
    async with await memory(runtime) as network, network.locks(observer=told) as locks:
        work = Work(locks, run, runtime)
        await work.entered.wait()
        network.fault("renew", Fault.FAIL)
        locks.rule("run", reason="incident 7", for_s=60, on_renewal_failure="continue")
        ruled_at = runtime.now()
        while not work.lease.suspect:
            await asyncio.sleep(0.1)

        assert work.lost is None, "by its own class the work would be cancelled now"
        await asyncio.wait_for(work.task, 100)
        assert work.lost is not None
        assert ruled_at + 60 <= work.stopped_at <= ruled_at + 60 + OBEYED_S, "the rule has run out: it fences again"
        assert told.values("policy_changed", "reason") == ["incident 7", "the rule has run out"]
        assert told.count("abandoned") == 1


@on_virtual_time
async def test_a_suspect_lease_is_fenced_as_soon_as_the_rules_say_so(runtime: VirtualRuntime) -> None:
    run = LockClass("run", ttl=30, on_renewal_failure="continue")
    async with await memory(runtime) as network, network.locks() as locks:
        work = Work(locks, run, runtime)
        await work.entered.wait()
        network.fault("renew", Fault.FAIL)
        while not work.lease.suspect:
            await asyncio.sleep(0.1)
        await asyncio.sleep(100)
        locks.rule("run", reason="money is at stake", on_renewal_failure="fence")
        await asyncio.wait_for(work.task, OBEYED_S)

        assert work.lost is not None
        assert work.lost.reason is LossReason.UNREACHABLE


@on_virtual_time
async def test_a_lower_threshold_ends_leases_that_have_reached_it(runtime: VirtualRuntime) -> None:
    job = LockClass("job", ttl=60)
    async with await memory(runtime) as network, network.locks() as locks:
        work = Work(locks, job, runtime)
        await work.entered.wait()
        network.fault("renew", Fault.FAIL)
        while not work.lease.belief.failures:
            await asyncio.sleep(0.1)
        locks.rule("job", reason="fence sooner", renewal_failures=1)
        await asyncio.wait_for(work.task, OBEYED_S)

        assert work.lost is not None


@on_virtual_time
async def test_rules_stand_on_overrides_and_leave_them_when_they_end(runtime: VirtualRuntime) -> None:
    job = LockClass("job", ttl=60)
    async with await memory(runtime) as network, network.locks(classes=[job]) as locks:
        locks.override("job", reason="configured", on_renewal_failure="continue")
        locks.rule("job", reason="incident", for_s=10, renewal_failures=1, wait=0.5)
        ruled = locks.in_force("job")
        await asyncio.sleep(11)
        after = locks.in_force("job")

        assert (ruled.on_renewal_failure, ruled.renewal_failures, ruled.wait) == ("continue", 1, 0.5)
        assert (after.on_renewal_failure, after.renewal_failures, after.wait) == ("continue", 3, 2.0)
        locks.rule("job", reason="again", renewal_failures=2)
        locks.rule("job", reason="enough")
        assert locks.in_force("job").renewal_failures == 3


@on_virtual_time
async def test_a_rule_that_cannot_work_changes_nothing(runtime: VirtualRuntime) -> None:
    job = LockClass("job", ttl=60)
    async with await memory(runtime) as network, network.locks(classes=[job]) as locks:
        with pytest.raises(ValueError, match="no such setting"):
            locks.rule("job", reason="x", colour="red")
        with pytest.raises(ValueError, match="at least 1"):
            locks.rule("job", reason="x", renewal_failures=0)
        with pytest.raises(ValueError, match="needs a reason"):
            locks.rule("job", reason=" ", renewal_failures=2)

        assert locks.in_force("job") is job


def test_a_class_is_as_the_rules_say_at_every_step_of_another_thread() -> None:
    """The keeper's thread asks while callers do: here it comes in between any two steps of theirs."""
    run = LockClass("run", ttl=30)
    classes = Classes([run], runtime=SYSTEM, observer=Told())

    def interrupted(at_step: int) -> tuple[LockClass, LockClass | None]:
        """What the caller is told, and what the keeper is that comes in before this step; None if there is no such step."""
        steps, seen = itertools.count(), None

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal seen
            if frame.f_code.co_name != "_ruled":
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and next(steps) == at_step:
                seen = classes.get("run")
            return trace

        before = sys.gettrace()
        # Python 3.12 asks only when a trace begins whether anybody wants to hear of each opcode.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(trace)
        try:
            return classes.get("run"), seen
        finally:
            sys.settrace(before)

    for step in itertools.count():
        failures = 1 + step % 2
        classes.rule("run", reason="r", renewal_failures=failures)
        caller, keeper = interrupted(step)
        assert caller.renewal_failures == failures
        if keeper is None:
            break
        assert keeper.renewal_failures == failures
    assert step > 10
