"""The bus of a story in which nothing is delivered."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


class UnaskedBus:
    """Keeps what it is asked for and refuses it: which bus it is makes no difference to a story that never does."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def on_arrival(self, callback: Callable[[str], None]) -> None:
        """Nothing ever arrives."""

    def on_return(self, callback: Callable[[], None]) -> None:
        """It is never away."""

    def __getattr__(self, name: str) -> NoReturn:
        self.asked.append(name)
        raise AssertionError(f"a bus was asked for {name} in a story in which nothing is delivered")
