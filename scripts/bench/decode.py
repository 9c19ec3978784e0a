"""Tokens a second of greedy and beam search, beside transformers in the same run.

    python scripts/bench/decode.py [--rounds 3] [--threads 1] [--dtypes f32 bf16] [--markdown]

T5 1.1 small, random weights, the same on both sides; in bfloat16 both hold their weights in it, and
choose other tokens now and then. Both are made to say --length tokens
(there is no EOS), so that they do the same work. Rounds are interleaved and the first execution of
each side is not timed: it compiles ours and lays its weights out, once for all calls.
transformers' own initialisation of the output layer makes denormals, which are slow: it is
initialised as T5X does it, and denormals are flushed. One JSON line for each search; "equal_tokens"
is the part of the tokens on which both sides agree. "cpu_ratio" is the ratio of CPU seconds: with
--threads 1 it tells on a busy machine too.
"""

import argparse
import copy
import functools
import itertools
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="cores for both sides; all that there are")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--inputs-length", type=int, default=128)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--dtypes", nargs="+", default=["f32"], choices=["f32", "bf16"])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--markdown", action="store_true", help="a table after the JSON lines")
    return parser.parse_args()


def make_peer() -> Any:
    """A T5 1.1 small of transformers with random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    config = transformers.T5Config(
        vocab_size=32128,
        d_model=512,
        d_kv=64,
        d_ff=1024,
        num_heads=6,
        num_layers=8,
        num_decoder_layers=8,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    head = torch.randn(config.vocab_size, config.d_model) * config.d_model**-0.5
    model.lm_head.weight = torch.nn.Parameter(head)
    model.generation_config.eos_token_id = None
    return model


def copy_weights(peer: Any) -> tuple[Any, Any]:
    """Our model's structure and the peer's weights in our layout."""
    import jax.numpy as jnp

    from t5x_lite.core.trees import unflatten
    from t5x_lite.interop.hf import model_pieces
    from t5x_lite.models.published import t5_1_1_small
    from t5x_lite.nn.slots import shapes

    config = t5_1_1_small(unroll=True)
    graphdef, _, _ = shapes(lambda rngs: config.build(rngs=rngs))
    our_shapes, pieces = model_pieces(config)
    arrays = {path: np.empty(shape, np.float32) for path, shape in our_shapes.items()}
    weights = peer.state_dict()
    for piece in pieces:
        piece.of(arrays[piece.path])[...] = piece.to_ours(weights[piece.name].numpy())
    return graphdef, unflatten({path: jnp.array(array) for path, array in arrays.items()})


def our_search(
    graphdef: Any, params: Any, inputs: np.ndarray, *, num_beams: int, length: int, dtype: str
) -> Callable[[], np.ndarray]:
    import jax
    import jax.numpy as jnp

    from t5x_lite.decoding.generate import decode
    from t5x_lite.decoding.sampling import Decoding
    from t5x_lite.decoding.search import Preparation
    from t5x_lite.nn.slots import bind, cast

    precision = jnp.bfloat16 if dtype == "bf16" else jnp.float32
    prepare = Preparation(lambda params: bind(graphdef, cast(params, precision)))
    no_eos = int(params["token_embedding"]["table"].shape[0])
    decoding = Decoding(
        max_decode_length=length, num_beams=num_beams, length_rule="hf", eos_id=no_eos
    )

    search = jax.jit(functools.partial(decode, decoding=decoding))
    return lambda: np.asarray(search(prepare(params), inputs)[0])[:, 0]


def their_search(
    peer: Any, inputs: np.ndarray, *, num_beams: int, length: int, dtype: str
) -> Callable[[], np.ndarray]:
    import torch

    if dtype == "bf16":
        peer = copy.deepcopy(peer).to(torch.bfloat16)
    tokens = torch.from_numpy(inputs).long()

    def search() -> np.ndarray:
        with torch.inference_mode():
            said = peer.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                num_beams=num_beams,
                max_new_tokens=length,
                do_sample=False,
            )
        return said[:, 1:].numpy()

    return search


def measure(
    searches: dict[str, Callable[[], np.ndarray]], *, rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]], float]:
    """Seconds of each side's rounds, their CPU seconds, and how many of the tokens are equal."""
    ours, theirs = [search() for search in searches.values()]
    seconds: dict[str, list[float]] = {name: [] for name in searches}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in searches}
    for _ in range(rounds):
        for name, search in searches.items():
            start, cpu_start = time.perf_counter(), time.process_time()
            search()
            seconds[name].append(time.perf_counter() - start)
            cpu_seconds[name].append(time.process_time() - cpu_start)
    return seconds, cpu_seconds, float(np.mean(ours == theirs))


def median_ratio(seconds: dict[str, list[float]]) -> float:
    """How many times as long transformers took."""
    ours, theirs = [statistics.median(values) for values in seconds.values()]
    return round(theirs / ours, 2)


def main() -> None:
    options = parse()
    if options.threads:
        cores = sorted(os.sched_getaffinity(0))[: options.threads]
        os.sched_setaffinity(0, cores)
    import jax
    import torch
    import transformers

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    peer = make_peer()
    graphdef, params = copy_weights(peer)
    shape = (options.batch_size, options.inputs_length)
    inputs = np.random.default_rng(0).integers(2, 32000, size=shape).astype(np.int32)
    num_tokens = options.batch_size * options.length
    results = []
    for num_beams, dtype in itertools.product(options.beams, options.dtypes):
        work = {"num_beams": num_beams, "length": options.length, "dtype": dtype}
        seconds, cpu_seconds, equal = measure(
            {
                "t5x_lite": our_search(graphdef, params, inputs, **work),
                "transformers": their_search(peer, inputs, **work),
            },
            rounds=options.rounds,
        )
        result = {
            "device": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "search": "greedy" if num_beams == 1 else f"beam {num_beams}",
            "dtype": dtype,
            "batch_size": options.batch_size,
            "inputs_length": options.inputs_length,
            "new_tokens": options.length,
            "rounds": options.rounds,
            "tokens_per_second": {
                name: round(num_tokens / statistics.median(values), 1)
                for name, values in seconds.items()
            },
            "seconds": {n: [round(v, 3) for v in values] for n, values in seconds.items()},
            "ratio": median_ratio(seconds),
            "cpu_ratio": median_ratio(cpu_seconds),
            "equal_tokens": round(equal, 4),
            "versions": {
                module.__name__: module.__version__ for module in (jax, torch, transformers)
            },
        }
        results.append(result)
        print(json.dumps(result), flush=True)
    if options.markdown:
        print_table(results)


def print_table(results: list[dict]) -> None:
    print("\n| search | t5x_lite, tokens/s | transformers, tokens/s | ratio |\n|---|---|---|---|")
    for result in results:
        ours, theirs = result["tokens_per_second"].values()
        print(f"| {result['search']}, {result['dtype']} | {ours} | {theirs} | {result['ratio']} |")


if __name__ == "__main__":
    main()
