"""`t5x-lite fuse` and `evaluate-run`: runs in files, made one, measured and compared."""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_lite.errors import InputError
from t5x_lite.files import made_directory, write_atomically
from t5x_lite.metrics import answers as answering
from t5x_lite.metrics import runs as metrics_of_runs
from t5x_lite.metrics.paired import randomisation_test
from t5x_lite.progress import Row, print_result
from t5x_lite.records.answer_files import read_answers
from t5x_lite.records.json_lines import encode
from t5x_lite.records.passages import read_passages
from t5x_lite.records.run_files import Ranked, RunFormat, read_qrels, read_run, write_run
from t5x_lite.report.retrieval import Measured, write_page
from t5x_lite.retrieval.fusion import RRF_K, Method
from t5x_lite.retrieval.fusion import fuse as fused

_logger = logging.getLogger(__name__)


def fuse(
    runs: Sequence[str],
    *,
    output: str,
    method: Method = "rrf",
    weights: Sequence[float] = (),
    depth: int = 1000,
    k: int = 1000,
    rrf_k: int = RRF_K,
    format: RunFormat | None = None,
    tag: str = "fused",
) -> None:
    """Writes one run of several.

    Args:
      runs: the files.
      output: the run.
      method: how scores are added.
      weights: of the runs; none is 1 for each.
      depth: documents of each ranking that count.
      k: documents of a fused ranking at most.
      rrf_k: what is added to a rank by "rrf".
      format: of the run; None is what its name says.
      tag: TREC's name of the run.

    Raises:
      InputError: a run is wrong, or has no scores that the method needs.
    """
    read = [_rankings(path) for path in runs]
    rankings = list(fused(read, method=method, weights=weights, depth=depth, k=k, rrf_k=rrf_k))
    write_run(output, rankings, format=format, tag=tag)
    _logger.info(
        "wrote %s: %d queries of %d runs, fused by %s", output, len(rankings), len(runs), method
    )


