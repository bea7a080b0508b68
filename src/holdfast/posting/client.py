"""The HTTP client behind `posting`, imported with the first post: most planes never send one.

A tenant must not reach through the plane what only the plane can reach. So the name is resolved
here, the address is judged, and the connection goes to that very address: a name that resolves
otherwise a moment later changes nothing. Redirects are not followed, for the same reason.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from typing import NamedTuple

import httpx2

from holdfast.posting.address import is_public

TRY_S = 15.0
"""For everything: resolving, connecting, sending, and the head of the answer."""
CONNECT_S = 5.0
_HEADERS = {"content-type": "application/json", "user-agent": "holdfast-webhooks"}
_LIMITS = {"timeout": httpx2.Timeout(TRY_S, connect=CONNECT_S).as_dict()}


class Reply(NamedTuple):
    status: int | None
    """None: there was no answer."""
    error: str = ""
    """A stable code, without a word of the receiver's: name-unknown, address-refused, unreachable, timeout, …"""
    wait_s: float = 0.0
    """How long the receiver asks to be left alone (`Retry-After`)."""


class AddressRefused(Exception):
    """The name leads to where posts may not go."""


class _ToCheckedAddress(httpx2.AsyncBaseTransport):
    """Sends each request to an address that was judged, under the name that was asked for."""

    def __init__(self, *, allow_private: bool) -> None:
        # No connection is kept: one that was opened for a name must not serve another name at that address.
        limits = httpx2.Limits(max_connections=100, max_keepalive_connections=0)
        self._inner = httpx2.AsyncHTTPTransport(limits=limits, trust_env=False)
        self._allow_private = allow_private

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        name = request.url.host
        address = await self._admit(name, request.url.port or (443 if request.url.scheme == "https" else 80))
        request.url = request.url.copy_with(host=address)
        # The certificate is still the name's.
        request.extensions = {**request.extensions, "sni_hostname": name}
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _admit(self, name: str, port: int) -> str:
        found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
        for *_, place in found:
            address = str(place[0]).partition("%")[0]
            if self._allow_private or is_public(ipaddress.ip_address(address)):
                return address
        raise AddressRefused


class PostClient:
    """Without the HTTP library's own client, which logs the URL of each request: whoever has it may post to the receiver.
    Nor are the receiver's cookies kept, which are no business of the next one's."""

    def __init__(self, *, allow_private: bool) -> None:
        self._transport = _ToCheckedAddress(allow_private=allow_private)

    async def close(self) -> None:
        await self._transport.aclose()

    async def send(self, url: str, headers: Mapping[str, str], content: bytes) -> Reply:
        try:
            async with asyncio.timeout(TRY_S):
                request = httpx2.Request(
                    "POST", url, headers={**_HEADERS, **headers}, content=content, extensions=_LIMITS
                )
                response = await self._transport.handle_async_request(request)
                try:
                    # What it says beyond its status is of no use, and may be without end.
                    return _replied(response)
                finally:
                    await response.aclose()
        except (TimeoutError, httpx2.TimeoutException):
            return Reply(None, "timeout")
        except AddressRefused:
            return Reply(None, "address-refused")
        except socket.gaierror:
            return Reply(None, "name-unknown")
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError):
            return Reply(None, "unreachable")


def _replied(response: httpx2.Response) -> Reply:
    status = response.status_code
    if 200 <= status < 300:
        return Reply(status)
    wait = response.headers.get("retry-after", "")
    error = "redirected" if 300 <= status < 400 else "refused" if status < 500 else "failed"
    return Reply(status, error, float(wait) if wait.isdecimal() and len(wait) < 7 else 0.0)
