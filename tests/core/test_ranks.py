"""Ranks: whoever asks only the first of them comes to what he would by asking all workers."""

from __future__ import annotations

import random

from msgspec.structs import replace
from plane.jobs import a_job

from holdfast.core.job import Job
from holdfast.core.placement import Placing, WorkerView
from holdfast.core.ranks import Ranks

ALIVE_SINCE = 90.0


def a_worker(chance: random.Random, name: str) -> WorkerView:
    return WorkerView(
        id=name,
        pool=chance.choice(["default", "default", "gpu"]),
        topics=chance.choice([("mail.*",), ("*",), ("fax.send",)]),
        labels=chance.choice([{}, {"gpu": "a"}, {"gpu": "b", "disk": "fast"}]),
        slots=chance.randint(1, 4),
        backlog=chance.randint(0, 2),
        in_hand=chance.randint(0, 4),
        draining=chance.random() < 0.1,
        stuck=chance.random() < 0.1,
        unable="no memory" if chance.random() < 0.1 else "",
        last_seen=chance.choice([89.0, 90.0, 100.0, 100.0, 100.0]),
    )


def some_jobs(chance: random.Random) -> list[Job]:
    wanted = [{}, {"require.gpu": "a"}, {"require.disk": "fast", "require.gpu": "b"}]
    return [
        a_job(topic=chance.choice(["mail.send", "fax.send"]), labels=chance.choice(wanted))
        for _ in range(chance.randint(1, 8))
    ]


def test_jobs_go_where_they_would_go_if_all_workers_were_asked() -> None:
    chance = random.Random(11)
    for _ in range(100):
        ranks, known = Ranks(), dict[str, WorkerView]()
        for _ in range(60):
            name = f"w{chance.randint(0, 15)}"
            if chance.random() < 0.2:
                ranks.drop(name)
                known.pop(name, None)
            else:
                known[name] = a_worker(chance, name)
                # Some fall silent only after they were put in their place.
                ranks.put(known[name], alive_since=chance.choice([80.0, ALIVE_SINCE]))
        for kept in (0, 1, 2):
            jobs = some_jobs(chance)
            first = ranks.first(jobs, alive_since=ALIVE_SINCE, kept=kept)
            of_first, of_all = (
                Placing(workers, alive_since=ALIVE_SINCE, kept=kept) for workers in (first, known.values())
            )

            assert [of_first.place(job) for job in jobs] == [of_all.place(job) for job in jobs]


def test_of_hundreds_that_are_alike_as_many_are_asked_as_there_are_jobs() -> None:
    ranks = Ranks()
    like = WorkerView(
        id="", pool="default", topics=("mail.*",), slots=4, backlog=0, in_hand=0, draining=False, last_seen=100.0
    )
    for n in range(300):
        ranks.put(replace(like, id=f"w{n:03}", in_hand=n % 4), alive_since=ALIVE_SINCE)

    def asked(jobs: int) -> list[str]:
        found = ranks.first([a_job() for _ in range(jobs)], alive_since=ALIVE_SINCE, kept=0)
        return sorted(view.id for view in found)

    assert (asked(1), asked(3)) == (["w000"], ["w000", "w004", "w008"])
