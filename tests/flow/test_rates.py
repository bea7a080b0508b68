"""A rate of the policy is one for all planes of a store, whichever keeps it."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from plane.jobs import ManualRuntime
from plane.store_fixtures import clock, store, url

from holdfast.core.decision import Decision, Rate, Throttle
from holdfast.core.job import JobId
from holdfast.core.states import Event
from holdfast.errors import TooMany
from holdfast.flow.throttle import Throttles, forget_rates
from holdfast.stores import StoreWithBus

__all__ = ["clock", "store", "url"]

LIMITED = Decision(Event.ALLOW, throttle=Throttle(key="mail", rate=Rate(every_s=6.0, burst=10)))
OTHERS = Decision(Event.ALLOW, throttle=Throttle(key="print", rate=Rate(every_s=6.0, burst=1)))
FREE = Decision(Event.ALLOW)
NUMBERS = itertools.count()


def named(decision: Decision) -> tuple[JobId, Decision]:
    """A new job under this decision."""
    return JobId(f"job-{next(NUMBERS)}"), decision


async def test_planes_keep_to_one_rate_together(store: StoreWithBus, clock: ManualRuntime) -> None:
    planes = [Throttles(store, clock) for _ in range(3)]

    answers = await asyncio.gather(*(plane.admit([named(LIMITED)]) for _ in range(8) for plane in planes))

    refused = [answer for [answer] in answers if answer is not None]
    assert len(answers) - len(refused) == 10
    assert {round(answer.retry_after_s, 3) for answer in refused} == {6.0}
    clock.advance(6.0)
    later = [await plane.admit([named(LIMITED)]) for plane in planes]
    assert [answer is None for [answer] in later] == [True, False, False]


async def test_batch_is_counted_in_its_order_each_under_its_key(store: StoreWithBus, clock: ManualRuntime) -> None:
    throttles = Throttles(store, clock)

    answers = await throttles.admit([named(one) for one in (OTHERS, FREE, OTHERS, LIMITED)])

    assert [type(answer) for answer in answers] == [type(None), type(None), TooMany, type(None)]


async def test_rate_that_was_changed_begins_anew(store: StoreWithBus, clock: ManualRuntime) -> None:
    throttles = Throttles(store, clock)
    slow = Decision(Event.ALLOW, throttle=Throttle(key="mail", rate=Rate(every_s=3600.0, burst=1)))
    assert await throttles.admit([named(slow)]) == [None]

    quick = [await throttles.admit([named(LIMITED)]) for _ in range(11)]

    assert [answer is None for [answer] in quick] == [True] * 10 + [False]
    [too_early] = await throttles.admit([named(slow)])
    assert too_early is not None


async def test_jobs_that_wait_for_their_time_are_spaced_by_all_planes_together(
    store: StoreWithBus, clock: ManualRuntime
) -> None:
    one, two = Throttles(store, clock), Throttles(store, clock)

    waits = [await plane.reserve(*named(OTHERS)) for plane in (one, two, one)]

    assert waits == pytest.approx([0.0, 6.0, 12.0])
    clock.advance(18.0)
    await forget_rates(store)
    assert await two.reserve(*named(OTHERS)) == 0.0


async def test_what_was_not_stored_is_given_back_and_no_more(store: StoreWithBus, clock: ManualRuntime) -> None:
    throttles, elsewhere = Throttles(store, clock), Throttles(store, clock)
    jobs = [named(LIMITED) for _ in range(10)]
    assert await throttles.admit(jobs) == [None] * 10

    await throttles.give_back([jobs[0][0], jobs[3][0], named(LIMITED)[0]])
    await throttles.give_back([jobs[0][0]])  # once: it is nobody's any more

    answers = [await elsewhere.admit([named(LIMITED)]) for _ in range(3)]
    assert [answer is None for [answer] in answers] == [True, True, False]


async def test_what_time_has_given_back_already_is_not_given_back_again(
    store: StoreWithBus, clock: ManualRuntime
) -> None:
    throttles = Throttles(store, clock)
    early, late = named(OTHERS), named(OTHERS)
    await throttles.admit([early])
    clock.advance(7.0)
    assert await throttles.admit([late]) == [None]

    await throttles.give_back([early[0]])

    [too_early] = await throttles.admit([named(OTHERS)])
    assert too_early is not None
    assert too_early.retry_after_s == pytest.approx(6.0)


async def test_a_place_in_time_is_given_back_by_the_last_and_goes_to_nobody_twice(
    store: StoreWithBus, clock: ManualRuntime
) -> None:
    throttles = Throttles(store, clock)
    jobs = [named(OTHERS) for _ in range(5)]
    assert [await throttles.reserve(*job) for job in jobs] == pytest.approx([0.0, 6.0, 12.0, 18.0, 24.0])

    await throttles.give_back(job for job, _ in jobs[3:])
    assert [await throttles.reserve(*named(OTHERS)) for _ in range(2)] == pytest.approx([18.0, 24.0])

    await throttles.give_back([jobs[0][0], jobs[1][0]])  # others come after them
    assert await throttles.reserve(*named(OTHERS)) == pytest.approx(30.0)


async def test_of_a_place_in_time_that_has_come_what_has_passed_is_not_given_back_again(
    store: StoreWithBus, clock: ManualRuntime
) -> None:
    throttles = Throttles(store, clock)
    jobs = [named(OTHERS) for _ in range(2)]
    assert [await throttles.reserve(*job) for job in jobs] == pytest.approx([0.0, 6.0])
    clock.advance(7.0)

    await throttles.give_back([jobs[1][0]])

    assert [await throttles.reserve(*named(OTHERS)) for _ in range(2)] == pytest.approx([0.0, 6.0])
