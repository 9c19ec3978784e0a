"""A server in a thread, whose endpoint `double` needs no model."""

import asyncio
import contextlib
import dataclasses
import re
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from scripts.bench import serve_load
from t5x_lite.core.errors import InputError
from t5x_lite.serve import batching, server
from t5x_lite.serve.app import Service
from t5x_lite.serve.batching import Batcher, Limits, Refused, Row
from t5x_lite.serve.server import Counts
from tests.waiting import PATIENCE


class Double:
    """{"inputs"} -> each text twice, after `seconds` and once `free` is set; "fail" fails."""

    fields = frozenset({"inputs"})
    example = {"inputs": ["a </script> b", "c"]}  # noqa: RUF012

    def __init__(self, *, seconds: float = 0.0):
        self.seconds = seconds
        self.free = threading.Event()
        self.free.set()
        self.batches: list[tuple[int, int]] = []  # rows, size

    def rows(self, record):
        texts = batching.texts(record, "inputs", most=4)
        if "panic" in texts:
            raise InputError(
                "vocabulary /place/tokenizer.json: cannot encode one of 1 texts (Onig)"
            )
        return [Row((16 if len(text) < 16 else 64,), text) for text in texts]

    def answer(self, payloads, *, size, lengths):
        self.batches.append((len(payloads), size))
        if "fail" in payloads:
            raise RuntimeError("as asked")
        assert self.free.wait(PATIENCE)
        time.sleep(self.seconds)
        return [
            Refused(500, "Not finite.") if text == "nan" else {"double": text * 2}
            for text in payloads
        ]

    def results(self, record, outcomes):
        return list(outcomes)


@dataclasses.dataclass
class Served:
    """A server that runs."""

    port: int
    endpoint: Double
    ready: threading.Event
    counts: Counts

    @property
    def num_accepted(self) -> int:
        """Texts that wait, that are in a batch and that are answered."""
        [line] = re.findall(rb"^t5x_lite_queue_texts (.*)$", self.counts.text(), re.MULTILINE)
        return int(float(line)) + sum(rows for rows, _ in self.endpoint.batches)

    def ask(self, record: Any, path: str = "/double") -> tuple[int, bytes]:
        return asyncio.run(serve_load.ask(self.port, path, record))

    def send(self, data: bytes) -> tuple[int, bytes, bytes]:
        """Status, head and body of the answer to some bytes."""

        async def exchange() -> tuple[int, bytes, bytes]:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line[15:])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length:")
            )
            body = await reader.readexactly(length)
            writer.close()
            return int(head.split()[1]), head, body

        return asyncio.run(exchange())


@contextlib.contextmanager
def serving(
    *, token: str | None = None, seconds: float = 0.0, ready: bool = True, **limits: Any
) -> Iterator[Served]:
    bounds = Limits(
        **{"max_rows": 4, "max_body": 2000, "timeout": 60.0, "body_timeout": 30.0, **limits}
    )
    endpoint, is_ready = Double(seconds=seconds), threading.Event()
    batcher = Batcher({"double": endpoint.answer}, sizes=(1, 4, 8), queue=bounds.queue, wait=0.002)
    counts = Counts(num_waiting=lambda: batcher.num_waiting, is_ready=is_ready.is_set)
    service = Service(
        {"double": endpoint},
        batcher,
        counts,
        is_ready=is_ready.is_set,
        limits=bounds,
        token=token,
        title="a <tiny> model",
        absent={"embed": "This server has no endpoint embed."},
    )
    address = server.bind("127.0.0.1", 0)
    end, result = threading.Event(), SimpleNamespace()

    def started(stop):
        result.stop = stop
        end.set()

    thread = threading.Thread(
        target=server.run,
        args=(service.app, address),
        kwargs={"limits": bounds, "on_start": started},
    )
    port = address.getsockname()[1]
    address.listen()
    batcher.start()
    if ready:
        is_ready.set()
    thread.start()
    assert end.wait(PATIENCE)
    try:
        yield Served(port, endpoint, is_ready, counts)
    finally:
        result.stop()
        thread.join(PATIENCE)
        batcher.close()
        assert not thread.is_alive()
