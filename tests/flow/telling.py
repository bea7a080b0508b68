"""Which story is told where.

Every story on virtual time is told on SQLite, Redis and Postgres, each with the bus in it and with NATS; but those of what
only a bus in the store can do, and those in which nothing is delivered, without NATS. Those of the acceptance rows 62, 63,
70, 104 and 105 are told on every store with every bus, each a real server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import servers
from backends import plane_stores

from flow.places import placed
from flow.unasked_bus import UnaskedBus

EVERY_STORE = tuple(next(iter(store.stories)) for store in plane_stores().values())
EVERY_STORE_WITH_NATS = tuple(f"{store}+nats" for store in EVERY_STORE)
EVERY_REAL_STORE = tuple(list(store.stories)[-1] for store in plane_stores().values())
EVERYWHERE = (*EVERY_REAL_STORE, *(f"{store}+nats" for store in EVERY_REAL_STORE))
EVERYWHERE_AND_APART = tuple(dict.fromkeys([*EVERYWHERE, *EVERY_STORE, *(f"{store}+apart" for store in EVERY_STORE)]))
"""For what is said of any bus, and costs little."""
SQL_WITH_EVERY_BUS = ("memory", "memory+nats", "postgres", "postgres+nats")

OF_THE_BUS_IN_THE_STORE = {
    "test_handover",
    "test_runs_at_once",
    "test_bus_in_the_store_takes_a_batch_in_one_write_and_no_lock",
}
"""Modules, and one test: jobs that are given away in the commit that makes them, which no other bus can do."""
OF_THE_ROWS = {
    "test_schedule_29_failed_rollback_is_counted_and_dispatched_again_within_the_timeout",
    "test_schedule_30_attempt_after_a_publish_in_doubt_has_a_fence_of_its_own",
    "test_orphan_of_every_live_state_ends_well",
    "test_orphan_behind_a_stuck_head_is_reached_in_bounded_batches",
    "test_lost_wake_up_wakes_the_scheduler_and_is_counted",
    "test_schedule_45_payload_that_kills_every_worker_ends_as_a_dead_letter",
    "test_delivery_that_ends_its_worker_before_it_has_begun_is_not_repeated_for_ever",
}
OF_POSTGRES = {"test_kept_sessions"}
OF_SEVERAL_HOSTS = {"test_schedule_62_gateways_whose_clocks_differ_agree_on_every_timeout"}


AnyTest = TypeVar("AnyTest", bound=Callable[..., Any])


def undelivered(test: AnyTest) -> AnyTest:
    """Nothing is delivered in this story: it asks no bus for anything, so that it is the same with any. One that asks all the
    same fails."""
    test.is_undelivered = True  # type: ignore[attr-defined]
    return test


def is_undelivered(test: Callable[..., Any]) -> bool:
    return getattr(test, "is_undelivered", False)


def tell(metafunc: pytest.Metafunc, places: Sequence[str]) -> None:
    if places:
        metafunc.parametrize("place", places, indirect=True)


def places_of(test: Callable[..., Any]) -> Sequence[str]:
    """Nowhere in particular: a test that stages nothing on virtual time."""
    name, module = test.__name__, test.__module__.rpartition(".")[2]
    if not getattr(test, "on_virtual_time", False):
        return ()
    if module == "test_outbox":
        return SQL_WITH_EVERY_BUS
    if name == "test_failed_dispatched_write_publishes_nothing_and_its_replay_exactly_one":
        return EVERYWHERE_AND_APART
    if name in OF_THE_ROWS:
        return EVERYWHERE
    if module in OF_POSTGRES:
        return ("postgres",)
    if name in OF_SEVERAL_HOSTS:
        return ("postgres", "redis")
    if {name, module} & OF_THE_BUS_IN_THE_STORE or is_undelivered(test):
        return EVERY_STORE
    return (*EVERY_STORE, *EVERY_STORE_WITH_NATS)


@pytest.fixture(autouse=True)
def place(request: pytest.FixtureRequest, running: dict[str, servers.Server | None], tmp_path: Path) -> Iterator[None]:
    unasked = UnaskedBus() if is_undelivered(request.function) else None
    with placed(getattr(request, "param", "memory"), running, tmp_path, unasked=unasked):
        yield
    # A loop that was refused has gone on.
    assert unasked is None or unasked.asked == [], "this story is not undelivered: it is to be told with NATS, too"
