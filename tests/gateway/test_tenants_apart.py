"""Tenants do not meet: every route of the table, asked by a tenant about the things of another.

A route that is not judged here fails the first test: whoever adds one says what it may tell to whom.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.conftest import Served, serving
from gateway.judged_routes import ANYBODY, TABLE, WORKFLOW, Judged, Line, lines
from gateway.test_approvals import publish
from holdfast.config import WebhookSettings
from holdfast.gateway.routes import ROUTES

CANARY = "ours-alone"
"""In every word that the other tenant says."""
ABSENT = "f" * 32
"""An id such as the plane makes, of nothing."""
MINE, THEIRS = "mine", "theirs"
POLICY = {
    "format": 1,
    "default": {"action": "allow"},
    "rules": [{"name": "pay", "match": {"topic": "pay"}, "action": "require_approval", "approval": {"quorum": 1}}],
}
SUBFLOW = """\
name: over
steps:
  - id: under
    kind: workflow
    workflow: {name}
"""


def test_every_route_is_judged() -> None:
    assert set(TABLE) == {f"{route.method} {route.path}" for route in ROUTES}
    assert {f"{one.method} {one.path}" for one in ROUTES if one.open} == {
        route for route, line in TABLE.items() if line is ANYBODY
    }


def test_proxy_that_is_recommended_lets_no_tenant_change_what_is_of_all() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/tenants.md").read_text()
    [only_looked_at] = re.findall(r"location ~ (\S+) \{\n +limit_except GET \{ deny all; \}", page)
    closed = {
        f"{method} {path}" for method, path, _ in lines(*Judged) if method != "GET" and re.search(only_looked_at, path)
    }

    of_all = {f"{method} {path}" for method, path, _ in lines(Judged.SHARED, Judged.WORKERS) if method != "GET"}
    assert closed == {*of_all, "POST /v1/policy:simulate"}


@dataclass
class Two:
    """Two tenants of one plane, and what the other one has."""

    served: Served
    theirs: dict[str, str] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    """What we were told, by route, when the other one had nothing."""

    async def ask(self, tenant: str, method: str, path: str, body: Any = None) -> httpx2.Response:
        headers = {"holdfast-tenant": tenant, "holdfast-actor": "eve" if tenant == MINE else f"{CANARY}-ann"}
        return await self.served.http.request(method, path, json=body, headers=headers)

    async def give(self, path: str, body: Any = None) -> Any:
        answer = await self.ask(THEIRS, "POST", path, body)
        assert answer.status_code in {200, 202}, answer.text
        return answer.json()

    async def get(self, path: str) -> Any:
        return (await self.ask(THEIRS, "GET", path)).json()

    async def work(self) -> dict[str, Any]:
        """Begin their next job."""
        [delivery] = (await self.served.work("claim", worker="w1", wait_s=5, start=True))["deliveries"]
        return {"job_id": delivery["job_id"], "fence": delivery["fence"]}

    async def listed(self) -> dict[str, Any]:
        """Everything that is listed for us, as far as it is ours."""
        told = {}
        for method, path, line in lines(Judged.LISTED):
            answer = await self.ask(MINE, method, path, line.body)
            assert answer.status_code == 200, answer.text
            told[path] = answer.json()
        of_the_plane = ("at", "totals", "workers", "locks_held", "locks_contended", "freezes", "warnings")
        told["/v1/summary"] = {k: v for k, v in told["/v1/summary"].items() if k not in of_the_plane}
        return told

    async def everything_theirs(self) -> dict[str, Any]:
        """Whatever their requests and ours can change: how far the courier has read is neither's doing."""
        told = {
            path: await self.get(path)
            for method, path, line in lines(Judged.LISTED)
            if method == "GET" and path != "/v1/summary"
        }
        for webhook in told["/v1/webhooks"]["items"]:
            del webhook["cursor"], webhook["version"]
        return told


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    async with serving(tmp_path, webhooks=WebhookSettings(allow_private=True)) as served:
        both = Two(served)
        await publish(served, POLICY)
        await served.introduce()
        both.before = await both.listed()
        both.theirs = await _fill(both)
        yield both


