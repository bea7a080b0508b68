"""Which story is told where.

Every story on virtual time is told on SQLite, Redis and Postgres, each with the bus in it and with NATS; but those of what
only a bus in the store can do, without NATS. Those of the acceptance rows 62, 63, 70, 104 and 105 are told on every store
with every bus, each a real server.

The long ones, hundreds of jobs or days, are told on SQLite and in one of the other places, so that each has its share of them;
everywhere with `HOLDFAST_TEST_STORIES=all`. What they ask of a store is what the short ones ask, and `tests/conformance` with `tests/plane/test_stores_agree.py` show that the
stores answer alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import servers
from backends import plane_stores

from flow.places import placed

EVERY_STORE = tuple(next(iter(store.stories)) for store in plane_stores().values())
EVERY_STORE_WITH_NATS = tuple(f"{store}+nats" for store in EVERY_STORE)
ELSEWHERE = tuple(place for place in (*EVERY_STORE, *EVERY_STORE_WITH_NATS) if place != "memory")
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
LONG = {
    "test_a_rate_over_a_long_time_is_exact",
    "test_a_result_that_was_lost_is_found_by_the_reconciler",
    "test_a_run_ends_at_its_deadline",
    "test_a_simulation_ends_at_its_limit",
    "test_each_try_has_the_same_id_and_its_own_time",
    "test_failure_10_approval_does_not_outlive_its_time",
    "test_it_ends_by_itself_once_and_both_ends_are_audited",
    "test_limit_of_a_rule_holds_and_those_behind_it_are_served",
    "test_more_missed_ticks_than_the_policy_lets_through_at_once_come_by_and_by",
    "test_no_event_is_lost_or_doubled_by_a_write_that_fails",
    "test_paused_run_keeps_its_session",
    "test_priorities_of_a_tenant_are_honoured",
    "test_receiver_that_is_gone_is_told_nothing_more",
    "test_replicas_that_hear_nothing_obey_within_two_seconds",
    "test_runs_of_a_session_go_one_after_the_other",
    "test_schedule_43_bus_down_for_a_quarter_of_an_hour_loses_nothing_and_stays_bounded",
    "test_schedule_44_slow_worker_never_has_more_in_hand_than_it_asked_for",
    "test_schedule_63_slow_store_is_not_asked_more_often",
    "test_schedule_64_flood_of_one_tenant_leaves_the_other_its_turn",
    "test_schedules_do_not_fire_and_do_not_pile_up",
    "test_scopes_are_bounded",
    "test_slow_receiver_does_not_hold_up_others",
    "test_t2_every_busy_tenant_keeps_its_share",
    "test_tenant_that_comes_late_is_served_soon",
    "test_tenant_with_many_events_does_not_keep_others_waiting",
    "test_tenant_works_on_no_more_than_it_may_and_others_are_not_held_up",
    "test_the_deadline_of_a_run_that_waits_for_nobody_is_kept_by_the_reconciler",
    "test_time_of_a_run_counts_from_its_turn_on",
    "test_topic_works_on_no_more_than_it_may_over_all_tenants",
    "test_two_engines_at_once_begin_each_run_once_and_in_turn",
    "test_urgent_job_does_not_wait_for_the_queues_of_others",
}


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
    if name in LONG and os.environ.get("HOLDFAST_TEST_STORIES") != "all":
        return ("memory", ELSEWHERE[sorted(LONG).index(name) % len(ELSEWHERE)])
    if {name, module} & OF_THE_BUS_IN_THE_STORE:
        return EVERY_STORE
    return (*EVERY_STORE, *EVERY_STORE_WITH_NATS)


@pytest.fixture(autouse=True)
def place(request: pytest.FixtureRequest, running: dict[str, servers.Server | None], tmp_path: Path) -> Iterator[None]:
    with placed(getattr(request, "param", "memory"), running, tmp_path):
        yield
