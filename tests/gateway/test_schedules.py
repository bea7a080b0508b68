"""Schedules and sessions over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.conftest import Served
from holdfast import errors
from holdfast.api.schedules import NewSchedule, ScheduledJob, ScheduledRun
from holdfast.core.record import Kind, Record
from holdfast.gateway import schedules


def daily(name: str = "nightly", **values: Any) -> NewSchedule:
    job = ScheduledJob(topic="t", payload={"n": 1}, labels={"kind": "report"}, priority=3)
    usual: dict[str, Any] = {"cron": "0 3 * * *", "zone": "Europe/Berlin", "job": job}
    return NewSchedule(name=name, **usual | values)


async def test_schedule_is_shown_with_its_next_ticks(served: Served) -> None:
    made = await served.client.add_schedule(daily(), actor="ana")
    seen = await served.client.schedule("nightly", upcoming=3)

    assert (made.version, seen.upcoming[0], len(seen.upcoming)) == (seen.version, seen.next_at, 3)
    assert seen.job is not None
    assert (seen.job.payload, seen.job.labels, seen.job.priority) == ({"n": 1}, {"kind": "report"}, 3)
    assert [one.name for one in (await served.client.schedules()).items] == ["nightly"]


async def test_schedule_fires_by_itself(served: Served) -> None:
    await served.client.add_schedule(daily(cron="", every_s=1))
    async with asyncio.timeout(10):
        while not (found := (await served.client.list(labels={"schedule": "nightly"})).items):
            await asyncio.sleep(0.05)

    assert (found[0].topic, found[0].payload) == ("t", {"n": 1})


async def test_trigger_submits_now_also_while_paused(served: Served) -> None:
    await served.client.add_schedule(daily(paused=True), actor="ana")
    fired = await served.client.trigger_schedule("nightly")
    job = await served.client.get(fired.last)

    assert (job.actor, job.labels, fired.paused) == ("ana", {"kind": "report", "schedule": "nightly"}, True)
    assert len((await served.client.list()).items) == 1


async def test_schedule_whose_zone_is_not_known_here_is_shown_and_obeys_a_trigger(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plane has moved to a machine with another time zone database."""
    await served.client.add_schedule(daily("lost"))
    await served.client.add_schedule(daily("other", cron="", zone="UTC", every_s=3600))
    monkeypatch.setattr("holdfast.core.schedule.ZoneInfo", {}.__getitem__)

    assert [one.name for one in (await served.client.schedules()).items] == ["lost", "other"]
    assert (await served.client.schedule("lost")).upcoming == []
    assert (await served.client.trigger_schedule("lost")).last
    assert len((await served.client.list()).items) == 1
    await served.client.pause_schedule("lost")
    with pytest.raises(errors.Invalid, match="zone"):
        await served.client.resume_schedule("lost")


async def test_trigger_starts_one_run_though_the_schedule_changes_meanwhile(served: Served) -> None:
    """The run is started before the schedule is written, and whoever tries that again must not start another one."""
    await served.client.apply_workflow(
        '{"name": "w", "steps": [{"id": "nothing", "kind": "transform", "value": null}]}'
    )
    await served.client.add_schedule(daily(job=None, run=ScheduledRun(workflow="w")))

    await asyncio.gather(
        served.client.trigger_schedule("nightly"),
        served.client.pause_schedule("nightly"),
        served.client.resume_schedule("nightly"),
    )

    fired = await served.client.schedule("nightly")
    assert [run.id for run in (await served.client.list_runs()).items] == [fired.last]


