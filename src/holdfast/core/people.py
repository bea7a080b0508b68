"""People who can prove who they are: each has a key of their own, of which the plane knows the digest alone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from holdfast.errors import Invalid

ACTOR = r"^[A-Za-z0-9][A-Za-z0-9_.:@/+-]{0,127}$"
"""The name of whoever asks for something."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def digest_of(key: bytes) -> str:
    # Plain SHA-256: a key is 256 random bits, which nobody finds by trying.
    return f"sha256:{hashlib.sha256(key).hexdigest()}"


@dataclass(frozen=True)
class People:
    """By name, and by the digest of the key that proves it. Raises `Invalid` for what is no name or no digest."""

    digests: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, digest in self.digests.items():
            if not re.fullmatch(ACTOR, name):
                raise Invalid(f"people: {name!r} is no name: it must match {ACTOR}")
            if not _DIGEST.fullmatch(str(digest)):
                raise Invalid(
                    f"people: {name} needs the digest of a key, sha256:…: `holdfast key new {name}` makes one"
                )
        if len(self._names) < len(self.digests):
            raise Invalid("people: two of them have the same key; nobody could tell who it is")

    @cached_property
    def _names(self) -> dict[str, str]:
        return {digest: name for name, digest in self.digests.items()}

    def __contains__(self, name: str) -> bool:
        return name in self.digests

    def __len__(self) -> int:
        return len(self.digests)

    def find(self, key: bytes) -> str | None:
        """Whose key it is."""
        # Looked up by its digest: how long that takes says nothing about the key.
        return self._names.get(digest_of(key)) if self._names and key else None
