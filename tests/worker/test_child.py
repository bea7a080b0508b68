"""One child process and what its handlers may do to it, without a plane."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.worker.children import Child
from holdfast.worker.starting import ChildDied, NotStarted
from holdfast.worker.wire import Answer, Ask, Done, Report, Work

SOURCE = """
import asyncio, os, signal, socket, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from holdfast.worker import Job, SyncJob, Worker

worker = Worker()
left = []

@worker.task("wait")
async def wait(job: Job):
    await asyncio.sleep(60)

@worker.task("wait.sync")
def wait_sync(job: SyncJob):
    time.sleep(60)

@worker.task("leave")
async def leave(job: Job):
    go = asyncio.Event()
    async def tell():
        await go.wait()
        await job.once("late", left.append, "done")
    left.extend([go, asyncio.create_task(tell())])

@worker.task("leave.sync")
def leave_sync(job: SyncJob):
    go = threading.Event()
    def tell():
        go.wait()
        job.once("late", left.append, "done")
    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    left.extend([go, thread])

@worker.task("go-on")
async def go_on(job: Job):
    left[0].set()
    await asyncio.wait(left[1:])
    await job.progress("own")
    return len(left)

@worker.task("go-on.sync")
def go_on_sync(job: SyncJob):
    left[0].set()
    left[1].join()
    job.progress("own")
    return len(left)

@worker.task("threads.sync")
def threads(job: SyncJob):
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda n: job.once(str(n), lambda: n), range(40)))

@worker.task("fork.sync")
def fork(job: SyncJob):
    if os.fork() == 0:
        return "copy"
    os.wait()
    return "original"

@worker.task("close.sync")
def close(job: SyncJob):
    for number in range(3):
        os.close(number)

@worker.task("close.streams")
async def close_streams(job: Job):
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()

class Tee:
    def __init__(self, stream):
        self.stream = stream
    def write(self, text):
        return self.stream.write(text)
    def flush(self):
        self.stream.flush()

@worker.task("redirect.sync")
def redirect(job: SyncJob):
    sys.stdout = Tee(sys.stdout)

@worker.task("delete.sync")
def delete(job: SyncJob):
    del sys.stdin, sys.stdout

@worker.task("signal.sync")
def signal_itself(job: SyncJob):
    os.kill(os.getpid(), signal.SIGRTMIN + 3)
    time.sleep(60)

@worker.task("write.sync")
def write(job: SyncJob):
    for number in range(3, 64):
        try:
            os.write(number, b"hello")
        except OSError:
            pass

@worker.task("print.sync")
def print_all(job: SyncJob):
    with open(os.devnull) as file:
        print("said")
        print("warned", file=sys.stderr)
        sys.stdout.flush()
        return [file.fileno() > 2, sys.stdin.read()]

def hang_up(number, frame):
    for number in range(3, 64):
        try:
            socket.socket(fileno=os.dup(number)).shutdown(socket.SHUT_WR)
        except OSError:
            pass
    os.kill(os.getpid(), signal.SIGSTOP)

@worker.task("expect.sync")
def expect(job: SyncJob):
    signal.signal(signal.SIGUSR2, hang_up)

@worker.task("elsewhere.sync")
def elsewhere(job: SyncJob):
    os.setpgid(0, os.getpgid(os.getppid()))
    job.progress("moved")
    time.sleep(60)
