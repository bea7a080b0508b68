"""The keeper: a thread that renews the leases of a worker's attempts, and hears who is to be stopped.

It has an event loop and connections of its own, so that neither a handler in the worker's loop
nor a burst of outcomes costs any lease. Children that have lost theirs are killed from here; other
handlers are stopped in the worker's loop. Should that be stuck when a lease is about to expire, the
dead-man's timer ends the process.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from contextlib import suppress

from holdfast.locks.renewal import Verdict
from holdfast.locks.runtime import Runtime
from holdfast.worker.attempt import Attempt, Stop
from holdfast.worker.introduction import Introduction
from holdfast.worker.link import Link, Ref, Refused, Unreachable
from holdfast.worker.loop_guard import LoopGuard

logger = logging.getLogger("holdfast.worker")

BATCH_MAX = 1000
LOOK_S_MAX = 5.0
LOOK_S_MIN = 0.005
RETRY_S = 0.1
RETRY_S_MAX = 2.0
HEARD_S = 60.0
"""A cancel of an attempt that is not known here is not told again for this long."""


class Keeper:
    """`start`, `watch`, `forget` and `stop` belong to the worker's loop."""

    def __init__(self, link: Link, introduction: Introduction, *, runtime: Runtime) -> None:
        self._link = link
        self._introduction = introduction
        self._runtime = runtime
        self.loop_guard = LoopGuard(runtime)
        # Plain dict operations are atomic; a sweep works on a copy.
        self._attempts: dict[Ref, Attempt] = {}
        self._heard: dict[Ref, float] = {}
        """Cancels that need not be told again, and when they were told."""
        self._look_at = math.inf
        self._work_loop: asyncio.AbstractEventLoop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._look: asyncio.Event
        self._ended: asyncio.Event | None = None
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._work_loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._runtime.run_in_thread(self._run, "holdfast-worker-keeper")

    def watch(self, attempt: Attempt) -> None:
        """Before its handler begins."""
        self._attempts[attempt.ref] = attempt
        if attempt.ref in self._heard:  # the cancel was faster than the delivery
            attempt.stop(Stop.CANCELLED)
        if attempt.lease.look_at() < self._look_at:
            self._wake()

    def forget(self, attempt: Attempt) -> None:
        """Its handler has ended."""
        self._attempts.pop(attempt.ref, None)

    async def stop(self) -> None:
        """Stop renewing. May be repeated. The dead-man's timer goes on for handlers that are still in the loop."""
        self._closing = True
        if self._ended is not None:
            self._wake()
            await self._ended.wait()
            self.loop_guard.put_off()

    async def _run(self) -> None:
        self._look = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._begin(self._listen())
        try:
            while not self._closing:
                try:
                    await self._sweep_and_wait()
                except Exception:
                    # Whatever it was, it must not end the leases of all attempts, nor let them run on without one.
                    logger.exception("keeper.sweep_failed")
                    await asyncio.sleep(LOOK_S_MIN)
        finally:
            self._loop = None
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._link.close()
            self._tell_work(self._announce_end)

    def _announce_end(self) -> None:
        assert self._ended is not None
        self._ended.set()

    async def _sweep_and_wait(self) -> None:
        self._look.clear()
        # Whatever is watched from here on wakes the keeper, until it is known when to look next.
        self._look_at = math.inf
        now = self._runtime.now()
        attempts = list(self._attempts.values())
        due = [attempt for attempt in attempts if self._judge(attempt, now)]
        if due:
            due += [attempt for attempt in attempts if attempt.lease.may_join(now)]
        for start in range(0, len(due), BATCH_MAX):
            self._renew(due[start : start + BATCH_MAX])
        for ref in [ref for ref, at in self._heard.items() if now - at > HEARD_S and ref not in self._attempts]:
            del self._heard[ref]
        self.loop_guard.put_off()
        self._look_at = min([now + LOOK_S_MAX, *(attempt.lease.look_at() for attempt in attempts)])
        with suppress(TimeoutError):
            async with asyncio.timeout(max(LOOK_S_MIN, self._look_at - now)):
                await self._look.wait()

    def _judge(self, attempt: Attempt, now: float) -> bool:
        """Stop it if it must be; True if its lease is to be renewed."""
        lease = attempt.lease
        if lease.over:
            return False
        if lease.take_timeout(now):
            self._stop(attempt, Stop.TIMED_OUT)
        verdict = lease.judge(now)
        if verdict is Verdict.ABANDON:
            lease.over = True
            known = {"event": "lease.lost", **attempt.known()}
            logger.warning("lease.lost job_id=%s topic=%s", attempt.job_id, attempt.work.topic, extra=known)
            self._stop(attempt, Stop.LOST)
        return verdict is Verdict.RENEW and not lease.renewing

    def _renew(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            attempt.lease.renewing = True
        self._begin(self._renew_batch(attempts))

    async def _renew_batch(self, attempts: list[Attempt]) -> None:
        sent_at = self._runtime.now()
        within_s = min(attempt.lease.patience_s for attempt in attempts)
        try:
            standings = await self._link.renew([attempt.ref for attempt in attempts], within_s=within_s)
        except (Unreachable, Refused) as error:
            logger.warning("lease.not_renewed count=%d error=%s", len(attempts), error)
            for attempt in attempts:
                attempt.lease.not_renewed(tried_at=sent_at)
            self._look.set()
            await self._introduction.say_again(self._link, error)
        else:
            for attempt, standing in zip(attempts, standings, strict=True):
                if standing.status == "ok":
                    attempt.lease.renewed(sent_at=sent_at)
                    if standing.cancel:
                        self._cancel(attempt.ref)
                else:
                    attempt.lease.over = True
                    self._stop(attempt, Stop.STALE)
            self._look.set()

    async def _listen(self) -> None:
        """Hear of cancels as they happen. Where this fails they are heard with the next renewal."""
        retry_s = RETRY_S
        while True:
            try:
                cancelled = await self._link.listen(self._heard, wait_s=self._introduction.heartbeat_s)
            except (Unreachable, Refused) as error:
                if not await self._introduction.say_again(self._link, error):
                    await asyncio.sleep(self._runtime.jitter(retry_s))
                    retry_s = min(2 * retry_s, RETRY_S_MAX)
                continue
            retry_s = RETRY_S
            for ref in cancelled:
                self._cancel(ref)

    def _cancel(self, ref: Ref) -> None:
        self._heard[ref] = self._runtime.now()
        attempt = self._attempts.get(ref)
        if attempt is not None:
            self._stop(attempt, Stop.CANCELLED)

    def _stop(self, attempt: Attempt, why: Stop) -> None:
        # From here, because a handler in the worker's loop may keep it from doing so in time.
        if why in (Stop.LOST, Stop.STALE) and (kill := attempt.kill) is not None:
            kill()
        self._tell_work(lambda: attempt.stop(why))

    def _tell_work(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # that loop is closed: nothing is left to stop
            self._work_loop.call_soon_threadsafe(callback)

    def _wake(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it closed just now
                self._loop.call_soon_threadsafe(self._look.set)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
