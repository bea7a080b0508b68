"""The client for code that runs in a loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self, TypeVar, Unpack

import httpx2

from holdfast import api
from holdfast.api.runs import RunView
from holdfast.client import asks, replies
from holdfast.client.verbs import Verbs
from holdfast.client.waiting import LONG_POLL_S, PAUSE_S, SILENCE_S, Outage, Waiting, Watching, for_job, for_run
from holdfast.core.states import TERMINAL
from holdfast.errors import HoldfastError
from holdfast.locks.runtime import SYSTEM, Runtime

T = TypeVar("T")
W = TypeVar("W", api.JobView, RunView)


class AsyncClient(Verbs):
    def __init__(
        self,
        url: str = "http://127.0.0.1:7070",
        *,
        api_key: str = "",
        tenant: str = "default",
        actor: str = "",
        transport: httpx2.AsyncBaseTransport | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._http = httpx2.AsyncClient(**replies.options(url, api_key, tenant, actor), transport=transport)
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
                error: HoldfastError = replies.unreachable(self._http.base_url, why, method=ask.method)
            except HoldfastError as refused:
                error = refused
            await asyncio.sleep(tries.pause_after(error))

    async def run(
        self,
        topic: str,
        payload: Any = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  (as `wait`)
        idempotency_key: str | None = None,
        **limits: Unpack[asks.Limits],
    ) -> api.JobView:
        """Submit and wait for the end, in one request if it does not take long. Raises `TimeoutError`.

        Without a key it gets a random one: a lost answer does not make two jobs.
        """
        until = None if timeout is None else self._runtime.now() + timeout
        job = await self.ask(
            asks.submit_and_wait(
                topic,
                payload,
                idempotency_key=idempotency_key or self._runtime.token(),
                wait_s=LONG_POLL_S if timeout is None else min(LONG_POLL_S, timeout),
                **limits,
            )
        )
        if job.state in TERMINAL:
            return job
        return await self.wait(job.id, None if until is None else until - self._runtime.now())

    async def wait(self, job_id: str, timeout: float | None = None) -> api.JobView:  # noqa: ASYNC109  (what it waits for outlives a cancelled wait)
        """The job once it is terminal. Outlives a restart of the plane. Raises `TimeoutError`."""
        return await self._wait(for_job(job_id, timeout, self._runtime.now()))

    async def wait_run(self, run_id: str, timeout: float | None = None) -> RunView:  # noqa: ASYNC109  (likewise)
        """The run once it has ended. Outlives a restart of the plane. Raises `TimeoutError`."""
        return await self._wait(for_run(run_id, timeout, self._runtime.now()))

    async def _wait(self, waiting: Waiting[W]) -> W:
        now, outage = self._runtime.now, Outage()
        while True:
            try:
                found = await self.ask(waiting.ask(now()))
            except HoldfastError as error:
                pause_s = outage.pause_after(error, now())
            else:
                if waiting.is_over(found):
                    return found
                outage.reached()
                pause_s = waiting.pause_after(found, now())
            await asyncio.sleep(self._runtime.jitter(pause_s))

    async def watch(
        self, job_id: str | None = None, *, kinds: Sequence[str] = (), after: int | None = None
    ) -> AsyncIterator[api.EventView]:
        """Events as they happen, none left out, over reconnections. Of one job: from its beginning to its end."""
        async for event in self._watch(Watching(job_id, kinds, after)):
            yield event

    async def watch_run(self, run_id: str, *, after: int | None = None) -> AsyncIterator[api.EventView]:
        """What happens to a run and its jobs, from its beginning to its end."""
        async for event in self._watch(Watching(None, (), after, run_id=run_id)):
            yield event

    async def _watch(self, watching: Watching) -> AsyncIterator[api.EventView]:
        outage = Outage()
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
