"""Train steps a second, beside transformers' T5ForConditionalGeneration in the same run.

    python scripts/bench/train_step.py [--shapes small] [--threads 1 all] [--markdown]
    python scripts/bench/train_step.py --shapes tiny --threads 1 --compare-steps 4 --rounds 2

T5 1.1 small and base at 8 rows of 512 / 114 tokens, and a tiny shape (d 64, 2 + 2 layers, 16 rows
of 64 / 32). Each side runs in a process of its own, which is told when to run: rounds are
interleaved, and no side's threads or memory are in another's way. All begin with the same weights
(ours, as T5X initialises, exported by the table of `interop.hf`), and see the same batches of
random tokens; transformers has its own Adafactor, ours factors what that factors, both at a
constant rate of 1e-3.

First --compare-steps steps are made, whose losses are reported ("loss_difference": the largest
relative one against the first side in float32); then the rounds are timed. Denormals are flushed in
torch. Sides, of --sides (default: all that are compiled ahead or not at all):

    ours-f32 ours-bf16               t5x_lite; bf16 operands with float32 results
    eager-f32 eager-bf16             transformers; bf16 is autocast
    sdpa-f32 sdpa-bf16               the same with torch's scaled_dot_product_attention
    compile-f32 compile-bf16         the same by torch.compile (sdpa)
    plain-f32 plain-bf16             plain JAX, unrolled (scripts/bench/plain_t5.py); no dropout

One JSON line for each shape, number of threads and side: tokens/s of inputs and targets together,
MFU against the fastest matrix product (2048^3, of that dtype, by either library) in this run,
"compile_seconds" (the first step less a usual one), and peak memory of the process.
"""

import argparse
import dataclasses
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 32128
RATE = 1e-3


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model and its batch."""

    sizes: dict[str, int]
    rows: int
    inputs: int
    targets: int


def _sizes(d_model: int, d_ff: int, heads: int, layers: int, d_kv: int) -> dict[str, int]:
    return {"d_model": d_model, "d_ff": d_ff, "heads": heads, "layers": layers, "d_kv": d_kv}


SHAPES = {
    "tiny": Shape(_sizes(64, 128, 4, 2, 16), rows=16, inputs=64, targets=32),
    "small": Shape(_sizes(512, 1024, 6, 8, 64), rows=8, inputs=512, targets=114),
    "base": Shape(_sizes(768, 2048, 12, 12, 64), rows=8, inputs=512, targets=114),
}


def shape_of(work: dict) -> Shape:
    """One of `SHAPES` by name, or the fields of another."""
    return SHAPES[work["shape"]] if isinstance(work["shape"], str) else Shape(**work["shape"])


SIDES = ("ours", "eager", "sdpa", "compile", "plain")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shapes", nargs="+", default=["small"], choices=SHAPES)
    parser.add_argument(
        "--sides",
        nargs="+",
        choices=[f"{side}-{dtype}" for side in SIDES for dtype in ("f32", "bf16")],
        default=[f"{side}-{dtype}" for side in SIDES[:3] for dtype in ("f32", "bf16")],
    )
    parser.add_argument("--threads", nargs="+", default=["all"], help="1, 2, ... or all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1, help="steps of each round")
    parser.add_argument("--compare-steps", type=int, default=50)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help="size of it")
    parser.add_argument("--peak-size", type=int, default=2048, help="of the square matrices")
    parser.add_argument("--markdown", action="store_true", help="a table after the JSON lines")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


# What a child does.


def batches(work: dict, *, steps: int) -> list[dict[str, np.ndarray]]:
    """The batches of the first steps, the same on all sides."""
    shape = shape_of(work)
    random = np.random.default_rng(0)
    made = []
    for _ in range(steps):
        made.append(
            {
                name: random.integers(2, work["vocabulary"], (shape.rows, length)).astype(np.int32)
                for name, length in (("inputs", shape.inputs), ("targets", shape.targets))
            }
        )
    return made


def our_model(work: dict) -> Any:
    """The config of our model, with attention and unrolling "auto"."""
    from t5x_lite.models.t5 import T5Config

    sizes = shape_of(work).sizes
    return T5Config(
        vocab_size=work["vocabulary"],
        d_model=sizes["d_model"],
        d_kv=sizes["d_kv"],
        d_ff=sizes["d_ff"],
        num_heads=sizes["heads"],
        num_encoder_layers=sizes["layers"],
        num_decoder_layers=sizes["layers"],
        dropout_rate=work["dropout"],
    )


def write_weights(work: dict) -> None:
    """Our initial weights under transformers' names, as a file of both sides."""
    import jax

    from t5x_lite.core import trees
    from t5x_lite.interop.hf import model_pieces
    from t5x_lite.nn.slots import init

    config = our_model(work)
    params = jax.jit(lambda key: init(lambda rngs: config.build(rngs=rngs), key))(jax.random.key(0))
    ours = {path: np.asarray(leaf) for path, leaf in trees.flatten(params).items()}
    pieces = model_pieces(config)[1]
    np.savez(work["weights"], **{p.name: p.to_theirs(p.of(ours[p.path])) for p in pieces})


