"""Connections that are slow, or too many, or no HTTP."""

import asyncio
import time

import pytest

from t5x_lite.serve.server import RESERVE
from tests.serve.double_server import serving
from tests.waiting import PATIENCE, wait_until


def closed_after(port: int, data: bytes, *, trickle: float = 0.0) -> float:
    """Seconds until the server closes a connection on which some bytes came."""

    async def wait() -> float:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        start = time.monotonic()
        writer.write(data)

        async def drip() -> None:
            while trickle:
                await asyncio.sleep(trickle)
                writer.write(b"a")

        dripping = asyncio.ensure_future(drip())
        try:
            await asyncio.wait_for(reader.read(), 15)
        except ConnectionError:
            pass
        finally:
            dripping.cancel()
            writer.transport.abort()
        return time.monotonic() - start

    return asyncio.run(wait())


def test_headers_that_take_too_long_end_a_connection():
    with serving(body_timeout=0.4) as one:
        assert 0.3 < closed_after(one.port, b"") < 3
        assert 0.3 < closed_after(one.port, b"POST /double HTTP/1.1\r\nX: ", trickle=0.1) < 3
        first = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert 0.3 < closed_after(one.port, first + b"GET /h", trickle=0.1) < 3
        assert one.ask({"inputs": "a"})[0] == 200


def test_too_many_connections_are_refused_at_once():
    with serving(connections=3) as one:

        async def crowd() -> list[bytes]:
            opened = [await asyncio.open_connection("127.0.0.1", one.port) for _ in range(4)]
            content = await asyncio.wait_for(opened[-1][0].read(), PATIENCE)
            for _, writer in opened:
                writer.transport.abort()
            return [content]

        [content] = asyncio.run(crowd())
        assert content.startswith(b"HTTP/1.1 503 Service Unavailable")
        assert b"Retry-After" in content
        assert content.endswith(b'{"error": "Too many connections are open."}')
        wait_until(lambda: one.ask({"inputs": "a"})[0] == 200)


async def held(port: int, number: int) -> list[asyncio.StreamWriter]:
    """Connections that ask nothing."""
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(number)]
    await asyncio.sleep(0.1)
    return [writer for _, writer in opened]


async def asked(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    content = await asyncio.wait_for(reader.read(), PATIENCE)
    writer.transport.abort()
    return content


@pytest.mark.parametrize("strangers", [3, 10, 3 + 2 * RESERVE])
def test_health_is_answered_while_strangers_hold_all_connections(strangers):
    with serving(connections=3) as one:

        async def crowd() -> list[bytes]:
            writers = await held(one.port, strangers)
            found = [await asked(one.port, path) for path in ("/health", "/ready", "/", "/metrics")]
            for writer in writers:
                writer.transport.abort()
            return found

        health, ready, *others = asyncio.run(crowd())
        assert health.startswith(b"HTTP/1.1 200 OK")
        assert b"connection: close" in health.lower()
        assert ready.startswith(b"HTTP/1.1 200 OK")
        for other in others:
            assert other.startswith(b"HTTP/1.1 503 Service Unavailable")
        wait_until(lambda: one.ask({"inputs": "a"})[0] == 200)


BODY = b'{"inputs": "a"}'
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


@pytest.mark.parametrize(
    ("version", "lengths", "body", "status"),
    [
        (b"1.1", b"Content-Length: 15\r\n", BODY, 200),
        (b"1.1", b"Transfer-Encoding: chunked\r\n", CHUNKED, 200),
        (b"1.1", b"Content-Length: 15\r\nTransfer-Encoding: chunked\r\n", CHUNKED, 400),
        (b"1.1", b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", CHUNKED, 400),
        (b"1.1", b"Content-Length: 15\r\nContent-Length: 16\r\n", BODY, 400),
        (b"1.0", b"Transfer-Encoding: chunked\r\n", CHUNKED, 400),
    ],
)
def test_a_request_has_one_length(served, version, lengths, body, status):
    head = b"POST /double HTTP/" + version + b"\r\nHost: localhost\r\n"
    kind = b"Content-Type: application/json\r\n\r\n"
    found, headers, content = served.send(head + lengths + kind + body)
    assert found == status, content
    if status == 400:
        assert b"connection: close" in headers.lower()


def test_other_protocols_are_told_in_json(served):
    for data in (b"\x16\x03\x01" * 9, b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 9000):
        status, head, body = served.send(data)
        assert (status, body) == (400, b'{"error": "The request is not HTTP/1.1."}')
        assert b"application/json" in head
    assert served.ask({"inputs": "a"})[0] == 200
