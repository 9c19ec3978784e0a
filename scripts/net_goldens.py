"""Runs that commit ce7d4f4 began, in miniature, which every later commit continues alike.

    python scripts/net_goldens.py archive    # by ce7d4f4 alone: tests/golden/net/runs.tar.xz
    python scripts/net_goldens.py record     # tests/golden/net/records.json, from the archive
    python scripts/net_goldens.py lay_out    # tests/golden/net/batches.json: a batch of each layout

The archive holds data, vocabularies, caches and, for each family, objective and optimizer, a work
directory after 4 steps. It is never written again: it is what users have on their disks. The
records hold what a continuation gives: the training loss of steps 5 to 24, the held-out loss, and
what the checkpoint answers; of some runs the losses of a new run from its parameters with today's
defaults: attention dropout that draws for each query and key, ELECTRA's one embedding, DeBERTaV3's
two updates. They start from saved parameters, never from a seed,
so code that moves modules about keeps them. A record is written again only for a change of what is
computed, whose reason then stands in an ADR.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

DIRECTORY = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "net"
ARCHIVE, RECORDS = DIRECTORY / "runs.tar.xz", DIRECTORY / "records.json"
BATCHES = DIRECTORY / "batches.json"
SAVED, LAST = 4, 24
DRAWN_ANEW = (
    "bert", "deberta", "retromae_enhanced", "electra_es", "deberta_gdes", "contrastive",
)  # fmt: skip
TEXT = (
    "the river ran low under old stone bridges and nobody saw small boats pass by night when rain "
    "came over dark hills a lamp burned in every second window children slept while two men spoke"
)
WORDS = TEXT.split()


def experiments() -> dict[str, Any]:
    """The runs by name, with paths below the current directory."""
    from t5x_lite import layouts
    from t5x_lite.config import Checkpoints, Evaluation, Experiment
    from t5x_lite.data.config import Data
    from t5x_lite.models.deberta import DebertaConfig
    from t5x_lite.models.encoder import BertConfig
    from t5x_lite.models.lm import LMConfig
    from t5x_lite.models.t5 import T5Config
    from t5x_lite.objectives.contrastive import Contrastive
    from t5x_lite.objectives.electra import Electra
    from t5x_lite.objectives.likelihood import LanguageModel, Seq2Seq
    from t5x_lite.objectives.masked_lm import MaskedLM
    from t5x_lite.objectives.retromae import RetroMAE
    from t5x_lite.objectives.task_heads import Classify, Spans
    from t5x_lite.optim.config import Adafactor, AdamW, Constant, InverseSquareRoot, Linear

    decoder = {"vocab_size": 384, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_heads": 4}
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    t5 = T5Config(**decoder, **layers, dropout_rate=0.0)
    lm = LMConfig(**decoder, num_layers=2, dropout_rate=0.0)
    sizes = {"vocab_size": 64, "d_model": 16, "d_ff": 24, "num_heads": 2, "num_layers": 2}
    bert = BertConfig(**sizes, max_positions=64, token_types=2)
    small = dataclasses.replace(bert, d_model=8, d_ff=12, num_heads=1)
    deberta = DebertaConfig(
        **sizes, max_positions=64, position_buckets=8, enhanced_mask_decoder=True
    )
    adafactor = Adafactor(schedule=InverseSquareRoot(warmup_steps=10), min_dim_size_to_factor=8)
    # At 0.3, 1e-5 between two programs of one loss is 0.1 after fifteen steps: the runs whose
    # records are new with the order of their data go at 0.01.
    gentle = Adafactor(schedule=InverseSquareRoot(warmup_steps=10_000), min_dim_size_to_factor=8)
    momentum = Adafactor(
        schedule=Linear(peak=0.02, warmup_steps=2, total_steps=100), momentum=0.9, clip_norm=1.0
    )
    adamw = AdamW(
        schedule=Linear(peak=1e-3, warmup_steps=2, total_steps=100), clip_norm=1.0, eps=1e-6
    )

    def data(task: str, **changes: Any) -> Data:
        text = {"directory": "text", "vocabulary": "bytes", "extra_ids": 100, "shuffle_buffer": 64}
        return Data(
            **{"task": task, "batch_size": 4, "inputs_length": 48, "targets_length": 24}
            | text
            | changes
        )

    pieces = {"vocabulary": "vocab.txt", "extra_ids": 0}
    cached = data("", cache="caches/encoder", layout=layouts.Encoder(), **pieces)
    rows = {"pack": False, **pieces}
    spans_t5 = data("tasks.text:span_corruption", cache="caches/t5")
    of_encoder = {"mask_id": 4, "whole_word": True}
    generator = {"generator": small.replace(embedding_size=16), "mask_id": 4}
    parts: dict[str, tuple] = {
        "t5": (t5, Seq2Seq(z_loss=1e-4), spans_t5, adafactor, "bfloat16"),
        "t5_shared": (
            T5Config(
                **decoder, **layers, feed_forward="relu", tie_embeddings=True, share_layers=True
            ),
            Seq2Seq(),
            spans_t5,
            momentum,
        ),
        "t5_live": (t5, Seq2Seq(), data("tasks.text:span_corruption"), gentle),
        "t5_sst2": (
            T5Config(**decoder, **layers, relative_bias_per_layer=True, attention="blocked"),
            Seq2Seq(label_smoothing=0.1),
            data("tasks.glue:sst2", directory="glue", vocabulary="pieces", extra_ids=20),
            Adafactor(schedule=Constant(value=1e-3)),
        ),
        "lm": (lm, LanguageModel(), data("tasks.text:language_model", layout=layouts.LM()), adamw),
        "prefix_lm": (
            lm.replace(prefix=True, prefix_buckets="bidirectional"),
            LanguageModel(),
            data("tasks.text:prefix_lm", layout=layouts.PrefixLM()),
            gentle,
        ),
        "bert": (bert, MaskedLM(**of_encoder), cached, adamw, "bfloat16"),
        "deberta": (deberta, MaskedLM(**of_encoder, max_ngram=3), cached, adamw),
        "retromae_basic": (
            bert,
            RetroMAE(**of_encoder, decoder="basic", logits_chunk=None),
            dataclasses.replace(cached, pack=False),
            adamw,
        ),
        "retromae_enhanced": (
            bert,
            RetroMAE(**of_encoder, query="normalised", bag_of_words=0.2, mask_pool=8),
            dataclasses.replace(cached, pack=False),
            adamw,
        ),
        "electra_es": (
            bert, Electra(**generator, share_embedding_norm=False), cached, adamw
        ),
        "electra_nes": (bert, Electra(**generator, sharing="nes", decoupled=True), cached, adamw),
        "deberta_gdes": (
            deberta.replace(enhanced_mask_decoder=False),
            Electra(
                generator=deberta.replace(num_layers=1), mask_id=4, sharing="gdes",
                head="deberta", decoupled=False,
            ),
            cached,
            adamw,
        ),
        "contrastive": (
            bert,
            Contrastive(pooling="mean"),
            data(
                "tasks.pairs:jsonl",
                directory="pairs",
                layout=layouts.Groups(negatives=1),
                **rows,
            ),
            adamw,
        ),
        "classify": (
            bert,
            Classify(num_classes=2),
            data("tasks.glue:sst2", directory="glue", layout=layouts.Labelled(), **rows),
            AdamW(schedule=Constant(value=1e-3), layer_decay=0.8),
        ),
        "spans": (
            bert,
            Spans(),
            data("tasks.squad:squad", directory="squad", layout=layouts.Labelled(), **rows),
            adamw,
        ),
    }  # fmt: skip
    return {
        name: Experiment(
            model=model,
            objective=objective,
            data=its_data,
            optimizer=optimizer,
            compute_dtype=dtype[0] if dtype else "float32",
            steps=SAVED,
            workdir=f"runs/{name}",
            log_period=1,
            checkpoints=Checkpoints(period=1000),
            evaluation=Evaluation(period=1000, max_batches=2, max_examples=4, max_decode_length=4),
        )
        for name, (model, objective, its_data, optimizer, *dtype) in parts.items()
    }


def write_data() -> None:
    """Data of made-up sentences in the current directory, and caches of them."""
    from t5x_lite.data.cache.making import write_cache
    from t5x_lite.data.vocabularies.loading import load_vocabulary, train_sentencepiece

    rng = random.Random(0)

    def sentence() -> str:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(4, 14))) + " ."

    def write(path: str, lines: list[str]) -> None:
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(path).write_text("\n".join(lines) + "\n")

    documents = [[sentence() for _ in range(rng.randint(1, 5))] for _ in range(400)]
    write("text/documents.txt", [" ".join(document) for document in documents])
    write("paragraphs/documents.txt", ["\n".join(document) + "\n" for document in documents])
    write("vocab.txt", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *sorted(set(WORDS))])
    for split, rows in {"train": 120, "dev": 24}.items():
        labelled = [f"{sentence()}\t{rng.randint(0, 1)}" for _ in range(rows)]
        write(f"glue/SST-2/{split}.tsv", ["sentence\tlabel", *labelled])
    pairs = [{"query": sentence(), "pos": [sentence()], "neg": [sentence()]} for _ in range(300)]
    write("pairs/pairs.jsonl", [json.dumps(pair) for pair in pairs])
    for split, rows in {"train": 60, "dev": 8}.items():
        contexts = [sentence() for _ in range(rows)]
        paragraphs = [question(context, f"{split}{i}", rng) for i, context in enumerate(contexts)]
        squad = {"version": "1.1", "data": [{"title": "", "paragraphs": paragraphs}]}
        write(f"squad/{split}-v1.1.json", [json.dumps(squad)])
    train_sentencepiece([" ".join(d) for d in documents], size=50, output_dir="pieces")
    runs = experiments()
    bert = runs["bert"].data
    lines = dataclasses.replace(
        bert, cache="", task="tasks.encoder:documents", directory="paragraphs"
    )
    for output, data in (("caches/t5", runs["t5_live"].data), ("caches/encoder", lines)):
        vocabulary = load_vocabulary(data.vocabulary, extra_ids=data.extra_ids)
        write_cache(data, vocabulary, output)


def question(context: str, name: str, rng: random.Random) -> dict[str, Any]:
    """A paragraph of SQuAD with a question about a context."""
    words = context.split()
    start = rng.randrange(len(words) - 1)
    answer = " ".join(words[start : start + 2])
    begin = len(" ".join(words[:start])) + (start > 0)
    found = {"text": answer, "answer_start": begin}
    return {
        "context": context,
        "qas": [{"id": name, "question": f"the {words[start]}", "answers": [found]}],
    }


@contextlib.contextmanager
def inside(directory: str | os.PathLike) -> Iterator[None]:
    """The current directory is another one for a while: the runs name their data by it."""
    before = os.getcwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


def losses(workdir: str) -> dict[str, Any]:
    """What a finished run's metrics.jsonl says: "loss" of each step, and the held-out losses."""
    lines = [
        json.loads(line) for line in pathlib.Path(workdir, "metrics.jsonl").read_text().splitlines()
    ]
    steps = {line["step"]: line["loss"] for line in lines if "loss" in line}
    held_out = {
        name: value
        for line in lines
        if line["step"] == LAST
        for name, value in line.items()
        if name.startswith("validation/") and isinstance(value, float)
    }
    return {
        "loss": [steps[step] for step in range(SAVED + 1, LAST + 1)],
        "held_out": {n: v for n, v in held_out.items() if "seconds" not in n and "time" not in n},
    }


