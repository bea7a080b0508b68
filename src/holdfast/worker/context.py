"""`Job` and `SyncJob`: what a handler is handed. A coroutine gets the one, a plain function the other."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from holdfast.worker.errors import AttemptOver, EffectUnknown, PlaneRefused
from holdfast.worker.wire import Answer, Commit, Prepare, Report, Request, Work


class Attempt:
    """The facts of one attempt, and whether it may go on."""

    def __init__(self, work: Work) -> None:
        self.id = work.job_id
        self.topic = work.topic
        self.attempt = work.attempt
        self.max_attempts = work.max_attempts
        self.fence = work.fence
        """Grows with each attempt. Hand it to stores that refuse a lower one."""
        self.labels = work.labels
        self.risk = work.risk
        self.trace = work.trace
        self.over = ""
        """Why the handler must stop, once it must."""
        self._payload = work.payload

    @cached_property
    def payload(self) -> Any:
        return msgspec.json.decode(self._payload)

    @property
    def cancelled(self) -> bool:
        """Somebody asked to stop. A handler that is not stopped by itself looks here."""
        return self.over == "cancelled"

    def check(self) -> None:
        """Raises `AttemptOver` if the handler must stop."""
        if self.over:
            raise AttemptOver(self.over)


class Job(Attempt):
    """For coroutines."""

    def __init__(self, work: Work, ask: Callable[[Request], Awaitable[Answer]]) -> None:
        super().__init__(work)
        self._ask = ask

    async def progress(self, value: Any) -> None:
        """Tell how far it is: any JSON value. The last one is shown with the job."""
        _accepted(await self._ask(Report(msgspec.json.encode(value))))

    async def once(self, key: str, fn: Callable[..., Any], *args: Any, idempotent: bool = False) -> Any:
        """Do something to the world outside once over all attempts of this job: the JSON result of `fn(*args)`.

        What an earlier attempt did is remembered and not done again. If that is not known,
        `EffectUnknown` is raised, unless the risk is low or the other side is `idempotent`: `fn`
        then gets the same `idempotency_key`, if it has a parameter of that name. A cancel waits
        until the effect is recorded.
        """
        section = asyncio.ensure_future(self._once(effect(key, fn, args, idempotent=idempotent)))
        try:
            return await asyncio.shield(section)
        except asyncio.CancelledError:
            if self.over != "cancelled":
                section.cancel()
            await asyncio.wait([section])
            if not section.cancelled():
                section.exception()
            raise

    async def _once(self, steps: Steps) -> Any:
        reply: Any = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                return end.value
            if isinstance(step, Call):
                reply = step.run()
                if inspect.isawaitable(reply):
                    reply = await reply
            else:
                reply = _accepted(await self._ask(step))


class SyncJob(Attempt):
    """For plain functions: the same verbs, which wait."""

    def __init__(self, work: Work, ask: Callable[[Request], Answer]) -> None:
        super().__init__(work)
        self._ask = ask
        self._careful = 0

    def progress(self, value: Any) -> None:
        """Tell how far it is: any JSON value. The last one is shown with the job."""
        self._carefully(lambda: _accepted(self._ask(Report(msgspec.json.encode(value)))))

    def once(self, key: str, fn: Callable[..., Any], *args: Any, idempotent: bool = False) -> Any:
        """As `Job.once`."""
        return self._carefully(lambda: self._once(effect(key, fn, args, idempotent=idempotent)))

    def interrupt(self) -> None:
        """Called by a signal, in the middle of the handler: stop it here, or at the end of what must not be torn."""
        self.over = "cancelled"
        if not self._careful:
            self.check()

    def _carefully(self, action: Callable[[], Any]) -> Any:
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
            reply = step.run() if isinstance(step, Call) else _accepted(self._ask(step))


class Call(NamedTuple):
    run: Callable[[], Any]


Steps = Generator[Request | Call, Any, Any]


def effect(key: str, fn: Callable[..., Any], args: tuple[Any, ...], *, idempotent: bool) -> Steps:
    """The steps of one effect, without a way to wait: what to ask, what to call, what it comes to."""
    answer: Answer = yield Prepare(key, idempotent)
    if answer.ruling == "blocked":
        raise EffectUnknown(key)
    if answer.ruling == "remembered":
        return msgspec.json.decode(answer.result)
    named = {"idempotency_key": answer.idempotency_key} if _takes_key(fn) else {}
    # If this raises, the effect stays prepared: nobody knows how far it came.
    value = yield Call(lambda: fn(*args, **named))
    try:
        result = msgspec.json.encode(value)
    except TypeError:
        # It has happened; that its result cannot be kept must not make it happen again.
        yield Commit(key, b"null")
        raise
    yield Commit(key, result)
    # As it will be remembered: a tuple is a list from the first attempt on.
    return msgspec.json.decode(result)


def _takes_key(fn: Callable[..., Any]) -> bool:
    try:
        return "idempotency_key" in inspect.signature(fn).parameters
    except ValueError:  # a builtin without a signature
        return False


def _accepted(answer: Answer) -> Answer:
    if answer.refused:
        raise PlaneRefused(answer.refused, answer.detail)
    return answer
