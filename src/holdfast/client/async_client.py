"""The client for code that runs in a loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self, TypeVar, Unpack

import httpx2

from holdfast import api
from holdfast.client import asks, replies
from holdfast.core.job import TERMINAL
from holdfast.errors import HoldfastError
from holdfast.locks.runtime import SYSTEM

T = TypeVar("T")


class AsyncClient:
    def __init__(
        self,
        url: str = "http://127.0.0.1:7070",
        *,
        api_key: str = "",
        tenant: str = "default",
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx2.AsyncClient(**replies.options(url, api_key, tenant), transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(self, ask: asks.Ask[T]) -> T:
        for pause_s in (*replies.PAUSES_S, None):
            try:
                response = await self._http.request(**ask.arguments())
            except httpx2.TransportError as why:
                error: HoldfastError = replies.unreachable(self._http.base_url, why)
            else:
                if response.status_code < 400:
                    return ask.read(response.content)
                error = replies.to_error(response)
            if pause_s is None or not replies.worth_repeating(ask, error):
                raise error
            await asyncio.sleep(SYSTEM.jitter(pause_s))
        raise AssertionError("the last try answers or raises")

    async def submit(
        self, topic: str, payload: Any = None, *, idempotency_key: str | None = None, **limits: Unpack[asks.Limits]
    ) -> api.JobView:
        """Durable when it returns. With a key, the same submission again gives the same job."""
        return await self.ask(
            asks.submit(api.NewJob(topic=topic, payload=payload, idempotency_key=idempotency_key, **limits))
        )

    async def submit_many(self, jobs: Sequence[api.NewJob]) -> Sequence[api.Submitted]:
        """One answer per job, in order; a bad one does not fail the others."""
        return (await self.ask(asks.submit_many(jobs))).jobs

    async def get(self, job_id: str) -> api.JobView:
        return await self.ask(asks.job(job_id))

    async def wait(self, job_id: str, timeout: float | None = None) -> api.JobView:  # noqa: ASYNC109  (what it waits for outlives a cancelled wait)
        """The job once it is terminal. Raises `TimeoutError`."""
        until = float("inf") if timeout is None else SYSTEM.now() + timeout
        while True:
            job = await self.ask(asks.job(job_id, wait_s=min(asks.LONG_POLL_S, max(0.0, until - SYSTEM.now()))))
            if job.state in TERMINAL:
                return job
            if SYSTEM.now() >= until:
                raise TimeoutError(f"job {job_id} is still {job.state}")

    async def list(self, **wanted: Unpack[asks.JobsWanted]) -> api.JobPage:
        return await self.ask(asks.jobs(wanted))

    async def events(self, job_id: str, *, cursor: str | None = None, limit: int = 100) -> api.EventPage:
        return await self.ask(asks.events(job_id, cursor, limit))

    async def watch(
        self, job_id: str | None = None, *, kinds: Sequence[str] = (), after: int | None = None
    ) -> AsyncIterator[api.EventView]:
        """Events as they happen, none left out, over reconnections. Of one job: from its beginning to its end."""
        watching = replies.Watching(job_id, kinds, after)
        while not watching.ended:
            try:
                async with self._http.stream(
                    "GET", "/v1/events", params=watching.query(), timeout=replies.SILENCE_S
                ) as stream:
                    if stream.status_code >= 400:
                        await stream.aread()
                        raise replies.to_error(stream)
                    async for line in stream.aiter_lines():
                        event = watching.hear(line)
                        if event is not None:
                            yield event
                        if watching.ended:
                            return
            except httpx2.ConnectError as why:
                raise replies.unreachable(self._http.base_url, why) from why
            except httpx2.TransportError:
                pass  # the stream broke: go on where it was
            await asyncio.sleep(SYSTEM.jitter(1.0))

    async def cancel(self, job_id: str, *, reason: str = "", version: int | None = None) -> api.JobView:
        return await self.ask(asks.cancel(job_id, reason, version))

    async def retry(self, job_id: str) -> api.JobView:
        return await self.ask(asks.again(f"/v1/jobs/{asks.part(job_id)}:retry"))

    async def dead_letters(self, *, cursor: str | None = None, limit: int = 100) -> api.DeadLetterPage:
        return await self.ask(asks.get("/v1/dead-letters", api.DeadLetterPage, ("cursor", cursor), ("limit", limit)))

    async def dead_letter(self, number: int) -> api.DeadLetterView:
        return await self.ask(asks.get(f"/v1/dead-letters/{number}", api.DeadLetterView))

    async def replay(self, number: int) -> api.JobView:
        return await self.ask(asks.again(f"/v1/dead-letters/{number}:replay"))

    async def effects(self, *, state: str | None = None, job_id: str | None = None, limit: int = 100) -> api.Effects:
        return await self.ask(asks.effects(state, job_id, limit))

    async def resolve_effect(self, job_id: str, key: str, found: api.ResolveEffect) -> api.EffectView:
        return await self.ask(asks.resolve(job_id, key, found))

    async def workers(self) -> api.Workers:
        return await self.ask(asks.get("/v1/workers", api.Workers))

    async def drain(self, worker: str) -> None:
        await self.ask(asks.drain(worker))

    async def locks(self, *, family: str | None = None, cursor: str | None = None, limit: int = 100) -> api.LocksPage:
        return await self.ask(
            asks.get("/v1/locks", api.LocksPage, ("family", family), ("cursor", cursor), ("limit", limit))
        )
