"""What the etcd store writes: names, values, and how to read them back. Pure.

Names (0 and 1 are the bytes of these numbers; lock keys contain no control characters):

    <lock key>0<digest>                 one contender for the lock, on a lease of its own; digest of its token
    <prefix>1base                       the number under every fence, see `EtcdStore._learn_base`
    <prefix>1history0<lock key>0<n>     one line of the timeline, on a lease of a few hours

The contender with the lowest create revision holds the lock; the others wait, in this order. So
deleting the holder's key, by whomever, is the grant to the next: there is no second step that
could fail to happen. A put that moves a key to another lease keeps its create revision, hence
its place. Contenders sort by lock key, since no byte of a lock key is below the separator.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.locks.port import FENCES_PER_GRANT_MAX, Ownership
from holdfast.locks.stores.etcd.api import Found, KeyValue


class Contender(NamedTuple):
    name: bytes
    created: int
    lease: int
    holder: str
    ttl_s: int
    granted: bool
    """False from entering the queue until the waiter, by then the first, has repeated its acquire."""
    base: int

    @property
    def fence(self) -> int:
        # Revisions are agreed upon by the cluster, never repeat, and each names one grant at most.
        return self.base + self.created * FENCES_PER_GRANT_MAX

    @property
    def digest(self) -> str:
        return self.name.rpartition(b"\0")[2].decode()

    def value(self) -> bytes:
        return json.dumps(
            {"holder": self.holder, "ttl_s": self.ttl_s, "granted": self.granted, "base": self.base}
        ).encode()


class Place(NamedTuple):
    """A key's contenders: who holds the lock, the caller's own (if asked for), how many wait."""

    first: Contender | None
    mine: Contender | None
    waiters: int


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def seconds(ms: int) -> int:
    """As leases count them: rounded up."""
    return -(-ms // 1000)


def contenders(key: str) -> tuple[bytes, bytes]:
    """The range of the key's contenders. A key that continues this one sorts after all of it."""
    if min(key) < " ":
        raise ValueError(f"lock key {key!r} has control characters; use printable ones")
    return key.encode() + b"\0", key.encode() + b"\1"


def all_contenders(prefix: str) -> tuple[bytes, bytes]:
    """The range of every contender under the prefix, and of nothing else the store writes there."""
    return prefix.encode() + b"\2", end_of(prefix)


def base_name(prefix: str) -> bytes:
    return prefix.encode() + b"\1base"


def nothing_name(prefix: str) -> bytes:
    """A name that is never written."""
    return prefix.encode() + b"\1nothing"


def history(prefix: str, key: str) -> tuple[bytes, bytes]:
    """The range of the key's timeline."""
    start = prefix.encode() + b"\1history\0" + key.encode()
    return start + b"\0", start + b"\1"


def history_lease(prefix: str, hour: int) -> int:
    """One lease for all that is written within an hour, by whomever: all name it alike."""
    return int.from_bytes(hashlib.sha256(f"{prefix}\0{hour}".encode()).digest()[:8], "big") >> 1


def history_line(contender: Contender, event: str, *, at: float, note: str) -> bytes:
    line = {
        "event": event,
        "holder": contender.holder,
        "at": at,
        "note": note,
        "base": contender.base,
        "created": contender.created,
    }
    return json.dumps(line).encode()


def ownership(key: str, kv: KeyValue) -> Ownership:
    line = json.loads(kv.value)
    # A fresh grant is written together with its line, before its revision is known.
    fence = line["base"] + (line["created"] or kv.created) * FENCES_PER_GRANT_MAX
    return Ownership(key=key, fence=fence, holder=line["holder"], event=line["event"], at=line["at"], note=line["note"])


def contender(kv: KeyValue) -> Contender:
    return Contender(kv.name, kv.created, kv.lease, **json.loads(kv.value))


def place(oldest: Found, mine: Sequence[KeyValue] = ()) -> Place:
    """From a read of the oldest contenders, and the caller's own."""
    return Place(
        contender(oldest.kvs[0]) if oldest.kvs else None,
        contender(mine[0]) if mine else None,
        max(0, oldest.total - 1),
    )


def lock_keys(names: Iterable[bytes], *, limit: int) -> tuple[list[str], bytes]:
    """The first lock keys that have contenders among these names, and where to read on."""
    keys: dict[str, None] = {}
    after = b""
    for name in names:
        start, base_or_history, _ = name.partition(b"\1")
        if base_or_history:
            return list(keys), start + b"\2"
        key, is_contender, _ = name.partition(b"\0")
        if len(keys) == limit and key != after:
            break
        after = key
        if is_contender:
            keys[key.decode()] = None
    return list(keys), after + b"\1"


def end_of(prefix: str) -> bytes:
    """The end of the range of names that start so. UTF-8 has no byte 255, so the last one can grow."""
    start = prefix.encode()
    return start[:-1] + bytes([start[-1] + 1]) if start else b"\0"
