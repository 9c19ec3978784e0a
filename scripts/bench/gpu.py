"""Train steps and decoding of T5 1.1 base, large and XL on one accelerator, from a bare checkout.

    scripts/bench/gpu.sh                               # all, in bf16, in under 8 minutes
    scripts/bench/gpu.sh --sizes base --rows base=256 --dropout 0 --tokens FOLDER
    scripts/bench/gpu.sh --dry-run                     # tiny, on CPU, in seconds
    scripts/bench/gpu.sh compare                       # plain, blocked and cuDNN's attention
    scripts/bench/gpu.sh encoders                      # masked language models, retrieval, LoRA
    scripts/bench/gpu.sh peers                         # transformers and sentence-transformers

`compare` is `gpu_compare.py`, and so are the others.

Needs jax, flax, optax and orbax, and neither TensorFlow, seqio, tyro nor grain. Each measurement
has a process of its own, so that its peak memory is its own and one that fails is a line with
"error"; none begins after --budget seconds, and one that would run past it is ended. One that does
not fit is tried again with half the rows.

Rows are random tokens without padding, or those of a folder of --tokens, which is made where the
caches can be read:

    python scripts/bench/gpu.py --write-tokens FOLDER --cache CACHE --vocabulary VOCABULARY

One JSON line each: tokens/s of inputs and targets, MFU against the datasheet's dense bf16 peak and
against the product of two 8192 x 8192 bf16 matrices measured first, compile time, peak memory, and
the loss after the first and the last step.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROWS = {"base": 128, "large": 64, "xl": 32, "tiny": 4}
REMAT = {"xl": "full"}
FILE = "rows.npz"
ATTENTION = ["plain", "blocked", "cudnn"]
UNROLL = {"auto": "auto", "yes": True, "no": 1}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=list(ROWS), default=["base", "large", "xl"])
    parser.add_argument("--rows", nargs="+", default=[], metavar="SIZE=ROWS", help=f"else {ROWS}")
    parser.add_argument("--remat", nargs="+", default=[], metavar="SIZE=POLICY", help=f"{REMAT}")
    add_running(parser)
    parser.add_argument("--lengths", nargs=2, type=int, default=[512, 114], help="of a row")
    parser.add_argument("--dropout", nargs="+", type=float, default=[0.0, 0.1])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--steps", type=int, default=10, help="timed steps, after two others")
    parser.add_argument("--decode-sizes", nargs="*", choices=list(ROWS), default=["base"])
    parser.add_argument("--decode-rows", type=int, default=64)
    parser.add_argument("--decode-length", type=int, default=64)
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--matrix", type=int, default=8192, help="side of the measured product")
    parser.add_argument("--tokens", help="a folder of --write-tokens")
    parser.add_argument("--budget", type=float, default=450.0, help="seconds for everything")
    parser.add_argument("--dry-run", action="store_true", help="tiny, on CPU, in this process")
    parser.add_argument("--write-tokens", metavar="FOLDER")
    parser.add_argument("--cache", help="of `t5x-lite cache`; for --write-tokens, like the others")
    parser.add_argument("--vocabulary")
    parser.add_argument("--num-rows", type=int, default=4096)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write_tokens and not (options.cache and options.vocabulary):
        parser.error("--write-tokens needs --cache and --vocabulary")
    return options


def add_running(parser: argparse.ArgumentParser) -> None:
    """Adds how layers are run; "auto" is what a run chooses by itself."""
    parser.add_argument("--attention", default="auto", choices=["auto", *ATTENTION])
    parser.add_argument("--unroll", nargs="?", const="yes", default="auto", choices=list(UNROLL))


def as_run(model: Any, work: dict) -> Any:
    """The model's config with what "auto" is on this device, for rows of one text each."""
    import jax

    kind, packed = jax.devices()[0].device_kind, bool(work.get("tokens"))
    facts = {"dtype": work["dtype"], "length": max(work["lengths"]), "one_text_rows": not packed}
    return model.with_choices(kind, **facts)[0]


def chosen(pairs: list[str], size: str, default: Any) -> Any:
    """The value of SIZE=VALUE for a size."""
    found = dict(pair.split("=", 1) for pair in pairs).get(size)
    return default if found is None else type(default)(found)


