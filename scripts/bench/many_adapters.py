"""Several modules over one batch, each row its own, beside one module for all rows.

    python scripts/bench/many_adapters.py [--modules 8] [--rounds 7] [--methods lora seq_bn]
    python scripts/bench/many_adapters.py --requests 256 --size small --methods lora

A BERT-base at 16 rows of 128 tokens. "one" has a module for all rows, "each" `MultiTask` of
--modules modules, whose rows are the batch's in turn. Both the forward pass, as `serve` and `embed`
run it, and a train step are timed, in one process, interleaved; the ratio is that of the medians.
One JSON line for each method and pass.

With --requests, the endpoint `predict` of `t5x-lite serve` answers so many requests of one text by
a T5 1.1, in batches of --rows, and each answer has --tokens tokens. "mixed" are requests that name
the modules in turn, and "one" those that name the first, by the same programs. "merged" is a
server that has only this module and adds it to the kernels. The ratios are of texts per second of
the processor, which other programs on the machine disturb less than those of the clock.
"""

import argparse
import dataclasses
import functools
import json
import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.adapters.base import Adapter
from t5x_lite.adapters.bottleneck import seq_bn
from t5x_lite.adapters.composition import MultiTask
from t5x_lite.adapters.config import Adapters
from t5x_lite.adapters.lora import Ia3, Lora
from t5x_lite.config import Experiment
from t5x_lite.core.sharding import MeshConfig, make_mesh, put_batch
from t5x_lite.core.trees import Batch
from t5x_lite.data.config import Data
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.loading import Loaded, ModulesOf, learner_of
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.published import t5_1_1_base, t5_1_1_small
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.objectives.task_heads import Classify
from t5x_lite.optim.config import AdamW, Constant
from t5x_lite.optim.partial import joint_optimizer
from t5x_lite.serve.batching import Batcher
from t5x_lite.serve.endpoints import Asked, Predict
from t5x_lite.train.step import TrainState, make_train_step, state_shardings

SIZES = {
    "base": {"d_model": 768, "d_ff": 3072, "num_heads": 12, "num_layers": 12},
    "tiny": {"d_model": 32, "d_ff": 64, "num_heads": 2, "num_layers": 2},
}
METHODS: dict[str, Adapter] = {
    "lora": Lora(name="m", rank=8),
    "seq_bn": seq_bn(name="m", reduction=16.0),
    "ia3": Ia3(name="m"),
}


METHOD_LINES = {"lora": "lora(r=8)", "seq_bn": "seq_bn(reduction=16)", "ia3": "ia3()"}


def learner(size: str, method: str, num: int) -> Learner:
    """A BERT with a module for all rows, or with as many as are asked for."""
    model = BertConfig(vocab_size=30522, dropout_rate=0.0, attention_dropout_rate=0.0,
                       unroll=True, **SIZES[size])  # fmt: skip
    names = [f"m{number}" for number in range(num)]
    return Learner.of(
        model,
        Classify(num_classes=2),
        adapters=tuple(dataclasses.replace(METHODS[method], name=name) for name in names),
        use=(MultiTask(tuple(names)),) if num > 1 else (),
        optimizer=AdamW(schedule=Constant(value=1e-4)),
    )


def batch_of(rows: int, length: int, num: int) -> Batch:
    """Rows of random tokens, whose modules take turns."""
    random = np.random.default_rng(0)
    batch = {
        "encoder_input_tokens": random.integers(1000, 30000, (rows, length)),
        "encoder_segment_ids": np.ones((rows, length)),
        "labels": np.stack([np.arange(rows) % 2 + 1, np.zeros(rows)], 1),
    }
    batch |= {"adapter_ids": np.arange(rows)[:, None] % num} if num > 1 else {}
    return {name: jnp.asarray(x, jnp.int32) for name, x in batch.items()}


def runs(options: argparse.Namespace, method: str, num: int) -> dict[str, Any]:
    """Pass -> a function that runs it once."""
    made, batch = learner(options.size, method, num), batch_of(options.rows, options.length, num)
    params = made.init(jax.random.key(0))
    forward = jax.jit(lambda p, b: made.loss(p, b).value())
    updates = made.updates()
    optimizer = joint_optimizer(updates)
    mesh = make_mesh(MeshConfig(), devices=jax.devices()[:1])
    layout = state_shardings(mesh, made.axes, made.optimizer_axes())

    def start(key: Any) -> TrainState:
        fresh = made.init(key)
        return TrainState(jnp.zeros((), jnp.int32), fresh, optimizer.init(fresh))

    state = [jax.jit(start, out_shardings=layout)(jax.random.key(0))]
    update = make_train_step(updates, mesh=mesh, layout=layout, seed=0)

    def step() -> Any:
        with jax.set_mesh(mesh):
            state[0], metrics = update(state[0], put_batch(batch, mesh))
        return metrics["loss"]

    return {"forward": functools.partial(forward, params, batch), "step": step}


