"""Two payouts: one is paid, the bank refuses the other, and what was done for it is undone. Exit code 0 if so."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast.app import serving as plane
from holdfast.client import AsyncClient
from holdfast.config import Settings
from holdfast.worker import serving as worker

HERE = Path(__file__).parent
PATIENCE_S = 30.0
EXPECTED = {
    "small": ["reserve", "book", "pay"],
    "large": ["reserve", "book", "unbook", "release"],
}


async def main() -> int:
    with TemporaryDirectory(prefix="holdfast-payout-") as folder:
        ledger = Path(folder) / "ledger"
        settings = Settings(store=f"sqlite:///{folder}/plane.db", port=0)
        async with plane(settings) as url, AsyncClient(url) as client, worker(f"{HERE}/tasks.py:worker", url=url):
            await client.apply_workflow((HERE / "workflow.yaml").read_text())
            for order, amount in (("small", 50), ("large", 5000)):
                given = {"order": order, "amount": amount, "ledger": str(ledger)}
                run = await client.start_run("payout", given, idempotency_key=order)
                ended = await client.wait_run(run.id, timeout=PATIENCE_S)
                print(f"{order:<8} {ended.state}")
        lines = [line.split() for line in ledger.read_text().splitlines()]
    entered = {order: [what for whose, what, _ in lines if whose == order] for order in EXPECTED}
    for order, what in entered.items():
        print(f"{order:<8} {', '.join(what)}")
    return 0 if entered == EXPECTED else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
