"""Placement: topic → pool → worker, by load."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from plane.jobs import a_job

from holdfast.core.job import Job
from holdfast.core.placement import PassedOver, Placing, WorkerView, unfit
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
        ({"unable": "no process can be started"}, {}, "worker-unable"),
        ({"in_hand": 6}, {}, "worker-full"),
        ({"in_hand": 5}, {}, None),
        ({}, {"labels": {"require.gpu": "a100"}}, "labels-missing"),
        ({"labels": {"gpu": "a100"}}, {"labels": {"require.gpu": "a100", "team": "x"}}, None),
        ({"labels": {"gpu": "h100"}}, {"labels": {"require.gpu": "a100"}}, "labels-missing"),
    ],
)
def test_worker_fits_or_says_why_not(worker: dict[str, Any], job: dict[str, Any], why: str | None) -> None:
    assert unfit(a_job(**job), "default", replace(WORKER, **worker), alive_since=90.0) == why


def placing(*workers: WorkerView) -> Placing:
    return Placing(workers, alive_since=90.0)


def test_least_loaded_worker_is_chosen_by_share_of_its_slots() -> None:
    small = replace(WORKER, id="small", slots=2, in_hand=1)
    large = replace(WORKER, id="large", slots=10, in_hand=3)

    assert placing(small, large).place(a_job()) == "large"


def test_equal_load_is_decided_by_name_and_nobody_fitting_is_none() -> None:
    other = replace(WORKER, id="w0")

    assert placing(WORKER, other).place(a_job()) == "w0"
    assert placing(WORKER, other).place(a_job(pool="gpu")) is None


def test_who_is_full_serves_a_job_and_who_does_not_fit_does_not() -> None:
    full = replace(WORKER, in_hand=6)

    assert [placing(each).serves(a_job()) for each in (WORKER, full, replace(WORKER, pool="gpu"))] == [
        True,
        True,
        False,
    ]
    assert placing(full).place(a_job()) is None


def test_many_are_placed_as_one_after_the_other_would_be() -> None:
    """Each with the least loaded of all who fit, asked anew for every job."""
    chance = random.Random(7)
    for _ in range(200):
        workers = [
            replace(
                WORKER,
                id=f"w{n}",
                topics=chance.choice([("mail.*",), ("*",), ("fax.send",)]),
                labels=chance.choice([{}, {"gpu": "a"}, {"gpu": "b"}]),
                slots=chance.randint(1, 4),
                in_hand=chance.randint(0, 3),
                draining=chance.random() < 0.1,
            )
            for n in range(chance.randint(0, 6))
        ]
        jobs = [
            a_job(topic=chance.choice(["mail.send", "fax.send"]), labels=chance.choice([{}, {"require.gpu": "a"}]))
            for _ in range(20)
        ]
        together = placing(*workers)

        assert [together.place(job) for job in jobs] == list(one_by_one(jobs, workers))


def one_by_one(jobs: list[Job], workers: list[WorkerView]) -> Iterator[str | None]:
    known = {worker.id: worker for worker in workers}
    for job in jobs:
        fitting = [each for each in known.values() if unfit(job, "default", each, alive_since=90.0) is None]
        chosen = min(fitting, key=lambda each: (each.load, each.id), default=None)
        if chosen is not None:
            known[chosen.id] = chosen.with_one_more()
        yield None if chosen is None else chosen.id


def test_topic_is_found_by_name_then_by_the_longest_family_then_by_default() -> None:
    topics = Topics((Topic(name="mail.*", pool="p1"), Topic(name="mail.bulk.*", pool="p2"), Topic(name="mail.bulk.x")))

    assert topics.get("mail.send").pool == "p1"
    assert topics.get("mail.bulk.a").pool == "p2"
    assert topics.get("mail.bulk.x").pool == "default"
    assert topics.get("fax") == Topic(name="fax")
    assert Topics(closed=True).find("fax") is None
    assert Topics(closed=True).get("fax") == Topic(name="fax")


def test_of_what_nobody_has_it_is_said_what_is_to_be_had_of_those_who_serve_the_topic() -> None:
    def labelled(name: str, **others: Any) -> WorkerView:
        return replace(WORKER, id=name, labels={"host": name}, **others)

    workers = [
        WORKER,
        labelled("free"),
        labelled("full", in_hand=6),
        labelled("moved", pool="new"),
        labelled("other", pool="other"),
        labelled("fax", topics=("fax.*",)),
        labelled("gone", last_seen=89.0),
    ]
    wanting = a_job(labels={"require.gpu": "a100"})

    def met_by(*is_served: bool) -> list[str]:
        passed_over = PassedOver()
        for each in is_served:
            passed_over.add(wanting, is_served=each, pool="new")
        passed_over.look(workers, alive_since=90.0)
        assert (len(passed_over) == 0) == (not passed_over.met_by)
        return sorted("".join(value for _, value in labels) for labels in passed_over.met_by.get("mail.send", ()))

    assert met_by() == []
    assert met_by(False) == ["", "free", "full", "moved"]
    assert met_by(False, True) == ["", "free", "moved"], "whoever waits for room was seen, and others are looked for"
