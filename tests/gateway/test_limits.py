"""Bad input: a clear 4xx as problem+json, and nothing changed."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from gateway.conftest import Served, serving
from holdfast import errors
from holdfast.client import AsyncClient
from holdfast.gateway import limits, problems, schedules, webhooks
from holdfast.gateway.limits import BATCH_BYTES_MAX, DEPTH_MAX, EXTREMES_MAX
from holdfast.locks import LockError

DEEP = b'{"topic":"t","payload":%b%b}' % (b"[" * (DEPTH_MAX + 8), b"]" * (DEPTH_MAX + 8))
ABYSS = b'{"topic":"t","payload":%b%b}' % (b"[" * 100_000, b"]" * 100_000)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "malformed"),
        (b"{", 400, "malformed"),
        (b'{"topic":"t","payload":NaN}', 400, "malformed"),
        (b'{"topic":"t","payload":"\xff"}', 400, "malformed"),
        (b'{"topic":"t","payload":1e999}', 422, "invalid"),
        (b"[]", 422, "invalid"),
        (b"{}", 422, "invalid"),
        (b'{"topic":7}', 422, "invalid"),
        (b'{"topic":"t","topics":[]}', 422, "invalid"),
        (b'{"topic":"a b"}', 422, "invalid"),
        (b'{"topic":"t\\n"}', 422, "invalid"),
        (b'{"topic":"t","risk":"huge"}', 422, "invalid"),
        (b'{"topic":"t","priority":101}', 422, "invalid"),
        (b'{"topic":"t","delay_s":-1}', 422, "invalid"),
        (b'{"topic":"t","idempotency_key":"\\u001fagain:1"}', 422, "invalid"),
        (DEEP, 422, "invalid"),
        (ABYSS, 422, "invalid"),
        (b'{"topic":"t","payload":"%b"}' % (b"x" * (2 << 20)), 413, "too-large"),
    ],
)
async def test_bad_submission_changes_nothing(served: Served, body: bytes, status: int, code: str) -> None:
    answer = await served.http.post("/v1/jobs", content=body, headers={"content-type": "application/json"})

    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert (await served.client.list()).items == []


async def test_many_brackets_are_not_depth(served: Served) -> None:
    job = await served.client.submit("t", {"text": "[" * 500, "rows": [[n] for n in range(500)]})

    assert (await served.client.get(job.id)).payload["rows"][499] == [499]


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (b"9.0e294", 422),
        (b"1E+300", 422),
        (b"2.2e-0308", 422),
        (b"1e-99999", 422),
        (b"1.5e199", 202),
        (b'"9e294"', 202),
    ],
)
async def test_numbers_that_take_long_to_read_are_few(served: Served, number: bytes, status: int) -> None:
    """A request full of them would leave the plane no time for anybody else."""
    few, many = ([number] * (EXTREMES_MAX + more) for more in (0, 1))
    answers = [
        await served.http.post("/v1/jobs", content=b'{"topic":"t","payload":[%b]}' % b",".join(numbers))
        for numbers in (few, many)
    ]

    assert [answer.status_code for answer in answers] == [202, status]


async def test_text_that_does_not_end_is_not_looked_through_again_and_again(served: Served) -> None:
    body = b"[%b" % (b"1e200," * (EXTREMES_MAX + 1)) + b'"' + b'\\"' * 1_000_000
    async with asyncio.timeout(10):
        answer = await served.http.post("/v1/jobs:batch", content=body)

    assert answer.status_code == 422


@pytest.mark.parametrize(
    "text", [rb'"%b"' % (rb"\\" * 1_000_000), b'"",' * 600_000 + b'""'], ids=["of escapes", "many"]
)
def test_texts_that_look_like_numbers_take_little_room(text: bytes) -> None:
    """A batch of sixteen megabytes took one gigabyte."""
    body = b"[%b%b]" % (b'"1e200",' * (EXTREMES_MAX + 1), text)
    tracemalloc.start()
    try:
        limits.decode(msgspec.json.Decoder(msgspec.Raw), body, {})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 8 * len(body)


@pytest.mark.parametrize(
    ("texts", "status"),
    [(rb'"\\","\"",', 422), (rb'"\\\",",', 422), (rb'"\"', 202), (rb'"\\\"', 202), (rb'"\\\\\"', 202)],
)
async def test_numbers_are_told_from_texts_whatever_is_escaped_in_them(
    served: Served, texts: bytes, status: int
) -> None:
    numbers = b"1e200," * EXTREMES_MAX + b"1e200"
    end = b'"' if status == 202 else b""
    answer = await served.http.post("/v1/jobs", content=b'{"topic":"t","payload":[%b%b%b]}' % (texts, numbers, end))

    assert answer.status_code == status


async def test_member_of_a_batch_that_is_too_deep_fails_alone(served: Served) -> None:
    deep = msgspec.json.decode(DEEP)
    answer = await served.post("/v1/jobs:batch", {"jobs": [deep, {"topic": "t"}]})

    [refused, taken] = answer.json()["jobs"]
    assert (refused["error"]["code"], taken["job"]["state"]) == ("invalid", "SCHEDULED")


async def test_half_a_request_is_not_obeyed(served: Served) -> None:
    """Its body is optional, so that without it, it would be a request of its own."""
    job = await served.client.submit("t")
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json"), (b"content-length", b"20")]
    path = f"/v1/jobs/{job.id}:cancel"
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b"", "root_path": ""}

    async def hung_up() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def nobody_listens(_: MutableMapping[str, Any]) -> None:
        pass

    await served.gateway(scope, hung_up, nobody_listens)

    assert (await served.client.get(job.id)).state == "SCHEDULED"


async def test_body_without_a_length_is_limited_too(served: Served) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * (1 << 20)

    answer = await served.http.post("/v1/jobs:batch", content=endless(), headers={"content-type": "application/json"})

    assert answer.status_code == 413
    assert BATCH_BYTES_MAX < 64 << 20


async def test_other_media_are_refused(served: Served) -> None:
    """A form that a web page sends without asking must not submit a job."""
    answer = await served.http.post("/v1/jobs", content=b'{"topic":"t"}', headers={"content-type": "text/plain"})

    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported-media-type")


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://evil.example"}, {"host": "evil.example"}, {"origin": "null"}],
)
async def test_pages_from_elsewhere_are_not_served(served: Served, headers: dict[str, str]) -> None:
    answer = await served.http.post("/v1/jobs", json={"topic": "t"}, headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert (await served.client.list()).items == []


@pytest.mark.parametrize(
    "query",
    [
        "cursor=x",
        "cursor=MTo",
        "cursor=%F0%9F%92%A9",
        "limit=0",
        "limit=1001",
        "limit=ten",
        "limit=1&limit=2",
        "state=HAPPY",
        "label=noequals",
        "label=a=1&label=a=2",
        "unknown=1",
        "topic=%ff",
    ],
)
async def test_bad_query_is_told(served: Served, query: str) -> None:
    answer = await served.http.get(f"/v1/jobs?{query}")

    assert answer.status_code in {400, 422}
    assert answer.json()["type"] == f"/problems/{answer.json()['code']}"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/jobs/x", {"if-none-match": "abc"}),
        ("/v1/events", {"last-event-id": "abc"}),
        ("/v1/jobs", {"holdfast-tenant": "a b"}),
        ("/v1/jobs", {"holdfast-tenant": ""}),
        ("/v1/jobs", {"holdfast-tenant": "x" * 65}),
    ],
)
async def test_bad_header_is_told(served: Served, path: str, headers: dict[str, str]) -> None:
    assert (await served.http.get(path, headers=headers)).json()["code"] == "invalid"


async def test_router_answers_with_problems_too(served: Served) -> None:
    absent = await served.http.get("/v1/nothing")
    method = await served.http.delete("/v1/jobs")

    assert (absent.status_code, absent.json()["code"]) == (404, "not-found")
    assert (method.status_code, method.json()["code"]) == (405, "method-not-allowed")
    assert {"GET", "POST"} <= set(method.headers["allow"].replace(" ", "").split(","))


async def test_limit_of_live_jobs_says_when_to_come_back(tmp_path: Path) -> None:
    async with serving(tmp_path, live_jobs_max=1) as served:
        await served.client.submit("t")
        answer = await served.post("/v1/jobs", {"topic": "t"})

        assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (429, "too-many", "1")


async def test_api_key_is_asked_for(tmp_path: Path) -> None:
    async with serving(tmp_path, api_key="s3cret") as served:
        bare = await served.http.get("/v1/jobs")
        wrong = await served.http.get("/v1/jobs", headers={"authorization": "Bearer s3cre"})
        right = await served.http.get("/v1/jobs", headers={"authorization": "Bearer s3cret"})

        assert (bare.status_code, wrong.status_code, right.status_code) == (401, 401, 200)
        assert bare.headers["www-authenticate"] == "Bearer"
        assert "s3cre" not in wrong.text
        assert (await served.http.get("/livez")).status_code == 200
        assert (await served.client.list()).items == []
        async with AsyncClient(served.url, api_key="other") as stranger:
            with pytest.raises(errors.Unauthorized):
                await stranger.list()


async def test_what_nobody_foresaw_is_a_problem_without_details(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(limits, "stored_json", broken)
    answer = await served.post("/v1/jobs", {"topic": "t"})

    assert (answer.status_code, answer.json()["code"]) == (500, "error")
    assert "hunter2" not in answer.text


async def test_every_error_has_a_title_and_a_page(served: Served) -> None:
    def codes(root: type[errors.HoldfastError | LockError]) -> set[str]:
        return {root.code}.union(*(codes(child) for child in root.__subclasses__()))

    known = codes(errors.HoldfastError) | codes(LockError)

    assert known == set(problems.TITLES)
    page: httpx2.Response = await served.http.get("/problems/stale-fence")
    assert (page.status_code, "discard this work" in page.text) == (200, True)


async def test_limit_of_what_a_tenant_may_have_is_kept_however_many_ask_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "WEBHOOKS_MAX", 2)
    monkeypatch.setattr(schedules, "SCHEDULES_MAX", 2)

    async def add(path: str, body: dict[str, object]) -> int:
        return (await served.post(path, body)).status_code

    hooks = [add("/v1/webhooks", {"name": f"w{n}", "url": "https://example.com/"}) for n in range(8)]
    daily = [add("/v1/schedules", {"name": f"s{n}", "every_s": 60, "job": {"topic": "t"}}) for n in range(8)]

    assert sorted(await asyncio.gather(*hooks)) == [200, 200, *[429] * 6]
    assert sorted(await asyncio.gather(*daily)) == [200, 200, *[429] * 6]
