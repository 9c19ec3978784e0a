"""A contrastive batch of 1,024 pairs: gradient caching here, and in sentence-transformers.

    python scripts/bench/contrastive.py                # both, each in a process of its own
    python scripts/bench/contrastive.py --only ours --steps 1

BERT of 6 layers, d 384, random weights, 1,024 queries and passages of 128 tokens, parts of 32
texts, float32, AdamW, [CLS], cosines. Ours is the train step with --microbatch-mode cached (or
recompute); theirs is CachedMultipleNegativesRankingLoss with mini_batch_size 32, backward and an
AdamW step of torch. Both see the same tokens and the same dropout rate. Each prints one JSON line:
seconds of each step after the first, and the peak of the process's memory.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

VOCABULARY, LAYERS, WIDTH, HEADS = 30_522, 6, 384, 12


def rows(pairs: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of queries and of passages."""
    rng = np.random.default_rng(0)
    queries, passages = (rng.integers(1000, VOCABULARY, (pairs, length)) for _ in range(2))
    return queries.astype(np.int32), passages.astype(np.int32)


def ours(options: argparse.Namespace) -> dict[str, object]:
    """The train step on a batch in parts."""
    from t5x_lite.core.accelerators import keep_freed_memory

    keep_freed_memory()  # as the command does
    import jax

    from t5x_lite.core.sharding import MeshConfig, Parts, make_mesh
    from t5x_lite.models.encoder import BertConfig
    from t5x_lite.objectives.contrastive import Contrastive
    from t5x_lite.objectives.learner import Learner
    from t5x_lite.optim.config import AdamW, Constant
    from t5x_lite.optim.partial import joint_optimizer
    from t5x_lite.train.step import init_state, make_train_step, state_shardings

    model = BertConfig(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_ff=4 * WIDTH,
        num_heads=HEADS,
        num_layers=LAYERS,
        token_types=2,
        max_positions=512,
    )
    model, choices = model.with_choices(  # as the command does
        jax.default_backend(), dtype="float32", length=options.length, one_text_rows=True
    )
    optimizer = AdamW(schedule=Constant(value=1e-5))
    learner = Learner.of(model, Contrastive(temperature=0.05, pooling="cls"), optimizer=optimizer)
    updates, mesh = learner.updates(), make_mesh(MeshConfig())
    layout = state_shardings(mesh, learner.axes, learner.optimizer_axes())
    state = init_state(learner.init, joint_optimizer(updates), layout, seed=0)
    parts = Parts(count=options.pairs // options.part, mode=options.mode)
    step = make_train_step(updates, mesh=mesh, layout=layout, seed=0, microbatches=parts)
    queries, passages = rows(options.pairs, options.length)
    batch = {
        "query_tokens": queries,
        "query_segment_ids": np.ones_like(queries),
        "passage_tokens": passages[:, None],
        "passage_segment_ids": np.ones_like(passages)[:, None],
    }
    start = time.perf_counter()
    compiled = step.lower(state, batch).compile()
    compiling = time.perf_counter() - start
    seconds, losses = [], []
    for _ in range(options.steps):
        start = time.perf_counter()
        state, metrics = compiled(state, batch)
        losses.append(float(metrics["loss"]))
        seconds.append(time.perf_counter() - start)
    return {
        "side": "t5x_lite",
        "mode": options.mode,
        "device": jax.devices()[0].device_kind,
        "choices": choices,
        "compile_seconds": round(compiling, 1),
        "temporary_mib": round(compiled.memory_analysis().temp_size_in_bytes / 2**20),
        "seconds": [round(s, 2) for s in seconds],
        "losses": losses,
    }


def theirs(options: argparse.Namespace) -> dict[str, object]:
    """sentence-transformers' loss with cached gradients."""
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer, models
    from sentence_transformers.losses import CachedMultipleNegativesRankingLoss

    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_attention_heads=HEADS,
        num_hidden_layers=LAYERS,
    )
    encoder = transformers.BertModel(config, add_pooling_layer=False)

    class Encoder(torch.nn.Module):
        """The states of a batch of tokens, as a module of sentence-transformers."""

        def __init__(self) -> None:
            super().__init__()
            self.auto_model = encoder

        def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            """Adds the states."""
            found = self.auto_model(
                input_ids=features["input_ids"], attention_mask=features["attention_mask"]
            )
            return {**features, "token_embeddings": found.last_hidden_state}

    model = SentenceTransformer(
        modules=[Encoder(), models.Pooling(WIDTH, pooling_mode="cls")], device="cpu"
    )
    loss = CachedMultipleNegativesRankingLoss(
        model, scale=20.0, mini_batch_size=options.part, show_progress_bar=False
    )
    features = [
        {
            "input_ids": torch.from_numpy(tokens).long(),
            "attention_mask": torch.ones(tokens.shape, dtype=torch.long),
        }
        for tokens in rows(options.pairs, options.length)
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    model.train()
    seconds, losses = [], []
    for _ in range(options.steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        value = loss([dict(each) for each in features], None)
        value.backward()
        optimizer.step()
        losses.append(float(value))
        seconds.append(time.perf_counter() - start)
    return {
        "side": "sentence-transformers",
        "threads": torch.get_num_threads(),
        "seconds": [round(s, 2) for s in seconds],
        "losses": losses,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=("ours", "theirs"))
    parser.add_argument("--mode", choices=("cached", "recompute"), default="cached")
    parser.add_argument("--pairs", type=int, default=1024)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--part", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2, help="0 compiles ours alone")
    options = parser.parse_args()
    if options.only is None:
        for side in ("ours", "theirs"):
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--only", side], check=True)
        return
    found = (ours if options.only == "ours" else theirs)(options)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    shape = {"pairs": options.pairs, "length": options.length, "part": options.part}
    print(json.dumps({**found, **shape, "peak_gib": round(peak, 2)}), flush=True)


if __name__ == "__main__":
    main()
