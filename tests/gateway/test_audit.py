"""The audit over HTTP: what every change of a person's leaves behind."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from gateway.conftest import Served
from holdfast import api, errors
from holdfast.api.schedules import NewSchedule, ScheduledJob
from holdfast.client import AsyncClient
from holdfast.core.job import Tenant
from holdfast.core.record import Kind
from holdfast.core.webhook import webhook_from, webhook_record
from holdfast.flow.keep import write_record


async def test_every_change_names_who_made_it(served: Served) -> None:
    ana = {"holdfast_actor": "ana"}
    job = await served.client.submit("t")
    assert (await served.post(f"/v1/jobs/{job.id}:cancel", {"reason": "wrong"}, **ana)).status_code == 200
    assert (await served.post(f"/v1/jobs/{job.id}:retry", **ana)).status_code == 202
    nightly = NewSchedule(name="nightly", every_s=3600, job=ScheduledJob(topic="t"))
    await served.client.add_schedule(nightly, actor="ana")
    for verb in ("pause", "resume", "trigger", "remove"):
        assert (await served.post(f"/v1/schedules/nightly:{verb}", **ana)).status_code < 300
    assert (await served.post("/v1/webhooks", {"name": "w", "url": "https://example.com", "events": ["*"]}, **ana)).status_code == 200  # fmt: skip
    await disable(served, "w")
    for verb in ("enable", "rotate", "remove"):
        assert (await served.post(f"/v1/webhooks/w:{verb}", **ana)).status_code == 200
    found = await served.client.audit(oldest_first=True)

    assert [(line.action, line.subject) for line in found.items] == [
        ("job.cancelled", f"job/{job.id}"),
        ("job.retried", f"job/{job.id}"),
        *((f"schedule.{verb}", "schedule/nightly") for verb in ("added", "paused", "resumed", "triggered", "removed")),
        *((f"webhook.{verb}", "webhook/w") for verb in ("added", "enabled", "rotated", "removed")),
    ]
    assert {line.by for line in found.items} == {"ana"}
    assert found.items[0].reason == "wrong"
    assert (await served.client.verify_audit()).lines == len(found.items)
    assert await served.client.audit_line(2) == found.items[1]


async def disable(served: Served, name: str) -> None:
    """As after a receiver that is gone."""
    store = served.plane.store
    webhook = webhook_from(await store.get_record(Kind.WEBHOOK, Tenant("default"), name))
    assert await write_record(webhook_record(replace(webhook, enabled=False)), store=store)


async def test_what_is_said_twice_and_changes_nothing_has_one_line(served: Served) -> None:
    nightly = NewSchedule(name="nightly", every_s=3600, job=ScheduledJob(topic="t"))
    await served.client.add_schedule(nightly)
    first, again = [await served.client.pause_schedule("nightly") for _ in range(2)]
    await served.client.resume_schedule("nightly")
    await served.client.resume_schedule("nightly")
    await served.client.add_webhook("w", "https://example.com")
    await served.client.enable_webhook("w")

    assert again == first
    actions = [line.action for line in (await served.client.audit(oldest_first=True)).items]
    assert actions == ["schedule.added", "schedule.paused", "schedule.resumed", "webhook.added"]


async def test_name_that_is_none_is_refused_also_where_nothing_is_written_down(served: Served) -> None:
    """A worker that is draining already: who asks once more leaves no line."""
    await served.introduce("w1")
    assert (await served.post("/v1/workers/w1:drain", holdfast_actor="ana")).status_code == 200

    refused = await served.post("/v1/workers/w1:drain", holdfast_actor="no name")

    assert (refused.status_code, refused.json()["code"]) == (422, "invalid")


HELLO = "name: hello\nsteps:\n  - {id: say, kind: job, topic: quick}\n"


async def test_words_on_workflows_runs_and_workers_are_written_down(served: Served) -> None:
    async with AsyncClient(served.url, actor="ana") as ana:
        await ana.apply_workflow(HELLO)
        await ana.apply_workflow(HELLO)
        run = await ana.start_run("hello")
        await ana.pause_run(run.id, reason="lunch")
        with pytest.raises(errors.Conflict):
            await ana.pause_run(run.id, reason="lunch")
        await ana.resume_run(run.id)
        await ana.cancel_run(run.id, reason="enough")
        assert (await ana.wait_run(run.id, timeout=20)).state == "cancelled"
        await ana.rerun(run.id, "say")
        await served.introduce("w1")
        for _ in range(2):
            await ana.drain("w1")
        with pytest.raises(errors.NotFound):
            await ana.drain("nobody")
    found = (await served.client.audit(oldest_first=True)).items
    of_plane = (await served.client.audit(plane=True)).items

    assert [(line.action, line.subject, line.reason, line.detail) for line in found] == [
        ("workflow.applied", "workflow/hello", "", {"revision": 1}),
        ("run.paused", f"run/{run.id}", "lunch", {}),
        ("run.resumed", f"run/{run.id}", "", {}),
        ("run.cancelled", f"run/{run.id}", "enough", {"compensate": True}),
        ("run.rerun", f"run/{run.id}", "", {"step": "say"}),
    ]
    assert [(line.action, line.subject) for line in of_plane] == [("worker.drained", "worker/w1")]
    assert {line.by for line in (*found, *of_plane)} == {"ana"}
    assert (await served.client.verify_audit()).intact


async def test_words_on_approvals_are_written_down_once(served: Served) -> None:
    rule = {"name": "pay", "match": {"topic": "pay"}, "action": "require_approval"}
    terms = {"approvers": ["ann", "bob"], "quorum": 2}
    rules = {"format": 1, "default": {"action": "allow"}, "rules": [{**rule, "approval": terms}]}
    published = await served.client.publish_policy(rules, reason="a test")
    while (await served.client.policy()).here.version != published.version:
        await asyncio.sleep(0.005)
    job = await served.client.submit("pay")
    [approval] = (await served.client.approvals()).items
    for _ in range(2):
        await served.client.delegate(approval.id, "carl", by="ann", comment="away")
        await served.client.approve(approval.id, by="bob")
    decided = await served.client.approve(approval.id, by="carl", comment="fine")
    with pytest.raises(errors.AlreadyDecided):
        await served.client.reject(approval.id, by="ann", comment="no")

    found = (await served.client.audit(oldest_first=True, subject=f"approval/{approval.id}")).items
    about = {"job": job.id}
    word = {"digest": approval.digest, "via": "python", **about}
    assert decided.state == "approved"
    assert [(line.action, line.by, line.reason, line.detail) for line in found] == [
        ("approval.delegated", "ann", "away", {"to": "carl", **about}),
        ("approval.approved", "bob", "", {"state": "pending", **word}),
        ("approval.approved", "carl", "fine", {"state": "approved", **word}),
    ]


async def test_an_effect_resolved_and_a_policy_published_are_written_down(served: Served) -> None:
    delivery = await served.started("risky", max_attempts=2)
    prepared = {"job_id": delivery["job_id"], "fence": delivery["fence"], "key": "charge"}
    await served.work("effect/prepare", worker="w1", **prepared)
    outcome = {"job_id": delivery["job_id"], "fence": delivery["fence"], "outcome": "failed", "error": {"code": "x"}}
    await served.work("complete", worker="w1", outcomes=[outcome])
    word = api.ResolveEffect(state="absent", reason="asked the bank")
    await served.client.resolve_effect(delivery["job_id"], "charge", word)
    await served.client.publish_policy({"format": 1, "default": {"action": "allow"}}, reason="begin", by="ben")
    [line] = (await served.client.audit()).items
    [of_plane] = (await served.client.audit(plane=True)).items

    assert (line.action, line.reason, line.detail) == (
        "effect.resolved",
        "asked the bank",
        {"key": "charge", "state": "absent"},
    )
    assert (of_plane.action, of_plane.by, of_plane.reason, of_plane.tenant) == ("policy.published", "ben", "begin", "")
    with pytest.raises(errors.Conflict, match="only an unknown one"):
        await served.client.resolve_effect(delivery["job_id"], "charge", word)
    assert (await served.client.verify_audit()).lines == 1


async def test_a_known_line_is_asked_for_with_number_and_hash(served: Served) -> None:
    job = await served.client.submit("t")
    await served.client.cancel(job.id)
    verdict = await served.client.verify_audit()

    assert (await served.client.verify_audit(known=f"1:{verdict.hash}")).intact
    assert not (await served.client.verify_audit(known=f"1:{verdict.hash[::-1]}")).intact
    assert (await served.client.verify_audit(known=f"2:{verdict.hash}")).broken == 2
