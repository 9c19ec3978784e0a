"""Plain, blocked and cuDNN's attention beside each other on one GPU, from a bare checkout.

    scripts/bench/gpu.sh compare --trace FOLDER      # 100 steps of T5 base in bf16, each
    scripts/bench/gpu.sh compare --tokens FOLDER     # of a cache: see gpu.py
    scripts/bench/gpu.sh compare --dry-run           # tiny, on CPU

One JSON line each: the losses of all steps, step time, MFU, memory, and how often the program calls
cuDNN's attention (0 says that it does not run); how far the losses are apart; and of a run that is
killed by SIGKILL between two checkpoints, how far its losses are from those of the run that was
not, once it goes on. Every run has the same batches, parameters, dropout and rate. Exit code 1
says that one of it failed.
"""

import argparse
import functools
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gpu
import numpy as np


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--attention", nargs="+", choices=gpu.ATTENTION, default=gpu.ATTENTION)
    parser.add_argument("--size", choices=list(gpu.ROWS), default="base")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lengths", nargs=2, type=int, default=[512, 114], help="of a row")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--warmup", type=int, default=0, help="steps in which 1e-3 is reached")
    parser.add_argument("--remat", default="none")
    parser.add_argument("--unroll", nargs="?", const="yes", default="no", choices=list(gpu.UNROLL))
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--tokens", help="a folder of gpu.py's --write-tokens")
    parser.add_argument("--within", type=float, default=1e-2, help="how far losses may be apart")
    parser.add_argument("--trace", help="a folder for a trace of three steps of the last kind")
    parser.add_argument("--save-at", type=int, default=40, help="the step that is saved")
    parser.add_argument("--kill-at", type=int, default=50, help="the step of the kill")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds for everything")
    parser.add_argument("--dry-run", action="store_true", help="tiny, on CPU")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    return parser.parse_args()


