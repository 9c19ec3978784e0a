"""The steps of gpu.py and gpu_encoders.py in PyTorch, by transformers, on one accelerator.

    scripts/bench/gpu.sh peers                       # compiled, bfloat16 autocast
    scripts/bench/gpu.sh peers --only mlm --no-compile
    scripts/bench/gpu.sh peers --dry-run             # tiny, on CPU

    t5       T5 1.1 base, 128 rows of 512 / 114 tokens
    mlm      BERT base, 128 rows of 512 tokens, scaled_dot_product_attention
    cached   BERT base, 1,024 pairs of 128 tokens in parts of 128 texts: gradient caching as in
             sentence-transformers' CachedMultipleNegativesRankingLoss
    decode   T5 1.1 base, greedy, 64 rows of 512 tokens, 64 tokens out

Random tokens without padding, no dropout, AdamW (fused), weights in float32. A JSON line each; MFU
counts the FLOPs that ours counts.
"""

import argparse
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import gpu
import gpu_encoders

KINDS = ("t5", "mlm", "cached", "decode")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--steps", type=int, default=10, help="timed steps, after three others")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds for everything")
    parser.add_argument("--dry-run", action="store_true", help="tiny, on CPU")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    return parser.parse_args()


def library(name: str) -> Any:
    """A peer, whose types are not checked."""
    return importlib.import_module(name)


