"""The test kit that users get: its page's example runs, and its faults are faults."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest

from holdfast.testing.clock import Clock
from holdfast.testing.plane import LocalPlane
from holdfast.testing.plugin import holdfast_clock, holdfast_plane  # noqa: F401  (as pytest finds them once installed)
from holdfast.worker import LeaseLost, SyncJob, Worker

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs/how-to/test-your-jobs.md"


def test_the_example_of_the_page_passes(tmp_path: Path) -> None:
    [example] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "test_jobs.py").write_text(example)

    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "holdfast.testing.plugin",
            "-p",
            "no:cacheprovider",
            "test_jobs.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b4 passed", done.stdout), done.stdout


def test_pytest_finds_the_fixtures_where_holdfast_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert project["entry-points"]["pytest11"] == {"holdfast.testing.plugin": "holdfast.testing.plugin"}


def test_a_handler_that_lost_its_lease_is_told_and_its_word_is_refused(holdfast_plane: LocalPlane) -> None:  # noqa: F811
    worker = Worker(name="clerk")
    begun, may_go_on, told = threading.Event(), threading.Event(), threading.Event()

    @worker.task("slow")
    def slow(job: SyncJob) -> object:
        if job.attempt == 1:
            begun.set()
            may_go_on.wait(30)
            try:
                job.check()
            except LeaseLost:
                told.set()
                raise
        return job.attempt

    first = holdfast_plane.work(worker)
    job = holdfast_plane.client.submit("slow")
    assert begun.wait(30)
    first.lose_lease(job.id)
    may_go_on.set()

    assert told.wait(30)
    assert holdfast_plane.client.wait(job.id, 30).result == 2
    assert holdfast_plane.kinds(job.id).count("job.succeeded") == 1


def test_a_story_of_many_pages_is_told_whole(
    holdfast_plane: LocalPlane,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.testing.plane.EVENTS_AT_ONCE", 1)
    job = holdfast_plane.client.submit("never")
    holdfast_plane.client.cancel(job.id)

    assert holdfast_plane.kinds(job.id) == ["job.submitted", "job.cancelled"]


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_time_does_not_go_back(seconds: float) -> None:
    with pytest.raises(ValueError, match="does not go back"):
        Clock().advance(seconds)