def batch_of(work: dict, step: int, *, vocabulary: int) -> dict[str, np.ndarray]:
    """The batch of a step: of the tokens so many rows further on, or random."""
    rows = work["rows"]
    if not work["tokens"]:
        random = np.random.default_rng(step)
        made = gpu.random_rows(rows=rows, lengths=work["lengths"], vocabulary=vocabulary)
        # Half of the vocabulary, another in each column: there is something to learn.
        column = np.arange(work["lengths"][0])
        made["encoder_input_tokens"] = (
            2 + (random.integers(0, vocabulary // 2, (rows, 1)) + column) % (vocabulary - 2)
        ).astype(np.int32)
        return made
    found = rows_of(work["tokens"])
    index = np.arange(step * rows, (step + 1) * rows) % len(found["encoder_input_tokens"])
    return {name: array[index].astype(np.int32) for name, array in found.items()}


@functools.cache
def rows_of(folder: str) -> dict[str, np.ndarray]:
    """All rows of a folder of tokens."""
    with np.load(Path(folder) / gpu.FILE) as found:
        return {name: found[name] for name in found.files}


class Step(NamedTuple):
    """What is there after a step: its number, the state, and what it was made with."""

    step: int
    state: Any
    loss: float
    seconds: float
    compiled: Any
    batch: Any


def steps_of(work: dict, state: Any, made: gpu.Trainer, *, until: int) -> Iterator[Step]:
    """The steps of a run from a state on; the program is compiled before the first."""
    import jax

    from t5x_lite.core import sharding

    compiled = None
    with jax.set_mesh(made.mesh):
        for step in range(int(state.step), until):
            batch = batch_of(work, step, vocabulary=made.model.vocab_size)
            batch = sharding.put_batch(batch, made.mesh)
            if compiled is None:
                compiled = made.step.lower(state, batch).compile()
            jax.block_until_ready((state, batch))
            start = time.perf_counter()
            state, metrics = compiled(state, batch)
            loss = float(jax.block_until_ready((state, metrics))[1]["loss"])
            yield Step(step + 1, state, loss, time.perf_counter() - start, compiled, batch)


def losses(work: dict) -> dict[str, Any]:
    """All losses of a run, what a step costs, and a trace if one is wanted."""
    import jax

    made = gpu.trainer(work)
    start = time.perf_counter()
    found, seconds, last = [], [], None
    for last in steps_of(work, made.init(), made, until=work["steps"]):
        found.append(round(last.loss, 6))
        seconds.append(last.seconds)
    assert last is not None
    took = float(np.median(seconds[2:] or seconds))
    line = gpu.costs(made, last.compiled, last.batch, seconds=took)
    if work["trace"]:
        state = last.state
        with jax.set_mesh(made.mesh), jax.profiler.trace(work["trace"]):
            for _ in range(3):
                state, metrics = last.compiled(state, last.batch)
            jax.block_until_ready((state, metrics))
        files = [path for path in Path(work["trace"]).rglob("*") if path.is_file()]
        line["trace_bytes"] = {path.name: path.stat().st_size for path in files}
    return {**line, "seconds": round(time.perf_counter() - start, 1), "losses": found}


def checkpointed(work: dict) -> dict[str, Any]:
    """Goes on from the checkpoint of the folder, if there is one; saves at a step, prints each."""
    import jax

    from t5x_lite.checkpoints.reading import Checkpoints
    from t5x_lite.train.step import TrainState

    made = gpu.trainer(work)
    state = made.init()
    with Checkpoints(work["folder"]) as checkpoints:
        begins, _ = checkpoints.resume_point()
        if begins is not None:
            wanted = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
            )
            params, optimizer = checkpoints.restore(
                begins,
                params=wanted.params,
                optimizer={"step": wanted.step, "state": wanted.optimizer},
            )
            state = TrainState(optimizer["step"], params, optimizer["state"])
        found = []
        for now in steps_of(work, state, made, until=work["steps"]):
            found.append(round(now.loss, 6))
            if now.step == work["save_at"]:
                checkpoints.save(
                    now.step,
                    params=now.state.params,
                    optimizer={"step": now.state.step, "state": now.state.optimizer},
                    files={"work.json": json.dumps(work).encode()},
                )
                checkpoints.wait()
            print(json.dumps({"step": now.step, "loss": found[-1]}), flush=True)
    return {"from_step": begins or 0, "losses": found}


gpu.MEASUREMENTS |= {"losses": losses, "checkpointed": checkpointed}


def apart(one: list[float], other: list[float]) -> float:
    """How far two lists of losses are apart at most."""
    return round(float(np.max(np.abs(np.subtract(one, other)))), 6)


def agreement(lines: dict[str, dict], *, within: float) -> dict[str, Any]:
    """How far the kinds' losses are from those of the first."""
    first, *others = [name for name, line in lines.items() if "losses" in line]
    found = {name: apart(lines[first]["losses"], lines[name]["losses"]) for name in others}
    agrees = len(found) == len(lines) - 1 and all(value <= within for value in found.values())
    return {"measures": "agreement", "with": first, "apart": found, "ok": agrees}


def killed(work: dict, *, kill_at: int, end: float) -> dict[str, Any]:
    """A run that is ended by SIGKILL at a step."""
    command = [sys.executable, __file__, "--work", json.dumps(work)]
    reached = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            reached = json.loads(line).get("step", reached)
            if reached >= kill_at or time.monotonic() > end:
                process.send_signal(signal.SIGKILL)
                break
    saved = sorted(int(path.name) for path in (Path(work["folder"]) / "checkpoints").glob("[0-9]*"))
    return {"measures": "killed", "at_step": reached, "code": process.returncode, "saved": saved}


def kill_and_resume(
    work: dict, whole: list[float], options: argparse.Namespace, *, end: float
) -> Iterator[dict]:
    """A killed run, and the one that goes on in its place beside the one that was not killed."""
    with tempfile.TemporaryDirectory() as folder:
        work = {**work, "measures": "checkpointed", "trace": None, "folder": folder}
        work["save_at"] = options.save_at
        yield killed(work, kill_at=options.kill_at, end=end)
        line = gpu.in_child(work, seconds=max(1.0, end - time.monotonic()), script=__file__)
        if "losses" in line:
            begins = line["from_step"]
            line["apart"] = apart(whole[begins:], line["losses"])
            line["ok"] = begins == options.save_at and line["apart"] <= options.within
        yield line


def lines_of(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The lines, in order."""
    common = {name: getattr(options, name) for name in ("size", "rows", "lengths", "dtype")}
    common |= {name: getattr(options, name) for name in ("tokens", "dropout", "remat", "unroll")}
    common |= {"steps": options.steps, "warmup": options.warmup}
    end = time.monotonic() + options.budget
    found: dict[str, dict] = {}
    work: dict[str, Any] = {}
    for attention in options.attention:
        trace = options.trace if attention == options.attention[-1] else None
        one = {"measures": "losses", "attention": attention, "trace": trace, **common}
        line = gpu.in_child(one, seconds=max(1.0, end - time.monotonic()), script=__file__)
        found[attention] = line
        work = one if "losses" in line else work
        yield line
    if not work:
        return
    yield agreement(found, within=options.within)
    yield from kill_and_resume(work, found[work["attention"]]["losses"], options, end=end)


def main() -> None:
    options = parse()
    if options.work:
        print(json.dumps(gpu.measure(json.loads(options.work))), flush=True)
        return
    if options.dry_run:
        gpu.quick_cpu()
        options.size, options.rows, options.steps = "tiny", 2, 8
        options.save_at, options.kill_at, options.lengths = 3, 5, [16, 8]
    failed = False
    for line in lines_of(options):
        failed = failed or "error" in line or line.get("ok") is False
        print(json.dumps(line), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
