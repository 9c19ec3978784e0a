"""uvicorn's HTTP, whose connections are cut when they are too slow, and refused when too many.

uvicorn limits how long an idle connection is kept, and not how long headers take to arrive or an
answer to be read. Here a connection has so many seconds for the headers of a request, and so many
from there until its answer has left; then it is cut. Errors of HTTP are JSON like the others.
"""

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class GuardedConnection(H11Protocol):
    """One connection; `guarded` makes the class with its limits.

    Attributes:
      header_seconds: for the headers of a request.
      request_seconds: from the headers until the answer has been sent.
      most: connections at the same time.
    """

    header_seconds: float
    request_seconds: float
    most: int
    _limit: asyncio.TimerHandle | None = None
    _in_headers = True

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._cut_after(self.header_seconds)
        if len(self.connections) > self.most:
            transport.write(_plain_response(503, "Too many connections are open."))
            transport.close()

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
        self._limit = self.loop.call_later(seconds, self.transport.abort)


def guarded(*, header_seconds: float, request_seconds: float, most: int) -> type[GuardedConnection]:
    """The class of connections with these limits."""
    limits = {"header_seconds": header_seconds, "request_seconds": request_seconds, "most": most}
    return type("GuardedConnection", (GuardedConnection,), limits)


def _plain_response(status: int, sentence: str) -> bytes:
    body = json.dumps({"error": sentence}).encode()
    retry = "Retry-After: 5\r\n" if status == 503 else ""
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{retry}Connection: close\r\n\r\n"
    )
    return head.encode() + body
