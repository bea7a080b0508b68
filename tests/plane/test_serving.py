"""What `holdfast.app.serving` promises: a URL that works."""

from __future__ import annotations

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
