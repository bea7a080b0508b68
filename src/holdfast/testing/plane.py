"""A plane in this process, on a store in memory, and workers beside it: with the faults that production has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

from holdfast.app import serving
from holdfast.buses.detached import DetachedBus, Fault
from holdfast.client import Client
from holdfast.config import Settings
from holdfast.core.retry import Backoff
from holdfast.core.topic import Topic, Topics
from holdfast.locks.runtime import SYSTEM
from holdfast.ops.proxy import Proxy
from holdfast.testing.background import Background
from holdfast.testing.clock import Clock
from holdfast.worker import Isolation, Worker
from holdfast.worker.supervisor import Supervisor
from holdfast.worker.worker import working

PATIENCE_S = 30.0
LOOK_S = 0.01
EVENTS_AT_ONCE = 1000
SOON = Backoff(first_s=0.01, cap_s=0.05)
TOPICS = Topics((Topic(name="*", backoff=SOON),))


class NotInTime(AssertionError):
    """What a test waited for did not happen."""


class LocalPlane:
    """`client` asks it; `clock` moves its time on. Its bus is apart from its store, so that publishes can fail."""

    def __init__(self, *, topics: Topics = TOPICS, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self._refuses = False
        self._workers: list[LocalWorker] = []
        bus = DetachedBus(self.clock.now, fail=lambda _: Fault.NOT_APPLIED if self._refuses else None)
        settings = Settings(store="sqlite:///:memory:", port=0, topics=topics, drain_s=1)
        self._serving = Background(lambda: serving(settings, runtime=self.clock, bus=bus), "holdfast-test-plane")
        self.url = self._serving.value
        self.client = Client(self.url)

    def work(self, worker: Worker, *, name: str | None = None) -> LocalWorker:
        """Have `worker` take jobs, in this process; ended with the plane, if not before."""
        local = LocalWorker(self, worker, name=name or f"{worker.options.name}-{len(self._workers) + 1}")
        self._workers.append(local)
        return local

    @contextmanager
    def publish_fails(self) -> Iterator[None]:
        """Inside of the block nobody can be told of a job: each dispatch is rolled back, and tried again later."""
        self._refuses = True
        try:
            yield
        finally:
            self._refuses = False

    def wait_event(self, job_id: str, kind: str) -> None:
        """Until the job's history has an event of this kind. Raises `NotInTime`."""
        deadline = SYSTEM.now() + PATIENCE_S
        while kind not in self.kinds(job_id):
            if SYSTEM.now() > deadline:
                raise NotInTime(f"no {kind} of {job_id} within {PATIENCE_S:.0f} s; there were {self.kinds(job_id)}")
            SYSTEM.sleep(LOOK_S)

    def kinds(self, job_id: str) -> list[str]:
        """What has happened to the job, in order."""
        kinds: list[str] = []
        cursor: str | None = None
        while True:
            page = self.client.events(job_id, cursor=cursor, limit=EVENTS_AT_ONCE)
            kinds += [event.kind for event in page.items]
            cursor = page.next_cursor
            if cursor is None:
                return kinds

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()
        self.client.close()
        self._serving.stop()


class LocalWorker:
    """A worker whose handlers run in threads of this process, whatever isolation they declare, so that tests see
    what they do. It speaks to the plane over a connection that can be cut off."""

    def __init__(self, plane: LocalPlane, worker: Worker, *, name: str) -> None:
        self._plane = plane
        self._options = replace(worker.options, name=name, drain_s=1.0)
        self._worker = worker
        self._running = Background(self._work, f"holdfast-test-{name}")
        # It has not been heard of for so long: cut off, it speaks at once.
        plane.clock.on_advance(self._speak_anew)

    def _speak_anew(self) -> None:
        self._running.call(self._running.value.cut)

    @asynccontextmanager
    async def _work(self) -> AsyncIterator[Proxy]:
        async with Proxy(urlsplit(self._plane.url).port or 0) as proxy:
            options = replace(self._options, url=proxy.url(self._plane.url))
            in_threads = dict.fromkeys(self._worker.isolations(), Isolation.THREAD.value)
            supervisor = Supervisor(options, in_threads, worker=self._worker, target="", runtime=self._plane.clock)
            async with working(supervisor):
                yield proxy

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside of the block nothing that it says arrives, its renewals neither. Its handlers go on."""
        proxy = self._running.value
        proxy.deaf = True
        try:
            yield
        finally:
            proxy.deaf = False
            self._speak_anew()  # what was swallowed will not be answered

    def lose_lease(self, job_id: str) -> None:
        """The worker is cut off until its lease on the job is over and the plane has taken the job back; then it is
        heard again. `job.check()` in its handler raises `LeaseLost` from then on."""
        lost = self._plane.kinds(job_id).count("job.lost")
        with self.paused():
            job = self._plane.client.get(job_id)
            self._plane.clock.advance(max(0.0, (job.lease_until or 0.0) - self._plane.clock.wall_us() / 1e6) + 0.1)
            deadline = SYSTEM.now() + PATIENCE_S
            while self._plane.kinds(job_id).count("job.lost") == lost:
                if SYSTEM.now() > deadline:
                    raise NotInTime(
                        f"the lease of {job_id} was not lost: its state is {self._plane.client.get(job_id).state}"
                    )
                SYSTEM.sleep(LOOK_S)

    def stop(self) -> None:
        self._running.stop()
