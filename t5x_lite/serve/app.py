"""The ASGI application: one POST for each endpoint, health, readiness, metrics and the page.

    POST /predict {"inputs": ["..."]}  ->  {"results": [{"prediction": "..."}]}
    GET /health   200 while the process lives        GET /ready   200 when each endpoint answers
    GET /metrics  for Prometheus                     GET /        a page to try it

Every error is {"error": "one sentence"}. /health, /ready and / need no token.
"""

import asyncio
import functools
import hmac
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from t5x_lite.errors import InputError
from t5x_lite.serve.batching import Batcher, Row
from t5x_lite.serve.counts import CONTENT_TYPE, Counts
from t5x_lite.serve.limits import Limits, Refused, is_loopback
from t5x_lite.serve.page import PAGE_HEADERS, page
from t5x_lite.serve.requests import parse

_logger = logging.getLogger(__name__)
_ARRIVING = 64
"""Bodies of the largest size that are in memory at a time at most, before they are whole."""
_CLOSED = 499
"""The client went before its answer; only the metrics show it."""


@runtime_checkable
class Endpoint(Protocol):
    """A kind of question, such as predict.

    Attributes:
      fields: that a request may have.
      example: a request, for the page and for errors.
    """

    @property
    def fields(self) -> frozenset[str]: ...
    @property
    def example(self) -> Mapping[str, Any]: ...

    def rows(self, record: Mapping[str, Any]) -> list[Row]:
        """The rows of a request, checked; called in a thread.

        Raises:
          Refused: with a sentence.
        """
        ...

    def answer(
        self, payloads: Sequence[Any], *, size: int, lengths: tuple[int, ...]
    ) -> Sequence[Any]:
        """An outcome for each payload: a JSON object, or a Refused."""
        ...

    def results(self, record: Mapping[str, Any], outcomes: Sequence[Any]) -> list[Any]:
        """The outcomes of a request's rows as its results, one for each text."""
        ...


