"""The stage of one drill: planes, workers and holders as real processes, and everything that is seen of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar, Unpack

from holdfast.api import EventView, JobView, NewJob
from holdfast.client import AsyncClient
from holdfast.core.states import TERMINAL
from holdfast.errors import HoldfastError
from holdfast.locks.runtime import SYSTEM
from holdfast.ops.drills.book import Journal
from holdfast.ops.drills.bus_switch import Switch
from holdfast.ops.drills.findings import Band, Bounds, Figure, Finding, Report, Sign, Trouble
from holdfast.ops.drills.processes import Process
from holdfast.ops.drills.site import Faulty, Server, Site, open_bus_site, open_store_site

T = TypeVar("T")

LEASE_S = 1.5
DISPATCH_TIMEOUT_S = 2.0
SETTINGS = f"""
[topics."*"]
lease_s = {LEASE_S}
dispatch_timeout_s = {DISPATCH_TIMEOUT_S}
pending_timeout_s = 1
max_attempts = 100
backoff = {{ first_s = 0.05, cap_s = 0.2 }}

[topics."drill.pay"]
lease_s = {LEASE_S}
dispatch_timeout_s = {DISPATCH_TIMEOUT_S}
max_attempts = 100
risk = "high"
backoff = {{ first_s = 0.05, cap_s = 0.2 }}
"""
PATIENCE_S = 45.0
"""What has not happened by then does not happen: far longer than anything takes on a slow machine."""
BROKEN_S = 5.0
"""Once a promise is known to be broken, nobody waits for long for what it says."""
LOOK_S = 0.02
TAKEOVER_S_MAX = 20.0
"""Beyond the lease: reconciler window, polls, and a machine that is busy with other things."""


class Unready(Exception):
    """A drill could not be carried out: nothing was found out."""


class Unmet(Exception):
    """What a promise says did not come, however long one waited."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(what)
        self.promise = promise


