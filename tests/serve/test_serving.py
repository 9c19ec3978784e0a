"""`t5x-lite serve` as a process: its start, its load, requests that mean no good, its end."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from scripts.bench.serve_load import ask, hostile, request, steady
from t5x_lite.core.errors import InputError
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.serve import server as serving
from t5x_lite.serve.server import Address
from tests import encoder_checkpoint, t5_checkpoint
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    *("--batch-size", "4", "--max-decode-length", "4", "--targets-length", "16"),
    *("--inputs-length", "16"),
]


@contextlib.contextmanager
def server(checkpoint, *options, log, env=None):
    """The process, and its port; it is ended if the block did not."""
    command = [sys.executable, "-m", "t5x_lite", "serve", "--checkpoint", str(checkpoint)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--port", "0", *options],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"} | (env or {}),
            stderr=file,
        )
    try:
        yield process, wait_for(lambda: port_in(log.read_text()), process, log)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(20)


def port_in(text):
    lines = [line for line in text.splitlines() if "http://" in line and ", endpoints: " in line]
    return int(lines[0].partition("http://")[2].split(",")[0].rpartition(":")[2]) if lines else None


def is_ready(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


def programs(port):
    """How many programs are compiled, and how many there are."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as response:
            found = json.load(response)["programs"]
    except OSError:
        return None
    return found["compiled"], found["total"]


