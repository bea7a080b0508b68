"""The worker registry: how much each worker has in hand, whatever order the news comes in."""

from __future__ import annotations

from flow.stage import staged
from locks.virtual import VirtualRuntime, on_virtual_time

from holdfast import api
from holdfast.ports import Snapshot
from holdfast.registry import Registry


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
