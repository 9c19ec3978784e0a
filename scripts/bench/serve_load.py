"""Clients of a server on this machine: a steady load, and requests that mean no good.

load = asyncio.run(steady(port, clients=32, seconds=10.0, bodies=bodies))
load.requests_per_second, load.percentile(0.99), load.lost

asyncio.run(hostile(port, number=1000))     # {"huge": 125, ...}: answers by kind and status
"""

import asyncio
import collections
import dataclasses
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence

HOST = "127.0.0.1"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclasses.dataclass
class Load:
    """What a steady load saw.

    Attributes:
      seconds: from the first request to the last answer.
      latencies: seconds of each answered request.
      statuses: number of answers by status.
      lost: requests that were sent and got no whole answer.
    """

    seconds: float = 0.0
    latencies: list[float] = dataclasses.field(default_factory=list)
    statuses: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    lost: int = 0

    @property
    def requests_per_second(self) -> float:
        return len(self.latencies) / self.seconds

    def percentile(self, part: float) -> float:
        """Seconds within which this part of the requests were answered."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def request(path: str, record: object, *, host: str = HOST) -> bytes:
    """The bytes of a POST with a JSON body."""
    body = json.dumps(record).encode()
    return _head(path, len(body), host=host) + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of the next answer; IncompleteReadError where the connection ends first."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return int(head.split(b" ", 2)[1]), await reader.readexactly(length)


async def ask(port: int, path: str, record: object) -> tuple[int, bytes]:
    """One request on a connection of its own."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(request(path, record))
        return await answer(reader)
    finally:
        writer.close()


async def steady(
    port: int,
    *,
    clients: int,
    bodies: Sequence[bytes],
    seconds: float = 1e9,
    each: int = 1_000_000_000,
    until_refused: bool = False,
) -> Load:
    """Clients that each send their next request when the last one is answered.

    Args:
      port: of the server on this machine.
      clients: at the same time, each on its own connection.
      bodies: whole requests; client i sends i, i + clients, ... of them, over and over.
      seconds: after which no request is sent.
      each: requests of each client at most.
      until_refused: the server is about to end; a client stops when its connection is closed
        between two requests.
    """
    load, start = Load(), time.perf_counter()

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        for turn in range(each):
            sent = time.perf_counter()
            if sent - start > seconds or (until_refused and reader.at_eof()):
                break
            try:
                writer.write(bodies[(number + turn * clients) % len(bodies)])
                status, _ = await answer(reader)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                # Closed while idle: the request was never taken.
                closed_before = until_refused and not getattr(error, "partial", b"")
                load.lost += not closed_before
                break
            load.latencies.append(time.perf_counter() - sent)
            load.statuses[status] += 1
        writer.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    load.seconds = time.perf_counter() - start
    return load


async def hostile(
    port: int, *, number: int, patience: float = 2.0, at_once: int = 20, seed: int = 0
) -> collections.Counter[str]:
    """Requests that mean no good, some at a time.

    Args:
      port: of the server.
      number: of requests.
      patience: seconds after which a client that waits goes.
      at_once: requests at the same time.
      seed: of the choices.

    Returns:
      How many ended how: "kind status", where status is "cut" of a connection that the server
      closed and "left" of one that the client did.
    """
    rng, counts = random.Random(seed), collections.Counter[str]()
    turns = asyncio.Semaphore(at_once)

    async def one(kind: str) -> None:
        async with turns:
            try:
                reader, writer = await asyncio.open_connection(HOST, port)
            except OSError:
                counts[f"{kind} refused"] += 1
                return
            try:
                await HOSTILE[kind](writer, rng)
                status, _ = await asyncio.wait_for(answer(reader), patience)
                counts[f"{kind} {status}"] += 1
            except TimeoutError:
                counts[f"{kind} left"] += 1
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                counts[f"{kind} cut"] += 1
            finally:
                writer.transport.abort()

    kinds = list(HOSTILE)
    await asyncio.gather(*(one(kinds[i % len(kinds)]) for i in range(number)))
    return counts