async def _fill(two: Two) -> dict[str, str]:
    secret = {"payload": {"word": CANARY}, "labels": {CANARY: CANARY}}
    await two.give("/v1/webhooks", {"name": CANARY, "url": f"http://127.0.0.1:9/{CANARY}", "events": ["job.*"]})
    post = await two.give(f"/v1/webhooks/{CANARY}:test")
    # One that failed, one whose effect nobody knows, one that ended well, one that waits for a person.
    failed = await two.give("/v1/jobs", {"topic": "quick", **secret})
    error = {"code": CANARY, "message": CANARY}
    outcome = {**await two.work(), "outcome": "failed", "error": error, "retryable": False}
    await two.served.work("complete", worker="w1", outcomes=[outcome])
    doubtful = await two.give("/v1/jobs", {"topic": "risky", **secret})
    for end in (
        {"outcome": "handed_back"},
        {"outcome": "failed", "error": {"code": "effect-unknown", "message": CANARY}},
    ):
        ref = await two.work()
        await two.served.work("effect/prepare", worker="w1", **ref, key=CANARY)
        await two.served.work("complete", worker="w1", outcomes=[{**ref, **end}])
    await two.give("/v1/jobs", {"topic": "t", **secret})
    done = {**await two.work(), "outcome": "succeeded", "result": CANARY}
    await two.served.work("complete", worker="w1", outcomes=[done])
    await two.give("/v1/jobs", {"topic": "pay", **secret})
    [approval] = (await two.get("/v1/approvals"))["items"]
    # One at work, and one behind it in its session.
    job = await two.give("/v1/jobs", {"topic": "t", "session": CANARY, "idempotency_key": CANARY, **secret})
    await two.work()
    await two.give("/v1/jobs", {"topic": "t", "session": CANARY, **secret})
    await two.give("/v1/workflows", {"document": WORKFLOW.format(name=CANARY)})
    run = await two.give("/v1/runs", {"workflow": CANARY, "input": {"word": CANARY}, "labels": {CANARY: CANARY}})
    scheduled = {"topic": "t", **secret}
    await two.give("/v1/schedules", {"name": CANARY, "every_s": 3600, "job": scheduled, "paused": True})
    [letter] = (await two.get("/v1/dead-letters"))["items"]
    return {
        "job": job["id"],
        "failed": failed["id"],
        "letter": str(letter["number"]),
        "effect": f"{doubtful['id']}/{CANARY}",
        "approval": approval["id"],
        "workflow": CANARY,
        "run": run["id"],
        "schedule": CANARY,
        "webhook": CANARY,
        "post": post["id"],
        "line": str((await two.get("/v1/audit"))["items"][0]["number"]),
    }


def _asked(path: str, line: Line, value: str) -> tuple[str, Any]:
    """The path and the body of a question about the thing called so."""
    if line.query:
        return f"{path}?{line.query}={value}", line.body
    if line.body is not None and "{" not in path:
        return path, {name: word.replace("$", value) for name, word in line.body.items()}
    head, _, tail = path.partition("{")
    return head + value + tail.rpartition("}")[2], line.body


async def test_what_another_tenant_has_is_as_if_it_had_never_been(two: Two) -> None:
    theirs = await two.everything_theirs()
    for method, path, line in lines(Judged.BY_ID):
        value = two.theirs[line.of]
        absent = "98765" if value.isdigit() else f"{ABSENT}/{ABSENT}" if "/" in value else ABSENT
        found = await two.ask(MINE, method, *_asked(path, line, value))
        missing = await two.ask(MINE, method, *_asked(path, line, absent))

        assert (missing.status_code, missing.json()["code"]) == (404, "not-found"), path
        assert found.status_code == 404, path
        if not value.isdigit():
            told = [
                answer.text.replace(word, "…")
                .replace(word.partition("/")[0], "…")
                .replace(word.rpartition("/")[2], "…")
                for answer, word in ((found, value), (missing, absent))
            ]
            assert told[0] == told[1], path
    assert await two.everything_theirs() == theirs


async def test_each_question_is_one_that_its_owner_is_answered(two: Two) -> None:
    """Else the test above would be of nothing."""
    for method, path, line in lines(Judged.BY_ID):
        if line.query:
            continue  # a stream without an end
        answer = await two.ask(THEIRS, method, *_asked(path, line, two.theirs[line.of]))

        assert answer.status_code in {200, 202, 409}, (path, answer.text)


async def test_what_another_tenant_has_changes_no_list_and_no_count(two: Two) -> None:
    assert await two.listed() == two.before


