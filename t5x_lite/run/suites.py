"""`t5x-lite evaluate-suite`: a retriever on all sets of a suite that are there.

For each set the corpus is encoded and searched, or its terms are indexed, or a run of yours is
read; the run of a set is kept, so that a killed command goes on with the next set. The mean is over
the sets that are there, and the missing ones are named; sets of one group, as CQADupStack's twelve,
count as one.
"""

import contextlib
import itertools
import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_lite.errors import InputError
from t5x_lite.files import write_atomically
from t5x_lite.inference.queries import QueryEncoder
from t5x_lite.metrics import answers as answering
from t5x_lite.metrics import runs as metrics_of_runs
from t5x_lite.progress import Row, print_result
from t5x_lite.records.prefetch import Prefetch
from t5x_lite.records.run_files import Ranking, ranked, read_run, write_run
from t5x_lite.records.suites import EXPECTED, METRICS, Judged, Suite, sets_of
from t5x_lite.report.suites import write_suite_page
from t5x_lite.retrieval.bm25 import BM25
from t5x_lite.retrieval.bm25_index import InvertedIndex, build
from t5x_lite.retrieval.search import ExactSearch
from t5x_lite.run.best_step import find_step
from t5x_lite.run.text_encoder import TextEncoder
from t5x_lite.sharding import MeshConfig, make_mesh

_CHUNK_BATCHES = 32
_logger = logging.getLogger(__name__)


def evaluate_suite(
    suite: Suite,
    directory: str,
    *,
    output: str,
    encoder: QueryEncoder | None = None,
    analyzer: str | None = None,
    runs: str | None = None,
    document_prefix: str | None = None,
    document_length: int | None = None,
    depth: int = 1000,
) -> dict[str, Any]:
    """Measures every set of a suite; writes runs, metrics.json, report.html; prints the means.

    Args:
      suite: whose layout and metrics.
      directory: that holds the sets.
      output: the directory of what is written.
      encoder: makes the vectors, of queries by its prompt or prefix.
      analyzer: of BM25, in place of an encoder.
      runs: a directory of runs SET.trec, .tsv or .jsonl, in place of both.
      document_prefix: what every document begins with; None is the checkpoint's prompt.
      document_length: tokens of a document at most; None is what the model was trained with.
      depth: documents of a query at most.

    Returns:
      "mean" by metric, "sets" by name and metric, and the "missing".

    Raises:
      InputError: there is no set, a file is wrong, or not one of encoder, analyzer and runs is
        given.
    """
    if sum(one is not None for one in (encoder, analyzer, runs)) != 1:
        raise InputError("give one of --checkpoint, --bm25 and --runs")
    found, folder = sets_of(suite, directory), Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    if runs is None:
        how: dict[str, Any] = {"suite": suite, "directory": str(Path(directory).absolute())}
        how |= {"analyzer": analyzer, "document": [document_prefix, document_length]}
        how |= {"depth": depth, "encoder": None}
        if encoder is not None:
            step = find_step(encoder.named(), step=encoder.step)
            how["encoder"] = _recorded(encoder, str(step))
        _check_same(folder / "command.json", json.loads(json.dumps(how)))
    finder: _Dense | _Lexical | None = None
    if encoder is not None:
        finder = _Dense(encoder, document_prefix, document_length)
    elif analyzer is not None:
        finder = _Lexical(analyzer, folder)
    sets: dict[str, dict[str, float]] = {}
    for one in found:
        path = folder / f"{one.name.replace('/', '.')}.jsonl"
        if finder is not None and not path.exists():
            _logger.info("%s", one.name)
            write_run(str(path), finder.rankings(one, depth=depth), format="jsonl")
        source = _given(str(runs), one.name) if finder is None else str(path)
        sets[one.name] = _measured(one, source, METRICS[suite])
    result = {"mean": _mean(found, sets), "sets": sets, "missing": _missing(suite, found)}
    write_atomically(folder / "metrics.json", json.dumps(result, indent=1).encode() + b"\n")
    write_suite_page(folder / "report.html", suite, result)
    rows: list[Row] = [{"set": name, **means} for name, means in sets.items()]
    print_result(result, [*rows, {"set": "mean", **result["mean"]}])
    if result["missing"]:
        _logger.info("sets of %s that are missing: %s", suite, ", ".join(result["missing"]))
    _logger.info("wrote %s/metrics.json, and a page: %s/report.html", output, output)
    return result


def _check_same(path: Path, how: Mapping[str, Any]) -> None:
    """Refuses a directory that holds the runs of another command.

    Raises:
      InputError: it does.
    """
    try:
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else how
    except ValueError as error:
        raise InputError(f"{path}: not JSON: give another --output") from error
    if before != how:
        raise InputError(
            f"{path.parent} holds the runs of another command ({path.name}): give another --output"
        )
    write_atomically(path, json.dumps(how, indent=1).encode() + b"\n")


def _given(runs: str, name: str) -> str:
    for suffix in (".trec", ".tsv", ".jsonl"):
        path = Path(runs) / f"{name.replace('/', '.')}{suffix}"
        if path.is_file():
            return str(path)
    raise InputError(f"{runs}: no run of the set {name!r}, such as {name}.trec")


