"""Fixtures: every backend found in tests/backends, each with one real server per test run."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import backends
import pytest
from first_run import one_ahead
from harness import Backend, make_backend
from longest import dealt
from servers import roomy_memory

from holdfast.locks.port import LockStore

TIMEOUT_S = 10.0
"""Tests share the machine: what is slow is not away."""


def pytest_configure() -> None:
    # A shell switches Ctrl-C off for what it starts in the background, and so would it be for each process that a test
    # starts and interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The servers written in Go, etcd and NATS: there is work for every core already, and one that looks for more on
    # the others takes a fifth longer for its own.
    os.environ.setdefault("GOMAXPROCS", "1")
    # The files of tests, `tmp_path`: a thousand SQLite databases, each of which would wait for the disk at every commit.
    if (memory := roomy_memory()) is not None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Hundreds of thousands of objects come, all to stay: looking for garbage among them, now and whenever a test
    leaves some, would take a third of the time to collect and some of every test's."""
    gc.disable()
    try:
        with one_ahead(session.config):
            return (yield)
    finally:
        gc.enable()
        gc.freeze()
        # Seldomer than every few hundred objects: requests and their answers are that many, and are gone by themselves.
        gc.set_threshold(10_000, 20, 10)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


@pytest.fixture(scope="session")
def running() -> Iterator[backends.Running]:
    """The servers of this run, started when first asked for."""
    started: backends.Running = {}
    yield started
    for server in started.values():
        if server is not None:
            server.remove()


@pytest.fixture(params=backends.NAMES)
def backend(request: pytest.FixtureRequest, running: backends.Running, tmp_path: Path) -> Backend:
    return make_backend(request.param, running, tmp_path)


@pytest.fixture
async def store(backend: Backend) -> AsyncIterator[LockStore]:
    opened = backend.open(timeout_s=TIMEOUT_S)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def other(backend: Backend) -> AsyncIterator[LockStore]:
    """A second process's view of the same store."""
    opened = backend.open(holder="other-holder", timeout_s=TIMEOUT_S)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of a file in this test is said of one on a disk, wherever this machine keeps its temporary files."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text("21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n")
    monkeypatch.setattr("holdfast.stores.sqlite.inspect.MOUNTS", mounts)
