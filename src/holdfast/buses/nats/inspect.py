"""What NATS says of itself and of the stream that carries deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from nats.aio.client import Client
from nats.errors import NoRespondersError

from holdfast.buses.nats.link import Link
from holdfast.buses.nats.options import Options, parse
from holdfast.buses.nats.stream import NO_JETSTREAM, Names, no_jetstream, refuse_foreign
from holdfast.core.inspection import Aspect, Fact, Inspection, Replicas, Sync
from holdfast.errors import BusUnavailable

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime


async def inspect(url: str, *, runtime: Runtime, timeout_s: float) -> Inspection:
    """Raises `BusUnavailable`, `Invalid` or `ValueError`."""
    options = parse(url)
    names = Names.of(options.namespace)
    answers: list[dict[str, Any]] = []
    servers: list[str] = []

    async def ask(client: Client) -> None:
        servers.append(str(client.connected_server_version))
        try:
            reply = await client.request(f"$JS.API.STREAM.INFO.{names.stream}", b"", timeout=timeout_s)
        except NoRespondersError as error:
            raise no_jetstream() from error
        answer = msgspec.json.decode(reply.data)
        if answer.get("error", {}).get("err_code", 0) in NO_JETSTREAM:
            raise no_jetstream()
        answers.append(answer)

    link = Link(options, established=ask, lost=lambda: None, runtime=runtime, timeout_s=timeout_s)
    try:
        await link.open()
    finally:
        await link.close()
    if not answers:
        raise BusUnavailable(options.shown, "it did not answer", applied=False)
    return _told(options, names, servers[0], answers[0])


def _told(options: Options, names: Names, version: str, answer: dict[str, Any]) -> Inspection:
    config = answer.get("config", {})
    if config:
        refuse_foreign(names, config.get("retention"), config.get("subjects"))
    # Before the first plane has made it, the stream is as the URL wants it.
    copies, storage = config.get("num_replicas", options.replicas), config.get("storage", "file")
    return Inspection(
        engine="NATS JetStream",
        version=version,
        place=options.shown,
        facts=(
            _kept(options, names, storage),
            Fact(
                aspect=Aspect.REPLICAS,
                value=Replicas.SYNCHRONOUS if copies > 1 else Replicas.NONE,
                setting="num_replicas",
                found=str(copies),
                fix="on a cluster of three, ?replicas=3; without one, this is as good as it gets",
            ),
        ),
        settings={"stream": names.stream if config else "not made yet", "storage": storage},
        clock=_time_of(answer.get("ts", "")),
    )


def _kept(options: Options, names: Names, storage: str) -> Fact:
    if storage == "memory":
        # Whatever the server does about its disk: the stream is not on it. No server changes that of a stream it has.
        return Fact(
            aspect=Aspect.SYNC,
            value=Sync.NOTHING,
            setting="storage",
            found=storage,
            fix=f"{names.on_disk}, and start a plane",
        )
    return Fact(
        aspect=Aspect.SYNC,
        value=Sync.COMMIT if options.synced else Sync.INTERVAL,
        setting="sync_interval",
        found="always, by the word of the URL" if options.synced else "not said",
        fix="set sync_interval: always on the server, and say so with ?sync=always",
    )


def _time_of(stamp: str) -> float | None:
    """The server's time, of which it tells more digits than Python reads."""
    if not stamp:
        return None
    seconds, _, fraction = stamp.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{seconds}.{fraction[:6].ljust(6, '0')}+00:00").timestamp()
