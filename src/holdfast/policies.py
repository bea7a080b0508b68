"""Policies: keeps what this process decides by current. Every replica has one; none needs a lock.

The event of a publication wakes it at once in the process that published; all others find the record
that names the active version with their next look, `POLL_S` later at most. `/v1/policy` of each plane
says which version it uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.core.policy import Rulebook
from holdfast.core.rules import load_rules
from holdfast.errors import Invalid
from holdfast.flow.decide import AllowAll, LivePolicy
from holdfast.flow.policies import find_active, get_version, publish
from holdfast.locks.runtime import Runtime
from holdfast.loops import Listener
from holdfast.ports import JobEvent, Store
from holdfast.telemetry import Telemetry

POLL_S = 2.0


class Policies(Listener):
    def __init__(self, *, store: Store, policy: LivePolicy, telemetry: Telemetry, runtime: Runtime) -> None:
        super().__init__("policies", store=store, every_s=POLL_S, runtime=runtime)
        self._policy = policy
        self._telemetry = telemetry
        self._unusable = 0

    async def warm_up(self, file: str = "") -> None:
        """Read the policy before anybody is served. Publishes the file of the settings, if it has changed.

        Raises `Invalid` for a file that is no policy: a plane must not start with other rules than it was given.
        """
        if file:
            document = read_file(Path(file))
            await publish(document, store=self._store, reason="changed since the last start", file=Path(file).name)
        await self.tick()

    async def tick(self) -> None:
        standing = await find_active(self._store)
        if standing.active is None:
            if not self._policy.is_read:
                self._policy.use(AllowAll(), now=self._store.now())
            return
        number = standing.active.number
        if self._policy.is_read and self._policy.version == number:
            return
        version = await get_version(self._store, number)
        try:
            book = Rulebook(number, version.document)
        except Invalid as error:
            # Written by a newer plane. The rules we have stay in force: they were somebody's will, too.
            if self._unusable != number:
                self._unusable = number
                self._telemetry.policy_unusable(number, error=error)
            return
        self._policy.use(book, now=self._store.now())

    def heard(self, events: Sequence[JobEvent]) -> None:
        if any(event.kind.startswith("policy.") for event in events):
            self.wake()


def read_file(path: Path) -> object:
    """The rules in a file. Raises `Invalid` with lines."""
    try:
        document: object = load_rules(path.read_text(encoding="utf-8"), name=str(path))
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror}; name an existing file as policy.file") from error
    except UnicodeDecodeError:
        raise Invalid(f"{path}: not text in UTF-8") from None
    return document
