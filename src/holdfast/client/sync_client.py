"""The client for code without a loop. May be shared by threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Self, TypeVar, Unpack

from holdfast import api
from holdfast.api.runs import RunView
from holdfast.client import asks, replies, run_asks
from holdfast.client.connections import Connections
from holdfast.client.verbs import Verbs
from holdfast.client.waiting import PAUSE_S, SILENCE_S, Outage, Waiting, Watching, check_time, for_job, for_run, within
from holdfast.core.states import TERMINAL
from holdfast.errors import HoldfastError
from holdfast.locks.runtime import SYSTEM

T = TypeVar("T")
W = TypeVar("W", api.JobView, RunView)


class Client(Verbs):
    def __init__(
        self,
        url: str = "http://127.0.0.1:7070",
        *,
        api_key: str = "",
        tenant: str = "default",
        actor: str = "",
    ) -> None:
        self._plane = replies.Plane.at(url, api_key=api_key, tenant=tenant, actor=actor)
        self._connections = Connections(self._plane)
        self._was_answered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give its connections up."""
        self._connections.close()

    def ask(self, ask: asks.Ask[T]) -> T:
        """The answer to a request that is given as a value."""
        tries = replies.Tries(ask, SYSTEM)
        while True:
            try:
                answer = replies.read(ask, self._connections.request(ask, until=tries.until), self._plane)
            except HoldfastError as error:
                pause_s = tries.pause_after(error)
            else:
                self._was_answered = True
                return answer
            SYSTEM.sleep(pause_s)

    def run(
        self,
        topic: str,
        payload: Any = None,
        *,
        timeout: float | None = None,
        idempotency_key: str | None = None,
        **limits: Unpack[asks.Limits],
    ) -> api.JobView:
        """Submit and wait for the end, in one request if it does not take long. Raises `TimeoutError`.

        Without a key it gets a random one: a lost answer does not make two jobs.
        """
        until = None if timeout is None else SYSTEM.now() + timeout
        asked = asks.submit_and_wait(
            topic, payload, idempotency_key=idempotency_key or SYSTEM.token(), **within(timeout), **limits
        )
        job = self._begin(asked, until)
        if job.state in TERMINAL:
            return job
        left_s = None if until is None else until - SYSTEM.now()
        return self._wait(for_job(job.id, left_s, SYSTEM.now()))

    def wait(self, job_id: str, timeout: float | None = None) -> api.JobView:
        """The job once it is terminal. Outlives a restart of the plane. Raises `TimeoutError`."""
        return self._wait(for_job(job_id, timeout, SYSTEM.now()))

    def run_workflow(
        self,
        workflow: str,
        input: Any = None,  # noqa: A002  (what it is called everywhere)
        *,
        timeout: float | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[run_asks.RunOptions],
    ) -> RunView:
        """Start a run and wait for its end, in one request if it does not take long. Raises `TimeoutError`.

        Without a key it gets a random one: a lost answer does not make two runs.
        """
        until = None if timeout is None else SYSTEM.now() + timeout
        asked = run_asks.start_and_wait(
            workflow, input, idempotency_key=idempotency_key or SYSTEM.token(), **within(timeout), **options
        )
        run = self._begin(asked, until)
        if run.state.upper() in TERMINAL:
            return run
        left_s = None if until is None else until - SYSTEM.now()
        return self._wait(for_run(run.id, left_s, SYSTEM.now()))

    def wait_run(self, run_id: str, timeout: float | None = None) -> RunView:
        """The run once it has ended. Outlives a restart of the plane. Raises `TimeoutError`."""
        return self._wait(for_run(run_id, timeout, SYSTEM.now()))

    def _begin(self, ask: asks.Ask[W], until: float | None) -> W:
        try:
            return self.ask(ask)
        except HoldfastError as error:
            check_time(error, until, SYSTEM.now())
            raise

    def _wait(self, waiting: Waiting[W]) -> W:
        now, outage = SYSTEM.now, Outage(was_reached=self._was_answered)
        while True:
            try:
                found = self.ask(waiting.ask(now()))
            except HoldfastError as error:
                pause_s = waiting.pause_without(error, outage, now())
            else:
                if waiting.is_over(found):
                    return found
                outage.reached()
                pause_s = waiting.pause_after(found, now())
            SYSTEM.sleep(SYSTEM.jitter(pause_s))

    def watch(
        self, job_id: str | None = None, *, kinds: Sequence[str] = (), after: int | None = None
    ) -> Iterator[api.EventView]:
        """Events as they happen, none left out, over reconnections. Of one job: from its beginning to its end."""
        yield from self._watch(Watching(job_id, kinds, after))

    def watch_run(self, run_id: str, *, after: int | None = None) -> Iterator[api.EventView]:
        """What happens to a run and its jobs, from its beginning to its end."""
        rerun = self.ask(run_asks.get_run(run_id)).generation
        yield from self._watch(Watching(None, (), after, run_id=run_id, rerun=rerun))

    def _watch(self, watching: Watching) -> Iterator[api.EventView]:
        outage = Outage(was_reached=self._was_answered)
        while not watching.ended:
            pause_s = PAUSE_S
            try:
                with closing(self._connections.stream(watching.target(), silence_s=SILENCE_S)) as lines:
                    for line in lines:
                        outage.reached()
                        event = watching.hear(line)
                        if event is not None:
                            yield event
                        if watching.ended:
                            return
            except HoldfastError as error:
                pause_s = outage.pause_after(error, SYSTEM.now())
            SYSTEM.sleep(SYSTEM.jitter(pause_s))
