"""Webhooks reach a receiver that fails at first, are signed, and follow nobody elsewhere."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from openai import RateLimitError

import app.background.webhooks
from app.background.webhooks import Webhook, WebhookSender, signed, signing_keys
from tenants.storage.connection import GuardedRedis, open_redis
from tenants.storage.embedded import EmbeddedStore
from tenants.storage.outbox import Message, Outbox
from tenants.usage.prices import PriceList, Prices
from tests.app.conftest import MODEL, World, eventually

KEY = b"k" * 32
SECRET = "whsec_" + base64.b64encode(KEY).decode()


class Receiver:
    """A server that answers each request with the next of `statuses`, and 204 after these."""

    def __init__(self, *statuses: str) -> None:
        self.statuses = list(statuses)
        self.heard: list[tuple[dict[str, str], bytes]] = []
        self.url = ""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            pairs = (line.split(": ", 1) for line in head[1:] if line)
            headers = {name.lower(): value for name, value in pairs}
            body = await reader.readexactly(int(headers["content-length"]))
            self.heard.append((headers, body))
            status = self.statuses.pop(0) if self.statuses else "204 No Content"
            location = f"location: {self.url}/elsewhere\r\n" if status.startswith("3") else ""
            answer = (
                f"HTTP/1.1 {status}\r\n{location}content-length: 0\r\nconnection: close\r\n\r\n"
            )
            if status != "hang":
                writer.write(answer.encode())
                await writer.drain()
            else:
                await reader.read()
        writer.close()


@contextlib.asynccontextmanager
async def receiving(receiver: Receiver) -> AsyncIterator[str]:
    server = await asyncio.start_server(receiver, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    receiver.url = f"http://127.0.0.1:{port}"
    yield receiver.url
    server.close()


@contextlib.asynccontextmanager
async def sending(outbox: Outbox, url: str) -> AsyncIterator[None]:
    sender = WebhookSender(outbox, Webhook(url=url, keys=[KEY]))
    task = asyncio.create_task(sender.run())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.background.webhooks, "_POLL_SECONDS", 0.01)


@pytest.fixture
async def redis(store_server: EmbeddedStore) -> AsyncIterator[GuardedRedis]:
    redis = await open_redis(store_server.url)
    await redis.execute("FLUSHALL")
    yield redis
    await redis.close()


async def is_empty(redis: GuardedRedis) -> None:
    async with asyncio.timeout(10):
        while await redis.execute("KEYS", "pw:outbox:*"):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)


async def test_a_message_is_sent_again_until_it_is_taken(
    redis: GuardedRedis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app.background.webhooks, "_TIMEOUT_SECONDS", 0.5)
    receiver = Receiver("500 Oh No", "302 Found", "hang")
    outbox = Outbox(redis, retry_seconds=0.001)
    await outbox.put("budget-1", b'{"a": 1}')
    async with receiving(receiver) as url, sending(outbox, url):
        await is_empty(redis)
    assert len(receiver.heard) == 4
    reasons = [message.rpartition(": ")[2] for message in caplog.messages]
    assert reasons == ["HTTP 500", "HTTP 302", "TimeoutError"]
    for headers, body in receiver.heard:
        message = Message(headers["webhook-id"], body, 1)
        assert (message.id, message.body) == ("budget-1", b'{"a": 1}')
        expected = signed(message, [KEY], int(headers["webhook-timestamp"]))
        assert headers["webhook-signature"] == expected["webhook-signature"]


async def test_a_message_waits_for_a_receiver_that_is_not_there(redis: GuardedRedis) -> None:
    receiver, outbox = Receiver("410 Gone"), Outbox(redis, retry_seconds=0.001)
    async with receiving(receiver) as url:
        pass
    await outbox.put("budget-1", b"{}")
    async with sending(outbox, url):
        await asyncio.sleep(0.05)
        assert await redis.execute("KEYS", "pw:outbox:*")
    # Another process goes on with it; who says that it is gone hears of it no more.
    async with receiving(receiver) as url, sending(outbox, url):
        await is_empty(redis)
    assert len(receiver.heard) == 1


def test_a_signature_is_the_standards() -> None:
    # The example of https://docs.svix.com/receiving/verifying-payloads/how-manual
    keys = signing_keys("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n\n")
    message = Message("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', 1)
    headers = signed(message, keys, 1614265330.9)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    both = signed(message, [*keys, KEY], 1614265330.9)["webhook-signature"].split(" ")
    assert (len(both), both[0]) == (2, headers["webhook-signature"])


@pytest.mark.parametrize("secret", ["secret", "whsec_", "whsec_====", "whsec_c2hvcnQ=", SECRET[6:]])
def test_a_secret_that_signs_nothing_well_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match="secret 2 is not 'whsec_'"):
        signing_keys(f"{SECRET}\n{secret}")


class TestBudgets:
    @pytest.fixture
    def prices(self) -> PriceList:
        return PriceList(
            model=Prices(currency="EUR", input=1000, cached=1000, written=1000, output=1000)
        )

    @pytest.fixture
    def receiver(self) -> Receiver:
        return Receiver("503 Not Yet")

    @pytest.fixture
    async def webhook(self, receiver: Receiver) -> AsyncIterator[Webhook]:
        async with receiving(receiver) as url:
            yield Webhook(url=url, keys=[KEY])

    async def test_each_budget_that_is_reached_is_told_once(
        self, world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(world.stores.outbox, "_retry_seconds", 0.001)
        await world.limit("acme", soft_budget_micros=1, hard_budget_micros=500)
        client = world.client()
        for tokens in (4, 4, 4):
            await client.responses.create(model=MODEL, input="hi", max_output_tokens=tokens)
            await world.app.state.service.gate.close()
            await world.stores.usage.flush()
        for _ in range(2):
            with pytest.raises(RateLimitError):
                await client.responses.create(model=MODEL, input="hi", max_output_tokens=1000)
        await eventually(lambda: len(receiver.heard) >= 3)
        await is_empty(world.redis)
        (refused, *told) = [json.loads(body) for _, body in receiver.heard]
        assert len(told) == 2
        assert refused in told
        assert {one["type"] for one in told} == {"budget.reached"}
        reached = {one["data"]["threshold"]: one["data"] for one in told}
        assert reached.keys() == {"soft", "hard"}
        assert (reached["hard"]["tenant"], reached["hard"]["budget"]) == ("acme", "0.000500000")
        assert reached["soft"]["currency"] == "EUR"
        assert len({headers["webhook-id"] for headers, _ in receiver.heard}) == 2
