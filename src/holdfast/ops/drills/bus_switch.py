"""The switch of a bus that fails when told: a word in a file, which the plane's process reads before each publish."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path


class BusFault(StrEnum):
    NONE = ""
    REFUSE = "refuse"
    """The bus is away: nobody will be told."""
    SILENT = "silent"
    """The bus takes nothing and does not answer, until the publish gives up: whether it arrived is not known."""
    LOSE_ANSWER = "lose answer"
    """The bus took it, and its answer is lost."""


class Switch:
    def __init__(self, folder: Path) -> None:
        self._fault = folder / "bus-fault"
        self._log = folder / "bus-publishes"

    def set(self, fault: BusFault) -> None:
        self._fault.write_text(fault)

    def read(self) -> BusFault:
        return BusFault(self._fault.read_text()) if self._fault.exists() else BusFault.NONE

    def note_publish(self, job_id: str, fence: int) -> None:
        with self._log.open("a") as file:
            file.write(f"{job_id} {fence}\n")

    def publishes(self) -> list[tuple[str, int]]:
        """What reached the bus, in order: job and fence."""
        if not self._log.exists():
            return []
        lines = [line.split() for line in self._log.read_text().splitlines() if line.count(" ") == 1]
        return [(job_id, int(fence)) for job_id, fence in lines]
