"""Fine-tunes and compares pretrained encoders on one accelerator, from a bare checkout.

    python scripts/bench/gpu_study.py tokens --corpus CORPUS --vocabulary VOCABULARY --output FILE
    scripts/bench/gpu.sh study labels --data FILE --init PIECES --output RESULTS --budget 150
    scripts/bench/gpu.sh study retrieval --data FILE --init PIECES --output RESULTS --budget 300
    python scripts/bench/gpu_study.py report --results RESULTS
    python scripts/bench/gpu_study.py plot --results RESULTS --output FOLDER
    python scripts/bench/gpu_study.py probe --texts TEXTS.jsonl --vectors A.npy B.npy

PIECES is what `gpu_pretrain.py train` wrote, CORPUS what corpus.py made. The studies need jax,
flax, optax and orbax only, and run on a CPU too.

    labels      sections of packages from 100, 1,000, 10,000 and all labels: PIECES beside random
                weights. The rate of each arm and number of labels is chosen on the validation
                split, on the first seed; each seed has a subset of its own, which both arms share.
    retrieval   from PIECES, equal steps of masked language modelling, RetroMAE, Condenser, a
                Condenser whose head has another row's [CLS], and SimCSE; then short to long
                descriptions and terms to glosses, zero-shot and after tuning on pairs

    probe       a linear classifier on vectors of `t5x-lite embed`: cheap enough for a CPU. TEXTS
                has {"text", "label"}; its last --tests lines are the test split

A study writes a JSON line for each run, and stops after --budget seconds with what it has: the
first runs answer the main question. `report` prints the tables, with intervals of a bootstrap over
seeds and test examples, paired by example.
"""

import argparse
import base64
import concurrent.futures
import dataclasses
import functools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gpu
import gpu_pretrain
import numpy as np

