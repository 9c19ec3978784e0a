"""Our own configs, caches and checkpoints, and files of data: how they are made, and read."""

import contextlib
import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.e2e.imported_files import make_t5
from tests.e2e.reader import LINES, Reader

# Our own: configs, checkpoints, caches.


def _make_checkpoint(base: Path) -> None:
    from t5x_lite.run.interchange import import_hf

    make_t5(base)
    import_hf(base / "t5", base / "run" / "checkpoints" / "20")
    for path in sorted((base / "t5").iterdir()):
        path.unlink()
    (base / "t5").rmdir()


def _read_checkpoint(base: Path) -> None:
    from t5x_lite.run.loading import Loaded

    Loaded.from_checkpoint(str(base / "run"), step=None)


def _sign_step(base: Path) -> None:
    from t5x_lite.checkpoints import manifest as checkpoint_manifest

    checkpoint_manifest.write(base / "run" / "checkpoints" / "20")


def _make_config(base: Path) -> None:
    _make_checkpoint(base)
    text = (base / "run/checkpoints/20/files/config.json").read_text()
    for path in sorted((base / "run").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (base / "config.json").write_text(text)


def _read_config(base: Path) -> None:
    from t5x_lite.config import Experiment
    from t5x_lite.config.file import read_config
    from t5x_lite.errors import InputError
    from t5x_lite.run.loading import learner_of

    experiment = read_config(base / "config.json")
    if not isinstance(experiment, Experiment):
        raise InputError("not an Experiment, as config.load says")
    learner_of(experiment)


def _make_cache(base: Path) -> None:
    from t5x_lite.data.cache.files import Index
    from t5x_lite.data.cache.recipe import Recipe
    from t5x_lite.data.cache.writer import SplitWriter, new_cache, write_index
    from t5x_lite.vocabulary.byte_level import Bytes

    vocabulary, rng = Bytes(), np.random.default_rng(0)
    recipe = Recipe(
        stored=("tokens",),
        outputs={"inputs": True, "targets": True},
        eos="after_trim",
        eos_id=1,
        corruption="span_corruption",
        options={"sentinel_start": 258, "noise_density": 0.15, "mean_noise_span_length": 3.0},
        lengths={"inputs": 32, "targets": 16},
    )
    with new_cache(base / "cache") as directory:
        writer = SplitWriter(directory, "train", num_features=1, dtype="uint16", shard_bytes=600)
        for _ in range(40):
            writer.add([rng.integers(3, 150, 32)])
        known = {"digest": vocabulary.digest, "extra_ids": 100, "size": vocabulary.size}
        index = Index(
            task="tasks.text:span_corruption",
            vocabulary=known,
            dtype="uint16",
            recipe=recipe,
            splits={"train": writer.finish()},
        )
        write_index(directory, index, vocabulary)


def _read_cache(base: Path) -> None:
    from t5x_lite.data.cache.batches import train_batches
    from t5x_lite.data.config import Data
    from t5x_lite.vocabulary.byte_level import Bytes

    data = Data(task="", cache=str(base / "cache"), vocabulary="bytes", batch_size=4,
                inputs_length=32, targets_length=16)  # fmt: skip
    with contextlib.closing(train_batches(data, Bytes(), seed=0)) as batches:
        for _ in range(8):
            next(batches)


def _sign_cache(base: Path) -> None:
    """Sizes and checksums of the files, and of the index."""
    directory = base / "cache"
    node = json.loads((directory / "cache.json").read_bytes())
    for split in node["splits"].values():
        for file in (*split["shards"], split["lengths"]):
            content = (directory / file["name"]).read_bytes()
            file |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    _sign_index(directory, node)


def _sign_index(directory: Path, node: dict[str, Any]) -> None:
    node.pop("sha256", None)
    digest = hashlib.sha256(json.dumps(node, sort_keys=True).encode()).hexdigest()
    (directory / "cache.json").write_text(json.dumps({**node, "sha256": digest}))


def _sign_index_alone(base: Path) -> None:
    _sign_index(base / "cache", json.loads((base / "cache" / "cache.json").read_bytes()))


# Data.


def _make_jsonl(base: Path) -> None:
    records = [{"inputs": line, "text": line, "title": "t", "prompt": "", "seed": i, "_id": str(i)}
               for i, line in enumerate(LINES)]  # fmt: skip
    (base / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def _read_jsonl(base: Path) -> None:
    from t5x_lite.records.json_lines import encode, read_examples
    from t5x_lite.records.text_records import read_texts

    path = str(base / "a.jsonl")
    for line in read_examples(path, fields=("inputs",), optional=("prompt",), numbers=("seed",)):
        encode([line.record])
    list(read_texts(path))
    list(read_texts(path, format="text"))


def _make_table(base: Path) -> None:
    rows = [("label", "sentence"), *((str(i % 2), line) for i, line in enumerate(LINES))]
    (base / "train.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    csv = "".join(f'{label},"{text}"\n' for label, text in rows)
    (base / "train.csv").write_text(csv)


def _read_tsv(base: Path) -> None:
    from t5x_lite.records.benchmark_files import numbered, read_tsv

    rows = read_tsv(base / "train.tsv", columns=("label", "sentence"))
    list(numbered(rows, column="label2"))
    _read_columns(base / "train.tsv")


def _read_columns(file: Path) -> None:
    from t5x_lite.buckets.paths import data_path
    from t5x_lite.data.columns import Columns

    columns = Columns(inputs="see: {sentence}", targets="{label}", labels=("0=no", "1=yes"))
    list(columns.examples([data_path(file)], "train"))


def _make_squad(base: Path) -> None:
    questions = [{"id": str(i), "question": line, "answers": [{"text": "dog", "answer_start": 4}]}
                 for i, line in enumerate(LINES)]  # fmt: skip
    paragraph = {"context": "The dog runs.", "qas": questions}
    content = {"version": "1.1", "data": [{"title": "Dogs", "paragraphs": [paragraph]}]}
    (base / "train.json").write_text(json.dumps(content))


def _read_squad(base: Path) -> None:
    from t5x_lite.records.benchmark_files import read_squad

    list(read_squad(base / "train.json"))


def _make_beir(base: Path) -> None:
    (base / "qrels").mkdir()
    for name in ("corpus", "queries"):
        records = [{"_id": str(i), "title": "t", "text": line} for i, line in enumerate(LINES)]
        (base / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    lines = ["query-id\tcorpus-id\tscore", "0\t1\t1", "1\t2\t2", "2\t0\t0", "0\t3\t1"]
    (base / "qrels" / "train.tsv").write_text("\n".join(lines) + "\n")


def _read_beir(base: Path) -> None:
    from t5x_lite.records import beir_files

    for split in beir_files.splits(str(base)):
        beir_files.read_judged(str(base), split)
        beir_files.read_pairs(str(base), split)


def _make_wet(base: Path) -> None:
    from tests.c4.wet_files import info_record, members, response_record, wet_record

    records = [info_record(), *(wet_record(f"http://{i}.com/", line * 9)
                                for i, line in enumerate(LINES))]  # fmt: skip
    records.append(response_record("http://5.com/", b"<p>Some <b>text</b>.</p>" * 5))
    (base / "a.wet").write_bytes(b"".join(records))
    (base / "b.wet.gz").write_bytes(members(*records))
    (base / "c.wet.gz").write_bytes(gzip.compress(b"".join(records)))


def _read_wet(base: Path) -> None:
    from t5x_lite.c4.config import Cleaning
    from t5x_lite.c4.pages import Tally
    from t5x_lite.c4.reading import read_pages

    for path in sorted(base.iterdir()):
        list(read_pages(str(path), Cleaning(), Tally()))


READERS = {
    "config.json": Reader(_make_config, _read_config, {"config.json": "json"}),
    "cache": Reader(
        _make_cache,
        _read_cache,
        {"cache.json": "json", "*.array_record": "binary", "*.lengths": "binary"},
        _sign_cache,
    ),
    "cache index": Reader(_make_cache, _read_cache, {"cache.json": "json"}, _sign_index_alone),
    "checkpoint": Reader(
        _make_checkpoint,
        _read_checkpoint,
        {"*.json": "json", "_METADATA": "json", "*": "binary"},
        _sign_step,
    ),
    "JSONL": Reader(_make_jsonl, _read_jsonl, {"*.jsonl": "jsonl"}),
    "TSV": Reader(_make_table, _read_tsv, {"*.tsv": "text"}),
    "CSV": Reader(_make_table, lambda base: _read_columns(base / "train.csv"), {"*.csv": "text"}),
    "BEIR": Reader(_make_beir, _read_beir, {"*.jsonl": "jsonl", "*.tsv": "text"}),
    "SQuAD": Reader(_make_squad, _read_squad, {"*.json": "json"}),
    "WET": Reader(_make_wet, _read_wet, {"*.wet": "text", "*.gz": "gzip"}),
}
