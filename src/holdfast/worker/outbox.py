"""The outbox: outcomes on their way to the plane, in batches, until each is answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from msgspec import Raw

from holdfast.api import Outcome
from holdfast.locks.runtime import Runtime
from holdfast.worker.attempt import report
from holdfast.worker.ending import failed
from holdfast.worker.link import Completed, Delivered, Link, Ref, Refused, Unreachable
from holdfast.worker.refills import Refills

logger = logging.getLogger("holdfast.worker")

BATCH_MAX = 1000
BATCH_BYTES_MAX = 1 << 19
RETRY_S = 0.2
RETRY_S_MAX = 2.0


class Outbox:
    """Outcomes are kept however long the plane is away: it accepts those whose lease it has not ended.

    `accept` is given what comes with an answer, and when the outcomes were sent.
    """

    def __init__(
        self, link: Link, refills: Refills, accept: Callable[[Sequence[Delivered], float], None], *, runtime: Runtime
    ) -> None:
        self._link = link
        self._refills = refills
        self._accept = accept
        self._runtime = runtime
        self._waiting: list[Outcome] = []
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, outcome: Outcome) -> None:
        self._waiting.append(outcome)
        self._filled.set()
        self._empty.clear()

    def refs(self) -> list[Ref]:
        return [(outcome.job_id, outcome.fence) for outcome in self._waiting]

    async def wait_empty(self) -> None:
        await self._empty.wait()

    async def run(self) -> None:
        """Send until cancelled."""
        wait_s = RETRY_S
        while True:
            await self._filled.wait()
            batch = self._next_batch()
            try:
                await self._send(batch)
                wait_s = RETRY_S
            except Unreachable as error:
                logger.warning("outcome.delayed count=%d error=%s", len(self._waiting), error)
                await asyncio.sleep(self._runtime.jitter(wait_s))
                wait_s = min(2 * wait_s, RETRY_S_MAX)
                continue
            del self._waiting[: len(batch)]
            if not self._waiting:
                self._filled.clear()
                self._empty.set()

    def _next_batch(self) -> list[Outcome]:
        size = 0
        for n, outcome in enumerate(self._waiting[:BATCH_MAX]):
            size += len(bytes(outcome.result)) if isinstance(outcome.result, Raw) else 0
            if size > BATCH_BYTES_MAX and n:
                return self._waiting[:n]
        return self._waiting[:BATCH_MAX]

    async def _send(self, batch: list[Outcome]) -> None:
        try:
            completed = await self._complete(batch)
        except Refused as refused:
            if refused.status in {401, 403}:
                # Nothing is wrong with the outcomes: somebody is about to put the key right.
                raise Unreachable(str(refused)) from refused
            await self._send_each(batch, refused)
            return
        for standing in completed.attempts:
            if standing.status != "ok":
                logger.warning("outcome.refused job_id=%s code=%s", standing.job_id, standing.status)

    async def _complete(self, batch: list[Outcome]) -> Completed:
        with self._refills.asking(len(batch)) as refill:
            sent_at = self._runtime.now()
            completed = await self._link.complete(batch, refill=refill)
            self._accept(completed.deliveries, sent_at)
        return completed

    async def _send_each(self, batch: list[Outcome], refused: Refused) -> None:
        """One that the plane cannot take (too large, too deep) must not hold up the others."""
        if len(batch) > 1:
            for outcome in batch:
                await self._send([outcome])
            return
        [outcome] = batch
        if refused.status in {404, 409} or outcome.outcome != "succeeded":
            logger.warning("outcome.refused job_id=%s code=%s", outcome.job_id, refused.code)
            return
        done = failed("result-refused", str(refused), retryable=False)
        await self._send([report((outcome.job_id, outcome.fence), done)])
