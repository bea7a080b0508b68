"""How a worker makes itself known to the plane: at its start, and whenever the plane has forgotten it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial

import msgspec

from holdfast import api
from holdfast.locks.runtime import Runtime
from holdfast.worker.identity import Identity, is_dead
from holdfast.worker.link import Link, Refused, Unreachable, patiently
from holdfast.worker.worker import Options

logger = logging.getLogger("holdfast.worker")

HEARTBEAT_S = 5.0
"""Until the plane has said how often it wants to hear something."""

UNABLE_MAX = 256


class Introduction:
    """Said by the worker's loop and by its keeper's, each over its own link; twice does no harm."""

    def __init__(self, options: Options, topics: Iterable[str], me: Identity) -> None:
        self._me = me
        self._hello = api.Hello(
            worker=me.worker_id(options.name),
            name=options.name,
            pool=options.pool,
            topics=list(topics),
            labels=dict(options.labels),
            slots=options.slots,
            backlog=options.backlog,
            host=me.host,
            boot_id=me.boot_id,
            pid=me.pid,
            started_at=me.started_at,
        )
        self.heartbeat_s = HEARTBEAT_S
        self.unable = ""
        """Why this worker can begin nothing now."""
        self.leaving = False
        """A plane that has forgotten this worker has also forgotten that it wants nothing more."""

    async def say(self, link: Link) -> None:
        """Say hello; and if a predecessor on this host is dead, say that as well."""
        hello = msgspec.structs.replace(self._hello, unable=self.unable[:UNABLE_MAX])
        reply = await link.hello(hello)
        self.heartbeat_s = reply.heartbeat_s
        dead = [worker for worker in reply.predecessors if is_dead(worker, self._me)]
        if dead:
            logger.info("worker.predecessor_dead workers=%s", ",".join(dead))
            await link.hello(msgspec.structs.replace(hello, predecessor_dead=dead))
        if self.leaving:
            await link.goodbye(gone=False)

    async def say_able(self, link: Link, unable: str, *, runtime: Runtime) -> None:
        """Why this worker can begin nothing from now on; or nothing: it can again. Repeated until it is heard, or it leaves."""
        self.unable = unable
        try:
            await patiently(partial(self.say, link), runtime=runtime, while_=lambda: not self.leaving)
        except (Unreachable, Refused) as error:
            logger.warning("worker.not_registered error=%s", error)

    async def say_again(self, link: Link, error: Unreachable | Refused) -> bool:
        """If the error says that the plane does not know this worker: hello again. Whether that was heard."""
        if not isinstance(error, Refused) or error.status != 404:
            return False
        try:
            await self.say(link)
        except (Unreachable, Refused) as again:
            logger.warning("worker.not_registered error=%s", again)
            return False
        return True
