"""Commands that rescore candidates: rerank and score-pairs by a cross-encoder, hybrid by BGE-M3.

rerank scores the queries in order, and a killed command resumes after the last written query
(`data.formats.rankings`). Only the texts of the passages to score are in memory.

score-pairs writes the training data of distillation (`objectives.ranker`, data.layout
Groups(teacher=True)). It replaces existing scores and keeps all other fields.

    {"query": "q", "pos": ["a"], "neg": ["b", "c"]}
    {"query": "q", "pos": ["a"], "neg": ["b", "c"], "pos_scores": [9.5], "neg_scores": [0.25, -1]}

hybrid reads all dense vectors of the corpus for each query, which is fast enough for a few million
documents; for a larger corpus, `search` distributes the vectors over the devices.
"""

import contextlib
import hashlib
import itertools
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from t5x_lite.commands.command import command
from t5x_lite.core.errors import InputError
from t5x_lite.core.option_types import (
    ALL_MODULES,
    Directory,
    File,
    Modules,
    OptionalDirectory,
    OptionalFile,
    OptionalPositive,
    Positive,
    Step,
    Text,
    Texts,
    Three,
    Two,
)
from t5x_lite.core.options import OptionError
from t5x_lite.core.project import trusting_checkpoints
from t5x_lite.core.workers import counting

if TYPE_CHECKING:
    from t5x_lite.data.formats.rankings import Ranking
    from t5x_lite.inference.pairs import CrossEncoder, HeadScorer

_RERANKED_AT_A_TIME = 8
"""Number of queries that are scored together, with their passages sorted by length."""
_SCORED_AT_A_TIME = 16

_logger = logging.getLogger(__name__)


@command
def rerank(
    checkpoint: Directory,
    *,
    input: File,
    output: File,
    beir: OptionalDirectory = None,
    queries: OptionalFile = None,
    passages: OptionalFile = None,
    depth: Positive = 100,
    sigmoid: bool = False,
    format: Literal["trec", "marco", "jsonl"] | None = None,
    tag: Text = "t5x_lite",
    step: Step = None,
    base: OptionalDirectory = None,
    adapters: Modules = ALL_MODULES,
    batch_size: Positive = 32,
    inputs_length: OptionalPositive = None,
    query_length: OptionalPositive = None,
    trust_project: bool = False,
) -> None:
    r"""Rerank the top passages of a run with a cross-encoder.

    If the command is killed, run it again to resume.

    Example:
        t5x-lite rerank --checkpoint work/ranker --input run.trec --beir BEIR/scifact \
            --output reranked.trec

    Args:
      checkpoint: work directory or checkpoint directory of the cross-encoder.
      input: run to rerank, in TREC or MS MARCO format, or as JSON lines {"query", "documents",
        "scores"}; "-" reads standard input.
      output: run file to write, with the reranked documents of each query.
      beir: directory in BEIR's format with the texts: queries.jsonl and corpus.jsonl.
      queries: file with the query texts, instead of --beir: JSON lines {"_id", "text"}, or lines of
        id TAB text.
      passages: file with the passage texts, instead of --beir: JSON lines, MS MARCO's
        collection.tsv, or DPR's psgs_w100.tsv.
      depth: number of top documents per query to rerank; the other documents follow in their order.
      sigmoid: write probabilities (the sigmoid of the logits) instead of logits.
      format: format of the output: trec, marco (the three columns of MS MARCO) or jsonl; default:
        marco for an output name ending in .tsv, jsonl for .jsonl, otherwise trec.
      tag: name of the run, written to the last column of the TREC format.
      step: step number of the checkpoint to load from a work directory, or "best" for the
        checkpoint with the best evaluation result; default: the newest checkpoint.
      base: directory of the base model, for a checkpoint that stores only its trained parameters;
        default: the base directory recorded in the checkpoint.
      adapters: names of the checkpoint's adapters to use; default: the adapters used in training.
      batch_size: number of query-passage pairs per batch.
      inputs_length: maximum number of tokens of query and passage together; only the passage is
        truncated; default: the length in the checkpoint's config.
      query_length: maximum number of tokens of a query; default: the length in the checkpoint's
        config.
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.
    """
    from t5x_lite.checkpoints.init import base_at
    from t5x_lite.core.sharding import MeshConfig, make_mesh
    from t5x_lite.data.formats.rankings import read_run, run_writer
    from t5x_lite.inference.checkpoint import Checkpoint
    from t5x_lite.inference.loading import find_step
    from t5x_lite.inference.pairs import sigmoid_or_raw
    from t5x_lite.retrieval.fusion import reranked

    with trusting_checkpoints(trust_project), base_at(base):
        directory = find_step(checkpoint, step=step)
        # A file is read three times, so that memory holds texts, but not all rankings.
        kept = list(read_run(input)) if input == "-" else None
        again = (lambda: iter(kept)) if kept is not None else lambda: read_run(input, quiet=True)
        asked: dict[str, None] = {}
        names: set[str] = set()
        for ranking in read_run(input) if kept is None else kept:
            asked[ranking.query] = None
            names.update(one.document for one in ranking.documents[:depth])
        if not asked:
            raise InputError(f"run file {input} contains no ranking")
        texts = _texts(asked, names, beir=beir, queries=queries, passages=passages, run=input)
        model = Checkpoint.load(
            [directory], use=adapters.use, inputs_length=inputs_length, mesh=make_mesh(MeshConfig())
        )
        scorer = model.pair_scorer(batch_size=batch_size, query_length=query_length)
        shown = sigmoid_or_raw(sigmoid=sigmoid)
        identity = {
            "checkpoint": str(directory),
            "use": adapters.use,
            "rankings": _digest(again(), texts, depth=depth),
            "depth": depth,
            "sigmoid": sigmoid,
            "lengths": [scorer.length, scorer.query_length],
        }
        with (
            run_writer(
                output, identity=identity, chunk=_RERANKED_AT_A_TIME, format=format, tag=tag
            ) as file,
            counting("reranking", unit="queries", total=len(asked), done=file.done) as advance,
        ):
            those = itertools.islice(again(), file.done, None)
            while some := list(itertools.islice(those, _RERANKED_AT_A_TIME)):
                pairs = [
                    (texts.queries[ranking.query], texts.passages[one.document])
                    for ranking in some
                    for one in ranking.documents[:depth]
                ]
                scores = iter(shown(scorer.scores(pairs)).tolist() if pairs else [])
                file.write(
                    [
                        reranked(
                            ranking,
                            list(itertools.islice(scores, min(depth, len(ranking.documents)))),
                        )
                        for ranking in some
                    ]
                )
                advance(len(some))
    _logger.info(
        "%s: reranked %d queries, with up to %d documents each, by checkpoint %s",
        output,
        len(asked),
        depth,
        directory,
    )