"""


def work(topic: str) -> Work:
    return Work(f"job-{topic}", 7, topic, b"null", 1, 3, {}, "high", "")


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[Child]:
    file = folder / "odd.py"
    file.write_text(SOURCE)
    child = Child()
    await child.start(f"{file}:worker")
    try:
        yield child
    finally:
        await child.close(at_once=True)


@pytest.fixture
async def child(tmp_path: Path) -> AsyncIterator[Child]:
    async with started(tmp_path) as child:
        yield child


async def told(child: Child, topic: str) -> tuple[Done, list[Any]]:
    """How the handler ended, and what was asked of the plane meanwhile: it agrees to everything."""
    asks: list[Any] = []

    def answer(ask: Ask) -> None:
        asks.append(msgspec.json.decode(ask.request.progress) if isinstance(ask.request, Report) else ask.request)
        child.say(Answer(ask.number, ruling="run"))

    async with asyncio.timeout(20):
        return await child.run(work(topic), answer), asks


@pytest.mark.parametrize("topic", ["wait", "wait.sync"])
async def test_cancel_that_comes_before_the_handler_has_begun_stops_it(child: Child, topic: str) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    running = child.run(work(topic), lambda ask: None)
    child.cancel(grace_s=60)
    os.kill(child.pid, signal.SIGCONT)

    async with asyncio.timeout(20):
        assert (await running).outcome == "cancelled"


@pytest.mark.parametrize("way", ["", ".sync"])
async def test_what_a_handler_left_behind_does_not_speak_for_the_next_job(child: Child, way: str) -> None:
    await told(child, f"leave{way}")
    done, asks = await told(child, f"go-on{way}")

    assert (done.outcome, done.result, asks) == ("succeeded", b"2", ["own"])


async def test_threads_of_a_handler_may_all_ask(child: Child) -> None:
    done, asks = await told(child, "threads.sync")

    assert msgspec.json.decode(done.result) == list(range(40))
    assert len(asks) == 80


async def test_copy_of_a_handlers_process_does_not_speak_for_it(child: Child) -> None:
    first, _ = await told(child, "fork.sync")
    second, _ = await told(child, "fork.sync")

    assert (first.result, second.result) == (b'"original"', b'"original"')


async def test_handler_that_has_left_its_process_group_is_killed_all_the_same(child: Child) -> None:
    moved = asyncio.Event()

    def answer(ask: Ask) -> None:
        child.say(Answer(ask.number))
        moved.set()

    running = child.run(work("elsewhere.sync"), answer)
    async with asyncio.timeout(20):
        await moved.wait()
        child.kill()
        with pytest.raises(ChildDied):
            await running


async def test_child_of_a_process_that_may_open_few_files_works(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    file = tmp_path / "odd.py"
    file.write_text(f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (48, {hard}))\n{SOURCE}")
    child = Child()
    await child.start(f"{file}:worker")
    done, _ = await told(child, "close.sync")
    await child.close(at_once=True)

    assert (done.outcome, soft > 48) == ("succeeded", True)


async def test_child_whose_end_nobody_waits_for_is_seen_to_be_dead(tmp_path: Path) -> None:
    """Whoever has started the worker may have it ignore SIGCHLD: the kernel then reaps by itself."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        async with started(tmp_path) as child:
            os.kill(child.pid, signal.SIGSTOP)
            running = child.run(work("wait"), lambda ask: None)
            os.kill(child.pid, signal.SIGKILL)
            while Path(f"/proc/{child.pid}").exists():
                pass  # and the loop has not heard of it
            child.kill()
            with pytest.raises(NotStarted):
                await running
    finally:
        signal.signal(signal.SIGCHLD, before)


async def test_child_that_is_killed_by_a_signal_without_a_name_is_seen_to_be_dead(child: Child) -> None:
    with pytest.raises(ChildDied, match=f"killed by signal {signal.SIGRTMIN + 3}"):
        await told(child, "signal.sync")


async def test_child_whose_handler_writes_between_the_words_to_the_supervisor_is_killed(child: Child) -> None:
    with pytest.raises(ChildDied, match="SIGKILL"):
        await told(child, "write.sync")


@pytest.mark.parametrize("topic", ["close.sync", "close.streams", "delete.sync", "redirect.sync"])
async def test_a_handler_that_closes_the_standard_streams_does_not_take_them_from_the_next(
    tmp_path: Path, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async with started(tmp_path) as child:
        assert (await told(child, topic))[0].outcome == "succeeded"
        done, _ = await told(child, "print.sync")

    assert (done.outcome, msgspec.json.decode(done.result or b"")) == ("succeeded", [True, ""])
    said = capfd.readouterr()
    assert ("said" in said.out, "warned" in said.err) == (True, True)


@pytest.mark.parametrize("payload", [b"null", b'"' + b"x" * 5_000_000 + b'"'])
async def test_child_that_died_before_it_read_its_job_has_not_begun_it(child: Child, payload: bytes) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    running = child.run(msgspec.structs.replace(work("wait.sync"), payload=payload), lambda ask: None)
    await asyncio.sleep(0)
    os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(NotStarted, match="SIGKILL"):
        await running


async def test_child_that_was_dead_already_has_not_begun_its_job(child: Child) -> None:
    os.kill(child.pid, signal.SIGKILL)
    while child.usable:
        await asyncio.sleep(0)

    with pytest.raises(NotStarted):
        await child.run(work("wait.sync"), lambda ask: None)


async def test_child_that_has_hung_up_and_lives_on_has_not_begun_its_job(child: Child) -> None:
    await told(child, "expect.sync")
    os.kill(child.pid, signal.SIGUSR2)
    while child.usable:
        await asyncio.sleep(0)

    async with asyncio.timeout(20):
        with pytest.raises(NotStarted, match="SIGKILL"):
            await child.run(work("wait.sync"), lambda ask: None)


async def test_child_that_was_told_more_than_its_job_may_have_begun_it(child: Child) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    running = child.run(work("wait.sync"), lambda ask: None)
    child.say(Answer(1))
    os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(ChildDied):
        await running
