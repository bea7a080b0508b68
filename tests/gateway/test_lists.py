"""Workers, locks, dead letters, effects: what a person sees and may do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.conftest import Served, serving
from holdfast import api
from holdfast.api.schedules import NewSchedule, ScheduledJob
from holdfast.config import WebhookSettings
from holdfast.gateway import approvals, dead_letters, pages, summaries


async def failed(served: Served) -> dict[str, Any]:
    delivery = await served.started("quick", payload={"n": 1})
    outcome = {"job_id": delivery["job_id"], "fence": delivery["fence"], "outcome": "failed", "error": {"code": "bad"}}
    await served.work("complete", worker="w1", outcomes=[outcome])
    return delivery


async def test_dead_letter_is_replayed_once(served: Served) -> None:
    delivery = await failed(served)
    [letter] = (await served.client.dead_letters()).items
    shown = await served.client.dead_letter(letter.number)
    assert (shown.job_id, shown.reason) == (delivery["job_id"], "no-attempts-left")
    assert [event.kind for event in shown.events][-1] == "job.failed"

    first = await served.post(f"/v1/dead-letters/{letter.number}:replay")
    again = await served.post(f"/v1/dead-letters/{letter.number}:replay")

    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["id"] == again.json()["id"]
    assert first.json()["replay_of"] == delivery["job_id"]
    assert (await served.client.dead_letter(letter.number)).replayed_as == first.json()["id"]
    assert 'holdfast_jobs_submitted_total{topic="quick"} 2.0' in (await served.http.get("/metrics")).text


async def test_evidence_of_a_long_story_is_its_end(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "EVIDENCE_MAX", 2)
    await failed(served)
    [letter] = (await served.client.dead_letters()).items

    shown = await served.client.dead_letter(letter.number)

    assert [event.kind for event in shown.events] == ["job.started", "job.failed"]


async def test_evidence_that_is_large_is_cut_at_its_beginning(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    await failed(served)
    [letter] = (await served.client.dead_letters()).items
    monkeypatch.setattr(dead_letters, "PAGE_BYTES", 1)

    shown = await served.client.dead_letter(letter.number)

    assert [event.kind for event in shown.events] == ["job.failed"]


async def test_dead_letters_of_others_do_not_exist(served: Served) -> None:
    await failed(served)
    [letter] = (await served.client.dead_letters()).items

    answer = await served.http.get(f"/v1/dead-letters/{letter.number}", headers={"Holdfast-Tenant": "other"})

    assert answer.status_code == 404
    assert (await served.http.get("/v1/dead-letters/x")).status_code == 404


async def test_resolved_effect_lets_its_job_go_on(served: Served) -> None:
    key = "pay/1:x"
    first = await served.started("risky")
    ref = {"job_id": first["job_id"], "fence": first["fence"]}
    await served.work("effect/prepare", worker="w1", **ref, key=key)
    await served.work("complete", worker="w1", outcomes=[{**ref, "outcome": "handed_back"}])
    [second] = (await served.work("claim", worker="w1", wait_s=5, start=True))["deliveries"]
    ref["fence"] = second["fence"]
    assert (await served.work("effect/prepare", worker="w1", **ref, key=key))["ruling"] == "blocked"
    blocked = {**ref, "outcome": "failed", "error": {"code": "effect-unknown", "message": key}}
    await served.work("complete", worker="w1", outcomes=[blocked])
    [unknown] = (await served.client.effects(state="unknown", job_id=ref["job_id"])).items

    found = api.ResolveEffect(state="committed", result={"id": 7}, reason="it is in the bank's list")
    resolved = await served.client.resolve_effect(unknown.job_id, unknown.key, found)

    assert (resolved.state, resolved.result) == ("committed", {"id": 7})
    [third] = (await served.work("claim", worker="w1", wait_s=5, start=True))["deliveries"]
    ref["fence"] = third["fence"]
    ruling = await served.work("effect/prepare", worker="w1", **ref, key=key)
    assert (ruling["ruling"], ruling["result"]) == ("remembered", {"id": 7})
    again = await served.post(f"/v1/effects/{ref['job_id']}/{key}:resolve", {"state": "absent", "reason": "no"})
    assert (again.status_code, again.json()["code"]) == (409, "conflict")


async def test_held_locks_are_listed(served: Served) -> None:
    async with served.plane.locks.hold("scheduler.job", "j1") as lease:
        [held] = (await served.client.locks(family="scheduler.job")).items

    assert (held.key.endswith("j1"), held.fence) == (True, lease.fence)
    assert (await served.http.get("/v1/locks?family=none")).json()["code"] == "not-found"


async def test_pages_of_locks_go_on_after_the_longest_key(served: Served) -> None:
    long = ["a" * 400, "b" * 400]
    async with (
        served.plane.locks.hold("scheduler.job", long[0]),
        served.plane.locks.hold("scheduler.job", long[1]),
    ):
        first = await served.client.locks(family="scheduler.job", limit=1)
        rest = await served.client.locks(family="scheduler.job", cursor=first.next_cursor)

    assert [held.key[-1] for held in [*first.items, *rest.items]] == ["a", "b"]


async def test_workers_are_listed(served: Served) -> None:
    await served.introduce("w1", labels={"gpu": "yes"})

    [worker] = (await served.client.workers()).items

    assert (worker.id, worker.alive, worker.draining, worker.labels) == ("w1", True, False, {"gpu": "yes"})


async def test_metrics_and_health(served: Served) -> None:
    await served.client.submit("t")

    assert 'holdfast_jobs_submitted_total{topic="t"} 1.0' in (await served.http.get("/metrics")).text
    assert (await served.http.get("/readyz")).text == "ready\n"


async def test_effects_are_listed_page_by_page(served: Served) -> None:
    delivery = await served.started("quick")
    ref = {"job_id": delivery["job_id"], "fence": delivery["fence"]}
    for key in ["b", "a", "c/with:signs"]:
        await served.work("effect/prepare", worker="w1", **ref, key=key)

    whole = await served.client.effects()
    first = await served.client.effects(limit=2)
    rest = await served.client.effects(limit=2, cursor=first.next_cursor)

    assert sorted(effect.key for effect in whole.items) == ["a", "b", "c/with:signs"]
    assert (first.items + rest.items, whole.next_cursor, rest.next_cursor) == (whole.items, None, None)
    of_another_list = pages.to_cursor("7")
    assert (await served.http.get("/v1/effects", params={"cursor": of_another_list})).status_code == 422


async def test_page_of_large_jobs_ends_early(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left out, and no more is read than fits."""
    submitted = [(await served.client.submit("slow", "x" * 1000)).id for _ in range(7)]
    monkeypatch.setattr(pages, "PAGE_BYTES", 2500)
    monkeypatch.setattr(pages, "FIRST_PART", 2)

    sizes: list[int] = []
    listed: list[str] = []
    cursor = None
    while not sizes or cursor is not None:
        page = await served.client.list(cursor=cursor)
        sizes.append(len(page.items))
        listed += [job.id for job in page.items]
        cursor = page.next_cursor

    assert sizes == [3, 3, 1]
    assert listed == submitted[::-1]


