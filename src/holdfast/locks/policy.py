"""Lock classes: the declared policy of a family of keys. Pure values, validated once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

TTL_S_MIN = 0.05
TTL_S_MAX = 24 * 3600.0
KEY_BYTES_MAX = 512
LOOKS_PER_TTL = 40
"""How often the keeper looks at a lease."""

_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}\Z")


class Pattern(StrEnum):
    PER_ITEM = "per_item"
    """Held around one piece of work, then released."""
    TTL_HOLD = "ttl_hold"
    """Claimed for a window and kept to its end; only the owner may claim the next window early."""


class OnRenewalFailure(StrEnum):
    FENCE = "fence"
    """Cancel the work with `LeaseLost` before anybody else can be granted the lock."""
    CONTINUE = "continue"
    """Keep running, mark the lease `suspect`, count it."""


class OnStoreError(StrEnum):
    FAIL = "fail"
    """No lock, no work."""
    LOCAL = "local"
    """Exclude other work of this process only, with no fence; counted as a fallback."""


class Risk(StrEnum):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalPolicy:
    """When to renew, and when to stop believing. All in seconds from a request being sent."""

    ttl_s: float
    every_s: float
    timeout_s: float
    failures_max: int
    margin_s: float
    trust_s: float = field(init=False)
    """How long a request that succeeded is believed, from when it was sent."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "trust_s", self.ttl_s - self.margin_s)

    @property
    def retry_s(self) -> float:
        """From one failed try to the next: the last permitted try still times out before the
        trust window ends, so giving up always comes before the lease can expire. Each try may
        begin as late as the keeper's next look."""
        lateness = self.failures_max * self.ttl_s / LOOKS_PER_TTL
        room = self.trust_s - self.every_s - self.timeout_s - lateness
        return max(0.0, 0.98 * room / max(1, self.failures_max - 1))


@dataclass(frozen=True, slots=True)
class LockClass:
    """The policy of one family of keys.

    `name` is the namespace: it labels metrics and, unless `key_prefix` says otherwise, starts
    the keys. `ttl`, `renew_every`, `wait`, `margin` and `max_hold` are seconds. `renew_every`
    defaults to a third of the ttl; 0 switches renewal off. `wait` is how long `hold` and
    `acquire` wait for a busy lock. `local_mutex` makes tasks, or threads, of one process queue
    among themselves first and pass the lock on up to `local_passes` times, each with its own fence.
    `max_hold` ends a lease however well it renews: a stuck holder is not kept alive for ever.
    `dead_man` ends the process with a traceback if it is stuck when the trust window ends.
    """

    name: str
    ttl: float
    pattern: Pattern | str = field(default=Pattern.PER_ITEM, kw_only=True)
    renew_every: float | None = field(default=None, kw_only=True)
    renewal_failures: int = field(default=3, kw_only=True)
    on_renewal_failure: OnRenewalFailure | str = field(default=OnRenewalFailure.FENCE, kw_only=True)
    on_store_error: OnStoreError | str = field(default=OnStoreError.FAIL, kw_only=True)
    wait: float = field(default=2.0, kw_only=True)
    margin: float | None = field(default=None, kw_only=True)
    max_hold: float | None = field(default=None, kw_only=True)
    local_mutex: bool = field(default=False, kw_only=True)
    local_passes: int = field(default=8, kw_only=True)
    dead_man: bool = field(default=False, kw_only=True)
    risk: Risk | str = field(default=Risk.MEDIUM, kw_only=True)
    key_prefix: str | None = field(default=None, kw_only=True)
    #: Derived from the above; not a parameter.
    renewal: RenewalPolicy = field(init=False, repr=False, compare=False)
    ttl_ms: int = field(init=False, repr=False, compare=False)
    takes_turns: bool = field(init=False, repr=False, compare=False)
    """Whether those of one process queue among themselves first."""

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        if not _NAME.match(self.name):
            raise ValueError(f"lock class name {self.name!r}: use lower-case letters, digits, '.', '_' and '-'")
        _within(f"{self.name}: ttl", self.ttl, TTL_S_MIN, TTL_S_MAX)
        _within(f"{self.name}: wait", self.wait, 0.0, TTL_S_MAX)
        set_(self, "pattern", Pattern(self.pattern))
        set_(self, "on_renewal_failure", OnRenewalFailure(self.on_renewal_failure))
        set_(self, "on_store_error", OnStoreError(self.on_store_error))
        set_(self, "risk", Risk(self.risk))
        if self.max_hold is not None:
            _within(f"{self.name}: max_hold", self.max_hold, TTL_S_MIN, TTL_S_MAX)
        if self.renewal_failures < 1:
            raise ValueError(f"{self.name}: renewal_failures must be at least 1")
        if not 1 <= self.local_passes <= 64:
            raise ValueError(f"{self.name}: local_passes must be between 1 and 64")
        margin = self.ttl / 10 if self.margin is None else self.margin
        _within(f"{self.name}: margin", margin, 0.0, self.ttl / 2)
        every = self.ttl / 3 if self.renew_every is None else self.renew_every
        if self.pattern is Pattern.TTL_HOLD:
            every = 0.0
        if every < 0:
            raise ValueError(f"{self.name}: renew_every must be seconds, or 0 for no renewal, not {every}")
        timeout = min(2.0, self.ttl / 7)
        if every and not every + timeout < self.ttl - margin:
            raise ValueError(
                f"{self.name}: renewing every {every} s leaves no time to renew a ttl of {self.ttl} s; "
                f"use at most {self.ttl / 3:.3g} s"
            )
        set_(self, "ttl_ms", round(self.ttl * 1000))
        set_(self, "takes_turns", self.local_mutex or self.on_store_error is OnStoreError.LOCAL)
        set_(
            self,
            "renewal",
            RenewalPolicy(
                ttl_s=self.ttl,
                every_s=every,
                timeout_s=timeout,
                failures_max=self.renewal_failures,
                margin_s=margin,
            ),
        )
        if self.key_prefix is None:
            set_(self, "key_prefix", self.name.replace(".", ":") + ":")

    def key(self, item: str) -> str:
        """The key of one item, without the deployment's prefix."""
        try:
            is_good = item and item.isprintable() and " " not in item
        except AttributeError:
            kind = type(item).__name__
            raise TypeError(f"lock key {item!r} of class {self.name!r} must be a text, not {kind}: use str()") from None
        if not is_good:
            raise ValueError(
                f"lock key {item!r} of class {self.name!r}: use printable characters without spaces, at least one"
            )
        key = f"{self.key_prefix}{item}"
        if len(key) > KEY_BYTES_MAX / 4 and len(key.encode()) > KEY_BYTES_MAX:
            raise ValueError(f"lock key of class {self.name!r} is longer than {KEY_BYTES_MAX} bytes: {item[:40]!r}…")
        return key

    def with_policy(self, **changes: object) -> LockClass:
        """The same class with other settings, validated anew."""
        known = {f.name for f in fields(self) if f.init} - {"name", "key_prefix", "pattern"}
        unknown = sorted(changes.keys() - known)
        if unknown:
            raise ValueError(
                f"{self.name}: no such setting: {', '.join(unknown)} (there are: {', '.join(sorted(known))})"
            )
        return replace(self, **changes)  # type: ignore[arg-type]  # names checked above, values in __post_init__


def _within(what: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ValueError(f"{what} must be between {least} and {most} seconds, not {value}")
