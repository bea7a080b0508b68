"""The demo's stream of jobs: some of each kind, and now and then one that needs a person."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any

from holdfast.client import AsyncClient
from holdfast.errors import HoldfastError
from holdfast.locks.runtime import SYSTEM

logger = logging.getLogger("holdfast")

EVERY_S = 0.5
WAITING_MAX = 100
"""Jobs in line: with every worker stopped, the stream waits for them."""
LETTERS_MAX = 3


async def submit_for_ever(client: AsyncClient) -> None:
    for number in itertools.count():
        try:
            topic, payload = await choose(client, number)
            if len((await client.list(state="SCHEDULED", limit=WAITING_MAX)).items) < WAITING_MAX:
                await client.submit(topic, payload, idempotency_key=f"demo-{number}")
        except HoldfastError as error:
            logger.warning("demo.submit_failed", extra={"error": str(error)})
        await asyncio.sleep(SYSTEM.jitter(EVERY_S))


async def choose(client: AsyncClient, number: int) -> tuple[str, Any]:
    """The next job. One that needs a person comes only while few others do: a worklist nobody reads is none."""
    if number % 20 == 7 and len((await client.dead_letters(limit=LETTERS_MAX)).items) < LETTERS_MAX:
        return "invoice.import", {"file": f"scan-{number}.pdf"}
    if number % 20 == 3 and not (await client.effects(state="unknown", limit=1)).items:
        return "refund.pay", {"order": number, "crash": True}
    if number % 10 == 5:
        return "refund.pay", {"order": number, "crash": False}
    if number % 6 == 1:
        return "report.write", {"seconds": 5 + number % 10}
    if number % 4 == 2:
        return "research.ask", {"failures": number % 3}
    return "mail.send", {"to": f"customer-{number}@example.org"}
