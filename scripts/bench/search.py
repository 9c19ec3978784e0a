"""Search beside faiss, and what indexes cost: `t5x-lite search` and `t5x-lite index`.

    python scripts/bench/search.py speed [--documents 200000] [--size 128 768]
    python scripts/bench/search.py novels --prose DIRECTORY --vocabulary vocab.txt --output WORK
    python scripts/bench/search.py memory --output WORK [--gib 20] [--size 768]

speed: exact search by JAX and by faiss's IndexFlatIP of the same vectors, one after the other in
each round, with all cores; the median of the rounds. The two must find the same.

novels: the sentences of novels, embedded by a BERT of --layers and --width with random weights
(configs/pretrain/bert_tiny.py; --checkpoint for one that is trained), at length 1; then IVF, PQ and
HNSW indexes of them: recall@10 against exact search, bytes, seconds to build, queries a second.
Queries are the sentences of every hundredth place, which are not in the corpus.

memory: a corpus of vectors in files, searched by a process whose anonymous memory is watched.

Each prints JSON lines.
"""

import argparse
import dataclasses
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

KINDS = ("IVF1024,Flat", "IVF1024,PQ32", "IVF1024,PQ16", "PQ32", "HNSW32,Flat")


def speed(args: argparse.Namespace) -> None:
    import faiss
    import jax

    from t5x_lite.retrieval.exact import ExactSearch, block_rows

    for size in args.size:
        rng = np.random.default_rng(0)
        documents = rng.standard_normal((args.documents, size), dtype=np.float32)
        queries = rng.standard_normal((args.queries, size), dtype=np.float32)
        index = faiss.IndexFlatIP(size)
        index.add(documents)
        rows = block_rows(size, queries=args.queries)

        def ours(documents=documents, queries=queries, rows=rows):
            search = ExactSearch(queries, depth=args.depth, keeps_names=False)
            for first in range(0, len(documents), rows):
                search.add(documents[first : first + rows])
            return search.best()

        def theirs(index=index, queries=queries):
            return index.search(queries, args.depth)

        best, (_, found) = ours(), theirs()
        same = float(np.mean(best.rows == found))
        times: dict[str, list[float]] = {"ours": [], "faiss": []}
        for _ in range(args.rounds):
            for name, function in (("ours", ours), ("faiss", theirs)):
                start = time.perf_counter()
                function()
                times[name].append(time.perf_counter() - start)
        medians = {name: statistics.median(each) for name, each in times.items()}
        report(
            documents=args.documents,
            size=size,
            queries=args.queries,
            depth=args.depth,
            same=same,
            device=jax.devices()[0].device_kind,
            threads=faiss.omp_get_max_threads(),
            ours_seconds=medians["ours"],
            faiss_seconds=medians["faiss"],
            ours_range=[min(times["ours"]), max(times["ours"])],
            faiss_range=[min(times["faiss"]), max(times["faiss"])],
            speedup=medians["faiss"] / medians["ours"],
        )


def novels(args: argparse.Namespace) -> None:
    from t5x_lite.commands.search import index_bench
    from t5x_lite.data.formats.vectors import VectorShards
    from t5x_lite.retrieval.faiss_index import Settings, build

    work = Path(args.output)
    work.mkdir(parents=True, exist_ok=True)
    corpus, queries = str(work / "corpus.npy"), str(work / "queries.npy")
    if not Path(queries).exists():
        vectors = embedded(sentences(args.prose, args.sentences), args)
        asked = np.arange(len(vectors)) % 100 == 50
        np.save(corpus, vectors[~asked])
        np.save(queries, vectors[asked])
    shards = VectorShards.open([corpus])
    report(documents=len(shards), size=shards.size)
    for kind in args.kinds:
        name = work / kind.replace(",", "-")
        if not name.exists():
            build(str(name), shards, kind, settings=Settings(threads=args.threads))
    indexes = [str(work / kind.replace(",", "-")) for kind in args.kinds]
    lines = index_bench(
        indexes, [corpus], queries=queries, threads=args.threads, output=str(work / "bench.jsonl")
    )
    del lines


