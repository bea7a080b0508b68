"""A plane over HTTP: `AsyncClient`, and `Client` for code without a loop.

    with Client("http://127.0.0.1:7070") as plane:
        job = plane.submit("mail.send", {"to": "ann"}, idempotency_key="order-7")
        done = plane.wait(job.id, timeout=60)

What the plane refuses is raised as the class of `holdfast.errors` that has the problem's code.
Reads, and submissions that carry an idempotency key, are repeated when the plane cannot be
reached or says that a repetition may help. Nothing else is: whether it happened is not known.

`asks` is what can be asked, `verbs` makes methods of it; `sync_client` and `async_client` only wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.client.sync_client import Client

if TYPE_CHECKING:
    from holdfast.client.async_client import AsyncClient

__all__ = ["AsyncClient", "Client"]


if not TYPE_CHECKING:  # type checkers would take every misspelt name for one of ours

    def __getattr__(name: str) -> Any:
        """`AsyncClient` when it is asked for: what it stands on takes a command longer to load than to do its work."""
        if name != "AsyncClient":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from holdfast.client.async_client import AsyncClient  # noqa: PLC0415

        return AsyncClient
