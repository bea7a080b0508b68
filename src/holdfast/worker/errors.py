"""What a handler may raise, and what is raised in it.

    Exception
    ├── Fatal             raised by a handler: it failed, and another attempt would fail as well
    ├── EffectAbsent      raised by the function of `job.once`: it did not happen, for certain
    ├── EffectUnknown     raised by `job.once`: it may have been done before; a person decides
    ├── PlaneRefused      the plane did not accept what the handler asked of it
    └── BrokenWorker      (ValueError) the worker cannot start as it is written
    BaseException
    └── AttemptOver       raised in a handler that must stop: cancelled, timed out, handed back
        └── LeaseLost     or it has no lease any more, and somebody else may begin the job at any moment

`AttemptOver` is no `Exception`, as `KeyboardInterrupt` is none: a handler that retries on every
exception must not retry on this one. A coroutine is stopped by `asyncio.CancelledError` instead, and
`job.over` says why; both are raised by `job.check()`.
"""

from __future__ import annotations


class Fatal(Exception):
    pass


class EffectAbsent(Exception):
    pass


class EffectUnknown(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(f"{key!r} may have been done before, and nobody knows; see `holdfast effect list`")


class PlaneRefused(Exception):
    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code = code


class BrokenWorker(ValueError):
    pass


class AttemptOver(BaseException):
    """`why`: cancelled, timed_out, handed_back, lost or stale."""

    def __init__(self, why: str) -> None:
        super().__init__(f"this attempt is over: {why}")
        self.why = why


class LeaseLost(AttemptOver):
    pass