SPLITS = ("train", "validation", "test")
LENGTH, QUERY = 64, 24
LABELS = {1000: 400, 100: 200, 10_000: 1200, 0: 3000}
"""Labels, 0 being all, and steps, in the order in which they run."""
RATES = (3e-4, 1e-3, 1e-4)
TASKS = ("descriptions", "terms")
PAIRS = {1000: 100, 20_000: 600}
MAIN = ("MLM", "RetroMAE", "Condenser", "SimCSE", "Condenser, other rows' [CLS]")
"""Objectives of the main question; the others are ablations."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    tokens = commands.add_parser("tokens", help="write the tokens of sections and pairs")
    tokens.add_argument("--corpus", required=True, help="folder of corpus.py")
    tokens.add_argument("--vocabulary", required=True, help="folder of a vocabulary")
    tokens.add_argument("--output", required=True, help="FILE.npz")
    for name in ("labels", "retrieval"):
        study = commands.add_parser(name, help=f"run the study of {name}")
        study.add_argument("--data", help="file of the tokens")
        study.add_argument("--init", help="folder of the pretrained pieces, or work directory")
        study.add_argument("--output", help="file of JSON lines, added to")
        study.add_argument("--budget", type=float, default=300.0, help="seconds")
        study.add_argument("--seeds", type=int, default=5 if name == "labels" else 3)
        study.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
        study.add_argument("--steps", type=int, default=2000, help="of pretraining (retrieval)")
        study.add_argument("--length", type=int, default=LENGTH, help="tokens of a text")
        study.add_argument("--rows", type=int, help="of a batch; 32 (labels) or 256 (retrieval)")
        study.add_argument("--tests", type=int, help="texts that are tested; all if not given")
        study.add_argument("--labels", type=int, nargs="+", default=list(LABELS), help="0 is all")
        study.add_argument("--rates", type=float, nargs="+", default=list(RATES))
        study.add_argument("--pairs", type=int, nargs="+", default=list(PAIRS))
        study.add_argument("--peak", type=float, default=RATES[0], help="rate of retrieval's runs")
        study.add_argument(
            "--arms", nargs="+", help="objectives of retrieval, or none; all if not given"
        )
        study.add_argument(
            "--ablations", action="store_true", help="RetroMAE's shares of masks and decoders, too"
        )
        study.add_argument("--steps-per-call", type=int, default=100)
        study.add_argument("--dry-run", action="store_true", help="tiny, on CPU")
    report = commands.add_parser("report", help="print the tables")
    report.add_argument("--results", required=True, nargs="+", help="files of JSON lines")
    report.add_argument("--reference", default="MLM", help="arm that the others are compared with")
    plot = commands.add_parser("plot", help="draw two pictures (matplotlib)")
    plot.add_argument("--results", required=True, nargs="+", help="files of JSON lines")
    plot.add_argument("--output", required=True, help="folder of the pictures")
    probe = commands.add_parser("probe", help="compare vectors by a linear classifier")
    probe.add_argument("--texts", required=True, help='JSON lines {"text", "label"}')
    probe.add_argument("--vectors", required=True, nargs=2, metavar="FILE", help="of the texts")
    probe.add_argument("--tests", type=int, default=1000, help="last lines, which are tested")
    probe.add_argument("--labels", type=int, nargs="+", default=[100, 300, 1000])
    probe.add_argument("--seeds", type=int, default=5, help="subsets of the labels")
    options = parser.parse_args(arguments)
    if "dry_run" in options and not (options.dry_run or (options.data and options.init)):
        parser.error("set --data and --init, or --dry-run")
    return options


# Where t5x_lite is installed: tokens.


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def rows_of(texts: Sequence[str], vocabulary: Any, *, length: int) -> np.ndarray:
    """Rows [N, length] of [CLS] text [SEP], truncated, uint16."""
    from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens, without_special

    special = encoder_tokens(vocabulary)
    rows = np.full((len(texts), length), special.pad_id, np.uint16)
    for row, ids in zip(rows, vocabulary.encode_batch(list(texts)), strict=True):
        inner = list(without_special(ids[: length - 2], special))
        row[: len(inner) + 2] = [special.cls_id, *inner, special.sep_id]
    return rows


def write_tokens(options: argparse.Namespace) -> None:
    """Write one .npz with all rows, and the kinds of tokens."""
    from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    vocabulary: Any = load_vocabulary(options.vocabulary)
    special = encoder_tokens(vocabulary)
    corpus, found = Path(options.corpus), {}
    info = {name: int(getattr(special, f"{name}_id")) for name in ("cls", "mask", "pad")}
    info["vocab_size"] = -(-vocabulary.size // 64) * 64
    splits = {split: lines_of(corpus / "sections" / f"{split}.jsonl") for split in SPLITS}
    names = sorted({line["label"] for line in splits["train"]})
    for split, lines in splits.items():
        known = [line for line in lines if line["label"] in names]
        found[f"sections/{split}"] = rows_of([x["text"] for x in known], vocabulary, length=LENGTH)
        found[f"labels/{split}"] = np.array([names.index(x["label"]) for x in known], np.uint8)
    for task in TASKS:
        for split in SPLITS:
            lines = lines_of(corpus / "pairs" / task / f"{split}.jsonl")
            texts = {"query": [x["query"] for x in lines], "passage": [x["pos"][0] for x in lines]}
            for side, length in (("query", QUERY), ("passage", LENGTH)):
                if split != "train" or task == "descriptions" or side == "passage":
                    rows = rows_of(texts[side], vocabulary, length=length)
                    found[f"{task}/{split}/{side}"] = rows
    found["kinds"] = np.asarray(special.kinds, np.uint8)
    found["info"] = np.frombuffer(json.dumps({**info, "sections": names}).encode(), np.uint8)
    Path(options.output).parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(options.output, **found)
    print(json.dumps({"bytes": os.path.getsize(options.output), "sections": len(names)}))


def random_data() -> dict[str, np.ndarray]:
    """Rows for a dry run: the first word of a text is its section and that of its passage."""
    random, found = np.random.default_rng(0), {}
    for split, size in zip(SPLITS, (256, 32, 48), strict=True):
        for name, length in (
            ("sections", LENGTH),
            *((f"{t}/{split}/passage", LENGTH) for t in TASKS),
        ):
            rows = random.integers(5, 64, (size, length)).astype(np.uint16)
            rows[:, 0], rows[:, 9:] = 2, 0
            found[name if "/" in name else f"{name}/{split}"] = rows
        found[f"labels/{split}"] = (found[f"sections/{split}"][:, 1] % 3).astype(np.uint8)
        for task in TASKS:
            found[f"{task}/{split}/query"] = found[f"{task}/{split}/passage"][:, :QUERY].copy()
    info = {"cls": 2, "mask": 4, "pad": 0, "vocab_size": 64, "sections": ["a", "b", "c"]}
    found["kinds"] = np.array([0] * 5 + [1] * 59, np.uint8)
    found["info"] = np.frombuffer(json.dumps(info).encode(), np.uint8)
    return found


# Runs.


class Runner:
    """Training of one objective by one program, whatever its rate, steps, seed and rows.

    Args:
      study: the data, the model and the options.
      objective: what is trained.
      batch: makes a batch of the arrays, the numbers of rows and a key.
      rows: of a batch.
    """

    def __init__(
        self, study: Any, objective: Any, batch: Callable[[Any, Any, Any], Any], *, rows: int
    ):
        import jax

        from t5x_lite.objectives.learner import Learner

        self.study, self.rows = study, rows
        self._batch = batch
        self.learner_of = functools.partial(
            Learner.of, study.model, objective, dtype=study.options.dtype
        )
        self.learner = self.learner_of()
        self._init = jax.jit(self._first)
        self.compiled: Any = None

    def lower(self, arrays: Any) -> Any:
        """The program of a call, to be compiled while others are."""
        import jax

        index = np.zeros((self.study.steps_per_call, self.rows), np.int32)
        given = (np.float32(1), np.float32(1), np.int32(0))
        state = self._init(jax.random.key(0))
        steps = jax.jit(self._scan, donate_argnums=0)
        return steps.lower(state, arrays, index, *given)

    def compile(self, arrays: Any) -> None:
        """Compile it now."""
        self.compiled = self.lower(arrays).compile()

    def _optimizer(self, peak: Any, total: Any) -> Any:
        from t5x_lite.optim.config import AdamW

        return AdamW(
            schedule=gpu_pretrain.budgeted(peak, 0.1 * total, total), clip_norm=1.0, eps=1e-6
        )

    def _first(self, key: Any) -> Any:
        import jax.numpy as jnp

        from t5x_lite.optim.partial import joint_optimizer
        from t5x_lite.train.step import TrainState

        params = self.learner.init(key)
        optimizer = joint_optimizer(self.learner_of(optimizer=self._optimizer(1.0, 1)).updates())
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    def _scan(self, state: Any, arrays: Any, index: Any, peak: Any, total: Any, seed: Any) -> Any:
        import jax

        from t5x_lite.train.step import make_train_step, state_shardings

        learner = self.learner_of(optimizer=self._optimizer(peak, total))
        layout = state_shardings(self.study.mesh, learner.axes, learner.optimizer_axes())
        train = make_train_step(learner.updates(), mesh=self.study.mesh, layout=layout, seed=seed)
        key = jax.random.fold_in(jax.random.key(seed), 2)

        def step(state: Any, rows: Any) -> tuple[Any, Any]:
            batch = self._batch(arrays, rows, jax.random.fold_in(key, state.step))
            state, metrics = train(state, batch)
            return state, metrics["loss"]

        return jax.lax.scan(step, state, index)

    def train(
        self,
        start: Mapping[str, Any],
        pool: np.ndarray,
        arrays: Any,
        *,
        steps: int,
        peak: float,
        seed: int,
    ) -> tuple[Any, float]:
        """Train on the rows of a pool; return the parameters and the last losses' mean.

        Args:
          start: parameters by path, in place of the random ones.
          pool: numbers of rows.
          arrays: on the device.
          steps: a multiple of the steps of a call is run.
          peak: learning rate.
          seed: of the order, dropout and what `start` has not.
        """
        import jax
        import jax.numpy as jnp

        from t5x_lite.core import trees

        each = self.study.steps_per_call
        calls = -(-steps // each)
        state = self._init(jax.random.key(seed))
        flat = trees.flatten(state.params)
        params = {p: jnp.array(start[p]) if p in start else leaf for p, leaf in flat.items()}
        state = dataclasses.replace(state, params=trees.unflatten(params))
        order = gpu_pretrain.orders(len(pool), self.rows, seed)
        losses: Any = None
        for _ in range(calls):
            index = pool[np.stack([next(order) for _ in range(each)])].astype(np.int32)
            given = (np.float32(peak), np.float32(calls * each), np.int32(seed))
            state, losses = self.compiled(state, arrays, index, *given)
        return state.params, float(np.mean(losses[-10:])) if calls else float("nan")


class Record:
    """The lines of a study's file, and its time."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.begun = options, time.perf_counter()
        self._done: dict[str, dict[str, Any]] = {}
        if options.output and os.path.exists(options.output):
            self._done = {line["run"]: line for line in lines_of(Path(options.output))}

    @property
    def left(self) -> float:
        """Seconds of the budget."""
        return self.options.budget - (time.perf_counter() - self.begun)

    def has(self, run: str) -> bool:
        """Whether the file has a run."""
        return run in self._done

    def record(self, run: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """The line of a run, made unless it is in the file; None if the time is over."""
        if run in self._done:
            return self._done[run]
        if self.left <= 0:
            return None
        began = time.perf_counter()
        line = {"run": run, **make()}
        line["seconds"] = round(time.perf_counter() - began, 2)
        shown = {name: value for name, value in line.items() if not isinstance(value, str | dict)}
        print(json.dumps({"run": run, **shown}), flush=True)
        if self.options.output:
            Path(self.options.output).parent.mkdir(parents=True, exist_ok=True)
            with open(self.options.output, "a") as file:
                file.write(json.dumps(line) + "\n")
        return line


def pretrained(folder: Path) -> tuple[Any, Mapping[str, Any]]:
    """The model of pieces or of a checkpoint, and its parameters by path."""
    if (folder / "config.json").exists():
        from t5x_lite.core import trees
        from t5x_lite.inference.loading import Loaded

        loaded = Loaded.from_checkpoint(str(folder), step=None)
        return loaded.experiment.model, trees.flatten(loaded.params)
    info, params = gpu_pretrain.load(folder)
    return gpu_pretrain.model_of("bert", info["size"], info["info"]["vocab_size"]), params


class Study(Record):
    """Data, model, pretrained parameters and results."""

    def __init__(self, options: argparse.Namespace):
        import jax
        import jax.numpy as jnp

        from t5x_lite.core.sharding import MeshConfig, make_mesh

        super().__init__(options)
        if options.dry_run:
            self.data, self.start = random_data(), {}
        else:
            with np.load(options.data) as file:
                self.data = {name: file[name] for name in file.files}
            self.model, params = pretrained(Path(options.init))
            self.start = {path: jnp.asarray(array) for path, array in params.items()}
        self.info = json.loads(self.data["info"].tobytes())
        if options.dry_run:
            self.model = gpu_pretrain.model_of("bert", "tiny", self.info["vocab_size"])
        self.kinds = jnp.asarray(self.data["kinds"], jnp.int32)
        self.mesh = make_mesh(MeshConfig(), devices=jax.devices()[:1])
        self.steps_per_call = 4 if options.dry_run else options.steps_per_call
        for name, rows in self.data.items():
            if rows.ndim == 2 and rows.shape[1] > options.length:  # a cut text ends in a word
                self.data[name] = rows[:, : options.length]
            if "/validation" in name or "/test" in name:
                self.data[name] = self.data[name][: options.tests]

    def device(self, name: str) -> Any:
        import jax

        return jax.device_put(self.data[name])


def padded(rows: Any, *, pad: int) -> tuple[Any, Any]:
    """int32 tokens and segment ids of rows of one text each."""
    import jax.numpy as jnp

    tokens = rows.astype(jnp.int32)
    return tokens, (tokens != pad).astype(jnp.int32)


def packed_bits(values: np.ndarray) -> str:
    """Numbers in 16 bits, as text."""
    return base64.b64encode(values.astype(np.float16).tobytes()).decode()


def unpacked(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), np.float16).astype(np.float32)


