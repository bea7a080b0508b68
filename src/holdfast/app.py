"""The one place that wires: a store, a bus, the loops and the gateway, as one process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import uvicorn

from holdfast.buses.embedded import EmbeddedBus
from holdfast.config import Settings
from holdfast.flow.decide import AllowAll
from holdfast.flow.dispatch import JOB
from holdfast.flow.submit import Submitter
from holdfast.gateway.app import build
from holdfast.gateway.plane import Plane
from holdfast.locks import Locks
from holdfast.locks.runtime import SYSTEM, Runtime
from holdfast.ports import Bus
from holdfast.pruner import WINDOW as PRUNER_WINDOW
from holdfast.pruner import Pruner
from holdfast.reconciler import WINDOW as RECONCILER_WINDOW
from holdfast.reconciler import Reconciler
from holdfast.registry import Registry
from holdfast.replayer import WINDOW as REPLAYER_WINDOW
from holdfast.replayer import Replayer
from holdfast.scheduler import Scheduler
from holdfast.snapshot import WRITER, SnapshotWriter
from holdfast.stores import open_store
from holdfast.telemetry import Telemetry

CLASSES = (JOB, RECONCILER_WINDOW, REPLAYER_WINDOW, PRUNER_WINDOW, WRITER)
"""Every lock the plane takes. A key that none of them declares is an error."""


@contextlib.asynccontextmanager
async def running(settings: Settings, *, runtime: Runtime = SYSTEM, bus: Bus | None = None) -> AsyncIterator[Plane]:
    """The plane without its socket: store open, loops ticking; all of it stopped on leaving."""
    store = open_store(settings.store, topics=settings.topics, runtime=runtime)
    telemetry, registry, policy = Telemetry(settings.topics), Registry(), AllowAll()
    async with contextlib.AsyncExitStack() as stack:
        await store.open()
        stack.push_async_callback(store.close)
        locks = await stack.enter_async_context(Locks(settings.store, classes=CLASSES, runtime=runtime))
        chosen: Bus = bus or EmbeddedBus(store)
        scheduler = Scheduler(
            store=store, bus=chosen, locks=locks, registry=registry, telemetry=telemetry, runtime=runtime
        )
        reconciler = Reconciler(
            store=store,
            locks=locks,
            registry=registry,
            topics=settings.topics,
            policy=policy,
            telemetry=telemetry,
            runtime=runtime,
        )
        replayer = Replayer(
            store=store,
            locks=locks,
            topics=settings.topics,
            policy=policy,
            telemetry=telemetry,
            runtime=runtime,
            wake_scheduler=scheduler.wake,
        )
        writer = SnapshotWriter(store=store, locks=locks, registry=registry, runtime=runtime)
        pruner = Pruner(store=store, locks=locks, retention=settings.retention, telemetry=telemetry, runtime=runtime)
        await writer.warm_up()
        for service in (scheduler, reconciler, replayer, writer, pruner):
            service.start()
            stack.push_async_callback(service.stop)
        yield Plane(
            store=store,
            bus=chosen,
            locks=locks,
            submitter=Submitter(store, settings.topics, policy, runtime, live_jobs_max=settings.live_jobs_max),
            topics=settings.topics,
            policy=policy,
            telemetry=telemetry,
            runtime=runtime,
            registry=registry,
            wake=scheduler.wake,
        )


@contextlib.asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[str]:
    """The plane on its socket. Yields its URL; port 0 takes a free one."""
    async with running(settings) as plane:
        listener = socket.create_server((settings.host, settings.port), family=_family(settings.host), backlog=1024)
        gateway = build(plane, api_key=settings.api_key or None)
        config = uvicorn.Config(
            gateway,
            loop="none",
            http="httptools",
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            timeout_graceful_shutdown=int(settings.drain_s),
        )
        server = _Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started and not task.done():  # noqa: ASYNC110  (uvicorn offers nothing to wait for)
                await asyncio.sleep(0.005)
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            gateway.drain()
            server.should_exit = True
            await asyncio.gather(task, return_exceptions=True)
            listener.close()


class _Server(uvicorn.Server):
    """Signals are the process's business, not the server's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def up(settings: Settings, *, announce: Callable[[str], None]) -> None:
    """Run until SIGTERM or SIGINT; `announce` is told the URL once it answers."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(settings) as url:
        announce(url)
        await stop.wait()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
