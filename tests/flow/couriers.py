"""Couriers of a stage, and whom they bring posts to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from flow.stage import ACME, Replica, Stage
from holdfast.core.job import Tenant
from holdfast.core.record import Kind
from holdfast.core.webhook import Post, Webhook, new_secret, post_from, webhook_from, webhook_record
from holdfast.flow.keep import add_record
from holdfast.webhooks import Courier


class Reply(NamedTuple):
    status: int | None
    error: str = ""
    wait_s: float = 0.0


@dataclass
class Receiver:
    """Somebody on the other side: what it was sent, and what it answers."""

    answers: dict[str, Reply] = field(default_factory=dict)
    """By URL; others are answered 200."""
    takes_s: dict[str, float] = field(default_factory=dict)
    got: list[tuple[str, Mapping[str, str], dict[str, Any]]] = field(default_factory=list)
    at_once: dict[str, int] = field(default_factory=dict)
    most_at_once: dict[str, int] = field(default_factory=dict)

    async def send(self, url: str, headers: Mapping[str, str], content: bytes) -> Reply:
        self.at_once[url] = self.at_once.get(url, 0) + 1
        self.most_at_once[url] = max(self.most_at_once.get(url, 0), self.at_once[url])
        await asyncio.sleep(self.takes_s.get(url, 0.01))
        self.at_once[url] -= 1
        self.got.append((url, headers, msgspec.json.decode(content)))
        return self.answers.get(url, Reply(200))

    def ids(self, url: str) -> list[str]:
        return [headers["webhook-id"] for to, headers, _ in self.got if to == url]


def courier(stage: Replica, receiver: Receiver) -> Courier:
    return Courier(store=stage.typed_store, send=receiver.send, telemetry=stage.telemetry, runtime=stage.runtime)


@asynccontextmanager
async def couriers(stage: Stage, receiver: Receiver, count: int = 1) -> AsyncIterator[list[Courier]]:
    made = [courier(stage if n == 0 else await stage.replica(f"R{n}"), receiver) for n in range(count)]
    for one in made:
        one.start()
    try:
        yield made
    finally:
        for one in made:
            await one.stop()


async def subscribe(stage: Stage, name: str, *events: str, tenant: Tenant = ACME) -> Webhook:
    now = stage.store.now()
    webhook = Webhook(
        tenant=tenant,
        name=name,
        url=f"https://{name}.example/",
        events=events,
        secrets=(new_secret(bytes(32)),),
        cursor=await stage.seen.look(),
        looked_at=now,
        created_at=now,
    )
    added = await add_record(webhook_record(webhook), store=stage.inner)
    assert added is not None
    return webhook_from(added)


async def webhook_now(stage: Stage, name: str) -> Webhook:
    return webhook_from(await stage.inner.get_record(Kind.WEBHOOK, ACME, name))


async def posts(stage: Stage, name: str, tenant: Tenant = ACME) -> list[Post]:
    found = await stage.inner.list_records(Kind.POST, tenant, parent=name, limit=1000)
    return [post_from(record) for record in found]
