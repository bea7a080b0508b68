"""Keys: who may ask, and who they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.conftest import Served, serving
from gateway.test_approvals import publish
from holdfast import errors
from holdfast.cli import cli
from holdfast.client import AsyncClient
from holdfast.config import Settings, load
from holdfast.core.people import People, digest_of

SHARED, ALICE, BOB = "k-shared", "k-alice", "k-bob"
PEOPLE = People({"alice": digest_of(ALICE.encode()), "bob": digest_of(BOB.encode())})


async def actor_of(served: Served, key: str, *, claimed: str = "") -> str:
    """Whom the plane takes the owner of the key for."""
    async with AsyncClient(served.url, api_key=key, actor=claimed) as client:
        return (await client.submit("t")).actor


async def test_key_of_a_person_proves_its_name_and_no_other(tmp_path: Path) -> None:
    async with serving(tmp_path, api_key=SHARED, people=PEOPLE) as served:
        assert await actor_of(served, ALICE) == "alice"
        assert await actor_of(served, ALICE, claimed="alice") == "alice"
        with pytest.raises(errors.Forbidden, match="alice's"):
            await actor_of(served, ALICE, claimed="bob")


async def test_shared_key_speaks_for_nobody_who_has_a_key(tmp_path: Path) -> None:
    async with serving(tmp_path, api_key=SHARED, people=PEOPLE) as served:
        assert await actor_of(served, SHARED) == ""
        assert await actor_of(served, SHARED, claimed="ci") == "ci"
        with pytest.raises(errors.Forbidden, match="a key of their own"):
            await actor_of(served, SHARED, claimed="alice")


async def test_without_a_shared_key_a_name_needs_its_key_and_a_wrong_key_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, people=PEOPLE) as served:
        assert await actor_of(served, "", claimed="ci") == "ci"
        assert await actor_of(served, BOB) == "bob"
        with pytest.raises(errors.Forbidden):
            await actor_of(served, "", claimed="alice")
        with pytest.raises(errors.Unauthorized) as refused:
            await actor_of(served, "k-alic")
        assert "k-alic" not in str(refused.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "127.0.0.1.example.com", "LOCALHOST.example.com"])
@pytest.mark.parametrize("people", [People(), PEOPLE], ids=["nobody", "people alone"])
def test_nobody_listens_beyond_loopback_without_a_key_that_is_asked_of_everybody(host: str, people: People) -> None:
    """Keys of people are no such: without the shared one everybody may ask who gives no name."""
    with pytest.raises(errors.Invalid, match="needs an API key"):
        Settings(host=host, people=people)

    assert Settings(host=host, people=people, api_key=SHARED).host == host


@pytest.mark.parametrize(
    "header",
    ["", "Basic k-shared", "Bearer", "k-shared", "Bearer k-share", "Bearer k-sharedd", "Bearer k-\xff"],
)
async def test_key_is_the_whole_key_and_in_no_other_place(tmp_path: Path, header: str) -> None:
    async with serving(tmp_path, api_key=SHARED, people=PEOPLE) as served:
        for path in (
            "/v1/jobs",
            "/metrics",
            "/openapi.json",
            "/v1/jobs?api_key=k-shared",
            "/v1/jobs?access_token=k-shared",
        ):
            asked = {
                b"authorization": header.encode("latin-1"),
                b"x-api-key": b"k-shared",
                b"cookie": b"api_key=k-shared",
            }
            answer = await served.http.get(path, headers=asked)

            assert answer.status_code == 401
            assert "k-shared" not in answer.text
            assert not answer.headers.get("access-control-allow-origin")


async def test_approver_is_who_has_the_key_not_who_says_so(tmp_path: Path) -> None:
    rule = {
        "name": "pay",
        "match": {"topic": "pay"},
        "action": "require_approval",
        "approval": {"approvers": ["alice"]},
    }
    async with serving(tmp_path, api_key=SHARED, people=PEOPLE) as served:
        await publish(served, {"format": 1, "default": {"action": "allow"}, "rules": [rule]})
        await served.client.submit("pay")
        [approval] = (await served.client.approvals()).items
        for key, claimed, refusal in ((SHARED, "alice", errors.Forbidden), (BOB, "", errors.NotApprover)):
            async with AsyncClient(served.url, api_key=key, actor=claimed) as other:
                with pytest.raises(refusal):
                    await other.approve(approval.id)
        async with AsyncClient(served.url, api_key=ALICE) as alice:
            decided = await alice.approve(approval.id)

        assert (decided.state, decided.words[-1].by) == ("approved", "alice")


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ('alice = "s3cret"', "holdfast key new alice"),
        ('"a b" = "sha256:' + "0" * 64 + '"', "no name"),
        ('alice = "sha256:' + "0" * 64 + '"\nbob = "sha256:' + "0" * 64 + '"', "same key"),
    ],
)
def test_settings_that_prove_nobody_are_refused(tmp_path: Path, section: str, said: str) -> None:
    file = tmp_path / "plane.toml"
    file.write_text(f"[people]\n{section}\n")

    with pytest.raises(errors.Invalid, match=said) as refused:
        load(file)

    assert "s3cret" not in str(refused.value)


async def test_key_that_the_command_makes_proves_its_owner(tmp_path: Path) -> None:
    made, another = (json.loads(CliRunner().invoke(cli, ["key", "new", "ann", "-o", "json"]).stdout) for _ in range(2))
    file = tmp_path / "plane.toml"
    file.write_text(made["setting"])

    async with serving(tmp_path, api_key=SHARED, people=load(file).people) as served:
        assert await actor_of(served, made["key"]) == "ann"
        with pytest.raises(errors.Unauthorized):
            await actor_of(served, another["key"])


def test_key_for_what_is_no_name_is_not_made() -> None:
    refused = CliRunner().invoke(cli, ["key", "new", "a b"])

    assert (refused.exit_code, "no name" in refused.stderr) == (2, True)


@pytest.mark.parametrize("people", [People(), PEOPLE])
async def test_contract_asks_for_a_name_where_no_key_tells_it(tmp_path: Path, people: People) -> None:
    async with serving(tmp_path, people=people) as served:
        document = (await served.http.get("/openapi.json")).json()
    decide = document["paths"]["/v1/approvals/{id}:decide"]["post"]["parameters"]

    assert [one["required"] for one in decide if one["name"] == "Holdfast-Actor"] == [not people]