def continued(name: str) -> dict[str, Any]:
    """Continues a run in the current directory, which holds the archive, up to step LAST."""
    from t5x_lite import config
    from t5x_lite.train.training import train

    train(config.load(f"runs/{name}/config.json", ["--steps", str(LAST)]))
    return losses(f"runs/{name}")


def drawn_anew(name: str) -> list[float]:
    """The losses of a new run from a checkpoint's parameters, with today's defaults."""
    from t5x_lite import config
    from t5x_lite.objectives.electra import Electra
    from t5x_lite.train.training import train

    flags = ["--steps", str(LAST - SAVED), "--init", f"runs/{name}/checkpoints/{SAVED}"]
    loaded = config.load(f"runs/{name}/config.json", [*flags, "--workdir", f"anew/{name}"])
    anew = sharing(loaded, False)
    if isinstance(anew.objective, Electra):
        today = dataclasses.replace(anew.objective, share_embedding_norm=None, decoupled=None)
        anew = dataclasses.replace(anew, objective=today)
    train(anew)
    lines = pathlib.Path("anew", name, "metrics.jsonl").read_text().splitlines()
    return [line["loss"] for line in map(json.loads, lines) if "loss" in line]


def sharing(part: Any, share: bool) -> Any:
    """A config whose encoders share the draws of attention dropout among the queries, or do not.

    The archive's runs share them; today's default is a draw for each query and key.
    """
    from t5x_lite.models.encoder import EncoderConfig

    if not dataclasses.is_dataclass(part):
        return part
    fields = {f.name: sharing(getattr(part, f.name), share) for f in dataclasses.fields(part)}
    if isinstance(part, EncoderConfig):
        fields["share_attention_dropout"] = share
    return dataclasses.replace(part, **fields)


