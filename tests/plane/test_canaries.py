"""What nobody may read who was not given it: keys, passwords, arguments, results, secrets of webhooks, tokens of locks.

Each is a word that is found nowhere else, in a plane where everything goes wrong; then all that the plane has said to
anybody else is searched for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import servers
from harness import eventually
from redis import Redis

from holdfast.app import serving
from holdfast.cli.logs import LIBRARIES, JsonLines, log_to_stderr
from holdfast.config import Settings, WebhookSettings
from holdfast.core.people import People, digest_of
from holdfast.locks.runtime import SystemRuntime

KEY, WRONG_KEY, PERSON = "canary-shared-key", "canary-wrong-key", "canary-own-key"
PASSWORD = "canary-password"
SAID = "canary-said"
"""Arguments, results, progress and answers of people."""
URL = "canary-url"
ERROR = {"code": "c", "message": "m"}
POLICY = {
    "format": 1,
    "default": {"action": "allow"},
    "rules": [
        {"name": "odd", "match": {"topic": "odd"}, "when": "int(payload.word) > 1", "action": "allow"},
        {"name": "pay", "match": {"topic": "pay"}, "action": "require_approval", "approval": {"quorum": 1}},
    ],
}
WORKFLOW = """\
name: flow
output: ${steps.say.output}
steps:
  - id: say
    kind: job
    topic: t
    payload: {word: "${input.word}"}
  - id: fail
    kind: transform
    depends_on: [say]
    value: ${int(steps.say.output.word)}
