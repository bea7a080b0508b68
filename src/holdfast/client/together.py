"""Submissions of the same moment in one request: a plane stores a hundred jobs at the cost of a few.

Nobody waits for company. Those who come in the same turn of the loop share a request, and are answered in the same turn,
so callers who submit one job after the other stay together. Each has its own answer, and its own error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast import api
from holdfast.client import replies
from holdfast.client.asks import Ask, post_ask, read_as
from holdfast.errors import HoldfastError, PlaneUnavailable

JOBS_MAX = 100
BYTES_MAX = 1 << 20
"""Of one request with more than one job: who submits little does not wait for those who submit much."""


class Member(NamedTuple):
    ask: Ask[Any]
    answer: asyncio.Future[api.JobView | None]
    """None: to be asked alone."""


Group = list[tuple[Member, bytes]]
"""Who shares a request, each with what it says."""


class Together:
    """Used from one loop."""

    def __init__(self, ask_alone: Callable[[Ask[Any]], Awaitable[Any]]) -> None:
        self._ask_alone = ask_alone
        self._waiting: list[Member] = []
        self._asking: set[asyncio.Task[None]] = set()

    async def submit(self, ask: Ask[Any]) -> Any:
        """As if it were asked alone."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._send)
        member = Member(ask, loop.create_future())
        self._waiting.append(member)
        job = await member.answer
        return await self._ask_alone(ask) if job is None else job

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        members = [member for member in waiting if not member.answer.done()]
        for group in _grouped(members) if len(members) > 1 else [[(member, b"") for member in members]]:
            if len(group) <= 1:
                _settle_all(group, None)
            else:
                task = asyncio.get_running_loop().create_task(self._ask_for(group))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)

    async def _ask_for(self, group: Group) -> None:
        try:
            answers = await self._ask_alone(_batch(group))
        except HoldfastError as error:
            # What was refused as a whole was not stored, and may be one member's fault.
            refused = error.status < 500 and not isinstance(error, PlaneUnavailable)
            _settle_all(group, None if refused else error)
        except Exception as error:  # noqa: BLE001  (whatever it is, nobody may be left waiting)
            _settle_all(group, error)
        else:
            for (member, _), answer in zip(group, answers, strict=True):
                _settle(member, answer.job or _error(member, answer))


def _grouped(members: Sequence[Member]) -> Iterator[Group]:
    """Those who say it as the same person, in the same trace, and may or may not say it again."""
    groups: dict[tuple[bool, frozenset[tuple[str, str]]], Group] = {}
    for member in members:
        try:
            document = member.ask.content() or b""
        except Exception:  # noqa: BLE001  (whatever is wrong with it: asked alone, it says so itself)
            yield [(member, b"")]
            continue
        kind = member.ask.repeatable, frozenset(member.ask.headers.items())
        group = groups.setdefault(kind, [])
        if len(group) == JOBS_MAX or (group and len(document) + sum(len(said) for _, said in group) > BYTES_MAX):
            yield group
            group = groups[kind] = []
        group.append((member, document))
    yield from groups.values()


def _batch(group: Group) -> Ask[Sequence[api.Submitted]]:
    read, first = read_as(api.SubmittedJobs), group[0][0].ask
    written: list[Any] = [msgspec.Raw(document) for _, document in group]

    def read_each(raw: bytes) -> Sequence[api.Submitted]:
        answers: Sequence[api.Submitted] = read(raw).jobs
        if len(answers) != len(group) or any(answer.job is None and answer.error is None for answer in answers):
            raise msgspec.DecodeError("not one answer for each job")
        return answers

    return post_ask(
        "/v1/jobs:batch",
        read_each,
        api.NewJobs(jobs=written),
        headers=first.headers,
        repeatable=first.repeatable,
    )


def _error(member: Member, answer: api.Submitted) -> HoldfastError | None:
    """None where it may be asked once more, and then says more: what was refused was not stored."""
    told = msgspec.convert(answer.error, api.Problem)
    return None if told.status < 500 or member.ask.repeatable else replies.error(told)


def _settle_all(group: Group, answer: Exception | None) -> None:
    for member, _ in group:
        _settle(member, answer)


def _settle(member: Member, answer: api.JobView | Exception | None) -> None:
    if member.answer.done():
        return  # cancelled meanwhile; its job may be there, as after any request that was cut off
    if isinstance(answer, Exception):
        member.answer.set_exception(answer)
    else:
        member.answer.set_result(answer)
