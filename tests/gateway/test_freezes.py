"""Freezes over HTTP: begun, seen everywhere, and ended."""

from __future__ import annotations

import pytest

from gateway.conftest import Served
from holdfast import errors


async def test_a_frozen_job_says_so_and_runs_when_it_is_thawed(served: Served) -> None:
    begun = await served.client.freeze("topic=t", reason="the bank is down", for_s=600, by="ana")
    job = await served.client.submit("t")
    await served.introduce()

    assert (begun.scope, begun.by, begun.until) == ("topic=t", "ana", begun.since + 600)
    assert (await served.client.freezes()).items == [begun]
    assert job.frozen == (await served.client.get(job.id)).frozen == "topic=t"
    assert [one.frozen for one in (await served.client.list()).items] == ["topic=t"]
    assert (await served.http.get("/readyz")).text == "ready\nfrozen scopes: 1\n"
    assert (await served.work("claim", worker="w1", wait_s=0.5))["deliveries"] == []

    await served.client.unfreeze("topic=t", reason="it is back", by="ben")
    taken = await served.work("claim", worker="w1", wait_s=20, start=True)

    assert [one["job_id"] for one in taken["deliveries"]] == [job.id]
    assert (await served.client.get(job.id)).frozen == ""
    lines = (await served.client.audit(plane=True, oldest_first=True)).items
    assert [(line.action, line.by, line.reason) for line in lines] == [
        ("freeze.began", "ana", "the bank is down"),
        ("freeze.ended", "ben", "it is back"),
    ]


async def test_what_cannot_be_frozen_or_thawed_is_refused(served: Served) -> None:
    with pytest.raises(errors.Invalid, match="scope"):
        await served.client.freeze("pool=x", reason="x")
    with pytest.raises(errors.Invalid, match="reason"):
        await served.client.freeze("all", reason=" ")
    with pytest.raises(errors.NotFound, match="all is not frozen"):
        await served.client.unfreeze("all", reason="x")
