"""etcd's HTTP/JSON gateway, as far as locks need it: reads, transactions, leases, one watch.

The gateway speaks the gRPC messages as JSON: names and values in base64, 64-bit numbers as
strings, zero values left out. It serves etcd 3.4 and later, and spares its users grpc.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from holdfast.locks.errors import StoreRefused, Unavailable
from holdfast.locks.stores import shown
from holdfast.locks.stores.certificate import distrusted
from holdfast.locks.stores.etcd.http import BrokenExchange, Endpoint, Reply

PORT = 2379
#: etcd refuses transactions of more than 128 operations unless told otherwise.
OPERATIONS_MAX = 100
#: The gateway may stop reading a request when it begins to answer; it reads 512 bytes first.
LEASES_PER_REQUEST = 16
#: A watch that is silent for so long is opened anew: its connection may have died without a word.
SILENCE_S_MAX = 60.0

OK = 200

Json = dict[str, Any]
T = TypeVar("T")


class LeaseNotFound(Unavailable):
    """A lease ended before it could be used. The server refused the whole transaction."""


class LeaseExists(Unavailable):
    """Somebody else has granted a lease with this number. Nothing was changed."""


class OutOfSpace(StoreRefused):
    """The server takes nothing in any more: no put, no lease. Some versions (3.5.1) refuse all transactions."""


class KeyValue(NamedTuple):
    name: bytes
    value: bytes
    created: int
    lease: int


class Found(NamedTuple):
    """What one read found; `total` disregards the read's limit."""

    kvs: list[KeyValue]
    total: int


class Outcome(NamedTuple):
    succeeded: bool
    revision: int
    """Of the store after the transaction; what it created has this create revision."""
    found: list[Found]
    replaced: list[KeyValue]
    """What was overwritten or deleted, as it was at that moment."""


