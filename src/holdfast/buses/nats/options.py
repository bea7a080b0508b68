"""What the URL of a NATS server says: where it is, who we are, and what its stream should be.

nats://[user:password@|token@]host[:port][,host…][?option=value&…]     tls:// asks for TLS

creds=FILE     the credentials of an account (JWT and seed)      ca=FILE     whom to trust, instead of the system's
nkey=FILE      a seed                                             cert=FILE   a certificate of our own
replicas=3     copies of the stream, on a cluster                 key=FILE    and its key
sync=always    the server has `sync_interval: always`, which a client cannot see
namespace=NAME what our names there begin with, so that several deployments can share a server
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

PORT = 4222
NAMESPACE = "holdfast"
KNOWN = ("ca", "cert", "creds", "key", "namespace", "nkey", "replicas", "sync")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    servers: tuple[str, ...]
    """Without user or password: safe to show."""
    replicas: int = 1
    synced: bool = False
    """An acknowledged delivery outlives a power loss."""
    namespace: str = NAMESPACE
    access: dict[str, Any] = field(default_factory=dict, repr=False)
    """Secrets and TLS, as arguments of nats-py."""

    @property
    def shown(self) -> str:
        return ", ".join(self.servers)


def parse(url: str) -> Options:
    """Raises `ValueError`, which never repeats the URL: there may be a password in it."""
    parts = urlsplit(url)
    if parts.netloc and "@" not in parts.netloc and "@" in url:
        raise ValueError("write '/', '?', '#' and '@' in user and password percent-encoded, as %2F, %3F, %23, %40")
    user_info, _, hosts = parts.netloc.rpartition("@")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(given.keys() - set(KNOWN))
    if unknown:
        raise ValueError(f"NATS has no option {', '.join(unknown)} (there are: {', '.join(KNOWN)})")
    return Options(
        servers=tuple(_server(parts.scheme, host) for host in hosts.split(",")),
        replicas=_replicas(given.get("replicas", "1")),
        synced=_synced(given.get("sync", "")),
        namespace=_namespace(given.get("namespace", NAMESPACE)),
        access={**_credentials(user_info, given), **_tls(parts.scheme, given)},
    )


def _server(scheme: str, host: str) -> str:
    try:
        parts = urlsplit(f"{scheme}://{host}")
        name, port = parts.hostname, parts.port or PORT
    except ValueError:
        name, port = None, PORT
    if not name:
        raise ValueError("the URL of NATS names no host, or no good port: nats://host:4222")
    return f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}"


def _replicas(text: str) -> int:
    if text not in {"1", "2", "3", "4", "5"}:
        raise ValueError("replicas must be between 1 and 5")
    return int(text)


def _synced(text: str) -> bool:
    if text not in {"", "always"}:
        raise ValueError("sync must be always, or be left out")
    return text == "always"


def _namespace(text: str) -> str:
    # No capitals: the stream's name is made of them.
    if not re.fullmatch("[a-z0-9_-]{1,64}", text):
        raise ValueError("namespace must be 1 to 64 small letters, digits, '_' and '-'")
    return text


def _credentials(user_info: str, given: dict[str, str]) -> dict[str, Any]:
    access: dict[str, Any] = {}
    user, colon, password = user_info.partition(":")
    if colon:
        access = {"user": unquote(user), "password": unquote(password)}
    elif user:
        access = {"token": unquote(user)}
    if "creds" in given:
        access["user_credentials"] = given["creds"]
    if "nkey" in given:
        access["nkeys_seed"] = given["nkey"]
    if ("creds" in given or "nkey" in given) and find_spec("nkeys") is None:
        raise ValueError("creds and nkey need the package 'nkeys': pip install 'nats-py[nkeys]'")
    return access


def _tls(scheme: str, given: dict[str, str]) -> dict[str, Any]:
    if ("cert" in given) != ("key" in given):
        raise ValueError("cert and key go together")
    if scheme != "tls" and not given.keys() & {"ca", "cert"}:
        return {}
    try:
        context = ssl.create_default_context(cafile=given.get("ca"))
        if "cert" in given:
            context.load_cert_chain(given["cert"], given["key"])
    except OSError as error:
        raise ValueError(f"ca, cert and key must be readable PEM files: {error.strerror or error}") from None
    return {"tls": context}
