"""Stories about a block and the cancellations that meet in it. Standard library only.

`test_cancellation.py` runs them under the test run's own Python; run as a script, this file runs
them under any other (`uncancel()` differs between 3.11, 3.12 and 3.13).
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, cast

from holdfast.locks import Lease, LeaseLost, LockClass, Locks, LossReason, Observer
from holdfast.locks.hold import Hold
from holdfast.locks.renewal import believe
from locks.invariants import Told
from locks.virtual import VirtualRuntime

JOB = LockClass("job", ttl=60)


class Desk:
    """Hands out leases without a store: here the block is the subject, not where locks are kept."""

    def __init__(self, runtime: VirtualRuntime) -> None:
        self.runtime = runtime
        self.loop = None  # the one that runs
        self.released: list[str] = []
        #: What happens to a lease between the grant and the block.
        self.meanwhile: Callable[[Lease], None] = lambda lease: None

    async def acquire(self, lock_class: LockClass, item: str, *, wait: float | None = None) -> Lease:
        belief = believe(lock_class.renewal, sent_at=self.runtime.now())
        lease = Lease(lock_class, item, "t", 1, belief=belief, runtime=self.runtime, observer=cast("Observer", Told()))
        self.meanwhile(lease)
        return lease

    async def release(self, lease: Lease) -> None:
        lease.released = True
        if lease.lost is not None:
            raise LeaseLost(lease.key, reason=lease.lost, fence=lease.fence)
        self.released.append(lease.key)
        await asyncio.sleep(0)

    def hold(self, item: str = "x") -> Hold:
        return Hold(cast("Locks", self), JOB, item, None)


def lose(lease: Lease) -> None:
    lease.lose(LossReason.STOLEN)


Story = Callable[[Desk], Coroutine[Any, Any, None]]
STORIES: list[Story] = []


def story(told: Story) -> Story:
    STORIES.append(told)
    return told


def cancels_pending() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def nothing_left_over() -> None:
    assert cancels_pending() == 0
    for _ in range(5):
        await asyncio.sleep(0.01)


async def expect(error: type[BaseException], block: Coroutine[Any, Any, object]) -> BaseException:
    try:
        await block
    except error as caught:
        return caught
    raise AssertionError(f"{error.__name__} was not raised")


def soon(*acts: Callable[[], object]) -> None:
    """All of them in one tick, a second from now."""
    for act in acts:
        asyncio.get_running_loop().call_later(1, act)


@story
async def a_loss_cancels_the_body_with_its_reason(desk: Desk) -> None:
    async def body() -> None:
        async with desk.hold() as lease:
            soon(lambda: lose(lease))
            await asyncio.sleep(100)

    lost = await expect(LeaseLost, body())
    assert cast("LeaseLost", lost).reason is LossReason.STOLEN
    assert desk.released == []
    await nothing_left_over()


@story
async def a_loss_found_in_another_thread_cancels_the_body(desk: Desk) -> None:
    async def body() -> None:
        async with desk.hold() as lease:
            keeper = threading.Thread(target=lease.lose, args=(LossReason.STOLEN,))
            keeper.start()
            keeper.join()
            await asyncio.sleep(100)

    await expect(LeaseLost, body())
    await nothing_left_over()


@story
async def an_outer_cancel_in_the_same_tick_wins(desk: Desk) -> None:
    for lease_first in (True, False):
        entered: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()

        async def body(entered: asyncio.Future[Lease] = entered) -> None:
            async with desk.hold() as lease:
                entered.set_result(lease)
                await asyncio.sleep(100)

        task = asyncio.create_task(body())
        lease = await entered
        acts: list[Callable[[], object]] = [partial(lose, lease), task.cancel]
        for act in acts if lease_first else acts[::-1]:
            act()
        [end] = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(end, asyncio.CancelledError), f"the outer cancel was eaten: {end!r}"
    await nothing_left_over()


@story
async def a_timeout_outside_at_the_same_moment_is_a_timeout(desk: Desk) -> None:
    async def body() -> None:
        async with asyncio.timeout(1), desk.hold() as lease:
            soon(lambda: lose(lease))
            await asyncio.sleep(100)

    await expect(TimeoutError, body())
    await nothing_left_over()


@story
async def a_timeout_inside_stays_inside(desk: Desk) -> None:
    async with desk.hold() as lease:
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.sleep(100)
        await asyncio.sleep(1)
        lease.check()
    assert desk.released == ["x"]
    await nothing_left_over()


@story
async def a_body_that_swallows_the_cancel_is_no_success(desk: Desk) -> None:
    async def body() -> str:
        async with desk.hold() as lease:
            soon(lambda: lose(lease))
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(100)
            await asyncio.sleep(1)
            return "done"

    await expect(LeaseLost, body())
    await nothing_left_over()


@story
async def a_body_that_swallows_two_cancels_is_no_success(desk: Desk) -> None:
    async def body() -> str:
        task = asyncio.current_task()
        assert task is not None
        async with desk.hold() as lease:
            soon(lambda: lose(lease), task.cancel)
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(100)
            return "done"

    [end] = await asyncio.gather(asyncio.create_task(body()), return_exceptions=True)
    assert isinstance(end, asyncio.CancelledError | LeaseLost), "a lost section returned a value"


@story
async def a_body_that_never_awaits_is_told_at_its_end(desk: Desk) -> None:
    async def body() -> str:
        async with desk.hold():
            desk.runtime.stall(JOB.ttl)
            return "done"

    lost = await expect(LeaseLost, body())
    assert cast("LeaseLost", lost).reason is LossReason.PAUSED
    await nothing_left_over()


@story
async def success_and_loss_in_the_same_tick_are_a_loss(desk: Desk) -> None:
    async def body() -> str:
        async with desk.hold() as lease:
            ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            soon(lambda: ready.set_result(None), lambda: lose(lease))
            await ready
            return "done"

    await expect(LeaseLost, body())
    await nothing_left_over()


@story
async def a_loss_after_the_block_does_not_cancel_what_follows(desk: Desk) -> None:
    async with desk.hold() as lease:
        pass
    lease.released = False  # the keeper's thread had already begun to end it
    lose(lease)
    await nothing_left_over()


@story
async def a_loss_in_the_last_instant_does_not_cancel_what_follows(desk: Desk) -> None:
    """The keeper's callback is on its way to the loop while the block ends without another await."""

    async def body() -> None:
        async with desk.hold() as lease:
            lose(lease)

    await expect(LeaseLost, body())
    await nothing_left_over()