ASKS: dict[str, Any] = {
    "format": 1,
    "default": {"action": "allow"},
    "rules": [{"name": "r", "match": {"topic": "pay"}, "action": "require_approval", "approval": {"approvers": ["a"]}}],
}
STEP = "name: w\noutput: {n}\nsteps:\n  - {{id: s, kind: job, topic: quick}}\n"


async def two_of_each(served: Served) -> list[str]:
    """Lists of things that callers make as large as they like, with two things in each."""
    for name in ("s1", "s2"):
        job = ScheduledJob(topic="t")
        await served.client.add_schedule(NewSchedule(name=name, cron="0 3 * * *", zone="UTC", job=job))
    await served.client.add_webhook("h", "http://127.0.0.1:9/")
    for n in (1, 2):
        await served.client.test_webhook("h")
        await served.client.apply_workflow(STEP.format(n=n))
        await served.client.apply_workflow(STEP.format(n=n).replace("name: w", f"name: w{n}"))
        published = await served.client.publish_policy(ASKS, reason=f"test {n}")
    while (await served.client.policy()).here.version != published.version:
        await asyncio.sleep(0.005)
    run = await served.client.start_run("w", None)
    for _ in range(2):
        job_id = (await served.client.submit("pay")).id
    await served.client.cancel(job_id)
    await served.client.submit("pay")
    return [
        "/v1/schedules?",
        "/v1/webhooks/h/posts?",
        "/v1/workflows?",
        "/v1/workflows/w/revisions?",
        "/v1/policy/versions?",
        "/v1/approvals?state=pending",
        "/v1/approvals?state=pending&assignee=a",
        f"/v1/jobs/{job_id}/events?",
        f"/v1/runs/{run.id}/timeline?",
    ]


async def test_no_page_is_heavier_than_it_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path, webhooks=WebhookSettings(allow_private=True)) as served:
        lists = await two_of_each(served)
        whole = [(await served.http.get(path)).json()["items"] for path in lists]
        monkeypatch.setattr(pages, "PAGE_BYTES", 1)
        monkeypatch.setattr(pages, "FIRST_PART", 1)
        monkeypatch.setattr(approvals, "PAGE_BYTES", 1)
        for path, items in zip(lists, whole, strict=True):
            first = (await served.http.get(path)).json()
            second = (await served.http.get(f"{path}&cursor={first['next_cursor']}")).json()

            assert [*first["items"], *second["items"]] == items[:2], path
            assert len(items) >= 2, path


async def test_many_who_watch_cost_one_summary(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who ask at once wait for the same one; one that took longer than it is fresh for is not made in vain."""
    store = served.plane.store
    count_jobs, now, passed, counted = store.count_jobs, store.now, 0.0, 0

    async def take_long() -> Any:
        nonlocal passed, counted
        passed, counted = passed + 2 * summaries.FRESH_S, counted + 1
        return await count_jobs()

    monkeypatch.setattr(summaries, "FRESH_S", 60.0)
    monkeypatch.setattr(store, "now", lambda: now() + passed)
    monkeypatch.setattr(store, "count_jobs", take_long)
    await asyncio.gather(served.client.summary(), served.client.summary())
    await served.client.summary()

    assert counted == 1
