"""Connections that are slow, or too many, or no HTTP."""

import asyncio
import time

from tests.serve.double_server import serving


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
            await asyncio.wait_for(reader.read(), 10)
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
            content = await asyncio.wait_for(opened[-1][0].read(), 5)
            for _, writer in opened:
                writer.transport.abort()
            return [content]

        [content] = asyncio.run(crowd())
        assert content.startswith(b"HTTP/1.1 503 Service Unavailable")
        assert b"Retry-After" in content
        assert content.endswith(b'{"error": "Too many connections are open."}')
        time.sleep(0.2)
        assert one.ask({"inputs": "a"})[0] == 200


def test_other_protocols_are_told_in_json(served):
    for data in (b"\x16\x03\x01" * 9, b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 9000):
        status, head, body = served.send(data)
        assert (status, body) == (400, b'{"error": "The request is not HTTP/1.1."}')
        assert b"application/json" in head
    assert served.ask({"inputs": "a"})[0] == 200
