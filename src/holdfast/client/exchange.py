"""One connection to a plane, for code without a loop: HTTP/1.1 on a blocking socket, one exchange after the other.

The standard library's client sends the head of a request and its body apart, so that a plane wakes up twice for it, and
reads headers as those of a mail: together a tenth of what a caller waits for a job.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping

import httptools

READ = 65536


class BrokenAnswer(Exception):
    """The request may have arrived, but no whole answer came back."""


class Connection:
    """The `on_` methods are called by the parser."""

    def __init__(self, link: socket.socket, *, host: str) -> None:
        self.link = link
        self._host = host
        self._parser = httptools.HttpResponseParser(self)
        self.reason = self.retry_after = self.content_type = ""
        self._pieces: list[bytes] = []
        self._has_head = self._is_complete = False
        self.is_usable = True
        """For another exchange, once the last one is complete."""

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> None:
        """The whole request, in one piece."""
        said = {"host": self._host, "accept-encoding": "identity", **headers}
        if body is not None or method != "GET":
            said["content-length"] = str(len(body or b""))
        lines = "".join(f"{name}: {value}\r\n" for name, value in said.items())
        self.reason = self.retry_after = self.content_type = ""
        self._pieces = []
        self._has_head = self._is_complete = False
        self.link.sendall(f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("ascii") + (body or b""))

    def wait_head(self) -> int:
        """The status, when the headers are there."""
        while not self._has_head:
            self._read()
        return self._parser.get_status_code()

    def pieces(self) -> Iterator[bytes]:
        """The body as it comes. Raises `BrokenAnswer` if its end does not."""
        while True:
            pieces, self._pieces = self._pieces, []
            yield from pieces
            if self._is_complete:
                return
            self._read()

    def close(self) -> None:
        self.is_usable = False
        self.link.close()

    def _read(self) -> None:
        data = self.link.recv(READ)
        if not data:
            raise BrokenAnswer("the answer ended too early")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BrokenAnswer(f"not HTTP: {error}") from error

    def on_message_begin(self) -> None:
        if self._is_complete:
            raise BrokenAnswer("an answer to nothing that was asked")

    def on_status(self, reason: bytes) -> None:
        self.reason += reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self.retry_after = value.decode("latin-1")
        elif name.lower() == b"content-type":
            self.content_type = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_head = self._parser.get_status_code() >= 200  # else it is a word in between

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        self._is_complete = self._has_head
        self.is_usable = self._parser.should_keep_alive()
