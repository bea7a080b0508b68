"""Workflows and runs over HTTP: as the client says them, and as anybody might."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import apsw
import pytest

from gateway.conftest import Served
from holdfast.client import AsyncClient, Client
from holdfast.core.job import Tenant
from holdfast.core.run import Run
from holdfast.core.workflow import Definition
from holdfast.core.workflow_check import parse
from holdfast.errors import Conflict, HoldfastError, Invalid, KeyReused, NotFound
from holdfast.gateway import workflows
from holdfast.gateway.waiting import Hints

GREET = """\
name: greet
description: says hello
input_schema:
  type: object
  required: [name]
  properties: {name: {type: string}, loud: {type: boolean, default: false}}
output: ${steps.say.output}
steps:
  - id: say
    kind: job
    topic: quick
    payload: {to: "${input.name}"}
"""


async def work(served: Served, result: Any = None, outcome: str = "succeeded") -> dict[str, Any]:
    """One job, from its delivery to its end."""
    await served.introduce()
    taken = await served.work("claim", worker="w1", wait_s=5, start=True)
    delivery: dict[str, Any] = taken["deliveries"][0]
    ended = {"job_id": delivery["job_id"], "fence": delivery["fence"], "outcome": outcome, "result": result}
    await served.work("complete", worker="w1", outcomes=[ended])
    return delivery


async def test_long_poll_that_missed_its_hint_still_looks_at_its_end(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.client.apply_workflow(GREET)
    started = await served.client.start_run("greet", {"name": "ann"})
    get, looks = served.plane.runs.get, 0

    async def paused_after_the_first_look(tenant: Tenant, run_id: str) -> Run:
        nonlocal looks
        found, looks = await get(tenant, run_id), looks + 1
        if looks == 1:
            await served.client.pause_run(run_id)
        return found

    monkeypatch.setattr(Hints, "give", lambda *_: None)
    monkeypatch.setattr(served.plane.runs, "get", paused_after_the_first_look)
    answer = await served.http.get(f"/v1/runs/{started.id}?wait=0.05")

    assert answer.json()["state"] == "paused"


async def test_a_plan_is_nobodys_and_takes_no_header_that_it_does_not_name(served: Served) -> None:
    await served.client.apply_workflow(GREET)
    order = {"workflow": "greet", "input": {"name": "ann"}}

    answer = await served.post("/v1/runs:plan", order, holdfast_actor="not a name")

    assert answer.status_code == 200


ASK = """\
name: ask
output: ${steps.doubled.output}
steps:
  - id: limit
    kind: approval
    message: How much may ${input.name} spend?
    effect_preview: ${input.name} can spend as much at once.
    choices: [respond, reject]
    response_schema:
      type: object
      required: [limit]
      properties: {limit: {type: integer, minimum: 1}, currency: {type: string, default: EUR}}
  - id: doubled
    kind: transform
    depends_on: [limit]
    value: ${string(steps.limit.output.response.limit * 2)} ${steps.limit.output.response.currency}