def answered(port):
    """How many requests for /predict were answered."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as response:
        lines = response.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("t5x_lite_requests_total{") and 'predict",status="200"' in line
    )


def wait_for(condition, process, log):
    deadline = time.monotonic() + 120
    while not (value := condition()):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return value


@pytest.mark.slow
def test_a_text_to_text_model_serves_endures_and_ends(tiny_vocabulary, compile_once, tmp_path):
    log, checkpoint = tmp_path / "log", t5_checkpoint.write_checkpoint(tmp_path, tiny_vocabulary)
    bodies = [request("/predict", {"inputs": ["the a"] * (1 + i % 3)}) for i in range(5)]
    with server(checkpoint, *SMALL, "--body-timeout", "1", log=log, env=compile_once) as (
        process,
        port,
    ):
        compiled, total = wait_for(lambda: programs(port), process, log)
        status, body = asyncio.run(ask(port, "/predict", {"inputs": ["the", "a"]}))
        assert status == 200
        assert 2 <= compiled <= total
        wait_for(lambda: programs(port) == (total, total), process, log)
        status, body = asyncio.run(ask(port, "/predict", {"inputs": ["the", "a"]}))
        assert (status, len(json.loads(body)["results"])) == (200, 2)
        status, body = asyncio.run(ask(port, "/score", {"inputs": "a", "candidates": ["a", "b"]}))
        assert (status, len(json.loads(body)["results"][0]["scores"])) == (200, 2)
        assert asyncio.run(ask(port, "/embed", {"texts": "a"}))[0] == 404

        load = asyncio.run(steady(port, clients=100, bodies=bodies, each=3))
        assert (load.lost, dict(load.statuses)) == (0, {200: 300})

        counts = asyncio.run(hostile(port, number=200))
        assert sum(counts.values()) == 200
        assert not [kind for kind in counts if kind.endswith((" 500", " 504", "refused"))], counts
        assert counts["slow cut"] + counts["slow 408"] > 0
        assert asyncio.run(ask(port, "/predict", {"inputs": "the"}))[0] == 200

        async def end_under_load():
            before = await asyncio.to_thread(answered, port)
            waiting = asyncio.ensure_future(
                steady(port, clients=16, bodies=bodies, until_refused=True)
            )
            await asyncio.to_thread(wait_until, lambda: answered(port) >= before + 32)
            process.send_signal(signal.SIGTERM)
            return await waiting

        load = asyncio.run(end_under_load())
        assert (load.lost, set(load.statuses)) == (0, {200})
        assert process.wait(PATIENCE) == 0
    text = log.read_text()
    assert "compiled all programs in" in text
    assert "the server stopped after answering" in text
    assert "Traceback" not in text


@pytest.mark.slow
def test_what_a_checkpoint_answers_when_nobody_says(tmp_path, tiny_vocabulary):
    t5 = t5_checkpoint.write_checkpoint(tmp_path / "t5", tiny_vocabulary)
    bert = encoder_checkpoint.write_checkpoint(tmp_path / "bert", "bert")
    ranker = encoder_checkpoint.write_ranker(tmp_path / "ranker")
    usual = [serving._usual(Checkpoint.load([str(each)])) for each in (t5, bert, ranker)]
    assert usual == [("predict", "score"), ("embed",), ("rerank",)]


def test_an_encoder_embeds_behind_a_token_and_ends_by_ctrl_c(compile_once, tmp_path):
    checkpoint = encoder_checkpoint.write_checkpoint(tmp_path, "bert")
    (tmp_path / "token").write_text("correct-horse-battery\n")
    options = ["--host", "0.0.0.0", "--token-file", str(tmp_path / "token"), "--pooling", "cls"]
    log = tmp_path / "log"
    with server(checkpoint, *SMALL, *options, log=log, env=compile_once) as (process, port):
        wait_for(lambda: is_ready(port), process, log)
        assert asyncio.run(ask(port, "/embed", {"texts": "a b"}))[0] == 401
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/embed",
            json.dumps({"texts": ["a b", "c"]}).encode(),
            {"Content-Type": "application/json", "Authorization": "Bearer correct-horse-battery"},
        )
        with urllib.request.urlopen(asked, timeout=PATIENCE) as response:
            vectors = [one["vector"] for one in json.load(response)["results"]]
        assert [len(vector) for vector in vectors] == [12, 12]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    assert "correct-horse" not in log.read_text()


def test_the_token_is_of_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("T5X_LITE_TOKEN", raising=False)
    assert Address().token() is None
    monkeypatch.setenv("T5X_LITE_TOKEN", "a-token-of-the-environment")
    assert Address(host="0.0.0.0").token() == "a-token-of-the-environment"
    file = tmp_path / "token"
    file.write_text("a-token-of-the-file\n")
    assert Address(token_file=str(file)).token() == "a-token-of-the-file"
    with pytest.raises(InputError, match="the access token cannot be read"):
        Address(token_file=str(tmp_path / "missing")).token()
    monkeypatch.setenv("T5X_LITE_TOKEN", "")
    with pytest.raises(InputError, match="has 0 characters"):
        Address().token()


def test_wrong_choices_are_refused_before_the_checkpoint_is_read(monkeypatch):
    monkeypatch.delenv("T5X_LITE_TOKEN", raising=False)
    options = {"asked": serving.Asked(), "limits": serving.Limits()}
    with pytest.raises(InputError, match="unknown endpoint predictt; did you mean predict"):
        serving.serve(["none"], address=Address(), endpoints=("predictt",), **options)
    with pytest.raises(InputError, match="--token-file"):
        serving.serve(["none"], address=Address(host="0.0.0.0"), **options)
    with pytest.raises(InputError, match="none"):
        serving.serve(["none"], address=Address(port=0), **options)


def test_the_address_of_the_log_takes_connections_at_once(tiny_vocabulary, tmp_path, monkeypatch):
    from t5x_lite.serve import server as module

    t5_checkpoint.write_checkpoint(tmp_path, tiny_vocabulary)
    connected = []

    def connect(app, address, *, limits, on_start):
        with socket.create_connection(address.getsockname(), timeout=5):
            connected.append(address)
        return 0

    monkeypatch.setattr(module, "run", connect)
    monkeypatch.setattr(serving._Answering, "close", lambda self: None)
    options = {"asked": serving.Asked(), "limits": serving.Limits()}
    serving.serve([str(tmp_path / "t5")], address=Address(port=0), **options)
    assert connected
    connected[0].close()


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(InputError, match=r"serve needs uvicorn: pip install .*serve"):
        serving.serve(["none"], address=Address(), asked=serving.Asked(), limits=serving.Limits())