def answered(name: str) -> dict[str, Any]:
    """What the checkpoint of step SAVED answers: log-likelihoods and texts, or vectors."""
    import t5x_lite
    from t5x_lite.commands.answers import embed

    texts = ["the river ran low .", "two men spoke by night when rain came"]
    step = f"runs/{name}/checkpoints/{SAVED}"
    if name.startswith(("t5", "lm", "prefix_lm")):
        model = t5x_lite.load(step)
        pairs = [(text, "a lamp burned") for text in texts]
        inputs = ["", ""] if name == "lm" else texts
        return {
            "log_likelihood": model.score(
                [(i, t) for i, (_, t) in zip(inputs, pairs, strict=True)]
            ),
            "text": model.generate(inputs, max_decode_length=4),
        }
    with tempfile.TemporaryDirectory() as directory:
        source, output = pathlib.Path(directory, "texts.txt"), f"{directory}/vectors.npy"
        source.write_text("\n".join(texts) + "\n")
        embed(step, input=str(source), output=output)
        return {"vectors": np.load(output).tolist()}


def archive(names: list[str]) -> None:
    """Trains each run for SAVED steps and packs everything."""
    from t5x_lite.train.training import train

    with tempfile.TemporaryDirectory() as directory, inside(directory):
        write_data()
        for name, experiment in experiments().items():
            if not names or name in names:
                train(experiment)
                for extra in ("tensorboard", "samples.jsonl"):
                    path = pathlib.Path("runs", name, extra)
                    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        DIRECTORY.mkdir(parents=True, exist_ok=True)
        with tarfile.open(ARCHIVE, "w:xz", preset=9) as packed:
            for path in sorted(pathlib.Path().rglob("*")):
                packed.add(path, recursive=False, filter=anonymous)


