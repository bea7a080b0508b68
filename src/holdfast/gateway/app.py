"""The gateway as an ASGI application, and how each request goes through it."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import cached_property
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as RouterLine
from starlette.types import Receive, Scope, Send

from holdfast.errors import HoldfastError, Invalid, NotAllowed, NotFound
from holdfast.gateway import limits, openapi, problems
from holdfast.gateway.calls import Answer, Call, Route
from holdfast.gateway.desk import Desk
from holdfast.gateway.keys import Keys
from holdfast.gateway.plane import Plane
from holdfast.gateway.routes import ROUTES
from holdfast.gateway.wire import WHOLE
from holdfast.locks.errors import LockError

logger = logging.getLogger("holdfast")
encode = msgspec.json.Encoder().encode


def build(plane: Plane, *, keys: Keys | None = None, routes: Sequence[Route] | None = None) -> Gateway:
    """The application: all routes, or those given. Call it inside the loop that serves it, with the store open.

    Without an API key everybody who reaches the socket may do everything: listen on loopback only.
    """
    return Gateway(plane, keys=keys or Keys(), routes=ROUTES if routes is None else routes)


class Gateway:
    """Paths without parameters, which a plane serves all day, are found by one look into a dict; the router has the others."""

    def __init__(self, plane: Plane, *, keys: Keys, routes: Sequence[Route]) -> None:
        self._desk = Desk(plane)
        self._routes = routes
        self._keys = keys
        served = [Served(route, self._desk, keys) for route in (*routes, self._description())]
        self._served = served
        self._plain = {(one.route.method, one.route.path): one for one in served if "{" not in one.route.path}

    @cached_property
    def _router(self) -> Starlette:
        """Made when first asked: a gateway that serves workers alone never is."""
        by_path: dict[str, dict[str, Served]] = {}
        for one in self._served:
            by_path.setdefault(one.route.path, {})[one.route.method] = one
        router = Starlette(
            routes=[
                RouterLine(_with_wide(methods), Methods(methods), methods=list(methods)) for methods in by_path.values()
            ],
            exception_handlers={HTTPException: _routing_problem},  # type: ignore[dict-item]  # it gets what it names
        )
        router.router.redirect_slashes = False
        return router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        plain = self._plain.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        await (plain or self._router)(scope, receive, send)

    def leave(self) -> None:
        """`/readyz` answers 503 from now on; everything else is served as before."""
        self._desk.leaving = True

    def drain(self) -> None:
        """`/readyz` answers 503 from now on, long polls are answered and event streams end."""
        self._desk.drain()

    def _description(self) -> Route:
        text = b""

        async def describe(_: Desk, __: Call) -> Answer:
            nonlocal text
            text = text or encode(openapi.document(self._routes, keys=self._keys))
            return Answer(text)

        return Route(method="GET", path="/openapi.json", run=describe, summary="This document.")


class Methods:
    """One path's methods. An ASGI application, so that the router leaves the request unread."""

    def __init__(self, methods: Mapping[str, Served]) -> None:
        self._methods = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        await self._methods[method](scope, receive, send)


class Served:
    """One line of the table, ready to serve: admit, decode, run, encode."""

    def __init__(self, route: Route, desk: Desk, keys: Keys) -> None:
        self.route = route
        self._desk = desk
        self._keys = keys
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(route.request or Any)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self.route.run(self._desk, await self._admit(scope, receive))
        except (HoldfastError, LockError) as error:
            answer = problems.answer(error, instance=scope["path"])
        except Exception:
            # The last line of defence: what nobody foresaw is told to the caller without its details.
            logger.exception("request.failed", extra={"event": "request.failed", "path": scope["path"]})
            answer = problems.answer(HoldfastError("the log of the plane says what happened"), instance=scope["path"])
        await respond(answer, scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive) -> Call:
        route = self.route
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if len(headers) < len(scope["headers"]):
            limits.check_single(scope["headers"])
        limits.check_origin(headers, keyed=self._keys.required)
        if not route.open:
            self._keys.admit(headers)
        if "\0" in scope["path"]:
            raise NotFound("nothing is called by a name with NUL in it")
        tenant = limits.tenant_of(headers.get(b"holdfast-tenant", b"default"))
        query = scope["query_string"]
        asked = limits.parse_query(route.query, query) if query or route.query is not None else None
        body = None
        if route.method == "POST":
            raw = await limits.read_body(headers, receive, route.body_max)
            if route.request is None:
                if raw.strip() not in {b"", b"{}"}:
                    raise Invalid("this request takes no body")
            elif raw or not route.optional:
                body = limits.decode(self._decoder, raw, headers)
            else:
                body = self._decoder.decode(b"{}")
        return Call(tenant, body, asked, scope.get("path_params", {}), headers, receive)


async def respond(answer: Answer, scope: Scope, receive: Receive, send: Send) -> None:
    if answer.stream is not None and scope["method"] != "HEAD":
        headers = {name.decode(): value.decode() for name, value in answer.headers}
        # Closed here, not by the garbage collector: until then it would be read into.
        async with aclosing(answer.stream) as stream:
            await StreamingResponse(stream, answer.status, headers, answer.media.decode())(scope, receive, send)
        return
    body = answer.body if isinstance(answer.body, bytes) else encode(answer.body)
    if answer.status == 200 and not answer.headers:
        whole = scope.get("extensions", {}).get(WHOLE)
        if whole is not None and whole["answer"](answer.media, body):
            return
    length = (b"content-length", str(len(body)).encode())
    headers_sent = (
        list(answer.headers) if answer.status == 304 else [(b"content-type", answer.media), length, *answer.headers]
    )
    await send({"type": "http.response.start", "status": answer.status, "headers": headers_sent})
    await send({"type": "http.response.body", "body": body})


def _with_wide(methods: Mapping[str, Served]) -> str:
    """The path as the router writes it: `{key:path}` for a parameter that may contain slashes."""
    [route, *_] = [one.route for one in methods.values()]
    return re.sub(
        r"\{(\w+)\}", lambda found: f"{{{found[1]}:path}}" if found[1] in route.wide else found[0], route.path
    )


def _routing_problem(request: Request, error: HTTPException) -> Response:
    """What the router itself refuses: an unknown address, or a method it has not."""
    if error.status_code == 405:
        told = problems.answer(NotAllowed(f"{request.method} is not known here"), instance=request.url.path)
    else:
        told = problems.answer(NotFound("no such address; /openapi.json lists them"), instance=request.url.path)
    assert isinstance(told.body, msgspec.Struct)
    return Response(encode(told.body), told.status, error.headers, told.media.decode())