# Tokens.


def write_tokens(options: argparse.Namespace) -> None:
    """Writes packed rows of a cache, ready for the model, as one compressed file."""
    from t5x_lite.data.batches import train_batches
    from t5x_lite.data.config import Data
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    inputs, targets = options.lengths
    data = Data(
        cache=options.cache,
        vocabulary=options.vocabulary,
        batch_size=64,
        inputs_length=inputs,
        targets_length=targets,
    )
    batches = train_batches(
        data, load_vocabulary(data.vocabulary, extra_ids=data.extra_ids), seed=0
    )
    made = [next(batches) for _ in range(-(-options.num_rows // data.batch_size))]
    arrays = {name: np.concatenate([batch[name] for batch in made]) for name in made[0]}
    folder = Path(options.write_tokens)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / FILE, **{n: x.astype(np.uint16) for n, x in arrays.items()})
    print(json.dumps({"rows": len(arrays["encoder_input_tokens"]), "file": str(folder / FILE)}))


def random_rows(*, rows: int, lengths: list[int], vocabulary: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    inputs, targets = (
        random.integers(2, vocabulary, size=(rows, length)).astype(np.int32) for length in lengths
    )
    return {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0))),
        "decoder_target_tokens": targets,
        "decoder_loss_weights": np.ones_like(targets),
    }


def batches_of(work: dict, *, vocabulary: int) -> Iterator[dict[str, np.ndarray]]:
    """Batches without end."""
    rows = work["rows"]
    if not work["tokens"]:
        batch = random_rows(rows=rows, lengths=work["lengths"], vocabulary=vocabulary)
        while True:
            yield batch
    with np.load(Path(work["tokens"]) / FILE) as found:
        arrays = {name: found[name].astype(np.int32) for name in found.files}
    there = len(arrays["encoder_input_tokens"])
    first = 0
    while True:
        index = np.arange(first, first + rows) % there
        yield {name: array[index] for name, array in arrays.items()}
        first = (first + rows) % there


# Measurements; each gives what its line holds.


def model_of(work: dict) -> Any:
    """The config of a size."""
    from t5x_lite.models import published
    from t5x_lite.models.t5 import T5Config

    fields = {"dropout_rate": work.get("dropout", 0.0)}
    if "remat" in work:
        fields |= {"remat": work["remat"], "attention": work["attention"]}
        fields |= {"unroll": UNROLL[work["unroll"]]}
    if work["size"] == "tiny":
        sizes: dict[str, Any] = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_heads": 2}
        layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
        return as_run(T5Config(vocab_size=64, **sizes, **layers, **fields), work)
    return as_run(getattr(published, f"t5_1_1_{work['size']}")(**fields), work)


@dataclasses.dataclass(frozen=True)
class Trainer:
    """What a train step of a size is made of.

    Attributes:
      model: its config.
      mesh: of one device.
      step: not compiled yet.
      init: makes the first state.
      abstract: shapes of the parameters.
    """

    model: Any
    mesh: Any
    step: Any
    init: Callable[[], Any]
    abstract: Any


def trainer(work: dict) -> Trainer:
    import jax
    import jax.numpy as jnp

    from t5x_lite.core import sharding
    from t5x_lite.nn.slots import bind, cast, init, shapes
    from t5x_lite.objectives.learner import Bound
    from t5x_lite.objectives.likelihood import Seq2Seq
    from t5x_lite.optim.config import Adafactor, Constant, Warmup
    from t5x_lite.optim.partial import Update
    from t5x_lite.train.step import init_state, make_train_step, state_shardings

    model = model_of(work)

    def learner(rngs: Any) -> Any:
        return Bound(model, Seq2Seq(), rngs=rngs)

    graphdef, abstract, axes = shapes(learner)
    dtype = jnp.dtype(work["dtype"])

    def loss(params: Any, batch: Any, key: Any) -> Any:
        return bind(graphdef, cast(params, dtype))(batch, key=key if work["dropout"] else None)

    mesh = sharding.make_mesh(sharding.MeshConfig(), devices=jax.devices()[:1])
    schedule = Constant(value=1e-3)
    if work.get("warmup"):
        schedule = Warmup(steps=work["warmup"], then=schedule)
    optimizer = Adafactor(schedule=schedule)
    built = optimizer.build(axes)
    layout = state_shardings(mesh, axes, optimizer.state_axes(axes, abstract))

    def first_state() -> Any:
        return init_state(lambda key: init(learner, key), built, layout, seed=0)

    update = Update(loss, built, optimizer.schedule.build())
    step = make_train_step([update], mesh=mesh, layout=layout, seed=0)
    return Trainer(model, mesh, step, first_state, abstract)


