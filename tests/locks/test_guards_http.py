"""Fence headers, the middleware that checks them, and the marks it keeps."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import httpx2
import pytest
from fenced_lease import Lease
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from holdfast.locks.errors import LeaseLost
from holdfast.locks.fence import Mark
from holdfast.locks.guards.http import RESOURCE_BYTES_MAX, SCOPE_KEY, FenceMiddleware, fence_headers
from holdfast.locks.guards.marks import SqliteMarks


@pytest.fixture
def marks(tmp_path: Path) -> Iterator[SqliteMarks]:
    opened = SqliteMarks(tmp_path / "marks.db")
    yield opened
    opened.close()


async def echo(request: Request) -> JSONResponse:
    passed = request.scope.get(SCOPE_KEY)
    if passed is None:
        return JSONResponse({})
    return JSONResponse({"resource": passed.resource, "mark": list(passed.mark), "repeated": passed.repeated})


app = Starlette(routes=[Route("/", echo, methods=["GET", "PUT", "DELETE"])])


def client_of(marks: SqliteMarks, **options: Any) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(FenceMiddleware(app, marks, **options))
    return httpx2.AsyncClient(transport=transport, base_url="http://test")


@pytest.fixture
async def client(marks: SqliteMarks) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(marks) as opened:
        yield opened


# -- marks -----------------------------------------------------------------------------------------


def test_mark_only_rises_and_each_resource_has_its_own(marks: SqliteMarks) -> None:
    assert marks.offer("x", Mark(5, 2)).ruling.accepted
    assert marks.offer("y", Mark(1, 1)).ruling.accepted

    stale = marks.offer("x", Mark(5, 1))
    repeated = marks.offer("x", Mark(5, 2))

    assert (stale.ruling.accepted, stale.current) == (False, Mark(5, 2))
    assert (repeated.ruling.accepted, repeated.ruling.repeated) == (True, True)


def test_once_per_fence_admits_one_sequence_number(marks: SqliteMarks) -> None:
    assert marks.offer("x", Mark(5, 1), once_per_fence=True).ruling.accepted
    assert not marks.offer("x", Mark(5, 2), once_per_fence=True).ruling.accepted
    assert marks.offer("x", Mark(6, 1), once_per_fence=True).ruling.accepted


def test_marks_outlive_the_process_and_are_shared(marks: SqliteMarks, tmp_path: Path) -> None:
    marks.offer("x", Mark(5, 2))
    second = SqliteMarks(tmp_path / "marks.db")

    assert not second.offer("x", Mark(4, 9)).ruling.accepted
    second.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_marks_of_a_forked_child_are_kept_when_its_parent_closes(tmp_path: Path) -> None:
    """As of a server that loads the application, then forks: SQLite's locks on the file stay with the parent."""
    path = tmp_path / "marks.db"
    marks = SqliteMarks(path)
    assert marks.offer("r", Mark(1, 1)).ruling.accepted
    closed, tell_closed = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.read(closed, 1)
            status = 0 if marks.offer("r", Mark(10, 1)).ruling.accepted else 2
        finally:
            os._exit(status)
    marks.close()
    os.write(tell_closed, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    assert not SqliteMarks(path).offer("r", Mark(5, 1)).ruling.accepted


def test_highest_of_many_concurrent_offers_stays(marks: SqliteMarks, tmp_path: Path) -> None:
    second = SqliteMarks(tmp_path / "marks.db")
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda n: (second if n % 2 else marks).offer("x", Mark(n % 50 + 1, 1)), range(100)))
    second.close()

    assert marks.offer("x", Mark(1, 1)).current == Mark(50, 1)


def test_marks_are_synced_at_each_commit(marks: SqliteMarks) -> None:
    assert marks._connection is not None
    assert marks._connection.pragma("synchronous") == 2
    assert marks._connection.pragma("journal_mode") == "wal"


# -- the middleware --------------------------------------------------------------------------------


async def test_fenced_request_passes_and_the_app_is_told(client: httpx2.AsyncClient) -> None:
    response = await client.put("/", headers=fence_headers(Lease(7), "konto/ü 42"))

    assert response.status_code == 200
    assert response.json() == {"resource": "konto/ü 42", "mark": [7, 1], "repeated": False}


async def test_stale_caller_is_refused_with_a_problem(client: httpx2.AsyncClient) -> None:
    old, new = Lease(7), Lease(8)
    assert (await client.put("/", headers=fence_headers(old, "x"))).status_code == 200
    assert (await client.get("/", headers=fence_headers(new, "x"))).status_code == 200  # a fenced read claims

    response = await client.put("/", headers=fence_headers(old, "x"))

    assert response.status_code == 409
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (problem["code"], problem["status"]) == ("stale-fence", 409)
    assert problem["current"] == {"fence": 8, "seq": 1}
    assert problem["offered"] == {"fence": 7, "seq": 2}
    assert {"type", "title", "detail"} < problem.keys()


