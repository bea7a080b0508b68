"""`/v1/policy` over HTTP: published, in force, refused with reasons, rolled back; and the same through the client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.conftest import Served, serving
from holdfast.config import PolicySettings
from holdfast.errors import Conflict, Invalid, NotFound, TooMany, VersionMismatch

DOCUMENT: dict[str, Any] = {
    "format": 1,
    "rules": [
        {"name": "no-shell", "match": {"topic": "shell.*"}, "action": "deny", "reason": "no shell here"},
        {"name": "slow", "match": {"topic": "slow"}, "action": "throttle", "throttle": {"rate": "1/h"}},
    ],
    "default": {"action": "allow"},
}


async def in_use(served: Served, version: int) -> None:
    """The plane uses this version. Its service hears of it at once, or looks within two seconds."""
    async with asyncio.timeout(10):
        while (await served.client.policy()).here.version != version:
            await asyncio.sleep(0.01)


async def in_force(served: Served, document: dict[str, Any] = DOCUMENT) -> int:
    """Published, and used by this plane."""
    version = (await served.client.publish_policy(document, reason="a test")).version
    await in_use(served, version)
    return version


async def test_without_a_policy_everything_is_allowed(served: Served) -> None:
    answer = await served.http.get("/v1/policy")

    assert answer.headers["etag"] == '"0"'
    assert answer.json()["document"] is None
    assert answer.json()["here"]["version"] == 0
    assert (await served.client.submit("shell.run")).state == "SCHEDULED"


async def test_a_published_policy_is_in_force(served: Served) -> None:
    published = await served.client.publish_policy(DOCUMENT, reason="begin", by="alice", expected=0)
    await in_use(served, 1)
    denied = await served.client.submit("shell.run")
    allowed = await served.client.submit("mail")

    assert (published.version, published.by, published.reason) == (1, "alice", "begin")
    assert (denied.state, denied.error) == ("DENIED", {"code": "denied", "message": "no shell here"})
    assert allowed.state == "SCHEDULED"


async def test_the_event_of_a_submission_names_rule_and_version(served: Served) -> None:
    await in_force(served)
    denied = await served.client.submit("shell.run")

    [event] = (await served.client.events(denied.id)).items

    assert event.kind == "job.submitted"
    assert {name: event.detail[name] for name in ("action", "rule", "policy", "reason")} == {
        "action": "deny",
        "rule": "no-shell",
        "policy": 1,
        "reason": "no shell here",
    }


async def test_a_throttled_submission_is_429_with_retry_after(served: Served) -> None:
    await in_force(served)
    await served.client.submit("slow")

    answer = await served.post("/v1/jobs", {"topic": "slow"})

    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) == pytest.approx(3600, abs=2)
    assert answer.json()["code"] == "too-many"
    with pytest.raises(TooMany):
        await served.client.submit("slow")


async def test_a_throttled_member_does_not_fail_its_batch(served: Served) -> None:
    await in_force(served)

    answer = await served.post("/v1/jobs:batch", {"jobs": [{"topic": "slow"}, {"topic": "slow"}, {"topic": "mail"}]})

    assert [job["error"] and job["error"]["status"] for job in answer.json()["jobs"]] == [None, 429, None]


async def test_publishing_over_another_version_is_412(served: Served) -> None:
    await served.client.publish_policy(DOCUMENT, reason="begin")

    with pytest.raises(VersionMismatch, match="version 1 of the policy is active, not 0"):
        await served.client.publish_policy(DOCUMENT, reason="late", expected=0)
    answer = await served.post("/v1/policy:publish", {"document": DOCUMENT, "reason": "late"}, if_match='"0"')
    assert answer.status_code == 412


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"document": {"format": 1}, "reason": "x"}, "default is missing"),
        ({"document": {**DOCUMENT, "rulez": []}, "reason": "x"}, "rulez: no such field here"),
        ({"document": [], "reason": "x"}, "document: Expected `object`"),
        ({"document": DOCUMENT, "reason": " "}, "Expected a text that says something - at `$.reason`"),
        ({"document": DOCUMENT}, "missing required field `reason`"),
        (
            {"document": {**DOCUMENT, "rules": [{"name": "a", "action": "allow", "when": "1 +"}]}, "reason": "x"},
            "rules[0].when: column 4: it ends too early",
        ),
    ],
)
async def test_a_bad_publication_is_422_and_stores_nothing(served: Served, body: Any, words: str) -> None:
    answer = await served.post("/v1/policy:publish", body)

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert words in answer.json()["detail"]
    assert (await served.client.policy()).version == 0


async def test_history_and_rollback(served: Served) -> None:
    for n in range(3):
        await served.client.publish_policy({**DOCUMENT, "timeout_ms": n + 1}, reason=f"reason {n}", by="alice")
    back = await served.client.roll_back_policy(1, reason="too strict", by="bob", expected=3)
    first = await served.client.policy_versions(limit=2)
    second = await served.client.policy_versions(limit=2, cursor=first.next_cursor)
    one = await served.client.policy_version(2)

    assert (back.version, back.newest, back.by, back.document["timeout_ms"]) == (1, 3, "bob", 1)
    listed = [*first.items, *second.items]
    assert [(v.version, v.active, v.rules, v.document) for v in listed] == [
        (3, False, 2, None),
        (2, False, 2, None),
        (1, True, 2, None),
    ]
    assert second.next_cursor is None
    assert one.document == {**DOCUMENT, "timeout_ms": 2}
    with pytest.raises(NotFound):
        await served.client.policy_version(9)
    with pytest.raises(NotFound):
        await served.client.roll_back_policy(9, reason="x")
    with pytest.raises(Conflict):
        await served.client.roll_back_policy(1, reason="x")
    assert (await served.http.get("/v1/policy/versions/two")).status_code == 404


async def test_a_simulation_shows_what_would_change(served: Served) -> None:
    mail = await served.client.submit("mail", {"amount": 5})
    shell = await served.client.submit("shell.run")

    found = await served.client.simulate_policy(DOCUMENT)

    assert (found.jobs, found.changed, found.failed) == (2, 1, 0)
    assert (found.before, found.after) == ({"allow": 2}, {"allow": 1, "deny": 1})
    assert found.by_rule == {"no-shell": 1, "default": 1}
    [example] = found.examples
    assert (example.job_id, example.after, example.rule_after) == (shell.id, "deny", "no-shell")
    assert (await served.client.get(mail.id)).state == "SCHEDULED"
    with pytest.raises(Invalid):
        await served.client.simulate_policy({"format": 1})


async def test_a_plane_that_is_given_a_file_starts_with_it(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('format = 1\ndefault = {action = "deny", reason = "closed for today"}\n')
    async with serving(tmp_path, policy=PolicySettings(file=str(file))) as served:
        standing = await served.client.policy()

        assert (standing.version, standing.here.version) == (1, 1)
        assert (await served.client.submit("mail")).state == "DENIED"
        [version] = (await served.client.policy_versions()).items
        assert version.file == "policy.toml"


async def test_two_planes_on_one_store_come_to_the_same_version(tmp_path: Path) -> None:
    """Convergence: published at one, each plane's `/v1/policy` says which version it uses."""
    async with serving(tmp_path) as one, serving(tmp_path) as other:
        await in_force(one)
        await in_use(other, 1)

        assert (await other.client.policy()).here.hash == (await one.client.policy()).here.hash
        assert (await other.client.submit("shell.run")).state == "DENIED"
