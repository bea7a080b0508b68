"""kill -9 of planes and workers, rolling through a run that fans out: it finishes, each step's effect under one key.

Every plane is an engine. None of them says goodbye: a run's lock, its half-done advance, the results
nobody has consumed, jobs in hand and effects in mid-air are all left to whoever comes next.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Self

import pytest
from servers import free_port

from crash.test_plane_kills import NURSERY, Planes
from holdfast.client import AsyncClient
from holdfast.errors import HoldfastError

TASKS = f"{Path(__file__).with_name('run_tasks.py')}:worker"
STEPS = 1000
KILLS_MIN, KILLS_MAX = 3, 12
HELD = 100
"""Steps at the end that are not done before the plane has died often enough: workers may be quicker than who kills them."""
ALIVE_S = (0.5, 1.5)
"""Between two deaths of planes; workers die as often."""
IN_HAND_MAX = 2 * 20
"""Attempts that may be under way when a plane or a worker dies: the slots of both workers."""
CONFIG = (
    '[topics."*"]\nlease_s = 2\ndispatch_timeout_s = 2\nmax_attempts = 1000\nbackoff = {first_s = 0.05, cap_s = 0.2}\n'
)
GIVEN = {name: f"${{input.{name}}}" for name in ("bank", "enough", "held_from")}
FAN_OUT = {
    "name": "fan-out",
    "output": "${steps.each.output}",
    "steps": [
        {
            "id": "each",
            "kind": "for_each",
            "items": "input.items",
            "parallel": 100,
            "collect": False,
            "step": {"kind": "job", "topic": "book", "payload": {"item": "${item}", **GIVEN}},
        },
        {
            "id": "last",
            "kind": "job",
            "topic": "book",
            "payload": {"item": -1, **GIVEN},
            "depends_on": ["each"],
        },
    ],
}


class Workers:
    """`holdfast worker`, two of them, again and again."""

    def __init__(self, url: str, log: Path) -> None:
        self._command = ["worker", "run", TASKS, "--url", url]
        self._log = log
        self._alive: dict[str, int] = {}
        self.kills = 0

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        with self._log.open("ab") as errors:
            self._nursery = await asyncio.create_subprocess_exec(
                sys.executable, NURSERY, stdin=pipe, stdout=pipe, stderr=errors
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in tuple(self._alive):
            self._kill(name)
        self._nursery.kill()
        await self._nursery.wait()

    async def start(self, name: str) -> None:
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.write(json.dumps([*self._command, "--name", name]).encode() + b"\n")
        self._alive[name] = int(await self._nursery.stdout.readline())

    async def replace(self, name: str) -> None:
        self._kill(name)
        self.kills += 1
        await self.start(name)

    def _kill(self, name: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._alive.pop(name), signal.SIGKILL)


def make_bank(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE entries (key TEXT NOT NULL, item INTEGER NOT NULL)")


async def is_over(client: AsyncClient, run: str) -> bool:
    with contextlib.suppress(HoldfastError):
        return (await client.get_run(run)).state != "running"
    return False


async def roll(planes: Planes, workers: Workers, client: AsyncClient, run: str, enough: Path) -> int:
    """Kill and start again, until the run is over or it was often enough. How often the plane died."""
    kills, chance = 0, random.Random()
    while kills < KILLS_MAX and not await is_over(client, run):
        await asyncio.sleep(chance.uniform(*ALIVE_S))
        await workers.replace(chance.choice(("one", "two")))
        await planes.kill()
        await planes.start()
        kills += 1
        if kills == KILLS_MIN:
            enough.touch()
    return kills


def judge_effects(store: Path, bank: Path, *, kills: int) -> None:
    """A key for each step. Performed again only what nobody knew the outcome of: an attempt ended between prepare and commit.
    It may be, because it was declared idempotent."""
    with contextlib.closing(sqlite3.connect(bank)) as connection:
        entered = Counter((item, key) for key, item in connection.execute("SELECT key, item FROM entries"))
    with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        effects = connection.execute("SELECT idempotency_key, job_id, state FROM holdfast_effects").fetchall()
        doubts = Counter(
            job for (job,) in connection.execute("SELECT job_id FROM holdfast_events WHERE kind = 'effect.unknown'")
        )
    allowed = {key: 1 + doubts[job] for key, job, _ in effects}
    assert sorted(item for item, _ in entered) == list(range(-1, STEPS)), "each step's effect, under one key"
    assert {key for _, key in entered} == set(allowed), "each key of one step"
    assert {state for *_, state in effects} == {"committed"}
    assert {key: times for (_, key), times in entered.items() if times > allowed[key]} == {}, "repeated without a doubt"
    assert entered.total() - len(entered) <= kills * IN_HAND_MAX, "no more than the dead had in hand"


def judge(store: Path, run: str) -> None:
    with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        events = connection.execute("SELECT kind, detail FROM holdfast_events WHERE run = ?", (run,)).fetchall()
        left = connection.execute("SELECT count(*) FROM holdfast_records WHERE kind = 'result'").fetchone()
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    ended = Counter(json.loads(detail)["step"] for kind, detail in events if kind == "step.succeeded")
    assert len(ended) == STEPS + 2
    assert set(ended.values()) == {1}, "W1: a step's end was recorded more than once"
    fences: list[Any] = [json.loads(detail)["fence"] for kind, detail in events if kind.startswith(("step.", "run."))]
    assert fences == sorted(fences), "W2: the fence fell"
    assert left == (0,), "a result was left behind"


@pytest.mark.timeout(120)
async def test_a_fan_out_finishes_under_rolling_kills_and_repeats_no_effect_without_a_doubt(tmp_path: Path) -> None:
    store, bank, enough = tmp_path / "plane.db", tmp_path / "bank.db", tmp_path / "enough"
    store.with_name("plane.toml").write_text(CONFIG)
    make_bank(bank)
    async with Planes(store, free_port()) as planes, Workers(planes.url, tmp_path / "workers.err") as workers:
        await planes.start()
        for name in ("one", "two"):
            await workers.start(name)
        async with AsyncClient(planes.url) as client:
            await client.apply_workflow(json.dumps(FAN_OUT))
            given = {"bank": str(bank), "enough": str(enough), "held_from": STEPS - HELD, "items": list(range(STEPS))}
            run = await client.start_run("fan-out", given, idempotency_key="only")
            kills = await roll(planes, workers, client, run.id, enough)
            ended = await client.wait_run(run.id, timeout=60)

    assert ended.state == "succeeded", ended.error
    assert kills >= KILLS_MIN, "the plane died while the run was under way"
    judge_effects(store, bank, kills=kills + workers.kills)
    judge(store, run.id)
