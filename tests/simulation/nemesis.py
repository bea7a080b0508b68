"""The nemesis: pauses, kills, stalls, cut links, clocks that step, and moods of the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from simulation.network import CALM, MIXES, Mix, Network
from simulation.world import World


class Victim(Protocol):
    """What a story lets happen to one of its processes."""

    name: str

    def pause(self, seconds: float) -> None: ...
    def stall(self, seconds: float) -> None: ...
    def kill(self, down_s: float) -> None: ...
    def cut(self, seconds: float) -> None: ...
    def step_clock(self, seconds: float) -> None: ...


class Nemesis:
    """Shifts the mood now and then, a quarter of the time to calm, and strikes in between."""

    def __init__(self, network: Network, victims: Sequence[Victim], *, ttl_s: float) -> None:
        self._network = network
        self._world: World = network.world
        self._victims = victims
        self._ttl_s = ttl_s
        self._until = self._rage_s = 0.0
        self.mixes: Sequence[Mix] = MIXES
        self.extra: list[Callable[[], None]] = []
        """Strikes that only this story knows, each as likely as the others."""

    def rage(self, *, until: float) -> None:
        """From now on, until so many seconds have passed: few or many, about as much happens in them."""
        self._rage_s = until
        self._until = self._world.clock_s + until
        self._shift()
        self._world.at(self._until, self._calm_down)
        self._world.after(until * self._world.chance.uniform(0.1, 0.6), self._strike)

    def _calm_down(self) -> None:
        self._network.mix = CALM

    def _shift(self) -> None:
        if self._world.clock_s >= self._until:
            return
        self._network.mix = self._world.chance.choice(self.mixes)
        self._world.after(self._rage_s * self._world.chance.uniform(0.5, 5.0), self._shift)

    def _strike(self) -> None:
        if self._world.clock_s >= self._until:
            return
        chance = self._world.chance
        if chance.random() < 0.75:  # else calm
            victim = chance.choice(self._victims)
            seconds = self._ttl_s * chance.choice((0.2, 0.5, 1.2, 2.5)) * chance.uniform(0.8, 1.2)
            seconds = min(seconds, self._until + 1.0 - self._world.clock_s)  # calm is calm
            strikes: list[tuple[str, Callable[[], None]]] = [
                (f"pause {victim.name} for {seconds:.1f} s", lambda: victim.pause(seconds)),
                (f"stall {victim.name} for {seconds:.1f} s", lambda: victim.stall(seconds)),
                (f"kill {victim.name}, back in {seconds:.1f} s", lambda: victim.kill(seconds)),
                (f"cut off {victim.name} for {seconds:.1f} s", lambda: victim.cut(seconds)),
                (f"step the clock of {victim.name}", lambda: victim.step_clock(chance.uniform(-3600, 3600))),
                *((f"strike {n}", strike) for n, strike in enumerate(self.extra)),
            ]
            name, strike = chance.choice(strikes)
            if self._network.inject(name):
                strike()
        self._world.after(self._rage_s * chance.uniform(0.1, 0.9), self._strike)
