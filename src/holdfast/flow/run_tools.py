"""What the drafts of runs are made and written with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.flow.give import Giver, transact
from holdfast.flow.submit import Submitter
from holdfast.flow.workflows import Workflows
from holdfast.locks.runtime import Runtime
from holdfast.ports import Store, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    store: Store
    workflows: Workflows
    submitter: Submitter
    runtime: Runtime
    live_runs_max: int
    """Of a tenant. Runs within runs count, and wait where there is no room for them."""
    giver: Giver | None = None
    """Who gives what a run orders straight to a worker; None: nobody here can."""

    async def transact(self, transactions: Sequence[Transaction]) -> list[bool]:
        written = await self.attempt(transactions)
        await self.withdraw(one for one, ok in zip(transactions, written, strict=True) if not ok)
        return written

    async def attempt(self, transactions: Sequence[Transaction]) -> list[bool]:
        """As `transact`, by somebody who will try again what is refused, or withdraw it."""
        return await transact(transactions, store=self.store, giver=self.giver)

    async def withdraw(self, refused: Iterable[Transaction]) -> None:
        """They are not written: their jobs give back what they have taken."""
        jobs = [submission.job for one in refused for submission in one.submissions]
        if jobs:
            await self.submitter.withdraw(jobs)
