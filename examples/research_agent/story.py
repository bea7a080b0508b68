"""A question to twenty sources at once, one of which never answers. Ends by itself; exit code 0 if all went well."""

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
SOURCES = [f"source-{n}" for n in range(19)] + ["the-silent-one"]


async def main() -> int:
    with TemporaryDirectory(prefix="holdfast-research-") as folder:
        settings = Settings(store=f"sqlite:///{folder}/plane.db", port=0)
        async with plane(settings) as url, AsyncClient(url) as client, worker(f"{HERE}/tasks.py:worker", url=url):
            await client.apply_workflow((HERE / "workflow.yaml").read_text())
            given = {"question": "why do locks need fences?", "sources": SOURCES}
            # The key makes it safe to say it again: a caller that dies here starts no second round.
            run = await client.start_run("research", given, idempotency_key="fences")
            ended = await client.wait_run(run.id, timeout=PATIENCE_S)
            steps = (await client.run_steps(run.id, limit=1000)).items
    for state in ("succeeded", "failed"):
        print(f"{state:<12} {sum(step.state == state for step in steps)} steps")
    print(f"outcome      {ended.output}")
    return 0 if ended.state == "succeeded" and ended.output["sources"] == len(SOURCES) - 1 else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
