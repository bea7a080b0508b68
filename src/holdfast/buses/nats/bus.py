"""The bus on NATS JetStream: a message per delivery, a pull consumer per worker.

JetStream acknowledges before it has synced, forgets duplicates after two minutes and accepts a stale
acknowledgement. None of that matters here: what a message says is looked up in the store before anybody acts on it,
and a message that was lost costs its job one dispatch timeout. A publish that failed is rolled back (`flow.dispatch`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import Header
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from holdfast.buses.embedded import TAKEN_S
from holdfast.buses.nats.link import Link
from holdfast.buses.nats.options import Options, parse
from holdfast.buses.nats.stream import Names, ensure_consumer, ensure_stream, token_of
from holdfast.errors import BusUnavailable
from holdfast.locks.runtime import Runtime
from holdfast.ports import Delivery

logger = logging.getLogger("holdfast")

TIMEOUT_S = 2.0
GIVEN_MAX = 20
"""A delivery that was given out so often and never settled is poison: whoever takes it may be dying of it. JetStream
would drop it and tell nobody. Here it is given once more, to whoever ends its job (`given_too_often`)."""
RETURNED_S = 0.1
"""What came when nobody waited for it any more comes again after this."""
TAKEN_MAX = 100_000
WORKERS_MAX = 10_000
"""Remembered; beyond it the oldest is forgotten, which costs one question when it asks again."""
TOLD_MAX = 1000
"""Workers in one word to the other planes."""
INBOUND_MAX = 16_384
"""Messages that wait for this process. More are dropped: those to be taken come again, the others were hints."""

NOBODY_THERE = "503"
LOST = "lost"
_ACK, _TERM = b"+ACK", b"+TERM"
_encode = msgspec.json.Encoder().encode
_decode_delivery = msgspec.json.Decoder(Delivery).decode
_decode_workers = msgspec.json.Decoder(list[str]).decode


class _Pull:
    """One question for up to `limit` deliveries, and what has come of it."""

    def __init__(self, inbox: str, limit: int) -> None:
        self.inbox = inbox
        self.limit = limit
        self.messages: list[Msg] = []
        self.status = ""
        self.ended = asyncio.Event()

    def add(self, message: Msg) -> None:
        self.messages.append(message)
        if len(self.messages) == self.limit:
            self.ended.set()

    def end(self, status: str) -> None:
        self.status = status
        self.ended.set()


class _Taken(NamedTuple):
    reply: str
    """Where to acknowledge it."""
    given: int
    """How often the server has given it out."""


@dataclass
class _Reader:
    """One worker's consumer, as this process uses it: a pull at a time, for a message does not say which one it is of."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    pull: _Pull | None = None
    has_consumer: bool = False


