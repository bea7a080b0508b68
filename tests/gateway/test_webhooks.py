"""Webhooks over HTTP: a real receiver gets signed posts, secrets are told once, and private addresses are refused."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.conftest import Served, serving
from holdfast import errors
from holdfast.config import WebhookSettings
from holdfast.posting import posting
from holdfast.posting.address import check_url, is_public

PRIVATE = WebhookSettings(allow_private=True)


@dataclass
class Receiver:
    """A server of somebody else's, as small as it can be."""

    port: int = 0
    status: int = 200
    head: str = ""
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        raw = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        self.got.append(({name.lower(): value for name, value in raw.items()}, body))
        writer.write(f"HTTP/1.1 {self.status} X\r\n{self.head}content-length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()
        self.news.set()

    async def wait_posts(self, count: int) -> list[dict[str, Any]]:
        async with asyncio.timeout(20):
            while len(self.got) < count:
                self.news.clear()
                await self.news.wait()
        return [json.loads(body) for _, body in self.got]


@asynccontextmanager
async def receiving(**answers: Any) -> AsyncIterator[Receiver]:
    receiver = Receiver(**answers)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver


def signatures(secret: str, headers: dict[str, str], body: bytes) -> str:
    """As any receiver would work it out."""
    text = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    return "v1," + base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()


@pytest.fixture
async def open_plane(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, webhooks=PRIVATE) as one:
        yield one


async def test_event_arrives_signed(open_plane: Served) -> None:
    async with receiving() as receiver:
        made = await open_plane.client.add_webhook("ops", receiver.url, events=["job.*"])
        job = await open_plane.client.submit("t", {"card": "4111"})
        [post] = await receiver.wait_posts(1)

        [(headers, body)] = receiver.got
        assert (post["type"], post["data"]["job_id"]) == ("job.submitted", job.id)
        assert headers["webhook-signature"] == signatures(made.secret, headers, body)
        assert headers["content-type"] == "application/json"
        assert b"4111" not in body


async def test_secret_is_told_once_and_is_in_no_log(open_plane: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with receiving() as receiver:
        made = await open_plane.client.add_webhook("ops", receiver.url, events=["*"])
        await open_plane.client.test_webhook("ops")
        await receiver.wait_posts(1)
        key = made.secret.removeprefix("whsec_")
        shown = [
            await open_plane.http.get("/v1/webhooks"),
            await open_plane.http.get("/v1/webhooks/ops"),
            await open_plane.http.get("/v1/webhooks/ops/posts"),
        ]

        assert all(key not in answer.text for answer in shown)
        assert key not in caplog.text


async def test_rotation_signs_with_both_secrets(open_plane: Served) -> None:
    async with receiving() as receiver:
        first = await open_plane.client.add_webhook("ops", receiver.url)
        second = await open_plane.client.rotate_webhook_secret("ops")
        await open_plane.client.test_webhook("ops")
        await receiver.wait_posts(1)

        [(headers, body)] = receiver.got
        expected = [signatures(made.secret, headers, body) for made in (second, first)]
        assert headers["webhook-signature"].split(" ") == expected
        assert (await open_plane.client.webhook("ops")).secrets == 2


async def test_log_tells_how_it_went_and_a_failed_post_is_tried_again(open_plane: Served) -> None:
    async with receiving(status=410) as receiver:
        await open_plane.client.add_webhook("ops", receiver.url, events=["job.*"])
        sent = await open_plane.client.test_webhook("ops")
        await receiver.wait_posts(1)
        post = await ended(open_plane, "ops")

        assert (post.id, post.state, [one.status for one in post.tries]) == (sent.id, "failed", [410])
        assert not (await open_plane.client.webhook("ops")).enabled
        receiver.status = 204
        assert (await open_plane.client.enable_webhook("ops")).enabled
        await open_plane.client.retry_post(post.id)
        await receiver.wait_posts(2)
        post = await ended(open_plane, "ops", "delivered")
        assert [one.status for one in post.tries] == [410, 204]
        assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
        with pytest.raises(errors.Conflict, match="delivered"):
            await open_plane.client.retry_post(post.id)
        [line] = (await open_plane.client.audit(action="post.retried")).items
        assert line.subject == f"post/{post.id}"


async def test_log_is_newest_first_whatever_was_posted(open_plane: Served) -> None:
    async with receiving() as receiver:
        await open_plane.client.add_webhook("ops", receiver.url, events=["job.submitted"])
        await open_plane.client.test_webhook("ops")
        await receiver.wait_posts(1)
        for number in (2, 3):
            await open_plane.client.submit("t")
            await receiver.wait_posts(number)

        log = (await open_plane.client.webhook_posts("ops")).items
        assert [post.event for post in log] == ["job.submitted", "job.submitted", "webhook.tested"]
        assert [post.created_at for post in log] == sorted((post.created_at for post in log), reverse=True)


async def test_redirects_are_not_followed(open_plane: Served) -> None:
    async with receiving() as elsewhere, receiving(status=302, head=f"location: {elsewhere.url}\r\n") as receiver:
        await open_plane.client.add_webhook("ops", receiver.url)
        await open_plane.client.test_webhook("ops")
        await receiver.wait_posts(1)
        async with asyncio.timeout(10):
            while not (page := await open_plane.client.webhook_posts("ops")).items[0].tries:
                await asyncio.sleep(0.05)

        assert (page.items[0].tries[0].error, page.items[0].state) == ("redirected", "pending")
        assert elsewhere.got == []


async def test_removed_webhook_is_gone(open_plane: Served) -> None:
    async with receiving() as receiver:
        await open_plane.client.add_webhook("ops", receiver.url)
        with pytest.raises(errors.Conflict, match="ops"):
            await open_plane.client.add_webhook("ops", receiver.url)
        await open_plane.client.test_webhook("ops")
        await open_plane.client.remove_webhook("ops")

        assert (await open_plane.client.webhooks()).items == []
        with pytest.raises(errors.NotFound):
            await open_plane.client.test_webhook("ops")
        with pytest.raises(errors.NotFound):
            await open_plane.client.webhook_posts("another")
        assert len((await open_plane.client.webhook_posts("ops")).items) == 1, "its log stays for a while"


async def test_webhooks_of_other_tenants_do_not_exist(open_plane: Served) -> None:
    await open_plane.client.add_webhook("ops", "https://example.com/")
    answer = await open_plane.http.get("/v1/webhooks/ops", headers={"holdfast-tenant": "other"})

    assert answer.status_code == 404


@pytest.mark.parametrize(
    ("name", "url", "events"),
    [
        ("a/b", "https://example.com/", []),
        ("ops", "ftp://example.com/", []),
        ("ops", "https://user:secret@example.com/", []),
        ("ops", "http://127.0.0.1/", []),
        ("ops", "http://[::1]/", []),
        ("ops", "http://10.0.0.8/", []),
        ("ops", "http://169.254.169.254/latest", []),
        ("ops", "https://example.com/", ["Job.*"]),
        ("ops", "https://example.com/", ["job.*.x"]),
    ],
)
async def test_what_cannot_be_a_webhook_is_refused(served: Served, name: str, url: str, events: list[str]) -> None:
    answer = await served.post("/v1/webhooks", {"name": name, "url": url, "events": events})

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert "secret" not in answer.text
    assert (await served.client.webhooks()).items == []


@pytest.mark.parametrize("host", ["localhost", "2130706433", "0x7f.1"])
async def test_name_that_leads_to_a_private_address_is_refused_at_the_connection(served: Served, host: str) -> None:
    async with receiving() as receiver:
        await served.client.add_webhook("ops", f"http://{host}:{receiver.port}/")
        await served.client.test_webhook("ops")
        async with asyncio.timeout(10):
            while not (page := await served.client.webhook_posts("ops")).items[0].tries:
                await asyncio.sleep(0.05)

        assert page.items[0].tries[0].error == "address-refused"
        assert receiver.got == []


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True), ("2606:2800:220:1:248:1893:25c8:1946", True), ("127.0.0.1", False),
        ("10.1.2.3", False), ("172.16.0.1", False), ("192.168.1.1", False), ("169.254.169.254", False),
        ("100.64.0.1", False), ("0.0.0.0", False), ("224.0.0.1", False), ("255.255.255.255", False),
        ("::1", False), ("fe80::1", False), ("fc00::1", False), ("::ffff:10.0.0.1", False),
        ("64:ff9b::7f00:1", False), ("2002:7f00:1::", False), ("ff02::1", False),
        ("fec0::1", False), ("64:ff9b:1::a00:1", False),
        ("::127.0.0.1", False), ("::ffff:0:10.0.0.1", False), ("5f00::1", False), ("64:ff9b::808:808", True),
    ],
)  # fmt: skip
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) == public


