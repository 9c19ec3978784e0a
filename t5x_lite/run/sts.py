"""`t5x-lite evaluate-sts`: do the cosines of sentence pairs rank as people's scores do?

    evaluate_sts(["STS-B/dev.tsv"], encoder=QueryEncoder("work/bert"))
    # {"STS-B/dev.tsv": {"pairs": 1500, "spearman": 0.85, "pearson": 0.84}}

A file is a table with tabs whose first line names the columns sentence1, sentence2 and score, as
GLUE's STS-B has them, or JSON lines with these fields. Spearman's coefficient is the one that
papers report (Reimers and Gurevych 2019; Gao et al. 2021, arXiv:2104.08821).
"""

import json
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t5x_lite.errors import InputError
from t5x_lite.files import write_atomically
from t5x_lite.metrics.correlation import pearson, spearman
from t5x_lite.progress import print_result
from t5x_lite.records.compressed import plain_name
from t5x_lite.records.json_lines import read_examples
from t5x_lite.records.lines import read_lines
from t5x_lite.run.searching import QueryEncoder
from t5x_lite.run.text_encoder import TextEncoder
from t5x_lite.sharding import MeshConfig, make_mesh

_logger = logging.getLogger(__name__)

_COLUMNS = ("sentence1", "sentence2", "score")


class Pair(NamedTuple):
    """Two sentences and how alike people find them."""

    first: str
    second: str
    score: float


def evaluate_sts(
    inputs: Sequence[str], *, encoder: QueryEncoder, output: str | None = None
) -> dict[str, dict[str, float | int]]:
    """Correlate cosines with scores, and print the coefficients: a table, or JSON in a pipe.

    Args:
      inputs: files of pairs.
      encoder: of the sentences.
      output: a file for what is printed.

    Returns:
      By file "pairs", "spearman" and "pearson".

    Raises:
      InputError: a file is wrong, or the checkpoint has no encoder.
    """
    sets = {path: read_pairs(path) for path in inputs}
    loaded = TextEncoder.load(
        encoder.checkpoint,
        step=encoder.step,
        use=encoder.use,
        mesh=make_mesh(MeshConfig()),
        length=encoder.inputs_length,
        pooling=encoder.pooling,
        normalize=True,
    )
    begins = loaded.begins_with(encoder.prefix, encoder.prompt)
    embedder = loaded.embedder(batch_size=encoder.batch_size)
    result: dict[str, dict[str, float | int]] = {}
    for path, pairs in sets.items():
        texts = [begins + text for pair in pairs for text in pair[:2]]
        vectors = embedder.run(loaded.params, loaded.rows(texts).rows)
        cosines = np.sum(vectors[::2] * vectors[1::2], axis=1).astype(np.float64).tolist()
        scores = [pair.score for pair in pairs]
        result[path] = {
            "pairs": len(pairs),
            "spearman": spearman(scores, cosines)["spearman_corrcoef"],
            "pearson": pearson(scores, cosines)["pearson_corrcoef"],
        }
    print_result(result, ({"file": path, **one} for path, one in result.items()))
    if output is not None:
        try:
            write_atomically(output, (json.dumps(result, indent=1) + "\n").encode())
        except OSError as error:
            raise InputError(f"{output}: cannot be written ({error.strerror})") from error
        _logger.info("wrote %s", output)
    return result


def read_pairs(path: str) -> list[Pair]:
    """The pairs of a file.

    Raises:
      InputError: naming file and line: a column is missing, a score is no number; or there is no
        pair.
    """
    is_json = Path(plain_name(path)).suffix in (".jsonl", ".json")
    pairs = list(_of_objects(path) if is_json else _of_table(path))
    if not pairs:
        raise InputError(f"{path}: no pair of sentences")
    return pairs


def _of_objects(path: str) -> Iterator[Pair]:
    for where, record in read_examples(path, fields=_COLUMNS[:2]):
        first, second = (record[name] for name in _COLUMNS[:2])
        yield Pair(first, second, _score(record.get("score"), where))


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
