"""Advice from what was measured, and the causes of lost leases by their evidence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.core.advice import LockCounts, Spread, advise_class, advise_topic, why_not_owned
from holdfast.core.topic import Topic, Topics
from holdfast.locks import LockClass
from holdfast.ops.readings import advise, read
from holdfast.wiring import CLASSES

ROOT = Path(__file__).parents[2]
RENEWED = LockClass("renewed", 30.0)
BOUNDED = LockClass("bounded", 10.0, renew_every=0)


def spread(p99: float, count: int = 100) -> Spread:
    """All of them took this long."""
    return Spread([(p99 / 2, 0.0), (p99, float(count)), (float("inf"), float(count))])


@pytest.mark.parametrize(
    ("attempts", "starts", "codes"),
    [
        (spread(60), spread(10), []),
        (spread(60, count=10), spread(10, count=10), []),
        (spread(600), spread(10), ["running-timeout-tight"]),
        (spread(1), spread(10), ["running-timeout-loose"]),
        (spread(60), spread(120), ["dispatch-timeout-tight"]),
        (spread(60), spread(0.05), ["dispatch-timeout-loose"]),
    ],
)
def test_timeouts_of_a_topic_follow_what_was_measured(attempts: Spread, starts: Spread, codes: list[str]) -> None:
    topic = Topic(name="mail", running_timeout_s=900, dispatch_timeout_s=300)

    assert [one.code for one in advise_topic(topic, attempts=attempts, starts=starts)] == codes


def test_proposals_are_numbers_one_can_set() -> None:
    [tight] = advise_topic(Topic(name="mail"), attempts=spread(600), starts=Spread())
    [loose] = advise_topic(Topic(name="mail"), attempts=Spread(), starts=spread(0.5))

    assert tight.fix == "running_timeout_s = 2400"
    assert loose.fix == "dispatch_timeout_s = 30"


def test_ttl_follows_the_work_where_nothing_renews_it_and_the_pauses_where_something_does() -> None:
    slow = LockCounts(held=spread(8))

    assert [one.code for one in advise_class(BOUNDED, slow, pause_s=0, store_timeout_s=2)] == ["ttl-below-work"]
    assert advise_class(RENEWED, LockCounts(held=spread(600)), pause_s=1, store_timeout_s=2) == []
    assert [one.code for one in advise_class(RENEWED, slow, pause_s=20, store_timeout_s=2)] == ["ttl-below-pause"]


@pytest.mark.parametrize(
    ("lock_class", "seen", "code"),
    [
        (RENEWED, LockCounts(not_owned=3, abandoned={"paused": 2, "unreachable": 1}), "not-owned-pause"),
        (RENEWED, LockCounts(not_owned=3, renewed=100, renewals_failed=9), "not-owned-delay"),
        (RENEWED, LockCounts(abandoned={"unreachable": 1}), "not-owned-delay"),
        (RENEWED, LockCounts(not_owned=1, abandoned={"expired": 1}), "not-owned-delay"),
        (BOUNDED, LockCounts(not_owned=3, held=spread(9)), "not-owned-no-renewal"),
        (BOUNDED, LockCounts(not_owned=1, abandoned={"expired": 1}), "not-owned-no-renewal"),
        (RENEWED, LockCounts(not_owned=1, abandoned={"revoked": 1}), "not-owned-evicted"),
        (RENEWED, LockCounts(not_owned=1), "not-owned-unexplained"),
    ],
)
def test_cause_of_lost_leases_is_the_one_with_evidence(lock_class: LockClass, seen: LockCounts, code: str) -> None:
    assert [one.code for one in why_not_owned(lock_class, seen)] == [code]


def test_nothing_is_said_where_nothing_was_lost() -> None:
    assert why_not_owned(RENEWED, LockCounts(renewed=1000, renewals_failed=3)) == []


def test_codes_are_those_documented() -> None:
    page = (ROOT / "docs/reference/promises.md").read_text()
    told = set(re.findall(r'"((?:not-owned|ttl-below|running-timeout|dispatch-timeout|renewal|lease)-[a-z-]+)"', "".join(
        (ROOT / f"src/holdfast/core/{name}.py").read_text() for name in ("advice", "blind_window")
    )))  # fmt: skip

    assert len(told) > 12
    assert {code for code in told if f"| `{code}` |" not in page} == set()


EXPOSITION = """\
# TYPE holdfast_attempt_seconds histogram
holdfast_attempt_seconds_bucket{le="0.5",topic="mail"} 80.0
holdfast_attempt_seconds_bucket{le="600.0",topic="mail"} 100.0
holdfast_attempt_seconds_bucket{le="+Inf",topic="mail"} 100.0
holdfast_attempt_seconds_count{topic="mail"} 100.0
# TYPE holdfast_lock_not_owned_total counter
holdfast_lock_not_owned_total{namespace="scheduler.job",op="renew"} 4.0
# TYPE holdfast_lock_abandoned_total counter
holdfast_lock_abandoned_total{namespace="scheduler.job",policy="fence",reason="paused"} 4.0
# TYPE holdfast_loop_lag_seconds gauge
holdfast_loop_lag_seconds 0.0
"""


def test_advice_is_read_from_what_a_process_exposes() -> None:
    found = advise(read(EXPOSITION), topics=Topics(), classes=CLASSES)

    assert [(one.code, one.about) for one in found] == [
        ("running-timeout-tight", "topic mail"),
        ("not-owned-pause", "lock scheduler.job"),
    ]