async def _huge(writer: asyncio.StreamWriter, rng: random.Random) -> None:
    """A body of 8 MiB, with or without saying so."""
    text = b'{"inputs": "' + b"a" * (8 << 20) + b'"}'
    if rng.random() < 0.5:
        writer.write(_head("/predict", len(text)))
        writer.write(text)
    else:
        writer.write(_head("/predict", None))
        for start in range(0, len(text), 1 << 16):
            part = text[start : start + (1 << 16)]
            writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _long_text(writer: asyncio.StreamWriter, rng: random.Random) -> None:
    """One text of almost a MiB, or very many texts."""
    record = ["x"] * 100_000 if rng.random() < 0.5 else "word \u0416\U0001f600 " * 60_000
    writer.write(request("/predict", {"inputs": record}))
    await writer.drain()


async def _malformed(writer: asyncio.StreamWriter, rng: random.Random) -> None:
    bodies = [
        b"{", b"\xff\xfe", b"[" * 100_000, b'{"inputs": NaN}', b'{"inputs": 1e999}', b"", b"null",
        b'{"inputs": "\\ud800"}', b"9" * 10_000, b'{"inputs": "a"} x', b"\x00" * 99,
    ]  # fmt: skip
    body = rng.choice(bodies)
    writer.write(_head(rng.choice(["/predict", "/score", "/embed"]), len(body)) + body)


async def _wrong_types(writer: asyncio.StreamWriter, rng: random.Random) -> None:
    records = [
        {"inputs": 3}, {"inputs": None}, {"inputs": [1]}, {"inputs": [["a"]]}, {"inputs": {}},
        {"inputs": []}, {"inputs": "a", "seed": -1}, {"inputs": "a", "seed": True}, {}, [], "a", 1,
        {"inputs": "a", "sed": 1}, {"inputs": "a", "seed": 2**70}, {"inputs": ["a"], "": 1},
    ]  # fmt: skip
    writer.write(request("/predict", rng.choice(records)))


async def _not_http(writer: asyncio.StreamWriter, rng: random.Random) -> None:
    writer.write(
        rng.choice(
            [
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9,
                b"GET\r\n\r\n",
                b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
                b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 6\r\n\r\nabcde",
                b"POST /predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
                b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
                b"GET / HTTP/1.1\r\n" + b"X-Header: y\r\n" * 20_000 + b"\r\n",
                bytes(rng.randrange(256) for _ in range(300)),
            ]
        )
    )


async def _other_places(writer: asyncio.StreamWriter, rng: random.Random) -> None:
    path = rng.choice(["/../../etc/passwd", "/predict/x", "/%00", "/PREDICT", "//", "/metrics/"])
    method = rng.choice(["GET", "DELETE", "OPTIONS", "POST", "TRACE", "PUT"])
    host = rng.choice(["localhost", "evil.example", "localhost:1", ""])
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n".encode())


async def _slow(writer: asyncio.StreamWriter, rng: random.Random) -> None:
    """Headers, or a body, a byte at a time."""
    data = request("/predict", {"inputs": "a"})
    end = data.index(b"\r\n\r\n")
    start = rng.choice([10, end - 3, end + 6])
    writer.write(data[:start])
    for byte in data[start : start + 8]:
        await asyncio.sleep(0.2)
        writer.write(bytes([byte]))


async def _gone(writer: asyncio.StreamWriter, rng: random.Random) -> None:
    """Goes in the middle of a request, or right after it."""
    data = request("/predict", {"inputs": ["a b c"] * 8})
    writer.write(data if rng.random() < 0.5 else data[: rng.randrange(1, len(data))])
    await writer.drain()
    writer.transport.abort()


HOSTILE: dict[str, Callable[[asyncio.StreamWriter, random.Random], Awaitable[None]]] = {
    "huge": _huge,
    "long": _long_text,
    "malformed": _malformed,
    "types": _wrong_types,
    "not_http": _not_http,
    "places": _other_places,
    "slow": _slow,
    "gone": _gone,
}
"""What is sent of each kind."""


def _head(path: str, length: int | None, *, host: str = HOST) -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{size}\r\n\r\n"
    ).encode()
