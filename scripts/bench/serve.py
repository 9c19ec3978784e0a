"""Requests a second of `t5x-lite serve`, beside transformers behind FastAPI in the same run.

    pip install -e ".[serve,bench,oracle]" -c constraints.txt
    python scripts/bench/serve.py [--seconds 20] [--rounds 2] [--clients 1 8 32] [--markdown]

A T5 1.1 of half of T5-small's size (d_model 256, 4 + 4 layers, 32128 pieces) with random weights,
the same on both sides; inputs of 5 to 90 tokens, --length new tokens each, greedy. The peer is what
one writes first: a FastAPI endpoint that tokenizes and calls model.generate, in FastAPI's threads
("threads"), and the same behind a lock ("lock"), which thrashes less; the ratio is to the faster.
"cpu_ms" is what a server computed for a request, all its threads together: it tells on a busy
machine, too. Everything is on this machine's loopback, loads alternate between the servers, and no
load is longer than --seconds. Afterwards our server has 100 clients, 1,000 hostile requests, and a
SIGTERM under load. One JSON line for each load.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from serve_load import Load, ask, hostile, request, steady

INPUTS_LENGTH = 128


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--hostile", type=int, default=1000)
    parser.add_argument("--markdown", action="store_true", help="a table after the JSON lines")
    parser.add_argument("--peer", nargs=3, metavar=("DIR", "PORT", "LOCK"), help=argparse.SUPPRESS)
    return parser.parse_args()


def write_model(directory: Path) -> None:
    """A random T5 and a vocabulary of Python's own documentation, as transformers writes them."""
    import sentencepiece
    import torch
    import transformers

    sentences = [line for line in sys.modules["argparse"].__doc__.splitlines() if line]
    for module in (argparse, asyncio, contextlib, json, os, socket, subprocess, tempfile):
        source = Path(module.__file__ or "").read_text()
        sentences += [line.strip() for line in source.splitlines() if line.strip()]
    directory.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_prefix=str(directory / "spiece"), vocab_size=1000,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=32128, d_model=256, d_kv=64, d_ff=512, num_heads=4, num_layers=4,
        num_decoder_layers=4, feed_forward_proj="gated-gelu", tie_word_embeddings=False,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).eval()
    # transformers' own initialisation of this layer makes denormals, which are slow.
    head = torch.randn(config.vocab_size, config.d_model) * config.d_model**-0.5
    head[1000:] = 0.0  # so that what is said is of the vocabulary, and can be compared
    model.lm_head.weight = torch.nn.Parameter(head)
    model.save_pretrained(directory)


def peer_server(directory: str, port: int, length: int, *, locked: bool) -> None:
    """The plain server: a request's texts through model.generate."""
    import threading

    import fastapi
    import pydantic
    import torch
    import transformers
    import uvicorn

    torch.set_flush_denormal(True)
    model = transformers.T5ForConditionalGeneration.from_pretrained(directory).eval()
    tokenizer = transformers.T5Tokenizer.from_pretrained(directory)
    lock: Any = threading.Lock() if locked else contextlib.nullcontext()
    app = fastapi.FastAPI()

    class Request(pydantic.BaseModel):
        inputs: list[str]

    @app.get("/ready")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    @app.post("/predict")
    def predict(request: Request) -> dict[str, Any]:
        with lock, torch.inference_mode():
            batch = tokenizer(
                request.inputs, padding=True, truncation=True, max_length=INPUTS_LENGTH,
                return_tensors="pt",
            )  # fmt: skip
            said = model.generate(
                **batch, do_sample=False, max_new_tokens=length, min_new_tokens=length
            )
            texts = tokenizer.batch_decode(said, skip_special_tokens=True)
        return {"results": [{"prediction": text} for text in texts]}

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


