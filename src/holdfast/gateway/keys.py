"""Keys: who may ask, and who they are.

One key is shared by programs: whoever has it may ask, and may give any name but that of a person who has a key of
their own. A person's key proves the person: what it asks, that person asks.
"""

from __future__ import annotations

import hmac

from holdfast.core.people import People
from holdfast.errors import Forbidden, Unauthorized

_ACTOR = b"holdfast-actor"


class Keys:
    def __init__(self, shared: str = "", people: People | None = None) -> None:
        self._shared = shared.encode()
        self._people = people or People()

    @property
    def required(self) -> bool:
        """Whether nobody is served without a key."""
        return bool(self._shared)

    @property
    def tell_who(self) -> bool:
        """Whether there are keys that prove who asks: their owners need not say it."""
        return bool(self._people)

    def admit(self, headers: dict[bytes, bytes]) -> None:
        """Puts the name that a person's key proves into the headers. Raises `Unauthorized`, and `Forbidden` for a name that
        this key does not prove."""
        if not self._shared and not self._people:
            return
        offered, claimed = _offered(headers), headers.get(_ACTOR, b"").decode("latin-1")
        person = self._people.find(offered)
        if person is not None:
            if claimed not in {"", person}:
                raise Forbidden(f"this key is {person}'s: leave Holdfast-Actor out, or give that name")
            headers[_ACTOR] = person.encode()
            return
        # Without a shared key none is needed; but one that is nobody's was meant to be somebody's.
        if (self._shared or offered) and not hmac.compare_digest(offered, self._shared):
            raise Unauthorized("send the API key, or your own, as `Authorization: Bearer <key>`")
        if claimed in self._people:
            raise Forbidden(f"{claimed} has a key of their own: send that one to speak as {claimed}")


def _offered(headers: dict[bytes, bytes]) -> bytes:
    scheme, _, offered = headers.get(b"authorization", b"").partition(b" ")
    return offered.strip() if scheme.lower() == b"bearer" else b""