# Few labels.


def labels(study: Study) -> None:
    import jax
    import jax.numpy as jnp

    from t5x_lite.objectives.task_heads import Classify

    pad, seeds = study.info["pad"], range(study.options.seeds)
    arrays = {split: study.device(f"sections/{split}") for split in SPLITS}
    classes = {split: study.data[f"labels/{split}"].astype(np.int32) for split in SPLITS}
    given = (arrays["train"], jax.device_put(classes["train"]))

    def batch(given: Any, rows: Any, key: Any) -> Any:
        del key
        tokens, segments = padded(given[0][rows], pad=pad)
        label = given[1][rows] + 1
        both = jnp.stack([label, jnp.zeros_like(label)], axis=1)
        types = jnp.zeros_like(tokens)
        return {
            "encoder_input_tokens": tokens,
            "encoder_segment_ids": segments,
            "encoder_token_types": types,
            "labels": both,
        }

    objective = Classify(num_classes=len(study.info["sections"]))
    runner = Runner(
        study, objective, batch, rows=8 if study.options.dry_run else study.options.rows or 32
    )
    runner.compile(given)

    @jax.jit
    def logits(params: Any, rows: Any) -> Any:
        bound = runner.learner.bind(params)
        tokens, segments = padded(rows, pad=pad)
        hidden = bound.model(
            tokens, segment_ids=segments, token_types=jnp.zeros_like(tokens), key=None
        )
        return jnp.argmax(bound.heads["classifier"](hidden, key=None), axis=-1)

    def right(params: Any, split: str) -> np.ndarray:
        """Which texts of a split get their label."""
        size, rows = 256, study.data[f"sections/{split}"]
        whole = np.pad(rows, ((0, -len(rows) % size), (0, 0)), constant_values=pad)
        found = [logits(params, whole[i : i + size]) for i in range(0, len(whole), size)]
        return np.concatenate(found)[: len(rows)] == classes[split]

    train_rows = len(study.data["sections/train"])
    plan = {number: LABELS[number] for number in study.options.labels}
    if study.options.dry_run:
        plan = {32: 8, 0: 16}

    def run(init: str, number: int, rate: float, seed: int) -> Callable[[], dict[str, Any]]:
        def make() -> dict[str, Any]:
            pool = np.random.default_rng(seed).permutation(train_rows)[: number or None]
            start = study.start if init == "pretrained" else {}
            options: dict[str, Any] = {"steps": plan[number], "peak": rate, "seed": seed}
            params, loss = runner.train(start, pool, given, **options)
            hits = {split: right(params, split) for split in ("validation", "test")}
            return {
                "study": "labels", "init": init, "labels": number or train_rows, "rate": rate,
                "seed": seed, "steps": plan[number], "loss": round(loss, 4),
                **{split: round(float(found.mean()), 4) for split, found in hits.items()},
                "right": packed_bits(hits["test"]),
            }  # fmt: skip

        return make

    for number in plan:
        for init in ("pretrained", "random"):
            tried: dict[float, float] = {}
            for rate in study.options.rates:
                line = study.record(f"labels {init} {number} {rate} 0", run(init, number, rate, 0))
                if line is not None:
                    tried[rate] = line["validation"]
            for seed in seeds[1:] if tried else ():
                rate = max(tried, key=lambda rate: tried[rate])
                name = f"labels {init} {number} {rate} {seed}"
                study.record(name, run(init, number, rate, seed))


