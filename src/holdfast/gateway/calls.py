"""A request as routes see it, their answer, and what a line of the route table says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from starlette.types import Receive

from holdfast.core.job import Tenant
from holdfast.errors import Invalid

if TYPE_CHECKING:
    from holdfast.gateway.desk import Desk

JSON = b"application/json"


@dataclass(frozen=True, slots=True)
class Call:
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


@dataclass(frozen=True, slots=True)
class Answer:
    """`body` is what the route promises to reply, or bytes that are sent as they are."""

    body: Struct | bytes = b""
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    media: bytes = JSON
    stream: AsyncIterator[bytes] | None = None


Handler = Callable[["Desk", Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One line of the table. `path` is as in OpenAPI; parameters in `wide` may contain slashes."""

    method: str
    path: str
    run: Handler
    summary: str
    request: type[Struct] | None = None
    optional: bool = False
    """The body may be left out: every field of it has a default."""
    query: type[Struct] | None = None
    reply: type[Struct] | None = None
    statuses: tuple[int, ...] = (200,)
    """Of success; all of them with the reply, but 304."""
    headers: tuple[str, ...] = ()
    """Request headers it honours, by name (`openapi.HEADERS`)."""
    media: str = "application/json"
    wide: tuple[str, ...] = ()
    body_max: int = 1 << 20
    hot: bool = False
    """Served in front of the router: these are what a plane does all day."""
    open: bool = False
    """Answered without an API key."""
    tags: tuple[str, ...] = field(default=())


def job_version(text: str) -> int | None:
    """The version an entity tag names; None for `*` or no tag. Raises `Invalid` for anything else."""
    if text in {"", "*"}:
        return None
    digits = text.removeprefix("W/").strip('"')
    if len(digits) > 18 or not (digits.isascii() and digits.isdigit()):
        raise Invalid('an entity tag here is a job\'s version in quotes, such as "7"')
    return int(digits)
