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
    from t5x_lite.commands.weights import import_hf

    make_t5(base)
    import_hf(base / "t5", base / "run" / "checkpoints" / "20")
    for path in sorted((base / "t5").iterdir()):
        path.unlink()
    (base / "t5").rmdir()


def _read_checkpoint(base: Path) -> None:
    from t5x_lite.inference.loading import Loaded

    Loaded.from_checkpoint(str(base / "run"), step=None)


def _sign_step(base: Path) -> None:
    from t5x_lite.checkpoints import items as checkpoint_manifest

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
    from t5x_lite.core.errors import InputError
    from t5x_lite.inference.loading import learner_of

    experiment = read_config(base / "config.json")
    if not isinstance(experiment, Experiment):
        raise InputError("not an Experiment, as config.load says")
    learner_of(experiment)


def _make_cache(base: Path) -> None:
    from t5x_lite.data.cache.files import Index
    from t5x_lite.data.cache.making import SplitWriter, new_cache, write_index
    from t5x_lite.data.cache.recipe import Recipe
    from t5x_lite.data.vocabularies.byte_level import Bytes

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
    from t5x_lite.data.batches import train_batches
    from t5x_lite.data.config import Data
    from t5x_lite.data.vocabularies.byte_level import Bytes

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
        for file in (*split["shards"], split["ends"], split["checksums"]):
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
    from t5x_lite.core.jobs import encode
    from t5x_lite.data.formats.lines import read_examples
    from t5x_lite.data.formats.pairs import read_texts

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
    from t5x_lite.data.formats.benchmark_files import numbered, read_tsv

    rows = read_tsv(base / "train.tsv", columns=("label", "sentence"))
    list(numbered(rows, column="label2"))
    _read_columns(base / "train.tsv")


def _read_columns(file: Path) -> None:
    from t5x_lite.core.object_store import data_path
    from t5x_lite.data.preprocessors import Columns

    columns = Columns(inputs="see: {sentence}", targets="{label}", labels=("0=no", "1=yes"))
    list(columns.examples([data_path(file)], "train"))


def _make_squad(base: Path) -> None:
    questions = [{"id": str(i), "question": line, "answers": [{"text": "dog", "answer_start": 4}]}
                 for i, line in enumerate(LINES)]  # fmt: skip
    paragraph = {"context": "The dog runs.", "qas": questions}
    content = {"version": "1.1", "data": [{"title": "Dogs", "paragraphs": [paragraph]}]}
    (base / "train.json").write_text(json.dumps(content))


def _read_squad(base: Path) -> None:
    from t5x_lite.data.formats.benchmark_files import read_squad

    list(read_squad(base / "train.json"))


