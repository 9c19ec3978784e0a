"""uvicorn's HTTP, whose connections are cut when they are too slow, and refused when too many.

uvicorn limits how long an idle connection is kept, and not how long headers take to arrive or an
answer to be read. Here a connection has so many seconds for the headers of a request, and so many
from there until its answer has left; then it is cut. Errors of HTTP are JSON like the others.

A few connections above the limit are kept for GET /health and GET /ready, so that a monitor does
not restart a server whose connections strangers hold. Such a connection has one second, and the
newest one takes the place of the oldest.
"""

import asyncio
import json
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

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
        """Ends a connection of the reserve: by 503 if it has not asked anything."""
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
    """Sends an error and closes the connection."""
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
    """The class of connections with these limits."""
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
