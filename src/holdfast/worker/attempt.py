"""One started delivery in the supervisor's hands: its lease, its handler, and why that was stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from holdfast import tracing
from holdfast.api import Outcome
from holdfast.worker.ending import failed
from holdfast.worker.lease import AttemptLease
from holdfast.worker.link import Delivered, Ref
from holdfast.worker.wire import Done, Work


class Stop(StrEnum):
    """Why a handler was stopped. What comes later here outranks what came earlier."""

    CANCELLED = "cancelled"
    HANDED_BACK = "handed_back"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    """The trust window ended: nobody may go on, though the plane may not know yet."""
    STALE = "stale"
    """The plane said so: the job has gone on without this attempt."""


_RANK = list(Stop)


class Attempt:
    """Belongs to the worker's loop; only its lease is the keeper's."""

    def __init__(self, delivered: Delivered, *, began_at: float) -> None:
        self.job_id = delivered.job_id
        self.fence = delivered.fence
        self.work = Work(
            delivered.job_id,
            delivered.fence,
            delivered.topic,
            bytes(delivered.payload),
            delivered.attempt,
            delivered.max_attempts,
            delivered.labels,
            delivered.risk,
            delivered.trace,
            delivered.decision,
        )
        self.lease = AttemptLease(
            lease_s=delivered.lease_s, running_timeout_s=delivered.running_timeout_s, began_at=began_at
        )
        self.stopped: Stop | None = None
        self.body: Callable[[Stop], None] | None = None
        """Stops the handler, once it runs."""
        self.kill: Callable[[], None] | None = None
        """Ends the handler by force, from any thread. Only a child process can be ended so."""
        self.asks: set[asyncio.Task[Any]] = set()
        """What it has asked of the plane and not been answered."""

    @contextmanager
    def traced(self) -> Iterator[tracing.Traced]:
        """A span around the attempt. What the handler hands on of its trace belongs to this span."""
        work = self.work
        name = f"process {work.topic}"
        with tracing.span(
            name, "consumer", trace=work.trace, job_id=work.job_id, fence=work.fence, attempt=work.attempt
        ) as traced:
            if traced.trace != work.trace:
                self.work = replace(work, trace=traced.trace)
            yield traced

    def known(self) -> dict[str, str | int]:
        """For log lines."""
        work = self.work
        ids: dict[str, str | int] = {"job_id": work.job_id, "fence": work.fence, "topic": work.topic}
        return {**ids, "trace": tracing.trace_id(work.trace)} if work.trace else ids

    @property
    def ref(self) -> Ref:
        return self.job_id, self.fence

    @property
    def is_lost(self) -> bool:
        return self.stopped in (Stop.LOST, Stop.STALE)

    def remember(self, ask: asyncio.Task[Any]) -> None:
        self.asks.add(ask)
        ask.add_done_callback(self.asks.discard)

    def stop(self, why: Stop) -> None:
        """Stop the handler. A weightier reason than the one it was stopped for is obeyed as well."""
        if self.stopped is not None and _RANK.index(why) <= _RANK.index(self.stopped):
            return
        self.stopped = why
        if self.body is not None:
            self.body(why)

    def stoppable(self, body: Callable[[Stop], None]) -> None:
        """The handler is about to run, and this stops it."""
        self.body = body
        if self.stopped is not None:  # before there was anything to stop
            body(self.stopped)

    def outcome(self, done: Done) -> Outcome | None:
        """What to report; None where the plane has already gone on without this attempt."""
        if done.outcome != "succeeded":
            # How a stopped handler ended says less than why it was stopped.
            match self.stopped:
                case Stop.STALE:
                    return None
                case Stop.LOST:
                    # It is over, and the plane need not wait for the lease to find out.
                    done = failed("lease-lost", "the plane could not be reached to renew the lease")
                case Stop.TIMED_OUT | Stop.CANCELLED | Stop.HANDED_BACK as why:
                    done = Done(why.value, error=done.error if done.outcome == "cancelled" else None)
                case None if done.outcome == "cancelled":
                    done = failed("handler-cancelled", "the handler cancelled itself")
        return report(self.ref, done)


def report(ref: Ref, done: Done) -> Outcome:
    return Outcome(
        job_id=ref[0],
        fence=ref[1],
        outcome=done.outcome,
        result=Raw(done.result) if done.outcome == "succeeded" else None,
        error=done.error,
        retryable=done.retryable,
    )
