"""A Redis Cluster: which server has which slot, and one link to each of them."""

from __future__ import annotations

import asyncio
from binascii import crc_hqx
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import cache

from holdfast.locks.errors import LockError, Unavailable
from holdfast.locks.port import WakeCallback
from holdfast.locks.stores.redis.connection import Run
from holdfast.locks.stores.redis.link import WireLink
from holdfast.locks.stores.redis.wire import Address, Caller, Reply, ReplyError, bulk, in_parts

SLOTS = 16384
#: So long a slot that is on its way is left alone before it is asked for again, within the call's own time.
PAUSE_S = 0.05
#: This share of the call's time is left for the last answer: a request that is overdue takes its connection along, and with
#: it the answers of others.
ANSWER_SHARE = 0.25

Place = tuple[str, int]


def slot_of(key: str) -> int:
    """The hash slot, by the cluster's rule: the first non-empty {tag} counts, else the whole key."""
    name = key.encode("utf-8", "surrogatepass")
    start = name.find(b"{")
    if start >= 0:
        end = name.find(b"}", start + 1)
        if end > start + 1:
            name = name[start + 1 : end]
    return crc_hqx(name, 0) % SLOTS


@cache
def slot_tags() -> list[str]:
    """For each slot a `:{tag}` that lands in it. Takes some 60 ms, once, and only in a cluster."""
    tags: dict[int, str] = {}
    n = 0
    while len(tags) < SLOTS:
        tags.setdefault(crc_hqx(b"%d" % n, 0) % SLOTS, f":{{{n}}}")
        n += 1
    return [tags[slot] for slot in range(SLOTS)]


def by_slot(keys: Sequence[str]) -> list[Sequence[int]]:
    """Which keys may share a run of the script, by their indices."""
    slots: dict[int, list[int]] = {}
    for i, key in enumerate(keys):
        slots.setdefault(slot_of(key), []).append(i)
    return [part for indices in slots.values() for part in in_parts(indices)]


def check_key(key: str) -> None:
    """A closing brace without a tag before it leaves no name in the key's slot for its queue."""
    if "}" in key and slot_of(key) != slot_of(f"{key}:queue"):
        raise ValueError(f"lock key {key!r} cannot be kept in a cluster: '}}' without a {{tag}}")


def names_in_slot(caller: Caller, slot: int) -> tuple[str, str]:
    names = caller.names(slot_tags()[slot])
    if "{" in caller.prefix and slot_of(names[0]) != slot:
        # A tag in the prefix decides the slot of everything.
        return caller.names()
    return names


def keys_of_run(caller: Caller, keys: Sequence[str], items: Sequence[str]) -> tuple[str, list[str]]:
    """What a run names besides its locks: fence and history, encoded, and the queues. While its slot is being moved a
    server begins a run only if it has all that is named, so what is begun there is not stopped half-way.

    A renewal touches its lock alone, and names nothing else: it is served wherever the lock is.
    """
    if all(item[0] == "N" for item in items):
        return bulk(keys[0]) * 2, []
    slot = slot_of(keys[0])
    names = "".join(map(bulk, names_in_slot(caller, slot)))
    queues = [name for key in keys for name in _queue_of(key) if "}" not in key or slot_of(name) == slot]
    return names, queues


def _queue_of(key: str) -> tuple[str, str]:
    """As locks.lua names them."""
    tag = key if "}" in key else f"{{{key}}}"
    return f"{tag}:queue", f"{tag}:waiters"


def owners_of(reply: Reply, asked: Place) -> dict[int, Place]:
    """Which server has which slot, from CLUSTER SLOTS. An empty host means the one we asked."""
    owners: dict[int, Place] = {}
    for first, last, primary, *_ in reply:
        place = (primary[0].decode() or asked[0], primary[1])
        owners.update(dict.fromkeys(range(first, last + 1), place))
    return owners


def redirected_to(reply: ReplyError, asked: Place) -> Place:
    """`MOVED <slot> <host>:<port>`, or `ASK`; again an empty host is the one we asked."""
    host, _, port = str(reply).split()[2].rpartition(":")
    return host or asked[0], int(port)


def still_moving(caller: Caller) -> Unavailable:
    detail = f"the cluster moves the slot of this lock, and has not done so within {caller.timeout_s} s"
    return Unavailable(caller.subject, detail, applied=False)