# Retrieval.


def arms(mask: int) -> dict[str, Any]:
    """The objectives that go on from the pretrained weights."""
    import jax.numpy as jnp

    from t5x_lite.objectives.contrastive import Contrastive
    from t5x_lite.objectives.masked_lm import MaskedLM
    from t5x_lite.objectives.retromae import Condenser, CondenserLoss, RetroMAE

    class OtherRowsLoss(CondenserLoss):
        def summaries(self, late: Any, documents: Any) -> Any:
            return jnp.roll(super().summaries(late, documents), 1, axis=0)

    class OtherRows(Condenser):
        """A Condenser whose head has the late [CLS] of another row."""

        def build(self, model: Any, *, rngs: Any) -> Any:
            return OtherRowsLoss(self, self.checked(model), rngs=rngs)

    retromae = functools.partial(RetroMAE, mask_id=mask, query="normalised")
    return {
        "MLM": MaskedLM(mask_id=mask, whole_word=True),
        "RetroMAE": retromae(),
        "Condenser": Condenser(mask_id=mask),
        "SimCSE": Contrastive(temperature=0.05, pooling="cls"),
        "Condenser, other rows' [CLS]": OtherRows(mask_id=mask),
        "MLM, 30 %": MaskedLM(mask_id=mask, whole_word=True, ratio=0.3),
        "Condenser, no late loss": Condenser(mask_id=mask, late_mlm=False),
        "RetroMAE, basic decoder": retromae(decoder="basic", query="raw"),
        "RetroMAE, 2 decoder layers": retromae(decoder="basic", query="raw", decoder_layers=2),
        "RetroMAE, encoder 15 %": retromae(ratio=0.15),
        "RetroMAE, encoder 50 %": retromae(ratio=0.5),
        "RetroMAE, encoder 90 %": retromae(ratio=0.9),
        "RetroMAE, decoder 15 %": retromae(decoder_ratio=0.15),
        "RetroMAE, decoder 90 %": retromae(decoder_ratio=0.9),
        "DupMAE": retromae(bag_of_words=0.1),
    }


