"""Requests and answers over a connection, with an endpoint that needs no model."""

import asyncio
import json
from collections.abc import Callable

import pytest

from scripts.bench import serve_load
from scripts.bench.serve_load import request, steady
from tests.serve.double_server import serving
from tests.waiting import PATIENCE, wait_until

TOKEN = "correct-horse-battery"


def body(answer):
    return json.loads(answer[-1])


def get(path, **headers):
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode()


def post(
    content, *, kind="application/json", host="localhost", length=None, extra="", path="/double"
):
    size = len(content) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\n{extra}"
    return f"{head}Content-Length: {size}\r\n\r\n".encode() + content


def test_texts_are_answered_in_order(served):
    answer = served.ask({"inputs": ["a", "b" * 20, "c"]})
    assert answer[0] == 200
    assert body(answer) == {"results": [{"double": "aa"}, {"double": "b" * 40}, {"double": "cc"}]}
    assert body(served.ask({"inputs": "é"})) == {"results": [{"double": "éé"}]}


@pytest.mark.parametrize(
    ("data", "status", "sentence"),
    [
        (post(b"{"), 400, "not JSON"),
        (post(b'{"input": "a"}'), 400, "did you mean inputs?"),
        (post(b'{"inputs": ["a", "a", "a", "a", "a"]}'), 413, "4 texts, got 5"),
        (post(b"x" * 2001), 413, "The request body may have at most 2000 bytes"),
        (post(b"", length="9" * 18), 413, "The request body may have at most 2000 bytes"),
        (post(b"{}", kind="text/plain"), 415, "Content-Type: application/json"),
        (post(b"{}", host="evil.example"), 403, "other than this machine"),
        (post(b"{}", host="evil.example:80"), 403, "other than this machine"),
        (post(b"{}", path="/embed"), 404, "has no endpoint embed"),
        (post(b"{}", path="/doubl"), 404, "this server has POST /double"),
        (get("/double"), 405, "Method Not Allowed"),
        (post(b'{"inputs": "panic"}'), 400, "The tokenizer cannot encode this text"),
        (post(b'{"inputs": "fail"}'), 500, "failed on this batch"),
        (post(b'{"inputs": ["a", "nan"]}'), 500, "Not finite."),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else str(value)[:20],
)
def test_refusals_are_json_with_a_sentence(served, data, status, sentence):
    answer = served.send(data)
    assert answer[0] == status
    assert b"application/json" in answer[1]
    error = body(answer)
    assert list(error) == ["error"]
    assert sentence in error["error"]
    assert served.ask({"inputs": "a"})[0] == 200


def test_a_chunked_body_is_cut_at_the_limit(served):
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    head = post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    status, _, content = served.send(head + chunk * 2)
    assert (status, b"2000 bytes" in content) == (413, True)


def test_health_readiness_and_metrics(served):
    assert body(served.send(get("/health"))) == {"status": "alive"}
    assert body(served.send(get("/ready"))) == {"status": "ready"}
    served.ask({"inputs": "a"})
    status, head, text = served.send(get("/metrics"))
    assert status == 200
    assert b"text/plain; version=0.0.4" in head
    assert b't5x_lite_requests_total{endpoint="double",status="200"}' in text
    assert served.send(get("/metrics", Host="evil.example"))[0] in (400, 403)


def test_the_page(served):
    status, head, html = served.send(get("/"))
    assert (status, b"content-security-policy: default-src 'none'" in head.lower()) == (200, True)
    assert b"<h1>a &lt;tiny&gt; model</h1>" in html


def test_before_it_is_ready_requests_are_told_to_come_again():
    with serving(ready=False) as one:
        assert one.send(get("/health"))[0] == 200
        status, head, _ = one.send(get("/ready"))
        assert (status, b"retry-after: 5" in head.lower()) == (503, True)
        status, head, content = one.send(post(b'{"inputs": "a"}'))
        assert (status, b"retry-after: 5" in head.lower()) == (503, True)
        assert b"compiled" in content
        one.ready.set()
        assert one.ask({"inputs": "a"})[0] == 200


def test_a_token_is_asked_for():
    with serving(token=TOKEN) as one:
        ask = b'{"inputs": "a"}'
        for extra in ("", "Authorization: Bearer wrong\r\n", f"Authorization: Basic {TOKEN}\r\n"):
            status, head, content = one.send(post(ask, extra=extra))
            assert (status, b"www-authenticate: bearer" in head.lower()) == (401, True)
            assert b"Authorization: Bearer TOKEN" in content
        bearer = f"Authorization: Bearer {TOKEN}\r\n"
        assert one.send(post(ask, extra=bearer))[0] == 200
        assert one.send(post(ask, extra=bearer, host="model.example"))[0] == 200
        assert one.send(get("/metrics"))[0] == 401
        assert one.send(get("/health"))[0] == one.send(get("/"))[0] == 200


def test_a_full_queue_is_503_with_retry_after():
    bodies = [request("/double", {"inputs": ["a", "b", "c"]})]
    with serving(queue=4) as one:
        one.endpoint.free.clear()

        async def crowd() -> serve_load.Load:
            load = asyncio.ensure_future(steady(one.port, clients=8, bodies=bodies, each=1))
            await asyncio.to_thread(wait_until, lambda: b'status="503"' in one.counts.text())
            one.endpoint.free.set()
            return await load

        load = asyncio.run(crowd())
        assert load.lost == 0
        assert set(load.statuses) == {200, 503}
        assert one.send(post(b'{"inputs": "a"}'))[0] == 200


def test_an_answer_that_takes_too_long_is_504():
    with serving(seconds=1.0, timeout=0.3) as one:
        status, content = one.ask({"inputs": "a"})
        assert (status, b"longer than 0.3 s" in content) == (504, True)


def test_a_body_that_takes_too_long_is_408():
    with serving(body_timeout=0.3) as one:
        status, head, content = one.send(post(b'{"inp', length=40))
        assert (status, b"connection: close" in head.lower()) == (408, True)
        assert b"longer than 0.3 s" in content


def test_bodies_that_arrive_together_are_bounded():
    """100 clients each send half of the largest body, and no more."""
    with serving(max_body=1000, body_timeout=2.0) as one:
        part = post(b"x" * 900, length=1000)

        async def crowd() -> list[bytes]:
            opened = [await asyncio.open_connection("127.0.0.1", one.port) for _ in range(100)]
            for _, writer in opened:
                writer.write(part)
            heads = [await asyncio.wait_for(reader.readline(), PATIENCE) for reader, _ in opened]
            for _, writer in opened:
                writer.transport.abort()
            return heads

        heads = asyncio.run(crowd())
        assert 20 <= sum(b" 503 " in head for head in heads) <= 60
        assert one.ask({"inputs": "a"})[0] == 200


def test_a_client_that_goes_leaves_the_queue():
    with serving() as one:
        one.endpoint.free.clear()

        async def until(condition: Callable[[], bool]) -> None:
            await asyncio.to_thread(wait_until, condition)

        async def go() -> None:
            first = asyncio.ensure_future(serve_load.ask(one.port, "/double", {"inputs": "a"}))
            await until(lambda: one.endpoint.batches == [(1, 1)])
            _, writer = await asyncio.open_connection("127.0.0.1", one.port)
            writer.write(request("/double", {"inputs": ["x", "y"]}))
            await writer.drain()
            await until(lambda: one.num_accepted == 3)
            writer.transport.abort()
            await until(lambda: b'status="499"' in one.counts.text())
            one.endpoint.free.set()
            assert (await first)[0] == 200

        asyncio.run(go())
        assert one.endpoint.batches == [(1, 1)]
        assert one.num_accepted == 1


def test_many_clients_lose_nothing(served):
    bodies = [request("/double", {"inputs": [f"text {i}"]}) for i in range(7)]
    load = asyncio.run(steady(served.port, clients=100, bodies=bodies, each=2))
    assert (load.lost, dict(load.statuses)) == (0, {200: 200})
    assert load.percentile(0.5) <= load.percentile(0.99)


@pytest.mark.parametrize(
    ("token", "host", "titled"),
    [
        (None, "localhost", True),
        (None, "rebound.example", False),
        ("a-token-of-24-characters", "localhost", False),
    ],
)
def test_the_page_names_the_checkpoint_only_to_those_who_may_ask(token, host, titled):
    with serving(token=token) as one:
        head = f"GET / HTTP/1.1\r\nHost: {host}\r\n"
        status, _, page = one.send(f"{head}\r\n".encode())
        assert status == 200
        assert (b"tiny" in page) == titled
        if token:
            _, _, page = one.send(f"{head}Authorization: Bearer {token}\r\n\r\n".encode())
            assert b"tiny" in page
