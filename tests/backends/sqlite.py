"""SQLite as a lock store: a file per test, no server."""

from __future__ import annotations

from pathlib import Path

TTL_MS_MIN = 60


def start() -> None:
    return None


def url(server: None, directory: Path) -> str:
    return f"sqlite:///{directory / 'locks.db'}"
