"""What a train step costs the host: the time until the call returns, while the devices work.

    python scripts/bench/dispatch.py                      # 24 + 24 stacked layers, tiny widths

The device is left to finish before every call, so that nothing but the host's own work is timed:
arguments are checked, buffers donated, the program handed over. It must stay far below the time of
a step, or the devices wait. One JSON line, in milliseconds: `dispatch_ms` by the clock,
`dispatch_cpu_ms` of the calling thread alone, which is the one to read on a busy machine, and
`put_batch_ms`, the copy of a batch.
"""

import argparse
import json
import statistics
import time

import jax
import numpy as np

from t5x_lite.core.sharding import MeshConfig, make_mesh, put_batch
from t5x_lite.models.t5 import T5Config
from t5x_lite.nn.slots import bind, init, shapes
from t5x_lite.objectives.learner import Bound
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor, Constant
from t5x_lite.optim.partial import Update
from t5x_lite.train.step import init_state, make_train_step, state_shardings


def measure(*, layers: int, steps: int, microbatches: int) -> dict:
    """The median time of a call, and of putting a batch."""
    model = T5Config(
        vocab_size=32,
        d_model=8,
        d_kv=4,
        d_ff=16,
        num_heads=2,
        num_encoder_layers=layers,
        num_decoder_layers=layers,
        dropout_rate=0.1,
    )

    def learner(rngs):
        return Bound(model, Seq2Seq(), rngs=rngs)

    def loss(params, batch, key):
        return bind(graphdef, params)(batch, key=key)

    mesh = make_mesh(MeshConfig())
    graphdef, abstract, axes = shapes(learner)
    optimizer = Adafactor(schedule=Constant(value=0.01))
    layout = state_shardings(mesh, axes, optimizer.state_axes(axes, abstract))
    built = optimizer.build(axes)
    state = init_state(lambda key: init(learner, key), built, layout, seed=0)
    step = make_train_step(
        [Update(loss, built, optimizer.schedule.build())],
        mesh=mesh,
        layout=layout,
        seed=0,
        microbatches=microbatches,
    )
    rng = np.random.default_rng(0)
    rows = mesh.size * microbatches
    names = ("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens")
    batch = {name: rng.integers(2, 32, size=(rows, 8)).astype(np.int32) for name in names}
    batch["decoder_loss_weights"] = np.ones((rows, 8), np.float32)

    calls, own, puts, whole = [], [], [], []
    with jax.set_mesh(mesh):
        for _ in range(steps + 3):
            began = time.perf_counter()
            placed = jax.block_until_ready(put_batch(batch, mesh))
            put, worked = time.perf_counter(), time.thread_time()
            state, metrics = step(state, placed)
            returned = time.perf_counter()
            own.append(1e3 * (time.thread_time() - worked))
            jax.block_until_ready((state, metrics))
            puts.append(1e3 * (put - began))
            calls.append(1e3 * (returned - put))
            whole.append(1e3 * (time.perf_counter() - put))
    calls, own, puts, whole = calls[3:], own[3:], puts[3:], whole[3:]
    return {
        "leaves": len(jax.tree.leaves(state)),
        "dispatch_ms": round(statistics.median(calls), 3),
        "dispatch_ms_p90": round(statistics.quantiles(calls, n=10)[-1], 3),
        "dispatch_cpu_ms": round(statistics.median(own), 3),
        "put_batch_ms": round(statistics.median(puts), 3),
        "step_ms": round(statistics.median(whole), 3),
    }


def main() -> None:
    """Prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--microbatches", type=int, default=1)
    options = parser.parse_args()
    device = {"device": jax.devices()[0].device_kind, "devices": jax.device_count()}
    print(json.dumps({**device, **vars(options), **measure(**vars(options))}))


if __name__ == "__main__":
    main()