def train(work: dict) -> dict[str, Any]:
    import jax

    from t5x_lite.core import sharding

    made = trainer(work)
    model, mesh, state = made.model, made.mesh, made.init()
    batches = batches_of(work, vocabulary=model.vocab_size)
    with jax.set_mesh(mesh):
        batch = sharding.put_batch(next(batches), mesh)
        start = time.perf_counter()
        compiled = made.step.lower(state, batch).compile()
        compile_seconds = time.perf_counter() - start
        losses, seconds = [], []
        for _ in range(2 + work["steps"]):
            batch = sharding.put_batch(next(batches), mesh)
            jax.block_until_ready((state, batch))
            start = time.perf_counter()
            state, metrics = compiled(state, batch)
            losses.append(float(jax.block_until_ready((state, metrics))[1]["loss"]))
            seconds.append(time.perf_counter() - start)
        # One after the other without waiting, as training does it.
        start = time.perf_counter()
        for _ in range(work["steps"]):
            state, metrics = compiled(state, batch)
        jax.block_until_ready((state, metrics))
    median = (time.perf_counter() - start) / work["steps"]
    return {
        **costs(made, compiled, batch, seconds=median),
        "alone_seconds": [round(value, 5) for value in seconds[2:]],
        "compile_seconds": round(compile_seconds, 2),
        "first_loss": round(losses[0], 4),
        "last_loss": round(losses[-1], 4),
    }


def costs(made: Trainer, compiled: Any, batch: dict[str, Any], *, seconds: float) -> dict[str, Any]:
    """What a compiled train step costs that takes so long."""
    from t5x_lite.core import trees

    rows = len(batch["encoder_input_tokens"])
    lengths = {name: batch[name].shape[1] for name in batch if name.endswith("_tokens")}
    flops = 3 * rows * made.model.forward_flops({n: (size,) for n, size in lengths.items()})
    tokens = sum(lengths[name] for name in ("encoder_input_tokens", "decoder_target_tokens"))
    return {
        "parameters": trees.count_parameters(made.abstract),
        "step_seconds": round(seconds, 5),
        "tokens_per_second": round(rows * tokens / seconds, 1),
        "flops": flops,
        "flops_per_second": round(flops / seconds, -6),
        "temporaries_mib": round(compiled.memory_analysis().temp_size_in_bytes / 2**20),
        "cudnn_calls": compiled.as_text().count("__cudnn$fmha"),
    }


def decode(work: dict) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    from t5x_lite.decoding import generate
    from t5x_lite.decoding.sampling import Decoding
    from t5x_lite.decoding.search import Preparation
    from t5x_lite.nn.slots import bind, shapes

    model = model_of(work).replace(unroll=True)

    def build(rngs: Any) -> Any:
        return model.build(rngs=rngs)

    graphdef, abstract, _ = shapes(build)
    # Not the model's own initialisation, which takes longer to compile than to search.
    noise = np.random.default_rng(0).normal(scale=0.05, size=1_000_003).astype(work["dtype"])
    params = jax.tree.map(lambda leaf: jnp.asarray(np.resize(noise, leaf.shape)), abstract)
    inputs = np.random.default_rng(0).integers(
        2, model.vocab_size, size=(work["rows"], work["lengths"][0])
    )
    decoding = Decoding(
        max_decode_length=work["length"], num_beams=work["beams"], eos_id=model.vocab_size
    )
    prepared = Preparation(lambda params: bind(graphdef, params))(params)
    search = jax.jit(lambda model, inputs: generate.decode(model, inputs, decoding=decoding))
    inputs = jnp.asarray(inputs, jnp.int32)
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        jax.block_until_ready(search(prepared, inputs))
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    return {
        "seconds": [round(value, 4) for value in seconds[1:]],
        "tokens_per_second": round(work["rows"] * work["length"] / median, 1),
        "compile_seconds": round(seconds[0] - median, 2),
    }


