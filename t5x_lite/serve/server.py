"""HTTP connections of the server with their time limits, and counters for Prometheus.

On SIGTERM, SIGHUP or Ctrl-C, the server accepts no new connections, finishes all accepted requests,
and ends; a second signal ends it at once.

uvicorn limits the time of idle connections, but not the time to receive headers or to send a
response. This module adds both limits, and closes connections that exceed them. Connections above a
maximum number are rejected. HTTP errors are JSON, like all other errors.

A few connections above the maximum are reserved for GET /health and GET /ready, so that a monitor
does not restart a server that is occupied by other clients. Such a connection is closed after one
second, and the newest connection replaces the oldest.

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
"""Number of connections above the maximum that are reserved for /health and /ready."""
_RESERVE_SECONDS = 1.0
_HEALTH = ("/health", "/ready")
_TOO_MANY = "Too many connections are open."


class GuardedConnection(H11Protocol):
    """HTTP connection with time limits, which are set in subclasses (`guarded`).

    Attributes:
      header_seconds: maximum seconds to receive the headers of a request.
      request_seconds: maximum seconds from the headers of a request to the end of the response.
      most: maximum number of connections, without the reserved connections.
      reserve: connections above the maximum that may only read /health and /ready, oldest first.
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
        """Close a reserved connection, with status 503 if it has not sent a request."""
        self.reserve.pop(self, None)
        if self.cycle is None:
            self.transport.write(_plain_response(503, _TOO_MANY))
            self.transport.close()
            self._cut_after(self.header_seconds)
        else:
            self.transport.abort()


class _Checked:
    """ASGI wrapper that rejects requests with two body lengths (RFC 9112, 6.1).

    A proxy before the server may use the other length, so an attacker could hide a request in
    another request's body.
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
    """ASGI wrapper that serves only /health and /ready, one request per connection."""

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
    """Send a JSON error and close the connection."""
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
    """Return a subclass of `GuardedConnection` with the given limits."""
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
"""Seconds before an idle connection is closed."""


class _Server(uvicorn.Server):
    """uvicorn server that shuts down on a signal without raising the signal again."""

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
            _logger.warning(
                "received a second signal; exiting without finishing the waiting requests"
            )
            os._exit(128 + sig)
        _logger.info("received signal %d; finishing the accepted requests, rejecting new ones", sig)
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to a host and port; raise InputError if the port is taken."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        raise InputError(
            f"cannot serve on {host} port {port} ({error.strerror}); choose another --port"
        ) from error
    return found


def listen(address: socket.socket, *, limits: Limits) -> None:
    """Start to accept connections, so that clients can connect before `run` serves them."""
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
    """Serve requests until a signal arrives, finish accepted requests, and return their number."""
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
    """Prometheus metrics of the server.

    Args:
      num_waiting: function that returns the number of texts in the queue.
      is_ready: function that returns True if each endpoint has a compiled program.
    """

    def __init__(self, *, num_waiting: Callable[[], int], is_ready: Callable[[], bool]):
        self._registry = CollectorRegistry()
        self._requests = self._counter(
            "requests", "Number of finished requests.", "endpoint", "status"
        )
        self._texts = self._counter("texts", "Number of texts processed by the model.", "endpoint")
        self._padding = self._counter(
            "padding_rows", "Number of padding rows in batches.", "endpoint"
        )
        self._latency = self._histogram(
            "request_seconds", "Seconds from the headers of a request to its response.", _SECONDS
        )
        self._batch_rows = self._histogram("batch_rows", "Number of texts in a batch.", _ROWS)
        self._batch_seconds = self._histogram(
            "batch_seconds", "Seconds to run a batch, including detokenization.", _SECONDS
        )
        self._gauge("queue_texts", "Number of texts in the queue.", num_waiting)
        self._gauge("ready", "1 if every endpoint is ready, else 0.", is_ready)

    def request(self, endpoint: str, *, status: int, seconds: float) -> None:
        """Count a response, and record its seconds if it was successful."""
        self._requests.labels(endpoint, str(status)).inc()
        if status == 200:
            self._latency.labels(endpoint).observe(seconds)

    def batch(self, kind: str, *, rows: int, size: int, seconds: float) -> None:
        """Count the texts and padding rows of a batch, and record its seconds."""
        self._texts.labels(kind).inc(rows)
        self._padding.labels(kind).inc(size - rows)
        self._batch_rows.labels(kind).observe(rows)
        self._batch_seconds.labels(kind).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
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
