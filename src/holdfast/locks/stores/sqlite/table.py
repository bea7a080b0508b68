"""The lock table in SQLite: each verb as plain statements inside a transaction somebody else runs.

No thread, no waiting, no commit here; `writer` decides when, `sqlite` for whom.
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
HISTORY_ROWS_MAX = 1_000_000
"""A key's timeline is found by looking through all of them: this many take a tenth of a second."""

PRUNE_ROWS_MAX = 25_000
KNOWN_KEYS_MAX = 10_000


class Ask(NamedTuple):
    key: str
    token: str
    ttl_ms: int
    queue_ms: int
    fences: int
    holder: str
    mailbox: str


class Held(NamedTuple):
    """A lease as the file has it, whether or not it has expired since."""

    token: str
    fence: int
    holder: str
    expires: int
    granted_at: float


class Waking(NamedTuple):
    """A waiter to be woken after the commit."""

    mailbox: str
    key: str
    token: str


class Known:
    """What the file is known to hold, so that it need not be asked: true as of the last commit of this
    connection, and until another one commits. Whoever rolls back must forget it."""

    __slots__ = ("last_fence", "leases", "version", "waiters")

    def __init__(self, version: int) -> None:
        self.version = version
        self.leases: dict[str, Held | None] = {}
        self.last_fence: int | None = None
        self.waiters: bool | None = None
        """Whether anybody waits for any lock at all: mostly nobody does."""


