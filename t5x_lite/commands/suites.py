"""Commands that evaluate an encoder on all sets of a benchmark: evaluate-suite, evaluate-sts.

For each data set of a suite, evaluate-suite encodes and searches the corpus, or builds a BM25
index, or reads your own run. The run of a data set is kept, so a killed command resumes with the
next data set. The mean is over the data sets in the directory; missing data sets are listed. The
data sets of one group, such as CQADupStack's twelve, count as one.

    evaluate_sts(["STS-B/dev.tsv"], checkpoint="work/bert")
    # {"STS-B/dev.tsv": {"pairs": 1500, "spearman": 0.85, "pearson": 0.84}}

A file of pairs is a tab-separated table with the columns sentence1, sentence2 and score in its
first line, as in GLUE's STS-B, or JSON lines with these fields. Papers report Spearman's
coefficient (Reimers and Gurevych 2019; Gao et al. 2021, arXiv:2104.08821).

A file of triplets is *.csv with the columns Sentence1, Sentence2 and Sentence3, as in Wikipedia's
sections (Dor et al. 2018), or JSON lines with anchor, positive and negative. Its accuracy is the
fraction of triplets with the first sentence nearer to the second than to the third.
"""

import contextlib
import dataclasses
import itertools
import json
import logging
import math
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import tyro

from t5x_lite.commands.command import command
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import made_directory, write_atomically
from t5x_lite.core.jobs import check_same
from t5x_lite.core.option_types import (
    ALL_MODULES,
    Directory,
    Files,
    Modules,
    OptionalDirectory,
    OptionalFile,
    OptionalPooling,
    OptionalPositive,
    OptionalText,
    Positive,
    Step,
)
from t5x_lite.core.options import OptionError
from t5x_lite.core.project import trusting_checkpoints
from t5x_lite.core.workers import print_result
from t5x_lite.retrieval.mining import QueryEncoder

if TYPE_CHECKING:
    import numpy as np

    from t5x_lite.core.workers import Row
    from t5x_lite.data.formats import benchmark_files
    from t5x_lite.data.formats.rankings import Ranking
    from t5x_lite.data.formats.suites import Judged, Suite

_CHUNK_BATCHES = 32
_COLUMNS = ("sentence1", "sentence2", "score")
_TRIPLETS = ("anchor", "positive", "negative")
_MTEB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(?:@\w[\w.-]*)?")
_NO_REVISION = "no_revision_available"
"""Revision of a model without revision in MTEB's result files."""
_SECTIONS = ("Sentence1", "Sentence2", "Sentence3")

_logger = logging.getLogger(__name__)


