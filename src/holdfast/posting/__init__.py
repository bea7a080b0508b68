"""Posting: one HTTP request to an address that a tenant has named, and that nobody here may trust."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.posting.client import PostClient, Reply


class Posting:
    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._client: PostClient | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def send(self, url: str, headers: Mapping[str, str], content: bytes) -> Reply:
        """One try. It ends within `TRY_S`, and never raises for what the other side does."""
        if self._client is None:
            from holdfast.posting.client import PostClient  # noqa: PLC0415  (an HTTP client and its certificates take long)

            self._client = PostClient(allow_private=self._allow_private)
        return await self._client.send(url, headers, content)


@contextlib.asynccontextmanager
async def posting(*, allow_private: bool) -> AsyncIterator[Posting]:
    one = Posting(allow_private=allow_private)
    try:
        yield one
    finally:
        await one.close()
