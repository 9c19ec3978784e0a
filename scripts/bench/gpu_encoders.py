"""Steps of BERT, retrieval, RetroMAE, Condenser and LoRA on one accelerator, from a bare checkout.

    scripts/bench/gpu.sh encoders                  # BERT and T5 1.1 base in bf16
    scripts/bench/gpu.sh encoders --only cached recompute
    scripts/bench/gpu.sh encoders --dry-run        # tiny, on CPU

    mlm         128 rows of 512 tokens, BERT's masked language model
    condenser   1,024 rows of 128 tokens, as configs/pretrain/condenser_base.py
    retromae    256 rows of 512 tokens, as configs/pretrain/retromae_base.py
    whole       128 pairs of 128 and 128 tokens, at once
    cached      1,024 such pairs in parts of 128 texts; the rows of all parts are kept
    recompute   the same by differentiating through the loop of parts
    full        T5 1.1 base, 64 rows of 512 / 114 tokens, AdamW, everything trains
    lora        the same with LoRA of rank 8; the frozen base is stored in bfloat16

Random tokens without padding, no dropout. Each has a process of its own, so that its peak memory is
its own; none begins after --budget seconds, and one that would run past it is ended. One JSON line
each: seconds of a step when steps follow each other without waiting, tokens/s, MFU against the
datasheet's dense bf16 peak (forward FLOPs of the model and its heads times three; LoRA's times two,
since its base has no gradient of its weights), compile time, peak memory, losses.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import gpu
import numpy as np

KINDS = ("mlm", "condenser", "retromae", "cached", "recompute", "whole", "full", "lora")
TINY = {"vocab_size": 128, "d_model": 16, "d_ff": 32, "num_heads": 2}
ROWS = {
    "mlm": 128,
    "condenser": 1024,
    "retromae": 256,
    "cached": 1024,
    "recompute": 1024,
    "whole": 128,
}
LENGTH = {"mlm": 512, "retromae": 512}
PAIRS = ("cached", "recompute", "whole")
PART = 128
PASSES = {"lora": 2}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--steps", type=int, default=10, help="timed steps, after two others")
    parser.add_argument("--remat", default="none", help="of BERT's layers")
    gpu.add_running(parser)
    parser.add_argument("--budget", type=float, default=300.0, help="seconds for everything")
    parser.add_argument("--dry-run", action="store_true", help="tiny, on CPU")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    return parser.parse_args()


def model_of(work: dict) -> Any:
    """The config of the model that trains."""
    from t5x_lite.models.encoder import BertConfig
    from t5x_lite.models.published import bert_base

    if work["kind"] in ("full", "lora"):
        size = "tiny" if work["tiny"] else "base"
        wanted = {name: work[name] for name in ("attention", "unroll")}
        wanted |= {name: work[name] for name in ("dtype", "lengths")}
        return gpu.model_of({"size": size, "remat": "none", **wanted})
    fields: dict[str, Any] = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
    fields |= {"remat": work["remat"], "attention": work["attention"]}
    fields |= {"unroll": gpu.UNROLL[work["unroll"]]}
    lengths = {"dtype": work["dtype"], "lengths": [work["length"]]}
    if work["tiny"]:
        return gpu.as_run(BertConfig(**TINY, num_layers=2, max_positions=32, **fields), lengths)
    return gpu.as_run(bert_base(**fields), lengths)


def objective_of(kind: str, *, tiny: bool) -> Any:
    """The objective."""
    from t5x_lite.objectives.contrastive import Contrastive
    from t5x_lite.objectives.likelihood import Seq2Seq
    from t5x_lite.objectives.masked_lm import MaskedLM
    from t5x_lite.objectives.retromae import Condenser, RetroMAE

    if kind == "mlm":
        return MaskedLM(mask_id=103)
    if kind == "condenser":
        return Condenser(mask_id=103, head_layers=2, skip_from=1 if tiny else 6)
    if kind == "retromae":
        return RetroMAE(mask_id=103)
    if kind in PAIRS:
        return Contrastive(temperature=0.05, pooling="cls")
    return Seq2Seq()


def batch_of(work: dict, *, vocabulary: int) -> dict[str, np.ndarray]:
    """Rows of random tokens."""
    kind, rows, length = work["kind"], work["rows"], work["length"]
    if kind in ("full", "lora"):
        return gpu.random_rows(rows=rows, lengths=work["lengths"], vocabulary=vocabulary)
    random = np.random.default_rng(0)
    tokens = random.integers(104, vocabulary, size=(2, rows, length)).astype(np.int32)
    tokens[..., 0], tokens[..., -1] = 101, 102
    there = np.ones((rows, length), np.int32)
    if kind in PAIRS:
        return {
            "query_tokens": tokens[0],
            "query_segment_ids": there,
            "passage_tokens": tokens[1][:, None],
            "passage_segment_ids": there[:, None],
        }
    places = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    return {
        "encoder_input_tokens": tokens[0],
        "encoder_word_ids": np.where(tokens[0] > 103, places, 0),
        "encoder_segment_ids": there,
        "encoder_positions": places,
    }


def learner_of(work: dict, model: Any, objective: Any) -> Any:
    from t5x_lite.adapters.lora import Lora
    from t5x_lite.objectives.learner import Learner
    from t5x_lite.optim.config import AdamW, Constant

    return Learner.of(
        model,
        objective,
        adapters=(Lora(rank=8),) if work["kind"] == "lora" else (),
        optimizer=AdamW(schedule=Constant(value=1e-4), clip_norm=1.0),
        dtype=work["dtype"],
    )


def step(work: dict) -> dict[str, Any]:
    """What a step of a kind costs."""
    import jax
    import jax.numpy as jnp

    from t5x_lite.core import trees
    from t5x_lite.core.sharding import MeshConfig, Parts, make_mesh, put_batch
    from t5x_lite.optim.partial import joint_optimizer
    from t5x_lite.train.step import TrainState, make_train_step, state_shardings

    kind = work["kind"]
    model, objective = model_of(work), objective_of(kind, tiny=work["tiny"])
    learner = learner_of(work, model, objective)
    updates = learner.updates()
    optimizer = joint_optimizer(updates)
    mesh = make_mesh(MeshConfig(), devices=jax.devices()[:1])
    layout = state_shardings(mesh, learner.axes, learner.optimizer_axes())

    def init(key: Any) -> TrainState:
        flat = trees.flatten(learner.init(key))
        if kind == "lora":
            frozen = {p: a for p, a in flat.items() if learner.holds_still(p)}
            flat |= {path: array.astype(jnp.bfloat16) for path, array in frozen.items()}
        params = trees.unflatten(flat)
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    host = batch_of(work, vocabulary=model.vocab_size)
    parts = Parts()
    if kind in ("cached", "recompute"):
        parts = Parts(count=max(1, work["rows"] // work["part"]), mode=kind)
    train = make_train_step(updates, mesh=mesh, layout=layout, seed=0, microbatches=parts)
    with jax.set_mesh(mesh):
        state = jax.jit(init, out_shardings=layout)(jax.random.key(0))
        parameters = trees.count_parameters(state.params)
        batch = put_batch(host, mesh)
        start = time.perf_counter()
        compiled = train.lower(state, batch).compile()
        compiling = time.perf_counter() - start
        losses = []
        for _ in range(2):
            state, metrics = compiled(state, batch)
            losses.append(float(metrics["loss"]))
        start = time.perf_counter()
        for _ in range(work["steps"]):
            state, metrics = compiled(state, batch)
        losses.append(float(jax.block_until_ready((state, metrics))[1]["loss"]))
        seconds = (time.perf_counter() - start) / work["steps"]
    found = {
        "parameters": parameters,
        "parts": parts.count,
        "step_seconds": round(seconds, 5),
        "compile_seconds": round(compiling, 1),
        "temporaries_mib": round(compiled.memory_analysis().temp_size_in_bytes / 2**20),
        "losses": [round(loss, 4) for loss in losses],
    }
    tokens = [name for name in host if name.endswith("tokens") and "decoder_input" not in name]
    found["tokens_per_second"] = round(sum(host[name].size for name in tokens) / seconds)
    row = objective.forward_flops(model, {name: host[name].shape[1:] for name in tokens})
    if row is not None:
        found["flops"] = PASSES.get(kind, 3) * work["rows"] * row
        found["flops_per_second"] = round(found["flops"] / seconds, -6)
    return found


gpu.MEASUREMENTS |= {"step": step}


def works(options: argparse.Namespace) -> Iterator[dict]:
    """What is measured, in order."""
    for kind in options.only:
        work = {
            "measures": "step",
            "kind": kind,
            "rows": ROWS.get(kind, 64),
            "length": LENGTH.get(kind, 128),
            "lengths": [512, 114],
            "part": PART,
            "steps": options.steps,
            "dtype": "float32" if options.dry_run else "bfloat16",
            "remat": options.remat,
            "attention": options.attention,
            "unroll": options.unroll,
            "tiny": options.dry_run,
        }
        if options.dry_run:
            work |= {"rows": 8, "length": 16, "lengths": [16, 8], "part": 4, "steps": 2}
        yield work


def main() -> None:
    options = parse()
    if options.work:
        print(json.dumps(gpu.measure(json.loads(options.work))), flush=True)
        return
    if options.dry_run:
        gpu.quick_cpu()
    end, failed = time.monotonic() + options.budget, False
    for work in works(options):
        while True:
            left = end - time.monotonic()
            if left <= 0:
                line = {**work, "error": "not begun: the budget is spent"}
                break
            line = gpu.in_child(work, seconds=left, script=__file__)
            if "RESOURCE_EXHAUSTED" not in line.get("error", "") or work["rows"] == 1:
                break
            print(json.dumps(line), flush=True)
            work = {**work, "rows": work["rows"] // 2}
        failed = failed or "error" in line
        print(json.dumps(line), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
