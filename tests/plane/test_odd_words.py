"""Words that no name has, asked of every route on every store that a server keeps: a refusal, and never a failure of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx2
import msgspec
import pytest
import servers
from gateway.judged_routes import TABLE

from holdfast.config import Settings
from holdfast.gateway.pages import to_cursor
from holdfast.gateway.routes import ROUTES
from plane.over_http import plane
from plane.store_fixtures import FRESH

ODD = ("%00", "a%00b", "%ff", "%ed%a0%80", "%0a", "%25", "..%2f", "9" * 17, "-1", "%f0%9f%92%a9", "*", "'", "%3a", "@~")
NoQuery = msgspec.defstruct("NoQuery", [])
ASKED = [route for route in ROUTES if route.media != "text/event-stream"]


@pytest.fixture(params=list(FRESH))
def url(request: pytest.FixtureRequest, running: dict[str, servers.Server | None]) -> Iterator[str]:
    with FRESH[request.param](running) as url:
        yield url


async def test_odd_name_is_one_that_nothing_has(url: str) -> None:
    failed = []
    async with plane(Settings(store=url, port=0)) as http:
        for route in [route for route in ASKED if "{" in route.path]:
            body = TABLE[f"{route.method} {route.path}"].body
            for odd in ODD:
                path = re.sub(r"\{\w+\}", odd, route.path)
                answer = await http.request(route.method, path, json=body, headers={"holdfast-actor": "eve"})
                if answer.status_code >= 500:
                    failed.append((route.method, path))
    assert failed == []


async def test_odd_word_is_one_that_nothing_is_found_by(url: str) -> None:
    failed = []
    async with plane(Settings(store=url, port=0)) as http:
        for route in ASKED:
            path = re.sub(r"\{\w+\}", "1", route.path)
            for field in msgspec.structs.fields(route.query or NoQuery):
                for odd in (*ODD, to_cursor("\0"), to_cursor("a\0b"), to_cursor("💩"), "a%00=b"):
                    answer = await http.request(route.method, f"{path}?{field.name}={odd}")
                    if answer.status_code >= 500:
                        failed.append((route.method, path, field.name, odd))
    assert failed == []


async def test_odd_name_of_a_workflow_is_refused_wherever_it_is_said(url: str) -> None:
    async with plane(Settings(store=url, port=0)) as http:

        async def said(path: str, body: object) -> int:
            answer: httpx2.Response = await http.post(path, json=body)
            return answer.status_code

        assert await said("/v1/runs", {"workflow": "a\0b"}) == 422
        assert await said("/v1/runs:plan", {"workflow": "a\0b"}) == 422
        assert await said("/v1/schedules", {"name": "s", "every_s": 60, "run": {"workflow": "a\0b"}}) == 422