def _make_beir(base: Path) -> None:
    (base / "qrels").mkdir()
    for name in ("corpus", "queries"):
        records = [{"_id": str(i), "title": "t", "text": line} for i, line in enumerate(LINES)]
        (base / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    lines = ["query-id\tcorpus-id\tscore", "0\t1\t1", "1\t2\t2", "2\t0\t0", "0\t3\t1"]
    (base / "qrels" / "train.tsv").write_text("\n".join(lines) + "\n")


def _read_beir(base: Path) -> None:
    from t5x_lite.data.formats import retrieval_sets

    for split in retrieval_sets.beir_splits(str(base)):
        retrieval_sets.read_judged(str(base), split)
        retrieval_sets.read_beir_pairs(str(base), split)


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
    from t5x_lite.c4.pages import Tally, read_pages

    for path in sorted(base.iterdir()):
        list(read_pages(str(path), Cleaning(), Tally()))


# Tables of Arrow, and what retrieval reads.


def _table() -> Any:
    import pyarrow as pa

    texts = [f"{line} {i}" for i in range(30) for line in LINES]
    size = len(texts)
    return pa.table(
        {
            "sentence": texts,
            "label": pa.array([str(i % 2) for i in range(size)]).dictionary_encode(),
            "large": pa.array(texts, pa.large_string()),
            "number": list(range(size)),
            "score": pa.array([i / 3 for i in range(size)], pa.float32()),
            "truth": [i % 3 == 0 for i in range(size)],
            "list": [[line, "x"] if i % 5 else None for i, line in enumerate(texts)],
            "fixed": pa.array([[i, 1] for i in range(size)], pa.list_(pa.int32(), 2)),
            "object": [{"a": line, "b": [i]} for i, line in enumerate(texts)],
            "views": pa.array(texts, pa.string_view()),
            "bytes": pa.array([b"x"] * size),
        }
    )


def _make_arrow(base: Path) -> None:
    import pyarrow as pa

    table = _table()
    compressed = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(str(base / "file.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=50)
    with pa.ipc.new_stream(str(base / "stream.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=50)
    with pa.ipc.new_file(str(base / "z.feather"), table.schema, options=compressed) as writer:
        writer.write_table(table)


def _read_rows(base: Path) -> None:
    """The rows of all files; the first that is refused hides no other one."""
    from t5x_lite.core.errors import InputError
    from t5x_lite.data.formats.tables import read_table, texts_of

    refused = None
    for path in sorted(base.iterdir()):
        try:
            for row in read_table(path, columns=("sentence",)):
                texts_of(row)
            _read_columns(path)
        except InputError as error:
            refused = error
    if refused is not None:
        raise refused


def _make_parquet(base: Path) -> None:
    import pyarrow.parquet as parquet

    table = _table().drop(["views"])
    parquet.write_table(table, base / "a.parquet", row_group_size=50, compression="zstd")
    parquet.write_table(table, base / "b.parquet", use_dictionary=False, compression="none")
    parquet.write_table(table, base / "c.parquet", data_page_version="2.0", compression="gzip")


def _make_saved(base: Path) -> None:
    """What `save_to_disk` of `datasets` writes."""
    import pyarrow as pa

    table = _table().select(["sentence", "label"])
    splits = ("train", "validation")
    (base / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    for split in splits:
        (base / split).mkdir()
        name = "data-00000-of-00001.arrow"
        with pa.ipc.new_stream(str(base / split / name), table.schema) as writer:
            writer.write_table(table, max_chunksize=50)
        state = {"_data_files": [{"filename": name}], "_fingerprint": "a", "_split": split}
        (base / split / "state.json").write_text(json.dumps(state))


def _read_saved(base: Path) -> None:
    from t5x_lite.data.formats.tables import read_rows, table_splits

    for tables in table_splits(str(base)).values():
        for table in tables:
            list(read_rows(table, columns=("sentence",)))


_SIZE = 16


def _vectors(count: int = 80) -> Any:
    return np.random.default_rng(0).standard_normal((count, _SIZE)).astype(np.float32)


def _make_vectors(base: Path) -> None:
    from t5x_lite.data.formats.vectors import vector_writer

    found = _vectors()
    np.save(base / "a.npy", found)
    np.save(base / "b.npy", found.astype(np.float16))
    with vector_writer(str(base / "c.parquet")) as writer:
        for start in range(0, len(found), 20):
            part = found[start : start + 20]
            writer.write([f"d{start + i}" for i in range(len(part))], part)


def _read_vectors(base: Path) -> None:
    from t5x_lite.core.errors import InputError
    from t5x_lite.data.formats.vectors import VectorShards

    refused = None
    for path in sorted(base.iterdir()):
        try:
            shards = VectorShards.open([str(path)])
            for block in shards.blocks(rows=32, end=min(len(shards), 10_000)):
                block.vectors.sum()
            shards.names(0, 1000)
        except InputError as error:
            refused = error
    if refused is not None:
        raise refused


def _make_heads(base: Path) -> None:
    from t5x_lite.data.formats.vectors import Writer

    for numbers in ("float16", "int8"):
        (base / numbers).mkdir()
        writer = Writer(base / numbers, numbers=numbers)
        dense, tokens = _vectors(3), [_vectors(n) for n in (2, 3, 1)]
        writer.write(["a", "b", "c"], dense=dense, terms=[{5: 0.5}, {}, {9: 1.0}], vectors=tokens)
        writer.close()


def _read_heads(base: Path) -> None:
    from t5x_lite.data.formats.vectors import M3Texts

    for folder in sorted(base.iterdir()):
        texts = M3Texts(folder)
        list(texts.terms())
        for number in range(len(texts.ids) if texts.has("multi_vector") else 0):
            texts.vectors(number)


def _make_bm25(base: Path) -> None:
    from t5x_lite.retrieval.bm25 import build

    texts = [(f"d{i}", f"{line} {i}") for i, line in enumerate(LINES * 5)]
    build(str(base / "index"), texts, analyzer="english", identity={})


def _read_bm25(base: Path) -> None:
    from t5x_lite.retrieval.bm25 import BM25, InvertedIndex

    bm25 = BM25(InvertedIndex.open(base / "index"))
    for query in (*LINES, "7"):
        bm25.search(query, depth=5)


def _faiss_reader(kind: str) -> Reader:
    """An index of a kind; half of the damaged ones have checksums that fit."""

    def make(base: Path) -> None:
        from t5x_lite.data.formats.vectors import VectorShards
        from t5x_lite.retrieval.faiss_index import build

        (base / "ids.txt").write_text("")
        np.save(base / "v.npy", _vectors(300))
        (base / "p.jsonl").write_text(
            "".join(json.dumps({"_id": f"d{i}", "text": "a"}) + "\n" for i in range(300))
        )
        shards = VectorShards.open([str(base / "v.npy")], ids=[str(base / "p.jsonl")])
        build(str(base / "index"), shards, kind)
        for name in ("ids.txt", "v.npy", "p.jsonl"):
            (base / name).unlink()

    def read(base: Path) -> None:
        from t5x_lite.retrieval.faiss_index import FaissIndex

        index = FaissIndex.open(str(base / "index"))
        found = index.search(_vectors(4), depth=10)
        for row in found.rows[found.rows >= 0]:
            index.name(int(row))

    return Reader(make, read, {"index.json": "json", "*.npy": "binary", "*.faiss": "binary"}, _sign)


def _sign(base: Path) -> None:
    record = json.loads((base / "index" / "index.json").read_bytes())
    for name in record["sha256"]:
        content = (base / "index" / name).read_bytes()
        record["sha256"][name] = hashlib.sha256(content).hexdigest()
    (base / "index" / "index.json").write_text(json.dumps(record))


def _make_runs(base: Path) -> None:
    ranks = [("q1", "d1", 1, 9.5), ("q1", "d2", 2, 3.25), ("q2", "d1", 1, 0.5)]
    (base / "a.trec").write_text("".join(f"{q} Q0 {d} {r} {s} t\n" for q, d, r, s in ranks))
    (base / "b.tsv").write_text("".join(f"{q}\t{d}\t{r}\n" for q, d, r, _ in ranks))
    record = {"query": "q1", "documents": ["d1", "d2"], "scores": [2.0, 1]}
    (base / "c.jsonl").write_text(json.dumps(record) + "\n")
    (base / "d.qrels").write_text("q1 0 d1 1\nq1 0 d2 0\nq2 0 d1 2\n")
    (base / "e.qrels").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td1\t1\n")
    (base / "f.answers").write_text("who is it\t['Paris', 'City of Paris']\nwhere\t['here']\n")
    (base / "g.answers.jsonl").write_text(json.dumps({"_id": "17", "answers": ["Paris"]}) + "\n")


def _read_runs(base: Path) -> None:
    from t5x_lite.core.errors import InputError
    from t5x_lite.data.formats.rankings import read_answers, read_qrels, read_run, run_lines

    refused = None
    for path in sorted(base.iterdir()):
        try:
            if ".answers" in path.name:
                read_answers(str(path))
            elif path.suffix == ".qrels":
                read_qrels(str(path))
            else:
                list(run_lines(list(read_run(str(path))), format="marco", tag="t"))
        except InputError as error:
            refused = error
    if refused is not None:
        raise refused


def _make_conll(base: Path) -> None:
    text = "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\nPeter NNP I-NP I-PER\n"
    (base / "a.conll").write_text(text)
    record = {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}
    (base / "b.jsonl").write_text(json.dumps(record) + "\n")


def _read_conll(base: Path) -> None:
    from t5x_lite.data.formats.benchmark_files import read_conll, read_tagged_jsonl

    list(read_conll(base / "a.conll"))
    list(read_tagged_jsonl(base / "b.jsonl"))


def _make_marco(base: Path) -> None:
    (base / "collection.tsv").write_text("".join(f"{i}\t{line}\n" for i, line in enumerate(LINES)))
    (base / "queries.train.tsv").write_text("7\twho runs\n8\twho reads\n")
    (base / "qrels.train.tsv").write_text("7\t0\t0\t1\n8\t0\t1\t1\n")
    dpr = [
        {
            "question": "who runs",
            "positive_ctxs": [{"title": "Dogs", "text": LINES[0]}],
            "hard_negative_ctxs": [{"title": "Books", "text": LINES[1]}],
        }
    ]
    (base / "train.json").write_text(json.dumps(dpr))


def _read_marco(base: Path) -> None:
    from t5x_lite.data.formats import retrieval_sets

    retrieval_sets.read_marco_pairs(str(base), "train", [str(base / "collection.tsv")])
    list(retrieval_sets.pairs_of([base / "train.json"]))


def _make_nli(base: Path) -> None:
    rows = [("entailment", "A man plays.", "Someone plays."), ("contradiction", "A man", "Nobody")]
    lines = [{"gold_label": g, "sentence1": a, "sentence2": b} for g, a, b in (*rows, *rows[:1])]
    (base / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (base / "sts.tsv").write_text("sentence1\tsentence2\tscore\nA dog\tA cat\t1.5\nx\ty\t5\n")
    pairs = {"sentence1": "A dog", "sentence2": "A cat", "score": 1.5}
    (base / "sts.json").write_text(json.dumps(pairs) + "\n")


def _read_nli(base: Path) -> None:
    from t5x_lite.commands.suites import read_pairs as read_sts
    from t5x_lite.data.formats import pairs

    pairs.pairs_of([base / "train.jsonl"])
    read_sts(str(base / "sts.tsv"))
    read_sts(str(base / "sts.json"))


READERS = {
    "config.json": Reader(_make_config, _read_config, {"config.json": "json"}),
    "cache": Reader(
        _make_cache,
        _read_cache,
        {"cache.json": "json", "*.tokens": "binary", "*.ends": "binary", "*.checksums": "binary"},
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
    "Arrow": Reader(_make_arrow, _read_rows, {"*": "binary"}),
    "Parquet": Reader(_make_parquet, _read_rows, {"*": "binary"}),
    "datasets": Reader(_make_saved, _read_saved, {"*.json": "json", "*.arrow": "binary"}),
    "vectors": Reader(_make_vectors, _read_vectors, {"*": "binary"}),
    "heads": Reader(
        _make_heads, _read_heads, {"*.npy": "binary", "*.jsonl": "jsonl", "*.txt": "text"}
    ),
    "BM25": Reader(_make_bm25, _read_bm25, {"*.json": "json", "*.npy": "binary"}),
    **{
        f"faiss {kind}": _faiss_reader(kind)
        for kind in ("Flat", "IVF8,Flat", "IVF8,PQ4", "PQ4", "HNSW8,Flat", "SQ8")
    },
    "runs": Reader(_make_runs, _read_runs, {"*.jsonl": "jsonl", "*": "text"}),
    "CoNLL": Reader(_make_conll, _read_conll, {"*.conll": "text", "*.jsonl": "jsonl"}),
    "MARCO": Reader(_make_marco, _read_marco, {"*.tsv": "text", "*.json": "json"}),
    "NLI": Reader(_make_nli, _read_nli, {"*.tsv": "text", "*.js*": "jsonl"}),
}