def evaluate_run(
    runs: Sequence[str],
    *,
    qrels: str | None = None,
    metrics: Sequence[str] = metrics_of_runs.DEFAULT,
    answers: str | None = None,
    corpus: Sequence[str] = (),
    cuts: Sequence[int] = (5, 20, 100),
    output: str | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure runs, compare the first with the others, and print a table, or JSON in a pipe.

    Args:
      runs: the files.
      qrels: judgements (`records.run_files.read_qrels`).
      metrics: names (`metrics.runs`).
      answers: of questions, in place of qrels: the share that has one in the first k passages.
      corpus: the passages, for the answers.
      cuts: the k of the answers.
      output: the directory that gets metrics.json, RUN.queries.jsonl and report.html; None writes
        nothing.
      seed: of the paired tests' draws.

    Returns:
      What is printed: by run the means, and the p-values of the differences from the first run.

    Raises:
      InputError: a file is wrong, or neither qrels nor answers are given, or both.
    """
    if (qrels is None) == (answers is None):
        raise InputError("give --qrels, or --answers and --corpus")
    names = run_names(runs)
    if qrels is not None:
        judged = read_qrels(qrels)
        measured = [_measured(name, path, judged, metrics) for name, path in names.items()]
    else:
        measured = _answered(names, str(answers), corpus, cuts)
    result = compared(measured, seed=seed)
    if output is not None:
        write_results(output, measured, result, source=qrels or str(answers))
    print_result(result, _rows(result))
    if output is not None:
        _logger.info("wrote %s/metrics.json, and a page: %s/report.html", output, output)
    return result


def _rows(result: Mapping[str, Any]) -> list[Row]:
    """The table of a terminal: a row for each run, and for its p-values against the first run."""
    rows: list[Row] = []
    for name, means in result["runs"].items():
        rows.append({"run": name, "queries": result["queries"], **means})
        if name in result.get("p_values", {}):
            first = next(iter(result["runs"]))
            rows.append({"run": f"  p-value against {first}", **result["p_values"][name]})
    return rows


def run_names(runs: Sequence[str]) -> dict[str, str]:
    """A name for each run: that of its file, or its path where two have one name."""
    stems = [Path(path).name.removesuffix(".gz").rsplit(".", 1)[0] for path in runs]
    names = stems if len(set(stems)) == len(stems) else list(runs)
    if len(set(names)) < len(names):
        raise InputError("one run was given twice")
    return dict(zip(names, runs, strict=True))


def compared(measured: Sequence[Measured], *, seed: int = 0) -> dict[str, Any]:
    """The means of each run, and how likely the differences from the first are by chance."""
    first, *others = measured
    result: dict[str, Any] = {
        "queries": len(first.by_query),
        "runs": {one.name: one.means for one in measured},
    }
    if others:
        result["p_values"] = {
            one.name: {
                metric: randomisation_test(
                    [values[metric] for values in first.by_query.values()],
                    [one.by_query[query][metric] for query in first.by_query],
                    seed=seed,
                )
                for metric in first.means
            }
            for one in others
        }
    return result


def write_results(
    output: str, measured: Sequence[Measured], result: Mapping[str, Any], *, source: str
) -> None:
    """Writes metrics.json, the values of each query, and the page."""
    directory = Path(output)
    try:
        with made_directory(directory):
            for one in measured:
                lines = ({"query": query, **values} for query, values in one.by_query.items())
                name = one.name.replace("/", "_")
                write_atomically(directory / f"{name}.queries.jsonl", encode(lines))
            content = json.dumps(result, indent=1).encode() + b"\n"
            write_atomically(directory / "metrics.json", content)
    except OSError as error:
        raise InputError(f"{output}: cannot be written ({error.strerror})") from error
    write_page(directory / "report.html", measured, result, source=source)


def _rankings(path: str) -> dict[str, list[Ranked]]:
    return {ranking.query: ranking.documents for ranking in read_run(path)}


def _measured(
    name: str, path: str, judged: Mapping[str, Mapping[str, int]], metrics: Sequence[str]
) -> Measured:
    places = {
        query: [(one.document, one.rank) for one in documents]
        for query, documents in _rankings(path).items()
        if query in judged
    }
    if not places:
        raise InputError(f"{path}: no query of the qrels, such as {next(iter(judged))!r}")
    if missing := len(judged) - len(places):
        _logger.warning("%s: %d of %d judged queries have no ranking", path, missing, len(judged))
    by_query = metrics_of_runs.per_query(judged, places, metrics)
    curves = {
        kind: [
            (cut, metrics_of_runs.means(metrics_of_runs.per_query(judged, places, [at]))[at])
            for cut, at in ((cut, f"{kind}@{cut}") for cut in CURVE_CUTS)
        ]
        for kind in ("ndcg", "recall")
    }
    return Measured(name, metrics_of_runs.means(by_query), by_query, curves)


CURVE_CUTS = (1, 2, 3, 5, 10, 20, 30, 50, 70, 100)
"""Places of the page's curves."""


def _answered(
    names: Mapping[str, str], answers: str, corpus: Sequence[str], cuts: Sequence[int]
) -> list[Measured]:
    wanted = read_answers(answers)
    most = max(cuts)
    runs = {name: _rankings(path) for name, path in names.items()}
    needed = {
        one.document
        for run in runs.values()
        for query in wanted
        for one in run.get(query, [])[:most]
    }
    texts = {
        passage.id: f"{passage.title}\n{passage.text}"
        for path in corpus
        for passage in read_passages(path)
        if passage.id in needed
    }
    if missing := needed - set(texts):
        raise InputError(
            f"--corpus lacks {len(missing)} passages of the runs, such as {min(missing)!r}"
        )
    measured = []
    for name, run in runs.items():
        firsts = {
            query: answering.first_answer(
                found, (texts[one.document] for one in run.get(query, [])[:most])
            )
            for query, found in wanted.items()
        }
        by_query = {
            query: {f"top@{cut}": float(0 < first <= cut) for cut in cuts}
            for query, first in firsts.items()
        }
        means = metrics_of_runs.means(by_query)
        points = [
            (cut, math.fsum(0 < first <= cut for first in firsts.values()) / len(firsts))
            for cut in CURVE_CUTS
            if cut <= most
        ]
        measured.append(Measured(name, means, by_query, {"top": points}))
    return measured
