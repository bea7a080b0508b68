"""A real plane in a thread, for the tests of the command, and a shell that asks it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from click.testing import CliRunner, Result

from holdfast.app import serving
from holdfast.cli import cli
from holdfast.config import Settings
from holdfast.core.states import Risk
from holdfast.core.topic import Topic, Topics
from holdfast.locks.runtime import SYSTEM, Runtime
from holdfast.ports import Bus

API_KEY = "a-key-of-the-test"
TOPICS = Topics((Topic(name="once.*", max_attempts=1), Topic(name="refund", risk=Risk.HIGH, max_attempts=2)))


class Plane:
    """A plane in a thread, a shell that asks it, and a worker played by hand."""

    def __init__(self, url: str, home: Path) -> None:
        self.url = url
        self.home = home
        self._http = httpx2.Client(
            base_url=url, headers={"authorization": f"Bearer {API_KEY}"}, trust_env=False, timeout=20
        )

    def close(self) -> None:
        self._http.close()

    def shell(self, *arguments: str, stdin: str = "", **environment: str) -> Result:
        env = {"HOLDFAST_URL": self.url, "HOLDFAST_API_KEY": API_KEY, "XDG_CONFIG_HOME": str(self.home), **environment}
        return CliRunner(env=env).invoke(cli, list(arguments), input=stdin)

    def json(self, *arguments: str) -> Any:
        done = self.shell(*arguments, "-o", "json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def work(self, verb: str, **body: Any) -> Any:
        reply = self._http.post(f"/v1/work/{verb}", json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def started(self, topic: str, worker: str) -> dict[str, Any]:
        """A job that this worker has begun."""
        # Room for more than the jobs of topics that nobody serves: see what the scheduler reads at once.
        self.work("hello", worker=worker, name=worker, topics=[topic], slots=500)
        self.json("job", "submit", topic)
        [delivery] = self.work("claim", worker=worker, wait_s=10, start=True)["deliveries"]
        return dict(delivery)

    def ended(self, topic: str, worker: str, outcome: str, **more: Any) -> str:
        taken = self.started(topic, worker)
        told = {"job_id": taken["job_id"], "fence": taken["fence"], "outcome": outcome, **more}
        self.work("complete", worker=worker, outcomes=[told])
        return str(taken["job_id"])


@contextmanager
def plane_in_thread(
    folder: Path, *, topics: Topics = TOPICS, bus: Bus | None = None, runtime: Runtime = SYSTEM
) -> Iterator[Plane]:
    settings = Settings(store=f"sqlite:///{folder}/plane.db", port=0, api_key=API_KEY, topics=topics)
    address: Future[str] = Future()
    stop = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        try:
            async with serving(settings, bus=bus, runtime=runtime) as url:
                address.set_result(url)
                await stop.wait()
        except Exception as error:
            address.set_exception(error)
            raise

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    shared = Plane(address.result(20), folder)
    yield shared
    shared.close()
    loops[0].call_soon_threadsafe(stop.set)
    thread.join(20)


def one_line(refused: Result) -> str:
    assert refused.stdout == ""
    assert refused.stderr.startswith("Error: ")
    [line] = refused.stderr.splitlines()
    return line
