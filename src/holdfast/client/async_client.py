"""The client for code that runs in a loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Self, TypeVar

import httpx2

from holdfast import api
from holdfast.client import asks, replies
from holdfast.client.verbs import Verbs
from holdfast.client.waiting import PAUSE_S, SILENCE_S, Outage, Waiting, Watching
from holdfast.core.states import TERMINAL
from holdfast.errors import HoldfastError
from holdfast.locks.runtime import SYSTEM, Runtime

T = TypeVar("T")


class AsyncClient(Verbs):
    def __init__(
        self,
        url: str = "http://127.0.0.1:7070",
        *,
        api_key: str = "",
        tenant: str = "default",
        transport: httpx2.AsyncBaseTransport | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._http = httpx2.AsyncClient(**replies.options(url, api_key, tenant), transport=transport)
        self._runtime = runtime

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(self, ask: asks.Ask[T]) -> T:
        tries = replies.Tries(repeatable=ask.repeatable, jitter=self._runtime.jitter)
        while True:
            try:
                return replies.read(ask, await self._http.request(**ask.arguments()))
            except httpx2.TransportError as why:
                error: HoldfastError = replies.unreachable(self._http.base_url, why)
            except HoldfastError as refused:
                error = refused
            await asyncio.sleep(tries.pause_after(error))

    async def wait(self, job_id: str, timeout: float | None = None) -> api.JobView:  # noqa: ASYNC109  (what it waits for outlives a cancelled wait)
        """The job once it is terminal. Outlives a restart of the plane. Raises `TimeoutError`."""
        now = self._runtime.now
        waiting, outage = Waiting(job_id, timeout, now()), Outage()
        while True:
            try:
                job = await self.ask(waiting.ask(now()))
            except HoldfastError as error:
                pause_s = outage.pause_after(error, now())
            else:
                if job.state in TERMINAL:
                    return job
                outage.reached()
                pause_s = waiting.pause_after(job, now())
            await asyncio.sleep(self._runtime.jitter(pause_s))

    async def watch(
        self, job_id: str | None = None, *, kinds: Sequence[str] = (), after: int | None = None
    ) -> AsyncIterator[api.EventView]:
        """Events as they happen, none left out, over reconnections. Of one job: from its beginning to its end."""
        watching, outage = Watching(job_id, kinds, after), Outage()
        while not watching.ended:
            pause_s = PAUSE_S
            try:
                async with self._http.stream("GET", "/v1/events", params=watching.query(), timeout=SILENCE_S) as stream:
                    if stream.status_code >= 400:
                        await stream.aread()
                        raise replies.to_error(stream)
                    async for line in stream.aiter_lines():
                        outage.reached()
                        event = watching.hear(line)
                        if event is not None:
                            yield event
                        if watching.ended:
                            return
            except httpx2.TransportError as why:
                pause_s = outage.pause_after(replies.unreachable(self._http.base_url, why), self._runtime.now())
            except HoldfastError as error:
                pause_s = outage.pause_after(error, self._runtime.now())
            await asyncio.sleep(self._runtime.jitter(pause_s))