@contextlib.contextmanager
def serving(*command: str, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server as a process, from when it is ready on."""
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, *command], stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + 900
        while not is_ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{command[:4]} does not serve:\n{log.read_text()[-2000:]}")
            time.sleep(0.5)
        yield process
    finally:
        process.terminate()
        process.wait(timeout=100)


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def make_texts() -> list[str]:
    """Texts of 5 to 90 tokens or so, the same each time."""
    words = Path(contextlib.__file__).read_text().split()
    return [" ".join(words[7 * i : 7 * i + 1 + 5 * (i % 6)]) for i in range(97)]


def resident_mib(process: subprocess.Popen[bytes]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) // 1024


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """What a process and its threads computed so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def line(name: str, load: Load, **more: Any) -> dict[str, Any]:
    return {
        "server": name,
        **more,
        "requests": len(load.latencies),
        "requests_per_second": round(load.requests_per_second, 2),
        "p50_ms": round(1000 * load.percentile(0.5)),
        "p99_ms": round(1000 * load.percentile(0.99)),
        "statuses": dict(load.statuses),
        "lost": load.lost,
    }


def compare(
    ports: dict[str, int], processes: dict[str, Any], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Loads that alternate between the servers."""
    bodies = [request("/predict", {"inputs": [text]}) for text in make_texts()]
    lines = []
    for clients in args.clients:
        for turn in range(args.rounds):
            for name, port in ports.items():
                before = cpu_seconds(processes[name])
                load = asyncio.run(
                    steady(port, clients=clients, bodies=bodies, seconds=args.seconds)
                )
                used = cpu_seconds(processes[name]) - before
                cpu_ms = round(1000 * used / len(load.latencies))
                lines.append(line(name, load, clients=clients, round=turn, cpu_ms=cpu_ms))
                print(json.dumps(lines[-1]), flush=True)
    return lines


def equal_predictions(ports: dict[str, int]) -> float:
    """The part of the texts that two servers answer alike."""
    texts = make_texts()[:32]
    answers = []
    for port in list(ports.values())[:2]:
        _, body = asyncio.run(ask(port, "/predict", {"inputs": texts}))
        answers.append([result["prediction"] for result in json.loads(body)["results"]])
    return sum(a == b for a, b in zip(*answers, strict=True)) / len(texts)


def endure(port: int, process: subprocess.Popen[bytes], args: argparse.Namespace) -> None:
    """100 clients, hostile requests, and an end under load."""
    bodies = [request("/predict", {"inputs": [text]}) for text in make_texts()]
    load = asyncio.run(steady(port, clients=100, bodies=bodies, each=5))
    print(json.dumps(line("ours", load, test="100 clients, 5 requests each")), flush=True)
    before, start = resident_mib(process), time.monotonic()
    counts = asyncio.run(hostile(port, number=args.hostile, patience=5.0))
    seconds = time.monotonic() - start
    status, _ = asyncio.run(ask(port, "/predict", {"inputs": make_texts()[:4]}))
    print(
        json.dumps(
            {
                "test": "hostile",
                "requests": args.hostile,
                "seconds": round(seconds, 1),
                "outcomes": dict(sorted(counts.items())),
                "status_afterwards": status,
                "resident_mib": [before, resident_mib(process)],
            }
        ),
        flush=True,
    )

    async def end_under_load() -> Load:
        waiting = asyncio.ensure_future(steady(port, clients=32, bodies=bodies, until_refused=True))
        await asyncio.sleep(3.0)
        process.send_signal(signal.SIGTERM)
        return await waiting

    load = asyncio.run(end_under_load())
    code = process.wait(timeout=100)
    print(json.dumps(line("ours", load, test="SIGTERM under load", exit_code=code)), flush=True)


def markdown(lines: Sequence[dict[str, Any]]) -> str:
    rows = [
        "| clients | server | requests/s | p50 ms | p99 ms | CPU ms a request |",
        "|---|---|---|---|---|---|",
    ]
    keys = list(dict.fromkeys((one["clients"], one["server"]) for one in lines))
    for clients, name in keys:
        own = [one for one in lines if (one["clients"], one["server"]) == (clients, name)]
        cells = [
            str(statistics.median(one[key] for one in own))
            for key in ("requests_per_second", "p50_ms", "p99_ms", "cpu_ms")
        ]
        rows.append(f"| {clients} | {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def start_servers(
    root: Path, stack: contextlib.ExitStack, args: argparse.Namespace
) -> tuple[dict[str, subprocess.Popen[bytes]], dict[str, int]]:
    """The processes and ports of ours and of both peers, with the same weights."""
    write_model(root / "hf")
    subprocess.run(
        [sys.executable, "-m", "t5x_lite", "import", "hf", root / "hf", root / "ours"],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    length = args.length
    ports = {name: free_port() for name in ("ours", "threads", "lock")}
    commands = {
        "ours": f"-m t5x_lite serve --checkpoint {root}/ours --endpoints predict --port "
        f"{ports['ours']} --inputs-length {INPUTS_LENGTH} --batch-size {args.batch_size} "
        f"--max-decode-length {length} --min-length {length} --body-timeout 2",
    }
    for kind in ("threads", "lock"):
        commands[kind] = f"{__file__} --length {length} --peer {root}/hf {ports[kind]} {kind}"
    processes = {
        name: stack.enter_context(
            serving(*command.split(), port=ports[name], log=root / f"{name}.log")
        )
        for name, command in commands.items()
    }
    return processes, ports


def main() -> None:
    args = parse()
    if args.peer:
        directory, port, locked = args.peer
        peer_server(directory, int(port), args.length, locked=locked == "lock")
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        start = time.monotonic()
        processes, ports = start_servers(Path(folder), stack, args)
        about = {"device": platform.machine(), "cores": os.cpu_count()}
        about |= {"ready_seconds": round(time.monotonic() - start, 1)}
        print(json.dumps({**about, "equal_predictions": equal_predictions(ports)}), flush=True)
        lines = compare(ports, processes, args)
        if args.markdown:
            print(markdown(lines), flush=True)
        endure(ports["ours"], processes["ours"], args)


if __name__ == "__main__":
    main()