class Table:
    """The verbs of one transaction. `wakings` are due once it has committed, and `known` is what the
    next one may start from; a transaction that failed leaves nothing to start from."""

    def __init__(self, connection: apsw.Connection, runtime: Runtime, known: Known | None = None) -> None:
        # Rows come back as whatever their columns hold; the schema is what types them.
        self._execute: Callable[..., Any] = connection.execute
        self._execute_many = connection.executemany
        self._now_ms = int(runtime.now() * 1000)
        self._wall_us = runtime.wall_us()
        version: int = connection.execute("PRAGMA data_version").get
        if known is None or known.version != version or len(known.leases) > KNOWN_KEYS_MAX:
            known = Known(version)
        if known.waiters:
            known.waiters = None  # they may all have gone
        self.known = known
        self._leases = known.leases
        self._changed: dict[str, Held | None] = {}
        self._ended: list[tuple[str, int, str, float, float, str | None, str]] = []
        self._fence_moved = False
        self.wakings: list[Waking] = []

    def acquire(self, ask: Ask) -> Grant | Busy:
        key = ask.key
        held = self._find(key)
        if held is None:
            # Free: it goes to the first live waiter, and to the caller only if nobody is ahead.
            held = self._hand_over(key)
            if held is None:
                return Grant(self._grant(ask, ask.ttl_ms).fence)
        if held.token == ask.token:
            self._keep(key, held, ask.ttl_ms)
            return Grant(held.fence)
        if ask.queue_ms:
            self._enqueue(ask)
        return Busy(held.holder, held.expires - self._now_ms)

    def renew(self, renewals: Sequence[Renewal]) -> list[Standing]:
        return [self._renew(renewal) for renewal in renewals]

    def release(self, key: str, token: str) -> bool:
        held = self._find(key)
        if held is None or held.token != token:
            self._execute("DELETE FROM holdfast_waiters WHERE key = ? AND token = ?", (key, token))
            return False
        self._end(key, held, "released")
        return True

    def evict(self, key: str, fence: int, reason: str) -> bool:
        held = self._find(key)
        if held is None or held.fence != fence:
            return False
        self._end(key, held, "evicted", reason)
        return True

    def find_holder(self, key: str) -> Holder | None:
        found = list(self._holders("key = ?", (key,), 1))
        return found[0] if found else None

    def list_holders(self, prefix: str, after: str, limit: int) -> list[Holder]:
        # substr rather than LIKE: a key may contain what LIKE takes for a wildcard.
        return list(self._holders("key > ? AND substr(key, 1, ?) = ?", (after, len(prefix), prefix), limit))

    def list_history(self, key: str, limit: int) -> list[Ownership]:
        self._write()
        leases = self._execute(
            "SELECT fence, holder, granted_at, ended_at, event, note FROM holdfast_history WHERE key = ? "
            "ORDER BY id DESC LIMIT ?",
            (key, limit),
        ).fetchall()
        lines: list[Ownership] = []
        for fence, holder, granted_at, ended_at, event, note in reversed(leases):
            lines.append(Ownership(key=key, fence=fence, holder=holder, event="granted", at=granted_at))
            if event:
                lines.append(Ownership(key=key, fence=fence, holder=holder, event=event, at=ended_at, note=note))
        last = self._look_up(key)
        if last is not None:
            lines.append(Ownership(key=key, fence=last.fence, holder=last.holder, event="granted", at=last.granted_at))
        return lines[max(0, len(lines) - limit) :]

    def forget_other_boots(self, boot_id: str) -> None:
        """After a reboot the clock starts again and every holder is dead: nobody holds anything."""
        if self._meta("boot_id") != boot_id:
            self._clear_leases("true")
            self._execute("DELETE FROM holdfast_waiters")
            self._set_meta("boot_id", boot_id)

    def prune(self) -> None:
        self._write()
        self._clear_leases("expires <= ?", self._now_ms)
        self._execute("DELETE FROM holdfast_waiters WHERE alive_until <= ?", (self._now_ms,))
        # Only the oldest rows are looked at: a search for old ones would look at all that are not.
        self._execute(
            "DELETE FROM holdfast_history WHERE id IN (SELECT id FROM holdfast_history ORDER BY id LIMIT ?) "
            "AND (ended_at < ? OR id <= (SELECT max(id) FROM holdfast_history) - ?)",
            (PRUNE_ROWS_MAX, self._wall_us / 1e6 - HISTORY_S, HISTORY_ROWS_MAX),
        )

    def finish(self) -> None:
        """Write what the transaction's verbs have changed. Must precede the commit."""
        if self._fence_moved:
            self._set_meta("last_fence", self.known.last_fence)
        self._write()

    def _find(self, key: str) -> Held | None:
        """The unexpired lease."""
        held = self._look_up(key)
        return held if held is not None and held.expires > self._now_ms else None

    def _look_up(self, key: str) -> Held | None:
        try:
            return self._leases[key]
        except KeyError:
            row = self._execute(
                "SELECT token, fence, holder, expires, granted_at FROM holdfast_locks WHERE key = ?", (key,)
            ).fetchone()
            held = self._leases[key] = row and Held(*row)
            return held

    def _grant(self, ask: Ask, ttl_ms: int) -> Held:
        key = ask.key
        expired = self._leases.get(key)
        if expired is not None:
            self._record(key, expired)
        granted = Held(ask.token, self._mint(ask.fences), ask.holder, self._now_ms + ttl_ms, self._wall_us / 1e6)
        self._put(key, granted)
        return granted

    def _keep(self, key: str, held: Held, ttl_ms: int) -> None:
        token, fence, holder, _, granted_at = held
        self._put(key, Held(token, fence, holder, self._now_ms + ttl_ms, granted_at))

    def _end(self, key: str, held: Held, event: str, note: str = "") -> None:
        self._record(key, held, event, note)
        self._put(key, None)
        self._hand_over(key)

    def _hand_over(self, key: str) -> Held | None:
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
        if self.known.waiters is None:
            self.known.waiters = self._execute("SELECT EXISTS (SELECT 1 FROM holdfast_waiters)").fetchone() == (1,)
        return self.known.waiters

    def _enqueue(self, ask: Ask) -> None:
        self.known.waiters = True
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
        held = self._find(renewal.key)
        if held is None:
            return Standing.GONE
        if held.token != renewal.token:
            return Standing.TAKEN
        self._keep(renewal.key, held, renewal.ttl_ms)
        return Standing.OWNED

    def _mint(self, fences: int) -> int:
        known = self.known
        if known.last_fence is None:
            known.last_fence = int(self._meta("last_fence") or 0)
        first = next_fence(known.last_fence, self._wall_us)
        known.last_fence = first + fences - 1
        self._fence_moved = True
        return first

    def _put(self, key: str, held: Held | None) -> None:
        self._leases[key] = self._changed[key] = held

    def _record(self, key: str, held: Held, event: str | None = None, note: str = "") -> None:
        """A lease has ended; without an event it had expired, unnoticed until now."""
        wall_s = self._wall_us / 1e6
        self._ended.append((key, held.fence, held.holder, held.granted_at, wall_s, event, note))

    def _clear_leases(self, where: str, *values: object) -> None:
        """Remove leases that nobody released; the history keeps them."""
        self._execute(
            "INSERT INTO holdfast_history (key, fence, holder, granted_at, ended_at) "  # noqa: S608  (`where` is a literal)
            f"SELECT key, fence, holder, granted_at, ? FROM holdfast_locks WHERE {where} ORDER BY fence",
            (self._wall_us / 1e6, *values),
        )
        self._execute(f"DELETE FROM holdfast_locks WHERE {where}", values)  # noqa: S608
        self._leases.clear()

    def _write(self) -> None:
        """Bring the file up to what the verbs have done so far, with a statement per kind of change."""
        if self._changed:
            gone = [(key,) for key, held in self._changed.items() if held is None]
            kept = [(key, *held) for key, held in self._changed.items() if held is not None]
            self._execute_many("DELETE FROM holdfast_locks WHERE key = ?", gone)
            self._execute_many("INSERT OR REPLACE INTO holdfast_locks VALUES (?, ?, ?, ?, ?, ?)", kept)
            self._changed.clear()
        if self._ended:
            self._execute_many(
                "INSERT INTO holdfast_history (key, fence, holder, granted_at, ended_at, event, note) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                self._ended,
            )
            self._ended.clear()

    def _holders(self, where: str, values: tuple[object, ...], limit: int) -> Iterable[Holder]:
        self._write()
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
