"""Requests that name adapters: batches that mix them, and adapters that come and go."""

import asyncio
import functools
import json
import re
import shlex
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

import t5x_lite
from scripts.bench.serve_load import ask, request, steady
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.serve.batching import Refused
from t5x_lite.serve.endpoints import ENDPOINTS, Asked
from t5x_lite.serve.server import LiveAdapters
from tests import encoder_checkpoint, t5_checkpoint
from tests.adapter_checkpoints import write_adapter
from tests.serve.test_serving import ROOT, SMALL, programs, server, wait_for
from tests.waiting import wait_until

LINES = ["rte = lora(r=2)", "mrpc = lora(r=2)", "cola = lora(r=2)", "wnli = ia3()"]


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_vocabulary):
    directory = tmp_path_factory.mktemp("adapters")
    t5 = t5_checkpoint.write_checkpoint(directory, tiny_vocabulary)
    bert = encoder_checkpoint.write_checkpoint(directory, "bert")
    for line in LINES:
        write_adapter(t5, directory / "t5_adapters" / line.partition(" ")[0], line)
        write_adapter(bert, directory / "bert_adapters" / line.partition(" ")[0], line)
    return directory


def load(place, name, *adapters):
    lines = [f"{each}={place / f'{name}_adapters' / each}" for each in adapters]
    return Checkpoint.load([str(place / name)], adapters=lines, inputs_length=16)


def live_of(place, name, *adapters, seconds=60.0, **options):
    """The adapters of a server, whose model grows at once."""
    directory = str(place / f"{name}_adapters")
    options = {"by_row": bool(adapters), "directory": directory, "seconds": seconds} | options
    return LiveAdapters(load(place, name, *adapters), **options)


def in_one_batch(endpoint, *records):
    """The results of several requests with one text each."""
    rows = [row for record in records for row in endpoint.rows(record)]
    [lengths] = {row.lengths for row in rows}
    return endpoint.answer([row.payload for row in rows], size=8, lengths=lengths)


NAMED = [{"adapter": name} for name in ("rte", "mrpc", "rte")] + [{}, {"adapter": None}]


@pytest.mark.slow
def test_a_batch_of_requests_for_different_adapters(place, compile_once):
    model = t5x_lite.load(place / "t5", inputs_length=16)
    for name in ("rte", "mrpc"):
        model.add_adapter(name, place / "t5_adapters" / name)
    live = live_of(place, "t5", "rte", "mrpc")
    asked = Asked(decoding=Decoding(max_decode_length=4), adapters=live.ids)
    found = in_one_batch(
        ENDPOINTS["predict"](live.model, asked), *({"inputs": "the a", **one} for one in NAMED)
    )
    names = [one.get("adapter") for one in NAMED]
    expected = model.predict(["the a"] * len(names), adapters=names, max_decode_length=4)
    assert [one["prediction"] for one in found] == [best.text for best, *_ in expected]
    scores = [best.score for best, *_ in expected]
    np.testing.assert_allclose([one["score"] for one in found], scores, rtol=1e-5)
    assert len({*scores}) == 3
    found = in_one_batch(
        ENDPOINTS["score"](live.model, asked),
        *({"inputs": "the a", "targets": "a", **one} for one in NAMED),
    )
    expected = model.score([("the a", "a")] * len(names), adapters=names)
    np.testing.assert_allclose([one["log_likelihood"] for one in found], expected, rtol=1e-5)


@pytest.mark.slow
def test_vectors_of_adapters_that_come_and_go(place, compile_once):
    live = live_of(place, "bert", "rte", "mrpc", seconds=0.0)
    asked = Asked(adapters=live.ids)
    endpoints = [ENDPOINTS["embed"](live.model, asked)]
    live.grow = lambda model: endpoints.append(ENDPOINTS["embed"](model, asked))
    alone = {}
    for name in ("", "rte", "mrpc", "cola", "wnli"):
        model = load(place, "bert", *([name] if name else []))
        plain = ENDPOINTS["embed"](model.by_row() if name else model, Asked(adapters={name: 1}))
        [alone[name]] = in_one_batch(plain, {"texts": "a b", "adapter": name})

    def check(*names):
        records = [{"texts": "a b", "adapter": name} for name in names]
        for name, found in zip(names, in_one_batch(endpoints[-1], *records), strict=True):
            np.testing.assert_allclose(found["vector"], alone[name]["vector"], rtol=1e-4, atol=1e-5)

    check("rte", "", "mrpc", "rte")
    with pytest.raises(Refused, match=r"called 'cola'.*; there are mrpc, rte\.") as info:
        endpoints[0].rows({"texts": "a b", "adapter": "cola"})
    assert info.value.status == 400
    waiting = endpoints[0].rows({"texts": "a b", "adapter": "mrpc"})
    live.remove("mrpc")
    with pytest.raises(Refused, match="No adapter is called 'mrpc'"):
        endpoints[0].rows({"texts": "a b", "adapter": "mrpc"})
    [found] = endpoints[0].answer([row.payload for row in waiting], size=8, lengths=(16,))
    np.testing.assert_allclose(found["vector"], alone["mrpc"]["vector"], rtol=1e-4, atol=1e-5)
    assert live.add("cola", None)  # in a free place: nothing is compiled
    check("cola", "rte")
    assert not live.add("wnli", "wnli")  # of another method
    wait_until(lambda: live.states() == dict.fromkeys(("cola", "rte", "wnli"), "ready"))
    assert len(endpoints) == 2
    check("wnli", "cola", "", "rte")
    assert not live.add("mrpc", "mrpc")
    wait_until(lambda: "mrpc" in live.ids)
    check("mrpc", "wnli", "cola", "rte")
    live.remove("wnli")
    assert live.add("other", "rte")  # a free place of the last growth
    assert list(live.states()) == ["cola", "mrpc", "other", "rte"]


