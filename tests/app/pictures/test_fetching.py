"""Pictures of the web come from hosts that were named, at public addresses, within bounds."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from app.pictures import fetching
from app.pictures.fetching import Fetcher, _is_public
from app.pictures.picture import BadPicture

HOST = "pictures.example"


@dataclass
class Web:
    """A server of this machine that has a name."""

    context: ssl.SSLContext
    port: int = 0
    answer: bytes = b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: 3\r\n\r\nabc"
    names: list[str] = field(default_factory=list)
    """As clients have said them before anything is encrypted."""
    asked: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.answer)
        await writer.drain()
        await asyncio.sleep(0.5)
        writer.close()

    def fetcher(self, addresses: Collection[str] = ("127.0.0.1",), seconds: float = 10) -> Fetcher:
        async def resolve(host: str) -> Collection[str]:
            assert host == HOST
            return addresses

        return Fetcher([HOST], 1000, seconds, resolve, self.context)

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}/a.png?size=1"


@pytest_asyncio.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path / "both.pem"
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(pem)
    web = Web(ssl.create_default_context(cafile=str(pem)))
    own.sni_callback = lambda _socket, name, _context: web.names.append(str(name))
    server = await asyncio.start_server(web.serve, "127.0.0.1", ssl=own)
    web.port = server.sockets[0].getsockname()[1]
    yield web
    server.close()


async def test_a_picture_comes_from_a_host_that_was_named(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_is_public", lambda _: True)
    assert await web.fetcher().fetch(web.url) == b"abc"
    assert web.names == [HOST]
    assert web.asked[0].startswith(b"GET /a.png?size=1 HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 302 Found\r\nlocation: https://127.0.0.1/\r\n\r\n", "answers 302"),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "answers 404"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 1\r\n\r\na", "no picture"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na", "is no picture"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\n\r\n" + bytes(5000),
            "more than 1000 bytes",
        ),
        (b"nonsense\r\n\r\n", "cannot be fetched"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: 900\r\n\r\na",
            "cannot be fetched",
        ),
    ],
)
async def test_what_is_no_picture_is_refused(
    web: Web, monkeypatch: pytest.MonkeyPatch, answer: bytes, why: str
) -> None:
    monkeypatch.setattr(fetching, "_is_public", lambda _: True)
    web.answer = answer
    with pytest.raises(BadPicture, match=why):
        await web.fetcher().fetch(web.url)


async def test_who_does_not_answer_is_not_waited_for(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_is_public", lambda _: True)
    web.answer = b""
    with pytest.raises(BadPicture, match="does not come in time"):
        await web.fetcher(seconds=0.2).fetch(web.url)


async def test_a_name_of_a_private_address_is_not_followed(web: Web) -> None:
    for addresses in (["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["::1"], []):
        with pytest.raises(BadPicture, match="not public"):
            await web.fetcher(addresses).fetch(web.url)
    assert not web.names


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "ff02::1"),
    ],
)
def test_an_address_that_is_not_public_is_known(address: str) -> None:
    assert not _is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"])
def test_and_so_is_one_that_is(address: str) -> None:
    assert _is_public(address)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://pictures.example/a.png", "https: one"),
        ("file:///etc/passwd", "https: one"),
        ("https://other.example/a.png", "from this host"),
        ("https://pictures.example.evil/a.png", "from this host"),
        ("https://127.0.0.1/a.png", "from this host"),
        ("https://pictures.example@127.0.0.1/a.png", "from this host"),
        ("https://me:secret@pictures.example/a.png", "without a name and a password"),
        ("https://", "from this host"),
        ("https://[", "must be"),
    ],
)
async def test_other_addresses_are_not_even_looked_up(web: Web, url: str, why: str) -> None:
    with pytest.raises(BadPicture, match=why):
        await web.fetcher().fetch(url)
    assert not web.names


async def test_where_no_host_was_named_nothing_is_fetched() -> None:
    with pytest.raises(BadPicture, match="are not fetched here"):
        await Fetcher([], 1000, 1).fetch("https://pictures.example/a.png")