@command
def evaluate_suite(
    suite: Annotated[
        Literal["beir", "miracl", "mldr", "mkqa", "mrtydi", "narrativeqa"], tyro.conf.Positional
    ],
    directory: Directory,
    *,
    output: Directory,
    checkpoint: OptionalDirectory = None,
    bm25: OptionalText = None,
    runs: OptionalDirectory = None,
    step: Step = None,
    base: OptionalDirectory = None,
    adapters: Modules = ALL_MODULES,
    pooling: OptionalPooling = None,
    normalize: bool | None = None,
    dimensions: OptionalPositive = None,
    query_prefix: OptionalText = None,
    document_prefix: OptionalText = None,
    batch_size: Positive = 32,
    query_length: OptionalPositive = None,
    document_length: OptionalPositive = None,
    depth: Positive = 1000,
    mteb: OptionalText = None,
    trust_project: bool = False,
) -> dict[str, Any]:
    """Evaluate a retriever on all data sets of BEIR, MIRACL or another suite in a directory.

    The command prints the metrics of each data set and their mean, and lists missing data sets. If
    the command is killed, run it again to resume with the next data set.

    Example:
        t5x-lite evaluate-suite beir --directory BEIR --checkpoint work/encoder --output results

    Args:
      suite: name of the suite, such as beir or miracl, which sets the file layout, the metrics and
        the rules; for example, beir drops documents with the same id as the query.
      directory: directory with the data sets of the suite, in the layout of their release.
      output: output directory for the runs, metrics.json and report.html.
      checkpoint: work directory or checkpoint directory of the encoder to evaluate, instead of
        --bm25 or --runs.
      bm25: evaluate BM25 with this text analyzer, such as english, instead of --checkpoint or
        --runs.
      runs: directory of run files to evaluate, one per data set (SET.trec, .tsv or .jsonl), instead
        of --checkpoint or --bm25.
      step: step number of the checkpoint to load from a work directory, or "best" for the
        checkpoint with the best evaluation result; default: the newest checkpoint.
      base: directory of the base model, for a checkpoint that stores only its trained parameters;
        default: the base directory recorded in the checkpoint.
      adapters: names of the checkpoint's adapters to use; default: the adapters used in training.
      pooling: pooling of hidden states into a vector: "cls" takes the [CLS] hidden state, "mean"
        averages all hidden states; default: the checkpoint's setting, or mean with a warning.
      normalize: scale vectors to length 1; default: the checkpoint's setting, or True if it has
        none.
      dimensions: number of leading dimensions of each vector to keep, for models trained with a
        Matryoshka loss; default: all.
      query_prefix: text put before every query; default: the checkpoint's prompt.
      document_prefix: text put before every document; default: the checkpoint's prompt.
      batch_size: number of texts per batch.
      query_length: maximum number of tokens of a query; default: the length in the checkpoint's
        config (for a run on pairs, the larger of its two lengths).
      document_length: maximum number of tokens of a document; default: as for --query-length.
      depth: maximum number of documents per query.
      mteb: model name, as ORGANIZATION/MODEL or ORGANIZATION/MODEL@REVISION, to also write result
        files in MTEB's JSON format to OUTPUT/mteb/results; default: no MTEB files.
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.

    Returns:
      A dict with "mean" (metric -> mean), "sets" (data set -> metrics) and "missing" (names).
    """
    from t5x_lite.checkpoints.init import base_at
    from t5x_lite.data.formats.rankings import write_run
    from t5x_lite.data.formats.suites import METRICS, MTEB_METRICS, mteb_results, sets_of
    from t5x_lite.report.page import write_suite_page

    if sum(one is not None for one in (checkpoint, bm25, runs)) != 1:
        raise InputError(
            "`t5x-lite evaluate-suite` requires exactly one of --checkpoint, --bm25 and --runs"
        )
    results = None if mteb is None else _mteb_folder(Path(output), mteb)
    if results is not None:
        mteb_results(suite, {}, depth=depth)  # raises an error before the evaluation
    found, folder = sets_of(suite, directory), Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    encoder = None
    if checkpoint is not None:
        encoder = QueryEncoder(
            checkpoint,
            step=step,
            adapters=adapters,
            pooling=pooling,
            normalize=normalize,
            dimensions=dimensions,
            prefix=query_prefix,
            batch_size=batch_size,
            inputs_length=query_length,
        )
    everything: dict[str, dict[str, float]] = {}
    with trusting_checkpoints(trust_project), base_at(base):
        if runs is None:
            how: dict[str, Any] = {"suite": suite, "directory": str(Path(directory).absolute())}
            how |= {"analyzer": bm25, "document": [document_prefix, document_length]}
            how |= {"depth": depth, "encoder": None if encoder is None else _recorded(encoder)}
            _check_same(folder / "command.json", json.loads(json.dumps(how)))
        finder: _Dense | _Lexical | None = None
        if encoder is not None:
            finder = _Dense(encoder, document_prefix, document_length)
        elif bm25 is not None:
            finder = _Lexical(bm25, folder)
        for one in found:
            path = folder / f"{one.name.replace('/', '.')}.jsonl"
            if finder is not None and not path.exists():
                _logger.info("%s", one.name)
                write_run(str(path), finder.rankings(one, depth=depth), format="jsonl")
            source = _given(str(runs), one.name) if finder is None else str(path)
            names = METRICS[suite] if results is None else [*METRICS[suite], *MTEB_METRICS]
            everything[one.name] = _measured(one, source, names)
    sets = {name: {m: one[m] for m in METRICS[suite]} for name, one in everything.items()}
    result = {"mean": _mean(found, sets), "sets": sets, "missing": _missing(suite, found)}
    write_atomically(folder / "metrics.json", json.dumps(result, indent=1).encode() + b"\n")
    write_suite_page(folder / "report.html", suite, result)
    if results is not None:
        _write_mteb(results, str(mteb), mteb_results(suite, everything, depth=depth))
    rows: list[Row] = [{"set": name, **means} for name, means in sets.items()]
    print_result(result, [*rows, {"set": "mean", **result["mean"]}])
    if result["missing"]:
        _logger.info("skipping missing data sets of %s: %s", suite, ", ".join(result["missing"]))
    _logger.info(
        "wrote the metrics to %s/metrics.json, and a report to %s/report.html", output, output
    )
    return result


