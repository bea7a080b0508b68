"""The page on the Python client has every verb as the code has it, and no other."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from holdfast import api
from holdfast.client import AsyncClient, Client, asks, replies, waiting
from holdfast.client.verbs import Verb, Verbs

PAGE = (Path(__file__).parent.parent / "docs/reference/client.md").read_text()


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def verbs(client: Client | AsyncClient) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in dir(client):
        if not name.startswith("_"):
            yield name, getattr(client, name)


def shown_arguments(call: Callable[..., Any]) -> str:
    """The arguments with their defaults; options that have none of their own as `name=…`."""
    hints, shown = get_type_hints(call), list[str]()
    for name, parameter in inspect.signature(call).parameters.items():
        is_options = parameter.kind is parameter.VAR_KEYWORD
        if (is_options or parameter.kind is parameter.KEYWORD_ONLY) and "*" not in shown:
            shown.append("*")
        if is_options:
            [options] = get_args(hints[name])
            shown.extend(f"{option}=…" for option in get_type_hints(options))
        elif parameter.default is parameter.empty:
            shown.append(name)
        else:
            shown.append(f"{name}={parameter.default!r}".replace("'", '"'))
    return ", ".join(shown)


def shown_type(hint: Any) -> str:
    """By its name under `holdfast.api`. The request of a verb is shown as its answer."""
    origin = get_origin(hint)
    if origin is asks.Ask:
        return shown_type(*get_args(hint))
    if origin is not None:
        return f"{origin.__name__.removeprefix('Async')}[{shown_type(*get_args(hint))}]"
    if hint is NoneType:
        return "None"
    module, _, resource = hint.__module__.rpartition(".")
    is_of_a_resource = module == api.__name__ and not hasattr(api, hint.__name__)
    return f"{resource}.{hint.__name__}" if is_of_a_resource else str(hint.__name__)


def row(name: str, call: Callable[..., Any]) -> str:
    promise = inspect.getdoc(call)
    assert promise, f"{name} has no docstring"
    returned = shown_type(get_type_hints(call)["return"])
    return f"| `{name}({shown_arguments(call)})` | `{returned}` | {promise.splitlines()[0]} |"


@pytest.mark.parametrize("client", [Client(), AsyncClient()], ids=["Client", "AsyncClient"])
def test_verbs_are_those_documented(client: Client | AsyncClient) -> None:
    """Both ways, and once each: arguments with their defaults, what is returned, and what is promised."""
    documented = re.findall(r"^\| `\w+\(.*\)` \| .* \|$", PAGE, re.MULTILINE)

    assert sorted(documented) == sorted(row(name, call) for name, call in verbs(client))


def test_clients_are_made_as_documented() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `\"(.*)\"` \|", section("Make one"), re.MULTILINE)
    [beside] = re.findall(r"^`AsyncClient` also takes (.*)$", section("Make one"), re.MULTILINE)
    defaults, of_async = (
        {name: one.default for name, one in inspect.signature(client).parameters.items()}
        for client in (Client, AsyncClient)
    )

    assert dict(rows) == defaults
    assert defaults.items() <= of_async.items()
    assert set(re.findall(r"`(\w+)`", beside)) == set(of_async) - set(defaults)


def test_what_is_not_repeated_is_documented() -> None:
    [told] = re.findall(r"^- Never: (.*)$", section("Tries and timeouts"), re.MULTILINE)
    [keyed] = re.findall(r"^- With an idempotency key: (.*?):", section("Tries and timeouts"), re.MULTILINE)
    once = {name for name, verb in vars(Verbs).items() if isinstance(verb, Verb) and not plain_ask(verb).repeatable}

    assert set(re.findall(r"`(\w+)`", told)) == once - set(re.findall(r"`(\w+)`", keyed))


def plain_ask(verb: Verb[..., Any]) -> asks.Ask[Any]:
    """What is asked where nothing is given that need not be."""
    parameters = inspect.signature(verb._request).parameters.values()
    needed = [one for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    return verb._request(**{one.name: "" for one in needed})


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (asks, {"ANSWER_S"}),
        (replies, {"PAUSES_S", "RETRY_AFTER_S_MAX", "KEEP_S", "WHOLE_S"}),
        (waiting, {"HEAR_S", "LONG_POLL_S", "OUTAGE_S", "PAUSE_S", "SILENCE_S"}),
    ],
    ids=["asks", "replies", "waiting"],
)
def test_times_are_those_documented(module: ModuleType, names: set[str]) -> None:
    told = re.findall(rf"^\| `{module.__name__}\.(\w+)` \| ([\d., ]+) s \|", PAGE, re.MULTILINE)

    assert {name: [float(value) for value in values.split(", ")] for name, values in told} == {
        name: list(value) if isinstance(value := getattr(module, name), tuple) else [value] for name in names
    }
