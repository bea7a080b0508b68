"""A request as routes see it, their answer, and what a line of the route table says."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from starlette.types import Receive

from holdfast.core.job import Tenant

if TYPE_CHECKING:
    from holdfast.gateway.desk import Desk

JSON = b"application/json"


class Call(Struct, frozen=True):
    """One request, admitted: its body and query are already of the types the route asks for."""

    tenant: Tenant
    body: Any
    query: Any
    path: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    receive: Receive

    def header(self, name: bytes) -> str:
        """Empty if absent."""
        return self.headers.get(name, b"").decode("latin-1")


class Answer(Struct, frozen=True):
    """`body` is what the route promises to reply, or bytes that are sent as they are."""

    body: Struct | bytes = b""
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    media: bytes = JSON
    stream: AsyncGenerator[bytes, None] | None = None


Handler = Callable[["Desk", Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One line of the table. `path` is as in OpenAPI; parameters in `wide` may contain slashes."""

    method: str
    path: str
    run: Handler
    summary: str
    request: type[Struct] | UnionType | None = None
    """A union is of types that their tag tells apart."""
    optional: bool = False
    """The body may be left out: every field of it has a default."""
    query: type[Struct] | None = None
    reply: type[Struct] | None = None
    statuses: tuple[int, ...] = (200,)
    """Of success; all of them with the reply, but 304."""
    headers: tuple[str, ...] = ()
    """Request headers it honours, by name (`openapi.HEADERS`)."""
    needs: tuple[str, ...] = ()
    """Those of them without which it is refused, unless the caller's key tells."""
    media: str = "application/json"
    wide: tuple[str, ...] = ()
    body_max: int = 1 << 20
    open: bool = False
    """Answered without an API key."""
    tags: tuple[str, ...] = ()
