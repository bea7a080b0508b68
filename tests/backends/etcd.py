"""etcd as a lock store: a private server for the whole test run."""

from __future__ import annotations

from pathlib import Path

import servers

#: etcd counts leases in whole seconds.
TTL_MS_MIN = 1000


def start() -> servers.Server:
    return servers.etcd_server().start()


def url(server: servers.Server, directory: Path) -> str:
    return server.url