def retrieval(study: Study) -> None:
    import jax
    import jax.numpy as jnp

    from t5x_lite.core import trees
    from t5x_lite.models.vector_heads import pool
    from t5x_lite.objectives.contrastive import Contrastive

    pad, dry = study.info["pad"], study.options.dry_run
    documents = np.concatenate([study.data[f"{task}/train/passage"] for task in TASKS])
    domain = jax.device_put(documents)

    def of_texts(domain: Any, rows: Any, key: Any = None) -> Any:
        del key  # The objectives draw their masks.
        return gpu_pretrain.bert_batch(domain[rows], info=study.info, kinds=study.kinds)

    def of_pairs(given: Any, rows: Any, key: Any = None) -> Any:
        del key
        (query, queries), (passage, passages) = (padded(x[rows], pad=pad) for x in given)
        return {
            "query_tokens": query,
            "query_segment_ids": queries,
            "passage_tokens": passage[:, None],
            "passage_segment_ids": passages[:, None],
        }

    def itself(domain: Any, rows: Any, key: Any) -> Any:
        del key
        return of_pairs((domain, domain), rows)

    learner = None

    @functools.partial(jax.jit, static_argnames="pooling")
    def encode(params: Any, rows: Any, pooling: Any) -> Any:
        assert learner is not None
        tokens, segments = padded(rows, pad=pad)
        model: Any = learner.bind(params).model
        hidden = model.encode(tokens, segment_ids=segments)
        found = pool(hidden.astype(jnp.float32), segments, pooling)
        return found / jnp.linalg.norm(found, axis=-1, keepdims=True)

    def vectors(params: Any, rows: np.ndarray, pooling: str) -> Any:
        size = 16 if dry else 256
        whole = np.pad(rows, ((0, -len(rows) % size), (0, 0)), constant_values=pad)
        whole[len(rows) :, 0] = study.info["cls"]
        found = [encode(params, whole[i : i + size], pooling) for i in range(0, len(whole), size)]
        return jnp.concatenate(found)[: len(rows)]

    def ranks(params: Any, task: str, pooling: str) -> np.ndarray:
        """Reciprocal rank of each test query's passage among all, 0 beyond 10."""
        sides = [
            vectors(params, study.data[f"{task}/test/{side}"], pooling)
            for side in ("query", "passage")
        ]
        scores = jnp.matmul(sides[0], sides[1].T, precision="highest")
        own = jnp.diagonal(scores)[:, None]
        before = np.asarray((scores >= own).sum(axis=1)) - 1  # the worst rank of equal scores
        return np.where(before < 10, 1.0 / (before + 1), 0.0)

    def measured(params: Any, name: str, tasks: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {"study": "retrieval", "arm": name}
        for task in tasks:
            for pooling in ("cls", "mean"):
                of_task = ranks(params, task, pooling)
                found[f"{task}_{pooling}_mrr"] = round(float(of_task.mean()), 4)
                found[f"{task}_{pooling}_hits"] = packed_bits(of_task)
        return found

    rows, steps = (8, 8) if dry else (study.options.rows or 256, study.options.steps)
    tuning = Runner(study, Contrastive(pooling="cls"), of_pairs, rows=8 if dry else 128)
    learner = tuning.learner
    sides = [study.device(f"descriptions/train/{side}") for side in ("query", "passage")]
    only_model = {p: x for p, x in study.start.items() if p.startswith("model/")}
    numbers = () if not study.options.seeds else (16,) if dry else tuple(study.options.pairs)

    def summaries_of(params: Any, runners: Mapping[str, Runner]) -> dict[str, float]:
        """Metrics of a Condenser with its own [CLS] states and with another row's."""
        held = np.concatenate([study.data[f"{task}/test/passage"][:512] for task in TASKS])
        found: dict[str, float] = {}
        for name in ("Condenser", "Condenser, other rows' [CLS]"):
            whole = jax.jit(runners[name].learner.whole_loss)
            batch = of_texts(jax.device_put(held), np.arange(len(held)))
            sums = whole(params, batch).metrics
            found |= {f"{name}: {n}": float(total / weight) for n, (total, weight) in sums.items()}
        return found

    def evaluated(name: str, seed: int, params: Mapping[str, Any], more: dict[str, Any]) -> None:
        """Zero-shot, and tuned on pairs."""
        start = {p: jnp.array(x) for p, x in params.items() if p.startswith("model/")}
        tree = trees.unflatten(dict(start))
        name_of = functools.partial("retrieval {} {} {}".format, name, seed)
        study.record(
            name_of("zero-shot"), lambda: {"seed": seed, **more, **measured(tree, name, TASKS)}
        )
        for number in numbers:
            study.record(name_of(number), lambda number=number: tuned(start, name, number, seed))

    def tuned(start: Mapping[str, Any], name: str, number: int, seed: int) -> dict[str, Any]:
        pool_of = np.random.default_rng(seed).permutation(len(sides[0]))[:number]
        steps = 8 if dry else PAIRS[number]
        options: dict[str, Any] = {"steps": steps, "peak": study.options.peak, "seed": seed}
        params, loss = tuning.train(start, pool_of, tuple(sides), **options)
        more = {"pairs": number, "seed": seed, "loss": round(loss, 4)}
        return {**more, **measured(params, name, TASKS)}

    def pretrain(name: str, seed: int) -> None:
        """Pretrain an arm, unless all its runs are in the file."""
        runs = [f"retrieval {name} {seed} {what}" for what in ("zero-shot", *numbers)]
        if study.left <= 0 or all(study.has(run) for run in runs):
            return
        # As many tokens as the others: each text is encoded twice.
        of_arm = steps // 2 if name == "SimCSE" else steps
        began = time.perf_counter()
        rate = 5e-5 if name == "SimCSE" else study.options.peak
        everything = np.arange(len(documents))
        given: dict[str, Any] = {"steps": of_arm, "peak": rate, "seed": seed}
        params, loss = runners[name].train(study.start, everything, domain, **given)
        seconds = round(time.perf_counter() - began, 1)
        more: dict[str, Any] = {"loss": round(loss, 4), "train_seconds": seconds}
        if name == "Condenser" and "Condenser, other rows' [CLS]" in runners:
            more["mechanism"] = summaries_of(params, runners)
        evaluated(name, seed, trees.flatten(params), more)

    key = jax.random.key(0)
    fresh = trees.flatten(tuning.learner.init(key))
    runners = {
        name: Runner(study, objective, itself if name == "SimCSE" else of_texts, rows=rows)
        for name, objective in arms(study.info["mask"]).items()
        if name in (study.options.arms or [name]) and (name in MAIN or study.options.ablations)
    }
    programs = [(runner, runner.lower(domain)) for runner in runners.values()]
    if study.options.seeds:
        programs.append((tuning, tuning.lower(tuple(sides))))
    with concurrent.futures.ThreadPoolExecutor(len(programs) or 1) as workers:
        compiled = workers.map(lambda pair: pair[1].compile(), programs)
        for (runner, _), program in zip(programs, compiled, strict=True):
            runner.compiled = program
    print(json.dumps({"compiled": len(programs), "left": round(study.left, 1)}), flush=True)
    bases = {"random weights": fresh, "pretrained": only_model or fresh}
    for seed in range(max(1, study.options.seeds)):
        for name, start in bases.items():
            evaluated(name, seed, start, {})
        for name in runners:
            pretrain(name, seed)


# Tables.


def interval(differences: np.ndarray, *, draws: int = 2000) -> tuple[float, float]:
    """95 % of the means of a bootstrap over the rows (seeds) and the columns (examples)."""
    random = np.random.default_rng(0)
    seeds, examples = differences.shape
    found = []
    for _ in range(draws):
        rows = random.integers(0, seeds, seeds)
        columns = random.integers(0, examples, examples)
        found.append(differences[rows].mean(axis=0)[columns].mean())
    return float(np.quantile(found, 0.025)), float(np.quantile(found, 0.975))


def fitted(vectors: np.ndarray, classes: np.ndarray, *, decay: float, number: int) -> np.ndarray:
    """Weights of a multinomial logistic regression with an L2 penalty."""
    from scipy.optimize import minimize

    rows, size = vectors.shape
    wanted = np.eye(number)[classes]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(size + 1, number)
        logits = vectors @ weights[:-1] + weights[-1]
        logits -= logits.max(axis=1, keepdims=True)
        chances = np.exp(logits)
        chances /= chances.sum(axis=1, keepdims=True)
        likelihood = np.log((chances * wanted).sum(axis=1) + 1e-30).mean()
        error = (chances - wanted) / rows
        gradient = np.vstack([vectors.T @ error + decay * weights[:-1], error.sum(axis=0)])
        return 0.5 * decay * (weights[:-1] ** 2).sum() - likelihood, gradient.ravel()

    start = np.zeros((size + 1) * number)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200})
    return found.x.reshape(size + 1, number)


