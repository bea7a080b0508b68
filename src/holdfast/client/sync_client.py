"""The client for code without a loop. May be shared by threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self, TypeVar

import httpx2

from holdfast import api
from holdfast.client import asks, replies
from holdfast.client.verbs import Verbs
from holdfast.client.waiting import PAUSE_S, SILENCE_S, Outage, Waiting, Watching
from holdfast.core.states import TERMINAL
from holdfast.errors import HoldfastError
from holdfast.locks.runtime import SYSTEM

T = TypeVar("T")


class Client(Verbs):
    def __init__(
        self,
        url: str = "http://127.0.0.1:7070",
        *,
        api_key: str = "",
        tenant: str = "default",
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._http = httpx2.Client(**replies.options(url, api_key, tenant), transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def ask(self, ask: asks.Ask[T]) -> T:
        tries = replies.Tries(repeatable=ask.repeatable, jitter=SYSTEM.jitter)
        while True:
            try:
                return replies.read(ask, self._http.request(**ask.arguments()))
            except httpx2.TransportError as why:
                error: HoldfastError = replies.unreachable(self._http.base_url, why)
            except HoldfastError as refused:
                error = refused
            SYSTEM.sleep(tries.pause_after(error))

    def wait(self, job_id: str, timeout: float | None = None) -> api.JobView:
        """The job once it is terminal. Outlives a restart of the plane. Raises `TimeoutError`."""
        now = SYSTEM.now
        waiting, outage = Waiting(job_id, timeout, now()), Outage()
        while True:
            try:
                job = self.ask(waiting.ask(now()))
            except HoldfastError as error:
                pause_s = outage.pause_after(error, now())
            else:
                if job.state in TERMINAL:
                    return job
                outage.reached()
                pause_s = waiting.pause_after(job, now())
            SYSTEM.sleep(SYSTEM.jitter(pause_s))

    def watch(
        self, job_id: str | None = None, *, kinds: Sequence[str] = (), after: int | None = None
    ) -> Iterator[api.EventView]:
        """Events as they happen, none left out, over reconnections. Of one job: from its beginning to its end."""
        watching, outage = Watching(job_id, kinds, after), Outage()
        while not watching.ended:
            pause_s = PAUSE_S
            try:
                with self._http.stream("GET", "/v1/events", params=watching.query(), timeout=SILENCE_S) as stream:
                    if stream.status_code >= 400:
                        stream.read()
                        raise replies.to_error(stream)
                    for line in stream.iter_lines():
                        outage.reached()
                        event = watching.hear(line)
                        if event is not None:
                            yield event
                        if watching.ended:
                            return
            except httpx2.TransportError as why:
                pause_s = outage.pause_after(replies.unreachable(self._http.base_url, why), SYSTEM.now())
            except HoldfastError as error:
                pause_s = outage.pause_after(error, SYSTEM.now())
            SYSTEM.sleep(SYSTEM.jitter(pause_s))
