"""Placement: topic → pool → worker, by load."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from plane.jobs import a_job

from holdfast.core.placement import WorkerView, place, unfit
from holdfast.core.topic import Topic, Topics

WORKER = WorkerView(
    id="w1", pool="default", topics=("mail.*",), slots=4, backlog=2, in_hand=0, draining=False, last_seen=100.0
)


@pytest.mark.parametrize(
    ("worker", "job", "why"),
    [
        ({}, {}, None),
        ({"topics": ("mail.send",)}, {}, None),
        ({"topics": ("mail.sen",)}, {}, "other-topics"),
        ({"topics": ("fax.*",)}, {}, "other-topics"),
        ({"pool": "gpu"}, {}, "other-pool"),
        ({"last_seen": 89.0}, {}, "worker-silent"),
        ({"stuck": True}, {}, "worker-stuck"),
        ({"draining": True}, {}, "worker-draining"),
        ({"in_hand": 6}, {}, "worker-full"),
        ({"in_hand": 5}, {}, None),
        ({}, {"labels": {"require.gpu": "a100"}}, "labels-missing"),
        ({"labels": {"gpu": "a100"}}, {"labels": {"require.gpu": "a100", "team": "x"}}, None),
        ({"labels": {"gpu": "h100"}}, {"labels": {"require.gpu": "a100"}}, "labels-missing"),
    ],
)
def test_worker_fits_or_says_why_not(worker: dict[str, Any], job: dict[str, Any], why: str | None) -> None:
    assert unfit(a_job(**job), "default", replace(WORKER, **worker), alive_since=90.0) == why


def test_least_loaded_worker_is_chosen_by_share_of_its_slots() -> None:
    small = replace(WORKER, id="small", slots=2, in_hand=1)
    large = replace(WORKER, id="large", slots=10, in_hand=3)

    assert place(a_job(), "default", [small, large], alive_since=90.0) is large


def test_equal_load_is_decided_by_name_and_nobody_fitting_is_none() -> None:
    other = replace(WORKER, id="w0")

    assert place(a_job(), "default", [WORKER, other], alive_since=90.0) is other
    assert place(a_job(), "gpu", [WORKER, other], alive_since=90.0) is None


def test_topic_is_found_by_name_then_by_the_longest_family_then_by_default() -> None:
    topics = Topics((Topic(name="mail.*", pool="p1"), Topic(name="mail.bulk.*", pool="p2"), Topic(name="mail.bulk.x")))

    assert topics.get("mail.send").pool == "p1"
    assert topics.get("mail.bulk.a").pool == "p2"
    assert topics.get("mail.bulk.x").pool == "default"
    assert topics.get("fax") == Topic(name="fax")
    assert Topics(closed=True).find("fax") is None
    assert Topics(closed=True).get("fax") == Topic(name="fax")
