"""The supervisor: says hello, claims, keeps leases, reports, drains. Handlers run elsewhere, as a rule.

Its promise: when the trust window of a lease ends, or the plane says that the attempt is over, the
handler is stopped, and with isolation `process` it is dead and reaped, before anything else
is said about the attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable
from contextlib import suppress

from holdfast import api
from holdfast.locks.renewal import Verdict
from holdfast.locks.runtime import SYSTEM, Runtime
from holdfast.worker.asking import Asking
from holdfast.worker.attempt import Attempt, Stop
from holdfast.worker.children import ChildDied, Children
from holdfast.worker.ending import failed
from holdfast.worker.errors import BrokenWorker
from holdfast.worker.identity import is_dead, own_identity
from holdfast.worker.inline import run_in_loop, run_in_thread
from holdfast.worker.link import Delivered, Link, Refused, Unreachable, patiently
from holdfast.worker.outbox import Outbox
from holdfast.worker.wire import Answer, Ask, Done, Request
from holdfast.worker.worker import Isolation, Options, Worker, match_topic

logger = logging.getLogger("holdfast.worker")

CLAIM_WAIT_S = 5.0
CLAIM_RETRY_S = 0.1
CLAIM_RETRY_S_MAX = 2.0
LAST_CLAIM_S = 0.5
RENEW_S_MAX = 2.0
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
        self._isolations = isolations
        self._worker = worker
        self._runtime = runtime
        self._identity = own_identity()
        self.id = self._identity.worker_id(options.name)
        self._link = Link(options.url, self.id, api_key=options.api_key)
        self._asking = Asking(self._link, runtime=runtime)
        self._outbox = Outbox(self._link, runtime=runtime)
        self._children = (
            Children(target, slots=options.slots, jobs_per_child=options.jobs_per_child)
            if Isolation.PROCESS in isolations.values()
            else None
        )
        self._attempts: dict[str, Attempt] = {}
        self._queue: deque[Attempt] = deque()
        """Claimed beyond `slots`: the backlog."""
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()
        self._look = asyncio.Event()
        self._look_at = 0.0
        self._heartbeat_s = CLAIM_WAIT_S
        self._claim_wait_s = CLAIM_WAIT_S
        self._spoke_at = 0.0
        self._ready = asyncio.Event()
        self._draining = asyncio.Event()
        self._hurried = asyncio.Event()

    def drain(self) -> None:
        """Stop claiming, finish what runs; called again, hand it back at once."""
        if self._draining.is_set():
            self._hurried.set()
        self._draining.set()
        self._freed.set()

    async def wait_ready(self) -> None:
        """Until the plane knows this worker, and there is a process to run a job in."""
        await self._ready.wait()

    async def run(self) -> None:
        """Work until drained."""
        try:
            if self._children is not None:
                await self._children.start()
            await patiently(self._introduce, runtime=self._runtime, while_=lambda: not self._draining.is_set())
            self._ready.set()
            async with asyncio.TaskGroup() as group:
                keeping = [group.create_task(self._keep_leases()), group.create_task(self._outbox.run())]
                await self._claim_until_draining()
                await self._finish()
                for task in keeping:
                    task.cancel()
        except Unreachable:
            logger.warning("worker.never_registered worker=%s", self.id)  # it was told to end before it could begin
        finally:
            if self._children is not None:
                await self._children.close()
            for task in self._tasks:
                task.cancel()
            await self._link.close()

    # -- hello, goodbye ----------------------------------------------------------------------------

    async def _introduce(self) -> None:
        """Say hello; and if a predecessor on this host is dead, say that as well."""
        reply = await self._link.hello(self._hello([]))
        self._heartbeat_s = reply.heartbeat_s
        self._spoke_at = self._runtime.now()
        dead = [worker for worker in reply.predecessors if is_dead(worker, self._identity)]
        if dead:
            logger.info("worker.predecessor_dead workers=%s", ",".join(dead))
            await self._link.hello(self._hello(dead))
        if self._draining.is_set():
            await self._link.goodbye(gone=False)

    async def _introduce_again(self, error: Unreachable | Refused) -> bool:
        """If the plane has forgotten this worker, because it restarted: hello again."""
        if isinstance(error, Refused) and error.status == 404:
            with suppress(Unreachable, Refused):
                await self._introduce()
                return True
        return False

    def _hello(self, dead: list[str]) -> api.Hello:
        options, me = self._options, self._identity
        return api.Hello(
            worker=self.id,
            name=options.name,
            pool=options.pool,
            topics=list(self._isolations),
            labels=dict(options.labels),
            slots=options.slots,
            backlog=options.backlog,
            host=me.host,
            boot_id=me.boot_id,
            pid=me.pid,
            started_at=me.started_at,
            predecessor_dead=dead,
        )

    async def _finish(self) -> None:
        """Let running handlers end, hand back the others, and leave."""
        while self._queue:
            waiting = self._queue.popleft()
            waiting.stop(Stop.HANDED_BACK)
            self._begin(waiting)
        hurry = asyncio.create_task(self._hurried.wait())
        try:
            await asyncio.wait(
                [hurry, asyncio.create_task(self._wait_idle())],
                timeout=self._options.drain_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            hurry.cancel()
        for attempt in list(self._attempts.values()):
            attempt.stop(Stop.HANDED_BACK)
        with suppress(TimeoutError):
            # A thread or a coroutine that does not stop is not handed back: it still runs. Its lease says when it is over.
            async with asyncio.timeout(SETTLE_S):
                await self._wait_idle()
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await self._outbox.wait_empty()
        if not self._attempts:  # what still runs must not be given to others
            with suppress(Unreachable, Refused):
                await self._link.goodbye(gone=True)

    async def _wait_idle(self) -> None:
        while self._attempts:
            self._freed.clear()
            await self._freed.wait()

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
            room = self._options.slots + self._options.backlog - len(self._attempts)
            if room <= 0:
                self._freed.clear()
                await self._freed.wait()
                continue
            claimed_at = self._runtime.now()
            try:
                deliveries = await self._link.claim(room, wait_s=min(self._claim_wait_s, self._heartbeat_s))
            except (Unreachable, Refused) as error:
                await self._claim_failed(error, retry_s)
                retry_s = min(2 * retry_s, CLAIM_RETRY_S_MAX)
                continue
            retry_s = CLAIM_RETRY_S
            self._spoke_at = claimed_at
            for delivered in deliveries:
                self._accept(delivered, claimed_at)

    async def _claim_failed(self, error: Unreachable | Refused, retry_s: float) -> None:
        if await self._introduce_again(error):
            return
        logger.warning("claim.failed worker=%s error=%s", self.id, error)
        await asyncio.sleep(self._runtime.jitter(retry_s))

    def _accept(self, delivered: Delivered, claimed_at: float) -> None:
        now = self._runtime.now()
        attempt = Attempt(delivered, claimed_at=claimed_at, now=now)
        known = self._attempts.get(attempt.job_id)
        if known is not None and known.fence >= attempt.fence:
            return  # delivered twice
        if known is not None:
            known.stop(Stop.STALE)
        # With a short lease a long wait would eat up the trust window before there is anything to trust.
        self._claim_wait_s = min(self._claim_wait_s, delivered.lease_s / 3)
        self._attempts[attempt.job_id] = attempt
        if self._draining.is_set():
            attempt.stop(Stop.HANDED_BACK)
        if self._running < self._options.slots:
            self._begin(attempt)
        else:
            self._queue.append(attempt)
        self._look_before(attempt.look_at())

    # -- run ---------------------------------------------------------------------------------------

    def _begin(self, attempt: Attempt) -> None:
        self._running += 1
        task = asyncio.create_task(self._carry(attempt))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, attempt: Attempt) -> None:
        """One attempt, from its claim to its outcome."""
        try:
            done = await self._run_trusted(attempt)
        except ChildDied as died:
            done = failed("worker-child-died", str(died))
        except BrokenWorker as broken:
            done = failed("worker-broken", str(broken))
        except (OSError, TimeoutError) as error:
            done = failed("worker-child-not-started", str(error))
        if attempt.asks:
            # What the handler did must be recorded before the outcome ends its chance to be.
            await asyncio.wait(attempt.asks)
        outcome = attempt.outcome(done)
        if outcome is not None:
            self._outbox.add(outcome)
        if self._attempts.get(attempt.job_id) is attempt:
            del self._attempts[attempt.job_id]
        self._running -= 1
        self._freed.set()
        while self._queue and self._running < self._options.slots:
            self._begin(self._queue.popleft())

    async def _run_trusted(self, attempt: Attempt) -> Done:
        await attempt.wait_proved()
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

        def ask(request: Request) -> Awaitable[Answer]:
            return self._asking.ask(attempt, request)

        if self._isolations[topic] == Isolation.ASYNC:
            return await run_in_loop(task, attempt, ask)
        return await run_in_thread(task, attempt, ask, runtime=self._runtime)

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

            attempt.body = stop
            return await child.run(attempt.work, asked)
        finally:
            attempt.body = None
            self._children.give_back(child)

    # -- leases ------------------------------------------------------------------------------------

    async def _keep_leases(self) -> None:
        while True:
            now = self._runtime.now()
            self._sweep(now)
            looks = [attempt.look_at() for attempt in self._attempts.values()]
            self._look_at = min([*looks, self._spoke_at + self._heartbeat_s / 2])
            self._look.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.005, self._look_at - now)):
                    await self._look.wait()

    def _sweep(self, now: float) -> None:
        due: list[Attempt] = []
        for attempt in self._attempts.values():
            verdict = attempt.judge(now)
            if verdict is Verdict.ABANDON:
                attempt.stop(Stop.LOST)
            elif now >= attempt.ends_at:
                attempt.stop(Stop.TIMED_OUT)
            if verdict is Verdict.RENEW and not attempt.renewing and not attempt.is_lost:
                due.append(attempt)
        if due or now - self._spoke_at >= self._heartbeat_s / 2:
            self._spoke_at = now
            task = asyncio.create_task(self._renew(due))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _renew(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            attempt.renewing = True
        sent_at = self._runtime.now()
        within_s = min((attempt.patience_s for attempt in attempts), default=RENEW_S_MAX)
        try:
            standings = await self._link.renew([attempt.ref for attempt in attempts], within_s=within_s)
        except (Unreachable, Refused) as error:
            logger.warning("lease.not_renewed count=%d error=%s", len(attempts), error)
            for attempt in attempts:
                attempt.not_renewed(tried_at=sent_at)
            await self._introduce_again(error)
        else:
            for attempt, standing in zip(attempts, standings, strict=True):
                if standing.status == "ok":
                    attempt.renewed(sent_at=sent_at)
                    if standing.cancel:
                        attempt.stop(Stop.CANCELLED)
                else:
                    attempt.renewing = False
                    attempt.stop(Stop.STALE)
        self._look_before(min((attempt.look_at() for attempt in attempts), default=self._look_at))

    def _look_before(self, at: float) -> None:
        if at < self._look_at:
            self._look.set()
