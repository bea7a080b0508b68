"""What handlers ask of the plane, carried there by the supervisor until it is answered or the attempt is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import assert_never

from holdfast.locks.runtime import Runtime
from holdfast.worker.attempt import Attempt, Stop
from holdfast.worker.link import Link, Refused, Unreachable, patiently
from holdfast.worker.wire import Answer, Ask, Commit, Prepare, Report, Request, Withdraw


class Asking:
    def __init__(self, link: Link, *, runtime: Runtime) -> None:
        self._link = link
        self._runtime = runtime

    def pass_on(self, attempt: Attempt, ask: Ask, reply: Callable[[Answer], None]) -> None:
        """Ask for a child, and tell it the answer. Goes on if the child does not: what it did is to be recorded."""

        async def carry() -> None:
            answer = await self.answer(attempt, ask.request)
            reply(
                Answer(ask.number, answer.refused, answer.detail, answer.ruling, answer.idempotency_key, answer.result)
            )

        attempt.remember(asyncio.create_task(carry()))

    async def ask(self, attempt: Attempt, request: Request) -> Answer:
        """Ask for a handler in this process. As above, it goes on if the handler is cancelled."""
        asking = asyncio.create_task(self.answer(attempt, request))
        attempt.remember(asking)
        return await asyncio.shield(asking)

    async def answer(self, attempt: Attempt, request: Request) -> Answer:
        try:
            answer: Answer = await patiently(
                lambda: self._say(attempt, request), runtime=self._runtime, while_=lambda: not attempt.is_lost
            )
        except Unreachable as error:
            return Answer(refused="unreachable", detail=str(error))
        except Refused as refused:
            if refused.status in {404, 409}:
                attempt.stop(Stop.STALE)
            return Answer(refused=refused.code, detail=refused.detail)
        return answer

    async def _say(self, attempt: Attempt, request: Request) -> Answer:
        match request:
            case Prepare():
                ruling = await self._link.prepare(attempt.job_id, attempt.fence, request)
                return Answer(ruling=ruling.ruling, idempotency_key=ruling.idempotency_key, result=bytes(ruling.result))
            case Commit():
                await self._commit(attempt, request)
            case Withdraw():
                await self._link.withdraw(attempt.job_id, attempt.fence, request)
            case Report():
                await self._link.progress(attempt.job_id, attempt.fence, request)
            case never:
                assert_never(never)
        return Answer()

    async def _commit(self, attempt: Attempt, effect: Commit) -> None:
        try:
            await self._link.commit(attempt.job_id, attempt.fence, effect)
        except Refused as refused:
            if refused.status not in {401, 403, 404, 409}:
                # The result cannot be kept (too large, too deep). That it has happened can, so that it does not again.
                await self._link.commit(attempt.job_id, attempt.fence, Commit(effect.key, b"null"))
            raise
