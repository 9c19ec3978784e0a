"""Pretrains a small BERT or T5 1.1 on one accelerator within some seconds, from a bare checkout.

    python scripts/bench/gpu_pretrain.py vocabulary bert --corpus CORPUS --output VOCABULARY
    python scripts/bench/gpu_pretrain.py tokens bert --corpus CORPUS --vocabulary VOCABULARY \
        --output TOKENS
    scripts/bench/gpu.sh pretrain train --tokens TOKENS --output PIECES --seconds 170
    python scripts/bench/gpu_pretrain.py work-directory --pieces PIECES \
        --vocabulary VOCABULARY --output BASE
    python scripts/bench/gpu_pretrain.py plot --pieces PIECES [PIECES ...] --output curves.svg

`train` needs jax, flax, optax and orbax only; the other commands run where t5x_lite is installed.
CORPUS is what corpus.py made; BASE is a checkpoint directory for --init, predict, embed and export.

All tokens are on the device, and one call runs many steps: their rows are gathered there. BERT's
masks and T5's spans are drawn for each step. The first calls measure a step; the number of steps
and so the schedule (linear warm-up and decay) then follow from --seconds, without another compile.

`train` prints a JSON line for each evaluation: held-out loss, rate, tokens/s. Its last line has the
gates: BERT's loss must be 2.5 nats below the unigram entropy of the same tokens and rise by 1 nat
with another row's context; T5's must rise by 1 nat with another row's inputs. PIECES/pretrain.json
has these and the configs, PIECES/params-*.bin the parameters in float32.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import gzip
import json
import lzma
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpu
import numpy as np

CHUNKS = 16
PIECE_BYTES = 15 * 2**20
SAMPLE_BYTES = 30_000_000
INFO, PARAMS = "pretrain.json", "params-{:02d}.bin"
SIZES = {
    "tiny": {"d_model": 16, "d_ff": 32, "num_heads": 2, "layers": 2},
    "4x256": {"d_model": 256, "d_ff": 1024, "num_heads": 4, "layers": 4},
    "4x512": {"d_model": 512, "d_ff": 2048, "num_heads": 8, "layers": 4},
    "6x512": {"d_model": 512, "d_ff": 2048, "num_heads": 8, "layers": 6},
    "2x256": {"d_model": 256, "d_ff": 1024, "num_heads": 4, "layers": 2},
}
"""T5's layers are those of each stack."""
DEFAULT_SIZE = {"bert": "4x256", "t5": "2x256"}
PEAK = {"bert": 1e-3, "t5": 1e-2}
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
NOISE, SPAN = 0.15, 3.0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    vocabulary = commands.add_parser("vocabulary", help="train a vocabulary on a corpus")
    tokens = commands.add_parser("tokens", help="write the tokens of a corpus, compressed")
    train = commands.add_parser("train", help="pretrain within some seconds")
    checkpoint = commands.add_parser("work-directory", help="make a checkpoint of the pieces")
    for command in (vocabulary, tokens):
        command.add_argument("family", choices=list(DEFAULT_SIZE))
        command.add_argument("--corpus", required=True, help="folder of corpus.py")
    vocabulary.add_argument("--size", type=int, default=8000, help="tokens of the vocabulary")
    for command in (tokens, checkpoint):
        command.add_argument("--vocabulary", required=True, help="folder of a vocabulary")
    tokens.add_argument("--length", type=int, default=128, help="tokens of a row of BERT")
    tokens.add_argument("--max-mib", type=float, default=34.0, help="size of the files")
    train.add_argument("--tokens", help="folder of the tokens")
    train.add_argument("--size", choices=list(SIZES), help="model; 4x256 (BERT) or 2x256 (T5)")
    train.add_argument("--seconds", type=float, default=170.0, help="of training, from its start")
    train.add_argument("--steps", type=int, help="steps; follows from --seconds if not given")
    train.add_argument("--rows", type=int, default=1024, help="rows of a batch, of the longest")
    train.add_argument(
        "--phases",
        nargs="+",
        default=["128:1"],
        metavar="LENGTH:FRACTION",
        help="lengths of rows (inputs of T5) and their fraction of the time",
    )
    train.add_argument("--peak", type=float, help="learning rate; 1e-3 (BERT) or 1e-2 (T5)")
    train.add_argument("--warmup", type=int, default=600, help="steps of the warm-up")
    train.add_argument("--steps-per-call", type=int, default=50)
    train.add_argument("--evaluations", type=int, default=12)
    train.add_argument("--attention", choices=gpu.ATTENTION, default="plain")
    train.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    train.add_argument("--held-out-rows", type=int, default=2048)
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--dry-run", choices=list(DEFAULT_SIZE), help="tiny, on CPU, random tokens")
    checkpoint.add_argument("--pieces", required=True, help="folder that train wrote")
    checkpoint.add_argument("--random", action="store_true", help="random weights of its shapes")
    check = commands.add_parser("gates", help="the gates of a BERT's checkpoint, on any device")
    check.add_argument("--checkpoint", required=True, help="work directory or checkpoint")
    check.add_argument("--tokens", required=True, help="folder of the tokens of its vocabulary")
    check.add_argument("--length", type=int, default=128, help="tokens of a row")
    check.add_argument("--held-out-rows", type=int, default=1024)
    plot = commands.add_parser("plot", help="draw the held-out losses of pieces (matplotlib)")
    plot.add_argument("--pieces", required=True, nargs="+", help="folders that train wrote")
    for command in (vocabulary, tokens, train, checkpoint, plot):
        command.add_argument("--output", required=command is not train)
    options = parser.parse_args(arguments)
    if "dry_run" in options and not (options.dry_run or options.tokens):
        parser.error("set --tokens or --dry-run")
    return options