def our_step(work: dict) -> Callable[[dict[str, np.ndarray]], float]:
    """A function of a batch that trains on it and gives its loss."""
    import jax
    import jax.numpy as jnp

    from t5x_lite.core.sharding import MeshConfig, make_mesh, put_batch
    from t5x_lite.core.trees import unflatten
    from t5x_lite.interop.hf import model_pieces
    from t5x_lite.nn.slots import bind, cast, shapes
    from t5x_lite.objectives.learner import Bound
    from t5x_lite.objectives.likelihood import Seq2Seq
    from t5x_lite.optim.config import Adafactor, Constant
    from t5x_lite.optim.partial import Update
    from t5x_lite.train.step import TrainState, make_train_step, state_shardings

    dtype = jnp.dtype("bfloat16" if work["dtype"] == "bf16" else "float32")
    kind = jax.devices()[0].device_kind
    facts = {"dtype": dtype.name, "length": shape_of(work).inputs, "one_text_rows": False}
    model, _ = our_model(work).with_choices(kind, **facts)
    graphdef, abstract, axes = shapes(lambda rngs: Bound(model, Seq2Seq(z_loss=0.0), rngs=rngs))
    optimizer = Adafactor(schedule=Constant(value=RATE), min_dim_size_to_factor=1)
    built, mesh = optimizer.build(axes), make_mesh(MeshConfig(), devices=jax.devices()[:1])
    layout = state_shardings(mesh, axes, optimizer.state_axes(axes, abstract))

    def loss(params: Any, batch: Any, key: Any) -> Any:
        return bind(graphdef, cast(params, dtype))(
            batch, key=key if work["dropout"] else None, phase=None
        )

    our_shapes, pieces = model_pieces(model)
    arrays = {path: np.empty(shape, np.float32) for path, shape in our_shapes.items()}
    with np.load(work["weights"]) as weights:
        for piece in pieces:
            piece.of(arrays[piece.path])[...] = piece.to_ours(weights[piece.name])
    params = {"model": unflatten({path: jnp.array(a) for path, a in arrays.items()})}
    if "objective" in abstract:
        params["objective"] = {}
    state = TrainState(jnp.int32(0), params, built.init(params))
    state = jax.device_put(state, layout)
    update = Update(loss, built, optimizer.schedule.build())
    step = make_train_step([update], mesh=mesh, layout=layout, seed=0)
    kept = [state]

    def run(batch: dict[str, np.ndarray]) -> float:
        rows = {
            "encoder_input_tokens": batch["inputs"],
            "decoder_input_tokens": np.pad(batch["targets"][:, :-1], ((0, 0), (1, 0))),
            "decoder_target_tokens": batch["targets"],
            "decoder_loss_weights": np.ones_like(batch["targets"]),
        }
        with jax.set_mesh(mesh):
            kept[0], metrics = step(kept[0], put_batch(rows, mesh))
        return float(metrics["loss"])

    return run


def plain_jax_step(work: dict) -> Callable[[dict[str, np.ndarray]], float]:
    """As `our_step`, in plain JAX."""
    from plain_t5 import plain_step

    sizes = shape_of(work).sizes
    with np.load(work["weights"]) as weights:
        return plain_step(
            weights,
            heads=sizes["heads"],
            layers=sizes["layers"],
            dtype="bfloat16" if work["dtype"] == "bf16" else "float32",
            rate=RATE,
        )


