"""A plane of many processes, each started again whenever it is gone, as a service manager would."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx2
from crash.test_plane_kills import NURSERY
from servers import free_port

TASKS = f"{Path(__file__).with_name('fleet_tasks.py')}:worker"
LOOK_EVERY_S = 0.05
READY_WITHIN_S = 60.0


@dataclass
class Member:
    name: str
    command: Sequence[str]
    url: str = ""
    """Where it says how it is; a worker says nothing."""
    pid: int = 0
    starts: int = 0

    @property
    def is_alive(self) -> bool:
        return bool(self.pid) and Path(f"/proc/{self.pid}").exists()

    def signal(self, how: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, how)

    async def wait_ready(self) -> None:
        async with httpx2.AsyncClient(timeout=5, verify=False) as http, asyncio.timeout(READY_WITHIN_S):
            while self.url or not self.is_alive:
                with suppress(httpx2.TransportError):
                    if self.url and (await http.get(f"{self.url}/readyz")).status_code == 200:
                        return
                await asyncio.sleep(LOOK_EVERY_S)


def members_of(options: Sequence[Sequence[str]], counts: dict[str, int]) -> list[Member]:
    """So many of each role, with one of the `options` in turn; and workers, who speak to the gateways in turn."""
    members: list[Member] = []
    for role in ("gateway", "scheduler", "reconciler"):
        for number in range(counts[role]):
            port = free_port()
            command = [role, "--port", str(port), *options[number % len(options)]]
            members.append(Member(f"{role}-{number}", command, f"http://127.0.0.1:{port}"))
    gateways = [member.url for member in members if member.name.startswith("gateway")]
    for number in range(counts["worker"]):
        name, url = f"worker-{number}", gateways[number % len(gateways)]
        members.append(Member(name, ["worker", "run", TASKS, "--url", url, "--name", name]))
    return members


class Fleet:
    def __init__(self, members: Sequence[Member], log: Path) -> None:
        self.members = members
        self._log = log

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        with self._log.open("ab") as errors:
            self._nursery = await asyncio.create_subprocess_exec(
                sys.executable, NURSERY, stdin=pipe, stdout=pipe, stderr=errors
            )
        self._supervising = asyncio.create_task(self._supervise())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._supervising.cancel()
        with suppress(asyncio.CancelledError):
            await self._supervising
        self._nursery.kill()  # first: nobody is born any more
        await self._nursery.wait()
        for member in self.members:
            member.signal(signal.SIGKILL)
        while any(member.is_alive for member in self.members):
            await asyncio.sleep(LOOK_EVERY_S)

    async def wait_ready(self) -> None:
        await asyncio.gather(*(member.wait_ready() for member in self.members))

    @property
    def gateways(self) -> list[str]:
        return [member.url for member in self.members if member.name.startswith("gateway")]

    async def _supervise(self) -> None:
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        while True:
            for member in self.members:
                if not member.is_alive:
                    self._nursery.stdin.write(json.dumps(member.command).encode() + b"\n")
                    member.pid = int(await self._nursery.stdout.readline())
                    member.starts += 1
            await asyncio.sleep(LOOK_EVERY_S)

    def said(self) -> str:
        return self._log.read_text(errors="replace")