def t5_model(work: dict) -> Any:
    transformers = library("transformers")
    sizes = {"d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12}
    if work["tiny"]:
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(
        vocab_size=64 if work["tiny"] else 32128,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        **sizes,
    )
    return transformers.T5ForConditionalGeneration(config)


def bert_config(work: dict) -> Any:
    config = library("transformers").BertConfig
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if work["tiny"]:
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
        return config(vocab_size=128, num_hidden_layers=2, **sizes, **rates)
    return config(**rates)


def t5_step(work: dict, device: str) -> tuple[Any, Callable[[], Any]]:
    torch = library("torch")
    model = t5_model(work).to(device)
    size = model.config.vocab_size
    inputs, targets = (torch.randint(2, size, (work["rows"], n)) for n in work["lengths"])
    batch = {"input_ids": inputs.to(device), "labels": targets.to(device)}
    run = torch.compile(model) if work["compile"] else model
    return model, lambda: run(**batch).loss.backward()


def mlm_step(work: dict, device: str) -> tuple[Any, Callable[[], Any]]:
    torch = library("torch")
    model = (
        library("transformers")
        .BertForMaskedLM._from_config(bert_config(work), attn_implementation="sdpa")
        .to(device)
    )
    shape = (work["rows"], work["length"])
    tokens = torch.randint(104, model.config.vocab_size, shape).to(device)
    labels = torch.where(torch.rand(shape).to(device) < 0.15, tokens, -100)
    run = torch.compile(model) if work["compile"] else model
    return model, lambda: run(input_ids=tokens, labels=labels).loss.backward()


def cached_step(work: dict, device: str) -> tuple[Any, Callable[[], Any]]:
    torch = library("torch")
    config = bert_config(work)
    model = (
        library("transformers")
        .BertModel._from_config(config, attn_implementation="sdpa")
        .to(device)
    )
    run = torch.compile(model) if work["compile"] else model
    shape = (2 * work["rows"], work["length"])
    parts = torch.randint(104, config.vocab_size, shape).to(device).split(work["part"])

    def vectors(tokens: Any) -> Any:
        hidden = run(input_ids=tokens).last_hidden_state[:, 0].float()
        return torch.nn.functional.normalize(hidden, dim=-1)

    def step() -> None:
        with torch.no_grad():
            cache = torch.cat([vectors(part) for part in parts])
        cache.requires_grad_()
        asked, shown = cache.split(work["rows"])
        labels = torch.arange(work["rows"], device=device)
        torch.nn.functional.cross_entropy(asked @ shown.T / 0.05, labels).backward()
        for part, gradient in zip(parts, cache.grad.split(work["part"]), strict=True):
            vectors(part).backward(gradient)

    return model, step


STEPS = {"t5": t5_step, "mlm": mlm_step, "cached": cached_step}


def train(work: dict) -> dict[str, Any]:
    """What a step of a kind costs."""
    torch = library("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    model, gradients = STEPS[work["kind"]](work, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")

    def step() -> None:
        with torch.autocast(device, dtype=torch.bfloat16):
            gradients()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    start = time.perf_counter()
    for _ in range(3):
        step()
    wait()
    begun = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(work["steps"]):
        step()
    wait()
    seconds = (time.perf_counter() - start) / work["steps"]
    flops = flops_of(work)
    tokens = sum(work["lengths"]) if work["kind"] == "t5" else work["length"]
    texts = 2 if work["kind"] == "cached" else 1
    found = {
        "step_seconds": round(seconds, 5),
        "tokens_per_second": round(texts * work["rows"] * tokens / seconds),
        "first_steps_seconds": round(begun, 1),
        "flops_per_second": round(flops / seconds, -6),
    }
    if device == "cuda":
        found["peak_mib"] = round(torch.cuda.max_memory_allocated() / 2**20)
    return found


def flops_of(work: dict) -> int:
    """The FLOPs of a step as our scripts count them: three forward passes."""
    if work["kind"] == "t5":
        model = gpu.model_of({**work, "size": "tiny" if work["tiny"] else "base"})
        inputs, targets = work["lengths"]
        shapes = {"encoder_input_tokens": (inputs,), "decoder_target_tokens": (targets,)}
        return 3 * work["rows"] * model.forward_flops(shapes)
    model = gpu_encoders.model_of(work)
    objective = gpu_encoders.objective_of(work["kind"], tiny=work["tiny"])
    batch = gpu_encoders.batch_of({**work, "rows": 1}, vocabulary=model.vocab_size)
    shapes = {name: value.shape[1:] for name, value in batch.items() if name.endswith("tokens")}
    return 3 * work["rows"] * (objective.forward_flops(model, shapes) or 0)


def decode(work: dict) -> dict[str, Any]:
    """Greedy decoding by generate(), with its key and value cache."""
    torch = library("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = t5_model(work).to(device, torch.bfloat16).eval()
    tokens = torch.randint(2, model.config.vocab_size, (work["rows"], work["lengths"][0]))
    tokens, num = tokens.to(device), work["new_tokens"]
    sizes = {"max_new_tokens": num, "min_new_tokens": num, "do_sample": False}
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        with torch.inference_mode():
            model.generate(tokens, **sizes)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    return {"seconds": median, "tokens_per_second": round(work["rows"] * num / median)}


def measure(work: dict) -> dict[str, Any]:
    torch, transformers = library("torch"), library("transformers")
    from t5x_lite.core.accelerators import chip

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    line = {**work, "device": device, "torch": torch.__version__}
    line["transformers"] = transformers.__version__
    try:
        line |= decode(work) if work["kind"] == "decode" else train(work)
    except (RuntimeError, torch.OutOfMemoryError) as error:
        line["error"] = str(error).splitlines()[0][:200]
    peak = chip(device).peak
    if peak is not None and "flops_per_second" in line:
        line["mfu"] = round(line["flops_per_second"] / peak, 3)
    return line


def main() -> None:
    options = parse()
    os.environ["JAX_PLATFORMS"] = "cpu"  # FLOPs are counted by ours, and PyTorch has the device.
    if options.work:
        print(json.dumps(measure(json.loads(options.work))), flush=True)
        return
    if options.dry_run:
        gpu.quick_cpu()
    end, failed = time.monotonic() + options.budget, False
    for kind in options.only:
        work = {"kind": kind, "rows": {"cached": 1024, "decode": 64}.get(kind, 128), "part": 128}
        work |= {"length": 128 if kind == "cached" else 512, "lengths": [512, 114]}
        work |= {"steps": options.steps, "tiny": options.dry_run, "new_tokens": 64}
        work |= {"compile": not (options.no_compile or options.dry_run), "dtype": "bfloat16"}
        # How ours are run, which the count of FLOPs does not depend on.
        work |= {"attention": "plain", "unroll": "no", "remat": "none", "dropout": 0.0}
        if options.dry_run:
            work |= {"rows": 4, "length": 16, "lengths": [16, 8], "part": 4, "steps": 2}
            work |= {"new_tokens": 4}
        left = end - time.monotonic()
        line = {**work, "error": "not begun: the budget is spent"}
        if left > 0:
            line = gpu.in_child(work, seconds=left, script=__file__)
        failed = failed or "error" in line
        print(json.dumps(line), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
