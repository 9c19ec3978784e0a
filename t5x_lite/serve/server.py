"""HTTP connections of the server and their limits, and counters for Prometheus.

On SIGTERM, SIGHUP or Ctrl-C, the server accepts no new connections, answers all its requests, and
ends; a second signal ends it at once.

uvicorn limits the time that an idle connection is kept, but not the time for receiving headers or
for sending an answer. Here a connection has a time limit for the headers of a request, and another
from there until its answer is sent; then it is closed. Beyond a maximum number, connections are
rejected. HTTP errors are JSON like all others.

A few connections above the maximum are reserved for GET /health and GET /ready, so that a monitor
does not restart a server that is occupied by other clients. Such a connection has one second, and
the newest one replaces the oldest.

Counters have the text format of Prometheus.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from types import FrameType
from typing import Any, ClassVar

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from uvicorn.protocols.http.h11_impl import H11Protocol

from t5x_lite.core.errors import InputError
from t5x_lite.core.signals import SIGNALS, leave_terminal
from t5x_lite.serve.requests import Limits

_logger = logging.getLogger(__name__)

RESERVE = 16
"""Connections above the limit that are kept for /health and /ready."""
_RESERVE_SECONDS = 1.0
_HEALTH = ("/health", "/ready")
_TOO_MANY = "Too many connections are open."


class GuardedConnection(H11Protocol):
    """One connection; `guarded` makes the class with its limits.

    Attributes:
      header_seconds: for the headers of a request.
      request_seconds: from the headers until the answer has been sent.
      most: connections at the same time, without the reserve.
      reserve: the connections above the limit, the oldest first.
    """

    header_seconds: float
    request_seconds: float
    most: int
    reserve: ClassVar[dict["GuardedConnection", None]]
    _limit: asyncio.TimerHandle | None = None
    _in_headers = True

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app: Any = _Checked(self.app)
        if len(self.connections) - len(self.reserve) > self.most:
            self.app = _HealthOnly(self.app)
            self.reserve[self] = None
            if len(self.reserve) > RESERVE:
                next(iter(self.reserve))._refuse()
        self._cut_after(self.header_seconds)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        before, idle = self.cycle, self._is_idle()
        super().data_received(data)
        if self.cycle is not before:
            self._in_headers = False
            if not self._is_idle():
                self._cut_after(self.request_seconds)
        elif idle and not self._in_headers:  # the first bytes of another request
            self._in_headers = True
            self._cut_after(self.header_seconds)

    def on_response_complete(self) -> None:
        self._cut_after(self.timeout_keep_alive + self.request_seconds)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self.reserve.pop(self, None)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self.transport.write(_plain_response(400, "The request is not HTTP/1.1."))
        self.transport.close()
        del msg

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _cut_after(self, seconds: float) -> None:
        if self._limit is not None:
            self._limit.cancel()
        if self in self.reserve:
            self._limit = self.loop.call_later(min(seconds, _RESERVE_SECONDS), self._refuse)
        else:
            self._limit = self.loop.call_later(seconds, self.transport.abort)

    def _refuse(self) -> None:
        """End a connection of the reserve: by 503 if it has not asked anything."""
        self.reserve.pop(self, None)
        if self.cycle is None:
            self.transport.write(_plain_response(503, _TOO_MANY))
            self.transport.close()
            self._cut_after(self.header_seconds)
        else:
            self.transport.abort()


class _Checked:
    """The application behind a check that a request has one length only (RFC 9112, 6.1).

    A proxy before the server may take the other length, and then a stranger's request hides in
    another one's body.
    """

    def __init__(self, app: Any):
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        names = {name.lower() for name, _ in scope["headers"]}
        is_old = scope.get("http_version") == "1.0"
        if b"transfer-encoding" in names and (b"content-length" in names or is_old):
            sentence = (
                "Transfer-Encoding needs HTTP/1.1."
                if is_old
                else "A request has either Content-Length or Transfer-Encoding."
            )
            await _answer(send, 400, sentence)
        else:
            await self._app(scope, receive, send)


class _HealthOnly:
    """The application for /health and /ready, one request a connection."""

    def __init__(self, app: Any):
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_and_close(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        if scope["method"] in ("GET", "HEAD") and scope["path"] in _HEALTH:
            await self._app(scope, receive, send_and_close)
        else:
            await _answer(send, 503, _TOO_MANY)


async def _answer(send: Any, status: int, sentence: str) -> None:
    """Send an error and close the connection."""
    body = json.dumps({"error": sentence}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *([(b"retry-after", b"5")] if status == 503 else []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def guarded(*, header_seconds: float, request_seconds: float, most: int) -> type[GuardedConnection]:
    """Return the class of connections with these limits."""
    limits = {"header_seconds": header_seconds, "request_seconds": request_seconds, "most": most}
    return type("GuardedConnection", (GuardedConnection,), {**limits, "reserve": {}})


def _plain_response(status: int, sentence: str) -> bytes:
    body = json.dumps({"error": sentence}).encode()
    retry = "Retry-After: 5\r\n" if status == 503 else ""
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{retry}Connection: close\r\n\r\n"
    )
    return head.encode() + body


_KEEP_ALIVE = 30
"""Seconds that an idle connection is kept."""


class _Server(uvicorn.Server):
    """uvicorn's server, that ends by a signal without passing it on."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        watched = [one for one in SIGNALS if signal.getsignal(one) != signal.SIG_IGN]
        before = {one: signal.signal(one, self.handle_exit) for one in watched}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del frame
        leave_terminal(sig)
        if self.should_exit:
            _logger.warning("received a second signal; dropping the waiting requests")
            os._exit(128 + sig)
        _logger.info("received signal %d; finishing the accepted requests, rejecting new ones", sig)
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """Return a socket at an address."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        raise InputError(
            f"cannot serve on {host} port {port} ({error.strerror}): choose another --port"
        ) from error
    return found


def listen(address: socket.socket, *, limits: Limits) -> None:
    """Accept connections, which wait for `run`: a client that reads the log may connect at once."""
    address.listen(_backlog(limits))


def _backlog(limits: Limits) -> int:
    return max(128, limits.connections)


def run(
    app: Any,
    address: socket.socket,
    *,
    limits: Limits,
    on_start: Callable[[Callable[[], None]], None] | None = None,
) -> int:
    """Serve until a signal comes, and answer what was accepted."""
    config = uvicorn.Config(
        app,
        http=guarded(
            header_seconds=limits.body_timeout,
            request_seconds=limits.timeout + limits.body_timeout + 5.0,
            most=limits.connections,
        ),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=round(limits.timeout + limits.body_timeout + 6.0),
        backlog=_backlog(limits),
        h11_max_incomplete_event_size=32 << 10,
    )
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # our own lines say it
    server = _Server(config)
    if on_start is not None:
        on_start(lambda: setattr(server, "should_exit", True))
    server.run(sockets=[address])
    return server.server_state.total_requests


CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class Counts:
    """The numbers of one server.

    Args:
      num_waiting: texts in the queue now.
      is_ready: True if each endpoint has a program.
    """

    def __init__(self, *, num_waiting: Callable[[], int], is_ready: Callable[[], bool]):
        self._registry = CollectorRegistry()
        self._requests = self._counter("requests", "Requests answered.", "endpoint", "status")
        self._texts = self._counter("texts", "Texts that went through the model.", "endpoint")
        self._padding = self._counter(
            "padding_rows", "Rows of batches that held no text.", "endpoint"
        )
        self._latency = self._histogram(
            "request_seconds", "From a request's headers to its answer.", _SECONDS
        )
        self._batch_rows = self._histogram("batch_rows", "Texts of a batch.", _ROWS)
        self._batch_seconds = self._histogram(
            "batch_seconds", "A batch on the device, with its tokens made text.", _SECONDS
        )
        self._gauge("queue_texts", "Texts that wait.", num_waiting)
        self._gauge("ready", "1 when each endpoint answers.", is_ready)

    def request(self, endpoint: str, *, status: int, seconds: float) -> None:
        """Count an answer."""
        self._requests.labels(endpoint, str(status)).inc()
        if status == 200:
            self._latency.labels(endpoint).observe(seconds)

    def batch(self, kind: str, *, rows: int, size: int, seconds: float) -> None:
        """Count a batch; see `batching.Observer`."""
        self._texts.labels(kind).inc(rows)
        self._padding.labels(kind).inc(size - rows)
        self._batch_rows.labels(kind).observe(rows)
        self._batch_seconds.labels(kind).observe(seconds)

    def text(self) -> bytes:
        """Return the page that Prometheus reads."""
        return generate_latest(self._registry)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"t5x_lite_{name}", about, labels, registry=self._registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"t5x_lite_{name}", about, ("endpoint",), buckets=buckets, registry=self._registry
        )

    def _gauge(self, name: str, about: str, function: Callable[[], float]) -> None:
        gauge = Gauge(f"t5x_lite_{name}", about, registry=self._registry)
        gauge.set_function(lambda: float(function()))