def test_what_is_refused(place):
    write_adapter(place / "bert", place / "bert_adapters" / "prefix", "p = prefix(length=2)")
    live = live_of(place, "bert", seconds=60.0)
    for name, directory, status, message in (
        ("x", "../t5", 400, "must be below the --adapters-directory"),
        ("x", "none", 400, "no such directory"),
        ("X", "rte", 400, "Adapter name 'X' is invalid; use lower-case"),
        ("x", "../bert_adapters/../t5_adapters/rte", 400, "must be below"),
        (
            "x",
            "prefix",
            400,
            "prefix 'x' uses the site .* which the block MultiTask does not support",
        ),
    ):
        with pytest.raises(Refused, match=message) as info:
            live.add(name, directory)
        assert info.value.status == status
    with pytest.raises(Refused, match="The adapter 'x' is unknown") as info:
        live.remove("x")
    assert info.value.status == 404
    fixed = live_of(place, "bert", "rte", directory=None)
    for change in (lambda: fixed.add("mrpc", None), lambda: fixed.remove("rte")):
        with pytest.raises(Refused, match="start it with --adapters-directory DIR") as info:
            change()
        assert info.value.status == 403
    with pytest.raises(Refused, match="There is an adapter rte already"):
        live_of(place, "bert", "rte").add("rte", None)


def change(port, method, name, record=None):
    """Status and body of a request to /adapters."""
    path = f"http://127.0.0.1:{port}/adapters" + (f"/{name}" if name else "")
    body = None if record is None else json.dumps(record).encode()
    asked = urllib.request.Request(path, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=60) as response:
            return response.status, json.load(response)["adapters"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


def commands_of_the_guide(work):
    """The commands of the guide's section as arguments, with a directory instead of work."""
    _, _, text = (ROOT / "docs/guides/serve.md").read_text().partition("## Many adapters\n")
    blocks = re.findall(r"```bash\n(.*?)```", text.partition("\n## ")[0], re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    place = functools.partial(re.sub, r"(^|=)work\b", rf"\1{work}")
    return [[*map(place, shlex.split(line, comments=True))] for line in lines]


@pytest.mark.slow
def test_the_guide_and_no_request_is_lost(place, compile_once, tmp_path):
    log, work = tmp_path / "log", tmp_path / "work"
    shutil.copytree(place / "t5_adapters", work)
    shutil.copytree(place / "t5", work / "t5_small")
    (work / "rte").rename(work / "rte_t5")
    shutil.copytree(work / "cola", work / "sst2_t5")
    bodies = [request("/predict", {"inputs": "the", "adapter": name}) for name in ("rte", "")]
    serve, *requests = commands_of_the_guide(work)
    assert serve[:3] == ["t5x-lite", "serve", "--checkpoint"]
    options = [*serve[4:], "--endpoints", "predict", *SMALL]
    with server(serve[3], *options, log=log, env=compile_once) as (process, port):
        wait_for(lambda: (found := programs(port)) and found[0] == found[1], process, log)
        assert change(port, "GET", "") == (200, {"rte": "ready"})
        assert asyncio.run(ask(port, "/predict", {"inputs": "a", "adapter": "sst2"}))[0] == 400
        loads, done = [], threading.Event()

        def clients():
            while not done.is_set():
                loads.append(asyncio.run(steady(port, clients=4, bodies=bodies, each=10)))
                time.sleep(0.2)  # the compiler needs the processor, too

        thread = threading.Thread(target=clients, daemon=True)
        thread.start()
        answers = []
        for command in requests:
            command = [word.replace("localhost:8000", f"localhost:{port}") for word in command]
            answers.append(subprocess.run(command, capture_output=True, check=True).stdout)
        assert len(json.loads(answers[0])["results"]) == 1
        assert json.loads(answers[1])["adapters"]["sst2"] == "ready"
        assert json.loads(answers[2])["adapters"] == {"rte": "ready", "sst2": "ready"}
        assert json.loads(answers[3])["adapters"] == {"rte": "ready"}
        assert change(port, "PUT", "wnli", {})[0] == 202  # of another method
        assert change(port, "PUT", "mrpc", {})[0] == 409
        wait_until(lambda: change(port, "GET", "")[1].get("wnli") == "ready", seconds=600)
        for name in ("rte", "wnli"):
            record = {"inputs": "a", "adapter": name}
            assert asyncio.run(ask(port, "/predict", record))[0] == 200
        assert change(port, "DELETE", "mrpc")[0] == 404
        done.set()
        thread.join()
        assert sum(len(load.latencies) for load in loads) >= 40
        assert all((load.lost, set(load.statuses)) == (0, {200}) for load in loads)
    assert "Traceback" not in log.read_text()
