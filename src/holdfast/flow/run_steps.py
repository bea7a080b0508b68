"""The steps of a run that an advance has read, and what became of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from msgspec.structs import replace

from holdfast.core.record import Kind
from holdfast.core.run import Run, Step, step_of, step_record_id
from holdfast.core.run_words import Advance, Needed
from holdfast.ports import Store

PAGE = 100
"""Steps that are looked at together. Each may have an output of a megabyte."""
REMEMBERED_MAX = 64
"""Steps of a run that are remembered from one advance to the next."""
REMEMBERED_BYTES = 4096
"""What a step may have in it for that. Others are read again: a thousand runs are remembered."""


class KnownSteps:
    """The steps of one run that are known here, and what became of them."""

    def __init__(
        self, *, outline: Mapping[str, Step] | None = None, known: Mapping[str, Step | None] | None = None
    ) -> None:
        self.known: dict[str, Step | None] = dict(known or ())
        self.outline = outline
        """Of all that there were before this advance, once somebody has asked for it."""
        self.changed: dict[str, Step] = {}
        self.removed: dict[str, Step] = {}

    async def load(self, run: Run, wanted: Needed, *, store: Store) -> None:
        """Read what is wanted and not known."""
        if wanted.outline and self.outline is None:
            self.outline = await self._read_outline(run, store)
        missing = [name for name in sorted(wanted.names) if name not in self.known]
        if missing:
            ids = [step_record_id(run.id, name) for name in missing]
            found = await store.find_records(Kind.STEP, run.tenant, ids)
            for name, one in zip(missing, found, strict=True):
                self.known[name] = None if one is None else step_of(one)

    async def _read_outline(self, run: Run, store: Store) -> dict[str, Step]:
        """All that there is of the run, in outline. Those that have not ended yet are known from now on: as a rule
        it is they who are asked for next, and they have no outputs."""
        outline: dict[str, Step] = {}
        after = ""
        while True:
            page = await store.list_records(Kind.STEP, run.tenant, parent=run.id, after=after, limit=PAGE)
            for step in map(step_of, page):
                outline[step.name] = step.outline
                if not step.is_terminal:
                    self.known.setdefault(step.name, step)
            if len(page) < PAGE:
                return outline
            after = page[-1].id

    def after(self) -> dict[str, Step | None]:
        written: dict[str, Step | None] = {
            name: replace(step, version=step.version + 1) for name, step in self.changed.items()
        }
        # Of a wide fan-out only what is new: most of its parts are never asked for again.
        kept = written if len(self.known) > REMEMBERED_MAX else self.known | written
        small = ((name, step) for name, step in kept.items() if step is None or _size(step) <= REMEMBERED_BYTES)
        return dict(itertools.islice(small, REMEMBERED_MAX))

    def take(self, more: Advance) -> None:
        for step in more.removed:
            self.changed.pop(step.name, None)
            self.known[step.name] = None
            if step.version:
                self.removed[step.name] = step
        for name, step in more.steps.items():
            self.changed[name] = self.known[name] = step
            if step.version:
                self.removed.pop(name, None)


def _size(step: Step) -> int:
    return len(bytes(step.output)) + len(bytes(step.item))
