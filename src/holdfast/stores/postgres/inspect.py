"""What a Postgres server says of itself, to the very connection that the store would use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.core.inspection import Aspect, Fact, Inspection, Replicas, Sync, Writes
from holdfast.locks.stores import shown
from holdfast.locks.stores.postgres.link import FAILURES, hang_up
from holdfast.stores.postgres.link import answered, connect_first, refuse_encoding, translated

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime

_ASK = """
    SELECT current_setting('server_version') AS version,
           getdatabaseencoding() AS encoding,
           current_setting('fsync') AS fsync,
           current_setting('full_page_writes') AS full_page_writes,
           current_setting('synchronous_commit') AS synchronous_commit,
           current_setting('synchronous_standby_names') AS standbys,
           current_setting('default_transaction_isolation') AS isolation,
           current_setting('wal_level') AS wal_level,
           current_setting('transaction_read_only') AS read_only,
           (SELECT count(*) FROM pg_stat_replication) AS replicas,
           pg_is_in_recovery() AS is_standby,
           extract(epoch FROM clock_timestamp())::float8 AS now
"""
_COMMIT_ON = (
    "ALTER SYSTEM SET synchronous_commit = on; SELECT pg_reload_conf(); and take it out of the URL and the role"
)


async def inspect(url: str, *, runtime: Runtime, timeout_s: float) -> Inspection:  # noqa: ARG001  (the server has a clock)
    """Raises `StoreUnavailable` or `Invalid`."""
    try:
        connection = await connect_first(url, timeout_s=timeout_s)
        try:
            found: Any = await answered(connection, connection.fetchrow(_ASK), timeout_s=timeout_s)
        finally:
            await hang_up(connection, timeout_s=timeout_s)
    except FAILURES as failure:
        raise translated(failure, shown(url), applied=False) from None
    refuse_encoding(found["encoding"], shown(url))
    return Inspection(
        engine="PostgreSQL",
        version=found["version"].split()[0],
        place=shown(url),
        facts=(_sync(found), _replicas(found), _writes(found)),
        settings={name: str(found[name]) for name in ("full_page_writes", "isolation", "wal_level", "is_standby")},
        clock=found["now"],
    )


def _sync(found: Any) -> Fact:
    for setting in ("fsync", "full_page_writes"):
        if found[setting] != "on":
            fix = f"ALTER SYSTEM SET {setting} = on; then restart the server"
            return Fact(aspect=Aspect.SYNC, value=Sync.NEVER, setting=setting, found=found[setting], fix=fix)
    commit = found["synchronous_commit"]
    value = Sync.INTERVAL if commit == "off" else Sync.COMMIT
    return Fact(aspect=Aspect.SYNC, value=value, setting="synchronous_commit", found=commit, fix=_COMMIT_ON)


def _replicas(found: Any) -> Fact:
    is_async = Replicas.ASYNCHRONOUS if found["replicas"] else Replicas.NONE
    return Fact(
        aspect=Aspect.REPLICAS,
        value=Replicas.SYNCHRONOUS if _waits(found) else is_async,
        setting="synchronous_standby_names",
        found=_standbys(found),
        fix="name the standbys in synchronous_standby_names, and set synchronous_commit = on",
    )


def _writes(found: Any) -> Fact:
    if _waits(found) and not found["replicas"]:
        fix = "start a standby that is named there, or ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf()"
        setting, said = "synchronous_standby_names", _standbys(found)
        return Fact(aspect=Aspect.WRITES, value=Writes.REFUSED, setting=setting, found=said, fix=fix)
    return Fact(
        aspect=Aspect.WRITES,
        value=Writes.REFUSED if found["read_only"] == "on" else Writes.TAKEN,
        setting="transaction_read_only",
        found=found["read_only"],
        fix="set default_transaction_read_only = off, in the URL, for the role, the database and the server",
    )


def _waits(found: Any) -> bool:
    """Whether a commit waits for standbys."""
    return bool(found["standbys"]) and found["synchronous_commit"] in ("on", "remote_apply", "remote_write")


def _standbys(found: Any) -> str:
    return f"{found['standbys'] or 'empty'}, {found['replicas']} standbys"
