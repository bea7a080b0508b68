"""Where a post may go: the URL that a tenant has named, and the address behind it."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from holdfast.errors import Invalid

URL_MAX = 2000
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL = ipaddress.ip_network("2000::/3")
"""All that is given out to be reached from everywhere."""


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
        # What else there is belongs to a network of its own, or wraps an IPv4 address in a way that some of them
        # translate: `is_global` takes much of it for public.
        if address not in _GLOBAL:
            return False
    return address.is_global and not address.is_multicast
