"""`http_get` against a real server: what it fetches, and where it refuses to go."""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from activities.tools import TransientError, http_get
from activities.tools.http_get import MAX_BYTES, RequestRefused, any_address, fetch, is_public
from tests.activities.toolkit import context_on, request_for, runner_of


@dataclass
class Site:
    """A server on a free port that says raw bytes for each path, and remembers what it was asked."""

    port: int = 0
    pages: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def at(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.asked.append(head)
            path = head.split(" ")[1]
            if path in ("/drip", "/flood"):
                await self.endless(path, writer)
            writer.write(self.pages.get(path, page(b"gone", status="404 Not Found")))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def endless(self, path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while True:
            writer.write(b"x" if path == "/drip" else b"x" * 100_000)
            await writer.drain()
            await asyncio.sleep(0.05 if path == "/drip" else 0)


def page(
    body: bytes, status: str = "200 OK", kind: str = "text/plain; charset=utf-8", more: str = ""
) -> bytes:
    kind = f"Content-Type: {kind}\r\n" if kind else ""
    head = f"HTTP/1.1 {status}\r\n{kind}Content-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def moved(to: str, status: str = "302 Found") -> bytes:
    return page(b"", status=status, more=f"Location: {to}\r\n")


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    server = await asyncio.start_server(site.answer, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    yield site
    server.close()


async def get(url: str, timeout_seconds: float = 20, allow_private: bool = True) -> str:
    params = http_get.Params(url=url, timeout_seconds=timeout_seconds)
    return await http_get.run(params, context_on(Path(), http_allow_private=allow_private))


async def test_text_comes_with_status_type_and_address(site: Site) -> None:
    site.pages["/a?b=c"] = page("h\xe9llo".encode("latin-1"), kind="text/plain; charset=latin-1")
    assert await get(site.at("/a?b=c#part")) == (f"HTTP 200 text/plain {site.at('/a?b=c#part')}\n\nh\xe9llo")
    assert f"host: 127.0.0.1:{site.port}" in site.asked[0].lower()


async def test_request_goes_to_checked_address_with_name_as_host(site: Site) -> None:
    site.pages |= {"/": moved("/home"), "/home": page(b"home")}
    looked_up: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        looked_up.append(host)
        return ["127.0.0.1"]

    assert (await fetch(site.at("/", "shop.example"), any_address, resolve)).endswith("home")
    assert looked_up == ["shop.example"] * 2, "once for each request, not once more to connect"
    assert all(f"host: shop.example:{site.port}" in head.lower() for head in site.asked)


async def test_tls_names_the_host_and_not_the_address() -> None:
    hello = asyncio.Event()
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(4096))
        hello.set()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(TransientError, match="cannot connect to localhost"):
            await get(f"https://localhost:{port}/")
        await hello.wait()
    assert b"localhost" in seen[0]


PRIVATE = [
    "127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "0", "0.0.0.0",
    "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "224.0.0.1", "240.0.0.1",
    "255.255.255.255", "192.0.2.1", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:8.8.8.8]", "[fe80::1]",
    "[fc00::1]", "[fec0::1]", "[ff02::1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::127.0.0.1]",
    "[2001:0:4136:e378::]",
]  # fmt: skip


@pytest.mark.parametrize("host", PRIVATE)
async def test_addresses_that_are_not_public_are_refused(site: Site, host: str) -> None:
    with pytest.raises(RequestRefused, match=r"not a public|no such host|usable"):
        await get(site.at("/", host), allow_private=False)
    assert site.asked == []


async def test_redirects_are_followed_and_relative_ones_resolved(site: Site) -> None:
    site.pages |= {
        "/old": moved("/dir/new", "301 Moved"),
        "/dir/new": moved("last", "307 Temporary"),
        "/dir/last": page(b"there"),
    }
    assert await get(site.at("/old")) == f"HTTP 200 text/plain {site.at('/dir/last')}\n\nthere"


async def test_redirect_to_a_forbidden_address_is_refused(site: Site) -> None:
    site.pages |= {
        "/metadata": moved("http://169.254.169.254/latest"),
        "/back": moved(site.at("/secret", "127.0.0.2")),
        "/hex": moved("http://0x7f000002/"),
        "/secret": page(b"secret"),
    }
    for path in ("/metadata", "/back", "/hex"):
        with pytest.raises(RequestRefused, match="not a public address"):
            await fetch(site.at(path), allowed=lambda address: address == "127.0.0.1")
    assert len(site.asked) == 3


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://127.0.0.1/", "http://user:pw@127.0.0.1/"]
)  # fmt: skip
async def test_redirect_to_something_else_than_http_is_refused(site: Site, target: str) -> None:
    site.pages["/"] = moved(target)
    with pytest.raises(RequestRefused):
        await get(site.at("/"))
    assert len(site.asked) == 1


async def test_at_most_five_redirects_are_followed(site: Site) -> None:
    site.pages["/loop"] = moved("/loop")
    with pytest.raises(RequestRefused, match="more than 5 redirects"):
        await get(site.at("/loop"))
    assert len(site.asked) == 6


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://x/", "example.com", "", "http://", "//x", "javascript:1",
     "http://[::1", "http://user:pw@x/", "http://\x00/", "http://127.0.0.1:99999999/", "http://①②⑦.0.0.1/",
     "gopher://127.0.0.1:70/"],
)  # fmt: skip
async def test_what_is_not_a_web_address_is_refused(url: str) -> None:
    with pytest.raises(RequestRefused):
        await get(url)


