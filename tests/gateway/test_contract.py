"""The OpenAPI document is true: schemathesis finds no 5xx and nothing that contradicts it."""

from __future__ import annotations

import asyncio
import os
import queue
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance

from gateway.conftest import serving
from holdfast import api
from holdfast.client import Client
from holdfast.gateway.problems import TITLES
from holdfast.gateway.routes import ROUTES

AnyCase = Any
"""`schemathesis.Case`: mypy does not follow it there (pyproject.toml)."""
EXAMPLES = int(os.environ.get("HOLDFAST_TEST_EXAMPLES", "0"))
"""Per operation and mode, drawn anew each time, if somebody asks for them; else the same three in every test run."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A plane in a thread of its own: schemathesis has no loop."""
    address: queue.Queue[str] = queue.Queue()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve(directory: Path) -> None:
        async with serving(directory) as served:
            address.put(served.url)
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve(tmp_path_factory.mktemp("contract"))))
    thread.start()
    yield address.get(timeout=20)
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def known(url: str) -> dict[str, Any]:
    """One of each thing, so that not every request is about something that does not exist."""
    with Client(url) as client, httpx2.Client(base_url=url, trust_env=False) as http:
        hello = {"worker": "w1", "name": "w1", "topics": ["quick"], "slots": 5}
        http.post("/v1/work/hello", json=hello).raise_for_status()
        ends = {}
        for end in ("failed", "running"):
            job = client.submit("quick", idempotency_key=end)
            claimed = http.post("/v1/work/claim", json={"worker": "w1", "wait_s": 5, "start": True}).json()
            ends[end] = {"job_id": job.id, "fence": claimed["deliveries"][0]["fence"]}
        outcome = {**ends["failed"], "outcome": "failed"}
        http.post("/v1/work/complete", json={"worker": "w1", "outcomes": [outcome]}).raise_for_status()
        http.post("/v1/work/effect/prepare", json={"worker": "w1", **ends["running"], "key": "k"}).raise_for_status()
        [letter] = client.dead_letters().items
        return {
            "id": job.id,
            "job": job.id,
            "key": "k",
            "number": str(letter.number),
            "worker": "w1",
            **ends["running"],
        }


# It is the plane, in its own thread, that draws while hypothesis watches.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning")
@pytest.mark.timeout(
    400 if not EXAMPLES else 0
)  # all routes, one after the other: on a busy machine that takes minutes
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_answers_are_those_documented(url: str, known: dict[str, Any], mode: GenerationMode) -> None:
    # The event stream is left out: it answers for as long as somebody listens.
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json").exclude(path="/v1/events")
    broken: list[str] = []
    for found in schema.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()
        try:
            walk(operation.as_strategy(generation_mode=mode), known if mode is GenerationMode.POSITIVE else {})
        except Unsatisfiable:
            continue  # nothing about this operation can be wrong
        except FailureGroup as failures:
            broken += [f"{operation.label}: {failure}" for failure in failures.exceptions]

    assert broken == []


def walk(cases: SearchStrategy[AnyCase], known: dict[str, Any]) -> None:
    @given(case=cases)
    @settings(
        max_examples=EXAMPLES or 3, deadline=None, derandomize=not EXAMPLES, suppress_health_check=list(HealthCheck)
    )
    def ask(case: AnyCase) -> None:
        if known:
            make_sensible(case, known)
        answer = case.call(timeout=20)
        # A schema-valid request may still come to a state that refuses it.
        refused = answer.status_code >= 400 and answer.json()["code"] in {"idempotency-key-reused", "version-mismatch"}
        case.validate_response(answer, excluded_checks=[positive_data_acceptance] if refused else None)

    ask()


def make_sensible(case: AnyCase, known: dict[str, Any]) -> None:
    """What no schema can say: cursors come from pages, a key is told once, a label is asked for once, and a whole number is
    written without a point.

    Half of the requests that name something name what is there, and none waits for a minute.
    """
    if isinstance(case.body, dict | list):  # one that was left out must not be touched: it would count as a wrong one
        case.body = whole(case.body)
    if labels := case.query.get("label"):
        case.query["label"] = list({label.partition("=")[0]: label for label in labels}.values())
    for part in (case.path_parameters, case.body):
        if isinstance(part, dict) and len(str(part)) % 2:
            part.update({name: known[name] for name in part if name in known})
    for name in ("cursor", "wait"):
        case.query.pop(name, None)
    if isinstance(case.body, dict):
        case.body.pop("wait_s", None)
        case.body |= meant(case.path, case.body)
        if "Idempotency-Key" in case.headers:
            case.body.pop("idempotency_key", None)


def meant(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What a body must contain to mean something, where its schema alone does not see to it."""
    if path.startswith("/v1/policy") and "document" in body:
        return {"document": {"format": 1, "default": {"action": "allow"}}}  # has a page of its own
    if path == "/v1/schedules":
        return {"cron": "", "every_s": 60, "job": {"topic": "t"}, "run": None}
    if path == "/v1/workflows":
        return {"document": "name: w\nsteps: [{id: one, kind: job, topic: quick}]"}  # likewise
    if path.startswith("/v1/matrix:") and "rules" in body:
        return {"cell": "risk=high", "rules": {"failures": 2}}  # it must be about a lock that there is
    if path == "/v1/webhooks":
        return {"url": "https://example.com/"}
    return {}


def whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: whole(member) for name, member in value.items()}
    if isinstance(value, list):
        return [whole(member) for member in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def test_document_has_every_route(url: str) -> None:
    document = httpx2.get(f"{url}/openapi.json", trust_env=False).json()

    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(route.method, route.path) for route in ROUTES}
    assert document["openapi"] == "3.1.0"
    assert set(api.Problem.__struct_fields__) == set(document["components"]["schemas"]["Problem"]["properties"])


def test_reference_page_has_every_route_and_problem() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/http-api.md").read_text()

    listed = re.findall(r"^\| `([A-Z]+) (\S+)` \|", page, re.MULTILINE)
    assert listed == [(route.method, route.path) for route in ROUTES] + [("GET", "/openapi.json")]
    assert set(re.findall(r"^\| `([a-z-]+)` \| \d{3} \|", page, re.MULTILINE)) <= set(TITLES)
