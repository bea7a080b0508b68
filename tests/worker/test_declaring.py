"""Declaring a worker, and starting one that cannot work."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import get_type_hints

import pytest
from worker_plane import connected, plane

from holdfast.worker import BrokenWorker, Job, Options, Worker, serving
from holdfast.worker.worker import WorkerOptions

PLANE = "http://127.0.0.1:1"


async def noop(job: Job) -> None:
    return None


def test_async_isolation_needs_a_coroutine() -> None:
    with pytest.raises(ValueError, match="needs a coroutine"):
        Worker(PLANE).task("t", isolation="async")(print)


@pytest.mark.parametrize("isolation", ["process", "async", "thread"])
def test_handler_that_yields_is_refused(isolation: str) -> None:
    def handler(job: Job) -> Iterator[int]:
        yield 1

    async def coroutine(job: Job) -> AsyncIterator[int]:
        yield 1

    for yielding in (handler, coroutine):
        with pytest.raises(ValueError, match="this one yields"):
            Worker(PLANE).task("t", isolation=isolation)(yielding)


def test_topic_has_one_handler() -> None:
    worker = Worker(PLANE)
    worker.task("t")(noop)

    with pytest.raises(ValueError, match="has a handler already"):
        worker.task("t")(noop)


def test_longest_family_is_chosen() -> None:
    worker = Worker(PLANE)
    for topic in ("mail.*", "mail.bulk.*", "mail.bulk.one"):
        worker.task(topic)(lambda job, topic=topic: topic)

    chosen = [task.handler(None) if task else None for task in map(worker.find_task, ("mail.a", "mail.bulk.b", "sms"))]
    assert chosen == ["mail.*", "mail.bulk.*", None]


@pytest.mark.parametrize("options", [{"slots": 0}, {"name": "no spaces"}, {"backlog": -1}, {"jobs_per_child": 0}])
def test_impossible_options_are_refused(options: WorkerOptions) -> None:
    with pytest.raises(ValueError, match="worker"):
        Worker(PLANE, **options)


def test_type_checkers_know_every_option() -> None:
    known = get_type_hints(Options)
    del known["url"]

    assert get_type_hints(WorkerOptions) == known


async def test_worker_that_children_cannot_find_says_what_to_do() -> None:
    worker = Worker(PLANE)
    worker.task("t")(noop)

    with pytest.raises(BrokenWorker, match="at the top of a module"):
        async with worker.running():
            pass


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("\nimport no_such_module", r"cannot be loaded: ModuleNotFoundError: .*no_such_module' \(broken.py:2\)$"),
        ("def f(:", r"SyntaxError: invalid syntax \(broken.py, line 1\)$"),
        ("worker = 1", "'worker' in it is not a Worker. Name it as"),
        ("from holdfast.worker import Worker; Worker().task(print)", "write @worker.task"),
        ("from holdfast.worker import Worker; Worker().task('t', isolation='fork')", "process, async, thread"),
        ("from holdfast.worker import Worker; worker = Worker()", "has no task"),
        ("import os; os._exit(7)", "exited with 7"),
    ],
)
async def test_module_that_cannot_be_loaded_is_told_at_the_start(tmp_path: Path, source: str, why: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(source)

    with pytest.raises(BrokenWorker, match=why):
        async with serving(f"{file}:worker", url=PLANE):
            pass


@pytest.mark.parametrize("target", ["no_such_module:worker", "no_such.package:worker", "no_such_file.py:worker"])
async def test_a_target_that_is_not_there_is_told_by_name_and_how_to_name_one(target: str) -> None:
    place = target.partition(":")[0]
    with pytest.raises(BrokenWorker, match=rf"^{place}: no such (module|file).* Name it as MODULE:WORKER"):
        async with serving(target, url=PLANE):
            pass


async def test_script_runs_its_own_worker(tmp_path: Path) -> None:
    """`python worker.py`: the children load the same file, without its last lines."""
    async with plane(tmp_path) as url, connected(url) as client:
        script = tmp_path / "script.py"
        script.write_text(
            f"from holdfast.worker import Worker\nworker = Worker({url!r}, slots=1)\n"
            "@worker.task('t')\ndef t(job):\n    return __name__\n"
            "if __name__ == '__main__':\n    worker.run()\n"
        )
        process = subprocess.Popen([sys.executable, str(script)])
        job = await client.run("t")
        process.terminate()
        assert process.wait(10) == 0

    assert job["result"] == "script"


def test_script_that_runs_its_worker_while_it_is_loaded_says_what_to_do(tmp_path: Path) -> None:
    """Its children load the file too: without a stop, each of them would start children of its own."""
    script = tmp_path / "unguarded.py"
    script.write_text(
        f"from holdfast.worker import Worker\nworker = Worker({PLANE!r}, slots=1)\n"
        "@worker.task('t')\ndef t(job):\n    pass\n"
        "worker.run()\n"
    )
    ended = subprocess.run([sys.executable, str(script)], stderr=subprocess.PIPE, text=True, timeout=20, check=False)

    assert ended.returncode == 1
    assert 'if __name__ == "__main__": worker.run()' in ended.stderr.splitlines()[-1]


async def test_worker_that_still_loads_ends_when_it_is_told_to(tmp_path: Path) -> None:
    script, loading = tmp_path / "slow.py", tmp_path / "loading"
    script.write_text(
        f"import pathlib, time\nfrom holdfast.worker import Worker\nworker = Worker({PLANE!r}, slots=1)\n"
        "@worker.task('t')\ndef t(job):\n    pass\n"
        "if __name__ == '__main__':\n    worker.run()\n"
        f"else:\n    pathlib.Path({str(loading)!r}).write_text('')\n    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, str(script)])
    async with asyncio.timeout(20):
        while not loading.exists():
            await asyncio.sleep(0.01)
        process.terminate()
        assert await asyncio.to_thread(process.wait) == 0
