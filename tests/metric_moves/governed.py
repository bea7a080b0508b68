"""What rules and people decide, and what runs do."""

from __future__ import annotations

import asyncio
import json

from metrics_plane import Stand, moves
from msgspec.structs import replace

from holdfast.core.job import Tenant
from holdfast.core.policy_version import PLANE, VERSION
from holdfast.core.record import Kind
from holdfast.ports import RecordChange, Transaction

ASK = {"name": "ask", "match": {"topic": "pay"}, "action": "require_approval", "approval": {"expires_s": 60}}
TENANT = Tenant("default")


# -- policy and people -----------------------------------------------------------------------------


@moves("holdfast_policy_version")
async def published(plane: Stand) -> None:
    await plane.publish()


@moves('holdfast_policy_failures_total{mode="open",risk="low"}', 'holdfast_policy_fail_open_total{risk="low"}')
async def policy_failed(plane: Stand) -> None:
    rule = {"name": "many", "when": "payload.n > 1", "action": "deny", "reason": "a test"}
    await plane.publish(rule, on_failure={"low": "open"})
    await plane.submit(payload={"n": "not a number"}, risk="low")


@moves("holdfast_policy_unusable_total")
async def policy_of_a_newer_release(plane: Stand) -> None:
    await plane.publish()
    await plane.publish(default={"action": "deny", "reason": "a test"})
    [first] = await plane.store.list_records(Kind.POLICY, PLANE, state=VERSION, limit=1)
    newer = replace(first, version=2, body=first.body.replace(b'"format":1', b'"format":9'))
    await plane.store.transact([Transaction(records=[RecordChange(after=newer, replaces=1)])])
    await plane.post("/v1/policy:rollback", {"version": 1, "reason": "a test"})


async def ask(plane: Stand) -> str:
    await plane.publish(ASK)
    await plane.submit("pay")
    approval: str = (await plane.http.get("/v1/approvals")).json()["items"][0]["id"]
    return approval


@moves('holdfast_approvals_decided_total{state="approved"}', "holdfast_approval_wait_seconds_count")
async def approved(plane: Stand) -> None:
    await plane.post(f"/v1/approvals/{await ask(plane)}:decide", {"decision": "approve"})


@moves('holdfast_jobs_ended_total{state="DENIED",topic="pay"}', 'holdfast_approvals_decided_total{state="rejected"}')
async def rejected(plane: Stand) -> None:
    await plane.post(f"/v1/approvals/{await ask(plane)}:decide", {"decision": "reject", "comment": "no"})


@moves('holdfast_approvals_decided_total{state="expired"}')
async def nobody_decided(plane: Stand) -> None:
    await ask(plane)


@moves('holdfast_approvals_refused_total{reason="policy-tightened"}')
async def tightened(plane: Stand) -> None:
    await approved(plane)
    await plane.publish({"name": "never", "match": {"topic": "pay"}, "action": "deny", "reason": "not any more"})
    await plane.hello()


@moves('holdfast_frozen{scope="topic"}')
async def froze(plane: Stand) -> None:
    await plane.post("/v1/freezes", {"scope": "topic=pay", "reason": "a test"})


@moves('holdfast_schedule_ticks_total{outcome="fired"}')
async def scheduled(plane: Stand) -> None:
    await plane.post("/v1/schedules", {"name": "often", "every_s": 5, "job": {"topic": "t"}})


# -- runs ------------------------------------------------------------------------------------------


async def start_run(plane: Stand, **more: object) -> str:
    definition = {"name": "greet", "steps": [{"id": "say", "kind": "job", "topic": "t"}], **more}
    await plane.post("/v1/workflows", {"document": json.dumps(definition)})
    run: str = (await plane.post("/v1/runs", {"workflow": "greet", "input": {}}))["id"]
    return run


@moves("holdfast_runs_started_total")
async def run_started(plane: Stand) -> None:
    await start_run(plane)


@moves('holdfast_runs_ended_total{state="succeeded"}')
async def run_ended(plane: Stand) -> None:
    await start_run(plane)
    await plane.end(await plane.take())


@moves('holdfast_runs_recovered_total{reason="deadline-passed"}')
async def run_overdue(plane: Stand) -> None:
    await start_run(plane, timeout_s=30, steps=[{"id": "wait", "kind": "delay", "seconds": 1000}])


@moves('holdfast_run_writes_refused_total{reason="moved-on"}')
async def run_changed_meanwhile(plane: Stand) -> None:
    """By an engine that another one's lock did not keep out."""
    run = await start_run(plane)
    attempt = await plane.take()
    door = plane.store.pause("transact")
    ending = asyncio.create_task(plane.end(attempt))
    if not door.reached.is_set():
        await asyncio.wait([asyncio.create_task(door.reached.wait()), ending], return_when=asyncio.FIRST_COMPLETED)
    await door.reached.wait()
    now = await plane.store.get_record(Kind.RUN, TENANT, run)
    newer = replace(now, version=now.version + 1)
    await plane.store.transact([Transaction(records=[RecordChange(after=newer, replaces=now.version)])])
    door.open()
    await ending
