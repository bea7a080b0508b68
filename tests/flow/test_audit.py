"""The audit: a line is written with its change or not at all, by any number of replicas, and tampering is found."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.stage import ACME, Stage, staged
from flow.telling import undelivered
from holdfast.core.audit import Act
from holdfast.core.policy_version import PLANE
from holdfast.core.record import Kind, Record
from holdfast.core.states import State
from holdfast.errors import Conflict, NotFound, StoreUnavailable
from holdfast.flow.again import replay, retry
from holdfast.flow.audit import Audit, Entry, get_line, list_lines, transact, verify
from holdfast.flow.cancel import cancel
from holdfast.flow.policies import publish
from holdfast.flow.record import End
from holdfast.ports import RecordChange, Transaction


def entry(stage: Stage, action: str = "thing.done", subject: str = "thing/1", **more: Any) -> Entry:
    act = Act(**{"tenant": ACME, "action": action, "subject": subject, "by": "ana", "reason": "because", **more})
    return Entry(Audit(stage.inner, stage.runtime), act)


def thing(version: int = 1) -> RecordChange:
    record = Record(kind=Kind.KEY, tenant=ACME, id="thing", version=version, created_at=0.0, body=b"{}")
    return RecordChange(after=record, replaces=version - 1)


async def change(stage: Stage, change: RecordChange, entry: Entry) -> bool:
    return await transact(Transaction(records=[change]), store=stage.inner, entry=entry)


@undelivered
@on_virtual_time
async def test_a_refused_change_leaves_no_line(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        assert await change(stage, thing(), entry(stage))
        assert not await change(stage, thing(), entry(stage))

        [line] = await list_lines(ACME, store=stage.inner, limit=10)
        assert (line.number, line.by, line.reason, line.subject) == (1, "ana", "because", "thing/1")


@undelivered
@on_virtual_time
async def test_replicas_that_write_at_once_all_get_their_line(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        # An `Audit` each, as in processes of their own: only the store stands between them.
        done = await asyncio.gather(
            *(transact(Transaction(), store=stage.inner, entry=entry(stage, subject=f"thing/{n}")) for n in range(12))
        )
        verdict = await verify(ACME, store=stage.inner)

        assert done == [True] * 12
        assert (verdict.broken, verdict.lines) == (None, 12)
        assert {line.subject for line in await list_lines(ACME, store=stage.inner, limit=100)} == {
            f"thing/{n}" for n in range(12)
        }


@undelivered
@on_virtual_time
async def test_a_replica_goes_on_where_another_has_left_the_chain(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        one, other = (Audit(stage.inner, runtime) for _ in range(2))
        act = Act(tenant=ACME, action="thing.done", subject="thing")
        for n, audit in enumerate([one, other, one, one, other, one], start=1):
            assert await change(stage, thing(n), Entry(audit, act))

        verdict = await verify(ACME, store=stage.inner)
        assert (verdict.broken, verdict.lines) == (None, 6)


@undelivered
@on_virtual_time
async def test_those_who_wait_together_are_answered_each_for_themselves(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        audit = Audit(stage.inner, runtime)

        def saying(subject: str) -> Entry:
            return Entry(audit, Act(tenant=ACME, action="thing.done", subject=subject))

        async def broken(_: Sequence[RecordChange]) -> bool:
            raise StoreUnavailable("memory", "no answer", applied=None)

        first, refused, failed, last = await asyncio.gather(
            change(stage, thing(), saying("first")),
            change(stage, thing(), saying("refused")),
            saying("failed").add(broken),
            change(stage, thing(2), saying("last")),
            return_exceptions=True,
        )
        lines = await list_lines(ACME, store=stage.inner, limit=10, after=0)

        assert (first, refused, last) == (True, False, True)
        assert isinstance(failed, StoreUnavailable)
        assert [line.subject for line in lines] == ["first", "last"]
        assert (await verify(ACME, store=stage.inner)).broken is None


@undelivered
@on_virtual_time
async def test_a_chain_that_always_moves_is_given_up(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        mine, theirs = entry(stage), entry(stage, subject="theirs")

        async def beaten(records: Sequence[RecordChange]) -> bool:
            await transact(Transaction(), store=stage.inner, entry=theirs)
            [written] = await stage.inner.transact([Transaction(records=records)])
            return written

        with pytest.raises(Conflict, match="the audit is busy"):
            await mine.add(beaten)


@undelivered
@on_virtual_time
async def test_lines_are_found_by_what_was_done_and_to_what(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        for n in range(3):
            await change(stage, thing(n + 1), entry(stage, action=f"thing.{'ab'[n % 2]}", subject=f"thing/{n // 2}"))

        async def numbers(**wanted: Any) -> list[int]:
            return [line.number for line in await list_lines(ACME, store=stage.inner, **{"limit": 10, **wanted})]

        assert await numbers() == [3, 2, 1]
        assert await numbers(before=3, limit=1) == [2]
        assert await numbers(after=1) == [2, 3]
        assert await numbers(action="thing.a") == [3, 1]
        assert await numbers(subject="thing/0") == [2, 1]
        assert await numbers(subject="thing/0", action="thing.a", after=0) == [1]
        assert (await get_line(ACME, 2, store=stage.inner)).action == "thing.b"
        with pytest.raises(NotFound, match="no line 4"):
            await get_line(ACME, 4, store=stage.inner)


@undelivered
@on_virtual_time
async def test_what_people_do_to_jobs_is_written_with_it(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.submit()
        said = entry(stage, "job.cancelled", f"job/{job.id}")
        for _ in range(2):
            await cancel(ACME, job.id, "enough", store=stage.inner, entry=said)
        answers = [
            await retry(ACME, job.id, store=stage.inner, submitter=stage.submitter, entry=entry(stage, "job.retried"))
            for _ in range(2)
        ]
        lines = await list_lines(ACME, store=stage.inner, limit=10, after=0)

        assert [(line.action, line.detail) for line in lines] == [
            ("job.cancelled", {"was": State.SCHEDULED}),
            ("job.retried", {"retried_as": answers[0].job.id}),
        ], "what is said a second time changes nothing, and is not written down"
        assert [answer.repeated for answer in answers] == [False, True]
        assert answers[0].job.id == answers[1].job.id


@on_virtual_time
async def test_a_replayed_dead_letter_is_written_once(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.begun()
        await stage.complete(job, End.FAILED, retryable=False)
        answers = [
            await replay(
                ACME, 1, store=stage.inner, submitter=stage.submitter, entry=entry(stage, "dead_letter.replayed")
            )
            for _ in range(2)
        ]

        [line] = await list_lines(ACME, store=stage.inner, limit=10)
        assert line.detail == {"job": job.id, "replayed_as": answers[0].job.id}
        assert [answer.repeated for answer in answers] == [False, True]


@undelivered
@on_virtual_time
async def test_the_policy_is_in_the_planes_own_chain(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        rules = {"format": 1, "default": {"action": "allow"}}
        said = entry(stage, "policy.published", "policy", tenant=PLANE)
        version = await publish(rules, store=stage.inner, entry=said)

        [line] = await list_lines(PLANE, store=stage.inner, limit=10)
        assert line.detail == {"version": 1, "hash": version.hash, "before": 0}
        assert await list_lines(ACME, store=stage.inner, limit=10) == []


@undelivered
@on_virtual_time
async def test_a_line_changed_in_the_database_is_found(runtime: VirtualRuntime, tmp_path: Path) -> None:
    file = tmp_path / "plane.db"
    async with staged(runtime, url=f"sqlite:///{file}") as stage:
        for n in range(5):
            await change(stage, thing(n + 1), entry(stage))
        before = await verify(ACME, store=stage.inner)
        with apsw.Connection(str(file)) as connection:
            connection.execute(
                "UPDATE holdfast_records SET body = replace(body, 'because', 'thieves')"
                " WHERE kind = 'audit' AND id = '000000000003'"
            )
        after = await verify(ACME, store=stage.inner)

        assert (before.broken, before.lines) == (None, 5)
        assert (after.broken, after.lines, after.why) == (3, 2, "the line was changed")
