"""Who we are to NATS, whom we trust, and that none of it is ever shown."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import nats
import pytest
from tls_door import MAKERS, certified

from holdfast.buses import inspect_bus, open_bus
from holdfast.buses.nats.options import parse
from holdfast.config import explain
from holdfast.errors import BusUnavailable, Invalid
from holdfast.locks.runtime import SYSTEM
from holdfast.stores import StoreWithBus
from plane.nats_buses import NAMES, nats_bus, nats_running
from plane.test_nats_bus import a_delivery

SECRET = "hunter2"


def test_url_names_servers_user_and_options() -> None:
    options = parse("nats://me:p%40ss@a,b:4333,[::1]:1?replicas=3&sync=always")

    assert options.servers == ("nats://a:4222", "nats://b:4333", "nats://[::1]:1")
    assert options.access == {"user": "me", "password": "p@ss"}
    assert (options.replicas, options.synced) == (3, True)
    assert parse("nats://t0ken@a").access == {"token": "t0ken"}
    assert "p@ss" not in repr(options)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (f"nats://me:{SECRET}@", "no host"),
        (f"nats://me:{SECRET}@a:x", "no good port"),
        (f"nats://me:{SECRET}/x@a", "percent-encoded"),
        (f"nats://me:{SECRET}@a?replica=3", "no option replica"),
        (f"nats://me:{SECRET}@a?replicas=9", "between 1 and 5"),
        (f"nats://me:{SECRET}@a?sync=never", "must be always"),
        (f"nats://me:{SECRET}@a?namespace=a.b", "small letters"),
        (f"nats://me:{SECRET}@a?namespace=", "small letters"),
        (f"tls://me:{SECRET}@a?cert=c.pem", "go together"),
        (f"tls://me:{SECRET}@a?ca=missing.pem", "No such file"),
        (f"nats://a?creds={SECRET}.creds", "nats-py\\[nkeys\\]"),
        (f"kafka://me:{SECRET}@a", "nats://"),
    ],
)
async def test_url_that_will_not_do_is_refused_without_its_password(store: StoreWithBus, url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        async with open_bus(url, store=store, runtime=SYSTEM):
            pass

    assert SECRET not in str(caught.value)


def test_password_is_not_among_the_settings_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plane.toml"
    file.write_text("")
    assert ("plane.bus", "", "default") in explain(file)

    monkeypatch.setenv("HOLDFAST_BUS", f"nats://me:{SECRET}@a:4222")

    assert ("plane.bus", "nats://a:4222", "HOLDFAST_BUS") in explain(file)


async def test_wrong_password_is_refused_at_the_start_and_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    with nats_running('authorization { user: "me", password: "right" }') as server, caplog.at_level(logging.DEBUG):
        with pytest.raises(Invalid, match="refuses these credentials") as caught:
            async with nats_bus(f"nats://me:{SECRET}@127.0.0.1:{server.port}"):
                pass
        async with nats_bus(f"nats://me:right@127.0.0.1:{server.port}") as bus:
            await bus.publish([a_delivery()])
            server.kill()

    assert SECRET not in str(caught.value) + caplog.text
    assert "right" not in caplog.text


async def test_user_may_be_limited_to_what_a_plane_needs() -> None:
    """As docs/how-to/run-with-nats.md says."""
    publish = 'publish: ["holdfast.>", "$JS.API.>", "$JS.ACK.>"]'
    subscribe = 'subscribe: ["holdfast.arrivals", "_INBOX.>"]'
    user = f'{{ user: "me", password: "right", permissions: {{ {publish}, {subscribe} }} }}'
    with nats_running(f"authorization {{ users: [{user}] }}") as server:
        url = f"nats://me:right@127.0.0.1:{server.port}"
        async with nats_bus(url, taken_s=0.1) as one, nats_bus(url, taken_s=0.1) as two:
            heard: asyncio.Queue[str] = asyncio.Queue()
            two.on_arrival(heard.put_nowait)
            await one.publish([a_delivery()])
            async with asyncio.timeout(5):
                assert await heard.get() == "w1"

            await two.settle(await two.take("w1", limit=10))

            await asyncio.sleep(0.2)
            assert await two.take("w1", limit=10) == []


def limited(publish: str, subscribe: str) -> str:
    """To what a plane needs, but for what is left out."""
    permissions = f"permissions: {{ publish: [{publish}], subscribe: [{subscribe}] }}"
    return f'authorization {{ users: [{{ user: "me", password: "right", {permissions} }}] }}'


@pytest.mark.parametrize(
    "limits",
    [limited('"holdfast.>"', '"_INBOX.>"'), limited('">"', '"holdfast.arrivals"')],
    ids=["its questions", "the answers"],
)
async def test_user_who_may_not_even_ask_for_the_stream_is_refused_at_the_start_and_told_what_to_grant(
    limits: str,
) -> None:
    """NATS leaves unanswered what it forbids: without a word it would look as if nobody were there."""
    with nats_running(limits) as server:
        url = f"nats://me:right@127.0.0.1:{server.port}"
        with pytest.raises(Invalid, match=r"(?s)ermissions.*publish to holdfast\.>, \$JS\.API\.>"):
            async with nats_bus(url, timeout_s=0.5):
                pass
        with pytest.raises(Invalid, match="ermissions"):
            await inspect_bus(url, runtime=SYSTEM, timeout_s=0.5)


async def test_what_a_user_may_not_do_is_named_where_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    limits = limited('"$JS.API.STREAM.>", "$JS.ACK.>"', '"holdfast.arrivals", "_INBOX.>"')
    with nats_running(limits) as server:
        async with nats_bus(f"nats://me:right@127.0.0.1:{server.port}", timeout_s=0.5) as bus:
            with pytest.raises(
                BusUnavailable, match=r"(?s)ermissions.*holdfast\.deliveries\.w1.*publish to holdfast\.>"
            ):
                await bus.publish([a_delivery()])
            with pytest.raises(BusUnavailable, match=r"ermissions.*consumer"):
                await bus.take("w1", limit=10)

    assert "bus.error" in caplog.text
    assert "right" not in caplog.text


@pytest.mark.parametrize("url", [f"kafka://me:{SECRET}@a", f"nats://me:{SECRET}@a?x=1"])
def test_command_refuses_a_bus_without_showing_its_password(url: str, tmp_path: Path) -> None:
    command = ["up", "--store", f"sqlite:///{tmp_path / 'plane.db'}", "--bus", url, "--port", "0"]
    done = subprocess.run([sys.executable, "-m", "holdfast", *command], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "--bus" in done.stderr
    assert SECRET not in done.stdout + done.stderr


async def test_server_without_jetstream_is_refused_at_the_start_and_told_by_the_doctor() -> None:
    with nats_running() as server:
        server.stop()
        conf = server.directory / "nats.conf"
        conf.write_text(conf.read_text().splitlines()[0])
        server.start()

        with pytest.raises(Invalid, match="start it with -js"):
            async with nats_bus(server.url):
                pass
        with pytest.raises(Invalid, match="start it with -js"):
            await inspect_bus(server.url, runtime=SYSTEM, timeout_s=20)


async def test_account_without_jetstream_is_told_by_the_doctor_as_by_the_plane() -> None:
    with nats_running('accounts { A { jetstream: disabled, users: [{ user: "me", password: "right" }] } }') as server:
        url = f"nats://me:right@127.0.0.1:{server.port}"
        with pytest.raises(Invalid, match="for this account"):
            async with nats_bus(url):
                pass
        with pytest.raises(Invalid, match="for this account"):
            await inspect_bus(url, runtime=SYSTEM, timeout_s=20)


async def test_stream_that_somebody_else_has_made_is_told_by_the_doctor_as_by_the_plane() -> None:
    with nats_running() as server:
        client = await nats.connect(server.url)
        await client.jetstream().add_stream(name=NAMES.stream, subjects=[f"{NAMES.subjects}.*"])
        await client.close()
        with pytest.raises(Invalid, match="is not one that holdfast made"):
            async with nats_bus(server.url):
                pass
        with pytest.raises(Invalid, match="is not one that holdfast made"):
            await inspect_bus(server.url, runtime=SYSTEM, timeout_s=20)


async def test_tls_that_is_asked_for_is_not_done_without() -> None:
    """Before the password is sent: whoever stands in between would ask for it in the open."""
    with nats_running('authorization { user: "me", password: "right" }') as server:
        with pytest.raises(Invalid, match="offers no TLS"):
            async with nats_bus(f"tls://me:right@127.0.0.1:{server.port}"):
                pass


async def test_tls_with_an_authority_of_ones_own(tmp_path: Path) -> None:
    certificate = certified(tmp_path, "right")
    with nats_running(speaking_tls(certificate)) as server:
        with pytest.raises(Invalid, match="ca=FILE"):
            async with nats_bus(f"tls://127.0.0.1:{server.port}"):
                pass
        async with nats_bus(f"tls://127.0.0.1:{server.port}?ca={certificate}") as bus:
            await bus.publish([a_delivery()])

            assert await bus.take("w1", limit=10) == [a_delivery()]


@pytest.mark.parametrize(("kind", "step"), MAKERS)
async def test_certificate_that_no_authority_could_mend_is_told_with_what_does(
    tmp_path: Path, kind: str, step: str
) -> None:
    certificate = MAKERS[kind, step](tmp_path, "right")
    with nats_running(speaking_tls(certificate)) as server:
        with pytest.raises(Invalid, match=step):
            async with nats_bus(f"tls://127.0.0.1:{server.port}?ca={certificate}"):
                pass


def speaking_tls(certificate: Path) -> str:
    return f'tls {{ cert_file: "{certificate}", key_file: "{certificate.with_suffix(".key")}" }}'
