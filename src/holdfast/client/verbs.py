"""The verbs that both clients have, written down once: each is a request, and a client knows how to ask it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, overload

from holdfast.client import asks

if TYPE_CHECKING:
    from holdfast.client.async_client import AsyncClient
    from holdfast.client.sync_client import Client

P = ParamSpec("P")
T = TypeVar("T")


class Verb(Generic[P, T]):
    """A method made of a request: called on a `Client` it returns the answer, on an `AsyncClient` it is awaited."""

    def __init__(self, request: Callable[P, asks.Ask[T]]) -> None:
        self._request = request
        self.__doc__ = request.__doc__

    @overload
    def __get__(self, client: None, owner: type[object]) -> Self: ...

    @overload
    def __get__(self, client: Client, owner: type[object]) -> Callable[P, T]: ...

    @overload
    def __get__(self, client: AsyncClient, owner: type[object]) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, client: Client | AsyncClient | None, owner: type[object]) -> Any:
        if client is None:
            return self

        @wraps(self._request)
        def call(*args: P.args, **kwargs: P.kwargs) -> T | Coroutine[Any, Any, T]:
            return client.ask(self._request(*args, **kwargs))

        return call


class Verbs:
    submit = Verb(asks.submit)
    submit_many = Verb(asks.submit_many)
    get = Verb(asks.get)
    list = Verb(asks.list_jobs)
    events = Verb(asks.list_events)
    cancel = Verb(asks.cancel)
    retry = Verb(asks.retry)
    dead_letters = Verb(asks.dead_letters)
    dead_letter = Verb(asks.dead_letter)
    replay = Verb(asks.replay)
    effects = Verb(asks.effects)
    resolve_effect = Verb(asks.resolve_effect)
    workers = Verb(asks.workers)
    drain = Verb(asks.drain)
    locks = Verb(asks.locks)