"""


async def test_an_answer_of_a_person_is_the_output_of_its_step(served: Served) -> None:
    await served.client.apply_workflow(ASK)
    run = await served.client.start_run("ask", {"name": "ann"})
    while not (page := await served.client.approvals(job=run.id)).items:
        await asyncio.sleep(0.005)
    [asked] = page.items
    assert (asked.choices, asked.effect_preview) == (["reject", "respond"], "ann can spend as much at once.")
    assert asked.interrupt.response_schema is not None
    assert asked.interrupt.response_schema["required"] == ["limit"]
    with pytest.raises(Invalid, match="it takes reject, respond"):
        await served.client.approve(asked.id, by="bob")
    with pytest.raises(Invalid, match="does not fit"):
        await served.client.respond(asked.id, {"limit": 0}, by="bob")

    await served.client.respond(asked.id, {"limit": 21}, by="bob")

    ended = await served.client.wait_run(run.id, timeout=10)
    assert (ended.state, ended.output) == ("succeeded", "42 EUR")


async def test_a_run_is_started_and_its_end_waited_for_in_one_request(served: Served) -> None:
    await served.client.apply_workflow(GREET)
    order = {"workflow": "greet", "input": {"name": "ann"}}
    too_soon = await served.post("/v1/runs?wait=0.05", order, idempotency_key="k")
    asking = asyncio.create_task(served.post("/v1/runs?wait=20", order, idempotency_key="k"))
    await work(served, "hello ann")
    ended = await asking

    assert (too_soon.status_code, too_soon.json()["state"]) == (202, "running")
    assert (ended.status_code, ended.json()["state"], ended.json()["output"]) == (200, "succeeded", "hello ann")
    assert ended.json()["id"] == too_soon.json()["id"]


async def test_the_client_runs_a_workflow_to_its_end_or_says_that_it_goes_on(served: Served) -> None:
    await served.client.apply_workflow(GREET)
    with pytest.raises(TimeoutError, match="is still running"):
        await served.client.run_workflow("greet", {"name": "ann"}, timeout=0.05, idempotency_key="k")
    running = asyncio.create_task(served.client.run_workflow("greet", {"name": "ann"}, timeout=20, idempotency_key="k"))
    await work(served, "hello ann")
    with Client(str(served.http.base_url)) as plain:
        again = await asyncio.to_thread(plain.run_workflow, "greet", {"name": "ann"}, idempotency_key="k")

    assert (await running).output == again.output == "hello ann"


async def test_a_run_from_its_definition_to_its_end(served: Served) -> None:
    applied = await served.client.apply_workflow(GREET)
    assert (applied.name, applied.revision, applied.steps) == ("greet", 1, ["say"])
    assert "say" in applied.graph
    run = await served.client.start_run("greet", {"name": "ann"}, labels={"team": "a"})
    waiting = asyncio.create_task(served.client.wait_run(run.id, timeout=20))
    delivery = await work(served, "hello ann")
    assert delivery["payload"] == {"to": "ann"}
    ended = await waiting

    assert (ended.state, ended.output, ended.revision) == ("succeeded", "hello ann", 1)
    assert ended.input == {"name": "ann", "loud": False}
    assert ended.version > run.version
    [step] = (await served.client.run_steps(run.id)).items
    assert (step.name, step.state, step.ref) == ("say", "succeeded", delivery["job_id"])
    kinds = [event.kind for event in (await served.client.run_timeline(run.id)).items]
    assert kinds[0] == "job.submitted"
    assert kinds[-1] == "run.succeeded"
    assert {"run.started", "step.started", "job.started", "job.succeeded", "step.succeeded"} <= set(kinds)
    watched = [event.kind async for event in served.client.watch_run(run.id)]
    assert watched == kinds


async def test_the_same_definition_again_is_the_same_revision(served: Served) -> None:
    first = await served.client.apply_workflow(GREET)
    assert (await served.client.apply_workflow(GREET)).revision == first.revision
    changed = await served.client.apply_workflow(GREET.replace("hello", "good day"))
    assert changed.revision == 2
    assert (await served.client.workflow("greet")).description == "says good day"
    assert (await served.client.workflow("greet", revision=1)).description == "says hello"
    revisions = (await served.client.workflow_revisions("greet")).items
    assert [view.revision for view in revisions] == [2, 1]


async def test_a_definition_is_read_beside_the_loop(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long one takes up to a second, in which others must be answered."""
    where: list[int] = []

    def watched(document: str) -> Definition:
        where.append(threading.get_ident())
        return parse(document)

    monkeypatch.setattr(workflows, "parse", watched)
    await served.client.apply_workflow(GREET)

    assert len(where) == 1
    assert where != [threading.get_ident()]


async def test_lists_go_page_by_page(served: Served) -> None:
    for name in ("a", "a-b", "b"):
        await served.client.apply_workflow(json.dumps({"name": name, "steps": [JOB]}))
    first = await served.client.workflows(limit=2)
    rest = await served.client.workflows(cursor=first.next_cursor, limit=2)
    assert sorted(view.name for view in (*first.items, *rest.items)) == ["a", "a-b", "b"]
    started = [(await served.client.start_run("a")).id for _ in range(3)]
    page = await served.client.list_runs(workflow="a", limit=2)
    more = await served.client.list_runs(workflow="a", limit=2, cursor=page.next_cursor)
    assert [run.id for run in (*page.items, *more.items)] == started[::-1]
    assert (await served.client.list_runs(state="failed")).items == []


JOB = {"id": "one", "kind": "job", "topic": "quick"}


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ("name: x\nsteps:\n  - {id: a, kind: job, topic: t, depends_on: [b]}\n", "line 3"),
        ("name: x\nsteps: &s [*s]\n", "line 2"),
        ("name: x\nsteps:\n  - {id: a, kind: job, topic: t, when: 'input.'}\n", "line 3"),
    ],
)
async def test_a_bad_definition_is_told_with_its_line_and_not_stored(served: Served, document: str, told: str) -> None:
    with pytest.raises(Invalid, match=told):
        await served.client.apply_workflow(document)
    assert (await served.client.workflows()).items == []


