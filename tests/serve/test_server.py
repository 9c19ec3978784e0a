"""Binding, and the end of a server while it answers."""

import asyncio
import os
import signal
import socket
import threading
import urllib.request

import pytest

from scripts.bench.serve_load import request, steady
from t5x_lite.core.errors import InputError
from t5x_lite.serve import server
from t5x_lite.serve.batching import Limits
from tests.serve.double_server import serving
from tests.waiting import PATIENCE, wait_until


def test_a_port_that_is_taken_is_an_input_error():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} .*choose another --port"):
            server.bind("127.0.0.1", port)


def test_a_host_that_is_not_this_machines():
    with pytest.raises(InputError, match=r"cannot serve on 203\.0\.113\.7"):
        server.bind("203.0.113.7", 0)


def test_the_end_answers_what_was_accepted():
    """`serving` ends the server while eight clients wait."""
    bodies = [request("/double", {"inputs": ["a"]})]
    loads = []
    with serving(seconds=0.2) as one:
        one.endpoint.free.clear()
        thread = threading.Thread(
            target=lambda: loads.append(
                asyncio.run(steady(one.port, clients=8, bodies=bodies, until_refused=True))
            )
        )
        thread.start()
        wait_until(lambda: one.num_accepted == 8)
        one.endpoint.free.set()
    thread.join(PATIENCE)
    [load] = loads
    assert (load.lost, set(load.statuses)) == (0, {200})
    assert len(load.latencies) >= 8


async def _app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_is_not_passed_on(number):
    before = signal.getsignal(number)
    address = server.bind("127.0.0.1", 0)
    server.listen(address, limits=Limits())
    url = f"http://127.0.0.1:{address.getsockname()[1]}/"

    def ask_and_end():
        try:
            urllib.request.urlopen(url, timeout=PATIENCE)
        finally:
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=ask_and_end)
    thread.start()
    assert server.run(_app, address, limits=Limits()) == 1
    thread.join()
    assert signal.getsignal(number) is before
