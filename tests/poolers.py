"""A Postgres server with a PgBouncer in front of it, in each of the modes that it has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import servers


class Pooled(NamedTuple):
    server: str
    by_session: str
    by_transaction: str


def pooled() -> Iterator[Pooled]:
    """Their URLs. For a fixture."""
    with ExitStack() as stack:
        try:
            postgres = servers.postgres_server().start()
        except (FileNotFoundError, RuntimeError) as why:
            servers.unavailable("postgres", str(why))
        stack.callback(postgres.remove)

        def pool(mode: str) -> str:
            pooler = servers.pgbouncer_server(postgres, mode).start()
            stack.callback(pooler.remove)
            return pooler.url

        yield Pooled(postgres.url, pool("session"), pool("transaction"))