"""


class Everything(logging.Handler):
    """All that is logged, in both forms."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self._forms = (JsonLines(), logging.Formatter("%(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        # Whoever runs the plane may have a handler of their own, that shows what the record was made from.
        self.lines += [*(form.format(record) for form in self._forms), repr(record.args)]


@pytest.fixture
def logged() -> Iterator[list[str]]:
    handler, root = Everything(), logging.getLogger()
    loggers = [root, *map(logging.getLogger, LIBRARIES)]
    levels = [logger.level for logger in loggers]
    root.addHandler(handler)
    log_to_stderr(verbose=True, log_format="text")
    root.setLevel(logging.DEBUG)
    yield handler.lines
    root.removeHandler(handler)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def redis() -> tuple[servers.Server, str]:
    server = servers.redis_server().start()
    with Redis(port=server.port) as admin:
        admin.config_set("requirepass", PASSWORD)
    return server, server.url.replace("redis://", f"redis://:{PASSWORD}@")


def postgres() -> tuple[servers.Server, str]:
    server = servers.postgres_server().start()
    return server, server.url.replace("//test@", f"//test:{PASSWORD}@")


STORES: dict[str, Callable[[], tuple[servers.Server, str]]] = {"redis": redis, "postgres": postgres}


class Spied(SystemRuntime):
    """Tokens of locks, and whatever else is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[str] = []
        draw = self.token
        self.token = lambda: self._seen(draw())

    def _seen(self, token: str) -> str:
        self.drawn.append(token)
        return token


class Asked:
    """One who asks with the shared key, and remembers what was answered that is nobody's argument or result."""

    def __init__(self, http: httpx2.AsyncClient, told: list[str]) -> None:
        self.http = http
        self.told = told

    async def say(self, path: str, body: Any, *, private: bool = True) -> Any:
        answer = await self.http.post(path, json=body, headers={"holdfast-actor": "bob"})
        if not private or answer.status_code >= 400:
            self.told.append(answer.text)
        return answer.json()

    async def work(self, topic: str, payload: Any) -> dict[str, Any]:
        job = await self.say("/v1/jobs", {"topic": topic, "payload": payload})
        await self.say("/v1/work/hello", {"worker": "w1", "name": "w1", "topics": ["t"], "slots": 10})
        [delivery] = (await self.say("/v1/work/claim", {"worker": "w1", "wait_s": 5, "start": True}))["deliveries"]
        assert delivery["job_id"] == job["id"]
        return {"job_id": delivery["job_id"], "fence": delivery["fence"]}

    async def look(self, path: str, **headers: str) -> None:
        answer = await self.http.get(path, headers=headers)
        self.told.append(answer.text)


@pytest.mark.parametrize("name", STORES)
async def test_secrets_are_told_to_nobody_else(name: str, tmp_path: Path, logged: list[str]) -> None:
    server, url = STORES[name]()
    try:
        settings = Settings(
            store=url, port=0, api_key=KEY, people=People({"ann": digest_of(PERSON.encode())}),
            webhooks=WebhookSettings(allow_private=True),
        )  # fmt: skip
        runtime = Spied()
        told = [repr(settings), str(settings)]
        async with serving(settings, runtime=runtime) as address:
            headers = {"authorization": f"Bearer {KEY}"}
            async with httpx2.AsyncClient(base_url=address, trust_env=False, timeout=30, headers=headers) as http:
                async with receiver() as rude:
                    secret = await go_wrong(Asked(http, told), rude)
                server.kill()
                await go_nowhere(Asked(http, told))
    finally:
        server.remove()

    found = {
        canary: [text for text in (*logged, *told) if canary in text]
        for canary in (KEY, WRONG_KEY, PERSON, PASSWORD, SAID, URL, secret, *runtime.drawn)
    }
    assert {canary: texts for canary, texts in found.items() if texts} == {}
    assert any("loop.tick_failed" in line or "unavailable" in line for line in logged), "nothing went wrong"


async def go_wrong(asked: Asked, rude: str) -> str:
    """Everything once, and most of it in vain. The secret of a webhook."""
    receivers = {"away": "http://127.0.0.1:9/canary-url/hook", "rude": f"{rude}/hook?token=canary-url"}
    for name, where in receivers.items():
        added = await asked.say("/v1/webhooks", {"name": name, "url": where, "events": ["*"]})
        secret: str = added["secret"]
    await asked.say("/v1/policy:publish", {"document": POLICY, "reason": "r"}, private=False)
    await eventually(partial(ruled, asked.http))
    await asked.look("/v1/jobs", authorization=f"Bearer {WRONG_KEY}")
    await asked.look(f"/v1/jobs?api_key={KEY}")
    await asked.look("/v1/policy", authorization=f"Bearer {PERSON}", **{"holdfast-actor": "bob"})
    for body in (
        b'{"topic":"odd","payload":"canary-said"',
        b'{"topic":"odd","payload":"\xffcanary-said"}',
        b'["canary-said"]',
    ):
        answer = await asked.http.post("/v1/jobs", content=body, headers={"content-type": "application/json"})
        asked.told.append(answer.text)
    for odd in ("\0" + SAID, SAID * 150_000, {"word": SAID}):
        await asked.say("/v1/jobs", {"topic": "odd", "payload": odd})
    ref = await asked.work("t", {"word": SAID})
    await asked.say("/v1/work/progress", {"worker": "w1", **ref, "progress": {"word": SAID, "nul": "\0"}})
    await asked.say("/v1/work/effect/prepare", {"worker": "w1", **ref, "key": "pay"})
    await asked.say("/v1/work/effect/commit", {"worker": "w1", **ref, "key": "pay", "result": SAID})
    await asked.say("/v1/workflows", {"document": WORKFLOW})
    done = {**ref, "outcome": "succeeded", "result": SAID}
    await asked.say("/v1/work/complete", {"worker": "w1", "outcomes": [done]})
    await asked.say("/v1/work/complete", {"worker": "w1", "outcomes": [done]})  # again, and too late
    failed = {**await asked.work("t", SAID), "outcome": "failed", "retryable": False, "error": ERROR}
    await asked.say("/v1/work/complete", {"worker": "w1", "outcomes": [failed]})
    run = await fail_run(asked)
    await decide(asked)
    scheduled = {"name": "s", "every_s": 3600, "run": {"workflow": "absent", "input": SAID}}
    await asked.say("/v1/schedules", scheduled)
    await asked.say("/v1/schedules/s:trigger", {}, private=False)
    await asked.say("/v1/incidents", {"title": "slow"}, private=False)
    for name in receivers:
        await eventually(partial(tried, asked.http, name))
    ids = (ref["job_id"], failed["job_id"])
    for path in (
        *(f"/v1/jobs/{one}/{what}" for one in ids for what in ("why", "events")),
        *(f"/v1/runs/{run['id']}/{what}" for what in ("why", "timeline")),
        "/v1/audit", "/v1/audit?plane=true", "/v1/locks", "/v1/locks/holdfast:timetable:default/why", "/v1/workers", "/v1/workers/w1/why",
        "/v1/summary", "/v1/incidents/1/export", "/v1/webhooks/rude/posts", "/v1/webhooks/away/posts", "/metrics", "/openapi.json",
    ):  # fmt: skip
        await asked.look(path)
    return secret


async def ruled(http: httpx2.AsyncClient) -> bool:
    return bool((await http.get("/v1/policy")).json()["here"]["version"] == 1)


async def tried(http: httpx2.AsyncClient, webhook: str) -> bool:
    posts = (await http.get(f"/v1/webhooks/{webhook}/posts")).json()["items"]
    return any(post["tries"] for post in posts)


@asynccontextmanager
async def receiver() -> AsyncIterator[str]:
    """One who refuses what is posted, and repeats it."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 500 canary-said\r\nx-said: canary-said\r\ncontent-length: %d\r\n\r\n" % len(head) + head
        )
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def fail_run(asked: Asked) -> Any:
    # A run whose second step cannot be worked out of what the first has said.
    run = await asked.say("/v1/runs", {"workflow": "flow", "input": {"word": SAID}})
    [step] = (await asked.say("/v1/work/claim", {"worker": "w1", "wait_s": 5, "start": True}))["deliveries"]
    said = {"job_id": step["job_id"], "fence": step["fence"], "outcome": "succeeded", "result": {"word": SAID}}
    await asked.say("/v1/work/complete", {"worker": "w1", "outcomes": [said]})
    ended = (await asked.http.get(f"/v1/runs/{run['id']}?wait=20")).json()
    assert ended["state"] == "failed", ended
    asked.told.append(str(ended["error"]))
    return run


async def decide(asked: Asked) -> None:
    for choice in (
        {"decision": "approve"},
        {"decision": "edit", "arguments": [SAID]},
        {"decision": "respond", "response": SAID},
    ):
        await asked.say("/v1/jobs", {"topic": "pay", "payload": SAID})
        pending = (await asked.http.get("/v1/approvals?state=pending")).json()["items"]
        await asked.say(f"/v1/approvals/{pending[0]['id']}:decide", choice)
        await asked.look(f"/v1/approvals/{pending[0]['id']}/why")


async def go_nowhere(asked: Asked) -> None:
    """The store is gone."""
    for path, body in (
        ("/v1/jobs", {"topic": "t", "payload": SAID}),
        ("/v1/runs", {"workflow": "flow", "input": SAID}),
    ):
        await asked.say(path, body)
    await asked.look("/readyz")
    await asked.look("/metrics")