class _Texts(NamedTuple):
    queries: Mapping[str, str]
    passages: Mapping[str, str]


def _texts(
    asked: Collection[str],
    names: Set[str],
    *,
    beir: str | None,
    queries: str | None,
    passages: str | None,
    run: str,
) -> _Texts:
    from t5x_lite.data.formats import retrieval_sets

    if beir is not None and queries is None and passages is None:
        found = _Texts(
            retrieval_sets.read_queries(beir), retrieval_sets.read_documents(beir, names)
        )
        where = (beir, beir)
    elif beir is None and queries is not None and passages is not None:
        found = _Texts(_read(queries, asked), _read(passages, names))
        where = (queries, passages)
    else:
        raise InputError(
            "`t5x-lite rerank` requires the texts of queries and passages; pass either --beir "
            "DIR, or both --queries FILE and --passages FILE"
        )
    lacking = [query for query in asked if query not in found.queries]
    if lacking:
        raise InputError(
            f"run file {run} has the query {lacking[0]!r}, but {where[0]} does not contain the "
            "text of this query"
        )
    if missing := sorted(names - found.passages.keys()):
        raise InputError(
            f"run file {run} has the document {missing[0]!r}, but {where[1]} does not contain the "
            f"text of this document; {len(missing)} documents are missing"
        )
    return found


def _read(path: str, wanted: Collection[str]) -> dict[str, str]:
    from t5x_lite.data.formats.pairs import read_passages

    return {one.id: one.whole for one in read_passages(path) if one.id in wanted}


def _digest(rankings: Iterable["Ranking"], texts: _Texts, *, depth: int) -> str:
    found = hashlib.sha256()
    for ranking in rankings:
        found.update(f"{ranking.query}\0{texts.queries[ranking.query]}\0".encode())
        for place, one in enumerate(ranking.documents):
            text = texts.passages[one.document] if place < depth else ""
            found.update(f"{one.document}\0{text}\0".encode())
    return found.hexdigest()


