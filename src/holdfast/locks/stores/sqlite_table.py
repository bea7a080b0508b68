"""The lock table in SQLite: each verb as plain statements inside a transaction somebody else runs.

No thread, no waiting, no commit here; `sqlite_writer` decides when, `sqlite` for whom.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.locks.fence import next_fence
from holdfast.locks.port import Busy, Grant, Holder, Ownership, Renewal, Standing

if TYPE_CHECKING:
    import apsw

    from holdfast.locks.runtime import Runtime

HISTORY_S = 24 * 3600
PRUNE_ROWS_MAX = 500


class Ask(NamedTuple):
    key: str
    token: str
    ttl_ms: int
    queue_ms: int
    fences: int
    holder: str
    mailbox: str


class Waking(NamedTuple):
    """A waiter to be woken after the commit."""

    mailbox: str
    key: str
    token: str


class Table:
    """The verbs of one transaction. `wakings` are due once it has committed."""

    def __init__(self, connection: apsw.Connection, runtime: Runtime) -> None:
        # Rows come back as whatever their columns hold; the schema is what types them.
        self._execute: Callable[..., Any] = connection.execute
        self._execute_many = connection.executemany
        self._now_ms = int(runtime.now() * 1000)
        self._wall_us = runtime.wall_us()
        self._last_fence: int | None = None
        self._fence_moved = False
        self._waiters: bool | None = None
        self._lines: list[tuple[str, int, str, str, float, str]] = []
        self.wakings: list[Waking] = []

    def acquire(self, ask: Ask) -> Grant | Busy:
        row = self._find(ask.key)
        if row is None:
            # Free: it goes to the first live waiter, and to the caller only if nobody is ahead.
            row = self._hand_over(ask.key)
            if row is None:
                return Grant(self._grant(ask, ask.ttl_ms)[1])
        token, fence, holder, expires = row
        if token == ask.token:
            self._execute("UPDATE holdfast_locks SET expires = ? WHERE key = ?", (self._now_ms + ask.ttl_ms, ask.key))
            return Grant(fence)
        if ask.queue_ms:
            self._enqueue(ask)
        return Busy(holder, expires - self._now_ms)

    def renew(self, renewals: Sequence[Renewal]) -> list[Standing]:
        return [self._renew(renewal) for renewal in renewals]

    def release(self, key: str, token: str) -> bool:
        row = self._find(key)
        if row is None or row[0] != token:
            self._execute("DELETE FROM holdfast_waiters WHERE key = ? AND token = ?", (key, token))
            return False
        self._end(key, fence=row[1], holder=row[2], event="released")
        return True

    def evict(self, key: str, fence: int, reason: str) -> bool:
        row = self._find(key)
        if row is None or row[1] != fence:
            return False
        self._end(key, fence=fence, holder=row[2], event="evicted", note=reason)
        return True

    def find_holder(self, key: str) -> Holder | None:
        held = list(self._holders("key = ?", (key,), 1))
        return held[0] if held else None

    def list_holders(self, prefix: str, after: str, limit: int) -> list[Holder]:
        # substr rather than LIKE: a key may contain what LIKE takes for a wildcard.
        return list(self._holders("key > ? AND substr(key, 1, ?) = ?", (after, len(prefix), prefix), limit))

    def list_history(self, key: str, limit: int) -> list[Ownership]:
        self._write_lines()
        rows = self._execute(
            "SELECT fence, holder, event, at, note FROM holdfast_history WHERE key = ? ORDER BY id DESC LIMIT ?",
            (key, limit),
        )
        lines = [
            Ownership(key=key, fence=fence, holder=holder, event=event, at=at, note=note)
            for fence, holder, event, at, note in rows
        ]
        return lines[::-1]

    def forget_other_boots(self, boot_id: str) -> None:
        """After a reboot the clock starts again and every holder is dead: nobody holds anything."""
        if self._meta("boot_id") != boot_id:
            self._execute("DELETE FROM holdfast_locks")
            self._execute("DELETE FROM holdfast_waiters")
            self._set_meta("boot_id", boot_id)

    def prune(self) -> None:
        self._execute(
            "DELETE FROM holdfast_history WHERE id IN (SELECT id FROM holdfast_history WHERE at < ? ORDER BY id LIMIT ?)",
            (self._wall_us / 1e6 - HISTORY_S, PRUNE_ROWS_MAX),
        )
        self._execute("DELETE FROM holdfast_waiters WHERE alive_until <= ?", (self._now_ms,))
        self._execute("DELETE FROM holdfast_locks WHERE expires <= ?", (self._now_ms,))

    def finish(self) -> None:
        """Write what the transaction's grants have in common. Must precede the commit."""
        if self._fence_moved:
            self._set_meta("last_fence", self._last_fence)
        self._write_lines()

    def _find(self, key: str) -> tuple[str, int, str, int] | None:
        """The unexpired holder's row: token, fence, holder, expires."""
        row: tuple[str, int, str, int] | None = self._execute(
            "SELECT token, fence, holder, expires FROM holdfast_locks WHERE key = ? AND expires > ?",
            (key, self._now_ms),
        ).fetchone()
        return row

    def _grant(self, ask: Ask, ttl_ms: int) -> tuple[str, int, str, int]:
        fence = self._mint(ask.fences)
        expires = self._now_ms + ttl_ms
        self._execute(
            "INSERT OR REPLACE INTO holdfast_locks VALUES (?, ?, ?, ?, ?)",
            (ask.key, ask.token, fence, ask.holder, expires),
        )
        self._record(ask.key, fence, ask.holder, "granted")
        return ask.token, fence, ask.holder, expires

    def _hand_over(self, key: str) -> tuple[str, int, str, int] | None:
        """Grant a free lock to its first live waiter."""
        if not self._anybody_waits():
            return None
        waiting = self._execute(
            "SELECT place, token, ttl_ms, queue_ms, fences, alive_until, holder, mailbox "
            "FROM holdfast_waiters WHERE key = ? ORDER BY place",
            (key,),
        ).fetchall()
        for place, token, ttl_ms, queue_ms, fences, alive_until, holder, mailbox in waiting:
            self._execute("DELETE FROM holdfast_waiters WHERE place = ?", (place,))
            if alive_until > self._now_ms:
                self.wakings.append(Waking(mailbox, key, token))
                # Only for as long as it promised to come back: a waiter that died costs that, not a ttl.
                return self._grant(Ask(key, token, ttl_ms, queue_ms, fences, holder, mailbox), min(ttl_ms, queue_ms))
        return None

    def _anybody_waits(self) -> bool:
        """For any lock at all, asked once per transaction: mostly nobody does."""
        if self._waiters is None:
            self._waiters = self._execute("SELECT EXISTS (SELECT 1 FROM holdfast_waiters)").fetchone() == (1,)
        return self._waiters

    def _enqueue(self, ask: Ask) -> None:
        self._waiters = True
        self._execute(
            "INSERT INTO holdfast_waiters (key, token, ttl_ms, queue_ms, fences, alive_until, holder, mailbox) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key, token) DO UPDATE SET alive_until = excluded.alive_until",
            (
                ask.key,
                ask.token,
                ask.ttl_ms,
                ask.queue_ms,
                ask.fences,
                self._now_ms + ask.queue_ms,
                ask.holder,
                ask.mailbox,
            ),
        )

    def _renew(self, renewal: Renewal) -> Standing:
        row = self._find(renewal.key)
        if row is None:
            return Standing.GONE
        if row[0] != renewal.token:
            return Standing.TAKEN
        self._execute(
            "UPDATE holdfast_locks SET expires = ? WHERE key = ?", (self._now_ms + renewal.ttl_ms, renewal.key)
        )
        return Standing.OWNED

    def _end(self, key: str, *, fence: int, holder: str, event: str, note: str = "") -> None:
        self._execute("DELETE FROM holdfast_locks WHERE key = ?", (key,))
        self._record(key, fence, holder, event, note)
        self._hand_over(key)

    def _mint(self, fences: int) -> int:
        if self._last_fence is None:
            self._last_fence = int(self._meta("last_fence") or 0)
        first = next_fence(self._last_fence, self._wall_us)
        self._last_fence = first + fences - 1
        self._fence_moved = True
        return first

    def _record(self, key: str, fence: int, holder: str, event: str, note: str = "") -> None:
        self._lines.append((key, fence, holder, event, self._wall_us / 1e6, note))

    def _write_lines(self) -> None:
        if self._lines:
            self._execute_many(
                "INSERT INTO holdfast_history (key, fence, holder, event, at, note) VALUES (?, ?, ?, ?, ?, ?)",
                self._lines,
            )
            self._lines.clear()

    def _holders(self, where: str, values: tuple[object, ...], limit: int) -> Iterable[Holder]:
        rows = self._execute(
            "SELECT key, token, fence, holder, expires, "  # noqa: S608  (`where` is one of the two literals above)
            "(SELECT count(*) FROM holdfast_waiters w WHERE w.key = l.key AND w.alive_until > ?) "
            f"FROM holdfast_locks l WHERE expires > ? AND {where} ORDER BY key LIMIT ?",
            (self._now_ms, self._now_ms, *values, limit),
        )
        for key, token, fence, holder, expires, waiters in rows:
            yield Holder(
                key=key,
                fence=fence,
                holder=holder,
                token_digest=hashlib.sha256(token.encode()).hexdigest()[:12],
                remaining_ms=expires - self._now_ms,
                waiters=waiters,
            )

    def _meta(self, name: str) -> Any:
        row = self._execute("SELECT value FROM holdfast_meta WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def _set_meta(self, name: str, value: object) -> None:
        self._execute("INSERT OR REPLACE INTO holdfast_meta VALUES (?, ?)", (name, value))
