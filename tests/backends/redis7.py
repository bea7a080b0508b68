"""Redis 7.0: a private server for the whole test run, where there is one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import servers
from plane.redis_namespaces import fresh_namespace

TTL_MS_MIN = 60


def start() -> servers.Server:
    return servers.redis7_server().start()


def url(server: servers.Server, directory: Path) -> str:
    return server.url


fresh = partial(fresh_namespace, kind="redis7")
