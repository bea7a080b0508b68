"""Temporal's dev server on a SQLite file: a workflow of ten activities that do nothing, one run after the other and 16 at once.

Worker and client are in this process, in one loop, as its documentation shows. Ordinary activities go through the
server's queue, each with its events in the history; local ones run inside of the workflow's task, and are
recorded when it ends. `python -m bench.peers.temporal_chain activities|unthrottled|local RUNS` prints the figures as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from statistics import median

from temporalio import activity, workflow  # type: ignore[import-not-found]
from temporalio.client import Client  # type: ignore[import-not-found]
from temporalio.service import RPCError  # type: ignore[import-not-found]
from temporalio.worker import Worker  # type: ignore[import-not-found]

STEPS = 10
CALLERS = 16
WARM_UP_RUNS = 10
QUEUE = "bench"
LIMIT = timedelta(seconds=30)
READY_S_MAX = 30.0
STARTS_MAX = 3
END_S = 10.0
LOOK_S = 0.05
#: By default it looks 20 times a second for what its histories have to pass on, so that no step takes less than 50 ms.
UNTHROTTLED = ("--dynamic-config-value", "history.transferProcessorMaxPollRPS=1000")


@activity.defn  # type: ignore[untyped-decorator]
async def noop() -> None:
    pass


@workflow.defn
class Chain:
    @workflow.run  # type: ignore[untyped-decorator]
    async def run(self, local: bool) -> None:
        for _ in range(STEPS):
            if local:
                await workflow.execute_local_activity(noop, start_to_close_timeout=LIMIT)
            else:
                await workflow.execute_activity(noop, start_to_close_timeout=LIMIT)


async def measure(address: str, runs: int, *, local: bool) -> dict[str, float]:
    client = await connected(address)

    async def chain() -> None:
        await client.execute_workflow(Chain.run, local, id=uuid.uuid4().hex, task_queue=QUEUE)

    async def call(left: Iterator[int]) -> None:
        for _ in left:
            await chain()

    async with Worker(client, task_queue=QUEUE, workflows=[Chain], activities=[noop]):
        for _ in range(WARM_UP_RUNS):
            await chain()
        taken_ms = []
        for _ in range(runs):
            started = time.perf_counter()
            await chain()
            taken_ms.append((time.perf_counter() - started) * 1000)
        started = time.perf_counter()
        left = iter(range(runs))
        await asyncio.gather(*(call(left) for _ in range(CALLERS)))
        together_s = time.perf_counter() - started
    return {"p50_ms": median(taken_ms), "steps_s": runs * STEPS / together_s}


async def connected(address: str) -> Client:
    """A client, as soon as the server lets somebody in."""
    deadline = time.monotonic() + READY_S_MAX
    while True:
        try:
            return await Client.connect(address)
        except (RPCError, RuntimeError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(LOOK_S)


@contextmanager
def dev_server(*options: str) -> Iterator[str]:
    """The address of a server of our own, whose file is in the current folder."""
    with open("worker.log", "wb") as log:
        for _ in range(STARTS_MAX):
            port = free_port()
            # In our own process group: whoever ends the benchmark for taking too long ends the server, too.
            server = subprocess.Popen(command(port, *options), env=environment(), stdout=log, stderr=log)
            try:
                if listens(server, port):
                    yield f"127.0.0.1:{port}"
                    return
            finally:
                server.terminate()
                server.wait(END_S)
    # It binds others beside ours, which it looks for itself, one after the other.
    raise RuntimeError(f"it found one of its ports taken {STARTS_MAX} times; worker.log tells more")


def command(port: int, *options: str) -> list[str]:
    return [
        f"{sysconfig.get_path('scripts')}/temporal", "server", "start-dev",
        "--headless", "--ip", "127.0.0.1", "--port", str(port),
        # As durable as our own file, and a commit costs it one sync of the disk instead of several, as by default.
        "--db-filename", "temporal.db", "--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=2",
        "--log-level", "error", "--disable-config-file", "--disable-config-env",
        *options,
    ]  # fmt: skip


def environment() -> dict[str, str]:
    # Else it asks its makers, who are not on this machine, for the newest version.
    return {**os.environ, "TEMPORAL_VERSION_CHECK_DISABLED": "1"}


def listens(server: subprocess.Popen[bytes], port: int) -> bool:
    """Whether it comes to listen there, or has ended instead."""
    deadline = time.monotonic() + READY_S_MAX
    while server.poll() is None:
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return True
        if time.monotonic() > deadline:
            raise TimeoutError(f"it does not listen after {READY_S_MAX} s; worker.log tells more")
        time.sleep(LOOK_S)
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(what: str, runs: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # else the server would be left behind
    with dev_server(*(UNTHROTTLED if what == "unthrottled" else ())) as address:
        figures = asyncio.run(measure(address, runs, local=what == "local"))
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