@command
def score_pairs(
    checkpoint: Directory,
    *,
    input: File,
    output: File,
    negatives_top: OptionalPositive = None,
    step: Step = None,
    base: OptionalDirectory = None,
    adapters: Modules = ALL_MODULES,
    batch_size: Positive = 32,
    inputs_length: OptionalPositive = None,
    query_length: OptionalPositive = None,
    heads: Texts = (),
    weights: Three = (1.0, 1.0, 1.0),
    trust_project: bool = False,
) -> None:
    """Add scores to the passages of training pairs, as targets of distillation.

    The scores come from a cross-encoder, or from the heads of a BGE-M3. If the command is killed,
    run it again to resume.

    Example:
        t5x-lite score-pairs --checkpoint work/ranker --input mined.jsonl --output scored.jsonl

    Args:
      checkpoint: work directory or checkpoint directory of a cross-encoder, or if --heads is given,
        of a BGE-M3.
      input: input file with JSON lines {"query", "pos", "neg"}; "-" reads standard input.
      output: output file: the input lines with the fields "pos_scores" and "neg_scores"; "-" writes
        to standard output.
      negatives_top: number of leading negatives per query to score; further negatives get null;
        default: all.
      step: step number of the checkpoint to load from a work directory, or "best" for the
        checkpoint with the best evaluation result; default: the newest checkpoint.
      base: directory of the base model, for a checkpoint that stores only its trained parameters;
        default: the base directory recorded in the checkpoint.
      adapters: names of the checkpoint's adapters to use; default: the adapters used in training.
      batch_size: number of query-passage pairs per batch, or if --heads is given, number of texts
        per batch.
      inputs_length: maximum number of tokens of query and passage together, or if --heads is given,
        of a passage; longer passages are truncated; default: the length in the checkpoint's config.
      query_length: maximum number of tokens of a query; default: the length in the checkpoint's
        config.
      heads: BGE-M3 heads to score with, any of dense, lexical and multi_vector; default: score with
        a cross-encoder.
      weights: weights of the dense, lexical and multi-vector scores in their weighted mean, the
        written score (`hybrid` and training use the weighted sum); only with --heads.
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.
    """
    from t5x_lite.checkpoints.init import base_at
    from t5x_lite.core.jobs import is_resumable, resumable_writer
    from t5x_lite.core.sharding import MeshConfig, make_mesh
    from t5x_lite.data.formats.lines import count_lines, writer
    from t5x_lite.inference.checkpoint import Checkpoint
    from t5x_lite.inference.loading import find_step

    with trusting_checkpoints(trust_project), base_at(base):
        directory = find_step(checkpoint, step=step)
        model = Checkpoint.load(
            [directory], use=adapters.use, inputs_length=inputs_length, mesh=make_mesh(MeshConfig())
        )
        scorer = model.pair_scorer(
            heads=heads, weights=weights, batch_size=batch_size, query_length=query_length
        )
        identity = {
            "checkpoint": str(directory),
            "use": adapters.use,
            "input": _file_digest(input),
            "negatives_top": negatives_top,
            "lengths": [scorer.length, scorer.query_length],
            **({"heads": list(heads), "weights": list(weights)} if heads else {}),
        }
        done = 0
        goes_on = is_resumable(output) and input != "-"
        opened: Any = (
            resumable_writer(output, identity=identity, chunk=_SCORED_AT_A_TIME)
            if goes_on
            else writer(output)
        )
        with (
            opened as file,
            counting(
                "scoring", unit="queries", total=count_lines(input), done=file.done
            ) as advance,
        ):
            records = itertools.islice(_records(input), file.done, None)
            while some := list(itertools.islice(records, _SCORED_AT_A_TIME)):
                file.write(*_scored(some, scorer, negatives_top))
                done += len(some)
                advance(len(some))
            if not done and not file.done:
                raise InputError(f"input {input} contains no query")
    _logger.info("%s: wrote %d queries with scores of checkpoint %s", output, file.done, directory)


def _records(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    from t5x_lite.data.formats import pairs
    from t5x_lite.data.formats.lines import read_examples

    for line in read_examples(path, fields=("query",)):
        _ = pairs.checked(line.record, line.where)
        yield line.where, dict(line.record)


def _scored(
    some: list[tuple[str, dict[str, Any]]], scorer: "CrossEncoder | HeadScorer", top: int | None
) -> Iterator[Mapping[str, Any]]:
    from t5x_lite.data.formats import pairs

    asked = []
    for where, record in some:
        one = pairs.from_json(pairs.checked(record, where))
        asked += [(one.query, text) for text in (*one.positives, *one.negatives[:top])]
    scores = iter(scorer.scores(asked).tolist())
    for _, record in some:
        negatives = record.get("neg", [])
        of_pos = list(itertools.islice(scores, len(record["pos"])))
        of_neg = list(itertools.islice(scores, len(negatives[:top])))
        missing = [None] * (len(negatives) - len(of_neg))
        yield {**record, "pos_scores": of_pos, "neg_scores": [*of_neg, *missing]}


def _file_digest(path: str) -> str:
    if path == "-":
        return ""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"input {path} cannot be read ({error.strerror})") from error


