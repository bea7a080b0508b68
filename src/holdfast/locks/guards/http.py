"""Fences over HTTP: headers for the caller, an ASGI middleware for the callee.

response = await client.put(url, json=…, headers=fence_headers(lease, "accounts/42"))
app = FenceMiddleware(app, SqliteMarks("marks.db"), required=True)
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from holdfast.locks.errors import StaleFence, Unavailable
from holdfast.locks.fence import Mark
from holdfast.locks.guards.fenced import Fenced, require_fence
from holdfast.locks.guards.marks import Marks

RESOURCE_BYTES_MAX = 512
WRITING_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})

#: Where the middleware leaves a `Passed` in the ASGI scope.
SCOPE_KEY = "holdfast.fence"

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_NAMES = ("Holdfast-Resource", "Holdfast-Fence", "Holdfast-Seq")
_RAW_NAMES = tuple(name.lower().encode() for name in _NAMES)
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


def fence_headers(lease: Fenced, resource: str) -> dict[str, str]:
    """The headers of one operation on the resource. Raises `LeaseLost` if it must not begin any more,
    and `ValueError` for a lease without a fence (a local fallback: there is nothing to check).

    Send the same headers again when repeating a request that was not answered, not new ones: a
    number of its own is what makes the repetition known as such.
    """
    require_fence(lease, resource)
    lease.check()
    values = (quote(resource, safe="/:"), str(lease.fence), str(lease.next_seq()))
    return dict(zip(_NAMES, values, strict=True))


class Passed(NamedTuple):
    """What the application finds in `scope["holdfast.fence"]` of a request that was let through."""

    resource: str
    mark: Mark
    repeated: bool


class FenceMiddleware:
    """Lets a request with fence headers through only if no higher (fence, seq) came before it.

    The mark is raised and synced to disk before the application sees the request, by whatever
    method: a fenced GET claims the resource as a fenced PUT does. Refusals are problem documents:
    409 `stale-fence`, 400 for malformed headers, 503 if the mark cannot be kept and, with
    `required`, 428 for a request of one of `methods` that has no such headers. `once_per_fence` lets each fence through once. The last accepted
    request may be repeated: its reply was lost, or the application failed. The application is
    told (`Passed.repeated`) and must bear it.

    What this cannot promise, because the mark is kept apart from the application's own data:
    the mark rises before the application's write commits. A request that was let through and
    then stalls inside the application is not stopped by a later, higher one, and may commit
    after it. Where that matters, use the SQL guard inside the application's own transaction.
    Requests to several hosts are only ordered if all share one `marks`. Nothing here tells who
    the caller is: whoever may send a request can raise the mark to any height, so put this
    behind the authentication.
    """

    def __init__(
        self,
        app: App,
        marks: Marks,
        *,
        required: bool = False,
        methods: Collection[str] = WRITING_METHODS,
        once_per_fence: bool = False,
    ) -> None:
        self._app = app
        self._marks = marks
        # As ASGI names them: one that is never met would be required of nobody.
        self._required_of = frozenset(map(str.upper, methods)) if required else frozenset()
        self._once_per_fence = once_per_fence

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            fenced = _parse(scope["headers"])
        except ValueError as why:
            await _refuse(send, 400, "malformed-fence", "Malformed fence headers", str(why))
            return
        if fenced is not None:
            await self._pass(fenced, scope, receive, send)
        elif scope["method"] in self._required_of:
            detail = f"This resource accepts {scope['method']} only with the headers {', '.join(_NAMES)}"
            await _refuse(send, 428, "fence-required", "Fence required", detail)
        else:
            await self._app(scope, receive, send)

    async def _pass(self, fenced: tuple[str, Mark], scope: Scope, receive: Receive, send: Send) -> None:
        resource, mark = fenced
        try:
            # In a thread, because the mark is synced to disk.
            current, ruling = await asyncio.to_thread(
                self._marks.offer, resource, mark, once_per_fence=self._once_per_fence
            )
        except Unavailable as why:
            await _refuse(send, why.status, why.code, "Marks unavailable", "The request was not processed; repeat it")
            return
        if not ruling.accepted:
            stale = StaleFence(resource, current=current, offered=mark)
            await _refuse(send, stale.status, stale.code, "Stale fence", str(stale), current=current, offered=mark)
            return
        await self._app({**scope, SCOPE_KEY: Passed(resource, mark, ruling.repeated)}, receive, send)


def _parse(headers: Collection[tuple[bytes, bytes]]) -> tuple[str, Mark] | None:
    """The resource and the mark a request carries, or None. Raises `ValueError` for half of it."""
    found = [(name.lower(), value.decode("latin-1")) for name, value in headers if name.lower() in _RAW_NAMES]
    if not found:
        return None
    values = dict(found)
    if len(found) != len(_NAMES) or len(values) != len(_NAMES):
        raise ValueError(f"send each of {', '.join(_NAMES)} exactly once")
    quoted, fence, seq = (values[name] for name in _RAW_NAMES)
    if not quoted.isascii():
        # Taken as it is, it would be another resource than the one that is percent-encoded, with a mark of its own.
        raise ValueError("Holdfast-Resource must be percent-encoded UTF-8")
    resource = unquote(quoted, errors="strict")
    if not 0 < len(resource.encode()) <= RESOURCE_BYTES_MAX or "\0" in resource:
        raise ValueError(f"Holdfast-Resource must have between 1 and {RESOURCE_BYTES_MAX} bytes, none of them NUL")
    if not (_NUMBER.fullmatch(fence) and _NUMBER.fullmatch(seq)) or int(fence) == 0:
        raise ValueError("Holdfast-Fence and Holdfast-Seq must be decimal numbers, the fence above 0")
    return resource, Mark(int(fence), int(seq))


async def _refuse(send: Send, status: int, code: str, title: str, detail: str, **marks: Mark) -> None:
    """Answer with a problem document (RFC 9457)."""
    problem = {"type": f"urn:holdfast:problem:{code}", "title": title, "status": status, "detail": detail, "code": code}
    body = json.dumps({**problem, **{name: mark._asdict() for name, mark in marks.items()}}).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
