"""`Job` and `SyncJob`: what a handler is handed. A coroutine gets the one, a plain function the other."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from contextvars import ContextVar
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from holdfast.core.effect import may_repeat
from holdfast.core.states import Risk
from holdfast.worker.errors import AttemptOver, EffectAbsent, EffectUnknown, LeaseLost, PlaneRefused
from holdfast.worker.wire import Answer, Commit, Prepare, Report, Request, Withdraw, Work, to_value

_inside: ContextVar[frozenset[str]] = ContextVar("holdfast_effects", default=frozenset())
"""The effects whose functions have called whoever asks, or started the task that does."""


def _never() -> bool:
    return False


class JobFacts:
    """What is known of one attempt, and whether it may go on."""

    def __init__(self, work: Work, is_lost: Callable[[], bool]) -> None:
        self.id = work.job_id
        self.topic = work.topic
        self.attempt = work.attempt
        self.max_attempts = work.max_attempts
        self.fence = work.fence
        """Grows with each attempt. Hand it to stores that refuse a lower one."""
        self.labels = work.labels
        self.risk = work.risk
        self.trace = work.trace
        self.decision = work.decision
        """What the policy said of the job, and in `approval` who approved it; None without a policy."""
        self.over = ""
        """Why the handler must stop, once it must: cancelled, timed_out, handed_back, lost or stale."""
        self._payload = work.payload
        self._is_lost = is_lost
        self._begun: set[str] = set()
        """Effects that this attempt has begun, as far as nobody knows that they did not happen."""

    @cached_property
    def payload(self) -> Any:
        return msgspec.json.decode(self._payload)

    @property
    def cancelled(self) -> bool:
        """Somebody asked to stop. A handler that is not stopped by itself looks here."""
        return self.over == "cancelled"

    def check(self) -> None:
        """Raises `AttemptOver` if the handler must stop, and `LeaseLost`, which is one, if nobody keeps it any more."""
        self.check_lease()
        if self.over:
            raise AttemptOver(self.over)

    def check_lease(self) -> None:
        """Raises `LeaseLost` alone. Asked once more right before an effect: leave for it was given a while ago,
        and this process may have been stopped since."""
        if self.over in {"lost", "stale"} or self._is_lost():
            raise LeaseLost(self.over or "lost")

    def _effect(self, key: str, fn: Callable[..., Any], args: tuple[Any, ...], *, idempotent: bool) -> Steps:
        """The steps of one effect, without a way to wait: what to ask, what to call, what it comes to."""
        if not isinstance(key, str):
            raise TypeError(f"the key of an effect is a text, not {key!r}")
        answer: Answer = yield Prepare(key, idempotent)
        if answer.ruling == "blocked":
            raise EffectUnknown(key)
        if answer.ruling == "remembered":
            return msgspec.json.decode(answer.result)
        # To the plane this was its last question once more, for an answer that was lost. Here it is known to be another.
        if key in self._begun and not may_repeat(Risk(self.risk), idempotent=idempotent):
            raise EffectUnknown(key)
        self._begun.add(key)
        named = {"idempotency_key": answer.idempotency_key} if _takes_key(fn) else {}
        # If this raises anything else than EffectAbsent, the effect stays prepared: nobody knows how far it came.
        value = yield Call(lambda: fn(*args, **named))
        if isinstance(value, EffectAbsent):
            yield Withdraw(key)
            self._begun.discard(key)
            raise value
        try:
            result = to_value(value)
        except Exception:
            # It has happened; that its result cannot be kept must not make it happen again.
            yield Commit(key, b"null")
            raise
        yield Commit(key, result)
        # As it will be remembered: a tuple is a list from the first attempt on.
        return msgspec.json.decode(result)


class Job(JobFacts):
    """For coroutines."""

    def __init__(
        self, work: Work, ask: Callable[[Request], Awaitable[Answer]], *, is_lost: Callable[[], bool] = _never
    ) -> None:
        super().__init__(work, is_lost)
        self._ask = ask
        self._turns: dict[str, asyncio.Lock] = {}

    async def progress(self, value: Any) -> None:
        """Tell how far it is: any JSON value. The last one is shown with the job."""
        _accepted(await self._ask(Report(to_value(value))))

    async def once(self, key: str, fn: Callable[..., Any], *args: Any, idempotent: bool = False) -> Any:
        """Do something to the world outside once over all attempts of this job: the JSON result of `fn(*args)`.

        What was done before, by an earlier attempt or this one, is remembered and not done again. If nobody knows
        whether it was, because the attempt ended or `fn` raised, `EffectUnknown` is raised, unless the risk is low or
        the other side is `idempotent`: `fn` then gets the same `idempotency_key`, if it has a parameter of that name.
        If `fn` raises `EffectAbsent`, it did not happen, and may be tried again. A cancel waits until the effect is
        recorded.
        """
        self.check()
        section = asyncio.ensure_future(self._in_turn(key, self._effect(key, fn, args, idempotent=idempotent)))
        try:
            return await asyncio.shield(section)
        except asyncio.CancelledError:
            await self._see_through(section)
            raise

    async def _see_through(self, section: asyncio.Future[Any]) -> None:
        """A cancel lets an effect come to its end. Any other reason to stop, before or after it, does not."""
        while not section.done():
            if self.over != "cancelled":
                section.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([section])
        if not section.cancelled():
            section.exception()  # seen: what the handler gets is the cancellation

    async def _in_turn(self, key: str, steps: Steps) -> Any:
        """Two tasks of one handler may ask for the same effect: the second is given what the first has done."""
        if key in _inside.get():
            raise EffectUnknown(key)  # it would wait for itself
        async with self._turns.setdefault(key, asyncio.Lock()):
            _inside.set(_inside.get() | {key})
            return await self._once(steps)

    async def _once(self, steps: Steps) -> Any:
        reply: Any = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                return end.value
            if isinstance(step, Call):
                self.check_lease()
                try:
                    reply = step.run()
                    if inspect.isawaitable(reply):
                        reply = await reply
                except EffectAbsent as absent:
                    reply = absent
            else:
                reply = _accepted(await self._ask(step))


class SyncJob(JobFacts):
    """For plain functions: the same verbs, which wait."""

    def __init__(self, work: Work, ask: Callable[[Request], Answer], *, is_lost: Callable[[], bool] = _never) -> None:
        super().__init__(work, is_lost)
        self._ask = ask
        self._careful = 0

    def progress(self, value: Any) -> None:
        """Tell how far it is: any JSON value. The last one is shown with the job."""
        self._carefully(lambda: _accepted(self._ask(Report(to_value(value)))))

    def once(self, key: str, fn: Callable[..., Any], *args: Any, idempotent: bool = False) -> Any:
        """As `Job.once`."""
        return self._carefully(lambda: self._once(self._effect(key, fn, args, idempotent=idempotent)))

    def interrupt(self) -> None:
        """Called by a signal, in the middle of the handler: stop it here, or at the end of what must not be torn."""
        self.over = "cancelled"
        if not self._careful:
            self.check()

    def _carefully(self, action: Callable[[], Any]) -> Any:
        if not self._careful:
            self.check()
        self._careful += 1
        try:
            return action()
        finally:
            self._careful -= 1
            if not self._careful:
                self.check()

    def _once(self, steps: Steps) -> Any:
        reply: Any = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                return end.value
            if isinstance(step, Call):
                self.check_lease()
                try:
                    reply = step.run()
                except EffectAbsent as absent:
                    reply = absent
                if inspect.iscoroutine(reply):
                    reply.close()  # nothing of it was done, and nobody here can
                    reply = EffectAbsent(
                        "it is a coroutine: make the handler an `async def` as well, or call a function"
                    )
            else:
                reply = _accepted(self._ask(step))


class Call(NamedTuple):
    run: Callable[[], Any]


Steps = Generator[Request | Call, Any, Any]


def _takes_key(fn: Callable[..., Any]) -> bool:
    try:
        return "idempotency_key" in inspect.signature(fn).parameters
    except ValueError:  # a builtin without a signature
        return False


def _accepted(answer: Answer) -> Answer:
    if answer.refused:
        raise PlaneRefused(answer.refused, answer.detail)
    return answer