@command
def hybrid(
    corpus: Directory,
    *,
    queries: Directory,
    output: Directory,
    ways: Texts = ("dense", "lexical", "multi_vector", "dense_lexical", "all"),
    weights: Three = (1.0, 0.3, 1.0),
    pair_weights: Two = (1.0, 0.3),
    depth: Positive = 1000,
    rerank: Positive = 200,
    same_ids: Literal["keep", "drop"] = "keep",
    tag: Text = "t5x_lite",
) -> Path:
    """Rank documents by the heads of a BGE-M3, each one separately and in weighted sums.

    The command writes a run OUTPUT/NAME.trec for each name in --ways. The runs dense and lexical
    rank all documents by one head. The run dense_lexical ranks the top documents of both runs by a
    weighted sum. The run multi_vector ranks the top documents of dense by one head, and the run all
    ranks them by the weighted sum of all three heads. evaluate-run compares the runs.

    Example:
        t5x-lite hybrid --corpus work/corpus --queries work/queries --output work/runs

    Args:
      corpus: directory with the documents' vectors, as `t5x-lite embed --heads ...` writes it.
      queries: directory with the queries' vectors, as `t5x-lite embed --heads ...` writes it.
      output: output directory for the runs, which must not exist.
      ways: runs to write, any of dense, lexical, multi_vector, dense_lexical (weighted sum of dense
        and lexical) and all (weighted sum of all three).
      weights: weights of the dense, lexical and multi-vector scores in the run "all"; the BGE-M3
        paper uses .15 .5 .35 for long documents.
      pair_weights: weights of the dense and lexical scores in the run "dense_lexical"; the BGE-M3
        paper uses .2 .8 for long documents.
      depth: maximum number of documents per query.
      rerank: number of documents to rescore for the runs multi_vector and all, from the top of the
        dense run.
      same_ids: treatment of documents with the same id as the query: "keep" keeps them in the
        results, "drop" removes them, as BEIR's evaluation does.
      tag: name of the run, written to the last column of the TREC format.

    Returns:
      The path of the output directory.

    Raises:
      InputError: if a directory lacks the vectors of a requested head, or the output exists.
    """
    from t5x_lite.config.evaluation import Ways
    from t5x_lite.core.files import new_directory
    from t5x_lite.data.formats.rankings import Ranking, check_tag, ranked, write_run
    from t5x_lite.data.formats.vectors import M3Texts
    from t5x_lite.retrieval.fusion import Finder

    if not ways:
        raise OptionError("--ways requires at least one name, such as dense or dense_lexical")
    asks = Ways(
        names=tuple(ways), weights=weights, pair_weights=pair_weights, depth=depth, rerank=rerank
    )
    check_tag(tag)
    documents, asked = M3Texts(corpus), M3Texts(queries)
    for head in asks.heads:
        for where, one in ((corpus, documents), (queries, asked)):
            if not one.has(head):
                raise InputError(
                    f"directory {where} has no output of the head {head!r}; encode the texts by "
                    f"`t5x-lite embed --heads {' '.join(asks.heads)}`"
                )
    if not asked.ids or not documents.ids:
        raise InputError(f"directory {corpus if asked.ids else queries} contains no text")
    for where, one in ((corpus, documents), (queries, asked)):
        if len(set(one.ids)) < len(one.ids):
            twice = next(name for name in one.ids if one.ids.count(name) > 1)
            raise InputError(f"directory {where}: two texts have the id {twice!r}")
    finder, found = Finder(documents, asks), {name: [] for name in asks.names}
    terms = asked.terms() if "lexical" in asks.heads else None
    with (
        new_directory(output) as directory,
        contextlib.closing(terms) if terms is not None else contextlib.nullcontext(),
        counting("searching", unit="queries", total=len(asked.ids)) as advance,
    ):
        for number, query in enumerate(asked.ids):
            rankings = finder.rank(
                None if asked.dense is None else asked.dense[number],
                None if terms is None else next(terms),
                asked.vectors(number) if "multi_vector" in asks.heads else None,
            )
            for name, scored in rankings.items():
                named = [(documents.ids[i], score) for i, score in scored]
                kept = [pair for pair in named if same_ids == "keep" or pair[0] != query]
                found[name].append(Ranking(query, ranked(kept)))
            advance(1)
        for name, rankings in found.items():
            write_run(str(directory / f"{name}.trec"), rankings, tag=tag)
    _logger.info(
        "%s: ranked the documents for %d queries and wrote the runs %s",
        output,
        len(asked.ids),
        ", ".join(asks.names),
    )
    return Path(output)
