"""What is said and heard over one connection, without the connection: a request as bytes, bytes as its answer."""

from __future__ import annotations

from typing import NamedTuple

import httptools


class BrokenExchange(Exception):
    """The request may have arrived, but no whole answer came back."""


class Reply(NamedTuple):
    status: int
    body: bytes
    reason: str = ""
    retry_after: str = ""


def encoded(method: str, target: str, lines: str, body: bytes | None) -> bytes:
    """The whole request. `lines` are its headers, each ended, but for the length of its body."""
    length = f"Content-Length: {len(body or b'')}\r\n" if body is not None or method != "GET" else ""
    return f"{method} {target} HTTP/1.1\r\n{lines}{length}\r\n".encode("ascii") + (body or b"")


class Answer:
    """The answer that is waited for on a connection, as far as it has come; then the next one. The `on_` methods are called by
    the parser."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.may_follow = True
        """Whether the connection may be used again, once the answer is complete."""
        self.reason = self.retry_after = self.content_type = ""
        self.expect()

    def expect(self) -> None:
        """A request goes out."""
        self.has_head = self.is_complete = False
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Raises `BrokenExchange` for what is no answer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BrokenExchange(f"not HTTP: {error}") from error

    @property
    def status(self) -> int:
        """When the head is there."""
        return self._parser.get_status_code()

    def take(self) -> bytes:
        """What has come of the body since the last time."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)

    def reply(self) -> Reply:
        return Reply(self.status, self.take(), self.reason, self.retry_after)

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise BrokenExchange("an answer to nothing that was asked")
        self.reason = self.retry_after = self.content_type = ""

    def on_status(self, reason: bytes) -> None:
        self.reason += reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"retry-after":
                self.retry_after = value.decode("latin-1")
            case b"content-type":
                self.content_type = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.has_head = self.status >= 200  # else it is a word in between

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        self.is_complete = self.has_head
        self.may_follow = self._parser.should_keep_alive()