class Stage:
    """What a drill acts on and measures with. Everything that it started ends with it."""

    def __init__(self, folder: Path, site: Site, store: Faulty, report: Report, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.site = site
        self.store = store
        self.journal = Journal(folder)
        self.report = report
        self.switch = Switch(folder)
        self.bus: Server | None = None
        self.url = site.plane
        self._say = say
        self._began, self._began_wall = SYSTEM.now(), wall_s()
        self._stack = AsyncExitStack()
        self._processes: list[Process] = []
        self._clients: dict[str, AsyncClient] = {}
        self._tenant = f"drill-{SYSTEM.token()[:8]}"
        self._numbers = 0

    # -- telling and measuring -----------------------------------------------------------------------

    def now(self) -> float:
        """Seconds since the drill began."""
        return SYSTEM.now() - self._began

    def moment(self, at: float) -> float:
        """The same of a time by the wall clock or the store's."""
        return at - self._began_wall

    def tell(self, words: str) -> None:
        self.report.steps.append(f"{self.now():6.2f} s  {words}")
        self._say(words)

    def fault(self, lane: str, words: str) -> None:
        self.tell(words)
        self.report.timeline.mark(lane, Sign.FAULT, words, at=self.now())

    def begin(self, lane: str, kind: Trouble, label: str) -> Band:
        return self.report.timeline.begin(lane, kind, label, at=self.now())

    def finish(self, band: Band) -> None:
        band.end = self.now()

    def found(self, promise: str, claim: str, measured: float, **bounds: Unpack[Bounds]) -> None:
        self.report.findings.append(Finding(promise=promise, claim=claim, measured=float(measured), **bounds))

    def figure(self, name: Figure, value: float) -> None:
        self.report.figures[name] = round(value, 3)

    # -- waiting -------------------------------------------------------------------------------------

    async def until(
        self, what: str, happened: Callable[[], Awaitable[T | None]], *, promise: str = "", within_s: float = PATIENCE_S
    ) -> T:
        """What `happened` returns once it is true. Raises `Unmet` if a promise says that it comes, else `Unready`."""
        if any(not finding.kept for finding in self.report.findings):
            within_s = min(within_s, BROKEN_S)
        deadline = SYSTEM.now() + within_s
        while True:
            with suppress(HoldfastError):  # a plane that is away says nothing yet
                if found := await happened():
                    return found
            if SYSTEM.now() > deadline:
                words = f"not within {within_s:.0f} s: {what}"
                raise Unmet(promise, words) if promise else Unready(f"{words}\n{self._last_words()}")
            await asyncio.sleep(LOOK_S)

    def _last_words(self) -> str:
        return "\n".join(f"{process.name}: {process.said()[-600:]}" for process in self._processes)

    # -- processes -----------------------------------------------------------------------------------

    def spawn(self, name: str, module: str, *arguments: str) -> Process:
        self.report.timeline.lane(name)
        self._numbers += 1
        process = Process(name, module, list(arguments), self.folder / f"{self._numbers}.log")
        self._processes.append(process)
        return process

    async def start_plane(self, name: str = "plane", *, apart: bool = False, port: int = 0) -> Plane:
        """A plane on the drill's store; `apart`: with a bus beside it, which can be made to fail."""
        (self.folder / "plane.toml").write_text(SETTINGS)
        given = ["--config", str(self.folder / "plane.toml"), "--store", self.store.url, "--port", str(port)]
        if apart and not self.site.bus:
            process = self.spawn(name, "holdfast.ops.drills.plane", *given, "--folder", str(self.folder))
        else:
            if self.site.bus:
                given += ["--bus", (await self._bus_site()).url]
            process = self.spawn(name, "holdfast", "up", *given)
        plane = Plane(process, await self.until(f"{name} is up", lambda: _url_of(process)))
        self.url = self.url or plane.url
        return plane

    async def _bus_site(self) -> Server:
        if self.bus is None:
            self.bus = await self._stack.enter_async_context(open_bus_site(self.site.bus))
        return self.bus

    async def start_worker(self, name: str, *, url: str = "", topics: str = "worker") -> Process:
        """A worker of the drill, known to the plane."""
        target = f"holdfast.ops.drills.tasks:{topics}"
        process = self.spawn(name, "holdfast", "worker", "run", target, "--url", url or self.url, "--name", name)
        await self.until(f"worker {name} is there", lambda: self._knows(process))
        return process

    async def _knows(self, process: Process) -> bool:
        if not process.runs:
            raise Unready(f"{process.name} ended: {process.said()[-1000:]}")
        workers = await self.client.workers()
        return any(worker.name == process.name and f".{process.pid}." in worker.id for worker in workers.items)

    async def paused(self, process: Process, words: str) -> Band:
        """Stop it; and if that was inside its own commit to a file, let it go and stop it again."""
        process.pause()
        while not await self.store.is_writable():
            process.resume()
            await asyncio.sleep(LOOK_S)
            process.pause()
        self.fault(process.name, words)
        return self.begin(process.name, Trouble.PAUSED, "paused (SIGSTOP)")

    def resumed(self, process: Process, band: Band, words: str) -> None:
        process.resume()
        self.finish(band)
        self.tell(words)
        self.report.timeline.mark(process.name, Sign.NOTE, words, at=self.now())

    # -- the plane -----------------------------------------------------------------------------------

    @property
    def client(self) -> AsyncClient:
        return self.client_of(self.url)

    def client_of(self, url: str, *, actor: str = "") -> AsyncClient:
        key = f"{url} {actor}"
        if key not in self._clients:
            client = AsyncClient(url, api_key=self.site.api_key, tenant=self._tenant, actor=actor)
            self._clients[key] = client
            self._stack.push_async_callback(client.close)
        return self._clients[key]

    def payload(self, **more: float) -> dict[str, object]:
        return {"folder": str(self.folder), **more}

    async def submit(self, topic: str, **more: float) -> JobView:
        return await self.client.submit(topic, self.payload(**more))

    async def submit_many(self, topic: str, count: int, *, delay_s: float = 0.0) -> list[str]:
        new = [
            NewJob(topic=topic, payload=self.payload(), idempotency_key=f"{topic}-{n}", delay_s=delay_s)
            for n in range(count)
        ]
        return [answer.job.id for answer in await self.client.submit_many(new) if answer.job is not None]

    async def history(self, job_id: str) -> list[EventView]:
        return list((await self.client.events(job_id, limit=1000)).items)

    async def wait_event(self, job_id: str, kind: str, *, promise: str = "", within_s: float = PATIENCE_S) -> EventView:
        """The first event of this kind, once it is there."""
        return await self.until(
            f"{kind} of {job_id}", lambda: self.event(job_id, kind), promise=promise, within_s=within_s
        )

    async def event(self, job_id: str, kind: str, *, nth: int = 1) -> EventView | None:
        found = [event for event in await self.history(job_id) if event.kind == kind]
        return found[nth - 1] if len(found) >= nth else None

    async def wait_ended(self, ids: Sequence[str], *, promise: str = "P4", within_s: float = PATIENCE_S) -> None:
        """Until every one has ended. Raises `Unmet`, which names those that have not."""
        waiting = list(ids)

        async def ended() -> bool:
            while waiting and (await self.client.get(waiting[0])).state in TERMINAL:
                waiting.pop(0)
            return not waiting

        try:
            await self.until(f"{len(ids)} jobs have ended", ended, promise=promise, within_s=within_s)
        except Unmet as unmet:
            left = [f"{job.id} is {job.state} on {job.worker or 'nobody'}" for job in await self.unended(waiting)]
            raise Unmet(promise, f"{unmet}: {'; '.join(left[:5]) or 'and then they had'}") from unmet

    async def unended(self, ids: Sequence[str]) -> list[JobView]:
        """Those that have not ended."""
        jobs = [await self.client.get(job_id) for job_id in ids]
        return [job for job in jobs if job.state not in TERMINAL]

    async def close(self) -> None:
        """Everything that was started ends; what a staging plane was given is taken back."""
        if self.site.plane:
            await self._take_back()
        for process in reversed(self._processes):
            process.kill()
        await self._stack.aclose()

    async def _take_back(self) -> None:
        with suppress(HoldfastError):
            for job in (await self.client.list(limit=1000)).items:
                if job.state not in TERMINAL:
                    await self.client.cancel(job.id, reason="the drill is over")


class Plane:
    def __init__(self, process: Process, url: str) -> None:
        self.process = process
        self.url = url

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


async def _url_of(process: Process) -> str:
    if not process.runs:
        raise Unready(f"{process.name} ended: {process.said()[-1000:]}")
    found = re.search(r"up at (http://\S+)", process.said())
    return found[1] if found else ""


def wall_s() -> float:
    return SYSTEM.wall_us() / 1e6


@asynccontextmanager
async def open_stage(site: Site, report: Report, say: Callable[[str], None]) -> AsyncIterator[Stage]:
    """A stage in a folder of its own. Whatever happens, nothing is left behind."""
    with TemporaryDirectory(prefix="holdfast-drill-", ignore_cleanup_errors=True) as folder:
        path = Path(folder)
        async with open_store_site("" if site.plane else site.store, path) as store:
            stage = Stage(path, site, store, report, say)
            try:
                yield stage
            finally:
                await store.heal()
                await stage.close()
