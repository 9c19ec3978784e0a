"""`t5x-lite serve`: HTTP connections and their limits, counters, and the running checkpoint.

HTTP connections of the server with their time limits, and counters for Prometheus.

On SIGTERM, SIGHUP or Ctrl-C, the server accepts no new connections, finishes all accepted requests,
and ends; a second signal ends it at once.

uvicorn limits the time of idle connections, but not the time to receive headers or to send a
response. This module adds both limits, and closes connections that exceed them. Connections above a
maximum number are rejected. HTTP errors are JSON, like all other errors.

A few connections above the maximum are reserved for GET /health and GET /ready, so that a monitor
does not restart a server that is occupied by other clients. Such a connection is closed after one
second, and the newest connection replaces the oldest.

Counters have the text format of Prometheus.

Command `t5x-lite serve`: serves a checkpoint over HTTP, without TensorFlow.

The server listens at once. Each endpoint has a program for each batch size and static length. The
server is ready when each endpoint has its first program, for one text of the maximum length, and
uses it while the other programs compile. After that, no request triggers a compilation.
"""

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from types import FrameType
from typing import Any, ClassVar

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from uvicorn.protocols.http.h11_impl import H11Protocol

from t5x_lite.adapters.base import Adapter
from t5x_lite.core.devices import use_compilation_cache
from t5x_lite.core.errors import InputError, install_command, shown
from t5x_lite.core.options import did_you_mean
from t5x_lite.core.signals import SIGNALS, leave_terminal
from t5x_lite.core.trees import Params
from t5x_lite.core.workers import counting
from t5x_lite.inference.answers import answering_heads
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.loading import ModulesOf, Step
from t5x_lite.inference.pairs import scores_texts, trains_ranking
from t5x_lite.serve.batching import Batcher, Limits, Refused, check_address, sizes
from t5x_lite.serve.endpoints import ENDPOINTS, Asked, sentence

_logger = logging.getLogger(__name__)


RESERVE = 16
"""Number of connections above the maximum that are reserved for /health and /ready."""
_RESERVE_SECONDS = 1.0
_HEALTH = ("/health", "/ready")
_TOO_MANY = "Too many connections are open."


class GuardedConnection(H11Protocol):
    """HTTP connection of a server that limits times and the number of connections.

    Attributes:
      header_seconds: maximum seconds to receive the headers of a request.
      request_seconds: maximum seconds from the headers of a request to the end of the response.
      most: maximum number of connections.
      reserve: number of additional connections, which may only read /health and /ready.
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
        self.reserve.pop(self, None)
        if self.cycle is None:
            self.transport.write(_plain_response(503, _TOO_MANY))
            self.transport.close()
            self._cut_after(self.header_seconds)
        else:
            self.transport.abort()


class _Checked:
    """ASGI wrapper that rejects requests with two different body lengths (RFC 9112, 6.1).

    With such requests, an attacker could hide a request from a proxy.
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
    """ASGI wrapper that serves only the paths /health and /ready."""

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
    """Return a socket that is bound to a host and port; raise InputError if the port is in use."""
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
    """Open the server's port, so that clients can connect before `run` serves them."""
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
    """Serve requests until a signal arrives; return the number of accepted requests."""
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