def probed(
    vectors: np.ndarray, classes: np.ndarray, chosen: np.ndarray, tests: np.ndarray, *, number: int
) -> np.ndarray:
    """Which tests get their class, by a penalty that three parts of the chosen rows agree on."""
    mean, spread = vectors[chosen].mean(axis=0), vectors[chosen].std(axis=0) + 1e-6
    scaled, fold = (vectors - mean) / spread, np.arange(len(chosen)) % 3

    def right(train: np.ndarray, test: np.ndarray, decay: float) -> np.ndarray:
        weights = fitted(scaled[train], classes[train], decay=decay, number=number)
        return (scaled[test] @ weights[:-1] + weights[-1]).argmax(axis=1) == classes[test]

    def held(decay: float) -> int:
        parts = [(chosen[fold != part], chosen[fold == part]) for part in range(3)]
        return sum(int(right(*part, decay).sum()) for part in parts)

    return right(chosen, tests, max((1e-3, 1e-2, 1e-1, 1.0, 10.0), key=held))


def probe(options: argparse.Namespace) -> None:
    """Print the accuracies of both files, and their difference."""
    labels = [line["label"] for line in lines_of(Path(options.texts))]
    names = sorted(set(labels))
    classes = np.array([names.index(label) for label in labels])
    both = [np.load(path).astype(np.float64) for path in options.vectors]
    known = len(labels) - options.tests
    tests = np.arange(known, len(labels))
    print("| labels | first | second | difference, points |\n|---|---|---|---|")
    for size in options.labels:
        hits: list[list[np.ndarray]] = [[], []]
        for seed in range(options.seeds if size < known else 1):
            chosen = np.random.default_rng(seed).permutation(known)[:size]
            for found, vectors in zip(hits, both, strict=True):
                found.append(probed(vectors, classes, chosen, tests, number=len(names)))
        first, second = (np.stack(found).astype(np.float64) for found in hits)
        low, high = interval(first - second)
        print(
            f"| {size:,} | {100 * first.mean():.1f} | {100 * second.mean():.1f} | "
            f"{100 * (first - second).mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f}) |",
            flush=True,
        )


