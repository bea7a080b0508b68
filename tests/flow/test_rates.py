"""A rate of the policy is one for all planes of a store, whichever keeps it."""

from __future__ import annotations

import asyncio

import pytest
from plane.jobs import ManualRuntime
from plane.store_fixtures import clock, store, url

from holdfast.core.decision import Decision, Rate, Throttle
from holdfast.core.states import Event
from holdfast.errors import TooMany
from holdfast.flow.throttle import Throttles, forget_rates
from holdfast.stores import StoreWithBus

__all__ = ["clock", "store", "url"]

LIMITED = Decision(Event.ALLOW, throttle=Throttle(key="mail", rate=Rate(every_s=6.0, burst=10)))
OTHERS = Decision(Event.ALLOW, throttle=Throttle(key="print", rate=Rate(every_s=6.0, burst=1)))
FREE = Decision(Event.ALLOW)


async def test_planes_keep_to_one_rate_together(store: StoreWithBus, clock: ManualRuntime) -> None:
    planes = [Throttles(store, clock) for _ in range(3)]

    answers = await asyncio.gather(*(plane.admit([LIMITED]) for _ in range(8) for plane in planes))

    refused = [answer for [answer] in answers if answer is not None]
    assert len(answers) - len(refused) == 10
    assert {round(answer.retry_after_s, 3) for answer in refused} == {6.0}
    clock.advance(6.0)
    later = [await plane.admit([LIMITED]) for plane in planes]
    assert [answer is None for [answer] in later] == [True, False, False]


async def test_batch_is_counted_in_its_order_each_under_its_key(store: StoreWithBus, clock: ManualRuntime) -> None:
    throttles = Throttles(store, clock)

    answers = await throttles.admit([OTHERS, FREE, OTHERS, LIMITED])

    assert [type(answer) for answer in answers] == [type(None), type(None), TooMany, type(None)]


async def test_jobs_that_wait_for_their_time_are_spaced_by_all_planes_together(
    store: StoreWithBus, clock: ManualRuntime
) -> None:
    one, two = Throttles(store, clock), Throttles(store, clock)

    waits = [await plane.reserve(OTHERS) for plane in (one, two, one)]

    assert waits == pytest.approx([0.0, 6.0, 12.0])
    clock.advance(18.0)
    await forget_rates(store)
    assert await two.reserve(OTHERS) == 0.0
