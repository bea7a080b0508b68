"""What settings of stores and buses promise: the rulings, the table of the page, blind windows, and clocks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.core.blind_window import Polls, judge_settings, windows
from holdfast.core.inspection import Aspect, Fact, Inspection, Replicas, Sync
from holdfast.core.promises import (
    FAILOVER,
    FENCE,
    KILL,
    POWER,
    RULINGS,
    Severity,
    judge,
    judge_clock,
    survivals,
)
from holdfast.core.topic import Topic
from holdfast.locks import LockClass
from holdfast.wiring import CLASSES

PAGE = (Path(__file__).parents[2] / "docs/reference/promises.md").read_text()
POLLS = Polls(0.25, 1.0, 5.0)


def inspected(**values: str) -> Inspection:
    facts = [Fact(aspect=Aspect(name), value=value, setting="s", found="f", fix="x") for name, value in values.items()]
    return Inspection(engine="Thing", version="1", place="thing://", facts=tuple(facts))


def test_table_of_the_page_is_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.+) \| (.+) \| (.+) \| (.+) \| .+ \|$", PAGE, re.MULTILINE)

    told = {}
    for sync, replicas, *_ in rows:
        found = dict(survivals(inspected(sync=sync, replicas=replicas), None))
        told[sync, replicas] = [found[fault] for fault in (KILL, POWER, FAILOVER, FENCE)]
    assert {(sync, replicas): cells for sync, replicas, *cells in rows} == told
    assert len(rows) == 3 * 3 + 1


def test_rulings_of_the_page_are_the_code() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (\w+) \| (\w+): (\w+) is `(\w+)` \| (.+) \|$", PAGE, re.MULTILINE)

    assert {(part, aspect, value): (code, severity, means) for code, severity, part, aspect, value, means in rows} == {
        (part, aspect, value): tuple(ruling) for (part, aspect, value), ruling in RULINGS.items()
    }


@pytest.mark.parametrize(
    ("part", "values", "codes"),
    [
        ("store", {"sync": "commit", "replicas": "none", "files": "local"}, []),
        ("store", {"sync": "interval", "replicas": "none"}, ["sync-interval"]),
        ("store", {"sync": "never", "replicas": "asynchronous"}, ["sync-off", "async-replicas"]),
        ("store", {"sync": "nothing"}, ["not-kept"]),
        ("store", {"sync": "commit", "files": "network"}, ["network-file"]),
        ("store", {"sync": "commit", "files": "memory"}, ["memory-file"]),
        ("store", {"sync": "commit", "eviction": "evicts"}, ["evicts"]),
        ("bus", {"sync": "interval", "replicas": "none"}, ["bus-sync-interval", "bus-one-copy"]),
        ("bus", {"sync": "nothing", "replicas": "synchronous"}, ["bus-not-kept"]),
        ("bus", {"sync": "commit", "replicas": "synchronous"}, []),
    ],
)
def test_settings_that_break_a_promise_are_named(part: str, values: dict[str, str], codes: list[str]) -> None:
    found = judge(part, inspected(**values))

    assert [one.code for one in found] == codes
    assert all(one.fix == "x" and "s = f" in one.summary for one in found)


@pytest.mark.parametrize(
    ("ahead_s", "unsure_s", "severity"),
    [(0.1, 0.0, None), (-0.4, 0.1, None), (0.7, 0.3, None), (-3.0, 0.1, "warning"), (60.0, 0.1, "broken")],
)
def test_clock_is_judged_only_by_what_is_sure(ahead_s: float, unsure_s: float, severity: str | None) -> None:
    found = judge_clock("store", ahead_s=ahead_s, unsure_s=unsure_s, fix="set it")

    assert [one.severity for one in found] == ([] if severity is None else [Severity(severity)])


def test_blind_windows_are_sums_of_what_is_declared() -> None:
    topic = Topic(name="mail", lease_s=10, dispatch_timeout_s=60)
    found = {(one.component, one.trouble): one.worst_s for one in windows([topic], CLASSES, POLLS)}

    assert found["topic mail", "its worker dies at work"] == 10 + 3
    assert found["topic mail", "its delivery is lost"] == 60 + 3
    assert found["lock snapshot", "the replica that has the window dies"] == 15
    assert found["lock scheduler.job", "its holder dies"] == 60


def test_declared_classes_and_topics_have_margin() -> None:
    assert judge_settings([Topic(name="*")], CLASSES, store_timeout_s=2.0) == []


def test_times_without_margin_are_named() -> None:
    classes = [LockClass("hasty", 3.0), LockClass("late", 30.0, renew_every=24.0)]
    topics = [Topic(name="quick", lease_s=3, running_timeout_s=2)]

    found = judge_settings(topics, classes, store_timeout_s=2.0)

    assert [(one.code, one.about) for one in found] == [
        ("ttl-below-store-timeout", "lock hasty"),
        ("renewal-no-margin", "lock late"),
        ("lease-below-store-timeout", "topic quick"),
        ("running-timeout-below-lease", "topic quick"),
    ]


def test_what_is_not_kept_survives_nothing() -> None:
    found = dict(survivals(inspected(sync=Sync.NOTHING, replicas=Replicas.NONE), None))

    assert (found[KILL], found[POWER]) == ("nothing", "nothing")
