"""What a submitter and a worker do over HTTP, until they are answered: for planes whose servers come and go."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2

from holdfast.app import serving
from holdfast.config import Settings


@asynccontextmanager
async def plane(settings: Settings) -> AsyncIterator[httpx2.AsyncClient]:
    async with serving(settings) as address, httpx2.AsyncClient(base_url=address, timeout=30.0) as http:
        yield http


async def say(http: httpx2.AsyncClient, path: str, **body: Any) -> Any:
    """Until it is answered: a plane that cannot do it now says so, and means that it may be asked again."""
    while True:
        reply = await http.post(path, json=body)
        if reply.status_code != 503:
            assert reply.status_code < 300 or reply.status_code == 409, reply.text
            return reply.json()
        await asyncio.sleep(0.05)


async def submit(http: httpx2.AsyncClient, number: int) -> str:
    while True:
        reply = await http.post("/v1/jobs", json={"topic": "mail.send"}, headers={"Idempotency-Key": f"key-{number}"})
        if reply.status_code < 300:
            job_id: str = reply.json()["id"]
            return job_id
        assert reply.json()["retryable"], reply.text
        await asyncio.sleep(0.05)


@asynccontextmanager
async def working(http: httpx2.AsyncClient, name: str, *, wait_s: float = 1) -> AsyncIterator[Counter[str]]:
    """A worker that does whatever it is given. Yields how often it was given what."""
    given: Counter[str] = Counter()

    async def work() -> None:
        await say(http, "/v1/work/hello", worker=name, name=name, topics=["*"], slots=10)
        while True:
            claimed = await say(http, "/v1/work/claim", worker=name, wait_s=wait_s, start=True)
            for delivery in claimed["deliveries"]:
                given[delivery["job_id"]] += 1
                outcome = {
                    "job_id": delivery["job_id"],
                    "fence": delivery["fence"],
                    "outcome": "succeeded",
                    "result": 1,
                }
                await say(http, "/v1/work/complete", worker=name, outcomes=[outcome])

    task = asyncio.create_task(work())
    try:
        yield given
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def wait_ended(http: httpx2.AsyncClient, ids: list[str]) -> None:
    async with asyncio.timeout(60):
        for job_id in ids:
            while True:
                reply = await http.get(f"/v1/jobs/{job_id}")
                if reply.status_code == 200 and reply.json()["state"] == "SUCCEEDED":
                    break
                await asyncio.sleep(0.05)


async def history(http: httpx2.AsyncClient, job_id: str) -> list[str]:
    """The kinds of a job's events, in order."""
    reply = await http.get(f"/v1/jobs/{job_id}/events")
    return [event["kind"] for event in reply.json()["items"]]