class Service:
    """What answers; `app` is for the server.

    Args:
      endpoints: the table, by name: POST /NAME.
      batcher: started by whoever made it.
      limits: of requests.
      token: that requests must bring; None is none, and then only this machine is answered.
      title: title of the page, such as the checkpoint's name; only admitted requests see it.
      absent: names of endpoints that this checkpoint has not, and why.
      answers: says whether an endpoint has a program by now; if None, all have when it is ready.
      programs: gives how many programs are compiled, and how many there are.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        batcher: Batcher,
        counts: Counts,
        *,
        is_ready: Callable[[], bool],
        limits: Limits,
        token: str | None,
        title: str,
        absent: Mapping[str, str] | None = None,
        programs: Callable[[], tuple[int, int]] | None = None,
        answers: Callable[[str], bool] | None = None,
    ):
        self._endpoints, self._batcher, self._counts = dict(endpoints), batcher, counts
        self._programs = programs
        self._answers = answers or (lambda name: is_ready())
        self._is_ready, self._limits, self._token = is_ready, limits, token
        self._arriving = 0
        self._absent = dict(absent or {})
        examples = {name: dict(each.example) for name, each in endpoints.items()}
        self._page = page(title, examples, needs_token=token is not None)
        self._untitled_page = page("t5x-lite", examples, needs_token=token is not None)
        self.app = Starlette(
            routes=[
                Route("/", self._show_page, methods=["GET"]),
                Route("/health", self._health, methods=["GET"]),
                Route("/ready", self._ready, methods=["GET"]),
                Route("/metrics", self._metrics, methods=["GET"]),
                *(
                    Route(f"/{name}", functools.partial(self._ask, name), methods=["POST"])
                    for name in (*endpoints, *self._absent)
                ),
            ],
            exception_handlers={HTTPException: self._not_served, Exception: _failed},
        )
        self.app.router.redirect_slashes = False

    async def _show_page(self, request: Request) -> Response:
        try:
            self._admit(request)
        except Refused:  # the title names the checkpoint, which strangers need not know
            return HTMLResponse(self._untitled_page, headers=PAGE_HEADERS)
        return HTMLResponse(self._page, headers=PAGE_HEADERS)

    async def _health(self, request: Request) -> Response:
        del request
        return _json({"status": "alive"})

    async def _ready(self, request: Request) -> Response:
        del request
        told: dict[str, Any] = {}
        if self._programs is not None:
            compiled, total = self._programs()
            told["programs"] = {"compiled": compiled, "total": total}
        if self._is_ready():
            return _json({"status": "ready", **told})
        error = "The programs are being compiled."
        return _json({"error": error, **told}, 503, {"Retry-After": "5"})

    async def _metrics(self, request: Request) -> Response:
        try:
            self._admit(request)
        except Refused as refused:
            return _refusal(refused)
        return Response(self._counts.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _ask(self, name: str, request: Request) -> Response:
        """Answers a POST in bounded time, and counts it."""
        start = time.monotonic()
        try:
            async with asyncio.timeout(self._limits.timeout):
                response = _json({"results": await self._results(name, request)})
        except Refused as refused:
            response = _refusal(refused)
        except TimeoutError:
            seconds = f"{self._limits.timeout:g}"
            response = _refusal(Refused(504, f"The answer took longer than {seconds} s."))
        except ClientDisconnect:
            response = Response(status_code=_CLOSED)
        seconds = time.monotonic() - start
        self._counts.request(name, status=response.status_code, seconds=seconds)
        return response

    async def _results(self, name: str, request: Request) -> list[Any]:
        self._admit(request)
        if name in self._absent:
            raise Refused(404, self._absent[name])
        body = await self._body(request)
        if not self._answers(name):
            raise Refused(503, "The programs are being compiled.", {"Retry-After": "5"})
        endpoint = self._endpoints[name]
        record = parse(body, fields=endpoint.fields)
        try:
            rows = await run_in_threadpool(endpoint.rows, record)
        except InputError as error:  # of the vocabulary: its message names a path of this machine
            _logger.error("a text for %s cannot be encoded: %s", name, error)
            sentence = "The tokenizer cannot encode this text; the server's log says why."
            raise Refused(400, sentence) from error
        outcomes = await self._outcomes(name, rows, request)
        for outcome in outcomes:
            if isinstance(outcome, Refused):
                raise outcome
        return endpoint.results(record, outcomes)

    def _admit(self, request: Request) -> None:
        """Refuses who has no token; without one, pages of other sites that a browser has open."""
        if self._token is None:
            host = request.headers.get("host", "")
            name = host.rsplit(":", 1)[0] if host.rpartition(":")[2].isdigit() else host
            if not is_loopback(name):
                raise Refused(403, "The host of the request is not this machine.")
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(
            given.strip().encode(), self._token.encode()
        ):
            raise Refused(
                401,
                "The request needs the header Authorization: Bearer TOKEN.",
                {"WWW-Authenticate": "Bearer"},
            )

    async def _body(self, request: Request) -> bytes:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, "The request needs the header Content-Type: application/json.")
        most = self._limits.max_body
        too_large = Refused(413, f"A body may have {most} bytes; send several requests.")
        length = request.headers.get("content-length", "")
        if length.isdigit() and len(length) < 20 and int(length) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_timeout):
                async for chunk in request.stream():
                    body += chunk
                    self._arriving += len(chunk)
                    if len(body) > most:
                        raise too_large
                    if self._arriving > _ARRIVING * most:
                        raise Refused(503, "Too many requests arrive.", {"Retry-After": "1"})
        except TimeoutError:
            seconds = f"{self._limits.body_timeout:g}"
            raise Refused(
                408, f"The body took longer than {seconds} s to arrive.", {"Connection": "close"}
            ) from None
        finally:
            self._arriving -= len(body)
        return bytes(body)

    async def _outcomes(self, name: str, rows: Sequence[Row], request: Request) -> list[Any]:
        """Waits for the batches; a request whose client goes leaves the queue."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[list[Any]] = loop.create_future()

        def settle(outcomes: list[Any]) -> None:
            if not answered.done():
                answered.set_result(outcomes)

        ticket = self._batcher.submit(
            name, rows, on_done=lambda outcomes: loop.call_soon_threadsafe(settle, outcomes)
        )
        gone = asyncio.ensure_future(request.receive())  # the next message is the disconnection
        try:
            await asyncio.wait({answered, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answered.done():
                raise ClientDisconnect
            return answered.result()
        finally:
            gone.cancel()
            if not answered.done():
                self._batcher.drop(ticket)

    async def _not_served(self, request: Request, error: Exception) -> Response:
        """404 and 405 of the router."""
        assert isinstance(error, HTTPException)
        known = ", ".join(f"POST /{name}" for name in self._endpoints)
        sentence = f"{error.detail}; this server has {known}, GET /health, /ready, /metrics and /."
        del request
        return _json({"error": sentence}, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    _logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _json({"error": "The server failed; its log says why."}, 500)


def _refusal(refused: Refused) -> Response:
    return _json({"error": str(refused)}, refused.status, refused.headers)


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
    return Response(body, status_code=status, headers=headers, media_type="application/json")