class ClusterLink:
    """One `WireLink` per primary. A run stays within a slot, as scripts must."""

    def __init__(self, caller: Caller, seeds: Sequence[Address], wake: WakeCallback) -> None:
        self._caller = caller
        self._seeds = seeds
        self._wake = wake
        self._links: dict[Place, WireLink] = {}
        self._owners: dict[int, Place] = {}
        self._learning: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> None:
        self._closed = False
        await self._learn()

    async def close(self) -> None:
        self._closed = True
        try:
            if self._learning is not None:
                self._learning.cancel()
                await asyncio.wait([self._learning])
        finally:
            links, self._links = list(self._links.values()), {}
            async with AsyncExitStack() as last:  # whoever has no time to wait for one of them still leaves none behind
                for link in links:
                    last.push_async_callback(link.close)

    def idle(self) -> bool:
        return all(link.idle() for link in self._links.values())

    def in_flight(self) -> int:
        return sum(link.in_flight() for link in self._links.values())

    def plan(self, keys: list[str]) -> list[Sequence[int]]:
        return by_slot(keys)

    def send(self, runs: Sequence[Run]) -> None:
        by_link: dict[WireLink, list[Run]] = {}
        for run in runs:
            run.names, run.further = keys_of_run(self._caller, run.keys, run.items)
            run.asking = False
            by_link.setdefault(self._node(run.keys[0]), []).append(run)
        for link, group in by_link.items():
            link.send(group)

    async def ask_about(self, key: str, *words: str) -> Reply:
        """A command that only reads: where the key's server is gone, or has given the slot away, the next one is asked."""
        try:
            return await self._node(key).ask(*words)
        except Unavailable:
            await self._learn()
            return await self._node(key).ask(*words)

    def _node(self, key: str) -> WireLink:
        return self._link(self._owner(slot_of(key)))

    def nodes(self) -> list[WireLink]:
        return [self._link(place) for place in sorted(set(self._owners.values()))]

    def history(self, key: str) -> str:
        return names_in_slot(self._caller, slot_of(key))[1]

    def listen(self, key: str) -> None:
        # Messages reach every server; this one is where the key is granted.
        self._node(key).listen(key)

    def _owner(self, slot: int) -> Place:
        # A slot that nobody serves: any server will say so.
        return self._owners.get(slot) or (self._seeds[0].host, self._seeds[0].port)

    def _link(self, place: Place) -> WireLink:
        link = self._links.get(place)
        if link is None:
            address = replace(self._seeds[0], host=place[0], port=place[1])

            async def locate() -> Address:
                return address

            # Who still asks while this is closed, or after, is told so by a link that nobody would close.
            link = WireLink(self._caller, locate, self._wake, closed=self._closed)
            if not self._closed:
                self._links[place] = link
            link.on_turned_away = lambda run, reply: self._turned_away(run, reply, place)
            link.on_down = self._learn_soon
        return link

    def _turned_away(self, run: Run, reply: ReplyError, asked: Place) -> None:
        """The server did not begin the run, so it may be sent again."""
        at_once = False
        if reply.code == "MOVED":
            self._owners[slot_of(run.keys[0])] = redirected_to(reply, asked)
            self._learn_soon()
            run.moves += 1
            at_once = run.moves == 1  # else they do not agree yet whose it is
        if self._closed:
            run.fail(self._closed_meanwhile)
        elif reply.code == "ASK" and not run.asking:
            # Just this once: until the slot has arrived, its owner is the first to be asked.
            run.asking = True
            self._link(redirected_to(reply, asked)).send([run])
        elif at_once:
            self.send([run])
        else:
            self._send_later(run)

    def _send_later(self, run: Run) -> None:
        loop, pause = asyncio.get_running_loop(), self._caller.runtime.jitter(PAUSE_S)
        if loop.time() + pause < run.deadline - ANSWER_SHARE * self._caller.timeout_s:
            loop.call_later(pause, self._send_again, run)
        else:
            run.fail(lambda: still_moving(self._caller))

    def _send_again(self, run: Run) -> None:
        if self._closed:
            run.fail(self._closed_meanwhile)
        elif run.leave_out_the_gone():
            self.send([run])

    def _closed_meanwhile(self) -> Unavailable:
        return Unavailable(self._caller.subject, "the store is closed", applied=False)

    def _learn_soon(self) -> None:
        if self._learning is None and not self._closed:
            self._learning = asyncio.get_running_loop().create_task(self._learn_quietly())

    async def _learn_quietly(self) -> None:
        try:
            await self._learn()
        except LockError:
            return  # the callers whose server is gone are told so; the next loss asks again
        finally:
            self._learning = None

    async def _learn(self) -> None:
        """Ask one server after the other who has which slots."""
        known = [(seed.host, seed.port) for seed in self._seeds]
        places = list(dict.fromkeys([*self._owners.values(), *known]))
        for i, place in enumerate(places):
            try:
                owners = owners_of(await self._link(place).ask("CLUSTER", "SLOTS"), place)
            except LockError:
                if i == len(places) - 1:
                    raise
            else:
                self._owners = owners
                return
