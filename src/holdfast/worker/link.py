"""The link to the plane: what a worker says over `/v1/work/*`, and the two ways in which it can fail.

Everything here may be repeated after `Unreachable` except a claim, whose deliveries may already
have been started: those come back to the plane when their lease runs out.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from holdfast import api
from holdfast.locks.runtime import Runtime
from holdfast.locks.stores.etcd_http import BrokenExchange, Endpoint
from holdfast.worker.wire import Commit, Prepare, Report

CALL_S = 10.0
CONNECT_S = 2.0
LONGEST_S = 90.0
"""Of any exchange: longer than the longest wait for deliveries."""
BACKOFF_FIRST_S = 0.05
BACKOFF_S_MAX = 2.0

_T = TypeVar("_T")


class Unreachable(Exception):
    """No answer, or one that asks to come back later. What was asked may have been done."""


class Refused(Exception):
    """The plane's definite answer: no. `code` is the problem's."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.status = status
        self.code = code
        self.detail = detail


class Delivered(api.DeliveryView, kw_only=True):
    """A delivery whose payload is passed on as it came."""

    payload: msgspec.Raw


class _Deliveries(msgspec.Struct):
    deliveries: list[Delivered]


class _Ruling(msgspec.Struct):
    ruling: str
    idempotency_key: str
    result: msgspec.Raw = msgspec.Raw(b"null")


class _Problem(msgspec.Struct):
    code: str = "error"
    detail: str = ""


class Link:
    def __init__(self, url: str, worker: str, *, api_key: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"plane {url!r}: write http://host:port")
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        port = parts.port or (443 if tls else 80)
        self.worker = worker
        self._login = f"Bearer {api_key}" if api_key else ""
        self._path = parts.path.rstrip("/") + "/v1/work/"
        self._plane = Endpoint(parts.hostname, port, tls=tls, connect_s=CONNECT_S, exchange_s=LONGEST_S)

    async def hello(self, hello: api.Hello) -> api.HelloReply:
        return await self._post("hello", hello, api.HelloReply)

    async def claim(self, limit: int, *, wait_s: float) -> list[Delivered]:
        """Deliveries, already started."""
        claim = api.Claim(worker=self.worker, limit=limit, wait_s=wait_s, start=True)
        return (await self._post("claim", claim, _Deliveries, within_s=wait_s + CALL_S)).deliveries

    async def renew(self, attempts: Sequence[tuple[str, int]], *, within_s: float) -> list[api.AttemptStanding]:
        refs = [api.AttemptRef(job_id=job_id, fence=fence) for job_id, fence in attempts]
        work = api.RenewWork(worker=self.worker, attempts=refs)
        return (await self._post("renew", work, api.Standings, within_s=within_s)).attempts

    async def complete(self, outcomes: list[api.Outcome]) -> list[api.AttemptStanding]:
        work = api.CompleteWork(worker=self.worker, outcomes=outcomes)
        return (await self._post("complete", work, api.Standings)).attempts

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

    async def goodbye(self, *, gone: bool) -> None:
        await self._post("goodbye", api.Goodbye(worker=self.worker, gone=gone), msgspec.Raw, within_s=CONNECT_S)

    async def close(self) -> None:
        await self._plane.close()

    async def _post(self, verb: str, body: msgspec.Struct, reply: type[_T], *, within_s: float = CALL_S) -> _T:
        try:
            async with asyncio.timeout(within_s):
                answer = await self._plane.post(self._path + verb, msgspec.json.encode(body), login=self._login)
            if answer.status < 300:
                return msgspec.json.decode(answer.body or b"null", type=reply)
            problem = _problem(answer.body)
        except (OSError, BrokenExchange, msgspec.DecodeError) as error:
            raise Unreachable(f"{verb}: {error or 'no answer in time'}") from error
        if answer.status >= 500 or answer.status == 429:
            raise Unreachable(f"{verb}: {answer.status} {problem.code}: {problem.detail}")
        raise Refused(answer.status, problem.code, problem.detail)


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
