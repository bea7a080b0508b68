"""`holdfast up --demo`: there is something to see, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from harness import sooner_or_later

from holdfast.api import JobView
from holdfast.cli import cli
from holdfast.client import Client

PATIENCE_S = 60.0

until = partial(sooner_or_later, within_s=PATIENCE_S, every_s=0.1)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """In a folder where nothing of the project lies, as an installed one is."""
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "up", "--demo", "--port", "0"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "HOLDFAST_API_KEY": "", "HOLDFAST_STORE": "sqlite:///mine.db"},
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def heard(demo: subprocess.Popen[str]) -> str:
    """What it says until it is up."""
    assert demo.stderr is not None
    said = ""
    for line in demo.stderr:
        said += line
        if line.startswith("Ctrl-C"):
            break
    return said


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_demo_shows_every_kind_of_end_and_ends_tidily(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    said = heard(demo)
    url = re.findall(r"http://\S+", said)[0]
    pids = [int(pid) for pid in re.findall(r"kill -\w+ (\d+)", said)]
    with Client(url) as client:

        def ended(topic: str) -> list[JobView]:
            return [job for job in client.list(topic=topic).items if job.state == "SUCCEEDED"]

        until(lambda: ended("mail.send") and ended("research.ask") and client.dead_letters().items)
        until(lambda: client.effects(state="unknown").items)
        before = {worker.id for worker in client.workers().items}
        os.kill(pids[0], signal.SIGKILL)
        until(lambda: {worker.id for worker in client.workers().items} - before)  # it is started again

    demo.send_signal(signal.SIGINT)
    _, later = demo.communicate(timeout=30)

    assert demo.returncode == 0
    assert "attempt.failed" not in later  # what to try would be gone from the screen
    assert not any(runs(pid) for pid in pids)
    assert [p for p in Path("/proc").glob("[0-9]*/cmdline") if url.encode() in p.read_bytes()] == []
    assert list(tmp_path.iterdir()) == [], "neither its own store nor the one of the environment"


def test_demo_is_for_loopback_only() -> None:
    refused = CliRunner(env={"HOLDFAST_API_KEY": "s3cr3t"}).invoke(cli, ["up", "--demo", "--host", "0.0.0.0"])

    assert refused.exit_code == 2
    assert "loopback" in refused.stderr
