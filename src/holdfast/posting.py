"""Posting: one HTTP request to an address that a tenant has named, and that nobody here may trust.

A tenant must not reach through the plane what only the plane can reach. So the name is resolved
here, the address is judged, and the connection goes to that very address: a name that resolves
otherwise a moment later changes nothing. Redirects are not followed, for the same reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx2

from holdfast.errors import Invalid

TRY_S = 15.0
"""For everything: resolving, connecting, sending, and the head of the answer."""
CONNECT_S = 5.0
URL_MAX = 2000
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.ip_network("64:ff9b:1::/48")


class Reply(NamedTuple):
    status: int | None
    """None: there was no answer."""
    error: str = ""
    """A stable code, without a word of the receiver's: name-unknown, address-refused, unreachable, timeout, …"""
    wait_s: float = 0.0
    """How long the receiver asks to be left alone (`Retry-After`)."""


class AddressRefused(Exception):
    """The name leads to where posts may not go."""


def check_url(url: str, *, allow_private: bool) -> None:
    """What can be said before anything is sent. Raises `Invalid`; the URL itself is not repeated."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or len(url) > URL_MAX or not url.isascii() or any(c.isspace() for c in url):
        raise Invalid("url must look like https://example.com/hook")
    if parts.username is not None or parts.password is not None:
        raise Invalid("url must not contain a password; the receiver knows us by our signature")
    address = _find_address(parts.hostname or "")
    if address is not None and not (allow_private or is_public(address)):
        raise Invalid("url leads to a private address; set allow_private in [webhooks] if that is meant")


def _find_address(host: str) -> Address | None:
    """The address that a host is, if it is not a name. There are more ways to write one: the connection tells."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Whether the whole Internet can reach it, also where one address is wrapped in another."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(inner)
        # Of a network's own, though `is_global` does not know it of either.
        if address.is_site_local or address in _NAT64_LOCAL:
            return False
    return address.is_global and not address.is_multicast


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


class Posting:
    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._made: httpx2.AsyncClient | None = None

    @property
    def _client(self) -> httpx2.AsyncClient:
        """Made for the first post: most planes never send one, and reading the certificates takes its time."""
        if self._made is None:
            self._made = httpx2.AsyncClient(
                transport=_ToCheckedAddress(allow_private=self._allow_private),
                headers={"content-type": "application/json", "user-agent": "holdfast-webhooks"},
                timeout=httpx2.Timeout(TRY_S, connect=CONNECT_S),
                follow_redirects=False,
                trust_env=False,
            )
        return self._made

    async def close(self) -> None:
        if self._made is not None:
            await self._made.aclose()

    async def send(self, url: str, headers: Mapping[str, str], content: bytes) -> Reply:
        """One try. It ends within `TRY_S`, and never raises for what the other side does."""
        try:
            async with asyncio.timeout(TRY_S):
                async with self._client.stream("POST", url, headers=headers, content=content) as response:
                    # What it says beyond its status is of no use, and may be without end.
                    return _replied(response)
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


@contextlib.asynccontextmanager
async def posting(*, allow_private: bool) -> AsyncIterator[Posting]:
    one = Posting(allow_private=allow_private)
    try:
        yield one
    finally:
        await one.close()
