"""The audit over HTTP: what every change of a person's leaves behind."""

from __future__ import annotations

import pytest

from gateway.conftest import Served
from holdfast import api, errors
from holdfast.api.schedules import NewSchedule, ScheduledJob


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
