"""Jobs in Redis or Valkey: `redis://host:6379/0`, and all the forms that the lock store takes (TLS, Sentinel, Cluster).

Everything of a plane is under one hash tag (keys.py), which `?namespace=…` names. Writes are decided in
this process on what was read, and applied by one script if nobody has written since (`writer`). Any number of
planes may share it. They tell time by the server's clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.topic import Topics
from holdfast.stores.batch_store import BatchStore
from holdfast.stores.redis.database import RedisDatabase

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime


def open_store(url: str, *, topics: Topics, runtime: Runtime, timeout_s: float) -> RedisStore:
    return RedisStore(url, topics=topics, runtime=runtime, timeout_s=timeout_s)


class RedisStore(BatchStore):
    def __init__(self, url: str, *, topics: Topics, runtime: Runtime, timeout_s: float) -> None:
        super().__init__(RedisDatabase(url, topics=topics, runtime=runtime, timeout_s=timeout_s), topics=topics)
