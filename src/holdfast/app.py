"""A plane as one process: opened, started, served, and stopped in order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import uvicorn

from holdfast.buses import open_bus
from holdfast.config import Settings
from holdfast.gateway.app import build
from holdfast.gateway.plane import Plane
from holdfast.gateway.wire import Protocol
from holdfast.locks import Locks
from holdfast.locks.runtime import SYSTEM, Runtime
from holdfast.ports import Bus
from holdfast.posting import posting
from holdfast.stores import open_store
from holdfast.wiring import CLASSES, Wiring


@contextlib.asynccontextmanager
async def running(settings: Settings, *, runtime: Runtime = SYSTEM, bus: Bus | None = None) -> AsyncIterator[Plane]:
    """The plane without its socket: store open, loops ticking; all of it stopped on leaving."""
    store = open_store(settings.store, topics=settings.topics, runtime=runtime)
    async with contextlib.AsyncExitStack() as stack:
        await store.open()
        stack.push_async_callback(store.close)
        locks = await stack.enter_async_context(Locks(settings.store, classes=CLASSES, runtime=runtime))
        outside = await stack.enter_async_context(posting(allow_private=settings.webhooks.allow_private))
        if bus is None:
            bus = await stack.enter_async_context(open_bus(settings.bus, store=store, runtime=runtime))
        wiring = Wiring(settings, store=store, bus=bus, locks=locks, outside=outside, runtime=runtime)
        await wiring.warm_up()
        for service in wiring.services:
            service.start()
            stack.push_async_callback(service.stop)
        yield wiring.plane


@contextlib.asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[str]:
    """The plane on its socket. Yields its URL; port 0 takes a free one."""
    async with running(settings) as plane:
        listener = socket.create_server((settings.host, settings.port), family=_family(settings.host), backlog=1024)
        gateway = build(plane, api_key=settings.api_key or None)
        config = uvicorn.Config(
            gateway,
            loop="none",
            http=Protocol,
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