def _mteb_folder(output: Path, name: str) -> Path:
    """Return the folder where mteb.ResultCache(OUTPUT/mteb) expects the results of a model."""
    if _MTEB_NAME.fullmatch(name) is None:
        raise InputError(
            f"--mteb must be ORGANIZATION/MODEL or ORGANIZATION/MODEL@REVISION, got {name!r}"
        )
    model, _, revision = name.partition("@")
    return output / "mteb" / "results" / model.replace("/", "__") / (revision or _NO_REVISION)


def _write_mteb(folder: Path, name: str, results: Mapping[str, Mapping[str, Any]]) -> None:
    meta = {"name": name.partition("@")[0], "revision": folder.name}
    with made_directory(folder):
        for task, content in {"model_meta": meta, **results}.items():
            path = folder / f"{task}.json"
            write_atomically(path, json.dumps(content, indent=2).encode() + b"\n")
    _logger.info("wrote the results of %d MTEB tasks to %s", len(results), folder)


def _check_same(path: Path, how: Mapping[str, Any]) -> None:
    try:
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else how
    except ValueError:
        before = None
    check_same(before, how, place=path.parent, content="the runs", output=path.parent)
    write_atomically(path, json.dumps(how, indent=1).encode() + b"\n")


def _given(runs: str, name: str) -> str:
    for suffix in (".trec", ".tsv", ".jsonl"):
        path = Path(runs) / f"{name.replace('/', '.')}{suffix}"
        if path.is_file():
            return str(path)
    raise InputError(
        f"--runs {runs} has no run file for the data set {name!r}, such as {name}.trec"
    )


def _missing(suite: "Suite", found: Sequence["Judged"]) -> list[str]:
    from t5x_lite.data.formats.suites import EXPECTED

    groups = {one.group for one in found}
    return [name for name in EXPECTED[suite] if name not in groups]