class NatsBus:
    def __init__(
        self, options: Options, *, runtime: Runtime, timeout_s: float = TIMEOUT_S, taken_s: float = TAKEN_S
    ) -> None:
        self._options = options
        self._names = Names.of(options.namespace)
        self._timeout_s = timeout_s
        self._taken_s = taken_s
        self._link = Link(options, established=self._established, lost=self._lost, runtime=runtime, timeout_s=timeout_s)
        self._js: JetStreamContext | None = None
        self._inbox = ""
        self._pulls = 0
        self._readers: dict[str, _Reader] = {}
        """By token; those who asked last are last."""
        self._workers: dict[str, str] = {}
        """Their ids, by token."""
        self._taken: dict[Delivery, _Taken] = {}
        """What was taken and is to be settled; oldest first. Who settles what is not here (another plane took it, or
        this one was started anew) leaves it to come once more, and to be found stale."""
        self._callbacks: list[Callable[[str], None]] = []
        self._return_callbacks: list[Callable[[], None]] = []
        self._untold: dict[str, None] = {}
        """Workers of whose deliveries the other planes have not heard."""
        self._telling: asyncio.Task[None] | None = None

    @property
    def atomic(self) -> bool:
        return False

    async def open(self) -> None:
        """Raises `Invalid` for credentials, certificates or a stream that will not do."""
        await self._link.open()
        if not self._options.synced:
            logger.warning(
                "bus.not_synced: NATS acknowledges deliveries before they are on its disk, unless its "
                "configuration has sync_interval: always; after a power loss some jobs then wait for their dispatch "
                "timeout. None is lost. If it has, say so with ?sync=always",
                extra={"event": "bus.not_synced"},
            )

    async def close(self) -> None:
        try:
            if self._telling is not None:
                await asyncio.wait([self._telling], timeout=self._timeout_s)
        finally:
            await self._link.close()

    def on_arrival(self, callback: Callable[[str], None]) -> None:
        self._callbacks.append(callback)

    def on_return(self, callback: Callable[[], None]) -> None:
        self._return_callbacks.append(callback)

    # -- publish -----------------------------------------------------------------------------------

    async def publish(self, deliveries: Sequence[Delivery]) -> None:
        self._link.client()  # raises at once if it is away
        if len(deliveries) == 1:
            failures = [await self._publish(deliveries[0])]
        else:
            failures = await asyncio.gather(*(self._publish(delivery) for delivery in deliveries))
        sent = [delivery.worker for delivery, failure in zip(deliveries, failures, strict=True) if failure is None]
        self._tell_arrival(list(dict.fromkeys(sent)))
        failed = [failure for failure in failures if failure is not None]
        if failed:
            # Of a batch that was taken in part, nobody can say that it was not taken.
            refused = not sent and all(failure.applied is False for failure in failed)
            failed[0].applied = False if refused else None
            raise failed[0]

    async def _publish(self, delivery: Delivery) -> BusUnavailable | None:
        assert self._js is not None
        identity: dict[str, str] = {Header.MSG_ID: f"{delivery.job_id}.{delivery.fence}"}
        try:
            await self._js.publish(self._names.subject_of(delivery.worker), _encode(delivery), headers=identity)
        except NoStreamResponseError:
            self._link.renew()
            return self._link.unavailable("its stream is not there", applied=False)
        except APIError as error:
            return self._link.unavailable(f"the delivery was refused: {error.description}", applied=False)
        except nats.errors.ConnectionClosedError:
            return self._link.unavailable("there is no connection", applied=False)
        except (OSError, nats.errors.Error):
            return self._link.unavailable("the publish was not acknowledged", applied=None)
        return None

    def _tell_arrival(self, workers: Sequence[str]) -> None:
        """Only now: who was told earlier would look before there is something to take."""
        self._arrived(workers)
        self._untold.update(dict.fromkeys(workers))
        if self._untold and self._telling is None:
            self._telling = asyncio.create_task(self._tell_others(), name="holdfast-nats-arrivals")

    async def _tell_others(self) -> None:
        """The other planes, of all that was published since they were last told: under load that is much at once."""
        try:
            while self._untold:
                workers = list(islice(self._untold, TOLD_MAX))
                for worker in workers:
                    del self._untold[worker]
                await self._link.client().publish(self._names.arrivals, _encode(workers))
        except (OSError, nats.errors.Error, BusUnavailable):
            self._untold.clear()  # who is connected anew looks by itself
        finally:
            self._telling = None

    def _arrived(self, workers: Sequence[str]) -> None:
        for worker in workers:
            for callback in self._callbacks:
                callback(worker)

    # -- take --------------------------------------------------------------------------------------

    async def take(self, worker: str, *, limit: int) -> list[Delivery]:
        """Raises `BusUnavailable`."""
        reader = self._reader(worker)
        async with reader.turn:
            client = self._link.client()
            pull = await self._pull(client, worker, reader, limit)
            if pull.status == NOBODY_THERE:
                # The server removed the consumer, or was started anew.
                reader.has_consumer = False
                pull = await self._pull(client, worker, reader, limit)
            if not pull.messages and pull.status in {"", NOBODY_THERE, LOST}:
                raise self._link.unavailable("no answer to a question for deliveries", applied=None)
            return [delivery for message in pull.messages if (delivery := await self._accepted(message)) is not None]

    async def _pull(self, client: Client, worker: str, reader: _Reader, limit: int) -> _Pull:
        """Whatever is there now, up to the limit."""
        token = token_of(worker)
        self._pulls += 1
        pull = _Pull(f"{self._inbox}.{self._pulls}.{token}", limit)
        try:
            async with asyncio.timeout(self._timeout_s):
                if not reader.has_consumer:
                    await ensure_consumer(client.jetstream(), self._names, worker, taken_s=self._taken_s)
                    reader.has_consumer = True
                reader.pull = pull
                await client.publish(
                    f"$JS.API.CONSUMER.MSG.NEXT.{self._names.stream}.{token}",
                    _encode({"batch": limit, "no_wait": True}),
                    reply=pull.inbox,
                )
                await pull.ended.wait()
        except NotFoundError:
            self._link.renew()
            raise self._link.unavailable("its stream is not there", applied=False) from None
        except TimeoutError:
            pass
        except (OSError, nats.errors.Error) as error:
            raise self._link.unavailable(f"it cannot be asked for deliveries: {error}", applied=False) from error
        except asyncio.CancelledError:
            for message in pull.messages:
                await self._return(message)
            raise
        finally:
            reader.pull = None
        return pull

    async def _accepted(self, message: Msg) -> Delivery | None:
        """A message as a delivery that is to be settled; None if it is none."""
        try:
            delivery = _decode_delivery(message.data)
        except msgspec.DecodeError:
            await self._answer(message.reply, _TERM)
            logger.warning("delivery.unreadable", extra={"event": "delivery.unreadable", "subject": message.subject})
            return None
        self._taken.pop(delivery, None)
        self._taken[delivery] = _Taken(message.reply, message.metadata.num_delivered)
        if len(self._taken) > TAKEN_MAX:
            del self._taken[next(iter(self._taken))]
        return delivery

    def _reader(self, worker: str) -> _Reader:
        token = token_of(worker)
        reader = self._readers.pop(token, None) or _Reader()
        self._readers[token] = reader
        self._workers[token] = worker
        if len(self._readers) > WORKERS_MAX:
            oldest = next(iter(self._readers))
            if not self._readers[oldest].turn.locked():
                del self._readers[oldest], self._workers[oldest]
        return reader

    # -- settle ------------------------------------------------------------------------------------

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        """Never fails: what cannot be acknowledged now comes again, and is found stale."""
        for delivery in deliveries:
            taken = self._taken.pop(delivery, None)
            if taken is not None:
                await self._answer(taken.reply, _TERM if taken.given > GIVEN_MAX else _ACK)

    def given_too_often(self, delivery: Delivery) -> int:
        taken = self._taken.get(delivery)
        return taken.given if taken is not None and taken.given > GIVEN_MAX else 0

    async def _return(self, message: Msg) -> None:
        await self._answer(message.reply, b'-NAK {"delay": %d}' % int(RETURNED_S * 1e9))

    async def _answer(self, reply: str, word: bytes) -> None:
        with suppress(OSError, nats.errors.Error, BusUnavailable):
            await self._link.client().publish(reply, word)

    # -- what comes from the server ----------------------------------------------------------------

    async def _established(self, client: Client) -> None:
        self._js = client.jetstream(timeout=self._timeout_s)
        is_kept = await ensure_stream(self._js, self._names, replicas=self._options.replicas)
        if not is_kept:
            logger.warning(
                "bus.not_kept: the stream of deliveries is in the memory of NATS; whenever its server ends, their jobs "
                "wait for their dispatch timeout. None is lost. To change that: %s",
                self._names.on_disk,
                extra={"event": "bus.not_kept"},
            )
        self._inbox = client.new_inbox()
        await client.subscribe(f"{self._inbox}.*.*", cb=self._came, pending_msgs_limit=INBOUND_MAX)
        await client.subscribe(self._names.arrivals, cb=self._heard, pending_msgs_limit=INBOUND_MAX)
        await client.flush()
        # What was published while nobody listened here was announced to nobody here.
        self._arrived(list(self._workers.values()))
        for callback in self._return_callbacks:
            callback()

    def _lost(self) -> None:
        for reader in self._readers.values():
            if reader.pull is not None:
                reader.pull.end(LOST)

    async def _came(self, message: Msg) -> None:
        """A delivery, or the end of what there is."""
        reader = self._readers.get(message.subject.rpartition(".")[2])
        pull = reader.pull if reader is not None else None
        if not message.subject.startswith(f"{self._names.subjects}."):
            if pull is not None and message.subject == pull.inbox:
                pull.end((message.headers or {}).get(Header.STATUS, LOST))
        elif pull is not None and len(pull.messages) < pull.limit:
            pull.add(message)
        else:
            await self._return(message)

    async def _heard(self, message: Msg) -> None:
        """Another plane has published something."""
        with suppress(msgspec.DecodeError):
            self._arrived(_decode_workers(message.data))


def open_bus(url: str, *, runtime: Runtime) -> NatsBus:
    return NatsBus(parse(url), runtime=runtime)
