"""The keeper: one thread that renews all leases of a process, and ends those it cannot renew.

It has an event loop and a store connection of its own, so a busy or blocked loop of the
user's does not cost any lease; the leases of one sweep go out in batches.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.locks.dead_man import DEAD_MAN
from holdfast.locks.errors import LockError, Unavailable
from holdfast.locks.policy import LOOKS_PER_TTL
from holdfast.locks.port import LockStore, Renewal, Standing
from holdfast.locks.renewal import Verdict, judge
from holdfast.locks.runtime import FORKS

if TYPE_CHECKING:
    from holdfast.locks.lease import Lease
    from holdfast.locks.observe import Observer
    from holdfast.locks.runtime import Runtime

logger = logging.getLogger(__name__)

#: On Python 3.11 it takes longer to find a member of an enum than to compare it, and it is done for every renewal.
_ABANDON, _HOLD, _OWNED = Verdict.ABANDON, Verdict.HOLD, Standing.OWNED

BATCH_MAX = 100
SWEEP_S_MIN = 0.005
SWEEP_S_MAX = 1.0
CLOSE_S_MAX = 5.0
CLOSED = "they are closed: open others"


class Keeper:
    """Starts with its first lease. `watch` and `forget` may be called from any thread."""

    def __init__(
        self,
        store: LockStore,
        *,
        runtime: Runtime,
        observer: Observer,
        rule: Callable[[list[Lease]], None] = lambda _: None,
    ) -> None:
        """`rule` is shown all leases before each sweep, in the keeper's thread."""
        self.store = store
        self._rule = rule
        self._runtime = runtime
        self._observer = observer
        # Plain dict operations are atomic; the sweep works on a copy.
        self._leases: dict[int, Lease] = {}
        self._sweep_s = SWEEP_S_MAX
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rouse: asyncio.Event | None = None
        self._opening = asyncio.Lock()
        self._closing = False
        self._fork = FORKS.generation
        self._ready = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._work_loop: asyncio.AbstractEventLoop | None = None
        self._pinged_at: float | None = None
        self._lag_told_s = 0.0
        self._dead_man_at: float | None = None

    def watch(self, lease: Lease) -> None:
        """Raises `Unavailable` if there is nobody to do it: then the lease must be given back."""
        if self._thread is None:
            self.start()
        self._leases[id(lease)] = lease
        ttl_s = lease.lock_class.ttl
        if lease.lock_class.dead_man:
            self._arm_dead_man(self._runtime.now())
        if ttl_s < self._sweep_s * LOOKS_PER_TTL:
            self._sweep_s = max(SWEEP_S_MIN, ttl_s / LOOKS_PER_TTL)
            self._call(self._wake)

    def forget(self, lease: Lease) -> None:
        self._leases.pop(id(lease), None)
        if lease.lock_class.dead_man:
            self._arm_dead_man(self._runtime.now())

    def watch_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure how long this loop, where the work runs, takes to get to a callback."""
        self._work_loop = loop

    def start(self) -> None:
        if self._thread is None:
            with self._starting:  # threads may come at once, and each would start one
                if self._thread is None:
                    try:
                        self._thread = self._runtime.run_in_thread(self._run, "holdfast-keeper")
                    except (OSError, RuntimeError) as none_left:
                        detail = f"nobody can be had to renew them: {none_left}"
                        raise Unavailable("locks", detail, applied=None) from none_left

    @property
    def is_parents(self) -> bool:
        """Whether this process is a child that was forked off after the keeper was made: its thread stayed behind."""
        return self._fork != FORKS.generation

    @property
    def started(self) -> bool:
        return self._thread is not None

    def check_open(self) -> None:
        """Raises `Unavailable` once it is closed, or the program all but over: its thread will not run any more."""
        if self._closing or sys.is_finalizing():
            raise Unavailable("locks", CLOSED, applied=False)

    def belong_here(self) -> None:
        """What was made before a fork and is opened after it belongs to the child."""
        self._fork = FORKS.generation

    def check_fork(self) -> None:
        """Raises `Unavailable` in a forked child, where nobody would renew anything."""
        if self._fork != FORKS.generation:
            raise Unavailable("locks", "opened before a fork: open another one in the child", applied=False)

    def run_blocking(self, call: Callable[[], Awaitable[object]]) -> object:
        """Run a coroutine in the keeper's loop, from a thread that waits for it. A thread that is
        interrupted while it waits takes the coroutine with it."""
        self.check_fork()
        self.check_open()
        self.start()
        self._ready.wait()
        assert self._loop is not None

        async def run() -> object:
            return await call()

        asked = run()
        try:
            running = asyncio.run_coroutine_threadsafe(asked, self._loop)
        except RuntimeError:  # closed between the lines
            asked.close()
            raise Unavailable("locks", CLOSED, applied=False) from None
        try:
            return self._wait_for(running)
        except CancelledError:
            raise Unavailable("locks", CLOSED, applied=None) from None
        except BaseException:
            running.cancel()
            with suppress(BaseException):
                running.result(CLOSE_S_MAX)
            raise

    def _wait_for(self, running: Future[object]) -> object:
        """However long it takes; but a loop that is just ending may have taken a call that it never makes."""
        while True:
            try:
                return running.result(CLOSE_S_MAX)
            except TimeoutError:
                if running.done():
                    raise  # the call's own
                if isinstance(self._thread, threading.Thread) and not self._thread.is_alive():
                    raise Unavailable("locks", CLOSED, applied=None) from None

    def hand(self, errand: Callable[[], None]) -> None:
        """Have `errand` called in the keeper's loop, without waiting for it. Once the keeper is closed, or in a forked
        child, nobody is there to do it."""
        if self._closing or self._fork != FORKS.generation:
            return
        self.start()
        self._ready.wait()
        self._call(errand)

    @property
    def at_work(self) -> bool:
        return isinstance(self._thread, threading.Thread) and self._thread.is_alive() and not self._closing

    def close(self) -> None:
        """Stop renewing. What is still held runs out by itself."""
        self._closing = True
        self._leases.clear()
        if isinstance(self._thread, threading.Thread):
            self._ready.wait(CLOSE_S_MAX)
            self._call(self._wake)
            self._thread.join(CLOSE_S_MAX)
        elif self._thread is not None:
            self._thread.cancel()
        self._arm_dead_man(self._runtime.now())

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rouse = asyncio.Event()
        self._ready.set()
        # Before the first renewal is due: connecting must not eat into its time.
        self._begin(self._connect())
        try:
            while not self._closing:
                try:
                    self._sweep(self._runtime.now())
                except Exception:
                    # An observer or callback of the user's that raises must not end everybody's leases.
                    logger.exception("lock.keeper_crashed")
                try:
                    async with asyncio.timeout(self._sweep_s):
                        await self._rouse.wait()
                except TimeoutError:
                    pass
                self._rouse.clear()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.store.close()

    def _sweep(self, now: float) -> None:
        due: list[Lease] = []
        leases = list(self._leases.values())
        self._rule(leases)
        # The one line that runs for every lease at every sweep: ten thousand take half a millisecond.
        for lease in [lease for lease in leases if lease.look_at <= now]:
            if lease.lost is not None:
                continue
            verdict = judge(lease.belief, lease.lock_class.renewal, now)
            if verdict is _ABANDON:
                lease.abandon()
                # Under `continue` it is renewed on: it may still be ours.
                if not lease.carries_on or now < lease.belief.due:
                    continue
            if verdict is not _HOLD and not lease.renewing:
                due.append(lease)
        if not leases:
            self._sweep_s = SWEEP_S_MAX
        for ttl_group in _grouped(due):
            for start in range(0, len(ttl_group), BATCH_MAX):
                self._renew(ttl_group[start : start + BATCH_MAX])
        self._ping(now)
        if self._dead_man_at is not None:
            self._arm_dead_man(now)

    def _renew(self, leases: list[Lease]) -> None:
        for lease in leases:
            lease.renewing = True
        self._begin(self._renew_batch(leases))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> None:
        with suppress(LockError):  # the first renewal tries again, and tells
            await self.open()

    async def open(self) -> None:
        """Connect the keeper's store. In the keeper's loop, one attempt at a time."""
        async with self._opening:
            await self.store.open()

    async def _renew_batch(self, leases: list[Lease]) -> None:
        sent_at = self._runtime.now()
        try:
            async with asyncio.timeout(leases[0].lock_class.renewal.timeout_s):
                await self.open()
                # Read again: connecting took time, and the trust window counts from the send.
                sent_at = self._runtime.now()
                # A renewal's own constructor takes twice as long.
                ttl_ms = leases[0].lock_class.ttl_ms
                renewals = [tuple.__new__(Renewal, (lease.key, lease.token, ttl_ms)) for lease in leases]
                standings = await self.store.renew(renewals)
        except Exception as error:  # whatever it was, these leases must be tried again
            known = isinstance(error, LockError | TimeoutError)
            for lease in leases:
                lease.renewal_failed(tried_at=sent_at, error=str(error) or "no answer in time")
            if not known:
                logger.exception("lock.renewal_crashed")
            return
        finally:
            for lease in leases:  # also of those that are not come to, because an observer raises
                lease.renewing = False
        neighbour: Lease | None = None
        for lease, standing in zip(leases, standings, strict=True):
            if standing is _OWNED:
                lease.renewal_succeeded(sent_at=sent_at, neighbour=neighbour)
                neighbour = lease
            else:
                lease.not_owned(standing, operation="renew")
        owned = standings.count(_OWNED)
        if owned:
            self._observer.renewed(leases[0].lock_class, owned)

    def _ping(self, now: float) -> None:
        """Watch the work's loop: a lag near a tenth of the shortest ttl is worth knowing early."""
        loop = self._work_loop
        if loop is None or loop.is_closed():
            return
        limit_s = self._sweep_s * LOOKS_PER_TTL / 10
        if self._pinged_at is None:
            self._pinged_at = now
            try:
                loop.call_soon_threadsafe(self._ponged)
            except RuntimeError:  # it closed just now
                self._work_loop = None
        elif (lag_s := now - self._pinged_at) > max(limit_s, self._lag_told_s):
            # Told again when it has doubled: a loop that is stuck for a minute is one piece of news, not a thousand.
            self._lag_told_s = 2 * lag_s
            self._observer.loop_lagged(lag_s)

    def _ponged(self) -> None:
        self._pinged_at = None
        self._lag_told_s = 0.0

    def _arm_dead_man(self, now: float) -> None:
        """Have a process ended that is stuck when a lease is about to expire. Half of the margin is
        left to code that is merely slow to stop."""
        deadlines = [
            lease.belief.trusted_until + lease.lock_class.renewal.margin_s / 2
            for lease in list(self._leases.values())
            if lease.lock_class.dead_man
        ]
        if deadlines:
            self._dead_man_at = min(deadlines)
            DEAD_MAN.arm(self, self._dead_man_at, now=now)
        elif self._dead_man_at is not None:
            self._dead_man_at = None
            DEAD_MAN.disarm(self, now=now)

    def _call(self, callback: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(callback)
            except RuntimeError:  # closed between the two lines
                return

    def _wake(self) -> None:
        if self._rouse is not None:
            self._rouse.set()


def _grouped(leases: list[Lease]) -> list[list[Lease]]:
    """Leases of one class share a batch: same ttl, same patience. A class that was changed meanwhile is another one."""
    groups: dict[int, list[Lease]] = {}
    for lease in leases:
        groups.setdefault(id(lease.lock_class), []).append(lease)
    return list(groups.values())
