"""Audit: a person's change is written together with the line that says who made it, and why.

In one transaction, so that neither is ever there without the other. Changes of one tenant thereby come
one after the other: its chain has one end. In a process they queue for it; between replicas whoever finds
that the end has moved tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
PAGE = 500

Write = Callable[[Sequence[RecordChange]], Awaitable[bool]]
"""Writes these records together with a change. False: something was not at the version it names, nothing happened."""


class Audit:
    """Of one process: every change that it audits goes through here."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._jitter = runtime.jitter
        self._turn = asyncio.Lock()

    async def add(self, act: Act, write: Write) -> bool:
        """The change and its line. False, and nothing happened, if anything but the chain has moved.

        Raises `Conflict` if the chain moves at every try.
        """
        async with self._turn:
            head = await find_head(act.tenant, store=self._store)
            for n in range(TRIES):
                line = next_line(head, act, now=self._store.now())
                records = (
                    RecordChange(after=line_record(line), replaces=0),
                    RecordChange(after=head_record(line), replaces=head.number),
                )
                if await write(records):
                    return True
                before, head = head, await find_head(act.tenant, store=self._store)
                if head == before:
                    return False
                await asyncio.sleep(self._jitter(RETRY_S * (n + 1)))
        raise Conflict("the audit is busy: others write it at every try; try again")


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
