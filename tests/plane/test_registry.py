"""The worker registry: how much each worker has in hand, whatever order the news comes in."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
from flow.stage import staged
from locks.virtual import VirtualRuntime, on_virtual_time

from holdfast import api
from holdfast.core.placement import Placing
from holdfast.ports import Snapshot
from holdfast.registry import FORGET_S, SILENT_S, Registry
from plane.jobs import a_job


def registry_of(*workers: str) -> Registry:
    registry = Registry()
    for worker in workers:
        registry.hello(api.Hello(worker=worker, name=worker, topics=["*"], slots=4), now=0.0)
    return registry


def load(registry: Registry) -> dict[str, int]:
    return {view.id: view.in_hand for view in registry.views(now=0.0)}


def test_job_on_its_way_to_the_store_keeps_its_room() -> None:
    """The reconciler's look at the store may come between the scheduler's choice and its write."""
    registry = registry_of("w1")
    registry.holds("w1", [])
    registry.took("w1", "j1")

    registry.holds("w1", [])
    assert load(registry) == {"w1": 1}
    registry.holds("w1", [])
    assert load(registry) == {"w1": 0}, "but one that never arrives does not keep it for ever"


def test_end_of_a_job_frees_the_worker_that_has_it_now() -> None:
    registry = registry_of("w1", "w2")
    registry.took("w1", "j1")
    registry.took("w2", "j1")  # the news that w1 lost it did not come
    assert load(registry) == {"w1": 0, "w2": 1}

    registry.gone("w1", now=0.0)
    registry.freed("j1")
    assert load(registry) == {"w2": 0}


def test_old_worker_s_correction_leaves_the_job_with_the_new_one() -> None:
    registry = registry_of("w1", "w2")
    registry.holds("w1", ["j1"])
    registry.holds("w2", ["j1"])

    registry.holds("w1", [])
    registry.freed("j1")

    assert load(registry) == {"w1": 0, "w2": 0}


def test_worker_that_is_able_again_is_as_drained_as_it_was() -> None:
    """Whoever drained it meant it until it is started anew."""
    registry = registry_of("w1")
    hello = api.Hello(worker="w1", name="w1", topics=["*"], slots=4)

    def say(unable: str) -> str:
        registry.hello(msgspec.structs.replace(hello, unable=unable), now=0.0)
        [view] = registry.views(now=0.0)
        return view.condition

    assert (say("no memory"), say("")) == ("unable", "ready")
    say("no memory")
    registry.drain("w1", now=0.0)
    assert (say("no process"), say(""), say("")) == ("draining", "draining", "ready")


def test_other_processes_hear_that_a_worker_is_unable() -> None:
    registry, other = registry_of("w1"), registry_of("w1")
    hello = api.Hello(worker="w1", name="w1", topics=["*"], slots=4, unable="no memory")
    registry.hello(hello, now=1.0)

    assert other.learn(registry.told())
    assert [(view.condition, view.unable) for view in other.views(now=1.0)] == [("unable", "no memory")]


def test_candidates_for_a_job_are_those_it_would_go_to_whatever_was_said_of_them_before() -> None:
    """They are kept in order of what is known of them: nothing that changes it may be missed."""
    chance = random.Random(13)
    registry, other, now = registry_of("w0"), registry_of("w0"), 0.0

    def hello(worker: str) -> api.Hello:
        topics = chance.choice([["*"], ["mail.*"], ["fax.send"]])
        unable = "no memory" if chance.random() < 0.1 else ""
        return api.Hello(worker=worker, name=worker, topics=topics, slots=chance.randint(1, 3), unable=unable)

    def say(worker: str, job_id: str) -> None:
        """Something that a plane says to its registry."""
        said: list[Callable[[], object]] = [
            lambda: registry.hello(hello(worker), now=now),
            lambda: registry.gone(worker, now=now),
            lambda: registry.took(worker, job_id),
            lambda: registry.took(worker, job_id),
            lambda: registry.freed(job_id),
            lambda: registry.holds(worker, [job_id]),
            lambda: registry.lies_there(worker, for_s=chance.choice([0.0, FORGET_S]), running=0),
            lambda: registry.lost(job_id, now=now),
            lambda: registry.forget_old(now=now),
            lambda: other.hello(hello(worker), now=now) and registry.learn(other.told()),
        ]
        if worker in registry.workers():
            said += [lambda: registry.seen(worker, now=now), lambda: registry.drain(worker, now=now)]
        chance.choice(said)()

    for n in range(5000):
        now += chance.choice([0.0, 0.5, SILENT_S / 4]) if n % 50 else FORGET_S
        for _ in range(chance.randint(1, 3)):
            say(f"w{chance.randint(0, 5)}", f"j{chance.randint(0, 9)}")
        job, since = a_job(topic="mail.send"), now - SILENT_S
        chosen, of_all = (
            Placing(views, alive_since=since, kept=1).place(job)
            for views in (registry.candidates_for([job], alive_since=since, kept=1), registry.candidates())
        )
        assert chosen == of_all


@on_virtual_time
async def test_snapshot_that_cannot_be_read_makes_a_cold_start(runtime: VirtualRuntime) -> None:
    """It may be of a newer Holdfast. Without it workers only have to say hello again."""
    async with staged(runtime) as stage:
        await stage.inner.write_snapshot(Snapshot(1, 1, stage.inner.now(), b'[[{"colour":"blue"},1.0,false]]'))

        await stage.writer.warm_up()
        assert stage.registry.workers() == []
        stage.hello("w1")
        await stage.writer.tick()

        fresh = await stage.replica("R2")
        await fresh.writer.warm_up()
        assert fresh.registry.workers() == ["w1"]
