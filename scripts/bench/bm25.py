"""BM25 compared with bm25s: building, searching, memory and files.

    python scripts/bench/bm25.py --documents 100000 300000 1000000 --output WORK

The corpora are made up: passages with the lengths of MS MARCO's (about 56 words) and words with
Zipf's frequencies, the most frequent ones being Lucene's stop words. Both sides read the same file
and use our analyzer `english`, so their terms are the same. Each build and each search is a process
of its own. bm25s searches a memory map, once with NumPy and, if numba is installed, once with it.

Each prints JSON lines. CPU seconds include all threads; `peak_mib` is the resident memory at its
peak, and `anonymous_mib` the peak of the part that is not a map of a file.
"""

import argparse
import itertools
import json
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

WORDS = 3_000_000
SHIFT, POWER = 10, 1.2
"""Frequency of the word of rank r: (r + SHIFT) ** -POWER."""
WORDS_A_TEXT = 56
REPEATED = 0.25
"""Share of a text's words that repeat an earlier word of it."""
SYLLABLES = ["".join(pair) for pair in itertools.product("bcdfgklmnprstv", "aeiou")]
ENDINGS = ("", "s", "ing", "ed", "ation", "er", "ly", "ness")
ANALYZER = "english"
ANONYMOUS: list[int] = []
SIDES = ("ours", "bm25s numpy", "bm25s numba")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, nargs="+", default=[100_000])
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--depth", type=int, default=1000)
    parser.add_argument("--output", required=True)
    parser.add_argument("--stage", nargs="+", default=[], help="run one side here")
    args = parser.parse_args()
    for number in args.documents:
        place = Path(args.output, str(number))
        if args.stage:
            stage, *sides = args.stage
            threading.Thread(target=watch, daemon=True).start()
            {"corpus": corpus, "build": build, "search": search}[stage](args, place, *sides)
            continue
        stages = [["corpus"], ["build", "ours"], ["build", "bm25s"]]
        for stage in [*stages, *(["search", *side.split()] for side in SIDES)]:
            options = {"--documents": number, "--queries": args.queries, "--depth": args.depth}
            options["--output"] = args.output
            given = [str(part) for option in options.items() for part in option]
            subprocess.run([sys.executable, __file__, *given, "--stage", *stage], check=False)
        compare(place)


def corpus(args: argparse.Namespace, place: Path) -> None:
    from t5x_lite.retrieval.analyzers import STOP_WORDS

    if (place / "queries.tsv").exists():
        return
    place.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    words = [*sorted(STOP_WORDS), *map(word_of, range(WORDS - len(STOP_WORDS)))]
    shares = np.cumsum((np.arange(WORDS) + SHIFT) ** -POWER)
    shares /= shares[-1]
    with open(place / "collection.tsv", "w") as file:
        for first in range(0, int(place.name), 10_000):
            some = min(10_000, int(place.name) - first)
            lengths = np.maximum(1, rng.gamma(6.0, WORDS_A_TEXT / 6.0, some).astype(int))
            ranks = np.searchsorted(shares, rng.random(lengths.sum()))
            ends = np.cumsum(lengths)
            starts = np.repeat(ends - lengths, lengths)
            places = np.arange(len(ranks))
            earlier = starts + ((places - starts) * rng.random(len(ranks))).astype(int)
            repeats = (rng.random(len(ranks)) < REPEATED) & (ranks[earlier] >= len(STOP_WORDS))
            ranks = ranks[np.where(repeats, earlier, places)]
            for number, (start, end) in enumerate(zip(ends - lengths, ends, strict=True)):
                text = " ".join(words[rank] for rank in ranks[start:end])
                file.write(f"{first + number}\t{text}\n")
    with open(place / "queries.tsv", "w") as file:
        for number in range(args.queries):
            ranks = np.searchsorted(shares, rng.random(int(rng.integers(3, 10))))
            file.write(f"q{number}\t{' '.join(words[rank] for rank in ranks)}\n")


def word_of(rank: int) -> str:
    """A word of its own for each rank, longer for rarer ones."""
    rank, ending = divmod(rank, len(ENDINGS))
    syllables = [SYLLABLES[rank % len(SYLLABLES)]]
    while rank := rank // len(SYLLABLES):
        syllables.append(SYLLABLES[rank % len(SYLLABLES)])
    return "".join(syllables) + "x" + ENDINGS[ending]