def test_public_url_is_taken() -> None:
    check_url("https://example.com/hook?x=1", allow_private=False)


@pytest.mark.parametrize(
    ("url", "error"), [("http://127.0.0.1:9/", "unreachable"), ("http://no-such-name.invalid/", "name-unknown")]
)
async def test_what_goes_wrong_on_the_way_is_a_code(url: str, error: str) -> None:
    async with posting(allow_private=True) as outside:
        assert (await outside.send(url, {}, b"{}")).error == error


async def test_receiver_may_ask_for_patience() -> None:
    async with receiving(status=503, head="retry-after: 120\r\n") as receiver, posting(allow_private=True) as outside:
        assert await outside.send(receiver.url, {}, b"{}") == (503, "failed", 120.0)


async def test_address_of_a_receiver_is_logged_by_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever has it may post there: often enough nothing else keeps others out."""
    async with receiving(head="set-cookie: a=b\r\n") as receiver, posting(allow_private=True) as outside:
        with caplog.at_level(logging.DEBUG):
            for _ in range(2):
                assert (await outside.send(f"{receiver.url}/t0ken?key=t0ken", {}, b"{}")).status == 200

    assert "t0ken" not in caplog.text
    assert "cookie" not in receiver.got[1][0], "what one webhook's receiver sets is not sent for another's"


async def ended(served: Served, name: str, state: str = "failed") -> Any:
    async with asyncio.timeout(20):
        while not (found := (await served.client.webhook_posts(name, state=state)).items):
            await asyncio.sleep(0.05)
    return found[0]
