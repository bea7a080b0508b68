"""Whether a server is still the one that was written last: a standby that was promoted, or a server that was recovered to a moment in the
past, goes on under a timeline of its own, and may lack the last of what listeners were told."""

from __future__ import annotations

import asyncpg

FORGOTTEN_MAX = 1_000_000
"""More events than a server can have forgotten. By so many numbers the next one is higher."""

_LOOK = """
    SELECT substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) AS now,
           (SELECT value FROM holdfast_settings WHERE name = 'timeline') AS before
"""
_KEEP = """
    INSERT INTO holdfast_settings (name, value) VALUES ('timeline', $1)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""
_UNTOLD = (asyncpg.FeatureNotSupportedError, asyncpg.UndefinedFunctionError, asyncpg.InsufficientPrivilegeError)
"""By servers that are like Postgres, and need not have one."""


class Timeline:
    """Of the server behind one connection."""

    def __init__(self, now: str, before: str) -> None:
        self._now = now
        self._before = before

    @property
    def forgotten_max(self) -> int:
        """How many events may have been told of that are not there. Those of a timeline in between, which went on so far
        above as well, may be among them."""
        if self._before in ("", self._now):
            return 0
        return FORGOTTEN_MAX * max(1, int(self._now, 16) - int(self._before, 16))

    async def keep(self, connection: asyncpg.Connection) -> None:
        """With the first events that are written under it: until then, their numbers are not higher than before."""
        if self._now != self._before:
            await connection.execute(_KEEP, self._now)

    def kept(self) -> None:
        self._before = self._now


async def look(connection: asyncpg.Connection) -> Timeline:
    try:
        found = await connection.fetchrow(_LOOK)
    except _UNTOLD:
        return Timeline("", "")
    return Timeline(found["now"], found["before"] or "")