TOKEN_VARIABLE = "T5X_LITE_TOKEN"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Address:
    """Address and access token of the server.

    Attributes:
      host: host name or address; every host except this machine needs an access token.
      port: port number; 0 selects a free port, which is logged.
      token_file: file with the access token; None reads the environment variable T5X_LITE_TOKEN. If
        neither is set, no token is needed.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token_file: str | None = None

    def token(self) -> str | None:
        """Return the access token, or None; raise InputError if the host needs a token."""
        token = os.environ.get(TOKEN_VARIABLE)
        if self.token_file is not None:
            try:
                with open(self.token_file, encoding="utf-8") as file:
                    token = file.read(4096).strip()
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(
                    f"{self.token_file}: the access token cannot be read: {error}"
                ) from error
        check_address(self.host, token)
        return token


def serve(
    checkpoints: Sequence[str],
    *,
    address: Address,
    step: Step = None,
    use: str | None = None,
    endpoints: Sequence[str] = (),
    batch_size: int = 32,
    wait: float = 0.005,
    inputs_length: int | None = None,
    compilation_cache: str = "",
    adapters: Sequence[str] = (),
    adapters_directory: str | None = None,
    asked: Asked,
    limits: Limits,
) -> None:
    """Serve checkpoints over HTTP until SIGTERM or SIGINT, then finish the accepted requests."""
    _check_extra()

    token = address.token()
    _check_names(endpoints)
    use_compilation_cache(compilation_cache)
    socket = bind(address.host, address.port)
    model = Checkpoint.load(
        checkpoints, step=step, use=use, adapters=adapters, inputs_length=inputs_length
    )
    live = LiveAdapters(
        model, by_row=bool(adapters), directory=adapters_directory, seconds=limits.timeout
    )
    asked = dataclasses.replace(asked, max_rows=limits.max_rows, adapters=live.ids)

    def table_of(model: Checkpoint) -> dict[str, Any]:
        return {name: ENDPOINTS[name](model, asked) for name in endpoints or _usual(model)}

    table = table_of(live.model)
    answering = _Answering(table, batch_size=batch_size, wait=wait, limits=limits, adapters=live)
    live.grow = lambda model: answering.replace(table_of(model))
    title = ", ".join(str(member.directory) for member in model.members)
    app = answering.app(limits=limits, token=token, title=title)
    host, port = socket.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    listen(socket, limits=limits)
    _logger.info("serving %s at http://%s:%d, endpoints: %s", title, shown, port, ", ".join(table))
    answered = run(app, socket, limits=limits, on_start=answering.start)
    answering.close()
    _logger.info("the server stopped after answering %d requests", answered)
    if answering.failure is not None:
        raise answering.failure


@dataclasses.dataclass(frozen=True)
class _Held:
    """Config and arrays of an adapter that requests can select."""

    adapter: Adapter
    arrays: Params


class LiveAdapters:
    """Adapters that can be added to a running server and removed from it.

    The model has several adapters, numbered by adapter ids, and each request selects one by its
    name. A new adapter gets a free id, if the last adapter with this id had the same config.
    Otherwise a model with more ids is compiled in the background.

    Attributes:
      model: the model that serves requests.
      ids: adapter ids by adapter name.
      grow: function that compiles a new model, and then replaces the served model.

    Args:
      model: checkpoint to serve.
      by_row: True if requests may select the checkpoint's own adapters by name.
      directory: directory with the adapters that may be added; None disables adding.
      seconds: maximum seconds until a request is answered.
    """

    def __init__(self, model: Checkpoint, *, by_row: bool, directory: str | None, seconds: float):
        self._plain, self._directory, self._seconds = model, directory, seconds
        self.model, self.ids = model, dict[str, int]()
        self.grow: Callable[[Checkpoint], None] = lambda model: None
        self._held: dict[int, _Held] = {}
        self._free: dict[int, float] = {}  # removed id -> time until which a request may wait
        self._lock, self._compiling = threading.Lock(), ""
        if by_row and model.modules is not None:
            arrays = model.modules.arrays
            for name, adapter in model.modules.adapters.items():
                self.ids[name] = len(self.ids) + 1
                self._held[self.ids[name]] = _Held(adapter, arrays.get(name, {}))
            self.model, self._held = self._with_spare(self._held)

    def states(self) -> dict[str, str]:
        """Return the state of each adapter, "ready" or "compiling", by adapter name."""
        compiling = {self._compiling: "compiling"} if self._compiling else {}
        return dict.fromkeys(sorted(self.ids.copy()), "ready") | compiling

    def add(self, name: str, directory: str | None) -> bool:
        """Add an adapter; return True if it is ready, or False if it must be compiled first.

        Args:
          name: name of the adapter in requests.
          directory: checkpoint directory of the adapter; None uses the adapter's name.

        Raises:
          Refused: if adapters may not be added, or the adapter is missing or unsuitable.
        """
        path = self._path(name if directory is None else directory)
        with self._lock:
            if self._compiling:
                busy = f"The adapter {self._compiling} is being compiled; try again when it is."
                raise Refused(409, busy, {"Retry-After": "5"})
            if name in self.ids:
                raise Refused(409, f"There is an adapter {name} already; remove it first.")
            try:
                assert self._plain.modules is not None
                own = self._plain.modules.loaded
                found = ModulesOf(own, {}, {}).adding(name, path)
                new = _Held(found.adapters[name], found.arrays.get(name, {}))
                place = self._place_of(new.adapter)
                if place is not None:  # the next batch has the new arrays
                    self.model.params["adapters"][_place(place)] = new.arrays
                    self._held[place], self.ids[name] = new, place
                    return True
                kept = {n: held for n, held in self._held.items() if not self._is_free(n)}
                place = next(n for n in itertools.count(1) if n not in kept)
                model, kept = self._with_spare({**kept, place: new})
            except InputError as error:
                raise Refused(400, sentence(error)) from error
            self._compiling = name
        threading.Thread(target=self._grow, args=(name, place, model, kept), daemon=True).start()
        return False

    def remove(self, name: str) -> None:
        """Remove an adapter; requests that were already accepted are still answered.

        Raises:
          Refused: if the adapter is unknown, or adapters may not be removed.
        """
        self._path("")
        with self._lock:
            if name not in self.ids:
                raise Refused(404, f"The adapter {shown(name)} is unknown.")
            self._free[self.ids.pop(name)] = time.monotonic() + self._seconds

    def _path(self, directory: str) -> str:
        if self._directory is None:
            fixed = "This server has fixed adapters; start it with --adapters-directory DIR."
            raise Refused(403, fixed)
        if self._plain.modules is None:
            raise Refused(403, "An ensemble of checkpoints does not support adapters.")
        root = os.path.realpath(self._directory)
        path = os.path.realpath(os.path.join(root, directory))
        if os.path.commonpath([root, path]) != root:
            raise Refused(400, '"directory" must be below the --adapters-directory of the server.')
        return path

    def _place_of(self, adapter: Adapter) -> int | None:
        for number, held in self._held.items():
            same = dataclasses.replace(adapter, name=held.adapter.name) == held.adapter
            if same and self._is_free(number):
                return number
        return None

    def _is_free(self, number: int) -> bool:
        removed = self._free.get(number, 0.0)
        return number not in self.ids.values() and removed <= time.monotonic()

    def _with_spare(self, held: Mapping[int, _Held]) -> tuple[Checkpoint, dict[int, _Held]]:
        held, modules = dict(held), self._plain.modules
        assert modules is not None
        last = [*held.values()][-1:]
        forms = [dataclasses.replace(one.adapter, name="any") for one in held.values()]
        num = forms.count(forms[-1]) if forms and self._directory is not None else 0
        for _ in range((1 << num.bit_length()) - num if num else 0):
            held[next(n for n in itertools.count(1) if n not in held)] = last[0]
        names = {n: dataclasses.replace(x.adapter, name=_place(n)) for n, x in held.items()}
        modules = ModulesOf(
            modules.loaded,
            {**modules.adapters, **{adapter.name: adapter for adapter in names.values()}},
            {**modules.arrays, **{_place(n): x.arrays for n, x in held.items()}},
        )
        places = [_place(n) if n in held else None for n in range(1, max(held, default=0) + 1)]
        try:
            return dataclasses.replace(self._plain, modules=modules).by_row(places), held
        except InputError as error:
            message = str(error)
            for number, one in held.items():
                message = message.replace(repr(_place(number)), repr(one.adapter.name))
            raise InputError(message) from error

    def _grow(self, name: str, place: int, model: Checkpoint, held: dict[int, _Held]) -> None:
        try:
            self.grow(model)
            with self._lock:
                self.model, self._held, self.ids[name] = model, held, place
        except Exception:
            _logger.exception("the adapter %s cannot be compiled", name)
        finally:
            self._compiling = ""


def _place(number: int) -> str:
    return f"place_{number}"


class _Answering:
    """Batcher of all endpoints of a server, with a thread that compiles their programs.

    Attributes:
      failure: exception of the compilation, or None.
    """

    def __init__(
        self,
        table: Mapping[str, Any],
        *,
        batch_size: int,
        wait: float,
        limits: Limits,
        adapters: LiveAdapters | None = None,
    ):

        self._table, self._sizes, self._adapters = dict(table), sizes(batch_size), adapters
        self._stopping, self._num_compiled = threading.Event(), 0
        self._counts = Counts(
            num_waiting=lambda: self._batcher.num_waiting, is_ready=self._is_ready
        )
        self._batcher = Batcher(
            {name: functools.partial(self._answer, name) for name in table},
            sizes=self._sizes,
            queue=limits.queue,
            wait=wait,
            observer=self._counts,
        )
        self._warming = threading.Thread(target=self._warm_up, name="t5x_lite-warm-up")
        self._end: Callable[[], None] = lambda: None
        self.failure: Exception | None = None

    def _answer(self, name: str, payloads: Sequence[Any], **shape: Any) -> Sequence[Any]:
        return self._table[name].answer(payloads, **shape)

    def app(self, *, limits: Limits, token: str | None, title: str) -> Any:
        from t5x_lite.serve.app import Service

        absent = {
            name: (
                f"This server has no endpoint {name}; its endpoints are {', '.join(self._table)}."
            )
            for name in ENDPOINTS
            if name not in self._table
        }
        return Service(
            self._table,
            self._batcher,
            self._counts,
            is_ready=self._is_ready,
            programs=self.programs,
            answers=lambda name: name in self._batcher.answerable,
            limits=limits,
            token=token,
            title=title,
            absent=absent,
            adapters=self._adapters,
        ).app

    def replace(self, table: Mapping[str, Any]) -> None:
        """Compile the programs of new endpoints, and then replace the old endpoints."""
        self._warming.join()
        start = time.monotonic()
        for name, shape, size in self._programs():
            if self._stopping.is_set():
                return
            table[name].answer([table[name].warm_row(shape)] * size, size=size, lengths=shape)
        self._table.update(table)
        _logger.info("compiled all programs again in %.1f s", time.monotonic() - start)

    def start(self, end: Callable[[], None]) -> None:
        """Start the batcher and the compilation, each in its own thread."""
        self._end = end
        self._batcher.compiling(True)
        self._batcher.start()
        self._warming.start()

    def close(self) -> None:
        self._stopping.set()
        self._warming.join()
        self._batcher.close()

    def programs(self) -> tuple[int, int]:
        return self._num_compiled, len(list(self._programs()))

    def _is_ready(self) -> bool:
        """Return True if each endpoint has a compiled program for its longest texts."""
        return self._batcher.answerable >= set(self._table)

    def _programs(self) -> Iterator[tuple[str, tuple[int, ...], int]]:
        first = [(name, each.shapes[-1], self._sizes[0]) for name, each in self._table.items()]
        yield from first
        for name, endpoint in self._table.items():
            for shape in reversed(endpoint.shapes):
                for size in reversed(self._sizes):
                    if (name, shape, size) not in first:
                        yield name, shape, size

    def _compile(self, name: str, shape: tuple[int, ...], size: int) -> None:
        endpoint = self._table[name]
        row = endpoint.warm_row(shape)
        endpoint.answer([row], size=size, lengths=shape)
        start = time.monotonic()
        endpoint.answer([row] * size, size=size, lengths=shape)
        self._batcher.learn(name, shape, size=size, seconds=time.monotonic() - start)

    def _warm_up(self) -> None:
        programs, start = list(self._programs()), time.monotonic()
        _logger.info("compiling %d programs; see GET /ready for progress", len(programs))
        ready = False
        try:
            with counting("compiling", unit="programs", total=len(programs)) as advance:
                for name, shape, size in programs:
                    if self._stopping.is_set():
                        return
                    self._compile(name, shape, size)
                    self._num_compiled += 1
                    advance(1)
                    if not ready and self._is_ready():
                        ready = True
                        seconds = time.monotonic() - start
                        _logger.info(
                            "ready for requests after %.1f s; compiling the remaining programs",
                            seconds,
                        )
        except Exception as error:
            self.failure = error
            self._end()
            return
        self._batcher.compiling(False)
        seconds = time.monotonic() - start
        _logger.info("compiled all programs in %.1f s", seconds)


def _usual(model: Checkpoint) -> tuple[str, ...]:
    if all(hasattr(member.learner.model_type, "prefill") for member in model.members):
        return ("predict", "score")
    ranks = ("rerank",) if all(scores_texts(member) for member in model.members) else ()
    first = model.members[0].experiment
    if ranks and trains_ranking(first):
        return ranks
    return ("predict", *ranks) if answering_heads(first) else ("embed",)


def _check_names(endpoints: Sequence[str]) -> None:
    for name in endpoints:
        if name not in ENDPOINTS:
            hint = did_you_mean(name, ENDPOINTS) or f"; the endpoints are {', '.join(ENDPOINTS)}"
            raise InputError(f"unknown endpoint {name}{hint}")


def _check_extra() -> None:
    try:
        import prometheus_client
        import starlette
        import uvicorn
    except ImportError as error:
        raise InputError(f"serve needs {error.name}: {install_command('serve')}") from error
    del prometheus_client, starlette, uvicorn
