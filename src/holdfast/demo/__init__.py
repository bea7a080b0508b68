"""`holdfast up --demo`: a plane with two workers and a stream of jobs, to look at and to disturb."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from os import getpid
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast.app import serving
from holdfast.client import AsyncClient
from holdfast.config import LOOPBACK, Settings
from holdfast.core.retention import Retention
from holdfast.core.retry import Backoff
from holdfast.core.states import Risk
from holdfast.core.topic import Topic, Topics
from holdfast.demo.stream import submit_for_ever
from holdfast.errors import Invalid

AGENTS = ("anna", "ben")
TOPICS = (
    # Short leases, so that a worker that is stopped loses its jobs while one looks on.
    Topic(name="*", lease_s=6.0, backoff=Backoff(first_s=1.0, cap_s=5.0)),
    Topic(name="refund.*", lease_s=6.0, risk=Risk.HIGH),
)
KEPT = Retention(finished_jobs_s=3600.0, dead_letters_s=3600.0)
STOP_S = 10.0
RESTART_S = 1.0


async def up(settings: Settings, *, announce: Callable[[str, dict[str, int]], None]) -> None:
    """Run until SIGTERM or SIGINT, then end the workers and the plane, in this order.

    `announce` is told the URL and the workers' process ids. Raises `Invalid` for a host beyond
    loopback: everybody who reaches the demo may do everything.
    """
    if settings.host not in LOOPBACK:
        raise Invalid(f"the demo listens on loopback only, not on {settings.host}")
    topics = Topics((*settings.topics.declared, *TOPICS))
    chosen = replace(settings, topics=topics, retention=KEPT, api_key="")
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(chosen) as url, _agents(url) as pids, AsyncClient(url) as client:
        stream = asyncio.create_task(submit_for_ever(client))
        announce(url, pids)
        await stop.wait()
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)


@contextmanager
def own_store() -> Iterator[str]:
    """The URL of a store that goes with the demo: nothing it does may end up among real jobs."""
    with TemporaryDirectory(prefix="holdfast-demo-", ignore_cleanup_errors=True) as folder:
        yield f"sqlite:///{Path(folder) / 'demo.db'}"


@asynccontextmanager
async def _agents(url: str) -> AsyncIterator[dict[str, int]]:
    """Workers as processes of their own, which may be stopped and killed: one that has died is started
    again under its name. On leaving, none of them is left."""
    processes = {name: _start(url, name) for name in AGENTS}

    async def keep() -> None:
        while True:
            await asyncio.sleep(RESTART_S)
            for name, process in processes.items():
                if process.poll() is not None:
                    processes[name] = _start(url, name)

    keeping = asyncio.create_task(keep())
    try:
        yield {name: process.pid for name, process in processes.items()}
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        for process in processes.values():
            process.send_signal(signal.SIGCONT)  # one that was stopped would not hear the next line
            process.terminate()
        await asyncio.gather(*(asyncio.to_thread(_reap, process) for process in processes.values()))


def _start(url: str, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  (our own interpreter, our own module)
        [sys.executable, "-m", "holdfast.demo.agent", url, name, str(getpid())],
        stdin=subprocess.DEVNULL,
        # Ctrl-C reaches the plane alone, which ends its workers while it still answers them.
        start_new_session=True,
    )


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