def _mean(found: Sequence["Judged"], sets: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    from t5x_lite.metrics import runs as metrics_of_runs

    groups = [list(group) for _, group in itertools.groupby(found, key=lambda one: one.group)]
    by_group = {
        group[0].group: metrics_of_runs.means({one.name: sets[one.name] for one in group})
        for group in groups
    }
    return metrics_of_runs.means(by_group)


def _measured(one: "Judged", path: str, metrics: Sequence[str]) -> dict[str, float]:
    from t5x_lite.data.formats.rankings import read_run
    from t5x_lite.metrics import runs as metrics_of_runs
    from t5x_lite.metrics import text as answering

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
        raise InputError(
            f"run file {path} has the passage {min(missing)!r}, but the corpus does not contain "
            "this passage"
        )
    passages = {query: [texts[name] for name in names] for query, names in first.items()}
    return answering.top_k(one.answers(), passages, cuts)


def _recorded(encoder: QueryEncoder) -> dict[str, Any]:
    from t5x_lite.inference.loading import find_step

    names = ("step", "pooling", "normalize", "prefix", "prompt", "batch_size", "inputs_length")
    own = {name: getattr(encoder, name) for name in names}
    if encoder.dimensions is not None:
        own["dimensions"] = encoder.dimensions
    checkpoint = str(find_step(encoder.named(), step=encoder.step))
    return {"checkpoint": checkpoint, "use": encoder.adapters.use, **own}


class _Dense:
    """Dense retriever that searches a corpus while it encodes the corpus, and stores no vectors."""

    def __init__(self, how: QueryEncoder, prefix: str | None, length: int | None):
        from t5x_lite.core.sharding import MeshConfig, make_mesh
        from t5x_lite.inference.checkpoint import Checkpoint

        self._how, self._mesh = how, make_mesh(MeshConfig())
        model = Checkpoint.load([how.named()], step=how.step, use=how.adapters.use, mesh=self._mesh)
        self._encoders = [
            dataclasses.replace(model, asked_length=longest).encoder(
                pooling=how.pooling, normalize=how.normalize, dimensions=how.dimensions
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

    def rankings(self, one: "Judged", *, depth: int) -> Iterator["Ranking"]:
        from t5x_lite.core.workers import Prefetch
        from t5x_lite.data.formats.rankings import Ranking, ranked
        from t5x_lite.retrieval.exact import ExactSearch

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

    def _chunks(self, one: "Judged") -> Iterator[tuple[list[str], list[Any]]]:
        passages, size = one.passages(), _CHUNK_BATCHES * self._how.batch_size
        while some := list(itertools.islice(passages, size)):
            texts = [self._begins[1] + passage.whole for passage in some]
            yield [passage.id for passage in some], self._encoders[1].rows(texts).rows


class _Lexical:
    """BM25 retriever that indexes and searches a corpus, and then deletes the index."""

    def __init__(self, analyzer: str, folder: Path):
        self._analyzer, self._folder = analyzer, folder

    def rankings(self, one: "Judged", *, depth: int) -> Iterator["Ranking"]:
        from t5x_lite.data.formats.rankings import Ranking, ranked
        from t5x_lite.retrieval.bm25 import BM25, InvertedIndex, build

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


class Pair(NamedTuple):
    """Pair of sentences with a human rating of their similarity."""

    first: str
    second: str
    score: float


class Triplet(NamedTuple):
    """Three sentences; the anchor is more similar to the positive than to the negative."""

    anchor: str
    positive: str
    negative: str


@command
def evaluate_sts(
    input: Files,
    *,
    checkpoint: Directory,
    output: OptionalFile = None,
    step: Step = None,
    base: OptionalDirectory = None,
    adapters: Modules = ALL_MODULES,
    pooling: OptionalPooling = None,
    dimensions: OptionalPositive = None,
    prefix: OptionalText = None,
    prompt: OptionalText = None,
    batch_size: Positive = 32,
    inputs_length: OptionalPositive = None,
    trust_project: bool = False,
) -> dict[str, dict[str, float | int]]:
    """Evaluate an encoder on sentence similarity, by its correlation with human ratings.

    Example:
        t5x-lite evaluate-sts --input STS-B/dev.tsv --checkpoint work/encoder

    Args:
      input: files of sentence pairs or triplets. Pairs are tables with the header sentence1,
        sentence2 and score, such as GLUE's STS-B, or JSON lines with these fields; triplets are
        *.csv with Sentence1, Sentence2 and Sentence3, or JSON lines with anchor, positive and
        negative.
      checkpoint: work directory or checkpoint directory of the encoder.
      output: file for the printed metrics; default: only print the metrics.
      step: step number of the checkpoint to load from a work directory, or "best" for the
        checkpoint with the best evaluation result; default: the newest checkpoint.
      base: directory of the base model, for a checkpoint that stores only its trained parameters;
        default: the base directory recorded in the checkpoint.
      adapters: names of the checkpoint's adapters to use; default: the adapters used in training.
      pooling: pooling of hidden states into a vector: "cls" takes the [CLS] hidden state, "mean"
        averages all hidden states; default: the checkpoint's setting, or mean with a warning.
      dimensions: number of leading dimensions of each vector to keep, for models trained with a
        Matryoshka loss; default: all.
      prefix: text put before every sentence; default: the checkpoint's prompt.
      prompt: name of the checkpoint's prompt to put before every sentence; default: the
        checkpoint's default prompt, if any.
      batch_size: number of sentences per batch.
      inputs_length: maximum number of tokens of a sentence; default: the length in the checkpoint's
        config.
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.

    Returns:
      File -> "pairs", "spearman" and "pearson", or for triplets "triplets" and "accuracy".
    """
    from t5x_lite.checkpoints.init import base_at
    from t5x_lite.core.sharding import MeshConfig, make_mesh
    from t5x_lite.inference.checkpoint import Checkpoint

    if not input:
        raise OptionError("--input needs at least one file")
    sets = {path: read_pairs(path) for path in input}
    result: dict[str, dict[str, float | int]] = {}
    with trusting_checkpoints(trust_project), base_at(base):
        encoder = Checkpoint.load(
            [checkpoint],
            step=step,
            use=adapters.use,
            mesh=make_mesh(MeshConfig()),
            inputs_length=inputs_length,
        ).encoder(pooling=pooling, normalize=True, dimensions=dimensions)
        begins = encoder.begins_with(prefix, prompt)
        embedder = encoder.embedder(batch_size=batch_size)
        for path, examples in sets.items():
            texts = [begins + one for each in examples for one in each if isinstance(one, str)]
            vectors = embedder.run(encoder.params, encoder.rows(texts).rows)
            shape = (len(examples), -1, vectors.shape[-1])
            result[path] = _correlated(examples, vectors.reshape(shape))
    print_result(result, ({"file": path, **one} for path, one in result.items()))
    if output is not None:
        try:
            write_atomically(output, (json.dumps(result, indent=1) + "\n").encode())
        except OSError as error:
            raise InputError(f"output {output} cannot be written ({error.strerror})") from error
        _logger.info("wrote %s", output)
    return result


def _correlated(
    examples: list[Pair] | list[Triplet], vectors: "np.ndarray"
) -> dict[str, float | int]:
    import numpy as np

    from t5x_lite.metrics.classification import pearson, spearman

    cosines = np.einsum("nd,nkd->nk", vectors[:, 0], vectors[:, 1:]).astype(np.float64)
    scores = [one.score for one in examples if isinstance(one, Pair)]
    if not scores:
        accuracy = float(np.mean(cosines[:, 0] > cosines[:, 1]))
        return {"triplets": len(examples), "accuracy": accuracy}
    return {
        "pairs": len(scores),
        "spearman": spearman(scores, cosines[:, 0].tolist())["spearman_corrcoef"],
        "pearson": pearson(scores, cosines[:, 0].tolist())["pearson_corrcoef"],
    }


def read_pairs(path: str) -> list[Pair] | list[Triplet]:
    """Return the sentence pairs or the triplets of a file.

    Raises:
      InputError: if a column is missing, a score is not a number, or the file has no pair.
    """
    from t5x_lite.core.object_store import data_path
    from t5x_lite.data.formats.lines import plain_name
    from t5x_lite.data.formats.tables import read_table

    suffix = Path(plain_name(path)).suffix
    found: Any
    if suffix == ".csv":
        rows = read_table(data_path(path), columns=_SECTIONS)
        found = [Triplet(*(_sentence(row, name) for name in _SECTIONS)) for row in rows]
    elif suffix in (".jsonl", ".json"):
        found = list(_of_objects(path))
    else:
        found = list(_of_table(path))
    if not found:
        raise InputError(f"file {path} contains no sentence pair or triplet")
    return found


def _sentence(row: "benchmark_files.Row", column: str) -> str:
    value = row.fields[column]
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{row.where}: the column {column} must be a sentence, got {value!r:.20}")
    return value


def _of_objects(path: str) -> Iterator[Pair | Triplet]:
    from t5x_lite.data.formats.lines import read_examples

    first = next(read_examples(path, fields=()), None)
    if first is not None and _TRIPLETS[0] in first.record:
        for _, record in read_examples(path, fields=_TRIPLETS):
            yield Triplet(*(record[name] for name in _TRIPLETS))
        return
    for where, record in read_examples(path, fields=_COLUMNS[:2]):
        one, other = (record[name] for name in _COLUMNS[:2])
        yield Pair(one, other, _score(record.get("score"), where))


def _of_table(path: str) -> Iterator[Pair]:
    from t5x_lite.data.formats.lines import read_lines

    lines = enumerate(read_lines([path]), start=1)
    names = next(lines, (0, ""))[1].split("\t", 1000)
    if missing := [name for name in _COLUMNS if name not in names]:
        raise InputError(
            f"{path}:1: the header must have the columns {', '.join(_COLUMNS)}, but "
            f"{missing[0]} is missing"
        )
    places = [names.index(name) for name in _COLUMNS]
    for number, line in lines:
        fields = line.split("\t", len(names))
        if not line.strip():
            continue
        if len(fields) <= max(places):
            raise InputError(
                f"{path}:{number}: this line has {len(fields)} columns, but the header has "
                f"{len(names)}"
            )
        first, second, score = (fields[place] for place in places)
        yield Pair(first, second, _score(score, f"{path}:{number}"))


def _score(value: object, where: str) -> float:
    try:
        score = float(value) if isinstance(value, str | int | float) else math.nan
    except (OverflowError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{where}: the score must be a number, got {value!r:.20}")
    return score
