"""Several modules over one batch, each row its own, beside one module for all rows.

    python scripts/bench/many_adapters.py [--modules 8] [--rounds 7] [--methods lora seq_bn]

A BERT-base at 16 rows of 128 tokens. "one" has a module for all rows, "each" `MultiTask` of
--modules modules, whose rows are the batch's in turn. Both the forward pass, as `serve` and `embed`
run it, and a train step are timed, in one process, interleaved; the ratio is that of the medians.
One JSON line for each method and pass.
"""

import argparse
import dataclasses
import functools
import json
import os
import statistics
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.adapters.base import Adapter
from t5x_lite.adapters.bottleneck import seq_bn
from t5x_lite.adapters.composition import MultiTask
from t5x_lite.adapters.lora import Ia3, Lora
from t5x_lite.core.sharding import MeshConfig, make_mesh, put_batch
from t5x_lite.core.trees import Batch
from t5x_lite.models.encoder import BertConfig
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.task_heads import Classify
from t5x_lite.optim.config import AdamW
from t5x_lite.optim.partial import joint_optimizer
from t5x_lite.optim.schedules import Constant
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


def main() -> None:
    """Times and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--modules", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", default="base", choices=SIZES)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    options = parser.parse_args()
    for method in options.methods:
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