# Where t5x_lite is installed: vocabulary and tokens.


def texts_of(corpus: str, split: str) -> Iterator[str]:
    with gzip.open(Path(corpus) / split / "corpus.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def train_vocabulary(options: argparse.Namespace) -> None:
    """Train WordPiece, lower case, or SentencePiece by `t5x-lite vocab`."""
    output = Path(options.output)
    if options.family == "t5":
        with tempfile.TemporaryDirectory() as scratch:
            sample, left = Path(scratch) / "sample.txt", SAMPLE_BYTES
            with open(sample, "w", encoding="utf-8") as file:  # documents are in random order
                for text in texts_of(options.corpus, "train"):
                    left -= file.write(f"{text}\n")
                    if left <= 0:
                        break
            command = ["--input", str(sample), "--output", str(output), "--size", str(options.size)]
            subprocess.run([sys.executable, "-m", "t5x_lite", "vocab", *command], check=True)
        return
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # pyright: ignore[reportCallIssue]
    made.normalizer = normalizers.BertNormalizer(lowercase=True)  # pyright: ignore
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore
    trainer = trainers.WordPieceTrainer(
        vocab_size=options.size, special_tokens=list(SPECIAL), limit_alphabet=400
    )
    made.train_from_iterator(texts_of(options.corpus, "train"), trainer)
    names = sorted(made.get_vocab().items(), key=lambda item: item[1])
    output.mkdir(parents=True, exist_ok=True)
    (output / "vocab.txt").write_text("".join(f"{name}\n" for name, _ in names), "utf-8")
    print(json.dumps({"tokens": len(names), "file": str(output / "vocab.txt")}))


def bert_rows(texts: list[str], vocabulary: Any, *, length: int) -> np.ndarray:
    """Rows of tokens [N, length], each of one or several pieces of documents."""
    from t5x_lite.data.tasks.encoder import pieces
    from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens
    from t5x_lite.layouts.base import first_fit

    special = encoder_tokens(vocabulary)
    found: list[np.ndarray] = []
    for start in range(0, len(texts), 4096):
        some = pieces(
            texts[start : start + 4096], vocabulary=vocabulary, tokens=special, length=length
        )
        ends = [np.array([*piece, special.sep_id], np.uint16) for piece in some]
        if not ends:
            continue
        places = first_fit(np.array([[len(end)] for end in ends]), capacity=(length,))
        rows = np.full((places.max() + 1, length), special.pad_id, np.uint16)
        filled = np.zeros(len(rows), np.int64)
        for place, end in zip(places, ends, strict=True):
            rows[place, filled[place] : filled[place] + len(end)] = end
            filled[place] += len(end)
        found.append(rows)
    return np.concatenate(found)


def t5_stream(texts: list[str], vocabulary: Any) -> np.ndarray:
    """The tokens of all documents, one behind another."""
    found = []
    for start in range(0, len(texts), 4096):
        for ids in vocabulary.encode_batch(texts[start : start + 4096]):
            found.append(np.array(ids, np.uint16))
    return np.concatenate(found)


def write_tokens(options: argparse.Namespace) -> None:
    """Write train-NN.xz, validation-00.xz and tokens.json."""
    from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    vocabulary: Any = load_vocabulary(options.vocabulary)
    bert = options.family == "bert"
    make: Callable[[list[str]], np.ndarray] = functools.partial(t5_stream, vocabulary=vocabulary)
    if bert:
        make = functools.partial(bert_rows, vocabulary=vocabulary, length=options.length)
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    for old in output.glob("*.xz"):
        old.unlink()
    info: dict[str, Any] = {"family": options.family, "vocab_size": -(-vocabulary.size // 64) * 64}
    if bert:
        special = encoder_tokens(vocabulary)
        info |= {name: int(getattr(special, f"{name}_id")) for name in ("cls", "mask", "pad")}
        info |= {"length": options.length, "kinds": [int(kind) for kind in special.kinds]}
    else:
        info |= {"sentinel_start": int(vocabulary.sentinel_start), "eos": int(vocabulary.eos_id)}
    held = make(list(texts_of(options.corpus, "validation")))
    left = int(options.max_mib * 2**20) - write_chunk(output / "validation-00.xz", held)
    texts = list(texts_of(options.corpus, "train"))
    counts = np.zeros(info["vocab_size"], np.int64)
    info["train_tokens"] = 0
    # The documents are in random order, so that a prefix of the chunks is a sample of all.
    for chunk in range(CHUNKS):
        start, end = (len(texts) * part // CHUNKS for part in (chunk, chunk + 1))
        array = make(texts[start:end])
        size = write_chunk(output / f"train-{chunk:02d}.xz", array)
        if size > left:
            (output / f"train-{chunk:02d}.xz").unlink()
            if not chunk:
                raise SystemExit(
                    f"the first training file has {size / 2**20:.1f} MiB; raise --max-mib"
                )
            break
        left -= size
        counts += np.bincount(array.ravel(), minlength=len(counts))
        info["train_tokens"] += int(array.size)
        print(
            json.dumps({"chunk": chunk, "tokens": info["train_tokens"], "bytes": size}), flush=True
        )
    info["counts"] = counts.tolist()
    (output / "tokens.json").write_text(json.dumps(info))


def write_chunk(path: Path, array: np.ndarray) -> int:
    """Compress tokens; return the bytes of the file."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 1, "pb": 1}]
    content = lzma.compress(array.astype("<u2").tobytes(), filters=filters)
    path.write_bytes(content)
    return len(content)


def read_chunks(folder: str, split: str) -> np.ndarray:
    """The tokens of a split, uint16, flat."""
    paths = sorted(Path(folder).glob(f"{split}-*.xz"))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        contents = list(pool.map(lambda path: lzma.decompress(path.read_bytes()), paths))
    return np.frombuffer(b"".join(contents), "<u2")


def random_tokens(family: str) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Rows for a dry run, in which each token is followed by the one of the next number."""
    size, length = 64, 16
    starts = np.random.default_rng(0).integers(8, size, (256, 1))
    tokens = ((starts + np.arange(length) - 8) % (size - 20 - 8) + 8).astype(np.uint16)
    counts = np.bincount(tokens.ravel(), minlength=size).tolist()
    info: dict[str, Any] = {"family": family, "vocab_size": size, "counts": counts}
    if family == "bert":
        tokens[:, 0], tokens[:, -1] = 2, 3
        info |= {"cls": 2, "mask": 4, "pad": 0, "length": length}
        info |= {"kinds": [0] * 5 + [1] * (size - 5)}
    else:
        info |= {"sentinel_start": size - 1, "eos": 1}
    return info, tokens.ravel(), tokens[:64].ravel()


# Rows on the device.


def bert_batch(tokens: Any, *, info: dict[str, Any], kinds: Any) -> dict[str, Any]:
    """Features of the layout Encoder() from rows of tokens."""
    import jax
    import jax.numpy as jnp

    from t5x_lite.layouts.base import BEGINS, CONTINUES, SPECIAL

    tokens = tokens.astype(jnp.int32)
    begins, real = tokens == info["cls"], tokens != info["pad"]
    # A row that does not begin with [CLS] begins within a document.
    segments = jnp.cumsum(begins, axis=1) + (1 - begins[:, :1])
    places = jnp.arange(tokens.shape[1])
    starts = jax.lax.cummax(jnp.where(begins, places, 0), axis=1)
    kind = kinds[tokens]
    before = jnp.pad(kind[:, :-1], ((0, 0), (1, 0)), constant_values=SPECIAL)
    goes_on = (kind == CONTINUES) & ((before == BEGINS) | (before == CONTINUES))
    words = (kind != SPECIAL) & real
    return {
        "encoder_input_tokens": tokens,
        "encoder_segment_ids": segments * real,
        "encoder_positions": (places - starts) * real,
        "encoder_word_ids": jnp.cumsum(words & ~goes_on, axis=1) * words,
    }


def span_labels(shape: tuple[int, int], *, noise: int, spans: int, key: Any) -> Any:
    """Labels that rise along each row: 2 s in the kept span s, 2 s + 1 in the cut one behind it."""
    import jax
    import jax.numpy as jnp

    rows, raw = shape

    def labels(key: Any, total: int) -> Any:
        if spans == 1:
            return jnp.zeros((rows, total), jnp.int32)
        drawn = jax.random.uniform(key, (rows, total - 1))
        least = jnp.sort(drawn, axis=1)[:, spans - 2, None]
        return jnp.pad(jnp.cumsum(drawn <= least, axis=1), ((0, 0), (1, 0)))

    keys = jax.random.split(key)
    both = (2 * labels(keys[0], raw - noise), 2 * labels(keys[1], noise) + 1)
    return jnp.sort(jnp.concatenate(both, axis=1), axis=1)


def t5_batch(tokens: Any, *, info: dict[str, Any], key: Any) -> dict[str, Any]:
    """Rows of span corruption, as `data.denoising` makes them, with other random numbers."""
    import jax.numpy as jnp

    from t5x_lite.data.denoising import noise_counts

    tokens = tokens.astype(jnp.int32)
    rows, raw = tokens.shape
    noise, spans = noise_counts(raw, NOISE, mean_span_length=SPAN)

    label = span_labels((rows, raw), noise=noise, spans=spans, key=key)
    first = jnp.pad(label[:, 1:] != label[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    cut = label % 2 == 1
    marked = jnp.where(first, info["sentinel_start"] - label // 2, tokens)

    def with_sentinels(keep: Any, size: int) -> Any:
        """Tokens that are kept, and a sentinel for each of the other spans."""
        taken = keep | first
        order = jnp.argsort(~taken, axis=1, stable=True)[:, :size]
        found = jnp.take_along_axis(jnp.where(keep, tokens, marked), order, axis=1)
        return jnp.pad(found, ((0, 0), (0, 1)), constant_values=info["eos"])

    targets = with_sentinels(cut, noise + spans)
    return {
        "encoder_input_tokens": with_sentinels(~cut, raw - noise + spans),
        "decoder_input_tokens": jnp.pad(targets[:, :-1], ((0, 0), (1, 0))),
        "decoder_target_tokens": targets,
        "decoder_loss_weights": jnp.ones_like(targets),
    }


# Training.


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of the time with rows of one length.

    Attributes:
      length: of a row of BERT, or of the inputs of T5.
      fraction: of the seconds.
      raw: tokens of the text that make a row.
      rows: of a batch: shorter rows are more.
    """

    length: int
    fraction: float
    raw: int
    rows: int


def phases_of(options: argparse.Namespace, family: str) -> list[Phase]:
    from t5x_lite.data.denoising import random_spans_lengths

    pairs = [part.split(":") for part in options.phases]
    longest, found = max(int(length) for length, _ in pairs), []
    for length, fraction in ((int(length), float(fraction)) for length, fraction in pairs):
        raw = length if family == "bert" else random_spans_lengths(length, NOISE, SPAN)[0]
        found.append(Phase(length, fraction, raw, options.rows * longest // length))
    return found


def model_of(family: str, size: str, vocab_size: int, **fields: Any) -> Any:
    """The config of a size."""
    from t5x_lite.models.encoder import BertConfig
    from t5x_lite.models.t5 import T5Config

    sizes = dict(SIZES[size])
    layers = sizes.pop("layers")
    common: dict[str, Any] = {"vocab_size": vocab_size, **sizes, "unroll": True, **fields}
    if family == "bert":
        return BertConfig(num_layers=layers, token_types=2, max_positions=512, **common)
    d_kv = sizes["d_model"] // sizes["num_heads"]
    return T5Config(num_encoder_layers=layers, num_decoder_layers=layers, d_kv=d_kv, **common)


def budgeted(peak: Any, warmup: Any, total: Any) -> Any:
    """A linear warm-up and decay; all three numbers may be traced."""
    import jax.numpy as jnp

    from t5x_lite.optim.config import Schedule

    class Budgeted(Schedule):
        def build(self) -> Any:
            def rate(step: Any) -> Any:
                step = jnp.asarray(step, jnp.float32)
                left = (total - step) / jnp.maximum(total - warmup, 1)
                return peak * jnp.clip(jnp.minimum(step / jnp.maximum(warmup, 1), left), 0.0, 1.0)

            return rate

    return Budgeted()


def optimizer_of(family: str, schedule: Any) -> Any:
    from t5x_lite.optim.config import Adafactor, AdamW

    if family == "bert":
        return AdamW(schedule=schedule, b2=0.98, eps=1e-6, weight_decay=0.01, clip_norm=1.0)
    return Adafactor(schedule=schedule, momentum=0.9, clip_norm=1.0)


def objective_of(family: str, info: dict[str, Any]) -> Any:
    from t5x_lite.objectives.likelihood import Seq2Seq
    from t5x_lite.objectives.masked_lm import MaskedLM

    return MaskedLM(mask_id=info["mask"], whole_word=False) if family == "bert" else Seq2Seq()


class Trainer:
    """Steps, evaluation and gates of a family."""

    def __init__(self, options: argparse.Namespace, info: dict[str, Any]):
        import jax
        import jax.numpy as jnp

        from t5x_lite.core.sharding import MeshConfig, make_mesh
        from t5x_lite.objectives.learner import Learner

        self.options, self.info, self.family = options, info, info["family"]
        fields: dict[str, Any] = {"dropout_rate": 0.0, "attention": options.attention}
        fields |= {"attention_dropout_rate": 0.0} if self.family == "bert" else {}
        self.model = model_of(self.family, options.size, info["vocab_size"], **fields)
        self.learner_of = functools.partial(
            Learner.of, self.model, objective_of(self.family, info), dtype=options.dtype
        )
        self.peak = options.peak or PEAK[self.family]
        self.mesh = make_mesh(MeshConfig(), devices=jax.devices()[:1])
        self.kinds = jnp.asarray(info["kinds"], jnp.int32) if self.family == "bert" else None

    def batch(self, tokens: Any, key: Any) -> dict[str, Any]:
        if self.family == "bert":
            return bert_batch(tokens, info=self.info, kinds=self.kinds)
        return t5_batch(tokens, info=self.info, key=key)

    def updates(self, total: Any) -> Any:
        schedule = budgeted(self.peak, self.options.warmup, total)
        return self.learner_of(optimizer=optimizer_of(self.family, schedule)).updates()

    def first_state(self) -> Any:
        import jax
        import jax.numpy as jnp

        from t5x_lite.optim.partial import joint_optimizer
        from t5x_lite.train.step import TrainState

        learner, optimizer = self.learner_of(), joint_optimizer(self.updates(1))

        def init(key: Any) -> Any:
            params = learner.init(key)
            return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

        return jax.jit(init)(jax.random.key(self.options.seed))

    def steps(self, state: Any, tokens: Any, index: Any, total: Any) -> tuple[Any, Any]:
        """Steps on the rows of each line of `index`."""
        import jax

        from t5x_lite.train.step import make_train_step, state_shardings

        optimizer = optimizer_of(self.family, budgeted(self.peak, self.options.warmup, total))
        learner = self.learner_of(optimizer=optimizer)
        layout = state_shardings(self.mesh, learner.axes, learner.optimizer_axes())
        train = make_train_step(
            learner.updates(), mesh=self.mesh, layout=layout, seed=self.options.seed
        )
        key = jax.random.fold_in(jax.random.key(self.options.seed), 2)

        def step(state: Any, rows: Any) -> tuple[Any, Any]:
            batch = self.batch(tokens[rows], jax.random.fold_in(key, state.step))
            state, metrics = train(state, batch)
            return state, {name: metrics[name] for name in ("loss", "gradient_norm")}

        return jax.lax.scan(step, state, index)

    def held_out(self, params: Any, tokens: Any) -> dict[str, Any]:
        """Losses [parts] of rows [parts, rows, raw], with their own context or another's."""
        import jax

        learner = self.learner_of()
        of_bert = functools.partial(bert_losses, info=self.info)
        measure = of_bert if self.family == "bert" else self.t5_losses

        def part(given: tuple[Any, Any]) -> Any:
            rows, key = given
            return measure(learner, params, self.batch(rows, key), key)

        keys = jax.random.split(jax.random.key(7), len(tokens))
        return jax.lax.map(part, (tokens, keys))

    def t5_losses(self, learner: Any, params: Any, batch: Any, key: Any) -> dict[str, Any]:
        import jax.numpy as jnp

        del key
        other = {**batch}
        other["encoder_input_tokens"] = jnp.roll(batch["encoder_input_tokens"], 1, axis=0)
        losses = [learner.whole_loss(params, rows).value() for rows in (batch, other)]
        return {"loss": losses[0], "same": losses[0], "other": losses[1]}


def bert_losses(
    learner: Any, params: Any, batch: Any, key: Any, *, info: dict[str, Any]
) -> dict[str, Any]:
    """The loss; the loss where all masked tokens are [MASK]; the same in another row."""
    import jax.numpy as jnp

    from t5x_lite.objectives import masked_lm
    from t5x_lite.objectives.masked_lm import features, sums

    bound = learner.bind(params)
    model, objective = bound.model, learner.objective
    _, slots = objective.draw(
        batch, vocab_size=model.config.vocab_size, pad_id=model.config.pad_id, key=key
    )
    targets = masked_lm.at_slots(batch["encoder_input_tokens"], slots)
    unigram = jnp.log(jnp.asarray(info["counts"], jnp.float32) + 1.0)
    special = jnp.asarray(info["kinds"] + [0] * (len(unigram) - len(info["kinds"])))
    unigram = jnp.where(special > 0, unigram, -jnp.inf)
    entropy = jnp.logaddexp.reduce(unigram) - unigram[targets]
    found = {"unigram": jnp.sum(entropy * slots.used) / jnp.sum(slots.used)}
    rolled = {name: jnp.roll(rows, 1, axis=0) for name, rows in batch.items()}
    masks = jnp.full_like(targets, info["mask"])
    for name, rows in (("same", batch), ("other", rolled)):
        inputs = masked_lm.put_at_slots(rows["encoder_input_tokens"], slots, masks)
        hidden = model.masked_lm_states(inputs, **features(rows), key=None)
        logits = bound.heads["mlm"](masked_lm.at_slots(hidden, slots), model.tables()["token"])
        loss, _, weight = sums(logits, targets, slots.used)
        found[name] = loss / weight
    return {**found, "loss": learner.whole_loss(params, batch).value()}


def save(params: Any, folder: Path, info: dict[str, Any]) -> None:
    """Write the parameters in pieces, then pretrain.json."""
    from t5x_lite.core import trees

    folder.mkdir(parents=True, exist_ok=True)
    flat = {path: np.asarray(leaf, np.float32) for path, leaf in trees.flatten(params).items()}
    content = b"".join(flat[path].tobytes() for path in sorted(flat))
    for number, start in enumerate(range(0, len(content), PIECE_BYTES)):
        partial = folder / (PARAMS.format(number) + ".partial")
        partial.write_bytes(content[start : start + PIECE_BYTES])
        partial.rename(folder / PARAMS.format(number))
    shapes = {path: list(flat[path].shape) for path in sorted(flat)}
    partial = folder / f"{INFO}.partial"
    partial.write_text(json.dumps({**info, "shapes": shapes}))
    partial.rename(folder / INFO)


def load(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """pretrain.json and the parameters by path."""
    info = json.loads((folder / INFO).read_text())
    content = b"".join(path.read_bytes() for path in sorted(folder.glob("params-*.bin")))
    numbers, found, start = np.frombuffer(content, "<f4"), {}, 0
    for path, shape in info["shapes"].items():
        size = math.prod(shape)
        found[path] = numbers[start : start + size].reshape(shape)
        start += size
    if start != len(numbers):
        raise ValueError(f"{folder}: {len(numbers)} numbers, and the shapes have {start}")
    return info, found


def orders(num_rows: int, rows: int, seed: int) -> Iterator[np.ndarray]:
    """Rows of each batch: a permutation of all in each epoch."""
    left, epoch = np.zeros(0, np.int32), 0
    while True:
        while len(left) < rows:
            new = np.random.default_rng((seed, epoch)).permutation(num_rows).astype(np.int32)
            left, epoch = np.concatenate([left, new]), epoch + 1
        yield left[:rows]
        left = left[rows:]


def train(options: argparse.Namespace) -> None:
    begun = time.perf_counter()
    if options.dry_run:
        gpu.quick_cpu()
        options.size, options.rows, options.steps_per_call = options.size or "tiny", 16, 5
        options.steps, options.warmup = options.steps or 40, 5
        options.dtype, options.phases = "float32", ["8:0.5", "16:0.5"]
        options.evaluations, options.held_out_rows = 2, 16
        info, flat, held = random_tokens(options.dry_run)
    else:
        info = json.loads((Path(options.tokens) / "tokens.json").read_text())
        flat, held = (read_chunks(options.tokens, split) for split in ("train", "validation"))
        options.size = options.size or DEFAULT_SIZE[info["family"]]
    import jax

    trainer = Trainer(options, info)
    phases = phases_of(options, trainer.family)

    def say(**line: Any) -> None:
        line["seconds"] = round(time.perf_counter() - begun, 1)
        print(json.dumps(line), flush=True)

    with jax.set_mesh(trainer.mesh):
        state = jax.block_until_ready(trainer.first_state())
        arrays = {}
        for phase in phases:
            rows = flat[: len(flat) // phase.raw * phase.raw].reshape(-1, phase.raw)
            arrays[phase.raw] = jax.device_put(rows)
        raw = phases[-1].raw
        some = held[: len(held) // raw * raw].reshape(-1, raw)[: options.held_out_rows]
        if trainer.family == "bert":  # rows that are full, so that all places of another one are
            some = some[(some != info["pad"]).sum(axis=1) >= 0.9 * raw]
        size = min(256, len(some))
        tested = jax.device_put(some[: len(some) // size * size].reshape(-1, size, raw))
        count = sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(state.params))
        say(
            device=jax.devices()[0].device_kind,
            parameters=int(count),
            family=trainer.family,
            size=options.size,
            train_tokens=len(flat),
            held_out_rows=int(tested[..., 0].size),
        )
        index = [np.zeros((options.steps_per_call, phase.rows), np.int32) for phase in phases]
        while True:
            try:
                lowered = [jax.jit(trainer.held_out).lower(state.params, tested)]
                lowered += [
                    jax.jit(trainer.steps, donate_argnums=0).lower(
                        state, arrays[phase.raw], rows, np.int32(1)
                    )
                    for phase, rows in zip(phases, index, strict=True)
                ]
                with concurrent.futures.ThreadPoolExecutor(len(lowered)) as pool:
                    evaluate, *calls = pool.map(lambda program: program.compile(), lowered)
                break
            except jax.errors.JaxRuntimeError as error:
                if options.attention == "plain":
                    raise
                say(error=str(error)[:200], instead="plain attention")
                options.attention = "plain"
                trainer = Trainer(options, info)
        say(compiled=len(calls) + 1, attention=options.attention)
        order = [orders(len(arrays[p.raw]), p.rows, options.seed + p.raw) for p in phases]
        done, tokens, curve = 0, 0, []
        start = time.perf_counter()

        def call(number: int, total: int) -> float:
            """Run one call; return its seconds."""
            nonlocal state, done, tokens, last
            phase, began = phases[number], time.perf_counter()
            index = np.stack([next(order[number]) for _ in range(options.steps_per_call)])
            state, metrics = calls[number](state, arrays[phase.raw], index, np.int32(total))
            last = {name: float(value[-1]) for name, value in metrics.items()}
            done += options.steps_per_call
            tokens += index.size * phase.raw
            return time.perf_counter() - began

        last: dict[str, float] = {}
        # A first call may be slow; in the warm-up the schedule does not depend on the total much.
        far = 10**6
        each = [min(call(number, far), call(number, far)) for number in range(len(phases))]
        left = options.seconds - (time.perf_counter() - start)
        share = sum(phase.fraction for phase in phases)
        plan = [
            max(1, int(0.97 * left * phase.fraction / share / seconds))
            for phase, seconds in zip(phases, each, strict=True)
        ]
        if options.steps:
            wanted = max(len(phases), options.steps // options.steps_per_call - 2 * len(phases))
            plan = [max(1, round(wanted * phase.fraction / share)) for phase in phases]
        planned = sum(n * p.rows * p.raw for n, p in zip(plan, phases, strict=True))
        total = done + sum(plan) * options.steps_per_call
        say(
            call_seconds=[round(seconds, 4) for seconds in each],
            steps=total,
            tokens_planned=tokens + planned * options.steps_per_call,
        )

        def report() -> dict[str, Any]:
            measured = {n: float(np.mean(v)) for n, v in evaluate(state.params, tested).items()}
            line = {"step": done, "tokens": tokens, **last, "held_out": measured}
            line["train_seconds"] = round(time.perf_counter() - start, 1)
            line["tokens_per_second"] = round(tokens / line["train_seconds"])
            curve.append(line)
            say(**line)
            written = {
                "family": trainer.family,
                "size": options.size,
                "info": {n: v for n, v in info.items() if n not in ("counts", "kinds")},
                "options": vars(options),
                "steps": done,
                "total_steps": total,
                "train_tokens_seen": tokens,
                "device": jax.devices()[0].device_kind,
                "curve": curve,
                "gates": gates(trainer.family, measured),
            }
            if options.output:
                save(state.params, Path(options.output), written)
            return written["gates"]

        report()
        gate: dict[str, Any] = {}
        sequence = [number for number, calls_of in enumerate(plan) for _ in range(calls_of)]
        every = max(1, len(sequence) // options.evaluations)
        for run, number in enumerate(sequence, start=1):
            call(number, total)
            late = time.perf_counter() - start > options.seconds + 20 and not options.steps
            if run == len(sequence) or (run % every == 0 and run + every <= len(sequence)) or late:
                gate = report()
            if late:
                break
        say(gates=gate, done=done, total=total)


def gates(family: str, held_out: dict[str, float]) -> dict[str, Any]:
    """Each gate's value and whether it holds."""
    found = {"context": held_out["other"] - held_out["same"]}
    if family == "bert":
        found["below_unigram"] = held_out["unigram"] - held_out["loss"]
    needed = {"context": 1.0, "below_unigram": 2.5}
    return {
        name: {"nats": round(value, 3), "needed": needed[name], "holds": value >= needed[name]}
        for name, value in found.items()
    }


# Where t5x_lite is installed: a checkpoint.


def check_gates(options: argparse.Namespace) -> None:
    """Print the held-out losses of a BERT's checkpoint, and whether the gates hold."""
    import jax
    import jax.numpy as jnp

    from t5x_lite.inference.loading import Loaded
    from t5x_lite.objectives.learner import Learner

    info = json.loads((Path(options.tokens) / "tokens.json").read_text())
    held = read_chunks(options.tokens, "validation")
    rows = held[: len(held) // options.length * options.length].reshape(-1, options.length)
    full = rows[(rows != info["pad"]).sum(axis=1) >= 0.9 * options.length]
    some = full[: options.held_out_rows // 64 * 64].reshape(-1, 64, options.length)
    loaded = Loaded.from_checkpoint(options.checkpoint, step=None)
    learner = Learner.of(loaded.experiment.model, objective_of("bert", info), dtype="float32")
    kinds = jnp.asarray(info["kinds"], jnp.int32)

    @jax.jit
    def losses(tokens: Any, key: Any) -> dict[str, Any]:
        batch = bert_batch(tokens, info=info, kinds=kinds)
        return bert_losses(learner, loaded.params, batch, key, info=info)

    keys = jax.random.split(jax.random.key(7), len(some))
    found = [losses(part, key) for part, key in zip(some, keys, strict=True)]
    held_out = {name: float(np.mean([part[name] for part in found])) for name in found[0]}
    lines = {"step": loaded.step, "rows": some.shape[0] * 64, "held_out": held_out}
    print(json.dumps({**lines, "gates": gates("bert", held_out)}))


def work_directory(options: argparse.Namespace) -> None:
    """Write a checkpoint directory, as an import does."""
    import jax

    from t5x_lite import layouts
    from t5x_lite.config import Experiment
    from t5x_lite.core import trees
    from t5x_lite.core.files import new_directory
    from t5x_lite.data.config import Data
    from t5x_lite.data.vocabularies.loading import load_vocabulary
    from t5x_lite.interop import hf_import
    from t5x_lite.interop.rules import LazyArray
    from t5x_lite.objectives.learner import Learner
    from t5x_lite.optim.config import Linear

    info, params = load(Path(options.pieces))
    family, trained = info["family"], info["options"]
    vocabulary = load_vocabulary(options.vocabulary)
    place = str(Path(options.output).absolute() / "files" / "vocabulary")
    bert = family == "bert"
    warmup = min(trained["warmup"], info["total_steps"] - 1)
    peak = trained["peak"] or PEAK[family]
    schedule = Linear(peak=peak, total_steps=info["total_steps"], warmup_steps=warmup)
    data: dict[str, Any] = {"task": "tasks.text:span_corruption", "targets_length": 40}
    if bert:
        data = {"task": "tasks.encoder:documents", "layout": layouts.Encoder()}
    experiment = Experiment(
        model=model_of(family, info["size"], info["info"]["vocab_size"]),
        objective=objective_of(family, info["info"]),
        data=Data(vocabulary=place, inputs_length=128, batch_size=64, **data),
        optimizer=optimizer_of(family, schedule),
        steps=info["total_steps"],
        compute_dtype="bfloat16",
    )
    if options.random:
        learner = Learner.of(experiment.model, experiment.objective)
        fresh = trees.flatten(jax.jit(learner.init)(jax.random.key(0)))
        params = {path: np.asarray(leaf) for path, leaf in fresh.items()}
        info |= {"curve": [], "gates": {}, "steps": 0}
    arrays = {
        path: LazyArray(array.shape, array.dtype, lambda array=array: array)
        for path, array in params.items()
    }
    with new_directory(options.output) as directory:
        hf_import._write(  # pyright: ignore[reportPrivateUsage]
            directory, arrays, experiment, vocabulary, dtype="keep",
            files={INFO: json.dumps(info).encode()},
        )  # fmt: skip
    print(json.dumps({"checkpoint": options.output, "gates": info["gates"]}))


def plot(options: argparse.Namespace) -> None:
    """Draw the losses over tokens; the same pieces make the same file."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "pretrain", "svg.fonttype": "none", "font.size": 9})
    names = {"loss": "held-out loss", "other": "the same with another row's text"}
    names |= {"unigram": "unigram entropy of the same tokens"}
    titles = {"bert": "BERT {}, masked language modelling", "t5": "T5 1.1 {}, span corruption"}
    count = len(options.pieces)
    figure, axes = plt.subplots(1, count, figsize=(5 * count, 3.4), layout="constrained")
    for folder, axis in zip(options.pieces, np.atleast_1d(axes), strict=True):
        info = json.loads((Path(folder) / INFO).read_text())
        tokens = [line["tokens"] / 1e6 for line in info["curve"]]
        for name, label in names.items():
            if name in info["curve"][0]["held_out"]:
                losses = [line["held_out"][name] for line in info["curve"]]
                axis.plot(tokens, losses, marker=".", label=label)
        axis.set(title=titles[info["family"]].format(info["size"]))
        axis.set(xlabel="tokens, millions", ylabel="nats a token", ylim=(0, None))
        axis.grid(alpha=0.3)
    handles = {line.get_label(): line for axis in np.atleast_1d(axes) for line in axis.get_lines()}
    figure.legend(handles=list(handles.values()), loc="outside lower center", ncols=3)
    figure.savefig(options.output, metadata={"Date": None, "Creator": None})


COMMANDS = {
    "plot": plot,
    "vocabulary": train_vocabulary,
    "tokens": write_tokens,
    "train": train,
    "gates": check_gates,
    "work-directory": work_directory,
}


def main() -> None:
    options = parse()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from t5x_lite.core.errors import InputError

    try:
        COMMANDS[options.command](options)
    except InputError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
