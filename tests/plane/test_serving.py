"""What `holdfast.app.serving` promises: a URL that works."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import httpx2
import pytest

from holdfast.app import serving
from holdfast.config import LOOPBACK, Settings


def listens(host: str) -> bool:
    try:
        socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", LOOPBACK)
async def test_plane_answers_at_the_url_it_gives(tmp_path: Path, host: str) -> None:
    if not listens(host):
        pytest.skip(f"this machine has no {host}")

    async with serving(Settings(store=f"sqlite:///{tmp_path}/plane.db", host=host, port=0)) as url:
        async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=20) as http:
            ready = await http.get("/readyz")
            page = await http.get("/v1/jobs")

    assert (ready.status_code, page.status_code) == (200, 200)


async def test_readiness_falls_while_everything_is_still_served(tmp_path: Path) -> None:
    """So that whoever sends traffic here can find out before anybody is turned away."""
    leave = asyncio.Event()
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def plane() -> None:
        async with serving(Settings(store=f"sqlite:///{tmp_path}/plane.db", port=0, notice_s=60)) as url:
            address.set_result(url)
            await leave.wait()

    running = asyncio.create_task(plane())
    async with httpx2.AsyncClient(base_url=await address, trust_env=False, timeout=20) as http:
        before = (await http.get("/readyz")).status_code
        leave.set()
        async with asyncio.timeout(20):
            while (await http.get("/readyz")).status_code != 503:
                await asyncio.sleep(0.01)
        served = [
            (await http.post("/v1/jobs", json={"topic": "t"})).status_code,
            (await http.get("/livez")).status_code,
        ]

        running.cancel()
        await asyncio.wait([running])
        with pytest.raises(httpx2.ConnectError):
            await http.get("/livez")

    assert (before, served) == (200, [202, 200])