async def test_schedules_are_counted_without_reading_them(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand of them, with a payload each, would be read for every one that is added."""
    store = served.plane.store
    list_records = store.list_records

    async def list_others(kind: Kind, *args: Any, **wanted: Any) -> list[Record]:
        assert kind is not Kind.SCHEDULE
        return await list_records(kind, *args, **wanted)

    monkeypatch.setattr(schedules, "SCHEDULES_MAX", 2)
    monkeypatch.setattr(store, "list_records", list_others)
    await served.client.add_schedule(daily("one", paused=True))
    await served.client.add_schedule(daily("two"))

    with pytest.raises(errors.TooMany, match="2 schedules"):
        await served.client.add_schedule(daily("three"))


async def test_pause_resume_and_remove(served: Served) -> None:
    await served.client.add_schedule(daily())

    assert (await served.client.pause_schedule("nightly")).next_at is None
    assert (await served.client.resume_schedule("nightly")).next_at is not None
    with pytest.raises(errors.Conflict, match="nightly"):
        await served.client.add_schedule(daily())
    await served.client.remove_schedule("nightly")
    with pytest.raises(errors.NotFound):
        await served.client.schedule("nightly")


async def test_run_of_no_workflow_is_told_when_it_is_triggered(served: Served) -> None:
    body = {"name": "weekly", "every_s": 3600, "run": {"workflow": "no-such"}}
    assert (await served.post("/v1/schedules", body)).status_code == 200
    answer = await served.post("/v1/schedules/weekly:trigger")

    assert (answer.status_code, "no-such" in answer.json()["detail"]) == (422, True)


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x", "job": {"topic": "t"}},
        {"name": "x", "every_s": 60},
        {"name": "x", "every_s": 60, "job": {"topic": "t"}, "run": {"workflow": "w"}},
        {"name": "x", "every_s": 60, "cron": "* * * * *", "job": {"topic": "t"}},
        {"name": "x", "every_s": 0.1, "job": {"topic": "t"}},
        {"name": "x", "cron": "* * *", "job": {"topic": "t"}},
        {"name": "x", "cron": "* * * * *", "zone": "Nowhere", "job": {"topic": "t"}},
        {"name": "x y", "every_s": 60, "job": {"topic": "t"}},
        {"name": "x", "every_s": 60, "job": {"topic": "t"}, "missed": "some"},
    ],
)
async def test_bad_schedule_is_refused(served: Served, body: dict[str, Any]) -> None:
    answer = await served.post("/v1/schedules", body)

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert (await served.client.schedules()).items == []


async def test_schedules_of_other_tenants_do_not_exist(served: Served) -> None:
    await served.client.add_schedule(daily())
    answer = await served.http.get("/v1/schedules/nightly", headers={"holdfast-tenant": "other"})

    assert answer.status_code == 404


async def test_busy_session_is_a_conflict_that_names_the_job(served: Served) -> None:
    first = await served.client.submit("t", session="chat", session_policy="reject", actor="ana")
    answer = await served.post("/v1/jobs", {"topic": "t", "session": "chat", "session_policy": "reject"})

    assert (answer.status_code, answer.json()["code"], answer.json()["job_id"]) == (409, "session-busy", first.id)
    assert ((await served.client.get(first.id)).session, first.actor) == ("chat", "ana")


async def test_member_of_a_batch_that_meets_a_busy_session_fails_alone(served: Served) -> None:
    member = {"topic": "t", "session": "chat", "session_policy": "reject"}
    answer = await served.post("/v1/jobs:batch", {"jobs": [member, {"topic": "t"}, member]})

    [taken, plain, refused] = answer.json()["jobs"]
    assert (taken["error"], plain["error"], refused["error"]["code"]) == (None, None, "session-busy")


async def test_interrupt_over_http(served: Served) -> None:
    first = await served.client.submit("t", session="chat")
    second = await served.client.submit("t", session="chat", session_policy="interrupt")

    assert (await served.client.get(first.id)).state == "CANCELLED"
    assert (await served.client.get(second.id)).state == "SCHEDULED"


@pytest.mark.parametrize("body", [{"session_policy": "queue"}, {"session": "x" * 129}])
async def test_bad_session_is_refused(served: Served, body: dict[str, str]) -> None:
    assert (await served.post("/v1/jobs", {"topic": "t", **body})).status_code == 422
