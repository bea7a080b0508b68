"""Every error of the lock library.

    LockError
    ├── LockBusy          (TimeoutError)     somebody else holds it, and the wait budget is spent
    ├── LeaseLost                            the lease ended under the holder; `.reason` says how
    ├── NotOwned                             key and token do not match: nothing was changed
    ├── StaleFence                           a resource has already seen a higher (fence, seq)
    ├── Unavailable       (ConnectionError)  the store did not answer; `.applied` says what is known
    ├── StoreRefused                         the store answered, and it cannot serve locks as it is
    └── UndeclaredClass   (LookupError)      no lock class of that name was declared

Bad arguments raise `ValueError`. `code` is stable and meant for programs; `status` is the HTTP
status a server would answer with. No message contains a token or a password.
"""

from __future__ import annotations

from enum import StrEnum


class LossReason(StrEnum):
    """How a lease ended under its holder. Operators must be able to tell an outage from a theft."""

    STOLEN = "stolen"
    """The store named another owner while the lease should still have been ours."""
    EXPIRED = "expired"
    """The lease ran out: it was not renewed, or a late renewal found it gone."""
    UNREACHABLE = "unreachable"
    """Renewals failed or hung until the trust window ended."""
    PAUSED = "paused"
    """This process did not run (stopped, suspended, loop blocked) until the window had ended."""
    REVOKED = "revoked"
    """The lock was removed at the store inside the window: by an operator, or with its data."""


class LockError(Exception):
    code = "lock-error"
    status = 500


class LockBusy(LockError, TimeoutError):
    code = "lock-busy"
    status = 423

    def __init__(self, key: str, *, waited_s: float, holder: str | None, retry_in_s: float) -> None:
        held = f"held by {holder}" if holder else "held"
        super().__init__(f"lock {key!r} is {held}; gave up after {waited_s:.2f} s")
        self.key = key
        self.waited_s = waited_s
        self.holder = holder
        self.retry_in_s = retry_in_s


class LeaseLost(LockError):
    code = "lease-lost"
    status = 409

    def __init__(self, key: str, *, reason: LossReason, fence: int) -> None:
        super().__init__(f"lease on {key!r} (fence {fence}) is lost: {reason}")
        self.key = key
        self.reason = reason
        self.fence = fence


class NotOwned(LockError):
    code = "not-owned"
    status = 409

    def __init__(self, key: str, *, operation: str, was_released: bool = False) -> None:
        why = "this lease was released" if was_released else "it is not owned with this token"
        super().__init__(f"cannot {operation} lock {key!r}: {why}")
        self.key = key
        self.operation = operation


class StaleFence(LockError):
    code = "stale-fence"
    status = 409

    def __init__(self, resource: str, *, current: tuple[int, int], offered: tuple[int, int]) -> None:
        super().__init__(
            f"{resource!r} has already accepted (fence, seq) {current}; {offered} is stale: "
            f"a newer holder took over, so stop and discard this work"
        )
        self.resource = resource
        self.current = current
        self.offered = offered


class Unavailable(LockError, ConnectionError):
    """A store call that ended without an answer.

    `applied` is True or False where the outcome is known, None where it is not. After None the
    state must be read again (every verb of `LockStore` is safe to repeat with the same token);
    it must never be assumed.
    """

    code = "store-unavailable"
    status = 503

    def __init__(self, subject: str, detail: str, *, applied: bool | None) -> None:
        super().__init__(f"{subject}: {detail}")
        self.subject = subject
        self.applied = applied

    @classmethod
    def not_open(cls, subject: str) -> Unavailable:
        return cls(subject, "it is not open: enter its Locks first, with `async with` or `with`", applied=False)


class StoreRefused(LockError):
    """The store is reachable, but wrong for this: a foreign file, read-only, bad password, disk full."""

    code = "store-refused"
    status = 500

    def __init__(self, subject: str, detail: str, *, next_step: str, full: bool = False) -> None:
        super().__init__(f"{subject}: {detail}. {next_step}")
        self.subject = subject
        self.next_step = next_step
        self.retryable = full
        """A full disk has room again some day, and then the very same request is served."""
        if full:
            self.status = 507


class UndeclaredClass(LockError, LookupError):
    code = "undeclared-class"
    status = 400

    def __init__(self, name: str, declared: list[str]) -> None:
        known = ", ".join(sorted(declared)) or "none"
        super().__init__(
            f"no lock class {name!r} is declared (declared: {known}); pass LockClass({name!r}, …) to Locks(classes=[…])"
        )
        self.name = name
