"""Who may ask, and how much: checked before anything is read into a route's types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct
from starlette.types import Receive

from holdfast.api.freezes import SCOPE
from holdfast.api.words import NAME, NO_NUL, NOT_BLANK
from holdfast.core.job import Tenant
from holdfast.errors import Forbidden, Invalid, Malformed, NotFound, TooLarge, WrongMedia

PAYLOAD_BYTES_MAX = 1 << 20
"""One payload, result or progress report."""
BODY_BYTES_MAX = PAYLOAD_BYTES_MAX + (1 << 16)
"""A body is JSON around one payload: a little more than the payload itself may have."""
BATCH_BYTES_MAX = 16 << 20
DEPTH_MAX = 64
TOO_DEEP = f"the JSON is nested deeper than {DEPTH_MAX}"
EXTREMES_MAX = 10_000
"""Numbers with an exponent of 200 and more, in one body: to read one takes as long as to read hundreds of others. Of a batch
that was full of them the plane did nothing else for half a minute, while leases ran out."""
QUERY_FIELDS_MAX = 100
NUMBER_DIGITS_MAX = 18
"""Of what must fit into 63 bits."""

TENANT = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
KEY = r"^[ -~]{1,255}$"
"""Of an idempotency key: printable ASCII. Keys of our own begin with a control character."""

_EXTREME = re.compile(rb"[eE][+-]?0*(?:[2-9][0-9]{2}|[1-9][0-9]{3,})")
_TEXT_OR_EXTREME = re.compile(rb'"[^"]*"?|(%b)' % _EXTREME.pattern)
"""In JSON without escapes. A text that does not end goes on to the end: to look for its end again from each quote in it would take
for ever. Nothing here repeats a group, of which each round would be kept: a text of escapes took sixty times its size."""
_LOOPBACK = re.compile(rb"^(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?$")


@lru_cache(1024)
def tenant_of(header: bytes) -> Tenant:
    text = header.decode("latin-1")
    if not re.fullmatch(TENANT, text):
        raise Invalid(f"Holdfast-Tenant must match {TENANT}")
    return Tenant(text)


def find_idempotency_key(headers: Mapping[bytes, bytes]) -> str | None:
    header = headers.get(b"idempotency-key")
    key = None if header is None else header.decode("latin-1")
    if key is not None and not re.fullmatch(KEY, key):
        raise Invalid("Idempotency-Key takes 1 to 255 printable ASCII characters")
    return key


def check_origin(headers: Mapping[bytes, bytes], *, keyed: bool) -> None:
    """A web page must not drive a plane that its visitor runs on loopback.

    Another site's page names itself in `Origin`. One that makes its own name resolve to
    127.0.0.1 has that name in `Host`: without a key, only loopback's own names are served.
    """
    host = headers.get(b"host", b"")
    origin = headers.get(b"origin")
    if origin is not None and origin.partition(b"://")[2] != host:
        raise Forbidden("requests of pages from elsewhere are not served")
    if not keyed and host and not _is_loopback(host):
        raise Forbidden("without an API key only loopback's own names are served: use 127.0.0.1 or localhost")


@lru_cache(1024)
def _is_loopback(host: bytes) -> bool:
    return _LOOPBACK.match(host) is not None


_SINGLE = frozenset(
    name.encode()
    for name in (
        "authorization",
        "content-type",
        "holdfast-actor",
        "holdfast-tenant",
        "holdfast-via",
        "host",
        "idempotency-key",
        "if-match",
        "if-none-match",
        "last-event-id",
        "origin",
    )
)


def check_single(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """What somebody before us has looked at must be what we go by. Of two tenants, say, it may have been either."""
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in seen and name in _SINGLE:
            raise Malformed(f"the header {name.decode()} is given twice")
        seen.add(name)


async def read_body(headers: Mapping[bytes, bytes], receive: Receive, bytes_max: int) -> bytes:
    """The whole body. Raises `TooLarge` as soon as that is known, without reading on."""
    length = headers.get(b"content-length")
    if length is not None and length.isdigit() and int(length) > bytes_max:
        raise TooLarge(f"the body has {int(length)} bytes; at most {bytes_max} are taken")
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            # Half a request is not obeyed: what is left of it may look like another one.
            raise Malformed("the caller hung up before the body was whole")
        body += message.get("body", b"")
        if len(body) > bytes_max:
            raise TooLarge(f"the body has more than {bytes_max} bytes")
        if not message.get("more_body"):
            return bytes(body)


def decode(decoder: msgspec.json.Decoder[Any], body: bytes, headers: Mapping[bytes, bytes]) -> Any:
    media = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    if media != b"application/json":
        raise WrongMedia("send the body as application/json")
    _check_numbers(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise Invalid(_in_words(error)) from None
    except RecursionError:
        raise Invalid(TOO_DEEP) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"the body is not JSON: {error}") from None


def _check_numbers(body: bytes) -> None:
    """Before they are read. Most bodies are too short for so many, and texts that look like numbers are seldom so many."""
    if len(body) < EXTREMES_MAX * len(b"1e200,") or len(_EXTREME.findall(body)) <= EXTREMES_MAX:
        return
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    if sum(map(bool, _TEXT_OR_EXTREME.findall(plain))) > EXTREMES_MAX:
        raise Invalid(
            f"the body has more than {EXTREMES_MAX} numbers with an exponent of 200 and more; send them as texts"
        )


def parse_query(wanted: type[Struct] | None, query: bytes) -> Any:
    """The query string as the route's type. An unknown or repeated field is told, not ignored."""
    if b"%00" in query:
        raise Invalid("in the query: no word that could be asked for has NUL in it")
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="strict"
        )
    except ValueError:
        raise Malformed("the query string cannot be parsed") from None
    if wanted is None:
        if pairs:
            raise Invalid(f"no query field is known here, and {pairs[0][0]!r} was given")
        return None
    lists = _lists(wanted)
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in lists:
            fields.setdefault(name, []).append(value)
        elif name in fields:
            raise Invalid(f"the query field {name!r} is given twice")
        else:
            fields[name] = value
    try:
        return msgspec.convert(fields, wanted, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(f"in the query: {_in_words(error)}") from None


_PATTERN = re.compile(r"Expected `str` matching regex (?P<shown>.+?)(?P<where> - at .*)?", re.DOTALL)
_CHOICE = re.compile(r"'\^\(([a-z_|]+)\)\$\(\?!\\\\n\)'")
_MEANING = {
    repr(NO_NUL): "text without NUL",
    repr(NAME): "at most 128 letters, digits and _.:@/-, the first a letter or a digit",
    repr(NOT_BLANK): "a text that says something",
    repr(SCOPE): "all, tenant=NAME or topic=NAME, where a topic may end in * to mean a family",
}


def _in_words(error: msgspec.ValidationError) -> str:
    """What was expected, where that is a pattern, for people who do not read patterns."""
    found = _PATTERN.fullmatch(str(error))
    if found is None:
        return str(error)
    choice = _CHOICE.fullmatch(found["shown"])
    meaning = f"one of {choice[1].replace('|', ', ')}" if choice else _MEANING.get(found["shown"])
    return str(error) if meaning is None else f"Expected {meaning}{found['where'] or ''}"


@cache
def _lists(wanted: type[Struct]) -> frozenset[str]:
    """The fields that may be repeated."""
    return frozenset(f.name for f in msgspec.structs.fields(wanted) if f.default_factory is list)


def find_number(text: str) -> int | None:
    """The number that a text consists of; None if it is none, or too large to be one of ours."""
    return int(text) if len(text) <= NUMBER_DIGITS_MAX and text.isascii() and text.isdigit() else None


def get_number(text: str, of: str) -> int:
    """As `find_number`, of what is called by a number. Raises `NotFound`."""
    number = find_number(text)
    if number is None:
        raise NotFound(f"{of} have numbers, and this is none")
    return number


def stored_json(value: Any, what: str) -> bytes:
    """A JSON value as it is kept. Raises `TooLarge`, or `Invalid` if it is nested too deep."""
    try:
        raw = msgspec.json.encode(value)
    except RecursionError:
        raise Invalid(TOO_DEEP) from None
    if len(raw) > PAYLOAD_BYTES_MAX:
        raise TooLarge(f"the {what} has {len(raw)} bytes; at most {PAYLOAD_BYTES_MAX} are kept")
    # With few brackets it cannot be deep; only the others are measured.
    if raw.count(b"[") + raw.count(b"{") > DEPTH_MAX:
        _check_depth(value)
    return raw


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [
            child
            for parent in level
            if type(parent) in {dict, list}
            for child in (parent.values() if type(parent) is dict else parent)
        ]
        if not level:
            return
    raise Invalid(TOO_DEEP)
