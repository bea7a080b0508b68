"""One started delivery in the supervisor's hands: what it believes of the lease, and why it was stopped."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from msgspec import Raw

from holdfast.api import Outcome
from holdfast.locks.policy import RenewalPolicy
from holdfast.locks.renewal import Verdict, believe, doubt, judge
from holdfast.worker.ending import failed
from holdfast.worker.link import Delivered
from holdfast.worker.wire import Done, Work

RENEW_EVERY_S_MAX = 5.0
"""A cancel is heard with a renewal: no lease is so long that it may wait longer than this."""


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


def renewal_policy(lease_s: float) -> RenewalPolicy:
    return RenewalPolicy(
        ttl_s=lease_s,
        every_s=min(lease_s / 3, RENEW_EVERY_S_MAX),
        timeout_s=min(2.0, lease_s / 6),
        failures_max=3,
        margin_s=lease_s / 10,
    )


class Attempt:
    def __init__(self, delivered: Delivered, *, claimed_at: float, now: float) -> None:
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
        )
        self._policy = renewal_policy(delivered.lease_s)
        # The plane began to count after the claim was sent, and we cannot know how long after.
        self._belief = believe(self._policy, sent_at=claimed_at)
        # A claim that waited for long leaves nothing to trust: then a renewal comes before the handler.
        self._proof = asyncio.Event()
        self._proved = judge(self._belief, self._policy, now) is not Verdict.ABANDON
        self.ends_at = now + delivered.running_timeout_s
        self.renewing = False
        self.stopped: Stop | None = None
        self.body: Callable[[Stop], None] | None = None
        """Stops the handler, once it runs."""
        self.asks: set[asyncio.Task[Any]] = set()
        """What it has asked of the plane and not been answered."""

    @property
    def ref(self) -> tuple[str, int]:
        return self.job_id, self.fence

    @property
    def patience_s(self) -> float:
        return self._policy.timeout_s

    @property
    def is_lost(self) -> bool:
        return self.stopped in (Stop.LOST, Stop.STALE)

    def look_at(self) -> float:
        """The earliest time at which `judge` or the running timeout says something else."""
        trusted_until = self._belief.trusted_until if self._proved else math.inf
        look = trusted_until if self.renewing else min(self._belief.due, trusted_until)
        return min(look, self.ends_at) if self.stopped is None else look

    def judge(self, now: float) -> Verdict:
        if not self._proved and self._belief.failures < self._policy.failures_max:
            return Verdict.RENEW if now >= self._belief.due else Verdict.HOLD
        return judge(self._belief, self._policy, now)

    async def wait_proved(self) -> None:
        """Until the lease may be trusted, or the attempt was stopped."""
        if not self._proved and self.stopped is None:
            await self._proof.wait()

    def renewed(self, *, sent_at: float) -> None:
        self.renewing = False
        self._belief = believe(self._policy, sent_at=sent_at)
        self._proved = True
        self._proof.set()

    def not_renewed(self, *, tried_at: float) -> None:
        self.renewing = False
        self._belief = doubt(self._belief, self._policy, tried_at=tried_at)

    def remember(self, ask: asyncio.Task[Any]) -> None:
        self.asks.add(ask)
        ask.add_done_callback(self.asks.discard)

    def stop(self, why: Stop) -> None:
        """Stop the handler. A weightier reason than the one it was stopped for is obeyed as well."""
        if self.stopped is not None and _RANK.index(why) <= _RANK.index(self.stopped):
            return
        self.stopped = why
        self._proof.set()
        if self.body is not None:
            self.body(why)

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
                case Stop.TIMED_OUT:
                    done = failed("running-timeout", "ran longer than its topic allows", retryable=False)
                case Stop.CANCELLED | Stop.HANDED_BACK as why:
                    done = Done(why.value)
                case None if done.outcome == "cancelled":
                    done = failed("handler-cancelled", "the handler cancelled itself")
        return report(self.ref, done)


def report(ref: tuple[str, int], done: Done) -> Outcome:
    return Outcome(
        job_id=ref[0],
        fence=ref[1],
        outcome=done.outcome,
        result=Raw(done.result) if done.outcome == "succeeded" else None,
        error=done.error,
        retryable=done.retryable,
    )
