"""Incidents over HTTP: begun strict, noted, stopped, and told as a post-mortem."""

from __future__ import annotations

import asyncio

import pytest

from gateway.conftest import Served
from holdfast import api, errors
from holdfast.api.matrix import MatrixRules
from holdfast.client import AsyncClient
from holdfast.flow.incident import SHOWN_MAX


async def actions(served: Served) -> dict[str, tuple[str, int]]:
    return {row.namespace: (row.action, row.failures) for row in (await served.client.matrix()).items}


async def test_an_incident_keeps_together_what_was_seen_said_and_done(served: Served) -> None:
    await served.client.set_matrix("namespace=approval", MatrixRules(action="continue"), reason="before it")
    job = await served.client.submit("t")
    started = await served.client.start_incident("double | payments", by="ana")
    async with asyncio.timeout(20):
        while (await actions(served))["workflow.run"] != ("fence", 1):
            await asyncio.sleep(0.05)
    await served.client.note_incident(1, "the bank's log has two charges", by="ben")
    await served.client.freeze("topic=t", reason="until we know more", by="ana")
    await served.client.cancel(job.id, reason="the double")
    await served.client.unfreeze("topic=t", reason="it was the test account", by="ana")
    stopped = await served.client.stop_incident(1, summary="a test account", by="ana")
    async with asyncio.timeout(20):
        while (await actions(served))["workflow.run"] != ("fence", 3):
            await asyncio.sleep(0.05)
    told = await served.client.export_incident(1)

    assert (started.number, started.strict, started.before["jobs"]) == (1, True, {"SCHEDULED": 1})
    assert stopped.end["jobs"] == {}
    assert [cell.cell for cell in (await served.client.matrix()).cells] == ["namespace=approval"], "others' cells stay"
    assert [
        one.text for one in told.timeline if one.kind == "saw" and one.text.startswith(("freeze.", "incident."))
    ] == []
    assert [(one.kind, one.by, one.text) for one in told.timeline if one.kind != "saw"] == [
        ("did", "ana", "incident.started incident: double | payments"),
        ("note", "ben", "the bank's log has two charges"),
        ("did", "ana", "freeze.began freeze/topic=t: until we know more"),
        ("did", "", f"job.cancelled job/{job.id}: the double"),
        ("did", "ana", "freeze.ended freeze/topic=t: it was the test account"),
        ("did", "ana", "incident.stopped incident/1: a test account"),
    ]
    assert (told.counts["freeze.began"], told.counts["job.cancelled"], told.cut) == (1, 1, False)
    assert "# Incident 1: double | payments" in told.markdown
    assert "| note | ben | the bank's log has two charges |" in told.markdown
    assert "incident: double \\| payments |" in told.markdown, "no table is broken by what people say"
    assert '| jobs | {"SCHEDULED":1} | - |' in told.markdown
    assert (await served.client.verify_audit(plane=True)).intact


async def test_an_export_without_the_first_of_many_changes_says_so(served: Served) -> None:
    await served.client.start_incident("everything is wrong", strict=False)
    jobs = await served.client.submit_many([api.NewJob(topic="t")] * (SHOWN_MAX + 1))
    await asyncio.gather(*(served.client.cancel(job.job.id) for job in jobs if job.job is not None))

    told = await served.client.export_incident(1)

    assert told.counts["job.cancelled"] == SHOWN_MAX + 1
    assert sum(one.text.startswith("job.cancelled") for one in told.timeline) == SHOWN_MAX
    assert told.cut


async def test_one_incident_is_open_at_a_time(served: Served) -> None:
    await served.client.start_incident("first", strict=False)
    with pytest.raises(errors.Conflict, match="incident 1 is open"):
        await served.client.start_incident("second")
    await served.client.stop_incident(1)
    with pytest.raises(errors.Conflict, match="incident 1 is over"):
        await served.client.stop_incident(1)
    await served.client.note_incident(1, "afterwards")
    second = await served.client.start_incident("second")

    assert (second.number, second.strict) == (2, True)
    assert [one.number for one in (await served.client.incidents()).items] == [2, 1]
    assert [note.text for note in (await served.client.incident(1)).notes] == ["afterwards"]
    with pytest.raises(errors.NotFound, match="no incident 3"):
        await served.client.note_incident(3, "x")


async def test_how_the_jobs_of_a_tenant_stood_is_told_to_that_tenant(served: Served) -> None:
    """Everybody may read an incident, which is the plane's; and anybody may stop it."""
    async with AsyncClient(served.url, tenant="other") as other:
        await served.client.submit("t")
        await served.client.start_incident("slow", strict=False)
        await other.submit("u")
        await other.submit("u")
        await other.stop_incident(1)
        ours, theirs = await served.client.incident(1), await other.incident(1)

        assert (ours.before["jobs"], "jobs" in ours.end) == ({"SCHEDULED": 1}, False)
        assert ("jobs" in theirs.before, theirs.end["jobs"]) == (False, {"SCHEDULED": 2})
        assert ours.before["workers"] == theirs.before["workers"]
        assert set(theirs.before) & {"tenant", "approvals pending", "effects unknown", "warnings"} == set()
        assert '| jobs | {"SCHEDULED":1} | - |' in (await served.client.export_incident(1)).markdown
        assert '| jobs | - | {"SCHEDULED":2} |' in (await other.export_incident(1)).markdown
        [listed] = (await other.incidents()).items
        assert listed.before == theirs.before