def build(args: argparse.Namespace, place: Path, side: str) -> None:
    from t5x_lite.data.formats.pairs import read_passages

    texts = ((one.id, one.whole) for one in read_passages(str(place / "collection.tsv")))
    target = place / side
    if target.exists():
        shutil.rmtree(target)
    start = time.perf_counter()
    if side == "ours":
        from t5x_lite.retrieval import bm25

        bm25.build(str(target), texts, analyzer=ANALYZER, identity={})
        found = bm25.InvertedIndex.open(target).settings
        counts = {name: found[name] for name in ("terms", "postings", "total_length")}
    else:
        import bm25s

        from t5x_lite.data.formats.vectors import StringTable
        from t5x_lite.retrieval.analyzers import analyzer

        analyze, terms, ids, names = analyzer(ANALYZER), dict[str, int](), [], []
        for name, text in texts:
            found = analyze(text)
            if found:  # a document without a term does not count in N and in the mean length
                ids.append([terms.setdefault(term, len(terms)) for term in found])
                names.append(name)
        index = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
        index.index((ids, terms), show_progress=False)
        index.save(target, show_progress=False)
        StringTable.of(names).save(target / "names")
        counts = {"terms": len(terms), "postings": len(index.scores["data"])}
    size = sum(path.stat().st_size for path in target.iterdir())
    report(
        stage="build", side=side, documents=int(place.name), **counts,
        mib=round(size / 2**20, 1), seconds=time.perf_counter() - start, **usage(),
    )  # fmt: skip


def search(args: argparse.Namespace, place: Path, side: str, backend: str = "") -> None:
    from t5x_lite.data.formats.pairs import read_passages

    queries = [one.whole for one in read_passages(str(place / "queries.tsv"))]
    started = time.perf_counter()
    if side == "ours":
        from t5x_lite.retrieval.bm25 import BM25, InvertedIndex

        bm25 = BM25(InvertedIndex.open(place / "ours"))

        def find(some: list[str]) -> Iterator[list[tuple[str, float]]]:
            return (bm25.search(query, depth=args.depth) for query in some)
    else:
        find = peer(args, place, backend)
    opened, before = time.perf_counter() - started, cpu_seconds()
    warm = list(find(queries[:20]))
    del warm
    warmed, begun = cpu_seconds(), time.perf_counter()
    with open(place / f"{side}{backend}.jsonl", "w") as file:
        for found in find(queries):
            file.write(json.dumps(found) + "\n")
    spent, passed = cpu_seconds() - warmed, time.perf_counter() - begun
    report(
        stage="search", side=f"{side} {backend}".strip(), documents=int(place.name),
        depth=args.depth, queries=len(queries), opened=opened, first_20=warmed - before,
        queries_a_cpu_second=len(queries) / spent, queries_a_second=len(queries) / passed,
        **usage(),
    )  # fmt: skip


def peer(args: argparse.Namespace, place: Path, backend: str) -> Any:
    """Search by bm25s, its documents' names and scores above 0."""
    import bm25s

    from t5x_lite.data.formats.vectors import StringTable
    from t5x_lite.retrieval.analyzers import analyzer

    index = bm25s.BM25.load(place / "bm25s", mmap=True, backend=backend, show_progress=False)
    names, analyze = StringTable.open(place / "bm25s" / "names"), analyzer(ANALYZER)
    selection = {"backend_selection": "numpy"} if backend == "numpy" else {}

    def find(some: list[str]) -> Iterator[list[tuple[str, float]]]:
        for first in range(0, len(some), 64):
            asked = [list(analyze(query)) for query in some[first : first + 64]]
            best = index.retrieve(asked, k=args.depth, show_progress=False, **selection)
            for row, scores in zip(best.documents.tolist(), best.scores.tolist(), strict=True):
                pairs = zip(row, scores, strict=True)
                yield [(names[number], score) for number, score in pairs if score > 0]

    return find


def compare(place: Path) -> None:
    """Compare the scores of each rank, and of the documents that both sides have."""
    for backend in ("numpy", "numba"):
        path = place / f"bm25s{backend}.jsonl"
        if not path.exists():
            continue
        apart, same = 0.0, 0
        with open(place / "ours.jsonl") as ours, open(path) as theirs:
            for one, other in zip(map(json.loads, ours), map(json.loads, theirs), strict=True):
                assert len(one) == len(other)
                scores = zip((s for _, s in one), (s for _, s in other), strict=True)
                apart = max([apart, *(abs(a - b) for a, b in scores)])
                same += [name for name, _ in one] == [name for name, _ in other]
        report(stage="compare", side=f"bm25s {backend}", documents=int(place.name),
               scores_apart=apart, same_rankings=same)  # fmt: skip


def cpu_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


def usage() -> dict[str, float]:
    return {
        "cpu_seconds": round(cpu_seconds(), 2),
        "peak_mib": round(memory()["VmHWM"] / 1024),
        "anonymous_mib": round(max(ANONYMOUS) / 1024),
    }


def memory() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}


def watch() -> None:
    while True:
        ANONYMOUS.append(memory()["RssAnon"])
        time.sleep(0.05)


def report(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
