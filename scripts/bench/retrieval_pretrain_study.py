"""E1, E2 and E3: Condenser and coCondenser beside MLM and RetroMAE, at equal steps, on one CPU.

    python scripts/bench/retrieval_pretrain_study.py --prose DIR --beir CRANFIELD --output WORK
    python scripts/bench/retrieval_pretrain_study.py ... --all --seeds 3      # every arm, 3 seeds

Text: passages of the novels of DIR and the texts of Cranfield without their titles; no query is
read. A WordPiece is trained on just that. One shared masked language model first has short rows,
each from a position of its own, so that all positions are trained; its last third has whole rows.
From it each arm makes the same number of steps on the same batches, and then all have one
fine-tuning: a sentence of a novel -> the rest of its passage, InfoNCE of [CLS].

Measured, before and after the fine-tuning, by [CLS] and by the mean of all states:

    known item   held-out sentences of novels, each against the held-out passages: MRR@10, with the
                 paired difference from MLM over the queries and its standard error (bootstrap)
    Cranfield    nDCG@10, zero-shot
    attention    by layer: the entropy of [CLS]'s attention as a share of the largest, and what the
                 other tokens pay to [CLS]
    mechanism    a Condenser's head loss with its own late [CLS], and with that of another row

Controls: BM25, random weights, the shared MLM. Falsifier of E1: a Condenser whose head has the late
[CLS] of another row; if it is as good, the gain is not what the paper says it is. E2: coCondenser
from the Condenser, equal documents in batches of 32, 128 (and 512), by gradient caching; uniformity
log E exp(-2 |x - y|^2) of unit vectors of held-out passages. E3 (--wrong-positives, --small-batch):
the same fine-tuning where a share of the queries has another query's passage, and with as many
pairs in small batches; coCondenser's paper claims that it loses less by both than MLM.

Design: the plan of the encoders' review (in the domain, one vocabulary, no re-warming, documents
that are read, paired queries). WORK keeps the weights and figures of every arm under its name: what
is there is not made again, and a killed arm begins anew. The tables are printed at the end.
"""

import argparse
import dataclasses
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from retrieval_pretrain_report import report, report_robustness, slug
from retrieval_pretrain_texts import (
    SHORT,
    SPECIAL,
    bm25,
    cranfield_ndcg,
    prepare,
    reciprocal_ranks,
    with_wrong,
)

from t5x_lite import layouts
from t5x_lite.core import trees
from t5x_lite.core.sharding import MeshConfig, make_mesh, put_batch
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens
from t5x_lite.inference.text_encoder import Embedder
from t5x_lite.layouts.base import KEY
from t5x_lite.models.encoder import BertConfig
from t5x_lite.objectives.base import Objective
from t5x_lite.objectives.contrastive import Contrastive
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.objectives.retromae import CoCondenser, Condenser, CondenserLoss, RetroMAE
from t5x_lite.optim.config import AdamW, Linear
from t5x_lite.train.step import init_state, make_train_step, state_shardings

MASK = SPECIAL.index("[MASK]")
PILOT = ("MLM", "RetroMAE", "Condenser", "Condenser, other rows' [CLS]")
ROOT = "shared MLM"
Example = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtherRows(Condenser):
    """The falsifier: the head has the late [CLS] state of another row of the batch."""

    def build(self, model: Any, *, rngs: nnx.Rngs) -> "OtherRowsLoss":
        return OtherRowsLoss(self, self.checked(model), rngs=rngs)


class OtherRowsLoss(CondenserLoss):
    """Condenser's sums with the rows' [CLS] states moved on by one row."""

    def summaries(self, late: Any, documents: Any) -> Any:
        return jnp.roll(super().summaries(late, documents), 1, axis=0)


