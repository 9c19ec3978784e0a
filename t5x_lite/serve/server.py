"""A server from its first byte to a clean end.

SIGTERM, SIGHUP or Ctrl-C: it takes no new connection, answers every request that it has, and ends;
a second signal ends it at once.
"""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn

from t5x_lite.errors import InputError
from t5x_lite.serve.connections import guarded
from t5x_lite.serve.limits import Limits
from t5x_lite.signals import SIGNALS, leave_terminal

_logger = logging.getLogger(__name__)

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
            _logger.warning("a second signal: requests that wait are not answered")
            os._exit(128 + sig)
        _logger.info("signal %d: the requests that came are answered, and no other ones", sig)
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """A socket at an address.

    Args:
      host: a name or an address.
      port: 0 is any free one.

    Raises:
      InputError: the address is taken, or is none of this machine's.
    """
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
    """Serves until a signal comes, and answers what was accepted.

    Args:
      app: the ASGI application.
      address: from `bind`.
      limits: of connections.
      on_start: called before the first request with a function that ends the server.

    Returns:
      The number of requests that were answered.
    """
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
