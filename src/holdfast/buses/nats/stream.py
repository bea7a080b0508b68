"""What NATS keeps for the bus, and under which names.

HOLDFAST_DELIVERIES               the stream: a work queue, so that what is acknowledged is gone
holdfast.deliveries.<worker>      one subject per worker; the body is the `Delivery`
<worker>                          its durable pull consumer: made when the worker first asks, and removed by the
                                  server when nobody has asked for a while
holdfast.arrivals                 not kept: the workers for whom there is something new, from plane to plane

With `?namespace=staging` they begin with that word instead: STAGING_DELIVERIES, staging.deliveries, staging.arrivals.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from nats.js import JetStreamContext, api
from nats.js.errors import BadRequestError, NotFoundError, ServiceUnavailableError

from holdfast.errors import Invalid

DEDUP_S = 120.0
"""The same delivery within this is one message. Later it is a second one, which finds its job started."""
AGE_S_MAX = 3600.0
"""A delivery that nobody took is stale long before: its job has had its dispatch timeout."""
DELIVERIES_KEPT_MAX = 1_000_000
"""More are refused, and their dispatch is rolled back."""
UNSETTLED_MAX = 1000
"""Per worker: more than this are not given out before some are settled."""
IDLE_S_MAX = 300.0
"""A worker's consumer that nobody asks is removed after this. What was sent to it stays in the stream."""
TOKEN_CHARS_MAX = 200
NO_JETSTREAM = (None, 10039, 10076)
"""Codes of the server: nobody answers at all, not for this account, not at all."""

_UNSAFE = re.compile(rb"[^A-Za-z0-9_-]")


def token_of(worker: str) -> str:
    """A worker's id as part of a subject and as a consumer's name. No two ids have the same."""
    token = _UNSAFE.sub(lambda found: b"=%02X" % found[0][0], worker.encode()).decode()
    if 0 < len(token) <= TOKEN_CHARS_MAX:
        return token
    return f"=={hashlib.sha256(worker.encode()).hexdigest()}"


class Names(NamedTuple):
    """Of one deployment. Two on one server share none, if their namespaces differ."""

    stream: str
    subjects: str
    arrivals: str

    @classmethod
    def of(cls, namespace: str) -> Names:
        return cls(f"{namespace.upper()}_DELIVERIES", f"{namespace}.deliveries", f"{namespace}.arrivals")

    def subject_of(self, worker: str) -> str:
        return f"{self.subjects}.{token_of(worker)}"

    @property
    def every_subject(self) -> str:
        return f"{self.subjects}.*"

    @property
    def on_disk(self) -> str:
        """How a stream that is not gets there."""
        return f"remove the stream, which a plane then makes again on disk: nats stream rm {self.stream}"


async def ensure_stream(js: JetStreamContext, names: Names, *, replicas: int) -> bool:
    """Find the stream or make it. True if it is kept on disk: one that is not does its work, until its server ends.

    Raises `Invalid` where this server cannot, or has another one of that name."""
    wanted = api.StreamConfig(
        name=names.stream,
        subjects=[names.every_subject],
        retention=api.RetentionPolicy.WORK_QUEUE,
        storage=api.StorageType.FILE,
        discard=api.DiscardPolicy.NEW,
        max_msgs=DELIVERIES_KEPT_MAX,
        max_age=AGE_S_MAX,
        duplicate_window=DEDUP_S,
        num_replicas=replicas,
    )
    try:
        try:
            found = (await js.stream_info(names.stream)).config
        except NotFoundError:
            found = (await js.add_stream(wanted)).config
    except BadRequestError as error:
        raise Invalid(f"NATS refuses the stream {names.stream}: {error.description}") from error
    except ServiceUnavailableError as error:
        if error.err_code not in NO_JETSTREAM:
            raise  # it is being started, or has no leader
        raise no_jetstream() from error
    refuse_foreign(names, found.retention, found.subjects)
    return found.storage == api.StorageType.FILE


def refuse_foreign(names: Names, retention: str | None, subjects: Sequence[str] | None) -> None:
    """Raises `Invalid` for a stream that would not carry deliveries, or would keep them."""
    if retention != api.RetentionPolicy.WORK_QUEUE.value or list(subjects or ()) != [names.every_subject]:
        raise Invalid(
            f"the stream {names.stream} is not one that holdfast made: remove it, or use another namespace or account"
        )


def no_jetstream() -> Invalid:
    return Invalid("NATS has no JetStream for this account: start it with -js, or enable it")


async def ensure_consumer(js: JetStreamContext, names: Names, worker: str, *, taken_s: float) -> None:
    """The worker's pull consumer, made if it is not there. Its state is worth nothing to us and is kept in memory:
    a consumer that was forgotten is made again, and gives out once more what was not settled."""
    await js.add_consumer(
        names.stream,
        api.ConsumerConfig(
            durable_name=token_of(worker),
            filter_subject=names.subject_of(worker),
            deliver_policy=api.DeliverPolicy.ALL,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=taken_s,
            max_deliver=-1,  # counted by the bus: JetStream would keep what it gives up, and tell nobody
            max_ack_pending=UNSETTLED_MAX,
            inactive_threshold=IDLE_S_MAX,
            mem_storage=True,
        ),
    )
