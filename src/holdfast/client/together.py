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
"""Of the payloads of one request, more or less: who submits little does not wait for those who submit much."""


class Member(NamedTuple):
    ask: Ask[Any]
    answer: asyncio.Future[api.JobView | None]
    """None: to be asked alone."""

    @property
    def new(self) -> api.NewJob:
        assert isinstance(self.ask.body, api.NewJob)
        return self.ask.body


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
        for group in _grouped([member for member in waiting if not member.answer.done()]):
            if len(group) == 1:
                group[0].answer.set_result(None)
            else:
                task = asyncio.get_running_loop().create_task(self._ask_for(group))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)

    async def _ask_for(self, group: Sequence[Member]) -> None:
        try:
            answers = await self._ask_alone(_batch(group))
        except HoldfastError as error:
            # What was refused as a whole was not stored, and may be one member's fault.
            refused = error.status < 500 and not isinstance(error, PlaneUnavailable)
            for member in group:
                _settle(member, None if refused else error)
        else:
            for member, answer in zip(group, answers, strict=True):
                _settle(member, answer.job or _error(member, answer))


def _grouped(members: Sequence[Member]) -> Iterator[list[Member]]:
    """Those who say it as the same person, in the same trace, and may or may not say it again."""
    groups: dict[tuple[bool, frozenset[tuple[str, str]]], tuple[list[Member], int]] = {}
    for member in members:
        kind = member.ask.repeatable, frozenset(member.ask.headers.items())
        payload = member.new.payload
        size = len(bytes(payload)) if isinstance(payload, msgspec.Raw) else 0
        group, taken = groups.get(kind, ([], 0))
        if group and (len(group) == JOBS_MAX or taken + size > BYTES_MAX):
            yield group
            group, taken = [], 0
        group.append(member)
        groups[kind] = group, taken + size
    for group, _ in groups.values():
        yield group


def _batch(group: Sequence[Member]) -> Ask[Sequence[api.Submitted]]:
    read, first = read_as(api.SubmittedJobs), group[0].ask
    jobs = api.NewJobs(jobs=[member.new for member in group])
    return post_ask(
        "/v1/jobs:batch", lambda raw: read(raw).jobs, jobs, headers=first.headers, repeatable=first.repeatable
    )


def _error(member: Member, answer: api.Submitted) -> HoldfastError | None:
    """None where it may be asked once more, and then says more: what was refused was not stored."""
    told = msgspec.convert(answer.error, api.Problem)
    return None if told.status < 500 or member.ask.repeatable else replies.error(told)


def _settle(member: Member, answer: api.JobView | HoldfastError | None) -> None:
    if member.answer.done():
        return  # cancelled meanwhile; its job may be there, as after any request that was cut off
    if isinstance(answer, HoldfastError):
        member.answer.set_exception(answer)
    else:
        member.answer.set_result(answer)