async def test_slow_answer_is_given_up(site: Site) -> None:
    with pytest.raises(TransientError, match=r"gave no complete answer within 0\.3 s"):
        await get(site.at("/drip"), timeout_seconds=0.3)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
async def test_compressed_answer_is_refused_unpacked(site: Site, encoding: str) -> None:
    site.pages["/"] = page(zlib.compress(b"0" * 2**20, wbits=31), more=f"Content-Encoding: {encoding}\r\n")
    with pytest.raises(RequestRefused, match=f"compressed by '{encoding}', which was not asked for"):
        await get(site.at("/"))


async def test_endless_answer_is_cut(site: Site) -> None:
    text = await get(site.at("/flood"))
    assert text.endswith(f"x\n[cut after {MAX_BYTES:,} bytes]")
    assert len(text) < MAX_BYTES + 200


@pytest.mark.parametrize(
    ("kind", "body", "is_text"),
    [
        ("application/json", b"{}", True),
        ("application/vnd.api+json", b"{}", True),
        ("image/svg+xml", b"<svg/>", True),
        ("", b"plain", True),
        ("text/html; charset=no-such", b"<p>", True),
        ("", b"\0\1", False),
        ("image/png", b"\x89PNG", False),
        ("application/octet-stream", b"x", False),
    ],
)
async def test_only_texts_are_passed_on(site: Site, kind: str, body: bytes, is_text: bool) -> None:
    site.pages["/"] = page(body, kind=kind)
    if is_text:
        assert (await get(site.at("/"))).endswith("\n\n" + body.decode())
    else:
        with pytest.raises(RequestRefused, match="the answer is not text"):
            await get(site.at("/"))


async def test_refusal_of_the_server_is_passed_on(site: Site) -> None:
    with pytest.raises(RequestRefused, match=r"HTTP 404 text/plain .*/nothing: gone"):
        await get(site.at("/nothing"))
    for status in ("429 Slow down", "503 Busy", "500 Oops"):
        site.pages["/busy"] = page(b"later", status=status)
        with pytest.raises(TransientError, match=f"HTTP {status[:3]} .*: later"):
            await get(site.at("/busy"))


async def test_broken_or_missing_server_may_be_asked_again(site: Site) -> None:
    site.pages |= {
        "/nonsense": b"\x00\x01 nonsense\r\n\r\n",
        "/cut": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx",
    }
    runner = runner_of(http_get.TOOL, http_allow_private=True)
    for url in (site.at("/nonsense"), site.at("/cut"), "http://127.0.0.1:1/"):
        with pytest.raises(TransientError):
            await runner.run_tool(request_for("http_get", url=url))
    last = await runner.run_tool(request_for("http_get", url="http://127.0.0.1:1/"), 3)
    assert last.output.startswith("Error after 3 attempts: cannot connect to 127.0.0.1 port 1")


async def test_private_address_is_a_readable_failure() -> None:
    result = await runner_of(http_get.TOOL).run_tool(
        request_for("http_get", url="http://169.254.169.254/latest/meta-data")
    )
    assert result.error == "failed"
    assert result.output.startswith("RequestRefused: 169.254.169.254 is 169.254.169.254, which is not")


async def test_public_name_with_a_private_address_is_refused(site: Site) -> None:
    """One address of several is enough; and what a second look-up says does not matter."""
    answers = [["8.8.8.8", "127.0.0.1"]]

    async def resolve(host: str, port: int) -> list[str]:
        return answers.pop()

    with pytest.raises(RequestRefused, match=r"127\.0\.0\.1"):
        await fetch(site.at("/", "shop.example"), is_public, resolve)
    assert (site.asked, answers) == ([], [])


NOT_PUBLIC = """
0.0.0.0 0.1.2.3 10.1.1.1 100.64.0.1 127.0.0.1 169.254.169.254 172.16.0.1 192.0.0.1 192.0.0.9 192.0.0.10
192.0.0.170 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 240.0.0.1
255.255.255.255
:: ::1 ::7f00:1 ::ffff:10.0.0.1 ::ffff:8.8.8.8 64:ff9b::a00:1 64:ff9b::7f00:1
64:ff9b::c000:1 64:ff9b:1::a00:1 100::1 100:0:0:1::1 2001::1
2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2002:a00:1::1 3fff::1
3fff:fff::1 5f00::1 fc00::1 fd12::1 fe80::1 fec0::1 ff02::1
"""
"""Of each block in the IANA special-purpose registries, and of those that carry IPv4 addresses."""
PUBLIC = """
8.8.8.8 1.1.1.1 192.0.1.1 192.88.98.1 198.20.0.1 2606:4700:4700::1111 2001:4860:4860::8888 2a00:1450::1
3ffe::1 64:ff9b::808:808
"""


@pytest.mark.parametrize("address", NOT_PUBLIC.split())
def test_special_purpose_address_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC.split())
def test_address_beside_those_is_public(address: str) -> None:
    assert is_public(address)


async def test_dns_that_is_down_is_transient() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    with pytest.raises(TransientError, match=r"shop\.example"):
        await fetch("http://shop.example/", is_public, resolve)


@pytest.mark.parametrize("charset", ["punycode", "idna", "undefined", "hex", "a\x01b"])
async def test_strange_encoding_is_read_as_utf_8(site: Site, charset: str) -> None:
    """Some of Python's take minutes for a few megabytes."""
    site.pages["/"] = page(b"-" + b"a" * 1_000_000, kind=f"text/plain; charset={charset}")
    assert (await get(site.at("/"), timeout_seconds=5)).endswith("aaa")
