"""`examples/plain_worker`: what a worker in another language has to do, and what happens to it when it is late."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from worker_plane import LEASE_S, connected, plane

EXAMPLE = Path(__file__).parents[2] / "examples/plain_worker/worker.py"


async def plain_worker(*arguments: str) -> asyncio.subprocess.Process:
    command = [sys.executable, "-W", "error", str(EXAMPLE), *arguments]
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)


async def test_plain_worker_completes_a_job_longer_than_its_lease(tmp_path: Path) -> None:
    async with plane(tmp_path) as url, connected(url) as client:
        worker = await plain_worker(url)
        job = await client.run("shout", {"text": "hold fast", "seconds": 1.5 * LEASE_S})
        await worker.communicate()

    assert (job["state"], job["result"], job["attempts"]) == ("SUCCEEDED", "HOLD FAST", 1)
    assert len(EXAMPLE.read_text().splitlines()) <= 40


async def test_late_result_of_a_lost_lease_is_refused(tmp_path: Path) -> None:
    async with plane(tmp_path) as url, connected(url) as client:
        late = await plain_worker(url, "late")
        job_id = await client.submit("shout", {"text": "hold fast", "seconds": 2 * LEASE_S}, max_attempts=2)
        said, _ = await late.communicate()
        job = await client.get(job_id)

    assert said.decode().strip() == "409 stale-fence"
    assert job["state"] not in {"SUCCEEDED", "RUNNING"}
    assert job["result"] is None
