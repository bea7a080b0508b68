"""How much a worker may ask for with its outcomes, and what it does when an answer was lost."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.worker.link import Unreachable
from holdfast.worker.refills import Refills


@pytest.fixture
def refills() -> Refills:
    return Refills(lambda: None)


def test_a_place_for_each_that_has_ended_since_the_claim_was_sent(refills: Refills) -> None:
    refills.place_left()  # before: the claim's own room has it
    with refills.claiming():
        with refills.asking(5) as nothing:
            assert nothing == 0
        refills.place_left()
        refills.place_left()
        with refills.asking(1) as one:
            assert (one, refills.asked) == (1, 1)
        with refills.asking(5) as rest:
            assert (rest, refills.asked) == (1, 1)
        with refills.asking(5) as nothing:
            assert nothing == 0
    assert refills.asked == 0


def test_nothing_without_a_claim_that_waits(refills: Refills) -> None:
    """A worker that is full has none: its next claim is for the place that was left, and would find it taken."""
    refills.place_left()
    with refills.asking(1) as places:
        assert places == 0


async def test_lost_answer_to_outcomes_makes_the_next_claim_say_what_is_held(refills: Refills) -> None:
    with refills.claiming() as recalls:
        assert not recalls
        refills.place_left()
        with pytest.raises(Unreachable), refills.asking(1):
            raise Unreachable("cut")
    with refills.claiming() as recalls:
        assert recalls
        refills.place_left()
        with refills.asking(1) as places:
            assert places == 0  # both answers could name the same attempt
    with refills.claiming() as recalls:
        assert not recalls


async def test_lost_answer_that_could_bring_nothing_is_no_loss(refills: Refills) -> None:
    with pytest.raises(Unreachable), refills.asking(1):
        raise Unreachable("cut")
    with refills.claiming() as recalls:
        assert not recalls


async def test_claim_that_says_what_is_held_waits_for_answers_that_may_bring_something(refills: Refills) -> None:
    with refills.claiming():
        refills.place_left()
        asking = refills.asking(1)
        asking.__enter__()
    with pytest.raises(Unreachable), refills.claiming():
        raise Unreachable("cut")

    waiting = asyncio.create_task(refills.wait_claimable())
    await asyncio.sleep(0)
    assert not waiting.done()
    asking.__exit__(None, None, None)
    await waiting
