"""Who strikes at a fleet: kill -9 and SIGSTOP, rolling through its processes; now and then its network and servers."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Coroutine, Iterator, Sequence

import servers
from locks.faults import Proxy

from soak.fleet import Member
from soak.lock_soak import strike_network

STRIKE_EVERY_S = (0.3, 1.2)
STRIKES_PER_WAY = 5
"""One of the ways to a server is struck after so many strikes at processes."""
STRIKES_PER_SERVER = 8
"""And a server itself after so many."""


class Nemesis:
    """Strikes at every member in turn, in an order that is drawn anew each round; and at `ways` and servers now and then.

    Of two ways to a server one is struck: what goes over the other overtakes what is held up.
    """

    def __init__(
        self,
        members: Sequence[Member],
        ways: Sequence[Proxy],
        attacked: Sequence[servers.Server],
        chance: random.Random,
        *,
        lease_s: float,
    ) -> None:
        self._members = members
        self._ways = ways
        self._servers = attacked
        self._chance = chance
        self._lease_s = lease_s
        self._lasting: set[asyncio.Task[None]] = set()
        """Strikes that go on for a while."""
        self.kills = self.stops = self.network = self.server_kills = self.server_stops = 0

    @property
    def strikes(self) -> int:
        return self.kills + self.stops + self.network + self.server_kills + self.server_stops

    async def strike_for_ever(self) -> None:
        try:
            for number, member in enumerate(self._rounds(), start=1):
                await asyncio.sleep(self._chance.uniform(*STRIKE_EVERY_S))
                self._strike(member)
                if number % STRIKES_PER_WAY == 0:
                    self._strike_way(self._chance.choice(self._ways))
                if number % STRIKES_PER_SERVER == 0:
                    await self._strike_server(self._chance.choice(self._servers))
        finally:
            for lasting in self._lasting:
                lasting.cancel()  # and is put right at once
            await asyncio.gather(*self._lasting, return_exceptions=True)

    def _rounds(self) -> Iterator[Member]:
        while True:
            yield from self._chance.sample(self._members, len(self._members))

    def _strike(self, member: Member) -> None:
        if self._chance.random() < 0.5:
            self.stops += 1
            self._let_last(self._stop(member, self._lease_s * self._chance.choice((0.3, 1.0, 1.8))))
        else:
            self.kills += 1
            member.signal(signal.SIGKILL)

    def _strike_way(self, way: Proxy) -> None:
        self.network += 1
        what = self._chance.choice(("delay", "cut", "mute"))
        self._let_last(strike_network(way, what, self._lease_s * self._chance.choice((0.1, 0.3, 1.0))))

    def _let_last(self, strike: Coroutine[None, None, None]) -> None:
        """Nobody waits until it is over: others fall meanwhile."""
        lasting = asyncio.create_task(strike)
        self._lasting.add(lasting)
        lasting.add_done_callback(self._lasting.discard)

    async def _stop(self, member: Member, seconds: float) -> None:
        member.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            member.signal(signal.SIGCONT)

    async def _strike_server(self, server: servers.Server) -> None:
        if self._chance.random() < 0.3:
            self.server_stops += 1
            server.pause()
            try:
                await asyncio.sleep(self._lease_s * self._chance.choice((0.3, 1.0)))
            finally:
                server.resume()
        else:
            self.server_kills += 1
            restarting = asyncio.ensure_future(asyncio.to_thread(_restart, server))
            try:
                await asyncio.shield(restarting)
            except asyncio.CancelledError:
                await restarting  # it is over, and the server is back
                raise


def _restart(server: servers.Server) -> None:
    server.kill()
    server.start()
