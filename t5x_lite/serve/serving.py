"""Command `t5x-lite serve`: serves a checkpoint over HTTP, without TensorFlow.

The server listens at once. Each endpoint has a program for each batch size and static length. The
server is ready when each endpoint has its first program, for one text of the maximum length, and
uses it while the other programs compile. After that, no request triggers a compilation.
"""

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from t5x_lite.core.devices import use_compilation_cache
from t5x_lite.core.errors import InputError, install_command
from t5x_lite.core.options import did_you_mean
from t5x_lite.core.progress import counting
from t5x_lite.inference.answers import answering_heads
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.loading import Step
from t5x_lite.inference.pairs import scores_texts, trains_ranking
from t5x_lite.serve.batching import Batcher, sizes
from t5x_lite.serve.endpoints import ENDPOINTS, Asked
from t5x_lite.serve.requests import Limits, check_address

_logger = logging.getLogger(__name__)

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
    asked: Asked,
    limits: Limits,
) -> None:
    """Serve checkpoints over HTTP until SIGTERM or SIGINT, then finish the accepted requests."""
    _check_extra()
    from t5x_lite.serve.server import bind, listen, run

    token = address.token()
    _check_names(endpoints)
    use_compilation_cache(compilation_cache)
    socket = bind(address.host, address.port)
    model = Checkpoint.load(checkpoints, step=step, use=use, inputs_length=inputs_length)
    asked = dataclasses.replace(asked, max_rows=limits.max_rows)
    table = {name: ENDPOINTS[name](model, asked) for name in endpoints or _usual(model)}
    answering = _Answering(table, batch_size=batch_size, wait=wait, limits=limits)
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


class _Answering:
    """Batcher of all endpoints of a server, with a thread that compiles their programs.

    Attributes:
      failure: exception of the compilation, or None.
    """

    def __init__(self, table: Mapping[str, Any], *, batch_size: int, wait: float, limits: Limits):
        from t5x_lite.serve.server import Counts

        self._table, self._sizes = dict(table), sizes(batch_size)
        self._stopping, self._num_compiled = threading.Event(), 0
        self._counts = Counts(
            num_waiting=lambda: self._batcher.num_waiting, is_ready=self._is_ready
        )
        self._batcher = Batcher(
            {name: endpoint.answer for name, endpoint in table.items()},
            sizes=self._sizes,
            queue=limits.queue,
            wait=wait,
            observer=self._counts,
        )
        self._warming = threading.Thread(target=self._warm_up, name="t5x_lite-warm-up")
        self._end: Callable[[], None] = lambda: None
        self.failure: Exception | None = None

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
        ).app

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
        """Yield (endpoint, lengths, batch size) of each program to compile, most urgent first.

        First is a batch of one text of maximum length for each endpoint. Then come the largest
        programs, which may run out of memory.
        """
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
