"""A worker that cannot start a process for a job: the job loses nothing, others get it, and the worker waits."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest
from locks.virtual import VirtualRuntime, on_virtual_time
from worker_plane import TASKS, Client, connected, plane, worker_process

from holdfast.worker import serving
from holdfast.worker.errors import BrokenWorker
from holdfast.worker.pause import WAIT_S, WAIT_S_MAX, Pause
from holdfast.worker.starting import NotStarted
from holdfast.worker.supervisor import Supervisor
from holdfast.worker.undertaker import Undertaker

Breaking = Callable[[pytest.MonkeyPatch], None]


def no_python(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys, "executable", "/nowhere/python")


def dying_python(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys, "executable", "/bin/false")


def no_more(number: int) -> Breaking:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    return lambda patch: patch.setattr(subprocess, "Popen", refuse)


async def condition(client: Client, name: str) -> tuple[str, str]:
    [worker] = [one for one in await client.list_workers() if one["name"] == name]
    return worker["condition"], worker["unable"]


async def readiness(supervisor: Supervisor) -> tuple[int, str]:
    async with httpx2.AsyncClient(trust_env=False, verify=False, timeout=20) as http:
        reply = await http.get(f"http://{supervisor.health}/readyz")
    return reply.status_code, reply.text


@pytest.mark.parametrize(
    ("breaking", "why", "then"),
    [
        (no_more(errno.EAGAIN), "EAGAIN", "pids.max"),
        (no_more(errno.ENOMEM), "ENOMEM", "more memory"),
        (no_python, "ENOENT", "restart it from an environment"),
        (dying_python, "exited with 1", "restart it"),
    ],
)
async def test_job_without_a_process_goes_to_another_worker_at_no_cost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, breaking: Breaking, why: str, then: str
) -> None:
    health = "127.0.0.1:0"
    async with plane(tmp_path) as url, connected(url) as client, worker_process(url, name="b", slots=1):
        async with serving(TASKS, url=url, name="a", slots=1, jobs_per_child=1, health=health) as sick:
            await client.wait_workers(2)  # of which the plane takes the first by name
            with pytest.MonkeyPatch.context() as patch:
                breaking(patch)
                await client.run("echo.sync", 1)  # in the child that was there before; no other follows it
                job = await client.run("echo.sync", 2, max_attempts=1)
                unable, ready = await condition(client, "a"), await readiness(sick)
        kinds = [kind for kind, _ in await client.events(job["id"])]

    assert (job["state"], job["attempts"], job["result"]["payload"]) == ("SUCCEEDED", 1, 2)
    assert kinds.count("job.handed_back") == 1
    assert unable[0] == "unable"
    assert why in unable[1]
    assert ready[0] == 503
    assert why in ready[1]
    paused = [record.getMessage() for record in caplog.records if record.getMessage().startswith("worker.paused")]
    assert paused
    assert why in paused[0]
    assert then in paused[0]


async def test_worker_takes_work_again_when_a_process_could_be_started(tmp_path: Path) -> None:
    async with plane(tmp_path) as url, connected(url) as client:
        async with serving(TASKS, url=url, name="a", slots=1, jobs_per_child=1) as worker:
            with pytest.MonkeyPatch.context() as patch:
                no_python(patch)
                await client.run("echo.sync", 1)
                job_id = await client.submit("echo.sync", 2, max_attempts=1)
                await client.wait_event(job_id, "job.handed_back")
            job = await client.wait_ended(job_id)

            assert worker.why_not_ready() == ""
            assert await condition(client, "a") == ("ready", "")
        [told] = await client.details(job_id, "job.handed_back")

    assert (job["state"], job["attempts"]) == ("SUCCEEDED", 1)
    assert told["error"]["code"] == "worker-child-not-started"


async def test_module_that_cannot_be_loaded_any_more_costs_no_attempt_and_is_not_quoted_to_the_plane(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = tmp_path / "deployed.py"
    source = "from holdfast.worker import Worker\nworker = Worker()\n\n@worker.task('t')\ndef t(job): return 1\n"
    module.write_text(source)
    async with plane(tmp_path) as url, connected(url) as client:
        async with serving(f"{module}:worker", url=url, name="a", slots=1, jobs_per_child=1):
            module.write_text("raise RuntimeError('s3cret')")
            await client.run("t")
            job_id = await client.submit("t", max_attempts=1)
            await client.wait_event(job_id, "job.handed_back")
            unable = await condition(client, "a")
            module.write_text(source)
            job = await client.wait_ended(job_id)

    assert unable == ("unable", "its module cannot be loaded any more")
    assert (job["state"], job["attempts"]) == ("SUCCEEDED", 1)
    assert any("deployed.py" in record.getMessage() for record in caplog.records)


async def test_worker_that_cannot_begin_at_all_says_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    no_more(errno.EAGAIN)(monkeypatch)

    with pytest.raises(BrokenWorker, match=r"EAGAIN.*pids\.max"):
        async with serving(TASKS, url="http://127.0.0.1:1"):
            pass


def test_undertaker_that_cannot_be_started_keeps_no_group_in_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end the processes of whoever gets the number later."""
    undertaker = Undertaker()
    with (
        subprocess.Popen(["sleep", "60"], process_group=0) as other,
        subprocess.Popen(["sleep", "60"], process_group=0) as ours,
    ):
        with monkeypatch.context() as patch:
            no_python(patch)
            with pytest.raises(FileNotFoundError):
                undertaker.watch(other.pid)
        undertaker.watch(ours.pid)
        assert undertaker._process is not None
        undertaker._process.communicate()  # closes its stdin, as the end of this process would
        killed, spared = ours.wait(), other.poll()
        other.kill()

    assert (killed, spared) == (-signal.SIGKILL, None)


class Machine:
    """It has no process to give for so many times."""

    def __init__(self, runtime: VirtualRuntime, refusals: int) -> None:
        self._runtime = runtime
        self.refusals = refusals
        self.asked_at: list[float] = []
        self.told: list[str] = []

    async def have_one(self) -> None:
        self.asked_at.append(self._runtime.now())
        if len(self.asked_at) <= self.refusals:
            raise NotStarted(f"no {len(self.asked_at)}")

    async def tell(self, unable: str) -> None:
        self.told.append(unable)


@on_virtual_time
async def test_pause_grows_up_to_its_cap_and_ends_with_a_process(runtime: VirtualRuntime) -> None:
    machine = Machine(runtime, refusals=12)
    pause = Pause(machine.tell, machine, runtime=runtime)
    began_at = runtime.now()
    await pause.begin(NotStarted("no 0"))
    await pause.sit_out()
    times = [began_at, *machine.asked_at]
    waits = [later - earlier for earlier, later in pairwise(times)]

    for n, waited in enumerate(waits):
        most = min(WAIT_S * 2**n, WAIT_S_MAX)
        assert most / 2 <= waited <= most
    assert machine.told == [*(f"no {n}" for n in range(13)), ""]
    assert pause.why == ""


@on_virtual_time
async def test_processes_that_take_up_nothing_are_waited_for_longer_each_time(runtime: VirtualRuntime) -> None:
    machine = Machine(runtime, refusals=0)
    pause = Pause(machine.tell, machine, runtime=runtime)

    async def once() -> float:
        began_at = runtime.now()
        await pause.begin(NotStarted("gone"))
        await pause.sit_out()
        return runtime.now() - began_at

    assert await once() <= WAIT_S < await once() + await once()
    for _ in range(10):
        await once()
    assert await once() >= WAIT_S_MAX / 2
    pause.worked()
    assert await once() <= WAIT_S
