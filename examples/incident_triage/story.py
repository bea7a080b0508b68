"""An incident, from the alert to the restart that a person has agreed to. Ends by itself; exit code 0 if all went well."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast.api.approvals import ApprovalView
from holdfast.app import serving as plane
from holdfast.client import AsyncClient
from holdfast.config import Settings
from holdfast.worker import serving as worker

HERE = Path(__file__).parent
PATIENCE_S = 30.0


async def main() -> int:
    with TemporaryDirectory(prefix="holdfast-triage-") as folder:
        settings = Settings(store=f"sqlite:///{folder}/plane.db", port=0)
        async with plane(settings) as url, AsyncClient(url) as client, worker(f"{HERE}/tasks.py:worker", url=url):
            await client.apply_workflow((HERE / "workflow.yaml").read_text())
            run = await client.start_run("incident-triage", {"service": "checkout", "severity": "high"})
            asked = await wait_asked(client, run.id)
            print(f"asked       {asked.message}")
            await client.approve(asked.id, by="ops", comment="seen it before")
            ended = await client.wait_run(run.id, timeout=PATIENCE_S)
            timeline = (await client.run_timeline(run.id, limit=1000)).items
    for event in timeline:
        if event.kind.split(".")[0] in {"run", "step", "approval"}:
            print(f"{event.kind:<20} {event.detail.get('step', '')}")
    print(f"outcome     {ended.output}")
    return 0 if ended.state == "succeeded" and ended.output["restarted"] else 1


async def wait_asked(client: AsyncClient, run: str) -> ApprovalView:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            waiting = (await client.approvals(state="pending")).items
            for approval in waiting:
                if approval.run == run:
                    return approval
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