def report(options: argparse.Namespace) -> None:
    lines = [line for path in options.results for line in lines_of(Path(path))]
    few = [line for line in lines if line["study"] == "labels"]
    if few:
        print("| labels | pretrained | random | difference, points | rates | seeds |")
        print("|---|---|---|---|---|---|")
    for number in sorted({line["labels"] for line in few}):
        of_arm: dict[str, dict[int, np.ndarray]] = {}
        rates = []
        for init in ("pretrained", "random"):
            those = [x for x in few if x["labels"] == number and x["init"] == init]
            first = [line for line in those if line["seed"] == 0]
            if first:
                best = max(first, key=lambda line: line["validation"])["rate"]
                rates.append(f"{best:g}")
                of_arm[init] = {x["seed"]: unpacked(x["right"]) for x in those if x["rate"] == best}
        if len(of_arm) < 2:
            continue
        shared = sorted(set(of_arm["pretrained"]) & set(of_arm["random"]))
        stacks = [np.stack([of_arm[init][seed] for seed in shared]) for init in of_arm]
        low, high = interval(stacks[0] - stacks[1])
        print(
            f"| {number:,} | {100 * stacks[0].mean():.1f} | {100 * stacks[1].mean():.1f} | "
            f"{100 * (stacks[0] - stacks[1]).mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f}) "
            f"| {', '.join(rates)} | {len(shared)} |"
        )
    found = [line for line in lines if line["study"] == "retrieval"]
    reference = options.reference
    for pairs in sorted({line.get("pairs", 0) for line in found}):
        tune = f"tuned on {pairs:,} pairs" if pairs else "zero-shot"
        columns = [(task, pooling) for task in TASKS for pooling in ("cls", "mean")]
        print(f"\n{tune}: MRR@10, and the difference from {reference}\n")
        print("| arm | " + " | ".join(" ".join(column) for column in columns) + " |")
        print("|---" * (len(columns) + 1) + "|")
        here = [line for line in found if line.get("pairs", 0) == pairs]
        names = list(dict.fromkeys(line["arm"] for line in here))
        for name in names:
            cells = []
            for task, pooling in columns:
                field = f"{task}_{pooling}_hits"
                of = {
                    arm: {x.get("seed", 0): unpacked(x[field]) for x in here if x["arm"] == arm}
                    for arm in (name, reference)
                }
                shared = sorted(set(of[name]) & set(of[reference]))
                mean = np.mean([value.mean() for value in of[name].values()])
                cell = f"{100 * mean:.1f}"
                if name != reference and shared:
                    apart = np.stack([of[name][seed] - of[reference][seed] for seed in shared])
                    low, high = interval(apart)
                    cell += f" ({100 * low:+.1f} to {100 * high:+.1f})"
                cells.append(cell)
            print(f"| {name} | " + " | ".join(cells) + " |")