def _missing(suite: Suite, found: Sequence[Judged]) -> list[str]:
    groups = {one.group for one in found}
    return [name for name in EXPECTED[suite] if name not in groups]


def _mean(found: Sequence[Judged], sets: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The mean over groups of the mean over a group's sets."""
    groups = [list(group) for _, group in itertools.groupby(found, key=lambda one: one.group)]
    by_group = {
        group[0].group: metrics_of_runs.means({one.name: sets[one.name] for one in group})
        for group in groups
    }
    return metrics_of_runs.means(by_group)


def _measured(one: Judged, path: str, metrics: Sequence[str]) -> dict[str, float]:
    if one.judgements is not None:
        judged = one.judgements()
        places = {
            query: [(each.document, each.rank) for each in documents]
            for query, documents in read_run(path)
            if query in judged
        }
        return metrics_of_runs.means(metrics_of_runs.per_query(judged, places, metrics))
    assert one.answers is not None
    cuts = [int(name.partition("@")[2]) for name in metrics]
    first = {q: [d.document for d in ds[: max(cuts)]] for q, ds in read_run(path)}
    needed = {document for documents in first.values() for document in documents}
    texts = {p.id: f"{p.title}\n{p.text}" for p in one.passages() if p.id in needed}
    if missing := needed - set(texts):
        raise InputError(f"{path} names the passage {min(missing)!r}, which the corpus lacks")
    passages = {query: [texts[name] for name in names] for query, names in first.items()}
    return answering.top_k(one.answers(), passages, cuts)


def _recorded(encoder: QueryEncoder, checkpoint: str) -> dict[str, Any]:
    """What the vectors of an encoder depend on."""
    names = ("step", "pooling", "normalize", "prefix", "prompt", "batch_size", "inputs_length")
    own = {name: getattr(encoder, name) for name in names}
    return {"checkpoint": checkpoint, "use": encoder.adapters.use, **own}


class _Dense:
    """Encodes a corpus and searches it as it goes; no vector is kept."""

    def __init__(self, how: QueryEncoder, prefix: str | None, length: int | None):
        self._how, self._mesh = how, make_mesh(MeshConfig())
        self._encoders = [
            TextEncoder.load(
                how.named(),
                step=how.step,
                use=how.adapters.use,
                mesh=self._mesh,
                length=longest,
                pooling=how.pooling,
                normalize=how.normalize,
            )
            for longest in (how.inputs_length, length)
        ]
        queries, documents = self._encoders
        query_prompt = how.prompt or (queries.known_prompt("query") if how.prefix is None else None)
        known = (documents.known_prompt(name) for name in ("document", "passage", "corpus"))
        prompt = next((name for name in known if name), None) if prefix is None else None
        self._begins = (
            queries.begins_with(how.prefix, query_prompt),
            documents.begins_with(prefix, prompt),
        )

    def rankings(self, one: Judged, *, depth: int) -> Iterator[Ranking]:
        """What is found for each query of a set."""
        queries, (encoder, documents) = one.queries(), self._encoders
        rows, _ = encoder.rows([self._begins[0] + text for text in queries.values()])
        vectors = encoder.embedder(batch_size=self._how.batch_size).run(encoder.params, rows)
        names = list(queries) if one.drops_same_ids else None
        search = ExactSearch(vectors, depth=depth, names=names, mesh=self._mesh)
        embedder = documents.embedder(batch_size=self._how.batch_size)
        with contextlib.closing(Prefetch(self._chunks(one), depth=2)) as chunks:
            for ids, tokens in chunks:
                search.add(embedder.run(documents.params, tokens, role="passage"), ids)
        for query, best in zip(queries, search.results(), strict=True):
            yield Ranking(query, ranked(best))

    def _chunks(self, one: Judged) -> Iterator[tuple[list[str], list[Any]]]:
        passages, size = one.passages(), _CHUNK_BATCHES * self._how.batch_size
        while some := list(itertools.islice(passages, size)):
            texts = [self._begins[1] + passage.whole for passage in some]
            yield [passage.id for passage in some], self._encoders[1].rows(texts).rows


class _Lexical:
    """Indexes the terms of a corpus and searches them by BM25; the index is removed."""

    def __init__(self, analyzer: str, folder: Path):
        self._analyzer, self._folder = analyzer, folder

    def rankings(self, one: Judged, *, depth: int) -> Iterator[Ranking]:
        """What is found for each query of a set."""
        index = self._folder / f"{one.name.replace('/', '.')}.bm25"
        if not index.exists():
            texts = ((passage.id, passage.whole) for passage in one.passages())
            build(str(index), texts, analyzer=self._analyzer, identity={"set": one.name})
        bm25 = BM25(InvertedIndex.open(index))
        for query, text in one.queries().items():
            best = bm25.search(text, depth=depth + one.drops_same_ids)
            kept = [pair for pair in best if not (one.drops_same_ids and pair[0] == query)]
            yield Ranking(query, ranked(kept[:depth]))
        shutil.rmtree(index)