async def test_place_in_a_list_of_another_tenant_is_no_way_into_it(two: Two) -> None:
    tried = 0
    for method, path, _ in lines(Judged.LISTED):
        page = await two.get(f"{path}?limit=1") if method == "GET" and path != "/v1/summary" else {}
        if page.get("next_cursor"):
            answer = await two.ask(MINE, "GET", f"{path}?cursor={page['next_cursor']}")
            assert answer.json()["items"] == [], path
            tried += 1
    assert tried >= 3


@pytest.mark.parametrize(
    "query",
    [
        "effects?job={effect}",
        "approvals?job={job}",
        "approvals?job={run}",
        "runs?workflow={workflow}",
        "jobs?label={label}",
    ],
)
async def test_word_of_another_tenant_finds_nothing(two: Two, query: str) -> None:
    words = {**two.theirs, "effect": two.theirs["effect"].partition("/")[0], "label": f"{CANARY}={CANARY}"}

    assert (await two.ask(MINE, "GET", f"/v1/{query.format(**words)}")).json()["items"] == []


async def test_names_and_keys_of_another_tenant_are_free(two: Two) -> None:
    theirs = await two.everything_theirs()
    for method, path, line in lines(Judged.MADE):
        taken = await two.ask(MINE, method, path, _named(line.body, CANARY))
        fresh = await two.ask(MINE, method, path, _named(line.body, "nobody-has-this"))
        assert (taken.status_code, fresh.status_code) in {(200, 200), (202, 202)}, (path, taken.text)
        told = [answer.text.replace(name, "…") for answer, name in ((taken, CANARY), (fresh, "nobody-has-this"))]
        assert len(told[0]) == pytest.approx(len(told[1]), abs=16), path
        assert '"repeated":true' not in taken.text
    assert await two.everything_theirs() == theirs


def _named(body: Any, name: str) -> Any:
    if isinstance(body, str):
        return body.replace("$", name)
    if isinstance(body, list):
        return [_named(one, name) for one in body]
    return {key: _named(value, name) for key, value in body.items()} if isinstance(body, dict) else body


async def test_workflow_of_another_tenant_is_no_step_of_ours(two: Two) -> None:
    ends = []
    for name in (CANARY, "absent"):
        document = SUBFLOW.format(name=name)
        applied = await two.ask(MINE, "POST", "/v1/workflows", {"document": document})
        assert applied.status_code == 200
        run = (await two.ask(MINE, "POST", "/v1/runs?wait=20", {"workflow": "over"})).json()
        ends.append((run["state"], str(run["error"]).replace(name, "…")))

    assert (ends[0], ends[0][0]) == (ends[1], "failed")


async def test_what_everybody_is_told_has_no_word_of_a_tenant(two: Two) -> None:
    begun = await two.served.post("/v1/incidents", {"title": "slow"}, holdfast_tenant=THEIRS)
    assert begun.status_code == 200
    ids = [two.theirs[name] for name in ("job", "failed", "approval", "run", "post")]
    for path in [path for method, path, _ in lines(Judged.SHARED) if method == "GET"]:
        values = {"id": "w1", "key": f"wf:run:lock:{two.theirs['run']}", "number": "1", "version": "1"}
        answer = await two.ask(MINE, "GET", path.format(**values))

        assert answer.status_code == 200, (path, answer.text)
        assert CANARY not in answer.text, path
        # A lock is called by what it is of, and whoever names it is answered by that name.
        assert [one for one in ids if one in answer.text.replace(values["key"], "")] == [], path
    plane_chain = await two.ask(MINE, "GET", "/v1/audit?plane=true")
    assert [line["action"] for line in plane_chain.json()["items"]] == ["incident.started", "policy.published"]


async def test_stream_has_the_events_of_its_tenant_alone(two: Two) -> None:
    read = ""
    async with two.served.http.stream("GET", "/v1/events?after=0", headers={"holdfast-tenant": MINE}) as stream:
        pieces = stream.aiter_text()
        read += await anext(pieces)
        await two.give("/v1/jobs", {"topic": "t", "payload": CANARY, "labels": {CANARY: CANARY}})
        ours = (await two.ask(MINE, "POST", "/v1/jobs", {"topic": "t"})).json()
        async with asyncio.timeout(10):
            while ours["id"] not in read:
                read += await anext(pieces)

    told = {line for line in read.splitlines() if line.startswith("data:")}
    assert CANARY not in read
    assert told
    assert all(ours["id"] in line for line in told)
