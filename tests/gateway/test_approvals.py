"""Approvals over HTTP: what is shown, who may say what, and how the second one is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.conftest import Served, serving
from holdfast import errors

RULES: dict[str, Any] = {
    "format": 1,
    "default": {"action": "allow"},
    "rules": [
        {
            "name": "payouts",
            "match": {"topic": "pay"},
            "action": "require_approval",
            "reason": "money moves",
            "approval": {
                "approvers": ["ann", "bob"],
                "separate": True,
                "expires_s": 3600,
                "effect_preview": "${payload.amount} EUR leave",
            },
        },
        {"name": "wires", "match": {"topic": "wire"}, "action": "require_approval", "approval": {"quorum": 2}},
    ],
}
RITA = {"holdfast_actor": "rita"}
ANN = {"holdfast_actor": "ann"}
BOB = {"holdfast_actor": "bob"}


@pytest.fixture
async def ruled(tmp_path: Path) -> AsyncIterator[Served]:
    """A plane with a policy that asks about payouts and wires."""
    async with serving(tmp_path) as served:
        await publish(served, RULES)
        yield served


async def publish(served: Served, document: dict[str, Any]) -> None:
    """And wait until this plane goes by it."""
    published = await served.client.publish_policy(document, reason="a test")
    while (await served.client.policy()).here.version != published.version:
        await asyncio.sleep(0.005)


async def pay(served: Served, topic: str = "pay", **labels: str) -> dict[str, Any]:
    response = await served.post("/v1/jobs", {"topic": topic, "payload": {"amount": 5}, "labels": labels}, **RITA)
    assert response.status_code == 202, response.text
    job: dict[str, Any] = response.json()
    assert job["state"] == "APPROVAL_REQUIRED"
    return job


async def approval_of(served: Served, job: dict[str, Any]) -> dict[str, Any]:
    response = await served.http.get("/v1/approvals", params={"job": job["id"], "limit": 1})
    [found] = response.json()["items"]
    return dict(found)


async def decide(served: Served, approval: dict[str, Any], decision: str, headers: dict[str, str], **more: Any) -> Any:
    return await served.post(f"/v1/approvals/{approval['id']}:decide", {"decision": decision, **more}, **headers)


async def test_approval_is_shown_with_an_interrupt_as_agui_has_it(ruled: Served) -> None:
    approval = await approval_of(ruled, await pay(ruled, tool_call_id="call-7"))
    assert (approval["state"], approval["tool"], approval["arguments"]) == ("pending", "pay", {"amount": 5})
    assert (approval["requested_by"], approval["approvers"], approval["rule"]) == ("rita", ["ann", "bob"], "payouts")
    interrupt = approval["interrupt"]
    assert set(interrupt) == {"id", "reason", "message", "toolCallId", "expiresAt", "metadata"}
    assert (interrupt["id"], interrupt["toolCallId"]) == (approval["id"], "call-7")
    assert interrupt["message"] == "money moves"
    assert interrupt["metadata"]["effectPreview"] == approval["effect_preview"] == "5 EUR leave"
    assert (approval["fence"], approval["metadata"]) == (0, {"tool_call_id": "call-7"})
    assert interrupt["expiresAt"].endswith("Z")


async def test_approved_job_goes_to_a_worker_who_sees_by_whom(ruled: Served) -> None:
    job = await pay(ruled)
    approval = await approval_of(ruled, job)
    response = await decide(ruled, approval, "approve", ANN, comment="fine")
    assert (response.status_code, response.json()["state"]) == (200, "approved")
    assert response.headers["etag"] == f'"{response.json()["version"]}"'
    await ruled.introduce()
    taken = await ruled.work("claim", worker="w1", wait_s=5, start=True)
    [delivery] = taken["deliveries"]
    assert (delivery["job_id"], delivery["decision"]["approval"]["by"]) == (job["id"], "ann")
    used = (await ruled.http.get(f"/v1/approvals/{approval['id']}")).json()
    assert (used["state"], used["consumed_by_fence"]) == ("consumed", delivery["fence"])


async def test_second_decision_is_told_who_was_first_and_the_first_is_repeated(ruled: Served) -> None:
    approval = await approval_of(ruled, await pay(ruled))
    first = await decide(ruled, approval, "approve", ANN)
    refused = await decide(ruled, approval, "reject", BOB, comment="no")
    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (409, "already-decided")
    assert (problem["decided_by"], problem["decision"]) == ("ann", "approve")
    assert problem["decided_at"] == first.json()["verdict"]["at"]
    again = await decide(ruled, approval, "approve", ANN)
    assert (again.status_code, again.json()["version"]) == (200, first.json()["version"])


async def test_client_raises_with_who_was_first(ruled: Served) -> None:
    approval = await approval_of(ruled, await pay(ruled))
    await ruled.client.reject(approval["id"], by="bob", comment="not now")
    with pytest.raises(errors.AlreadyDecided) as refused:
        await ruled.client.approve(approval["id"], by="ann")
    assert (refused.value.decided_by, refused.value.decision) == ("bob", "reject")
    assert (await ruled.client.get(approval["job_id"])).state == "DENIED"


@pytest.mark.parametrize(
    ("headers", "body", "status", "code"),
    [
        ({}, {"decision": "approve"}, 422, "invalid"),
        ({"holdfast_actor": "zoe"}, {"decision": "approve"}, 403, "not-an-approver"),
        (RITA, {"decision": "approve"}, 403, "not-an-approver"),
        (ANN, {"decision": "reject"}, 422, "invalid"),
        (ANN, {"decision": "edit"}, 422, "invalid"),
        (ANN, {"decision": "approve", "arguments": {}}, 422, "invalid"),
        (ANN, {"decision": "respond", "response": 1}, 422, "invalid"),
        ({**ANN, "if_match": '"9"'}, {"decision": "approve"}, 412, "version-mismatch"),
        ({"holdfast_actor": "a b"}, {"decision": "approve"}, 422, "invalid"),
        ({**ANN, "holdfast_via": "My Face"}, {"decision": "approve"}, 422, "invalid"),
    ],
)
async def test_what_is_not_a_decision_is_refused_and_changes_nothing(
    ruled: Served, headers: dict[str, str], body: dict[str, Any], status: int, code: str
) -> None:
    approval = await approval_of(ruled, await pay(ruled))
    response = await ruled.post(f"/v1/approvals/{approval['id']}:decide", body, **headers)
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert (await ruled.http.get(f"/v1/approvals/{approval['id']}")).json() == approval


async def test_job_whose_requester_is_unknown_is_refused_where_approvers_must_be_others(ruled: Served) -> None:
    response = await ruled.post("/v1/jobs", {"topic": "pay"})
    assert response.status_code == 422
    assert "Holdfast-Actor" in response.json()["detail"]


async def test_only_yeses_to_the_arguments_as_they_are_count(ruled: Served) -> None:
    approval = await approval_of(ruled, await pay(ruled, "wire"))
    said = await ruled.client.approve(approval["id"], by="ann")
    edited = await ruled.client.edit_approval(approval["id"], {"amount": 4}, by="bob")

    assert [(one.in_favour, one.quorum, one.state) for one in (said, edited)] == [(1, 2, "pending")] * 2
    assert [word.by for word in edited.words] == ["ann", "bob"]


async def test_edit_replaces_the_arguments_of_the_job(ruled: Served) -> None:
    job = await pay(ruled)
    edited = await ruled.client.edit_approval((await approval_of(ruled, job))["id"], {"amount": 4}, by="ann")
    assert edited.arguments == {"amount": 4}
    assert (await ruled.client.get(job["id"])).payload == {"amount": 4}


async def test_edited_approval_shows_both_what_was_asked_and_what_was_approved(ruled: Served) -> None:
    asked = await approval_of(ruled, await pay(ruled, "wire"))
    assert (asked["original"], asked["verdict"]) == (None, None)
    await decide(ruled, asked, "edit", {**ANN, "holdfast_via": "ui"}, arguments={"amount": 4})
    edited = await ruled.client.approval(asked["id"])
    await ruled.client.approve(asked["id"], by="bob", version=edited.version)
    shown = (await ruled.http.get(f"/v1/approvals/{asked['id']}")).json()

    assert shown["original"] == {"arguments": {"amount": 5}, "digest": asked["digest"], "policy": asked["policy"]}
    assert (shown["arguments"], shown["digest"]) == ({"amount": 4}, edited.digest)
    assert (shown["verdict"]["via"], shown["verdict"]["edited_arguments"]) == ("python", {"amount": 4})
    assert [(word["via"], word["digest"]) for word in shown["words"]] == [
        ("ui", edited.digest),
        ("python", edited.digest),
    ]
    assert set(shown["interrupt"]) == {"id", "reason", "message", "expiresAt", "metadata"}
    [line] = (await ruled.client.audit(action="approval.edited")).items
    assert (line.detail["digest"], line.detail["original_digest"]) == (edited.digest, asked["digest"])
    assert line.detail["via"] == "ui"
    assert "amount" not in str(line.detail)


@pytest.mark.parametrize(("header", "told"), [({}, "http"), ({"holdfast_via": "slack"}, "slack")])
async def test_face_that_a_decision_came_by_is_kept(ruled: Served, header: dict[str, str], told: str) -> None:
    approval = await approval_of(ruled, await pay(ruled))
    assert (await decide(ruled, approval, "approve", ANN | header)).json()["verdict"]["via"] == told


async def test_delegate_decides_in_their_place(ruled: Served) -> None:
    approval = await approval_of(ruled, await pay(ruled))
    await ruled.client.delegate(approval["id"], "carl", by="ann", comment="on holiday")
    assert [one.id for one in (await ruled.client.approvals(assignee="carl")).items] == [approval["id"]]
    assert (await ruled.client.approve(approval["id"], by="carl")).state == "approved"


async def test_list_goes_page_by_page_and_by_state_job_and_assignee(ruled: Served) -> None:
    jobs = [await pay(ruled) for _ in range(5)] + [await pay(ruled, "wire")]
    approvals = [await approval_of(ruled, job) for job in jobs]
    await ruled.client.approve(approvals[0]["id"], by="ann")
    found: list[str] = []
    cursor = None
    while True:
        page = await ruled.client.approvals(state="pending", limit=2, cursor=cursor)
        found += [one.id for one in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == [one["id"] for one in reversed(approvals[1:])]
    mine = await ruled.client.approvals(assignee="ann", limit=3)
    assert len(mine.items) == 3
    rest = await ruled.client.approvals(assignee="ann", limit=3, cursor=mine.next_cursor)
    assert (len(rest.items), rest.next_cursor) == (2, None)


async def test_approvals_of_other_tenants_do_not_exist(ruled: Served) -> None:
    approval = await approval_of(ruled, await pay(ruled))
    strange = {"holdfast-tenant": "globex", "holdfast-actor": "ann"}
    assert (await ruled.http.get(f"/v1/approvals/{approval['id']}", headers=strange)).status_code == 404
    response = await ruled.http.post(
        f"/v1/approvals/{approval['id']}:decide", json={"decision": "approve"}, headers=strange
    )
    assert response.status_code == 404
    assert (await ruled.http.get("/v1/approvals", headers=strange)).json()["items"] == []
