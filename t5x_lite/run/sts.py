"""`t5x-lite evaluate-sts`: do the cosines of sentence pairs rank as people's scores do?

    evaluate_sts(["STS-B/dev.tsv"], encoder=QueryEncoder("work/bert"))
    # {"STS-B/dev.tsv": {"pairs": 1500, "spearman": 0.85, "pearson": 0.84}}

A file is a table with tabs whose first line names the columns sentence1, sentence2 and score, as
GLUE's STS-B has them, or JSON lines with these fields. Spearman's coefficient is the one that
papers report (Reimers and Gurevych 2019; Gao et al. 2021, arXiv:2104.08821).

A file of triplets is *.csv with the columns Sentence1, Sentence2 and Sentence3, as Wikipedia's
sections have them (Dor et al. 2018), or JSON lines with anchor, positive and negative. Its accuracy
is the fraction of triplets whose first sentence is nearer to the second than to the third.
"""

import json
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from t5x_lite.buckets.paths import data_path
from t5x_lite.errors import InputError
from t5x_lite.files import write_atomically
from t5x_lite.inference.queries import QueryEncoder
from t5x_lite.metrics.correlation import pearson, spearman
from t5x_lite.progress import print_result
from t5x_lite.records.benchmark_files import Row
from t5x_lite.records.compressed import plain_name
from t5x_lite.records.json_lines import read_examples
from t5x_lite.records.lines import read_lines
from t5x_lite.records.tables import read_table
from t5x_lite.run.text_encoder import TextEncoder
from t5x_lite.sharding import MeshConfig, make_mesh

_logger = logging.getLogger(__name__)

_COLUMNS = ("sentence1", "sentence2", "score")
_TRIPLETS = ("anchor", "positive", "negative")
_SECTIONS = ("Sentence1", "Sentence2", "Sentence3")


class Pair(NamedTuple):
    """Two sentences and how alike people find them."""

    first: str
    second: str
    score: float


class Triplet(NamedTuple):
    """Three sentences; the first is about the second's subject, and not about the third's."""

    anchor: str
    positive: str
    negative: str


def evaluate_sts(
    inputs: Sequence[str], *, encoder: QueryEncoder, output: str | None = None
) -> dict[str, dict[str, float | int]]:
    """Correlate cosines with scores, and print the coefficients: a table, or JSON in a pipe.

    Args:
      inputs: files of pairs or of triplets.
      encoder: of the sentences.
      output: a file for what is printed.

    Returns:
      By file "pairs", "spearman" and "pearson", or "triplets" and "accuracy".

    Raises:
      InputError: a file is wrong, or the checkpoint has no encoder.
    """
    sets = {path: read_pairs(path) for path in inputs}
    loaded = TextEncoder.load(
        encoder.named(),
        step=encoder.step,
        use=encoder.adapters.use,
        mesh=make_mesh(MeshConfig()),
        length=encoder.inputs_length,
        pooling=encoder.pooling,
        normalize=True,
    )
    begins = loaded.begins_with(encoder.prefix, encoder.prompt)
    embedder = loaded.embedder(batch_size=encoder.batch_size)
    result: dict[str, dict[str, float | int]] = {}
    for path, examples in sets.items():
        texts = [begins + one for each in examples for one in each if isinstance(one, str)]
        vectors = embedder.run(loaded.params, loaded.rows(texts).rows)
        result[path] = _measured(examples, vectors.reshape(len(examples), -1, vectors.shape[-1]))
    print_result(result, ({"file": path, **one} for path, one in result.items()))
    if output is not None:
        try:
            write_atomically(output, (json.dumps(result, indent=1) + "\n").encode())
        except OSError as error:
            raise InputError(f"{output}: cannot be written ({error.strerror})") from error
        _logger.info("wrote %s", output)
    return result


def _measured(examples: list[Pair] | list[Triplet], vectors: np.ndarray) -> dict[str, float | int]:
    """The metrics of a file.

    Args:
      examples: pairs or triplets.
      vectors: float32 [examples, 2 or 3, dimensions], of length 1.
    """
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
    """The pairs or triplets of a file.

    Raises:
      InputError: naming file and line: a column is missing, a score is no number; or there is no
        pair.
    """
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
        raise InputError(f"{path}: no pair of sentences")
    return found


def _sentence(row: Row, column: str) -> str:
    value = row.fields[column]
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{row.where}: {column} must be a sentence, got {value!r:.20}")
    return value


def _of_objects(path: str) -> Iterator[Pair | Triplet]:
    """The objects of a file, whose first one tells whether they are pairs or triplets."""
    first = next(read_examples(path, fields=()), None)
    if first is not None and _TRIPLETS[0] in first.record:
        for _, record in read_examples(path, fields=_TRIPLETS):
            yield Triplet(*(record[name] for name in _TRIPLETS))
        return
    for where, record in read_examples(path, fields=_COLUMNS[:2]):
        one, other = (record[name] for name in _COLUMNS[:2])
        yield Pair(one, other, _score(record.get("score"), where))


def _of_table(path: str) -> Iterator[Pair]:
    lines = enumerate(read_lines([path]), start=1)
    names = next(lines, (0, ""))[1].split("\t", 1000)
    if missing := [name for name in _COLUMNS if name not in names]:
        raise InputError(f"{path}:1: must name the columns {', '.join(_COLUMNS)}: no {missing[0]}")
    places = [names.index(name) for name in _COLUMNS]
    for number, line in lines:
        fields = line.split("\t", len(names))
        if not line.strip():
            continue
        if len(fields) <= max(places):
            raise InputError(f"{path}:{number}: has {len(fields)} columns, and line 1 {len(names)}")
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