def their_step(work: dict) -> Callable[[dict[str, np.ndarray]], float]:
    """As `our_step`, of transformers."""
    import torch
    import transformers

    sizes = shape_of(work).sizes
    config = transformers.T5Config(
        vocab_size=work["vocabulary"],
        d_model=sizes["d_model"],
        d_kv=sizes["d_kv"],
        d_ff=sizes["d_ff"],
        num_heads=sizes["heads"],
        num_layers=sizes["layers"],
        num_decoder_layers=sizes["layers"],
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        decoder_start_token_id=0,
        dropout_rate=work["dropout"],
        use_cache=False,
    )
    config._attn_implementation = "eager" if work["side"] == "eager" else "sdpa"
    model = transformers.T5ForConditionalGeneration(config).train()
    # Version 5 makes the output layer the embedding whatever its config says.
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    with np.load(work["weights"]) as weights:
        tensors = {name: torch.from_numpy(weights[name].copy()) for name in weights.files}
    found = model.load_state_dict(tensors, strict=False)
    left = [name for name in found.missing_keys if "embed_tokens" not in name]
    if left or found.unexpected_keys:
        raise SystemExit(f"transformers' names differ: {left} {found.unexpected_keys}")
    optimizer = transformers.Adafactor(
        model.parameters(), lr=RATE, relative_step=False, scale_parameter=True, warmup_init=False
    )
    call = torch.compile(model) if work["side"] == "compile" else model

    def run(batch: dict[str, np.ndarray]) -> float:
        inputs, targets = (torch.from_numpy(batch[n]).long() for n in ("inputs", "targets"))
        with torch.autocast("cpu", torch.bfloat16, enabled=work["dtype"] == "bf16"):
            loss = call(
                input_ids=inputs, attention_mask=torch.ones_like(inputs), labels=targets
            ).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return run


def our_peak(size: int, dtype: str) -> float:
    """Seconds of the best of a few products of square matrices."""
    import jax
    import jax.numpy as jnp

    one = jnp.ones((size, size), jnp.bfloat16 if dtype == "bf16" else jnp.float32)
    multiply = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32))
    return best_time(lambda: multiply(one, one).block_until_ready())


def their_peak(size: int, dtype: str) -> float:
    import torch

    one = torch.ones((size, size), dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)
    return best_time(lambda: torch.matmul(one, one))


