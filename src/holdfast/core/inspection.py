"""What a store or a bus says of itself when `holdfast doctor` asks: its version, its settings, its clock.

Each backend knows its own settings, and says in the words below what they amount to; what follows from
that is decided in `core.promises`, which knows no backend.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Aspect(StrEnum):
    """What of a server the promises hang on."""

    SYNC = "sync"
    REPLICAS = "replicas"
    EVICTION = "eviction"
    FILES = "files"
    WRITES = "writes"


class Sync(StrEnum):
    """When what was acknowledged is on a disk."""

    COMMIT = "commit"
    """Before it is acknowledged."""
    INTERVAL = "interval"
    """Some time afterwards."""
    NEVER = "never"
    """When the operating system likes."""
    NOTHING = "nothing"
    """Nothing is kept on a disk."""


class Replicas(StrEnum):
    NONE = "none"
    SYNCHRONOUS = "synchronous"
    """Who takes over has everything that was acknowledged."""
    ASYNCHRONOUS = "asynchronous"
    """Who takes over may lack the last moments."""


class Eviction(StrEnum):
    NONE = "none"
    EVICTS = "evicts"
    """The server drops what it likes when its memory is full."""


class Files(StrEnum):
    LOCAL = "local"
    NETWORK = "network"
    """A file system on which locks and syncs cannot be relied upon."""
    MEMORY = "memory"
    """A file system that goes with the machine's power."""


class Writes(StrEnum):
    TAKEN = "taken"
    REFUSED = "refused"
    """As the server is set and as things are: or it takes them, and never says that they are done."""


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One setting, in the server's words and in ours."""

    aspect: Aspect
    value: str
    """Of `Sync`, `Replicas`, `Eviction`, `Files` or `Writes`."""
    setting: str
    """As the server calls it."""
    found: str
    """As the server has it."""
    fix: str = ""
    """What to do where it breaks a promise."""


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    engine: str
    version: str
    place: str
    """Its URL without secrets."""
    facts: tuple[Fact, ...]
    settings: dict[str, str] = {}
    """Others that are worth showing."""
    clock: float | None = None
    """What it takes for the time, in seconds since the epoch; None: it does not say, or has no clock of its own."""
    clock_fix: str = "run a time service (chrony, systemd-timesyncd) on both, and look at its offset"
    """What to do where that is not this machine's time."""

    def value(self, aspect: Aspect) -> str:
        """Of one aspect; empty where it does not apply."""
        return next((fact.value for fact in self.facts if fact.aspect is aspect), "")
