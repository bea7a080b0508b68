"""The store with somebody in front of it who counts: jobs that begin and jobs that end, whichever way they come.

A job ends by its worker's word, a cancel, a denial, a deadline, a rejected approval or the end of its
run, and each of these is written elsewhere. All of them are written through here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from holdfast.core.effect import Effect, Ruling
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.states import TERMINAL
from holdfast.ports import Accepted, Change, JobEvent, KeyReused, Store, Submission, Transaction
from holdfast.telemetry import Telemetry

_EFFECTS = {
    "effect.unknown": "unknown",
    "effect.committed": "settled",
    "effect.absent": "settled",
    "effect.resolved": "settled",
    "effect.refused": "refused",
}


def observed(store: Store, telemetry: Telemetry) -> Store:
    """The same store, counted. Give it to whoever writes; a bus that lives in the store needs the store itself."""
    return cast(Store, _Observed(store, telemetry))


class _Observed:
    def __init__(self, store: Store, telemetry: Telemetry) -> None:
        self._store = store
        self._telemetry = telemetry
        self.now = store.now  # asked for a dozen times for each job
        store.subscribe(self._heard)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._store, name)

    async def submit(self, submissions: Sequence[Submission]) -> list[Accepted | KeyReused]:
        answers = await self._store.submit(submissions)
        for submission, answer in zip(submissions, answers, strict=True):
            # Under the id that it brings along it was stored just now, by a transaction that could not say so.
            if isinstance(answer, Accepted) and (not answer.repeated or answer.job.id == submission.job.id):
                self._begun(answer.job)
        return answers

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        written = await self._store.apply(changes)
        for change, done in zip(changes, written, strict=True):
            if done and change.after.state in TERMINAL:
                self._telemetry.job_ended(change.after)
        return written

    async def transact(self, transactions: Sequence[Transaction]) -> list[bool]:
        written = await self._store.transact(transactions)
        for transaction, done in zip(transactions, written, strict=True):
            if done:
                self._wrote(transaction)
        return written

    async def replay_dead_letter(self, tenant: Tenant, number: int, submission: Submission) -> Accepted:
        answer = await self._store.replay_dead_letter(tenant, number, submission)
        if not answer.repeated:
            self._begun(answer.job)
        return answer

    async def prepare_effect(self, job_id: JobId, fence: int, key: str, *, idempotent: bool) -> tuple[Effect, Ruling]:
        effect, ruling = await self._store.prepare_effect(job_id, fence, key, idempotent=idempotent)
        self._telemetry.effect_told(ruling)
        return effect, ruling

    def _wrote(self, transaction: Transaction) -> None:
        for change in transaction.changes:
            if change.after.state in TERMINAL:
                self._telemetry.job_ended(change.after)
        for submission in transaction.submissions:
            # One that is alone and has a key may have been a repetition: who sent it asks again, see `submit`.
            if not (submission.alone and submission.key is not None):
                self._begun(submission.job)

    def _begun(self, job: Job) -> None:
        self._telemetry.job_submitted(job)
        if job.is_terminal:
            self._telemetry.job_ended(job)

    def _heard(self, events: Sequence[JobEvent]) -> None:
        """When an attempt has left an effect in the middle, the store alone knows."""
        for event in events:
            what = _EFFECTS.get(event.kind)
            if what is not None:
                self._telemetry.effect_told(what)
