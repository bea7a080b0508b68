"""The power goes at any moment: nothing acknowledged is lost, no event number is missing, no fence goes back."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from plane.jobs import a_job

from crash.power_cut import Recorder
from holdfast.core.job import Job, JobId, step
from holdfast.core.states import Event, State
from holdfast.core.topic import Topics
from holdfast.errors import StoreUnavailable
from holdfast.locks import LockClass, Locks
from holdfast.locks.port import Grant
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import open_store as open_lock_store
from holdfast.ports import Accepted, Change, Delivery, Submission
from holdfast.stores import StoreWithBus, open_store

CUTS = 500
CLIENTS = 4
JOBS_PER_CLIENT = 25
LOCK = LockClass("power", ttl=60)


@dataclass
class Acknowledged:
    """What was promised, and after how many steps of the disk."""

    jobs: list[tuple[int, Job]] = field(default_factory=list)
    fences: list[tuple[int, int]] = field(default_factory=list)


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    folder = tmp_path / "disk"
    folder.mkdir()
    made = Recorder(folder)
    yield made
    made.close()


@pytest.fixture
def cuts(tmp_path: Path) -> Iterator[Path]:
    """Where the disks are that a cut has left: in memory where that can be had, for they need not survive another."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        yield Path(folder)


def opened(folder: Path) -> StoreWithBus:
    return open_store(f"sqlite:///{folder / 'plane.db'}", topics=Topics(), runtime=SYSTEM)


async def work(store: StoreWithBus, locks: Locks, recorder: Recorder, said: Acknowledged) -> None:
    """One client: jobs through their lives, each under the fence of a lock; payloads small and large."""
    for n in range(JOBS_PER_CLIENT):
        job = a_job(id=JobId(SYSTEM.token()), payload=b"p" * (50 if n % 3 else 9000))
        [answer] = await store.submit([Submission(job=job, key=job.id, digest="d")])
        assert isinstance(answer, Accepted)
        said.jobs.append((len(recorder.steps), job))
        async with locks.hold(LOCK, job.id) as lease:
            said.fences.append((len(recorder.steps), lease.fence))
            for event in (Event.DISPATCH, Event.START, Event.SUCCEED)[: n % 4]:
                sent = event is Event.DISPATCH
                after = step(job, event, now=store.now(), fence=lease.fence, worker="w")
                send = Delivery("w", job.id, lease.fence) if sent else None
                assert await store.apply([Change(before=job, after=after, kind=f"job.{event}", send=send)]) == [True]
                job = after
                said.jobs.append((len(recorder.steps), job))


async def check(folder: Path, moment: int, said: Acknowledged) -> None:
    store = opened(folder)
    await store.open()
    versions: dict[JobId, int] = {}
    for at, job in said.jobs:
        if at <= moment:
            versions[job.id] = job.version
    jobs = await store.find_jobs(list(versions))
    for found, version in zip(jobs, versions.values(), strict=True):
        assert found is not None
        assert found.version >= version
    events = await store.list_events(after=0, limit=100_000)
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    told = Counter(event.job_id for event in events)
    waiting = {delivery.job_id for delivery in await store.list_deliveries("w", limit=1000)}
    for found in await store.find_jobs(sorted(told)):
        assert found is not None
        assert (found.id in waiting) is (found.state is State.DISPATCHED)
        assert found.version == told[found.id]
    locks = open_lock_store(f"sqlite:///{folder / 'plane.db'}", holder="after", prefix="", runtime=SYSTEM)
    await locks.open()
    grant = await locks.acquire("a-new-one", "t" * 32, ttl_ms=1000)
    assert isinstance(grant, Grant)
    assert grant.fence > max((fence for at, fence in said.fences if at <= moment), default=0)
    await locks.close()
    await store.close()


@pytest.mark.timeout(300)
async def test_schedule_60_nothing_acknowledged_is_lost_by_a_power_cut(recorder: Recorder, cuts: Path) -> None:
    said = Acknowledged()
    store = opened(recorder.folder)
    await store.open()
    connection = store._file._part.writer._connection  # type: ignore[attr-defined]
    connection.execute("PRAGMA wal_autocheckpoint = 60")  # often enough to be cut in its middle
    async with Locks(f"sqlite:///{recorder.folder / 'plane.db'}", classes=[LOCK]) as locks:
        await asyncio.gather(*(work(store, locks, recorder, said) for _ in range(CLIENTS)))
    await store.close()
    recorder.close()
    steps = len(recorder.steps)
    checkpoints = sum(step.what == "sync" and step.name == "plane.db" for step in recorder.steps)
    assert checkpoints > 10

    chance = random.Random(20260417)
    for n in range(CUTS):
        moment = chance.randrange(steps + 1)
        disk = cuts / str(n)
        recorder.cut(moment, disk, chance)
        await check(disk, moment, said)
        shutil.rmtree(disk)


async def test_check_would_notice_a_disk_that_forgets(recorder: Recorder, tmp_path: Path) -> None:
    """The same check on a disk that ignored half of the syncs finds acknowledged jobs missing."""
    said = Acknowledged()
    store = opened(recorder.folder)
    await store.open()
    async with Locks(f"sqlite:///{recorder.folder / 'plane.db'}", classes=[LOCK]) as locks:
        await work(store, locks, recorder, said)
    steps = list(recorder.steps)
    await store.close()
    recorder.close()
    recorder.steps = [s for n, s in enumerate(steps) if s.what != "sync" or n < len(steps) // 2]
    recorder.cut(len(recorder.steps), tmp_path / "cut", random.Random(1))

    with pytest.raises((AssertionError, StoreUnavailable)):
        await check(tmp_path / "cut", len(steps), said)


@pytest.mark.parametrize("room", [5_000, 40_000, 150_000, 400_000])
async def test_nothing_acknowledged_is_lost_by_a_full_disk(recorder: Recorder, room: int, tmp_path: Path) -> None:
    """The disk fills up in mid-write; later there is room again, and everything goes on in the same file."""
    store = opened(recorder.folder)
    await store.open()
    recorder.room = room
    acknowledged: list[Job] = []
    refused: list[Job] = []
    for _ in range(200):
        job = a_job(id=JobId(SYSTEM.token()), payload=b"p" * 3000)
        try:
            await store.submit([Submission(job=job, key=None, digest="")])
            acknowledged.append(job)
        except StoreUnavailable:
            refused.append(job)
    assert refused

    recorder.room = None
    assert await store.find_jobs([job.id for job in acknowledged]) == acknowledged
    for job in refused:
        await store.submit([Submission(job=job, key=None, digest="")])
    await store.close()
    recorder.close()
    again = opened(recorder.folder)
    await again.open()
    jobs = acknowledged + refused
    assert await again.find_jobs([job.id for job in jobs]) == jobs
    events = await again.list_events(after=0, limit=1000)
    assert [event.number for event in events] == list(range(1, 201))
    await again.close()