async def all_of(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Like `gather`, but a failure does not leave the other calls running."""
    results: list[T] = []
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results


async def _within(seconds: float, waiting: Awaitable[T]) -> T:
    # Not wait_for: on 3.11 it swallows a cancellation that arrives together with the result.
    async with asyncio.timeout(seconds):
        return await waiting


def put(name: bytes, value: bytes, *, lease: int = 0) -> Json:
    return {"request_put": {"key": _text(name), "value": _text(value), "lease": str(lease), "prev_kv": True}}


def delete(name: bytes) -> Json:
    return {"request_delete_range": {"key": _text(name), "prev_kv": True}}


def read(name: bytes, end: bytes = b"", *, limit: int = 0, keys_only: bool = False) -> Json:
    """One name, or the names from `name` up to `end`, in the order of names."""
    return {"request_range": {"key": _text(name), "range_end": _text(end), "limit": str(limit), "keys_only": keys_only}}


def read_by_age(name: bytes, end: bytes, *, limit: int, newest_first: bool = False) -> Json:
    order = "DESCEND" if newest_first else "ASCEND"
    reading = read(name, end, limit=limit)
    reading["request_range"] |= {"sort_target": "CREATE", "sort_order": order}
    return reading


def absent(name: bytes, end: bytes = b"") -> Json:
    """True if the name does not exist, or nothing in the range: a comparison holds for no keys at all."""
    return {"key": _text(name), "range_end": _text(end), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}


def created_at(name: bytes, revision: int) -> Json:
    return {"key": _text(name), "target": "CREATE", "result": "EQUAL", "create_revision": str(revision)}


def holds(name: bytes, value: bytes) -> Json:
    return {"key": _text(name), "target": "VALUE", "result": "EQUAL", "value": _text(value)}


class Gateway:
    """Requests to one of several endpoints: the next one is tried where a connection fails.

    A request that was sent and not answered is never sent again; its outcome is unknown.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        parts = urlsplit(url)
        login, _, hosts = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        self.shown = shown(url)
        self._credentials = (unquote(user), unquote(password)) if user else None
        self._login = ""
        self._timeout_s = timeout_s
        addresses = [urlsplit(f"//{host}") for host in hosts.split(",") if host]
        if not addresses:
            raise ValueError(f"{self.shown} names no server; write etcd://127.0.0.1:{PORT}")
        tls = _tls(parts.scheme, parts.query)
        # Connecting must end early enough to leave time for the next endpoint.
        connect_s = timeout_s / (len(addresses) + 1)
        self._endpoints = [
            Endpoint(address.hostname or "", address.port or PORT, tls=tls, connect_s=connect_s, exchange_s=timeout_s)
            for address in addresses
        ]
        self._open = False

    async def open(self) -> None:
        if self._open:
            return
        self._open = True
        for endpoint in self._endpoints:
            endpoint.open()
        if self._credentials:
            await self._authenticate()

    async def close(self) -> None:
        self._open = False
        async with AsyncExitStack() as last:  # whoever has no time to wait for one of them still leaves none behind
            for endpoint in self._endpoints:
                last.push_async_callback(endpoint.close)

    @asynccontextmanager
    async def closing(self) -> AsyncIterator[None]:
        """Closed after the block, also where that is cut short."""
        try:
            yield
        finally:
            await self.close()

    def distrust(self, endpoint: Endpoint | None = None) -> None:
        """Ask another endpoint first from now on, unless somebody else has seen to it already."""
        if endpoint in (None, self._endpoints[0]):
            self._endpoints.append(self._endpoints.pop(0))

    async def read(self, reading: Json) -> Found:
        return _found(await self._call("/v3/kv/range", reading["request_range"], lost=False))

    async def read_all(self, readings: Sequence[Json], *, never: Json) -> list[Found]:
        """Several reads, of one moment if there is space left. `never` is a deletion that would be permitted; it is not done."""
        # With it, in the branch not taken, the transaction is no read-only one (see `txn`): it goes
        # through etcd's log like a write. That is one synced entry in place of a request per read.
        # A deletion, since puts are refused when the server's space is used up.
        try:
            return (await self._txn([], readings, [never], lost=False)).found
        except OutOfSpace:
            return await all_of(map(self.read, readings))

    async def txn(self, compare: list[Json], then: list[Json], otherwise: Sequence[Json] = ()) -> Outcome:
        # etcd before 3.4.20 and 3.5.5 panics when the client of a read-only transaction goes away
        # in the middle of it: any process that is killed could take the server down with it.
        assert not all("request_range" in operation for operation in [*then, *otherwise])
        return await self._txn(compare, then, otherwise, lost=None)

    async def delete(self, name: bytes) -> Outcome:
        """Without any condition, but also when the server's space is used up."""
        reply = await self._call("/v3/kv/deleterange", delete(name)["request_delete_range"], lost=None)
        gone = [*map(_kv, reply.get("prev_kvs", ()))]
        return Outcome(bool(gone), int(reply["header"]["revision"]), [], gone)

    async def grant_lease(self, ttl_s: int, *, lease: int = 0) -> int:
        """A new lease, numbered by the server. A number of the caller's own may exist already.

        A lease without keys is nobody's lock: if the reply is lost, nothing was changed that matters.
        """
        try:
            reply = await self._call("/v3/lease/grant", {"TTL": str(ttl_s), "ID": str(lease)}, lost=False)
        except LeaseExists:
            return lease
        return int(reply["ID"])

    async def revoke_lease(self, lease: int) -> None:
        """End the lease and its keys. Whatever would be put on it later is refused."""
        with suppress(LeaseNotFound):
            await self._call("/v3/lease/revoke", {"ID": str(lease)}, lost=None)

    async def keep_alive(self, leases: Sequence[int]) -> list[bool]:
        """Start each lease anew, in few requests; False for those that are gone."""
        batches = [leases[n : n + LEASES_PER_REQUEST] for n in range(0, len(leases), LEASES_PER_REQUEST)]
        return [alive for answer in await all_of(map(self._keep_alive, batches)) for alive in answer]

    async def remaining_ms(self, lease: int) -> int:
        """Rounded up, since etcd tells whole seconds, rounded down. 0 if the lease is gone."""
        reply = await self._call("/v3/lease/timetolive", {"ID": str(lease)}, lost=False)
        left, granted = int(reply.get("TTL", 0)), int(reply.get("grantedTTL", 0))
        return max(0, min(left + 1, granted)) * 1000

    async def watch_deletes(
        self, start: bytes, end: bytes, *, created: Callable[[], None], deleted: Callable[[bytes], None]
    ) -> None:
        """Report deletions from `created()` on, until the server or the connection ends the watch."""
        request = {"key": _text(start), "range_end": _text(end), "filters": ["NOPUT"]}
        body = json.dumps({"create_request": request}).encode()
        self._check_open()
        endpoint = self._endpoints[0]
        silence_s_max = self._timeout_s  # a server that is well says at once that the watch exists
        try:
            async with endpoint.stream("/v3/watch", body, login=self._login) as stream:
                while line := await _within(silence_s_max, stream.line()):
                    silence_s_max = SILENCE_S_MAX
                    reply = json.loads(line)
                    result = reply.get("result", {})
                    if "error" in reply or result.get("canceled"):
                        return
                    if result.get("created"):
                        created()
                    for event in result.get("events", ()):
                        deleted(b64decode(event["kv"]["key"]))
        except (OSError, BrokenExchange) as why:
            self.distrust(endpoint)
            raise Unavailable(self.shown, str(why), applied=False) from why

    async def _txn(
        self, compare: list[Json], then: Sequence[Json], otherwise: Sequence[Json], *, lost: bool | None
    ) -> Outcome:
        body = {"compare": compare, "success": list(then), "failure": list(otherwise)}
        reply = await self._call("/v3/kv/txn", body, lost=lost)
        found, replaced = [], []
        for response in reply.get("responses", ()):
            ((kind, part),) = response.items()
            if kind == "response_range":
                found.append(_found(part))
            elif "prev_kv" in part:
                replaced.append(_kv(part["prev_kv"]))
            else:
                replaced += map(_kv, part.get("prev_kvs", ()))
        return Outcome(reply.get("succeeded", False), int(reply["header"]["revision"]), found, replaced)

    async def _call(self, path: str, body: Json, *, lost: bool | None) -> Json:
        raw = json.dumps(body).encode()
        reply = await self._post(path, raw, lost=lost)
        if reply.status != OK and self._credentials and any(stale in reply.body for stale in _STALE_LOGIN):
            # Refused before anything was done, so this one repetition is safe.
            await self._authenticate()
            reply = await self._post(path, raw, lost=lost)
        return self._answer(reply, lost=lost)

    def _answer(self, reply: Reply, *, lost: bool | None) -> Json:
        try:
            answer: Json = json.loads(reply.body)
        except ValueError:  # no etcd, or a proxy in front of it
            answer = {}
        if reply.status == OK and answer:
            return answer
        raise self._refusal({"message": f"HTTP status {reply.status}", "code": reply.status} | answer, lost=lost)

    async def _post(self, path: str, body: bytes, *, lost: bool | None, anonymous: bool = False) -> Reply:
        """`lost` is what `Unavailable.applied` says if the request was sent and not answered."""
        self._check_open()
        login = "" if anonymous else self._login
        for endpoint in list(self._endpoints):
            try:
                return await endpoint.post(path, body, login=login)
            except OSError as why:
                self.distrust(endpoint)
                failed = why
            except BrokenExchange as why:
                self.distrust(endpoint)
                raise Unavailable(self.shown, str(why), applied=lost) from why
        if isinstance(failed, ssl.SSLCertVerificationError):
            distrust, step = distrusted(failed, authority="ca")
            raise StoreRefused(self.shown, distrust, next_step=step) from failed
        raise Unavailable(self.shown, f"{type(failed).__name__}: {failed}", applied=False) from failed

    def _check_open(self) -> None:
        if not self._open:
            raise Unavailable.not_open(self.shown)

    async def _authenticate(self) -> None:
        assert self._credentials is not None
        name, password = self._credentials
        body = json.dumps({"name": name, "password": password}).encode()
        reply = await self._post("/v3/auth/authenticate", body, lost=False, anonymous=True)
        self._login = self._answer(reply, lost=False)["token"]

    async def _keep_alive(self, leases: Sequence[int]) -> list[bool]:
        body = "\n".join(f'{{"ID":"{lease}"}}' for lease in leases)
        reply = await self._post("/v3/lease/keepalive", body.encode(), lost=None)
        answers = [json.loads(line) for line in reply.body.splitlines()] if reply.status == OK else []
        for answer in answers:
            if "error" in answer:
                raise self._refusal(answer["error"], lost=None)
        if len(answers) != len(leases):
            raise Unavailable(self.shown, f"{len(answers)} of {len(leases)} leases were answered for", applied=None)
        return [int(answer["result"].get("TTL", 0)) > 0 for answer in answers]

    def _refusal(self, error: Json, *, lost: bool | None) -> StoreRefused | Unavailable:
        message = str(error["message"])
        code = int(error["code"] if "code" in error else error["grpc_code"])  # the latter inside of a stream
        if "lease not found" in message:
            return LeaseNotFound(self.shown, message, applied=False)
        if "lease already exists" in message:
            return LeaseExists(self.shown, message, applied=False)
        if "database space exceeded" in message:
            step = "Compact and defragment etcd, then disarm its alarm; set --auto-compaction-retention=1h"
            return OutOfSpace(self.shown, message, next_step=step, full=True)
        if code in _NEXT_STEPS:
            return StoreRefused(self.shown, message, next_step=_NEXT_STEPS[code])
        return Unavailable(self.shown, message, applied=False if code == _BUSY else lost)


#: A token that expired, and one that is older than the last change of users or roles.
_STALE_LOGIN = (b"invalid auth token", b"revision of auth store is old")
# gRPC status codes, as the gateway reports them, and an HTTP status where it is no gateway.
_BUSY = 8
_NEXT_STEPS = {
    3: "Check the user and the password in the URL",
    7: "Grant the user read and write on the locks' prefix",
    9: "See etcd's log for what is missing",
    12: "Use etcd 3.4 or later",
    16: "Check the user and the password in the URL",
    404: "Is this etcd 3.4 or later, with its gRPC gateway enabled?",
}


def _tls(scheme: str, query: str) -> ssl.SSLContext | None:
    """`?ca=…&cert=…&key=…` name files; without them the system's authorities decide. None: it is spoken in the clear."""
    files = {name: values[-1] for name, values in parse_qs(query).items()}
    unknown = sorted(files.keys() - {"ca", "cert", "key"}) if scheme == "etcds" else sorted(files)
    if unknown:
        # Also a file for TLS where there will be none: who names one wants it.
        raise ValueError(f"{scheme} URL: no such option: {', '.join(unknown)}; ca, cert and key go with etcds://")
    if scheme != "etcds":
        return None
    try:
        context = ssl.create_default_context(cafile=files.get("ca"))
        if "cert" in files:
            context.load_cert_chain(files["cert"], files.get("key"))
    except OSError as why:
        raise ValueError(f"ca, cert and key must be readable PEM files: {why.strerror or why}") from None
    return context


def _found(raw: Json) -> Found:
    return Found([_kv(kv) for kv in raw.get("kvs", ())], int(raw.get("count", 0)))


def _kv(raw: Json) -> KeyValue:
    return KeyValue(
        b64decode(raw["key"]), b64decode(raw.get("value", "")), int(raw["create_revision"]), int(raw.get("lease", 0))
    )


def _text(raw: bytes) -> str:
    return b64encode(raw).decode()