async def test_delayed_earlier_request_of_the_same_holder_is_refused(client: httpx2.AsyncClient) -> None:
    lease = Lease(7)
    first, second = fence_headers(lease, "x"), fence_headers(lease, "x")
    await client.put("/", headers=second)

    assert (await client.put("/", headers=first)).status_code == 409


async def test_repeated_request_passes_as_a_repetition(client: httpx2.AsyncClient) -> None:
    headers = fence_headers(Lease(7), "x")
    await client.put("/", headers=headers)

    assert (await client.put("/", headers=headers)).json()["repeated"] is True


@pytest.mark.parametrize(
    "change",
    [
        {"Holdfast-Fence": ""},
        {"Holdfast-Fence": "-1"},
        {"Holdfast-Fence": "0"},
        {"Holdfast-Fence": "9" * 30},
        {"Holdfast-Seq": "1.5"},
        {"Holdfast-Seq": "²"},
        {"Holdfast-Seq": None},
        {"Holdfast-Resource": ""},
        {"Holdfast-Resource": "%ff"},
        {"Holdfast-Resource": "a%00b"},
        {"Holdfast-Resource": "Ã©"},
        {"Holdfast-Resource": "x" * (RESOURCE_BYTES_MAX + 1)},
    ],
    ids=str,
)
async def test_malformed_headers_are_refused(client: httpx2.AsyncClient, change: dict[str, str | None]) -> None:
    headers = {**fence_headers(Lease(7), "x"), **change}
    sent = [(name.encode(), value.encode("latin-1")) for name, value in headers.items() if value is not None]

    response = await client.put("/", headers=sent)

    assert response.status_code == 400
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["code"] == "malformed-fence"


async def test_header_given_twice_is_refused(client: httpx2.AsyncClient) -> None:
    headers = [*fence_headers(Lease(7), "x").items(), ("Holdfast-Fence", "8")]

    assert (await client.put("/", headers=headers)).status_code == 400


async def test_headers_are_optional_unless_required(client: httpx2.AsyncClient, marks: SqliteMarks) -> None:
    assert (await client.put("/")).json() == {}

    async with client_of(marks, required=True) as strict:
        refused = await strict.put("/")
        assert (await strict.get("/")).status_code == 200
        assert (await strict.put("/", headers=fence_headers(Lease(7), "x"))).status_code == 200
    assert refused.status_code == 428
    assert refused.json()["code"] == "fence-required"


@pytest.mark.parametrize("name", ["DELETE", "delete"])
async def test_methods_that_require_headers_can_be_chosen(marks: SqliteMarks, name: str) -> None:
    async with client_of(marks, required=True, methods={name}) as chosen:
        assert (await chosen.put("/")).status_code == 200
        assert (await chosen.delete("/")).status_code == 428


async def test_once_per_fence_is_an_option(marks: SqliteMarks) -> None:
    lease = Lease(7)
    async with client_of(marks, once_per_fence=True) as strict:
        assert (await strict.put("/", headers=fence_headers(lease, "x"))).status_code == 200
        assert (await strict.put("/", headers=fence_headers(lease, "x"))).status_code == 409


async def test_other_protocols_are_left_alone(marks: SqliteMarks) -> None:
    seen = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    await FenceMiddleware(inner, marks, required=True)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]

    assert seen == ["lifespan"]


async def test_request_is_not_let_through_when_its_mark_cannot_be_kept(marks: SqliteMarks, tmp_path: Path) -> None:
    assert marks._connection is not None
    marks._connection.set_busy_timeout(10)
    blocking = apsw.Connection(str(tmp_path / "marks.db"))
    blocking.execute("BEGIN IMMEDIATE")
    async with client_of(marks) as client:
        refused = await client.put("/", headers=fence_headers(Lease(7), "x"))
        blocking.close()
        passed = await client.put("/", headers=fence_headers(Lease(7), "x"))

    assert (refused.status_code, refused.json()["code"]) == (503, "store-unavailable")
    assert passed.status_code == 200


def test_lease_without_a_fence_gets_no_headers() -> None:
    with pytest.raises(ValueError, match="held locally"):
        fence_headers(Lease(0), "x")
    with pytest.raises(ValueError, match="NUL"):
        fence_headers(Lease(7), "x\0y")


def test_lost_lease_gets_no_headers() -> None:
    with pytest.raises(LeaseLost):
        fence_headers(Lease(7, lost=True), "x")
