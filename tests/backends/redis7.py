"""Redis 7.0 as a lock store: a private server for the whole test run, where there is one."""

from __future__ import annotations

from pathlib import Path

import servers

TTL_MS_MIN = 60


def start() -> servers.Server:
    return servers.redis7_server().start()


def url(server: servers.Server, directory: Path) -> str:
    return server.url
