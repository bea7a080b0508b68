"""The link to the plane: what a worker says over `/v1/work/*`, and the two ways in which it can fail.

Everything here may be repeated after `Unreachable`. A claim, or outcomes with a refill, may have started deliveries of
which their worker never heard: the next claim says what it holds, and gets the others again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from holdfast import api
from holdfast.http1.answer import BrokenExchange
from holdfast.locks.runtime import Runtime
from holdfast.worker.http1 import Address
from holdfast.worker.wire import Commit, Prepare, Report, Withdraw

CALL_S = 10.0
GOODBYE_S = 2.0
REFUSED_ON_THE_WAY = {401, 403, 413}
"""What a proxy says for itself, and would say again: who asks may not, or the body is too long for it."""
BACKOFF_FIRST_S = 0.05
BACKOFF_S_MAX = 2.0

Ref = tuple[str, int]
"""A job and the fence of one of its attempts."""

_T = TypeVar("_T")


class Unreachable(Exception):
    """No answer, or one that asks to come back later. What was asked may have been done."""


class Refused(Exception):
    """A definite answer: no. `code` is the problem's, or the status where something in between refuses for itself."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.status = status
        self.code = code
        self.detail = detail


class Delivered(api.DeliveryView, kw_only=True):
    """A delivery whose payload is passed on as it came."""

    payload: msgspec.Raw


class Claimed(msgspec.Struct):
    deliveries: list[Delivered]
    waited_s: float = 0.0


class Completed(api.Standings, kw_only=True):
    deliveries: list[Delivered] = msgspec.field(default_factory=list)


class _Ruling(msgspec.Struct):
    ruling: str
    idempotency_key: str
    result: msgspec.Raw = msgspec.Raw(b"null")


class _Problem(msgspec.Struct):
    code: str = ""
    detail: str = "not an answer of a plane"


class Link:
    """Used from one event loop."""

    def __init__(self, url: str, worker: str, *, api_key: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"plane {url!r}: write http://host:port")
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        port = parts.port or (443 if tls else 80)
        self.worker = worker
        self._login = f"Bearer {api_key}" if api_key else ""
        self._path = parts.path.rstrip("/") + "/v1/work/"
        self._plane = Address(parts.hostname, port, tls=tls)

    async def hello(self, hello: api.Hello) -> api.HelloReply:
        return await self._post("hello", hello, api.HelloReply)

    async def claim(self, limit: int, *, wait_s: float, holding: Collection[Ref] | None) -> Claimed:
        """Deliveries, already started."""
        held = None if holding is None else _refs(holding)
        claim = api.Claim(worker=self.worker, limit=limit, wait_s=wait_s, start=True, holding=held)
        return await self._post("claim", claim, Claimed, within_s=wait_s + CALL_S)

    async def renew(self, attempts: Sequence[Ref], *, within_s: float) -> list[api.AttemptStanding]:
        work = api.RenewWork(worker=self.worker, attempts=_refs(attempts))
        return (await self._post("renew", work, api.Standings, within_s=within_s)).attempts

    async def listen(self, heard: Collection[Ref], *, wait_s: float) -> list[Ref]:
        """Attempts that somebody wants to be stopped."""
        said = api.Listen(worker=self.worker, wait_s=wait_s, heard=_refs(heard))
        reply = await self._post("listen", said, api.Heard, within_s=wait_s + CALL_S)
        return [(ref.job_id, ref.fence) for ref in reply.cancel]

    async def complete(self, outcomes: list[api.Outcome], *, refill: int) -> Completed:
        work = api.CompleteWork(worker=self.worker, outcomes=outcomes, refill=refill)
        return await self._post("complete", work, Completed)

    async def progress(self, job_id: str, fence: int, report: Report) -> None:
        value = msgspec.Raw(report.progress)
        said = api.Progress(worker=self.worker, job_id=job_id, fence=fence, progress=value)
        await self._post("progress", said, msgspec.Raw)

    async def prepare(self, job_id: str, fence: int, effect: Prepare) -> _Ruling:
        said = api.PrepareEffect(
            worker=self.worker, job_id=job_id, fence=fence, key=effect.key, idempotent=effect.idempotent
        )
        return await self._post("effect/prepare", said, _Ruling)

    async def commit(self, job_id: str, fence: int, effect: Commit) -> None:
        value = msgspec.Raw(effect.result)
        said = api.CommitEffect(worker=self.worker, job_id=job_id, fence=fence, key=effect.key, result=value)
        await self._post("effect/commit", said, msgspec.Raw)

    async def withdraw(self, job_id: str, fence: int, effect: Withdraw) -> None:
        said = api.WithdrawEffect(worker=self.worker, job_id=job_id, fence=fence, key=effect.key)
        await self._post("effect/withdraw", said, msgspec.Raw)

    async def goodbye(self, *, gone: bool) -> None:
        await self._post("goodbye", api.Goodbye(worker=self.worker, gone=gone), msgspec.Raw, within_s=GOODBYE_S)

    def close(self) -> None:
        self._plane.close()

    async def _post(self, verb: str, body: msgspec.Struct, reply: type[_T], *, within_s: float = CALL_S) -> _T:
        try:
            said = msgspec.json.encode(body)
            answer = await self._plane.post(self._path + verb, said, login=self._login, within_s=within_s)
            if answer.status < 300:
                return msgspec.json.decode(answer.body or b"null", type=reply)
            problem = _problem(answer.body)
        except (OSError, BrokenExchange, msgspec.DecodeError) as error:
            raise Unreachable(f"{verb}: {str(error) or 'no answer in time'}") from error
        # A proxy that has lost its way to the plane may well say 404: that is no word of the plane's about an attempt.
        is_definite = bool(problem.code) or answer.status in REFUSED_ON_THE_WAY
        if answer.status >= 500 or answer.status == 429 or not is_definite:
            raise Unreachable(f"{verb}: {answer.status} {problem.code or 'from elsewhere'}: {problem.detail}")
        raise Refused(answer.status, problem.code or str(answer.status), problem.detail)


def _refs(attempts: Iterable[Ref]) -> list[api.AttemptRef]:
    return [api.AttemptRef(job_id=job_id, fence=fence) for job_id, fence in attempts]


def _problem(body: bytes) -> _Problem:
    try:
        return msgspec.json.decode(body, type=_Problem)
    except msgspec.DecodeError:
        return _Problem()


async def patiently(call: Callable[[], Awaitable[Any]], *, runtime: Runtime, while_: Callable[[], bool]) -> Any:
    """Repeat a call that may be repeated until it is answered. Raises `Unreachable` when `while_` says no more."""
    wait_s = BACKOFF_FIRST_S
    while True:
        try:
            return await call()
        except Unreachable:
            if not while_():
                raise
        await asyncio.sleep(runtime.jitter(wait_s))
        wait_s = min(2 * wait_s, BACKOFF_S_MAX)