@story
async def a_loss_before_the_block_begins_ends_it(desk: Desk) -> None:
    """Lost between the grant and the block, when nobody was there to be cancelled yet."""
    desk.meanwhile = lose
    went_on = False

    async def body() -> None:
        nonlocal went_on
        async with desk.hold():
            await asyncio.sleep(10)
            went_on = True

    await expect(LeaseLost, body())
    assert not went_on, "the body ran on under a lease that was lost before it began"
    await nothing_left_over()


@story
async def a_grant_that_arrives_too_late_enters_no_block(desk: Desk) -> None:
    """The reply waited in a buffer until the window had ended: no lock, no body."""
    desk.meanwhile = lambda lease: desk.runtime.stall(JOB.ttl)
    entered = False

    async def body() -> None:
        nonlocal entered
        async with desk.hold():
            entered = True

    await expect(LeaseLost, body())
    assert not entered, "the body began after its trust window had ended"
    await nothing_left_over()


@story
async def the_error_of_a_lost_body_is_kept_as_the_cause(desk: Desk) -> None:
    async def body() -> None:
        async with desk.hold() as lease:
            lose(lease)
            raise ZeroDivisionError

    lost = await expect(LeaseLost, body())
    assert isinstance(lost.__cause__, ZeroDivisionError)
    await nothing_left_over()


@story
async def nested_blocks_each_know_their_own_loss(desk: Desk) -> None:
    for losers in (("outer",), ("inner",), ("outer", "inner"), ("inner", "outer")):
        leases: dict[str, Lease] = {}

        async def body(leases: dict[str, Lease] = leases, losers: tuple[str, ...] = losers) -> None:
            async with desk.hold("outer") as leases["outer"], desk.hold("inner") as leases["inner"]:
                soon(*(partial(lose, leases[name]) for name in losers))
                await asyncio.sleep(100)

        lost = await expect(LeaseLost, body())
        assert cast("LeaseLost", lost).key == ("outer" if "outer" in losers else "inner")
        await nothing_left_over()


@story
async def children_of_a_group_inside_the_block_end_with_it(desk: Desk) -> None:
    alive = 0

    async def child() -> None:
        nonlocal alive
        alive += 1
        try:
            await asyncio.sleep(100)
        finally:
            alive -= 1

    async def body() -> None:
        async with desk.hold() as lease, asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(child())
            soon(lambda: lose(lease))

    await expect(LeaseLost, body())
    assert alive == 0
    await nothing_left_over()


@story
async def a_check_raises_and_never_cancels_its_own_task(desk: Desk) -> None:
    async def body() -> None:
        async with desk.hold() as lease:
            desk.runtime.stall(JOB.ttl)
            with suppress(LeaseLost):
                lease.check()
            lease.check()

    await expect(LeaseLost, body())
    await nothing_left_over()


@story
async def a_hold_that_is_entered_again_is_cancelled_again(desk: Desk) -> None:
    hold = desk.hold()

    async def body() -> None:
        async with hold as lease:
            soon(lambda: lose(lease))
            await asyncio.sleep(100)

    for _ in range(2):
        began = desk.runtime.now()
        await expect(LeaseLost, body())
        assert desk.runtime.now() - began < 2
        await nothing_left_over()


@story
async def a_late_word_of_an_earlier_loss_leaves_the_next_block_alone(desk: Desk) -> None:
    hold = desk.hold()
    told: list[Callable[[], None]] = []

    async def lost() -> None:
        async with hold as lease:
            assert lease.on_loss is not None
            told.append(lease.on_loss)
            lease.on_loss = None  # whoever found out was held up in the middle of saying so
            lose(lease)

    await expect(LeaseLost, lost())
    async with hold:
        told[0]()
        await asyncio.sleep(1)
    await nothing_left_over()


@story
async def a_hold_is_for_one_block_at_a_time(desk: Desk) -> None:
    """Who shares one would release, and be cancelled with, the lease of whoever entered last."""
    hold = desk.hold()
    async with hold as lease:
        refused = await expect(RuntimeError, hold.__aenter__())
        assert "each block" in str(refused)
        assert not lease.released
    assert desk.released == [lease.key]
    await nothing_left_over()


def tell(told: Story) -> None:
    runtime = VirtualRuntime()
    runtime.run(told(Desk(runtime)))


if __name__ == "__main__":
    failed = 0
    for each in STORIES:
        try:
            tell(each)
        except BaseException as error:  # noqa: BLE001  (every story is told, then the count is)
            failed += 1
            print(f"FAILED {each.__name__}: {error!r}")
    print(f"{len(STORIES) - failed} of {len(STORIES)} stories on Python {sys.version.split()[0]}")
    sys.exit(bool(failed))
