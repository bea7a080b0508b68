"""Something asynchronous in a thread of its own, for tests that are not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

from holdfast.locks.runtime import SYSTEM

T = TypeVar("T")

BEGIN_S = 60.0
END_S = 30.0


class Background(Generic[T]):
    """Opens what it is given in a thread with a loop of its own, and keeps it open until `stop`."""

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[T]], name: str) -> None:
        self._opening = opening
        self._opened: Future[T] = Future()
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = SYSTEM.run_in_thread(self._run, name)
        self.value = self._opened.result(BEGIN_S)

    async def _run(self) -> None:
        self._ending = asyncio.Event()
        self._loop.set_result(asyncio.get_running_loop())
        try:
            async with self._opening() as value:
                self._opened.set_result(value)
                await self._ending.wait()
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)  # whoever waits for it is told; nobody else needs to be

    def call(self, action: Callable[[], object]) -> None:
        """Have it done in the thread's loop, soon; nothing happens after the end."""
        if not self._thread.is_alive():
            return
        self._loop.result(BEGIN_S).call_soon_threadsafe(action)

    def stop(self) -> None:
        """Complete on return; may be repeated."""
        if self._thread.is_alive():
            self.call(self._ending.set)
            self._thread.join(END_S)
