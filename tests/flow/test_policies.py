"""Policies: publishing, rolling back and trying drafts, one compare-and-set each; and every replica follows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.stage import ACME, Stage, staged
from flow.telling import undelivered
from holdfast.core.decision import Decision
from holdfast.core.job import Job
from holdfast.core.policy import Rulebook
from holdfast.core.policy_version import Active, active_to_record, version_to_record
from holdfast.core.states import Risk, State
from holdfast.errors import Conflict, Invalid, NotFound, VersionMismatch
from holdfast.flow.decide import LivePolicy
from holdfast.flow.policies import find_active, get_version, list_versions, publish, roll_back, simulate
from holdfast.policies import POLL_S, Policies
from holdfast.ports import RecordChange, Transaction
from holdfast.telemetry import Telemetry


def document(reason: str = "x", action: str = "allow", **more: Any) -> dict[str, Any]:
    return {"format": 1, "default": {"action": action, "reason": reason}, **more}


async def notes(stage: Stage) -> list[tuple[str, dict[str, Any]]]:
    events = await stage.inner.list_events(after=0, limit=1000)
    return [(event.kind, event.detail) for event in events if event.kind.startswith("policy.")]


@undelivered
@on_virtual_time
async def test_versions_are_numbered_and_kept(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        first = await publish(document("one"), store=stage.inner, by="alice", reason="begin")
        second = await publish(document("two"), store=stage.inner)
        standing = await find_active(stage.inner)

        assert (first.number, second.number, standing.number) == (1, 2, 2)
        assert (await get_version(stage.inner, 1)).document == document("one")
        assert [version.number for version in await list_versions(stage.inner, before=None, limit=10)] == [2, 1]
        assert [version.number for version in await list_versions(stage.inner, before=2, limit=10)] == [1]
        assert await notes(stage) == [
            ("policy.published", {"version": 1, "hash": first.hash, "before": 0, "by": "alice", "reason": "begin"}),
            ("policy.published", {"version": 2, "hash": second.hash, "before": 1, "by": "", "reason": ""}),
        ]


@undelivered
@on_virtual_time
async def test_a_bad_document_stores_nothing(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        with pytest.raises(Invalid):
            await publish({"format": 1, "rules": []}, store=stage.inner)

        assert (await find_active(stage.inner)).number == 0
        assert await notes(stage) == []


@undelivered
@on_virtual_time
async def test_publishing_over_what_one_has_not_seen_is_refused(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        await publish(document("one"), store=stage.inner, expected=0)
        with pytest.raises(VersionMismatch, match="version 1 of the policy is active, not 0"):
            await publish(document("two"), store=stage.inner, expected=0)

        assert (await find_active(stage.inner)).number == 1


@undelivered
@on_virtual_time
async def test_of_two_who_publish_at_once_each_gets_a_version(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        made = await asyncio.gather(*(publish(document(str(n)), store=stage.inner) for n in range(4)))

        assert sorted(version.number for version in made) == [1, 2, 3, 4]
        for version in made:
            assert (await get_version(stage.inner, version.number)).hash == version.hash


@undelivered
@on_virtual_time
async def test_of_two_who_expect_the_same_version_one_wins(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        made = await asyncio.gather(
            *(publish(document(str(n)), store=stage.inner, expected=0) for n in range(4)), return_exceptions=True
        )

        assert sorted(type(one).__name__ for one in made) == ["PolicyVersion", *["VersionMismatch"] * 3]


@undelivered
@on_virtual_time
async def test_rolling_back_makes_an_older_version_active(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        for n in range(3):
            await publish(document(str(n)), store=stage.inner)
        back = await roll_back(1, store=stage.inner, expected=3, by="bob", reason="the new one denies too much")
        standing = await find_active(stage.inner)
        after = await publish(document("again"), store=stage.inner)

        assert (back.number, standing.number) == (1, 1)
        assert (await notes(stage))[3] == (
            "policy.rolled_back",
            {"version": 1, "hash": back.hash, "before": 3, "by": "bob", "reason": "the new one denies too much"},
        )
        assert after.number == 4, "a number is given once"
        with pytest.raises(NotFound):
            await roll_back(9, store=stage.inner)
        with pytest.raises(Conflict):
            await roll_back(4, store=stage.inner)
        with pytest.raises(VersionMismatch):
            await roll_back(1, store=stage.inner, expected=3)


@undelivered
@on_virtual_time
async def test_a_draft_is_asked_about_jobs_and_changes_none(runtime: VirtualRuntime) -> None:
    async with staged(runtime, policy=Rulebook(1, document("x"))) as stage:
        small = await stage.submit("pay", payload=b'{"amount":1}')
        large = await stage.submit("pay", payload=b'{"amount":5000}')
        strange = await stage.submit("pay", payload=b'{"amount":"hunter2"}', risk=Risk.HIGH)
        await stage.submit("pay", tenant=type(ACME)("other"))
        rule = {"name": "large", "when": "payload.amount > 1000", "action": "deny", "reason": "too much"}
        verdicts = await simulate(document(rules=[rule]), ACME, store=stage.inner, limit=100)

        found = {verdict.job.id: (verdict.before, verdict.after, verdict.decision.rule) for verdict in verdicts}
        assert found == {
            small.id: ("allow", "allow", "default"),
            large.id: ("allow", "deny", "large"),
            strange.id: ("allow", "deny", "large"),
        }
        assert (await stage.job(large.id)).state is State.SCHEDULED


@undelivered
@on_virtual_time
async def test_a_simulation_ends_at_its_limit(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        for _ in range(450):
            await stage.submit()

        assert len(await simulate(document(), ACME, store=stage.inner, limit=420)) == 420
        assert len(await simulate(document(), ACME, store=stage.inner, limit=1000)) == 450


@undelivered
@on_virtual_time
async def test_a_simulation_lets_others_in_after_each_job(
    runtime: VirtualRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may cost as much as an expression may be given, and there may be ten thousand."""
    decided, most = 0, 0
    decide = Rulebook.decide

    def counted(self: Rulebook, job: Job) -> Decision:
        nonlocal decided, most
        decided += 1
        most = max(most, decided)
        return decide(self, job)

    async with staged(runtime) as stage:
        for _ in range(20):
            await stage.submit()
        monkeypatch.setattr(Rulebook, "decide", counted)
        asked = asyncio.create_task(simulate(document(), ACME, store=stage.inner, limit=20))
        while not asked.done():
            decided = 0
            await asyncio.sleep(0)

        assert (len(await asked), most) == (20, 1)