async def test_a_dry_run_stores_nothing(served: Served) -> None:
    assert (await served.client.apply_workflow(GREET, dry_run=True)).revision == 0
    with pytest.raises(NotFound):
        await served.client.workflow("greet")
    await served.client.apply_workflow(GREET)
    plan = await served.client.plan_run("greet", {"name": "ann"})
    assert plan.input == {"name": "ann", "loud": False}
    assert [(step.id, step.prospect) for step in plan.steps] == [("say", "runs")]
    with pytest.raises(Invalid):
        await served.client.plan_run("greet", {})
    assert (await served.client.list_runs()).items == []


async def test_a_key_starts_one_run(served: Served) -> None:
    await served.client.apply_workflow(GREET)
    body = {"workflow": "greet", "input": {"name": "ann"}}
    first = await served.post("/v1/runs", body, Idempotency_Key="k")
    again = await served.post("/v1/runs", body, Idempotency_Key="k")
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.headers["location"] == f"/v1/runs/{again.json()['id']}"
    with pytest.raises(KeyReused):
        await served.client.start_run("greet", {"name": "bob"}, idempotency_key="k")


async def test_what_people_want_of_a_run(served: Served) -> None:
    await served.client.apply_workflow(GREET)
    run = await served.client.start_run("greet", {"name": "ann"})
    assert (await served.client.pause_run(run.id, reason="lunch")).state == "paused"
    with pytest.raises(Conflict):
        await served.client.pause_run(run.id)
    assert (await served.client.resume_run(run.id)).state == "running"
    await served.post(f"/v1/runs/{run.id}:cancel", {"reason": "enough"}, Holdfast_Actor="ann")
    assert (await served.client.wait_run(run.id, timeout=10)).state == "cancelled"
    again = await served.client.rerun(run.id, "say")
    assert (again.state, again.generation) == ("running", 1)
    await work(served, "hi")
    assert (await served.client.wait_run(run.id, timeout=10)).output == "hi"
    timeline = (await served.client.run_timeline(run.id)).items
    assert next(event.detail for event in timeline if event.kind == "run.cancelling")["by"] == "ann"


async def test_a_run_that_was_run_again_is_watched_to_its_last_end(served: Served) -> None:
    await served.client.apply_workflow(GREET)
    run = await served.client.start_run("greet", {"name": "ann"})
    await work(served, "hello")
    await served.client.wait_run(run.id, timeout=10)
    await served.client.rerun(run.id, "say")
    await work(served, "hi")
    await served.client.wait_run(run.id, timeout=10)

    kinds = [event.kind for event in (await served.client.run_timeline(run.id)).items]
    watched = [event async for event in served.client.watch_run(run.id)]
    rest = served.client.watch_run(run.id, after=watched[kinds.index("run.succeeded")].number)

    assert kinds.count("run.succeeded") == 2
    assert [event.kind for event in watched] == kinds
    assert [event.kind async for event in rest] == kinds[kinds.index("run.succeeded") + 1 :]


async def test_another_tenants_runs_do_not_exist(served: Served) -> None:
    await served.client.apply_workflow(GREET)
    run = await served.client.start_run("greet", {"name": "ann"})
    async with AsyncClient(served.url, tenant="globex") as stranger:
        for asked in (
            stranger.get_run(run.id),
            stranger.run_timeline(run.id),
            stranger.run_steps(run.id),
            stranger.cancel_run(run.id),
            stranger.workflow("greet"),
            stranger.start_run("greet", {"name": "eve"}),
        ):
            with pytest.raises(NotFound):
                await asked
        assert (await stranger.list_runs()).items == []
        assert (await stranger.workflows()).items == []


async def test_with_a_full_disk_a_start_is_answered_with_come_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no fault of the plane's: once there is room, the same request is served."""
    await served.client.apply_workflow(GREET)

    def full(*_: object) -> None:
        raise apsw.FullError

    with monkeypatch.context() as patched:
        patched.setattr("holdfast.locks.stores.sqlite.table.Table.finish", full)
        with pytest.raises(HoldfastError) as caught:
            await served.client.start_run("greet", {"name": "ann"})
    assert caught.value.status == 507
    assert caught.value.retryable


async def test_a_list_of_steps_ends_early_where_they_are_large(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.gateway.pages.PAGE_BYTES", 1)
    wide = {"name": "wide", "steps": [{"id": f"s{n:02}", "kind": "transform", "value": n} for n in range(40)]}
    await served.client.apply_workflow(json.dumps(wide))
    run = await served.client.start_run("wide")
    first = await served.client.run_steps(run.id)
    assert 0 < len(first.items) < 40
    rest = await served.client.run_steps(run.id, cursor=first.next_cursor, limit=1000)

    assert [step.name for step in (*first.items, *rest.items)][:35] == [f"s{n:02}" for n in range(35)]