def plot(options: argparse.Namespace) -> None:
    """Draw accuracy over labels, and MRR@10 of each arm; the same results make the same files."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "study", "svg.fonttype": "none", "font.size": 9})
    lines = [line for path in options.results for line in lines_of(Path(path))]
    few = [line for line in lines if line["study"] == "labels"]
    figure, axis = plt.subplots(figsize=(5, 3.4), layout="constrained")
    for init in ("pretrained", "random"):
        numbers = sorted({line["labels"] for line in few})
        found = []
        for number in numbers:
            those = [x for x in few if x["labels"] == number and x["init"] == init]
            first = max((x for x in those if x["seed"] == 0), key=lambda x: x["validation"])
            found.append([100 * x["test"] for x in those if x["rate"] == first["rate"]])
        means = [float(np.mean(values)) for values in found]
        spread = [float(np.std(values)) for values in found]
        name = {"pretrained": "pretrained base", "random": "random weights"}[init]
        axis.errorbar(numbers, means, yerr=spread, marker="o", capsize=3, label=name)
    axis.set(xscale="log", xlabel="labels", ylabel="test accuracy, %", ylim=(0, 100))
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    metadata = {"Date": None, "Creator": None}
    figure.savefig(Path(options.output) / "few-labels.svg", metadata=metadata)
    found = [line for line in lines if line["study"] == "retrieval"]
    names = list(dict.fromkeys(line["arm"] for line in found))
    figure, axes = plt.subplots(1, len(TASKS), figsize=(10, 3.4), layout="constrained")
    for task, axis in zip(TASKS, axes, strict=True):
        for place, pairs in enumerate(sorted({line.get("pairs", 0) for line in found})):
            label = f"tuned on {pairs:,} pairs" if pairs else "zero-shot"
            means = []
            for name in names:
                those = [x for x in found if x["arm"] == name and x.get("pairs", 0) == pairs]
                means.append(100 * float(np.mean([x[f"{task}_cls_mrr"] for x in those])))
            axis.barh(np.arange(len(names)) + 0.27 * place, means, height=0.25, label=label)
        axis.set(yticks=np.arange(len(names)) + 0.27, xlabel="MRR@10, [CLS]")
        axis.set_yticklabels(names if task == TASKS[0] else [])
        axis.set_title(
            {"descriptions": "short to long description", "terms": "term to gloss"}[task]
        )
        axis.invert_yaxis()
        axis.grid(alpha=0.3, axis="x")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    figure.savefig(Path(options.output) / "retrieval-pretraining.svg", metadata=metadata)


def main() -> None:
    options = parse()
    if options.command == "tokens":
        return write_tokens(options)
    if options.command in ("report", "probe", "plot"):
        return {"report": report, "probe": probe, "plot": plot}[options.command](options)
    if options.dry_run:
        gpu.quick_cpu()
        options.dtype = "float32"
    import jax

    study = Study(options)
    with jax.set_mesh(study.mesh):
        {"labels": labels, "retrieval": retrieval}[options.command](study)
    return None


if __name__ == "__main__":
    main()