# -- the service --------------------------------------------------------------------------------------


def following(stage: Stage) -> tuple[LivePolicy, Policies]:
    telemetry = Telemetry()
    live = LivePolicy(telemetry, stage.runtime)
    return live, Policies(store=stage.inner, policy=live, telemetry=telemetry, runtime=stage.runtime)


@undelivered
@on_virtual_time
async def test_every_replica_follows_within_one_look(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        replicas = [following(stage) for _ in range(3)]
        for _, service in replicas:
            await service.warm_up()
            service.start()
        assert {live.version for live, _ in replicas} == {0}
        await publish(document("one"), store=stage.inner)
        await asyncio.sleep(POLL_S * 1.5)
        assert {live.version for live, _ in replicas} == {1}
        await publish(document("two"), store=stage.inner)
        await roll_back(1, store=stage.inner)
        await asyncio.sleep(POLL_S * 1.5)
        assert {(live.version, live.hash) for live, _ in replicas} == {(1, (await get_version(stage.inner, 1)).hash)}
        for _, service in replicas:
            await service.stop()


@undelivered
@on_virtual_time
async def test_the_event_wakes_a_replica_at_once(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        live, service = following(stage)
        await service.warm_up()
        service.start()
        await asyncio.sleep(0.01)
        await publish(document("one"), store=stage.inner)
        await asyncio.sleep(0.01)

        assert live.version == 1
        await service.stop()


@undelivered
@on_virtual_time
async def test_a_version_that_cannot_be_used_leaves_the_one_before(runtime: VirtualRuntime) -> None:
    """Written by a newer plane, in a format that is not known here."""
    async with staged(runtime) as stage:
        live, service = following(stage)
        version = await publish(document("one"), store=stage.inner)
        await service.warm_up()
        strange = msgspec.structs.replace(version, number=2, document={"format": 2})
        active = Active(number=2, hash="h", newest=2, since=0.0)
        stored = RecordChange(after=version_to_record(strange), replaces=0)
        pointer = RecordChange(after=active_to_record(active, version=2), replaces=1)
        assert await stage.inner.transact([Transaction(records=(stored, pointer))]) == [True]
        await service.tick()
        await service.tick()

        assert live.version == 1
        assert service._telemetry.registry.get_sample_value("holdfast_policy_unusable_total") == 1
        assert service._telemetry.registry.get_sample_value("holdfast_policy_version") == 1


@undelivered
@on_virtual_time
async def test_a_file_is_published_when_it_has_changed(runtime: VirtualRuntime, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    async with staged(runtime) as stage:

        async def start() -> int:
            live, service = following(stage)
            await service.warm_up(str(file))
            await service.stop()
            return live.version

        file.write_text("format: 1\ndefault: {action: allow}\n")
        assert await start() == 1
        assert await start() == 1, "it is the same"
        await publish(document("by hand"), store=stage.inner)
        assert await start() == 2, "what a person published since is not undone by a restart"
        file.write_text("format: 1\ndefault: {action: deny, reason: closed}\n")
        assert await start() == 3
        await roll_back(1, store=stage.inner)
        assert await start() == 1, "nor is a rollback"
        assert (await get_version(stage.inner, 3)).file == "policy.yaml"


@undelivered
@on_virtual_time
async def test_two_planes_that_start_with_one_file_publish_it_once(runtime: VirtualRuntime, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("format: 1\ndefault: {action: allow}\n")
    async with staged(runtime) as stage:
        replicas = [following(stage) for _ in range(3)]
        await asyncio.gather(*(service.warm_up(str(file)) for _, service in replicas))

        assert {live.version for live, _ in replicas} == {1}
        assert len(await list_versions(stage.inner, before=None, limit=10)) == 1


@undelivered
@on_virtual_time
async def test_a_plane_does_not_start_with_a_bad_file(runtime: VirtualRuntime, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("format: 1\nrules: []\n")
    async with staged(runtime) as stage:
        _, service = following(stage)
        with pytest.raises(Invalid, match=r"policy\.yaml:1: document: default is missing"):
            await service.warm_up(str(file))
        with pytest.raises(Invalid, match=r"gone\.yaml: No such file"):
            await service.warm_up(str(tmp_path / "gone.yaml"))

        assert (await find_active(stage.inner)).number == 0
