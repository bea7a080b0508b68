"""Where the plane of a story keeps its jobs and its locks, and what carries its deliveries.

Which places there are the files of `backends` say. Deliveries go as the story says, in the store or apart from it, unless
the place says `apart`, or `nats`: apart from it, over a real server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from backends import NEVER_S, Opened, Running, Telling, plane_stores
from locks.virtual import VirtualRuntime
from plane.nats_buses import fresh_namespace
from simulation.stand_ins import standing_in

from flow.inside import INSIDE
from flow.unasked_bus import UnaskedBus
from flow.wires import Wires

TELLINGS = {name: telling for store in plane_stores().values() for name, telling in store.stories.items()}
NATS_STAND_INS = {"holdfast.buses.nats.link.PING_S": NEVER_S, "holdfast.buses.nats.link.LOOK_S": NEVER_S}


@dataclass(frozen=True)
class Place:
    telling: Telling
    opened: Opened
    apart: bool = False
    """Whether deliveries travel apart from the store, whatever the story says."""
    nats: str = ""
    """The URL of the server that carries them; else it is done in this process."""
    unasked: UnaskedBus | None = None
    """There is nothing to be carried."""

    @property
    def url(self) -> str:
        return self.opened.url

    def reach(self, runtime: VirtualRuntime) -> Wires | None:
        """Let the story on this runtime reach the servers of this place."""
        telling = self.telling
        port = urlsplit(self.url).port or 0
        turns = {} if telling.turns is None else {port: telling.turns}
        lent = {} if telling.lent is None else {port: telling.lent}
        inside = {} if telling.inside is None else {INSIDE: telling.inside(runtime)}
        if not (turns or inside or self.nats):
            return None
        return Wires(runtime.loop, turns=turns, tell_time=self._telling_time(runtime), inside=inside, lent=lent)

    def _telling_time(self, runtime: VirtualRuntime) -> Callable[[], None]:
        if self.opened.clock is None:
            return lambda: None
        path, shown_us = self.opened.clock, 0

        def tell() -> None:
            nonlocal shown_us
            if shown_us != (now_us := runtime.wall_us()):
                shown_us = now_us
                path.write_text(f"{now_us / 1e6:.6f}")

        return tell


HERE = [Place(TELLINGS["memory"], Opened(""))]
"""Of the test that is being run, the last one."""


@contextmanager
def placed(name: str, running: Running, directory: Path, *, unasked: UnaskedBus | None = None) -> Iterator[Place]:
    """`name` is that of a telling, followed by `+apart` or `+nats` if the deliveries are not to go as the story says."""
    store, _, bus = name.partition("+")
    telling = TELLINGS[store]
    with ExitStack() as stack:
        opened = stack.enter_context(telling.opened(running, directory))
        nats = stack.enter_context(fresh_namespace(running)) if bus == "nats" else ""
        stack.enter_context(standing_in({**telling.stand_ins, **(NATS_STAND_INS if nats else {})}))
        HERE.append(Place(telling, opened, bool(bus), nats, unasked))
        stack.callback(HERE.pop)
        yield HERE[-1]
