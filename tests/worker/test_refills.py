"""How much a worker may ask for with its outcomes, and what it does when an answer was lost."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.worker.link import Unreachable
from holdfast.worker.refills import Refills


class Places:
    """A worker's, as many as nobody has."""

    def __init__(self) -> None:
        self.vacant = 0
        self.refills = Refills(lambda: self.vacant, lambda: None)

    @property
    def asked(self) -> int:
        return self.vacant - self.refills.room()


@pytest.fixture
def places() -> Places:
    return Places()


def test_places_of_a_claim_that_waits_are_its_own(places: Places) -> None:
    places.vacant = 3
    with places.refills.claiming(3):
        with places.refills.asking(5) as nothing:
            assert nothing == 0
        places.vacant += 2  # two end
        with places.refills.asking(1) as one:
            assert (one, places.asked) == (1, 1)
        with places.refills.asking(5) as both:
            assert (both, places.asked) == (2, 2)  # what the answer did not fill is asked for again
    assert places.asked == 0


def test_nothing_without_a_claim_that_waits(places: Places) -> None:
    """A worker that is full has none: its next claim is for the place that was left, and would find it taken."""
    places.vacant = 1
    with places.refills.asking(1) as nothing:
        assert nothing == 0


async def test_lost_answer_to_outcomes_makes_the_next_claim_say_what_is_held(places: Places) -> None:
    refills = places.refills
    places.vacant = 2
    with refills.claiming(1) as recalls:
        assert not recalls
        with pytest.raises(Unreachable), refills.asking(1):
            raise Unreachable("cut")
        with refills.asking(1) as none:
            assert none == 0
    with refills.claiming(1) as recalls:
        assert recalls
        with refills.asking(1) as none:
            assert none == 0  # both answers could name the same attempt
    with refills.claiming(1) as recalls:
        assert not recalls
        with refills.asking(1) as one:
            assert one == 1


async def test_lost_answer_that_could_bring_nothing_is_no_loss(places: Places) -> None:
    with pytest.raises(Unreachable), places.refills.asking(1):
        raise Unreachable("cut")
    with places.refills.claiming(1) as recalls:
        assert not recalls


async def test_claim_that_says_what_is_held_waits_for_answers_that_may_bring_something(places: Places) -> None:
    refills = places.refills
    places.vacant = 2
    with refills.claiming(1):
        asking = refills.asking(1)
        asking.__enter__()
    with pytest.raises(Unreachable), refills.claiming(1):
        raise Unreachable("cut")

    waiting = asyncio.create_task(refills.wait_claimable())
    await asyncio.sleep(0)
    assert not waiting.done()
    asking.__exit__(None, None, None)
    await waiting
