"""Schedules: their ticks, and which of them are obeyed."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.job import Tenant
from holdfast.core.schedule import (
    CATCH_UP_MAX,
    GRACE_S,
    JobToSubmit,
    Missed,
    Overlap,
    RunToStart,
    Schedule,
    check_schedule,
    due_ticks,
    resumed,
    schedule_from,
    schedule_record,
    ticks_after,
)
from holdfast.errors import Invalid


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


BEGAN = at("2026-01-01T00:00:00")


def a_schedule(**values: Any) -> Schedule:
    schedule = Schedule(
        tenant=Tenant("acme"), name="nightly", job=JobToSubmit(topic="t"), created_at=BEGAN, next_at=BEGAN
    )
    made = replace(schedule, **({"every_s": 60.0} if not values.get("cron") else {}) | values)
    return made if "next_at" in values else replace(made, next_at=next(ticks_after(made, BEGAN)))


def first(schedule: Schedule, moment: float, count: int) -> list[str]:
    ticks = itertools.islice(ticks_after(schedule, moment), count)
    return [f"{datetime.fromtimestamp(tick, UTC):%m-%d %H:%M}" for tick in ticks]


def test_record_keeps_everything() -> None:
    whole = a_schedule(
        cron="0 2 * * *", zone="Europe/Berlin", missed=Missed.ALL, overlap=Overlap.SKIP, last_at=3.0, last="j",
        last_error="e", job=None, run=RunToStart(workflow="w", input={"a": [1]}, labels={"x": "y"}, session="s"),
    )  # fmt: skip

    assert schedule_from(schedule_record(whole)) == replace(whole, version=1)


def test_paused_schedule_is_never_due() -> None:
    assert schedule_record(a_schedule()).due == BEGAN + 60
    assert schedule_record(a_schedule(paused=True)).due is None


def test_cron_goes_by_the_clock_on_the_wall() -> None:
    early = a_schedule(cron="30 2 * * *", zone="Europe/Berlin")

    # 2:30 does not exist on 29 March and exists twice on 25 October: each day has one tick.
    assert first(early, at("2026-03-27T12:00"), 3) == ["03-28 01:30", "03-29 01:00", "03-30 00:30"]
    assert first(early, at("2026-10-23T12:00"), 3) == ["10-24 00:30", "10-25 00:30", "10-26 01:30"]


def test_cron_with_a_star_for_minute_or_hour_goes_by_the_time_that_passes() -> None:
    often = a_schedule(cron="*/30 2 * * *", zone="Europe/Berlin")

    assert first(often, at("2026-03-28T12:00"), 2) == ["03-30 00:00", "03-30 00:30"]
    assert first(often, at("2026-10-24T12:00"), 5) == [f"10-25 {t}" for t in ("00:00", "00:30", "01:00", "01:30")] + [
        "10-26 01:00"
    ]


def test_intervals_stay_in_step_with_the_beginning() -> None:
    schedule = a_schedule(every_s=40.0)

    assert list(itertools.islice(ticks_after(schedule, BEGAN + 125), 2)) == [BEGAN + 160, BEGAN + 200]
    assert next(ticks_after(schedule, BEGAN + 160)) == BEGAN + 200


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"cron": "* * * *"}, "five fields"),
        ({"cron": "0 0 * * * *"}, "five fields"),
        ({"cron": "61 * * * *"}, "minute"),
        ({"cron": "0 0 31 2 *"}, "day"),
        ({"cron": "0 0 * * *", "zone": "Mars/Olympus"}, "zone"),
        ({"cron": "0 0 * * *", "zone": "../../etc/passwd"}, "zone"),
        ({"cron": "0 0 * * *", "every_s": 60.0}, "one of them"),
        ({"every_s": 0.5}, "every_s"),
        ({"job": None}, "one of them"),
        ({"run": RunToStart(workflow="w")}, "one of them"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(values: dict[str, Any], word: str) -> None:
    with pytest.raises(Invalid, match=word):
        check_schedule(a_schedule(next_at=BEGAN, **values))


@pytest.mark.parametrize("missed", list(Missed))
def test_tick_in_time_is_obeyed_whatever_is_said_of_missed_ones(missed: Missed) -> None:
    schedule = a_schedule(missed=missed)
    due = due_ticks(schedule, now=BEGAN + 60.4, last_lives=False)

    assert due == ((BEGAN + 60,), False, BEGAN + 120)


@pytest.mark.parametrize("missed", list(Missed))
def test_nothing_is_obeyed_before_its_time(missed: Missed) -> None:
    schedule = a_schedule(missed=missed)

    assert due_ticks(schedule, now=BEGAN + 59.9, last_lives=False) == ((), False, BEGAN + 60)


@pytest.mark.parametrize(
    ("missed", "obeyed"), [(Missed.SKIP, [600]), (Missed.ONE, [60]), (Missed.ALL, list(range(60, 601, 60)))]
)
def test_ticks_of_an_outage_are_made_up_for_as_told(missed: Missed, obeyed: list[int]) -> None:
    schedule = a_schedule(missed=missed)
    due = due_ticks(schedule, now=BEGAN + 610, last_lives=False)

    assert [tick - BEGAN for tick in due.ticks] == obeyed
    assert (due.next_at, due.skipped) == (BEGAN + 660, missed is not Missed.ALL)


def test_skip_obeys_nothing_that_is_too_late() -> None:
    schedule = a_schedule(cron="0 3 * * *", missed=Missed.SKIP)
    due = due_ticks(schedule, now=schedule.next_at + GRACE_S + 1, last_lives=False)

    assert due == ((), True, schedule.next_at + 86400)


def test_all_is_bounded() -> None:
    due = due_ticks(a_schedule(missed=Missed.ALL), now=BEGAN + 1e7, last_lives=False)

    assert (len(due.ticks), due.skipped) == (CATCH_UP_MAX, True)
    assert due.next_at > BEGAN + 1e7


def test_overlap_is_skipped_while_the_last_one_lives() -> None:
    schedule = a_schedule(overlap=Overlap.SKIP, missed=Missed.ALL)

    assert due_ticks(schedule, now=BEGAN + 130, last_lives=True).ticks == ()
    assert due_ticks(schedule, now=BEGAN + 130, last_lives=False).ticks == (BEGAN + 60,)
    assert due_ticks(replace(schedule, overlap=Overlap.ALLOW), now=BEGAN + 130, last_lives=True).ticks != ()


def test_pause_is_not_made_up_for() -> None:
    schedule = resumed(a_schedule(missed=Missed.ALL, paused=True), now=BEGAN + 601)

    assert (schedule.paused, schedule.next_at) == (False, BEGAN + 660)


@given(
    every_s=st.floats(min_value=1, max_value=1e6),
    looks=st.lists(st.floats(min_value=0.001, max_value=1e5), min_size=1, max_size=30),
    missed=st.sampled_from(list(Missed)),
    lives=st.booleans(),
)
def test_no_tick_is_obeyed_twice_or_before_its_time(
    every_s: float, looks: list[float], missed: Missed, lives: bool
) -> None:
    """However irregularly it is looked at."""
    schedule, now = a_schedule(every_s=every_s, missed=missed), BEGAN
    obeyed: list[float] = []
    for pause_s in looks:
        now += pause_s
        due = due_ticks(schedule, now=now, last_lives=lives)
        assert all(tick <= now for tick in due.ticks)
        assert due.next_at > now
        obeyed += due.ticks
        schedule = replace(schedule, next_at=due.next_at)

    assert obeyed == sorted(set(obeyed))