def objectives(layers: int) -> dict[str, Objective]:
    """Every arm of E1."""
    found: dict[str, Objective] = {
        "MLM": MaskedLM(mask_id=MASK, whole_word=True),
        "RetroMAE": RetroMAE(mask_id=MASK, query="normalised"),
        "Condenser": Condenser(mask_id=MASK),
        "Condenser, no late loss": Condenser(mask_id=MASK, late_mlm=False),
        "Condenser, other rows' [CLS]": OtherRows(mask_id=MASK),
        "Condenser, 1 head layer": Condenser(mask_id=MASK, head_layers=1),
        "Condenser, 4 head layers": Condenser(mask_id=MASK, head_layers=4),
    }
    others = (skip for skip in range(layers + 1) if skip != layers // 2)
    return found | {f"Condenser, skip {s}": Condenser(mask_id=MASK, skip_from=s) for s in others}


# Training.


class Study:
    """All arms and where they are."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.output = options, Path(options.output)
        jax.config.update("jax_compilation_cache_dir", str(self.output / "programs"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        self.texts, vocabulary = prepare(options)
        self.tokens = encoder_tokens(vocabulary)
        self.model = BertConfig(
            vocab_size=len(self.tokens.kinds),
            d_model=options.width,
            d_ff=4 * options.width,
            num_heads=4,
            num_layers=options.layers,
            max_positions=options.length,
            initializer_stddev=options.width**-0.5 * 0.7,
            dropout_rate=0.0,
            attention_dropout_rate=0.0,
        )
        self.mesh = make_mesh(MeshConfig(), devices=jax.devices()[:1])

    def batches(self, kind: str, size: int, *, seed: int, length: int) -> Iterator[Example]:
        """Batches of one kind; a function of the seed, so that arms share them."""
        kind, _, wrong = kind.partition(", wrong ")
        pool: Sequence[Any] = {
            "rows": self.texts.passages,
            "spans": self.texts.documents,
            "pairs": with_wrong(self.texts.pairs, share=float(wrong or 0)),
        }[kind]
        rows, order = np.arange(size), []
        for epoch in itertools.count():
            order += np.random.default_rng((seed, epoch)).permutation(len(pool)).tolist()
            while len(order) >= size:
                chosen, order = order[:size], order[size:]
                yield self.laid_out(kind, chosen, pool, rows, length, (seed, epoch))

    def laid_out(
        self,
        kind: str,
        chosen: Sequence[int],
        pool: Sequence[Any],
        rows: np.ndarray,
        length: int,
        draw: tuple[int, int],
    ) -> Example:
        layout: layouts.Layout = layouts.Encoder()
        if kind == "rows":
            sep = pool[0][-1:]
            found = [pool[i] for i in chosen]
            cut = [x if len(x) <= length else np.append(x[: length - 1], sep) for x in found]
            examples = [{"inputs": x.astype(np.int32)} for x in cut]
        elif kind == "spans":
            layout = layouts.Spans()
            key = (np.array([*draw, i], np.int64) for i in chosen)
            examples = [{"spans": pool[i], KEY: k} for i, k in zip(chosen, key, strict=True)]
        else:
            layout, none = layouts.Groups(), np.zeros(0, np.int32)
            key = np.zeros(3, np.int64)
            examples = [
                {"query": pool[i][0], "positives": pool[i][1], "negatives": none, KEY: key}
                for i in chosen
            ]
        lengths = layout.lengths(inputs=SHORT if kind == "pairs" else length, targets=length)
        batch = layout.lay_out(
            examples, rows, num_rows=len(rows), lengths=lengths, pack=False, tokens=self.tokens
        )
        if kind == "rows" and length < self.options.length:  # from a position of its own
            rng = np.random.default_rng((*draw, chosen[0]))
            offset = rng.integers(0, self.options.length - length + 1, (len(rows), 1))
            batch["encoder_positions"] = batch["encoder_positions"] + offset.astype(np.int32)
        return batch

    def train(
        self,
        name: str,
        objective: Objective,
        kind: str,
        *,
        start: str | None,
        steps: int,
        size: int,
        peak: float,
        seed: int,
        length: int | None = None,
        parts: int = 1,
    ) -> None:
        """Trains an arm, unless it is there."""
        path = self.output / "weights" / f"{name}.npz"
        if path.exists():
            return
        rate = Linear(peak=peak, warmup_steps=max(1, steps // 5), total_steps=steps + 2)
        learner = self.learner(objective, AdamW(schedule=rate, b2=0.98, eps=1e-6, clip_norm=1.0))
        updates = learner.updates()
        layout = state_shardings(self.mesh, learner.axes, learner.optimizer_axes())
        state = init_state(learner.init, updates[0].optimizer, layout, seed=seed)
        if start is not None:
            known = self.weights(start)
            flat = trees.flatten(state.params)
            params = trees.unflatten({p: jnp.asarray(known.get(p, x)) for p, x in flat.items()})
            state = dataclasses.replace(state, params=params)
        step = make_train_step(
            updates, mesh=self.mesh, layout=layout, seed=seed, microbatches=parts
        )
        metrics, begun, logs = {}, time.monotonic(), []
        batches = self.batches(kind, size, seed=seed, length=length or self.options.length)
        for number, batch in zip(range(steps), batches, strict=False):
            state, metrics = step(state, put_batch(batch, self.mesh))
            if number == 1:
                begun = time.monotonic()
            if number % max(1, steps // 5) == 0 or number == steps - 1:
                logs.append({k: round(float(v), 4) for k, v in metrics.items()})
                print(name, number, {k: logs[-1][k] for k in sorted(logs[-1])}, flush=True)
        seconds = (time.monotonic() - begun) / max(1, steps - 2)
        self.save("figures", name, {"seconds_a_step": seconds, "steps": steps, "log": logs})
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.npz")
        flat = trees.flatten(jax.device_get(state.params))
        np.savez(part, **{p.replace("/", "|"): x for p, x in flat.items()})
        part.rename(path)

    def learner(self, objective: Objective, optimizer: Any = None) -> Learner:
        return Learner.of(self.model, objective, optimizer=optimizer)

    def weights(self, name: str) -> Mapping[str, np.ndarray]:
        with np.load(self.output / "weights" / f"{name}.npz") as file:
            return {path.replace("|", "/"): file[path] for path in file.files}

    def save(self, folder: str, name: str, content: Any) -> None:
        path = self.output / folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".part").write_text(json.dumps(content))
        path.with_suffix(".part").rename(path)

    def measured(self, name: str, make: Callable[[], Any]) -> Any:
        """A measurement, made unless it is there."""
        path = self.output / "measures" / f"{name}.json"
        if not path.exists():
            print("measure", name, flush=True)
            self.save("measures", name, make())
        return json.loads(path.read_text())

    # Measures.

    def params(self, name: str, learner: Learner) -> Any:
        known = self.weights(name)
        paths = trees.flatten(learner.shapes)
        return trees.unflatten({path: jnp.asarray(known[path]) for path in paths})

    def vectors(self, name: str, pooling: Any) -> dict[str, Any]:
        """The measures of an encoder by one pooling."""
        learner = self.learner(Contrastive(pooling=pooling))
        embedder = Embedder(
            learner.bind_model,
            batch_size=64,
            pooling=pooling,
            normalize=True,
            max_length=self.options.length,
        )
        params, texts = self.params(name, learner), self.texts

        def of(rows: Sequence[np.ndarray]) -> np.ndarray:
            return embedder.run(params, rows)

        passages = of(texts.candidates)
        known_item = reciprocal_ranks(of(texts.queries) @ passages.T)
        documents, queries, judged = texts.cranfield
        ndcg = cranfield_ndcg(of(queries) @ of(documents).T, judged)
        products = passages[:1000] @ passages[:1000].T
        distances = 2.0 - 2.0 * products[np.triu_indices(len(products), 1)]
        return {
            "known_item": known_item.tolist(),
            "cranfield": ndcg.tolist(),
            "uniformity": float(np.log(np.mean(np.exp(-2.0 * distances)))),
        }

    def bm25(self) -> dict[str, Any]:
        texts, (documents, queries, judged) = self.texts, self.texts.cranfield
        known_item = reciprocal_ranks(bm25(texts.candidates, texts.queries))
        ndcg = cranfield_ndcg(bm25(documents, queries), judged)
        return {"known_item": known_item.tolist(), "cranfield": ndcg.tolist(), "uniformity": 0.0}

    def attention(self, name: str) -> list[tuple[float, float]]:
        """By layer: the relative entropy of [CLS]'s attention, and what others pay to [CLS]."""
        learner = self.learner(Contrastive())
        params = self.params(name, learner)
        whole = [i for i, x in enumerate(self.texts.candidates) if len(x) == self.options.length]
        rows = jnp.asarray(np.stack([self.texts.candidates[i] for i in whole[:128]]))
        heads, size = self.model.num_heads, self.model.d_model // self.model.num_heads

        @jax.jit
        def run(params: Any) -> list[tuple[Any, Any]]:
            model: Any = learner.bind(params).model
            x, mask = model.start(rows)
            found = []
            for number in range(self.model.num_layers):
                layer = jax.tree.map(lambda leaf, n=number: leaf[n], params["model"]["layers"])
                of = layer["attention"]
                query, key = (
                    (jnp.einsum("BTD,DM->BTM", x, of[n]["kernel"].reshape(x.shape[-1], -1))
                     + of[n]["bias"].reshape(-1)).reshape(*x.shape[:2], heads, size)
                    for n in ("query", "key")
                )  # fmt: skip
                logits = jnp.einsum("BTHK,BSHK->BHTS", query, key) / math.sqrt(size)
                weights = jax.nn.softmax(logits, axis=-1)
                own = weights[:, :, 0]
                entropy = -jnp.sum(own * jnp.log(own + 1e-9), axis=-1) / math.log(x.shape[1])
                found.append((jnp.mean(entropy), jnp.mean(weights[:, :, 1:, 0])))
                x = model.apply_layers(x, mask=mask, part=(number, number + 1))
            return found

        return [(float(a), float(b)) for a, b in run(params)]

    def mechanism(self, name: str, objective: Condenser) -> tuple[float, float]:
        """The head's loss on held-out passages, with the own late [CLS] and with another row's."""
        fields = {f.name: getattr(objective, f.name) for f in dataclasses.fields(Condenser)}
        found = []
        rows = np.arange(256)
        held = self.laid_out(
            "rows", rows.tolist(), self.texts.candidates, rows, self.options.length, (0, 0)
        )
        for config in (Condenser(**fields), OtherRows(**fields)):
            learner = self.learner(config)
            loss = jax.jit(learner.whole_loss)(
                self.params(name, learner), put_batch(held, self.mesh)
            )
            total, weight, _ = loss.terms["head"]
            found.append(float(total / weight))
        return found[0], found[1]


def run(options: argparse.Namespace) -> None:
    study, o = Study(options), options
    short = MaskedLM(mask_id=MASK)
    study.train(
        *("short", short, "rows"),
        start=None,
        steps=o.short_steps,
        size=4 * o.rows,
        peak=2e-3,
        seed=0,
        length=SHORT,
    )
    study.train(
        *("root", MaskedLM(mask_id=MASK, whole_word=True), "rows"),
        start="short",
        steps=o.long_steps,
        size=o.rows,
        peak=6e-4,
        seed=1,
    )
    arms = objectives(o.layers)
    names = list(arms) if o.all else list(PILOT)
    tables: dict[str, list[str]] = {}
    for seed in range(o.seeds):
        study.train(
            f"random-{seed}", short, "rows", start=None, steps=0, size=8, peak=1e-3, seed=seed
        )
        made = {"random weights": f"random-{seed}", ROOT: "root"}
        for name in names:
            made[name] = f"{slug(name)}-{seed}"
            study.train(
                *(made[name], arms[name], "rows"),
                start="root",
                steps=o.steps,
                size=o.rows,
                peak=5e-4,
                seed=100 + seed,
            )
        for size in o.contrastive_batches:
            made[f"coCondenser, {size}"] = f"cocondenser-{size}-{seed}"
            study.train(
                *(f"cocondenser-{size}-{seed}", CoCondenser(mask_id=MASK), "spans"),
                start=made["Condenser"],
                steps=max(1, o.contrastive_documents // size),
                size=size,
                peak=3e-4,
                seed=200 + seed,
                parts=max(1, size // o.part),
            )
        for name, source in made.items():
            tuned = f"tuned-{source}-{seed}" if source == "root" else f"tuned-{source}"
            study.train(
                *(tuned, Contrastive(pooling="cls"), "pairs"),
                start=source,
                steps=o.tuning_steps,
                size=o.pairs_rows,
                peak=3e-4,
                seed=300 + seed,
            )
            tables.setdefault(name, []).extend((source, tuned))
    report(study, tables, arms)
    if o.wrong_positives:
        report_robustness(study, tables)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    for name in ("prose", "beir", "output"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument(
        "--all", action="store_true", help="every skip, and heads of 1 and 4 layers"
    )
    numbers = {
        "seeds": 1, "width": 128, "layers": 4, "length": 64, "vocabulary-size": 4096, "rows": 32,
        "passages": 40_000, "documents": 8_000, "pairs": 20_000, "queries": 1_000,
        "candidates": 4_000, "short-steps": 800, "long-steps": 300, "steps": 200,
        "tuning-steps": 60, "pairs-rows": 128, "contrastive-documents": 3_072, "part": 32,
        "small-batch": 8,
    }  # fmt: skip
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument(
        "--wrong-positives", type=float, nargs="*", default=[], help="0 0.2 0.4: E3"
    )
    parser.add_argument("--contrastive-batches", type=int, nargs="*", default=[32, 128])
    run(parser.parse_args())


if __name__ == "__main__":
    main()