def matrix(work: dict) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    side = work["side"]
    one = jnp.ones((side, side), jnp.dtype(work["dtype"]))
    multiply = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32))
    multiply(one, one).block_until_ready()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        found = [multiply(one, one) for _ in range(4)]
        jax.block_until_ready(found)
        seconds.append((time.perf_counter() - start) / 4)
    return {"flops_per_second": round(2 * side**3 / min(seconds), -6)}


MEASUREMENTS = {"matrix": matrix, "train": train, "decode": decode}


def measure(work: dict) -> dict[str, Any]:
    """One line; what goes wrong is in it."""
    import jax

    from t5x_lite.core.accelerators import chip

    device = jax.devices()[0]
    line = {**work, "device": device.device_kind, "jax": jax.__version__}
    try:
        line |= MEASUREMENTS[work["measures"]](work)
    except jax.errors.JaxRuntimeError as error:
        line["error"] = str(error).splitlines()[0][:200]
    statistics_of = device.memory_stats() or {}
    if "peak_bytes_in_use" in statistics_of:
        line["peak_mib"] = round(statistics_of["peak_bytes_in_use"] / 2**20)
    peak = chip(device.device_kind).peak
    if peak is not None and "flops" in line:
        line["mfu"] = round(line["flops_per_second"] / peak, 3)
    return line


def works(options: argparse.Namespace) -> Iterator[dict]:
    """What is measured, in order: what matters most comes first."""
    yield {"measures": "matrix", "side": options.matrix, "dtype": options.dtype}
    common = {"dtype": options.dtype, "lengths": options.lengths}
    for dropout in options.dropout:
        for size in options.sizes:
            yield {
                "measures": "train",
                "size": size,
                "rows": chosen(options.rows, size, ROWS[size]),
                "remat": chosen(options.remat, size, REMAT.get(size, "none")),
                "attention": options.attention,
                "unroll": options.unroll,
                "dropout": dropout,
                "steps": options.steps,
                "tokens": options.tokens,
                **common,
            }
    for size in options.decode_sizes:
        for beams in options.beams:
            yield {
                "measures": "decode",
                "size": size,
                "rows": options.decode_rows,
                "beams": beams,
                "length": options.decode_length,
                **common,
            }


def in_child(work: dict, *, seconds: float, script: str = __file__) -> dict[str, Any]:
    """Measures in a process of its own."""
    command = [sys.executable, script, "--work", json.dumps(work)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {**work, "error": f"ended after {seconds:.0f} s: the budget is spent"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return {**work, "error": f"exit code {done.returncode}: {said[:200]}"}
    return json.loads(lines[-1])


def quick_cpu() -> None:
    """Has this process and its children compile for the CPU, which is all that a dry run costs."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quick}"


def tiny(options: argparse.Namespace) -> None:
    """Changes the options to what a CPU does in seconds."""
    quick_cpu()
    options.sizes, options.decode_sizes, options.rows = ["tiny"], ["tiny"], []
    options.steps, options.matrix, options.beams = 2, 64, [1]
    options.decode_rows, options.decode_length = 2, 4
    options.lengths = options.lengths if options.tokens else [16, 8]


def main() -> None:
    options = parse()
    if options.work:
        print(json.dumps(measure(json.loads(options.work))))
        return
    if options.write_tokens:
        write_tokens(options)
        return
    if options.dry_run:
        tiny(options)
    end = time.monotonic() + options.budget
    peak = None
    for work in works(options):
        line = None
        while line is None:
            left = end - time.monotonic()
            if left <= 0:
                line = {**work, "error": "not begun: the budget is spent"}
                break
            line = measure(work) if options.dry_run else in_child(work, seconds=left)
            if "RESOURCE_EXHAUSTED" in line.get("error", "") and work.get("rows", 1) > 1:
                print(json.dumps(line), flush=True)
                work, line = {**work, "rows": work["rows"] // 2}, None
        if work["measures"] == "matrix":
            peak = line.get("flops_per_second")
        elif peak and "flops" in line:
            line["mfu_of_measured_peak"] = round(line["flops_per_second"] / peak, 3)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
