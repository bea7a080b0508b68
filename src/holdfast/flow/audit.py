"""Audit: a person's change is written together with the line that says who made it, and why.

In one transaction, so that neither is ever there without the other. Changes of one tenant thereby come
one after the other: its chain has one end. In a process one goes on for all that wait, line upon line; between
replicas whoever finds that the end has moved tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.core.audit import (
    HEAD,
    Act,
    Head,
    Line,
    Verdict,
    Verifier,
    head_from,
    head_record,
    line_from,
    line_id,
    line_record,
    next_line,
)
from holdfast.core.job import Tenant
from holdfast.core.record import Kind
from holdfast.errors import Conflict, NotFound
from holdfast.locks.runtime import Runtime
from holdfast.ports import RecordChange, Store, Transaction

TRIES = 20
RETRY_S = 0.05
TOGETHER_MAX = 100
HEADS_MAX = 1000
PAGE = 500

Write = Callable[[Sequence[RecordChange]], Awaitable[bool]]
"""Writes these records together with a change. False: something was not at the version it names, nothing happened."""


class Audit:
    """Of one process: every change that it audits goes through here."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._jitter = runtime.jitter
        self._waiting: dict[Tenant, list[_Asked]] = {}
        self._writing: dict[Tenant, asyncio.Task[None]] = {}
        self._heads: dict[Tenant, Head] = {}
        """Where this process has left the chains. Others may have gone on since: then the store refuses, and is asked."""

    async def add(self, act: Act, write: Write) -> bool:
        """The change and its line. False, and nothing happened, if anything but the chain has moved.

        Raises `Conflict` if the chain moves at every try.
        """
        asked = _Asked(act, write, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(act.tenant, []).append(asked)
        if act.tenant not in self._writing:
            self._writing[act.tenant] = asyncio.create_task(self._write_chain(act.tenant))
        return await asked.answer

    async def _write_chain(self, tenant: Tenant) -> None:
        """Until nobody waits any more."""
        waiting = self._waiting[tenant]
        try:
            head, tries = self._heads.pop(tenant, None) or await find_head(tenant, store=self._store), 0
            while waiting:
                batch = waiting[:TOGETHER_MAX]
                head = await self._write_together(batch, head)
                waiting[:] = [asked for asked in waiting if not asked.answer.done()]
                tries = tries + 1 if waiting[: len(batch)] == batch else 0
                if tries == TRIES:
                    raise Conflict("the audit is busy: others write it at every try; try again")
                if tries > 1:
                    await asyncio.sleep(self._jitter(RETRY_S * tries))
            self._remember(tenant, head)
        except BaseException as error:
            for asked in waiting:
                asked.fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            del self._waiting[tenant], self._writing[tenant]

    def _remember(self, tenant: Tenant, head: Head) -> None:
        if len(self._heads) >= HEADS_MAX:
            self._heads.clear()
        self._heads[tenant] = head

    async def _write_together(self, batch: Sequence[_Asked], head: Head) -> Head:
        """Each with its own line, all in one go: a turn for each would be their speed limit. Returns the chain's end.

        Where one is refused, so are those behind it, whose lines follow on its line: they have no answer then.
        """
        ends, writes = [head], []
        for asked in batch:
            line = next_line(ends[-1], asked.act, now=self._store.now())
            records = (
                RecordChange(after=line_record(line), replaces=0),
                RecordChange(after=head_record(line), replaces=ends[-1].number),
            )
            ends.append(Head(number=line.number, hash=line.hash))
            writes.append(asked.write(records))
        written = await asyncio.gather(*writes, return_exceptions=True)
        for asked, answer in zip(batch, written, strict=True):
            if isinstance(answer, BaseException):
                asked.fail(answer)
            elif answer:
                asked.succeed(written=True)
        if all(answer is True for answer in written):
            return ends[-1]
        found = await find_head(batch[0].act.tenant, store=self._store)
        first = next(n for n, answer in enumerate(written) if answer is not True)
        if found == ends[first] and written[first] is False:
            # The chain is where it was to be: it was the change itself.
            batch[first].succeed(written=False)
        return found


class _Asked(NamedTuple):
    act: Act
    write: Write
    answer: asyncio.Future[bool]

    def succeed(self, *, written: bool) -> None:
        if not self.answer.done():
            self.answer.set_result(written)

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(frozen=True, slots=True)
class Entry:
    """What a person is about to do, and where it will be written down."""

    audit: Audit
    act: Act

    async def add(self, write: Write, **detail: Any) -> bool:
        """As `Audit.add`; what is only known now is added to the line."""
        return await self.audit.add(replace(self.act, detail={**self.act.detail, **detail}), write)


async def transact(transaction: Transaction, *, store: Store, entry: Entry | None, **detail: Any) -> bool:
    """As `Store.transact`, for one transaction; with its line, if a person makes an `entry` of it."""
    if entry is None:
        [written] = await store.transact([transaction])
        return written

    async def write(records: Sequence[RecordChange]) -> bool:
        [written] = await store.transact([replace(transaction, records=[*transaction.records, *records])])
        return written

    return await entry.add(write, **detail)


async def find_head(tenant: Tenant, *, store: Store) -> Head:
    [record] = await store.find_records(Kind.AUDIT, tenant, [HEAD])
    return head_from(record)


async def get_line(tenant: Tenant, number: int, *, store: Store) -> Line:
    """Raises `NotFound`."""
    [record] = await store.find_records(Kind.AUDIT, tenant, [line_id(number)])
    if record is None:
        raise NotFound(f"the audit has no line {number}; `holdfast audit list` shows what there is")
    return line_from(record)


async def list_lines(
    tenant: Tenant,
    *,
    store: Store,
    limit: int,
    after: int | None = None,
    before: int | None = None,
    action: str | None = None,
    subject: str | None = None,
) -> list[Line]:
    """Newest first, from before `before`; or, if `after` is given, oldest first from there on."""
    if after is not None:
        records = await store.list_records(
            Kind.AUDIT, tenant, state=action, parent=subject, after=line_id(after), limit=limit
        )
    else:
        start = HEAD if before is None else line_id(before)
        records = await store.list_records(Kind.AUDIT, tenant, state=action, parent=subject, before=start, limit=limit)
    return [line_from(record) for record in records if record.id != HEAD]


async def verify(tenant: Tenant, *, store: Store, known: Head | None = None) -> Verdict:
    """Read the whole chain. `known` is an end of it that somebody wrote down: it must still be in there."""
    verifier = Verifier(tenant, [await find_head(tenant, store=store), known or Head()])
    after = ""
    while not verifier.is_broken:
        page = await store.list_records(Kind.AUDIT, tenant, after=after, limit=PAGE)
        verifier.read(record for record in page if record.id != HEAD)
        if len(page) < PAGE:
            break
        after = page[-1].id
    return verifier.verdict(await find_head(tenant, store=store))
