"""The supervisor: says hello, claims, runs, reports, drains. Handlers run elsewhere, as a rule; the keeper keeps leases.

Its promise: when the trust window of a lease ends, or the plane says that the attempt is over, the
handler is stopped, and with isolation `process` it is dead and reaped, before anything else
is said about the attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from holdfast.locks.runtime import SYSTEM, Runtime
from holdfast.worker.asking import Asking
from holdfast.worker.attempt import Attempt, Stop
from holdfast.worker.children import Children
from holdfast.worker.ending import failed
from holdfast.worker.errors import BrokenWorker
from holdfast.worker.health import telling_health
from holdfast.worker.identity import own_identity
from holdfast.worker.inline import run_in_loop, run_in_thread
from holdfast.worker.introduction import Introduction
from holdfast.worker.keeper import Keeper
from holdfast.worker.link import Delivered, Link, Ref, Refused, Unreachable, patiently
from holdfast.worker.outbox import Outbox
from holdfast.worker.pause import Pause
from holdfast.worker.refills import Refills
from holdfast.worker.starting import ChildDied, NotStarted
from holdfast.worker.wire import Answer, Ask, Done, Request
from holdfast.worker.worker import Isolation, Options, Worker, match_topic

logger = logging.getLogger("holdfast.worker")

CLAIM_RETRY_S = 0.1
CLAIM_RETRY_S_MAX = 2.0
LAST_CLAIM_S = 0.5
SETTLE_S = 5.0
"""At the end: for handlers that were told to stop, and for the last outcomes to be heard."""


class Supervisor:
    def __init__(
        self,
        options: Options,
        isolations: dict[str, str],
        *,
        worker: Worker | None,
        target: str,
        runtime: Runtime = SYSTEM,
    ) -> None:
        if not isolations:
            raise BrokenWorker(f"worker {options.name} has no task: declare one with @worker.task(topic)")
        self._options = options
        self.url = options.url
        self.topics = sorted(isolations)
        self._isolations = isolations
        self._worker = worker
        self._runtime = runtime
        me = own_identity()
        self.id = me.worker_id(options.name)
        self._introduction = Introduction(options, isolations, me)
        self._link = self._new_link()
        self._keeper = Keeper(self._new_link(), self._introduction, runtime=runtime)
        self._asking = Asking(self._link, runtime=runtime)
        self._children = (
            Children(target, slots=options.slots, jobs_per_child=options.jobs_per_child)
            if Isolation.PROCESS in isolations.values()
            else None
        )
        tell_able = partial(self._introduction.say_able, self._link, runtime=runtime)
        self._pause = Pause(tell_able, self._children, runtime=runtime)
        self._attempts: dict[str, Attempt] = {}
        self._queue: deque[Attempt] = deque()
        """Claimed beyond `slots`: the backlog."""
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()
        self._refills = Refills(self._vacant, self._freed.set)
        self._outbox = Outbox(self._link, self._refills, self._accept_all, runtime=runtime)
        self._ready = asyncio.Event()
        self._draining = asyncio.Event()
        self._hurried = asyncio.Event()
        self._asked_at = runtime.now()
        """When a claim was last answered, or there was no room for another one."""
        self.health = ""
        """Where it tells how it is, while it runs."""

    def drain(self) -> None:
        """Stop claiming, finish what runs; called again, hand it back at once."""
        if self._draining.is_set():
            self._hurried.set()
        self._introduction.leaving = True
        self._draining.set()
        self._freed.set()

    async def wait_ready(self) -> None:
        """Until the plane knows this worker, and there is a process to run a job in."""
        await self._ready.wait()

    def why_not_ready(self) -> str:
        """Why it takes no work now; empty if it does, or would if there was room."""
        if self._draining.is_set():
            return "draining: it takes nothing more"
        if not self._ready.is_set():
            return "the plane does not know it yet"
        if self._pause.why:
            return f"{self._pause.why}; it tries again, and its log says what to do"
        silent_s = self._runtime.now() - self._asked_at
        if self._refills.room() > 0 and silent_s > 3 * self._introduction.heartbeat_s:
            return f"it heartbeats, but no claim of its was answered for {silent_s:.0f} s"
        return ""

    async def run(self) -> None:
        """Work until drained."""
        async with telling_health(self._options.health, self.why_not_ready) as self.health:
            await self._run()

    async def _run(self) -> None:
        try:
            if self._children is not None and not await self._start_children(self._children):
                return
            await patiently(
                self._introduce,
                runtime=self._runtime,
                while_=lambda: not self._draining.is_set(),
            )
            self._keeper.start()
            self._ready.set()
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(self._outbox.run())
                await self._claim_until_draining()
                await self._finish()
                sending.cancel()
        except Unreachable:
            logger.warning("worker.never_registered worker=%s", self.id)  # it was told to end before it could begin
        finally:
            await self._close()

    async def _start_children(self, children: Children) -> bool:
        """False: it was told to end while they were loaded, which may take minutes."""
        starting = asyncio.create_task(children.start())
        draining = asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait([starting, draining], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
            return starting.done()
        finally:
            starting.cancel()
            draining.cancel()

    async def _introduce(self) -> None:
        try:
            await self._introduction.say(self._link)
        except Unreachable as error:
            logger.warning("worker.not_registered url=%s error=%s", self.url, error)
            raise

    async def _close(self) -> None:
        # Renewals end first: what does not stop by itself must not keep its lease for ever.
        await self._keeper.stop()
        if self._children is not None:
            await self._children.close()
        asks = [ask for attempt in self._attempts.values() for ask in attempt.asks]
        for task in (*self._tasks, *asks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._link.close()

    def _new_link(self) -> Link:
        return Link(self._options.url, self.id, api_key=self._options.api_key)

    # -- drain -------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """Let running handlers end, hand back the others, and leave."""
        while self._queue:
            waiting = self._queue.popleft()
            waiting.stop(Stop.HANDED_BACK)
            self._begin(waiting)
        await self._wait_first(self._hurried.wait(), self._wait_idle(), within_s=self._options.drain_s)
        for attempt in list(self._attempts.values()):
            attempt.stop(Stop.HANDED_BACK)
        with suppress(TimeoutError):
            # A thread or a coroutine that does not stop is not handed back: it still runs. Its lease says when it is over.
            async with asyncio.timeout(SETTLE_S):
                await self._wait_idle()
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await self._outbox.wait_empty()
        # Before the last word: a keeper that is not known any more would introduce itself again.
        await self._keeper.stop()
        if not self._attempts:  # what still runs must not be given to others
            with suppress(Unreachable, Refused):
                await self._link.goodbye(gone=True)

    async def _wait_idle(self) -> None:
        while self._attempts:
            self._freed.clear()
            await self._freed.wait()

    @staticmethod
    async def _wait_first(*waits: Coroutine[Any, Any, Any], within_s: float) -> None:
        waiting = [asyncio.create_task(wait) for wait in waits]
        try:
            await asyncio.wait(waiting, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waiting:
                wait.cancel()

    # -- claim -------------------------------------------------------------------------------------

    async def _claim_until_draining(self) -> None:
        claiming = asyncio.create_task(self._claim_forever())
        draining = asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait([claiming, draining], return_when=asyncio.FIRST_COMPLETED)
            with suppress(Unreachable, Refused):
                await self._link.goodbye(gone=False)
            # Nothing more is given to this worker; what a claim may have started before is still heard.
            await asyncio.wait([claiming], timeout=LAST_CLAIM_S)
        finally:
            claiming.cancel()
            draining.cancel()
            await asyncio.wait([claiming])
        if not claiming.cancelled():
            claiming.result()

    async def _claim_forever(self) -> None:
        retry_s = CLAIM_RETRY_S
        while not self._draining.is_set():
            if self._pause.why:
                await self._pause.sit_out()
                self._asked_at = self._runtime.now()
            await self._refills.wait_claimable()
            room = self._refills.room()
            if room <= 0:
                self._freed.clear()
                await self._freed.wait()
                self._asked_at = self._runtime.now()
                continue
            try:
                await self._claim(room)
            except (Unreachable, Refused) as error:
                # What this claim was given, if anything, is named by its absence in the next one.
                if not await self._introduction.say_again(self._link, error):
                    logger.warning("claim.failed worker=%s error=%s", self.id, error)
                    await asyncio.sleep(self._runtime.jitter(retry_s))
                    retry_s = min(2 * retry_s, CLAIM_RETRY_S_MAX)
                continue
            retry_s = CLAIM_RETRY_S
            self._asked_at = self._runtime.now()

    async def _claim(self, room: int) -> None:
        claimed_at = self._runtime.now()
        with self._refills.claiming(room) as recalls:
            holding = self._holding() if recalls else None
            claimed = await self._link.claim(room, wait_s=self._introduction.heartbeat_s, holding=holding)
        # The plane held the claim for so long before it began to count, however long the way there took.
        self._accept_all(claimed.deliveries, claimed_at + claimed.waited_s)

    def _vacant(self) -> int:
        return self._options.slots + self._options.backlog - len(self._attempts)

    def _holding(self) -> list[Ref]:
        """What runs here, and what has ended here while the plane has not heard of it."""
        return [*(attempt.ref for attempt in self._attempts.values()), *self._outbox.refs()]

    def _accept_all(self, deliveries: Sequence[Delivered], began_at: float) -> None:
        for delivered in deliveries:
            self._accept(Attempt(delivered, began_at=began_at))

    def _accept(self, attempt: Attempt) -> None:
        known = self._attempts.get(attempt.job_id)
        if known is not None and known.fence >= attempt.fence:
            return  # delivered twice
        if known is not None:
            known.stop(Stop.STALE)
        self._attempts[attempt.job_id] = attempt
        self._keeper.watch(attempt)
        if self._draining.is_set():
            attempt.stop(Stop.HANDED_BACK)
        if self._running < self._options.slots:
            self._begin(attempt)
        else:
            self._queue.append(attempt)

    # -- run ---------------------------------------------------------------------------------------

    def _begin(self, attempt: Attempt) -> None:
        self._running += 1
        task = asyncio.create_task(self._carry(attempt))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, attempt: Attempt) -> None:
        """One attempt, from its claim to its outcome."""
        try:
            with attempt.traced() as traced:
                done = await self._run_handler(attempt)
                if attempt.asks:
                    # What the handler did must be recorded before the outcome ends its chance to be.
                    await asyncio.wait(attempt.asks)
                outcome = attempt.outcome(done)
                traced.say("holdfast.outcome", attempt.stopped or done.outcome)
                _log_end(attempt, done)
            if outcome is not None:
                self._outbox.add(outcome)
        finally:
            self._keeper.forget(attempt)
            if self._attempts.get(attempt.job_id) is attempt:
                del self._attempts[attempt.job_id]
            self._running -= 1
            self._freed.set()
        while self._queue and self._running < self._options.slots:
            self._begin(self._queue.popleft())

    async def _run_handler(self, attempt: Attempt) -> Done:
        try:
            return await self._run_isolated(attempt)
        except ChildDied as died:
            return failed("worker-child-died", str(died))
        except NotStarted as none:
            if attempt.stopped is None:  # else its process was killed for that, before it read of the job
                # The plane hears of this first: it would give the job to this worker again.
                await self._pause.begin(none)
                attempt.stop(Stop.HANDED_BACK)
            return Done("cancelled", error={"code": "worker-child-not-started", "message": none.why})
        except Exception as error:
            # A mistake of ours. The attempt must end all the same, else its lease would be kept for ever.
            known = {"event": "attempt.crashed", **attempt.known()}
            logger.exception("attempt.crashed job_id=%s", attempt.job_id, extra=known)
            return failed("worker-broken", f"{type(error).__name__} in the worker itself; its log says where")

    async def _run_isolated(self, attempt: Attempt) -> Done:
        if self._runtime.now() >= attempt.lease.trusted_until:
            attempt.stop(Stop.HANDED_BACK)  # too late, but nothing was begun: it costs the job nothing
        if attempt.stopped is not None:
            return Done("cancelled")
        topic = match_topic(attempt.work.topic, self._isolations)
        if topic is None:
            return failed("no-handler", f"no task for topic {attempt.work.topic!r}")
        if self._isolations[topic] == Isolation.PROCESS:
            return await self._run_in_child(attempt)
        assert self._worker is not None
        task = self._worker.find_task(topic)
        assert task is not None

        def ask(request: Request) -> Coroutine[Any, Any, Answer]:
            return self._asking.ask(attempt, request)

        if self._isolations[topic] == Isolation.THREAD:
            return await run_in_thread(task, attempt, ask, runtime=self._runtime)
        with self._keeper.loop_guard.over(attempt.lease):
            return await run_in_loop(task, attempt, ask, runtime=self._runtime)

    async def _run_in_child(self, attempt: Attempt) -> Done:
        assert self._children is not None
        child = await self._children.take()
        try:
            if attempt.stopped is not None:  # while the child was starting
                return Done("cancelled")

            def stop(why: Stop) -> None:
                if why is Stop.CANCELLED:
                    child.cancel(grace_s=self._options.cancel_grace_s)
                else:
                    child.kill()

            def asked(ask: Ask) -> None:
                self._asking.pass_on(attempt, ask, child.say)

            running = child.run(attempt.work, asked)
            attempt.body, attempt.kill = stop, partial(child.kill, job=child.jobs)
            done = await running
            if child.jobs == 1:
                self._pause.worked()
            return done
        finally:
            attempt.body = attempt.kill = None
            self._children.give_back(child)


def _log_end(attempt: Attempt, done: Done) -> None:
    work, outcome = attempt.work, attempt.stopped or done.outcome
    if logger.isEnabledFor(logging.DEBUG):
        ended = {"event": "attempt.ended", **attempt.known(), "outcome": outcome}
        logger.debug("attempt.ended job_id=%s outcome=%s", work.job_id, outcome, extra=ended)
    if done.error is not None and attempt.stopped is None:
        error = f"{done.error['code']}: {done.error['message']}"
        failed_at = {"event": "attempt.failed", **attempt.known(), "error": error, "traceback": done.traceback}
        told = (work.job_id, work.topic, work.attempt, work.max_attempts, done.traceback.rstrip() or error)
        logger.warning("attempt.failed job_id=%s topic=%s attempt=%d/%d\n%s", *told, extra=failed_at)