def sentences(directory: str, most: int) -> list[str]:
    """Sentences of 6 to 40 words, in the order of the files, none of them twice."""
    found: dict[str, None] = {}
    for path in sorted(Path(directory).glob("*.txt")):
        text = " ".join(path.read_text(encoding="utf-8").split())
        for sentence in re.split(r"(?<=[.!?])[\"')]*\s+", text):
            if 6 <= len(sentence.split()) <= 40:
                found[sentence] = None
    step = max(1, len(found) // most)
    return list(found)[::step][:most]


def embedded(texts: list[str], args: argparse.Namespace) -> np.ndarray:
    if args.checkpoint:
        from t5x_lite.inference.checkpoint import Checkpoint

        encoder = Checkpoint.load([args.checkpoint], inputs_length=48).encoder(
            pooling="mean", normalize=True
        )
        rows, _ = encoder.rows(texts)
        return encoder.embedder(batch_size=64).run(encoder.params, rows)
    import jax

    from configs.pretrain.bert_tiny import experiment
    from t5x_lite.data.vocabularies.encoder_tokens import text_rows
    from t5x_lite.data.vocabularies.loading import load_vocabulary
    from t5x_lite.inference.loading import learner_of
    from t5x_lite.inference.text_encoder import Embedder

    size = {"d_model": args.width, "d_ff": 4 * args.width, "num_layers": args.layers}
    model = dataclasses.replace(experiment.model, **size, num_heads=max(1, args.width // 32))
    learner = learner_of(dataclasses.replace(experiment, model=model))
    params = learner.init(jax.random.key(0))
    vocabulary = load_vocabulary(args.vocabulary)
    rows, _ = text_rows(vocabulary, begins=True)(texts, length=48)
    embedder = Embedder(
        learner.bind_model,
        batch_size=64,
        pooling="mean",
        normalize=True,
        pad_id=vocabulary.pad_id,
        max_length=48,
    )
    return embedder.run(params, rows)


def memory(args: argparse.Namespace) -> None:
    """Writes the files if they are not there; then a process of its own searches them."""
    work = Path(args.output)
    work.mkdir(parents=True, exist_ok=True)
    rows = (1 << 30) // (4 * args.size)
    paths = [work / f"{number}.npy" for number in range(args.gib)]
    for number, path in enumerate(paths):
        if not path.exists():
            part = np.random.default_rng(number).random((rows, args.size), dtype=np.float32)
            np.save(path.with_suffix(".new.npy"), part)
            path.with_suffix(".new.npy").rename(path)
    command = [sys.executable, __file__, "searched", "--depth", str(args.depth)]
    command += ["--queries", str(args.queries), "--paths", *map(str, paths)]
    print(subprocess.run(command, check=True, capture_output=True, text=True).stdout, end="")


def searched(args: argparse.Namespace) -> None:
    from t5x_lite.data.formats.vectors import VectorShards
    from t5x_lite.retrieval.exact import search_shards

    most = [0]

    def watch() -> None:
        while True:
            with open("/proc/self/status") as file:
                kib = next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))
            most[0] = max(most[0], kib)
            time.sleep(0.01)

    threading.Thread(target=watch, daemon=True).start()
    shards = VectorShards.open(args.paths)
    queries = np.random.default_rng(99).standard_normal((args.queries, shards.size), np.float32)
    start = time.perf_counter()
    best = search_shards(shards, queries, depth=args.depth)
    report(
        gib=len(shards) * shards.size * 4 / 2**30,
        documents=best.seen,
        queries=args.queries,
        depth=args.depth,
        seconds=time.perf_counter() - start,
        most_anonymous_mib=most[0] / 1024,
    )


def report(**values: object) -> None:
    print(json.dumps(values), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    for function in (speed, novels, memory, searched):
        command = commands.add_parser(function.__name__)
        command.set_defaults(function=function)
        command.add_argument("--output", required=function in (novels, memory))
        command.add_argument("--queries", type=int, default=1000)
        command.add_argument("--depth", type=int, default=100)
        command.add_argument("--documents", type=int, default=200_000)
        command.add_argument("--size", type=int, nargs="+", default=[128, 768])
        command.add_argument("--rounds", type=int, default=5)
        command.add_argument("--prose", required=function is novels)
        command.add_argument("--vocabulary")
        command.add_argument("--checkpoint")
        command.add_argument("--sentences", type=int, default=120_000)
        command.add_argument("--width", type=int, default=128)
        command.add_argument("--layers", type=int, default=4)
        command.add_argument("--threads", type=int, default=1)
        command.add_argument("--kinds", nargs="+", default=list(KINDS))
        command.add_argument("--gib", type=int, default=20)
        command.add_argument("--paths", nargs="+")
    args = parser.parse_args()
    if args.function is novels and not (args.vocabulary or args.checkpoint):
        parser.error("set --vocabulary or --checkpoint")
    if args.function is memory:
        args.size = args.size[-1]
    args.function(args)


if __name__ == "__main__":
    main()