def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """An entry without the user and the time of this machine."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


def unpack(directory: str | os.PathLike) -> None:
    """The archive's files, below a directory."""
    with tarfile.open(ARCHIVE) as packed:
        # Python 3.11.4 is the first with filters.
        options: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        packed.extractall(directory, **options)


def record(names: list[str]) -> None:
    """Writes the records of the runs that are named, or of all."""
    records = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    with tempfile.TemporaryDirectory() as directory:
        unpack(directory)
        with inside(directory):
            for name in names or sorted(path.name for path in pathlib.Path("runs").iterdir()):
                records[name] = {"answers": answered(name), **continued(name)}
                if name in DRAWN_ANEW:
                    records[name]["drawn_anew"] = drawn_anew(name)
    lines = [
        f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in sorted(records.items())
    ]
    RECORDS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def batches() -> dict[str, Any]:
    """A batch of each layout, packed and not, of made-up examples: feature -> numbers."""
    from t5x_lite import layouts
    from t5x_lite.layouts.base import KEY, EncoderTokens

    rng = np.random.default_rng(0)
    kinds = np.array([0] * 5 + [1, 2, 3] * 5, np.uint8)
    names = ("cls_id", "sep_id", "mask_id", "pad_id", "unk_id")
    special = EncoderTokens(**dict(zip(names, (1, 2, 3, 0, 4), strict=True)), kinds=kinds)

    def text(most: int) -> np.ndarray:
        return rng.integers(5, 20, rng.integers(1, most)).astype(np.int32)

    def document(*texts: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [[1], *[part for one in texts for part in (one, [2])]], dtype=np.int32
        )

    def example(layout: layouts.Layout, index: int) -> dict[str, np.ndarray]:
        if "query" in layout.features:
            passages = [document(text(5)) for _ in range(rng.integers(1, 4))]
            others = np.concatenate([np.zeros(0, np.int32), *passages[1:]])
            made = {"query": document(text(5)), "positives": passages[0], "negatives": others}
            return {**made, KEY: np.array([0, 0, index])}
        if "labels" in layout.features:
            label = np.array([rng.integers(0, 3), 0], np.int32)
            return {"inputs": document(text(4), text(4)), "labels": label}
        if layout.of_encoder:
            return {"inputs": document(text(5))}
        return {name: np.append(text(5), 1).astype(np.int32) for name in ("inputs", "targets")}

    found = {}
    every = (
        layouts.Seq2Seq(), layouts.LM(), layouts.PrefixLM(), layouts.ConcatLM(), layouts.Encoder(),
        layouts.Groups(negatives=1), layouts.Labelled(),
    )  # fmt: skip
    for layout in every:
        for pack in (False, True) if layout.packs else (False,):
            examples = [example(layout, index) for index in range(4)]
            batch = layout.lay_out(
                examples,
                np.array([1, 0, 1, 2]) if pack else np.array([1, 0, 4, 2]),
                num_rows=5,
                lengths=layout.lengths(inputs=12, targets=10),
                pack=pack,
                tokens=special if layout.of_encoder else None,
            )
            name = f"{layout.name}, packed" if pack else layout.name
            found[name] = {feature: value.tolist() for feature, value in batch.items()}
    return found


def lay_out(_: list[str]) -> None:
    """Writes a batch of each layout."""
    lines = [f"  {json.dumps(name)}: {json.dumps(batch)}" for name, batch in batches().items()]
    BATCHES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    sys.path.insert(0, str(DIRECTORY.parents[2]))
    {"archive": archive, "record": record, "lay_out": lay_out}[sys.argv[1]](sys.argv[2:])
