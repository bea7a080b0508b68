"""Waiting for a job and watching events, without the waiting: what to ask next, and what was heard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Generic, Protocol, TypedDict, TypeVar
from urllib.parse import urlencode

import msgspec

from holdfast import api
from holdfast.api.runs import RunView
from holdfast.client import asks, run_asks
from holdfast.core.family import fits
from holdfast.core.states import TERMINAL
from holdfast.errors import HoldfastError, PlaneUnavailable

LONG_POLL_S = 30.0
SILENCE_S = 40.0
"""An event stream says something at least every 15 s; after this it is taken for dead."""
OUTAGE_S = 30.0
"""A plane that was reached before may be away for so long, as while it is restarted."""
PAUSE_S = 1.0
HEAR_S = 1.0
"""A wait that is over has as much left for the answer that says so. What has not come by then comes too late."""
_RUN_ENDS = ("run.succeeded", "run.failed", "run.cancelled", "run.timeout")


class Outage:
    """Who waits long outlives a restart of the plane, but not a plane that was never there."""

    def __init__(self, *, was_reached: bool = False) -> None:
        self._was_reached = was_reached
        self._began_at: float | None = None

    def reached(self) -> None:
        self._was_reached, self._began_at = True, None

    def pause_after(self, error: HoldfastError, now: float) -> float:
        """How long to wait before it is tried again. Raises the error if it is not worth it."""
        if self._began_at is None:
            self._began_at = now
        if not self._was_reached or not error.retryable or now - self._began_at >= OUTAGE_S:
            raise error
        return PAUSE_S


class Times(TypedDict):
    wait_s: float
    """How long the plane may wait with its answer."""
    within_s: float
    """As in `Ask`."""


def within(timeout: float | None) -> Times:
    """For one request of somebody who has so much time left; None: any."""
    left_s = float("inf") if timeout is None else timeout
    return Times(wait_s=min(LONG_POLL_S, left_s), within_s=left_s + HEAR_S)


def check_time(error: HoldfastError, until: float | None, now: float) -> None:
    """Of what was to be begun and waited for. Raises `TimeoutError` if there was no more time for another answer."""
    if until is not None and now >= until and isinstance(error, PlaneUnavailable):
        raise TimeoutError(f"no answer in time, and it may or may not have begun: {error}") from error


class _Ending(Protocol):
    @property
    def state(self) -> str: ...


T = TypeVar("T", bound=_Ending)


class Waiting(Generic[T]):
    """One wait for the end of a job or a run, which `later` asks for."""

    def __init__(self, what: str, later: Callable[[float], asks.Ask[T]], timeout: float | None, now: float) -> None:
        self._what = what
        self._later = later
        self._until = float("inf") if timeout is None else now + timeout
        self._asked_until = now

    def ask(self, now: float) -> asks.Ask[T]:
        times = within(max(0.0, self._until - now))
        self._asked_until = now + times["wait_s"]
        return replace(self._later(times["wait_s"]), within_s=times["within_s"])

    def is_over(self, found: T) -> bool:
        # Runs end in the same states as jobs, written smaller.
        return found.state.upper() in TERMINAL

    def pause_after(self, found: T, now: float) -> float:
        """How long to wait before it is asked for again. Raises `TimeoutError`."""
        if now >= self._until:
            raise TimeoutError(f"{self._what} is still {found.state}")
        # Answered before its time: the plane is shutting down, and would do so again at once.
        return PAUSE_S if now < self._asked_until else 0.0

    def pause_without(self, error: HoldfastError, outage: Outage, now: float) -> float:
        """As `pause_after`, where there was no answer. Raises the error if a plane is not worth waiting for."""
        if now >= self._until:
            raise TimeoutError(f"{self._what} had not ended when the plane was last heard of: {error}") from error
        pause_s = outage.pause_after(error, now)
        return min(pause_s, self._until - now)


def for_job(job_id: str, timeout: float | None, now: float) -> Waiting[api.JobView]:
    return Waiting(f"job {job_id}", partial(asks.get_later, job_id), timeout, now)


def for_run(run_id: str, timeout: float | None, now: float) -> Waiting[RunView]:
    return Waiting(f"run {run_id}", partial(run_asks.get_run_later, run_id), timeout, now)


class Watching:
    """A subscription's place in the stream of events, kept over reconnections."""

    def __init__(
        self, job_id: str | None, kinds: Sequence[str], after: int | None, *, run_id: str | None = None, rerun: int = 0
    ) -> None:
        self._job_id = job_id
        self._run_id = run_id
        # A run that was run again has ended before: that end is not its last. Whoever comes in later may have missed it.
        self._rerun = rerun if after is None else 0
        self._kinds = kinds
        # A job's history is short and wanted whole; everybody's begins now.
        self._after = 0 if after is None and (job_id or run_id) else after
        self._message: dict[str, str] = {}
        self.ended = False

    def target(self) -> str:
        """What the next connection asks for, which begins after the last message that was heard whole."""
        self._message = {}
        # The end of a job must be heard, whatever kinds are wanted.
        kinds = () if self._job_id is not None else self._kinds
        given = [
            ("job", self._job_id),
            ("run", self._run_id),
            ("after", self._after),
            *(("kind", kind) for kind in kinds),
        ]
        return "/v1/events?" + urlencode([(name, value) for name, value in given if value is not None])

    def hear(self, line: str) -> api.EventView | None:
        """One line of the stream; the event that it completes, if it does and it is wanted."""
        if line:
            name, _, value = line.partition(": ")
            self._message[name] = value
            return None
        message, self._message = self._message, {}
        if "id" in message:
            self._after = int(message["id"])
        if message.get("event") == "gap":
            gap = asks.read_as(Gap)(message["data"].encode())
            self._after = gap.resume_after
            self.ended = self._job_id is not None and gap.reason == "pruned"
        elif "data" in message:
            event = asks.read_as(api.EventView)(message["data"].encode())
            self.ended = self._is_last(event)
            return event if self._wants(event.kind) else None
        return None

    def _is_last(self, event: api.EventView) -> bool:
        if self._run_id is not None:
            self._rerun -= event.kind == "run.rerun"
            return self._rerun <= 0 and not event.job_id and event.kind in _RUN_ENDS
        return self._job_id is not None and event.state in TERMINAL

    def _wants(self, kind: str) -> bool:
        return not self._kinds or fits(kind, *self._kinds)


class Gap(msgspec.Struct):
    reason: str
    resume_after: int