def best_time(run: Callable[[], Any]) -> float:
    run()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def child(work: dict) -> None:
    """Answers the parent's lines, until it closes the pipe."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    os.sched_setaffinity(0, work["cores"])
    jax_side = work["side"] in ("ours", "plain", "weights")
    if jax_side:
        os.environ["JAX_PLATFORMS"] = "cpu"
        from phases import jax_phases

        from t5x_lite.core.accelerators import keep_freed_memory
        from t5x_lite.core.devices import use_compilation_cache, within_memory

        keep_freed_memory()
        use_compilation_cache(work.get("cache", ""))
    else:
        import torch

        torch.set_num_threads(len(work["cores"]))
        torch.set_flush_denormal(True)
        torch.manual_seed(0)
    if work["side"] == "weights":
        write_weights(work)
        return
    steps = {"ours": our_step, "plain": plain_jax_step}
    run, phases = steps.get(work["side"], their_step)(work), {}
    if jax_side:
        run, phases = within_memory(run), jax_phases()
    first = batches(work, steps=work["compare_steps"])
    for line in sys.stdin:
        asked = json.loads(line)
        start, cpu = time.perf_counter(), time.process_time()
        if asked["do"] == "compare":
            losses = [run(first[0])]
            answer = {
                "first_seconds": time.perf_counter() - start,
                "first_cpu_seconds": time.process_time() - cpu,
                "phases": dict(phases),
                "losses": losses + [run(batch) for batch in first[1:]],
            }
        elif asked["do"] == "time":
            for _ in range(work["steps"]):
                run(first[-1])
            answer = {
                "seconds": (time.perf_counter() - start) / work["steps"],
                "cpu_seconds": (time.process_time() - cpu) / work["steps"],
            }
        else:
            peak = (our_peak if jax_side else their_peak)(work["peak_size"], work["dtype"])
            # Before the product's own buffers would count.
            answer = {"peak": 2 * work["peak_size"] ** 3 / peak}
        answer["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(answer), file=answers, flush=True)


# What the parent does.


class Side:
    """A child process of one side."""

    def __init__(self, work: dict):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--child", json.dumps(work)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, what: str) -> dict:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps({"do": what}), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a side ended with exit code {self.process.wait()}")
        return json.loads(line)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def step_flops(work: dict) -> int:
    shape = shape_of(work)
    row = {"encoder_input_tokens": (shape.inputs,), "decoder_target_tokens": (shape.targets,)}
    return 3 * shape.rows * our_model(work).forward_flops(row)


def measure(options: argparse.Namespace, name: str, cores: list[int], weights: Path) -> list[dict]:
    """The results of all sides at one shape and one number of cores."""
    common = {
        "shape": name,
        "cores": cores,
        "weights": str(weights),
        **{n: getattr(options, n) for n in ("dropout", "vocabulary", "steps", "compare_steps")},
        "peak_size": options.peak_size,
    }
    made = Side({**common, "side": "weights", "dtype": "f32"}).process
    if made.wait():
        raise SystemExit("the weights were not made")
    sides = {}
    if options.dropout and any(each.startswith("plain") for each in options.sides):
        raise SystemExit("the plain sides have no dropout")
    for each in options.sides:
        side, dtype = each.split("-")
        sides[each] = Side({**common, "side": side, "dtype": dtype})
    compared = {each: side.ask("compare") for each, side in sides.items()}
    timed: dict[str, list[dict]] = {each: [] for each in sides}
    for _ in range(options.rounds):
        for each, side in sides.items():
            timed[each].append(side.ask("time"))
    peaks = {each: side.ask("peak")["peak"] for each, side in sides.items()}
    for side in sides.values():
        side.end()
    flops, shape = step_flops(common), SHAPES[name]
    wanted = np.array(compared[min(sides, key=lambda each: each.endswith("bf16"))]["losses"])
    results = []
    for each, answers in timed.items():
        seconds = [answer["seconds"] for answer in answers]
        median, dtype = statistics.median(seconds), each.split("-")[1]
        peak = max(peaks[other] for other in sides if other.endswith(f"-{dtype}"))
        losses = np.array(compared[each]["losses"])
        result = {
            "device": platform.processor() or platform.machine(),
            "threads": len(cores),
            "shape": name,
            "side": each,
            "rows": shape.rows,
            "inputs_length": shape.inputs,
            "targets_length": shape.targets,
            "dropout": options.dropout,
            "step_seconds": round(median, 4),
            "seconds": [round(value, 4) for value in seconds],
            "cpu_seconds": round(statistics.median(a["cpu_seconds"] for a in answers), 4),
            "tokens_per_second": round(shape.rows * (shape.inputs + shape.targets) / median, 1),
            "gflops_per_second": round(flops / median / 1e9, 1),
            "peak_gflops_per_second": round(peak / 1e9, 1),
            "mfu": round(flops / median / peak, 3),
            "compile_seconds": round(max(0.0, compared[each]["first_seconds"] - median), 2),
            "peak_mib": round(answers[-1]["peak_mib"]),
            "first_loss": round(float(losses[0]), 5),
            "last_loss": round(float(losses[-1]), 5),
            "compared_steps": len(losses),
            "loss_difference": float(f"{np.max(np.abs(losses / wanted - 1)):.2e}"),
        }
        results.append(result)
        print(json.dumps(result), flush=True)
    return results


def print_table(results: list[dict]) -> None:
    print(
        "\n| shape | threads | side | s/step | tokens/s | MFU | compile s | peak MiB | loss |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    names = ("shape", "threads", "side", "step_seconds", "tokens_per_second", "mfu")
    names += ("compile_seconds", "peak_mib", "last_loss")
    for result in results:
        print("| " + " | ".join(str(result[name]) for name in names) + " |")


def main() -> None:
    options = parse()
    if options.child:
        child(json.loads(options.child))
        return
    available = sorted(os.sched_getaffinity(0))
    results = []
    with tempfile.TemporaryDirectory() as directory:
        for name in options.shapes:
            for threads in options.threads:
                count = len(available) if threads == "all" else int(threads)
                weights = Path(directory) / f"{name}.npz"
                results += measure(options, name, available[:count], weights)
    if options.markdown:
        print_table(results)


if __name__ == "__main__":
    main()
