"""The connection to NATS: made again whenever it is lost, after a pause that no two planes share.

The client's own way to reconnect is not used: it keeps what is published meanwhile in a buffer, and sends it late.
Here whoever calls while there is no connection is told so at once.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

import nats.errors
from nats.aio.client import Client

from holdfast.buses.nats.options import Options
from holdfast.errors import BusUnavailable, Invalid
from holdfast.locks.runtime import Runtime
from holdfast.locks.stores.certificate import distrusted

logger = logging.getLogger("holdfast")

PAUSE_S_FIRST = 0.1
PAUSE_S_MAX = 2.0
LASTED_S = 2.0
"""A connection that was of no use before that is made again after a longer pause than the last time: each that is made brings back
all that was put off, and if its stream has no leader yet, for nothing."""
LOOK_S = 1.0
"""The client tells when it has lost the connection; this often we look all the same."""
PING_S = 3
PINGS_UNANSWERED_MAX = 2
"""So many: nobody is there any more, although the socket is open."""
OUTBOUND_BYTES_MAX = 1 << 20


class _Careful(Client):
    """Refuses before it has said who it is. The client itself would go on without TLS if the server, or whoever
    stands between, offers none."""

    def _connect_command(self) -> bytes:
        if "tls" in self.options and not self._server_info.get("tls_required"):
            raise nats.errors.SecureConnWantedError
        return super()._connect_command()

    def cut(self) -> None:
        """Whatever has not been sent is gone."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()


class Link:
    """`established` makes a new connection usable, `lost` hears that it is not any more."""

    def __init__(
        self,
        options: Options,
        *,
        established: Callable[[Client], Awaitable[None]],
        lost: Callable[[], None],
        runtime: Runtime,
        timeout_s: float,
    ) -> None:
        self._options = options
        self._established = established
        self._lost = lost
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._client: _Careful | None = None
        self._forbidden = ""
        """What the server said last that this user may not do. Whatever was asked for is then not answered at all."""
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises `Invalid` where waiting would not help. A server that is away is waited for in the background:
        the plane can take jobs without it."""
        try:
            await self._connect()
        except (OSError, nats.errors.Error) as error:
            _refuse_hopeless(error, self._options)
            if self._forbidden:
                raise Invalid(f"NATS at {self._options.shown}: {self._forbidden}") from error
            self._tell_away(error)
        self._task = asyncio.create_task(self._keep(), name="holdfast-nats-link")

    async def close(self) -> None:
        try:
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait([self._task])
        finally:  # also if there is no time to wait for it
            await self._let_go()

    def client(self) -> Client:
        """Raises `BusUnavailable` at once where there is no connection."""
        if self._client is None or not self._client.is_connected:
            raise self.unavailable("there is no connection", applied=False)
        return self._client

    def unavailable(self, detail: str, *, applied: bool | None) -> BusUnavailable:
        if self._forbidden:
            detail = f"{detail}; {self._forbidden}"
        return BusUnavailable(f"NATS at {self._options.shown}", detail, applied=applied)

    def renew(self) -> None:
        """Make a new connection: this one is of no use, for its stream has gone."""
        self._ended.set()

    async def _keep(self) -> None:
        pause_s = PAUSE_S_FIRST
        now = asyncio.get_running_loop().time
        while True:
            if self._client is not None:
                made_at = now()
                await self._wait_lost(self._client)
                await self._let_go()
                logger.warning("bus.lost", extra={"event": "bus.lost", "server": self._options.shown})
                if now() - made_at >= LASTED_S:
                    pause_s = PAUSE_S_FIRST
            await asyncio.sleep(self._runtime.jitter(pause_s))
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
            try:
                await self._connect()
            except Exception as error:  # noqa: BLE001  (whatever it was: a link that gave up would never be noticed)
                self._tell_away(error)
            else:
                logger.warning("bus.connected", extra={"event": "bus.connected", "server": self._options.shown})

    async def _wait_lost(self, client: Client) -> None:
        while client.is_connected and not self._ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._ended.wait()

    async def _connect(self) -> None:
        client = _Careful()
        self._ended.clear()
        self._forbidden = ""

        async def ended() -> None:
            self._ended.set()

        try:
            await client.connect(
                servers=list(self._options.servers),
                name="holdfast",
                allow_reconnect=False,
                max_reconnect_attempts=1,  # of each server, in the one round that this is; 0 would be for ever
                reconnect_time_wait=0,
                connect_timeout=max(1, round(self._timeout_s)),
                ping_interval=PING_S,
                max_outstanding_pings=PINGS_UNANSWERED_MAX,
                pending_size=OUTBOUND_BYTES_MAX,
                flush_timeout=self._timeout_s,  # of whoever finds that many bytes waiting
                no_echo=True,  # what this plane tells the others it knows already
                error_cb=self._heard_error,
                closed_cb=ended,
                **self._options.access,
            )
            async with asyncio.timeout(self._timeout_s):
                await self._established(client)
        except BaseException:
            await _close(client)
            raise
        self._client = client

    async def _let_go(self) -> None:
        client, self._client = self._client, None
        self._lost()
        if client is not None:
            await _close(client)

    async def _heard_error(self, error: Exception) -> None:
        """What the client meets in the background: refused permissions, messages dropped because we are too slow."""
        what, level = _described(error), logging.DEBUG
        if "permissions violation" in what.lower():
            self._forbidden = f"{what.removeprefix('nats: ')}. {_granting(self._options.namespace)}"
            what, level = self._forbidden, logging.WARNING
        elif isinstance(error, nats.errors.SlowConsumerError):
            level = logging.WARNING
        logger.log(level, "bus.error %s", what, extra={"event": "bus.error"})

    def _tell_away(self, error: Exception) -> None:
        what = self._forbidden or _described(error)
        extra = {"event": "bus.unavailable", "server": self._options.shown, "error": what}
        logger.warning("bus.unavailable %s: %s", self._options.shown, what, extra=extra)


def _refuse_hopeless(error: Exception, options: Options) -> None:
    """What a person must put right, not time."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why, step = distrusted(error, authority="ca")
        raise Invalid(f"NATS at {options.shown}: {why}. {step}") from error
    if isinstance(error, FileNotFoundError | PermissionError):
        raise Invalid(f"the file of creds or nkey cannot be read: {error.strerror}") from error
    if isinstance(error, nats.errors.SecureConnWantedError):
        raise Invalid(f"NATS at {options.shown} offers no TLS, and the URL asks for it") from error
    if "authorization" in str(error).lower():
        raise Invalid(f"NATS at {options.shown} refuses these credentials: check user, password or token") from error


def _granting(namespace: str) -> str:
    publish, subscribe = f"{namespace}.>, $JS.API.> and $JS.ACK.>", f"{namespace}.arrivals and _INBOX.>"
    return f"Let this user publish to {publish}, and subscribe to {subscribe}"


def _described(error: Exception) -> str:
    return str(error) or type(error).__name__


async def _close(client: _Careful) -> None:
    # Closing flushes, which a server that does not read would make us wait for. It comes to its end in any case: what is left in the
    # middle of it could not be closed again.
    closing = asyncio.create_task(client.close(), name="holdfast-nats-closing")
    closing.add_done_callback(lambda closed: closed.cancelled() or closed.exception())
    try:
        await asyncio.wait([closing], timeout=LOOK_S)
    finally:
        client.cut()
