"""The client for code that runs in a loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Self, TypeVar, Unpack

from holdfast import api
from holdfast.api.runs import RunView
from holdfast.client import asks, replies, run_asks
from holdfast.client.async_connections import AsyncConnections
from holdfast.client.together import Together
from holdfast.client.verbs import Verbs
from holdfast.client.waiting import PAUSE_S, SILENCE_S, Outage, Waiting, Watching, check_time, for_job, for_run, within
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
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._plane = replies.Plane.at(url, api_key=api_key, tenant=tenant, actor=actor)
        self._connections = AsyncConnections(self._plane)
        self._together = Together(self._ask_alone)
        self._runtime = runtime
        self._was_answered = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give its connections up."""
        self._connections.close()

    async def ask(self, ask: asks.Ask[T]) -> T:
        """The answer to a request that is given as a value."""
        if ask.may_join:
            joined: T = await self._together.submit(ask)
            return joined
        return await self._ask_alone(ask)

    async def _ask_alone(self, ask: asks.Ask[T]) -> T:
        tries = replies.Tries(ask, self._runtime)
        while True:
            try:
                reply = await self._connections.request(ask, within_s=tries.until - self._runtime.now())
                answer = replies.read(ask, reply, self._plane)
            except HoldfastError as error:
                pause_s = tries.pause_after(error)
            else:
                self._was_answered = True
                return answer
            await asyncio.sleep(pause_s)

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
        asked = asks.submit_and_wait(
            topic, payload, idempotency_key=idempotency_key or self._runtime.token(), **within(timeout), **limits
        )
        job = await self._begin(asked, until)
        if job.state in TERMINAL:
            return job
        left_s = None if until is None else until - self._runtime.now()
        return await self._wait(for_job(job.id, left_s, self._runtime.now()))

    async def wait(self, job_id: str, timeout: float | None = None) -> api.JobView:  # noqa: ASYNC109  (what it waits for outlives a cancelled wait)
        """The job once it is terminal. Outlives a restart of the plane. Raises `TimeoutError`."""
        return await self._wait(for_job(job_id, timeout, self._runtime.now()))

    async def run_workflow(
        self,
        workflow: str,
        input: Any = None,  # noqa: A002  (what it is called everywhere)
        *,
        timeout: float | None = None,  # noqa: ASYNC109  (as `wait`)
        idempotency_key: str | None = None,
        **options: Unpack[run_asks.RunOptions],
    ) -> RunView:
        """Start a run and wait for its end, in one request if it does not take long. Raises `TimeoutError`.

        Without a key it gets a random one: a lost answer does not make two runs.
        """
        until = None if timeout is None else self._runtime.now() + timeout
        asked = run_asks.start_and_wait(
            workflow, input, idempotency_key=idempotency_key or self._runtime.token(), **within(timeout), **options
        )
        run = await self._begin(asked, until)
        if run.state.upper() in TERMINAL:
            return run
        left_s = None if until is None else until - self._runtime.now()
        return await self._wait(for_run(run.id, left_s, self._runtime.now()))

    async def wait_run(self, run_id: str, timeout: float | None = None) -> RunView:  # noqa: ASYNC109  (likewise)
        """The run once it has ended. Outlives a restart of the plane. Raises `TimeoutError`."""
        return await self._wait(for_run(run_id, timeout, self._runtime.now()))

    async def _begin(self, ask: asks.Ask[W], until: float | None) -> W:
        try:
            return await self.ask(ask)
        except HoldfastError as error:
            check_time(error, until, self._runtime.now())
            raise

    async def _wait(self, waiting: Waiting[W]) -> W:
        now, outage = self._runtime.now, Outage(was_reached=self._was_answered)
        while True:
            try:
                found = await self.ask(waiting.ask(now()))
            except HoldfastError as error:
                pause_s = waiting.pause_without(error, outage, now())
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
        rerun = (await self.ask(run_asks.get_run(run_id))).generation
        async for event in self._watch(Watching(None, (), after, run_id=run_id, rerun=rerun)):
            yield event

    async def _watch(self, watching: Watching) -> AsyncIterator[api.EventView]:
        outage = Outage(was_reached=self._was_answered)
        while not watching.ended:
            pause_s = PAUSE_S
            try:
                async with aclosing(self._connections.stream(watching.target(), silence_s=SILENCE_S)) as lines:
                    async for line in lines:
                        outage.reached()
                        event = watching.hear(line)
                        if event is not None:
                            yield event
                        if watching.ended:
                            return
            except HoldfastError as error:
                pause_s = outage.pause_after(error, self._runtime.now())
            await asyncio.sleep(self._runtime.jitter(pause_s))
