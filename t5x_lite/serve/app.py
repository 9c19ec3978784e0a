"""ASGI application of the server, and a web page to try it.

    POST /predict {"inputs": ["..."]}  ->  {"results": [{"prediction": "..."}]}
    GET /health   200 while the process lives        GET /ready   200 when each endpoint can respond
    GET /metrics  for Prometheus                     GET /        web page to try the endpoints
    GET /adapters         names of the adapters that requests can use
    PUT /adapters/NAME    add an adapter             DELETE /adapters/NAME    remove an adapter

Every error is {"error": "one sentence"}. /health, /ready and / need no token.

The web page is a single HTML file without external assets. It is generated from the endpoints'
example requests: a list becomes a text area with one text per line, a boolean a check box, and
other fields one line.
"""

import asyncio
import base64
import functools
import hashlib
import hmac
import html
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

from t5x_lite.core.errors import InputError
from t5x_lite.serve.batching import Batcher, Limits, Refused, Row, is_loopback, optional_text, parse
from t5x_lite.serve.server import CONTENT_TYPE, Counts

_logger = logging.getLogger(__name__)

_STYLE = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1b2430;--soft:#5c6876;
--rule:#ccd3db;--main:#0067a3;--on-main:#fff;--bad:#b3261e;--bad-card:#fdf0ee}
@media(prefers-color-scheme:dark){:root{--page:#11151a;--card:#191f26;--ink:#e4e9ef;--soft:#98a4b2;
--rule:#38424e;--main:#56b4e9;--on-main:#0b1116;--bad:#ff9d92;--bad-card:#2e1c1b}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:60rem;margin:0 auto;padding:1.5rem 1rem 3rem}
h1{font-size:1.35rem;margin:0;overflow-wrap:anywhere}
header p{margin:.2rem 0 1.2rem;color:var(--soft)}
.tabs{display:flex;flex-wrap:wrap;gap:.4rem;margin-bottom:.8rem}
button{font:inherit;border:1px solid var(--rule);border-radius:.5rem;padding:.45rem .9rem;
background:var(--card);color:var(--ink);cursor:pointer}
button[aria-selected=true]{border-color:var(--main);color:var(--main);font-weight:600}
button.go{background:var(--main);border-color:var(--main);color:var(--on-main);font-weight:600}
button:disabled{opacity:.55;cursor:default}
:focus-visible{outline:2px solid var(--main);outline-offset:2px}
.card{background:var(--card);border:1px solid var(--rule);border-radius:.7rem;padding:1rem;
margin-bottom:1rem}
label{display:block;font-weight:600;margin-bottom:.8rem}
label small{font-weight:400;color:var(--soft)}
textarea,input{display:block;width:100%;margin-top:.3rem;font:inherit;color:inherit;
background:var(--page);border:1px solid var(--rule);border-radius:.5rem;padding:.5rem .6rem}
textarea{min-height:8rem;resize:vertical;font-weight:400}
input{font-weight:400}
input[type=checkbox]{display:inline;width:auto;margin:0}
.row{display:flex;flex-wrap:wrap;gap:.8rem;align-items:center}
.time{color:var(--soft)}
.bad{color:var(--bad);background:var(--bad-card);border-color:var(--bad)}
ol{margin:0;padding-left:1.6rem}
li{padding:.35rem 0;border-top:1px solid var(--rule);overflow-wrap:anywhere}
li:first-child{border-top:0}
dl{margin:0;display:grid;grid-template-columns:max-content 1fr;gap:0 .8rem}
dt{color:var(--soft)}dd{margin:0;white-space:pre-wrap}
pre{margin:0;overflow-x:auto;font-size:.85rem}
@media(max-width:32rem){dl{grid-template-columns:1fr}}
[hidden]{display:none!important}
"""

_SCRIPT = """
"use strict";
const forms = [...document.querySelectorAll("form")];
const tabs = [...document.querySelectorAll("[role=tab]")];
const out = document.getElementById("out"), time = document.getElementById("time");
const token = document.getElementById("token");
function choose(name) {
  forms.forEach(f => { f.hidden = f.dataset.name !== name; });
  tabs.forEach(t => t.setAttribute("aria-selected", String(t.dataset.name === name)));
  out.replaceChildren(); time.textContent = "";
}
tabs.forEach(t => t.addEventListener("click", () => choose(t.dataset.name)));
function element(name, text) {
  const e = document.createElement(name);
  if (text !== undefined) e.textContent = text;
  return e;
}
function shown(value) {
  if (!Array.isArray(value)) return typeof value === "string" ? value : JSON.stringify(value);
  if (value.length <= 8 || typeof value[0] !== "number") return JSON.stringify(value);
  return "[" + value.slice(0, 8).map(x => x.toFixed(4)).join(", ") + ", ...] " + value.length +
    " numbers";
}
function show(body) {
  const card = element("div"); card.className = "card";
  if (body.error) { card.className += " bad"; card.textContent = body.error; }
  else {
    const list = element("ol");
    for (const result of body.results) {
      const item = element("li"), facts = element("dl");
      for (const [key, value] of Object.entries(result))
        facts.append(element("dt", key), element("dd", shown(value)));
      item.append(facts); list.append(item);
    }
    card.append(list);
  }
  out.replaceChildren(card);
}
forms.forEach(form => form.addEventListener("submit", async event => {
  event.preventDefault();
  const record = {}, go = form.querySelector("button");
  for (const field of form.querySelectorAll("[name]")) {
    const lines = field.value.split("\\n").filter(line => line !== "");
    if (field.type === "checkbox") record[field.name] = field.checked;
    else if (field.tagName === "TEXTAREA") record[field.name] = lines;
    else if (field.value !== "") record[field.name] = field.value;
  }
  const headers = {"Content-Type": "application/json"};
  if (token) headers.Authorization = "Bearer " + token.value;
  go.disabled = true; const start = performance.now();
  try {
    const answer = await fetch(form.dataset.name,
      {method: "POST", headers, body: JSON.stringify(record)});
    show(await answer.json());
    time.textContent = Math.round(performance.now() - start) + " ms";
  } catch (error) { show({error: "No answer: " + error.message}); }
  go.disabled = false;
}));
choose(forms[0].dataset.name);
const state = document.getElementById("state");
async function watch() {
  let text = "The server does not answer.", again = true;
  try {
    const answer = await fetch("ready"), body = await answer.json();
    const done = body.programs ? body.programs.compiled : 0;
    const all = body.programs ? body.programs.total : 0;
    again = !answer.ok || done < all;
    text = !again ? "" : done + " of " + all + " programs are compiled. " + (answer.ok ?
      "The server answers, and becomes faster." : "The first answer comes soon.");
  } catch (error) { /* it is asked again */ }
  state.textContent = text; state.hidden = !text;
  if (again) setTimeout(watch, 1000);
}
watch();
"""

_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()

PAGE_HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def page(title: str, examples: Mapping[str, Mapping[str, Any]], *, needs_token: bool) -> str:
    """Return the HTML of the server's web page, with a form for each endpoint."""
    tabs = "".join(
        f'<button type="button" role="tab" data-name="{_text(name)}">{_text(name)}</button>'
        for name in examples
    )
    token = (
        '<div class="card"><label>Access token'
        '<input id="token" type="password" autocomplete="off" spellcheck="false"></label></div>'
        if needs_token
        else ""
    )
    forms = "".join(_form(name, example) for name, example in examples.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body><main>"
        f"<header><h1>{_text(title)}</h1><p>served by t5x_lite</p></header>"
        f'<p id="state" class="card" role="status" hidden></p>{token}'
        f""
        f'<div class="tabs" role="tablist">{tabs}</div>{forms}<div id="out" aria-live="polite">'
        f"</div><p id=time class=time></p></main><script>{_SCRIPT}</script></body></html>\n"
    )


def _form(name: str, example: Mapping[str, Any]) -> str:
    fields = "".join(_field(key, value) for key, value in example.items())
    body = _text(json.dumps(example, ensure_ascii=False))
    return (
        f'<form data-name="{_text(name)}" hidden><div class="card">{fields}<div class="row">'
        f'<button class="go">Ask</button></div></div><details class="card"><summary>The same by '
        f"HTTP</summary><pre>POST /{_text(name)}\nContent-Type: application/json\n\n{body}</pre>"
        "</details></form>"
    )


def _field(name: str, value: Any) -> str:
    if isinstance(value, list):
        lines = _text("\n".join(map(str, value)))
        return (
            f"<label>{_text(name)} <small>one a line</small>"
            f'<textarea name="{_text(name)}">{lines}</textarea></label>'
        )
    if isinstance(value, bool):
        box = "checked" if value else ""
        return f'<label><input type="checkbox" name="{_text(name)}" {box}> {_text(name)}</label>'
    return f'<label>{_text(name)}<input name="{_text(name)}" value="{_text(value)}"></label>'


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)


_ARRIVING = 64
"""Maximum memory for request bodies that are still arriving, in multiples of `Limits.max_body`."""
_CLOSED = 499
"""HTTP status in the metrics for a client that disconnected before the response."""


@runtime_checkable
class LiveAdapters(Protocol):
    """Protocol of a set of adapters that HTTP requests may select by name."""

    def states(self) -> Mapping[str, str]: ...
    def add(self, name: str, directory: str | None) -> bool: ...
    def remove(self, name: str) -> None: ...


@runtime_checkable
class Endpoint(Protocol):
    """Protocol of an HTTP endpoint, such as `predict`, that runs a model on texts.

    Attributes:
      fields: names of the JSON fields that a request may have.
      example: example request, for the web page.
    """

    @property
    def fields(self) -> frozenset[str]: ...
    @property
    def example(self) -> Mapping[str, Any]: ...

    def rows(self, record: Mapping[str, Any]) -> list[Row]:
        """Check a request, and return its texts as separate rows for batches."""
        ...

    def answer(
        self, payloads: Sequence[Any], *, size: int, lengths: tuple[int, ...]
    ) -> Sequence[Any]:
        """Run the model on a batch; return a JSON object or an exception `Refused` for each row."""
        ...

    def results(self, record: Mapping[str, Any], outcomes: Sequence[Any]) -> list[Any]:
        """Combine the results of a request's texts into the JSON results of the request."""
        ...


class Service:
    """HTTP service with several endpoints, as an ASGI application.

    Args:
      endpoints: endpoints by name; each is served as POST /NAME.
      batcher: queue that runs the texts of requests in batches; the caller starts it.
      counts: Prometheus counters of requests and batches.
      is_ready: function that returns True when every endpoint can respond.
      limits: limits of requests.
      token: access token of requests; None serves only this machine, without a token.
      title: title of the web page, such as the checkpoint's name.
      absent: error message of each endpoint that is not served, by name.
      programs: function that returns the numbers of compiled programs and of all programs.
      answers: function that returns True if an endpoint has a compiled program; None uses
        `is_ready`.
      adapters: adapters that requests may select; None disables the path /adapters.
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
        adapters: LiveAdapters | None = None,
    ):
        self._endpoints, self._batcher, self._counts = endpoints, batcher, counts
        self._adapters = adapters
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
                    [
                        Route("/adapters", self._change_adapters, methods=["GET"]),
                        Route("/adapters/{name}", self._change_adapters, methods=["PUT", "DELETE"]),
                    ]
                    if adapters is not None
                    else []
                ),
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

    async def _change_adapters(self, request: Request) -> Response:
        """Add (PUT), remove (DELETE) or list (GET) adapters."""
        adapters, status = self._adapters, 200
        assert adapters is not None
        try:
            self._admit(request)
            if request.method == "PUT":
                async with asyncio.timeout(self._limits.timeout):
                    record = parse(await self._body(request) or b"{}", fields={"directory"})
                    directory = optional_text(record, "directory")
                    name = request.path_params["name"]
                    ready = await run_in_threadpool(adapters.add, name, directory)
                status = 200 if ready else 202
            elif request.method == "DELETE":
                await run_in_threadpool(adapters.remove, request.path_params["name"])
        except Refused as refused:
            return _refusal(refused)
        except TimeoutError:
            return _refusal(Refused(504, f"No answer within {self._limits.timeout:g} s."))
        return _json({"adapters": adapters.states()}, status)

    async def _ask(self, name: str, request: Request) -> Response:
        """Respond to a POST request within the time limit."""
        start = time.monotonic()
        try:
            async with asyncio.timeout(self._limits.timeout):
                response = _json({"results": await self._results(name, request)})
        except Refused as refused:
            response = _refusal(refused)
        except TimeoutError:
            seconds = f"{self._limits.timeout:g}"
            response = _refusal(Refused(504, f"The response took longer than {seconds} s."))
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
        except InputError as error:  # raised by the vocabulary; its message names a local path
            _logger.error("cannot encode a text for the endpoint %s: %s", name, error)
            sentence = "The tokenizer cannot encode this text; see the server's log."
            raise Refused(400, sentence) from error
        outcomes = await self._outcomes(name, rows, request)
        for outcome in outcomes:
            if isinstance(outcome, Refused):
                raise outcome
        return endpoint.results(record, outcomes)

    def _admit(self, request: Request) -> None:
        """Raise `Refused` if a request has a wrong access token."""
        if self._token is None:
            host = request.headers.get("host", "")
            name = host.rsplit(":", 1)[0] if host.rpartition(":")[2].isdigit() else host
            if not is_loopback(name):
                raise Refused(403, "The request names a host other than this machine.")
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
        too_large = Refused(
            413, f"The request body may have at most {most} bytes; send several requests."
        )
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
                        raise Refused(503, "Too many requests are arriving.", {"Retry-After": "1"})
        except TimeoutError:
            seconds = f"{self._limits.body_timeout:g}"
            raise Refused(
                408, f"The body took longer than {seconds} s to arrive.", {"Connection": "close"}
            ) from None
        finally:
            self._arriving -= len(body)
        return bytes(body)

    async def _outcomes(self, name: str, rows: Sequence[Row], request: Request) -> list[Any]:
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
        assert isinstance(error, HTTPException)
        known = ", ".join(f"POST /{name}" for name in self._endpoints)
        sentence = f"{error.detail}; this server has {known}, GET /health, /ready, /metrics and /."
        del request
        return _json({"error": sentence}, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    _logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _json({"error": "The server failed; see its log."}, 500)


def _refusal(refused: Refused) -> Response:
    return _json({"error": str(refused)}, refused.status, refused.headers)


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
    return Response(body, status_code=status, headers=headers, media_type="application/json")