def server(options: argparse.Namespace, method: str, use: str) -> Predict:
    """The endpoint of a T5 whose requests may name --modules modules; with `use`, of it alone."""
    small = t5_1_1_small()
    tiny = small.replace(num_encoder_layers=2, num_decoder_layers=2, d_model=32, d_ff=64)
    sizes = {"tiny": tiny, "small": small, "base": t5_1_1_base()}
    names = [f"m{number}" for number in range(options.modules)]
    adapters = Adapters(add=tuple(f"{name} = {METHOD_LINES[method]}" for name in names))
    experiment = Experiment(
        model=sizes[options.size].on_cpu(dtype="float32"),
        objective=Seq2Seq(),
        steps=1,
        optimizer=AdamW(schedule=Constant(value=1e-4)),
        data=Data(task="a:b", vocabulary="bytes", inputs_length=options.length, pack=False),
        adapters=dataclasses.replace(adapters, use=f"MultiTask({', '.join(names)})"),
    )
    made = learner_of(experiment)
    params = jax.jit(made.init)(jax.random.key(0))
    keys = iter(jax.random.split(jax.random.key(1), 10_000))
    params["adapters"] = jax.tree.map(
        lambda x: x + 0.02 * jax.random.normal(next(keys), x.shape), params["adapters"]
    )
    loaded = Loaded(Path("work"), experiment, made, params, load_vocabulary("bytes"))
    modules = ModulesOf.of(loaded)
    model = Checkpoint((modules.using((use,) if use else ()),), options.length, modules=modules)
    model = model if use else model.by_row()
    decoding = Decoding(max_decode_length=options.tokens, min_length=options.tokens)
    ids = {name: number for number, name in enumerate(names, start=1)}
    return Predict(model, Asked(decoding=decoding, lengths=(options.length,), adapters=ids))


def texts_per_second(
    endpoint: Any, names: list[str], options: argparse.Namespace
) -> tuple[float, float]:
    """Answers the requests, which all wait at first; texts per second of clock and processor."""
    records = [
        {"inputs": "a" * (options.length - 1), **({"adapter": name} if name else {})}
        for name in names
    ]
    batcher = Batcher(
        {"predict": endpoint.answer}, sizes=(options.rows,), queue=len(names), wait=0.0
    )
    left = threading.Semaphore(0)
    for record in records:
        batcher.submit("predict", endpoint.rows(record), on_done=lambda _: left.release())
    start, busy = time.perf_counter(), time.process_time()
    batcher.start()
    for _ in records:
        left.acquire()
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    batcher.close()
    return len(records) / seconds, len(records) / busy


def serve(options: argparse.Namespace, method: str) -> dict[str, Any]:
    """The line of a method's requests."""
    by_row, merged = (server(options, method, use) for use in ("", "m0"))
    num = options.requests
    sides = {
        "mixed": (by_row, [f"m{i % options.modules}" for i in range(num)]),
        "one": (by_row, ["m0"] * num),
        "merged": (merged, [""] * num),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for number in range(options.rounds + 1):
        for name, (endpoint, names) in sides.items():
            speed = texts_per_second(endpoint, names if number else names[:1], options)
            if number:  # the first one compiles
                found[name].append(speed)
    line = {"method": method, "size": options.size, "modules": options.modules, "requests": num}
    for number, clock in enumerate(("s", "cpu_s")):
        median = {k: statistics.median(pair[number] for pair in x) for k, x in found.items()}
        line |= {f"{name}_texts_per_{clock}": round(value, 2) for name, value in median.items()}
    for name in ("one", "merged"):
        line[f"mixed_to_{name}"] = round(median["mixed"] / median[name], 3)
    return line


def main() -> None:
    """Times and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--modules", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", default="base", choices=["small", *SIZES])
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    options = parser.parse_args()
    for method in options.methods:
        if options.requests:
            print(json.dumps(serve(options, method)))
            continue
        one, each = (runs(options, method, num) for num in (1, options.modules))
        for kind in one:
            times: dict[str, list[float]] = {"one": [], "each": []}
            for number in range(options.rounds + 1):
                for name, sides in (("one", one), ("each", each)):
                    start = time.perf_counter()
                    jax.block_until_ready(sides[kind]())
                    if number:  # the first one compiles
                        times[name].append(time.perf_counter() - start)
            median = {name: statistics.median(those) for name, those in times.items()}
            line = {"method": method, "pass": kind, "modules": options.modules}
            line |= {f"{name}_s": round(value, 4) for name, value in median.items()}
            print(json.dumps(line | {"ratio": round(median["each"] / median["one"], 3)}))


if __name__ == "__main__":
    main()
