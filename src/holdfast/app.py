"""A plane as one process: opened, started, served, and stopped in order."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterator

import uvicorn

from holdfast import tracing
from holdfast.buses import open_bus
from holdfast.buses.outbox import OutboxBus
from holdfast.config import Settings
from holdfast.core.promises import Severity, judge
from holdfast.errors import HoldfastError, Invalid
from holdfast.flow.renewals import RenewalLog
from holdfast.gateway.app import build
from holdfast.gateway.keys import Keys
from holdfast.gateway.plane import Plane
from holdfast.gateway.routes import HEALTH_ROUTES
from holdfast.gateway.wire import Protocol
from holdfast.locks import Locks, LoggingObserver, Observers
from holdfast.locks.prometheus import PrometheusObserver
from holdfast.locks.runtime import SYSTEM, Runtime
from holdfast.observed import observed
from holdfast.ports import Bus
from holdfast.posting import posting
from holdfast.roles import ALL, Role
from holdfast.stores import file_of, inspect_store, is_shared, lock_prefix, open_store
from holdfast.telemetry import Telemetry
from holdfast.wiring import CLASSES, Wiring

logger = logging.getLogger("holdfast")


@contextlib.asynccontextmanager
async def running(
    settings: Settings, *, roles: Collection[Role] = ALL, runtime: Runtime = SYSTEM, bus: Bus | None = None
) -> AsyncIterator[Plane]:
    """The plane without its socket: store open, the loops of its roles ticking; all of it stopped on leaving.

    Raises `Invalid` for roles apart on a store that only one process works on.
    """
    if set(roles) != ALL and not is_shared(settings.store):
        raise Invalid(
            "roles apart need a store that processes share, and this one is one process's. Run `holdfast up`, or name "
            "one such as postgresql://… with --store"
        )
    store = open_store(settings.store, topics=settings.topics, runtime=runtime)
    async with contextlib.AsyncExitStack() as stack:
        await store.open()
        stack.push_async_callback(store.close)
        telemetry = Telemetry(settings.topics)
        renewals = RenewalLog(runtime)
        observer = Observers(
            [LoggingObserver(), PrometheusObserver(telemetry.registry, classes=CLASSES, runtime=runtime), renewals]
        )
        locks = await stack.enter_async_context(
            Locks(
                settings.store,
                classes=CLASSES,
                prefix=lock_prefix(settings.store),
                observer=observer,
                runtime=runtime,
            )
        )
        outside = await stack.enter_async_context(posting(allow_private=settings.webhooks.allow_private))
        if bus is None:
            bus = await stack.enter_async_context(open_bus(settings.bus, store=store, runtime=runtime))
        wiring = Wiring(
            settings,
            roles=roles,
            store=observed(store, telemetry),
            bus=OutboxBus(store, bus) if settings.dispatch == "outbox" else bus,
            locks=locks,
            outside=outside,
            telemetry=telemetry,
            renewals=renewals,
            runtime=runtime,
        )
        await wiring.warm_up()
        stack.push_async_callback(wiring.close)
        for service in wiring.services:
            service.start()
            stack.push_async_callback(service.stop)
        yield wiring.plane


@contextlib.asynccontextmanager
async def serving(
    settings: Settings, *, roles: Collection[Role] = ALL, runtime: Runtime = SYSTEM, bus: Bus | None = None
) -> AsyncIterator[str]:
    """The plane on its socket. Yields its URL; port 0 takes a free one. Who is no gateway says how it is, no more."""
    async with running(settings, roles=roles, runtime=runtime, bus=bus) as plane:
        listener = socket.create_server((settings.host, settings.port), family=_family(settings.host), backlog=1024)
        routes = None if Role.GATEWAY in roles else HEALTH_ROUTES
        gateway = build(plane, keys=Keys(settings.api_key, settings.people), routes=routes)
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
            gateway.leave()
            try:
                # Whoever sends traffic here finds out by asking, now and then; until then it is served as before.
                await asyncio.sleep(settings.notice_s)
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


async def up(
    settings: Settings, *, announce: Callable[[str], None], roles: Collection[Role] = ALL, bus: Bus | None = None
) -> None:
    """Run until SIGTERM or SIGINT; `announce` is told the URL once it answers."""
    tracing.collect_if_configured()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(settings, roles=roles, bus=bus) as url:
        _collect_less()
        announce(url)
        await _warn_of_broken_promises(settings.store)
        with _seen_by_others(settings.store):
            await stop.wait()


async def _warn_of_broken_promises(store: str) -> None:
    """Who starts a plane need not have asked `holdfast doctor`, and should not hear it from a loss of power."""
    try:
        found = await inspect_store(store, runtime=SYSTEM)
    except HoldfastError:
        return  # it was there a moment ago; whoever needs it says so
    for ailment in judge("store", found):
        if ailment.severity is Severity.BROKEN:
            event = {"event": "store.not_safe", "code": ailment.code}
            logger.warning("store.not_safe code=%s %s. %s", ailment.code, ailment.summary, ailment.fix, extra=event)


@contextlib.contextmanager
def _seen_by_others(store: str) -> Iterator[None]:
    """Planes on one file lose nothing, but hear of each other's jobs only when they look. Who has started a second one by
    mistake is told so, by a mark beside the file that goes with its process, also by a kill."""
    file = None if is_shared(store) else file_of(store)
    if file is None or file.name.startswith(":memory:"):
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            mark = os.open(f"{file}-plane", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, mark)
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.warning(
                "store.not_alone another plane works on %s. Stop one of them: of a job that one is given, workers and "
                "clients of the other hear up to half a minute later",
                file,
                extra={"event": "store.not_alone"},
            )
        except OSError:
            pass  # no room for it, not ours to write, or no such locks there: that costs a warning, not a plane
        yield


def _collect_less() -> None:
    """What is here now stays, and nearly all that a job makes goes without the collector: looking for cycles
    after every 700 objects, as Python does by itself, is a twentieth of what a job costs."""
    gc.freeze()
    gc.set_threshold(10_000)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
