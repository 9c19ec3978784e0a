"""`t5x-lite mine`: hard negatives of queries, from a checkpoint's own search or from a run.

    mine(input="pairs.jsonl", output="mined.jsonl", source=EncoderSource("work/retriever"))
    mine(input="scifact", output="mined.jsonl", source=RunSource("bm25.trec"))    # BEIR

The output is what `tasks.pairs` reads: {"query", "pos", "neg", "pos_ids", "neg_ids", "pos_scores",
"neg_scores"} and what else a line had. Beside it OUTPUT.settings.json says how it was made, and how
many candidates each rule dropped. `retrieval.mine` has the rules. What is slow, the vectors of the
pool and the search, stands in OUTPUT.partial until the output is whole: a killed command goes on.
"""

import contextlib
import hashlib
import json
import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from t5x_lite.errors import InputError
from t5x_lite.files import locked, naming, write_atomically
from t5x_lite.records.json_lines import writer
from t5x_lite.records.run_files import read_run
from t5x_lite.retrieval.mine import Candidate, Chosen, Known, Rules, choose
from t5x_lite.retrieval.pool import Pool, digest
from t5x_lite.run.mining_inputs import Asked, Inputs, read_inputs
from t5x_lite.run.mining_search import EncoderSearch, EncoderSource

_USUAL = Rules()
_logger = logging.getLogger(__name__)


class RunSource(NamedTuple):
    """Rankings that another command wrote.

    Attributes:
      path: the run: of bm25 search, search, fuse or rerank; its queries are those of the input, by
        id.
    """

    path: str


class _Ranked(NamedTuple):
    """A query's ranking, and the scores of its answers; None are not known."""

    candidates: list[Candidate]
    answers: list[float | None]


def mine(
    *,
    input: str,
    output: str,
    source: EncoderSource | RunSource,
    passages: Sequence[str] = (),
    split: str = "train",
    rules: Rules = _USUAL,
    rescore: bool = False,
) -> None:
    """Writes queries with hard negatives.

    Args:
      input: *.jsonl of {"query", "pos"}, or a directory in BEIR's format.
      output: *.jsonl.
      source: the checkpoint that searches, or a run.
      passages: files of the passages that are searched; without them all that the input has:
        corpus.jsonl of a directory, and the passages of all queries of a file.
      split: of a directory, whose judgements are taken: "train", "validation" or "test".
      rules: which passages become negatives.
      rescore: whether scores of the search replace "pos_scores" of the input. Else these stay, and
        a new negative has the score that the input has for its text, or null: two scales in one
        line would mislead a student.

    Raises:
      InputError: a file is wrong, a run names what the input does not have, or what is there of the
        output is of another command.
    """
    if output == "-":
        raise InputError("--output must be a file: its settings stand beside it")
    inputs = read_inputs(input, passages=passages, split=split)
    settings = {
        "input": inputs.digest,
        "pool": inputs.pool.identity(),
        "passages": len(inputs.pool),
        "source": _of_source(source),
        "rules": asdict(rules),
        "rescore": rescore,
    }
    with contextlib.ExitStack() as held:
        _mine(inputs, settings, output, source=source, rules=rules, rescore=rescore, held=held)


def _mine(
    inputs: Inputs,
    settings: dict[str, Any],
    output: str,
    *,
    source: EncoderSource | RunSource,
    rules: Rules,
    rescore: bool,
    held: contextlib.ExitStack,
) -> None:
    """Write the lines; `held` has the lock of what is unfinished."""
    folder = None
    if isinstance(source, RunSource):
        rankings = _of_run(source.path, inputs, rules)
    else:
        identity = {key: settings[key] for key in ("input", "pool", "source")}
        folder = _folder(output, {**identity, "last": rules.last}, held)
        rankings = _of_search(EncoderSearch(source, inputs, folder=folder), inputs, rules)
    report = _Report()
    answers, digests = inputs.answers_by_query(), inputs.digests_by_query()
    texts = inputs.texts_by_query()
    with writer(output) as file:
        for one, ranked in zip(inputs.asked, rankings, strict=True):
            scores = [score for score in ranked.answers if score is not None]
            known = Known(
                numbers=answers[one.key],
                digests=digests[one.key],
                own=frozenset((digest(one.query), digest(one.prompted))),
                lowest=min(scores) if len(scores) == len(one.positives) else None,
                texts=texts[one.key],
            )
            chosen = choose(one.id, ranked.candidates, known, inputs.pool, rules)
            report.add(chosen, rules)
            file.write(_record(one, ranked, chosen, inputs.pool, rescore=rescore))
        header = json.dumps({**settings, "report": report.as_json()}, indent=1)
        write_atomically(Path(f"{output}.settings.json"), header.encode() + b"\n")
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    report.tell(output)


def _of_source(source: EncoderSource | RunSource) -> dict[str, Any]:
    if isinstance(source, EncoderSource):
        return source.identity()
    try:
        with open(source.path, "rb") as file:
            return {"run": hashlib.file_digest(file, "sha256").hexdigest()}
    except OSError as error:
        raise InputError(f"{source.path}: cannot be read ({error.strerror})") from error


def _folder(output: str, identity: dict[str, Any], held: contextlib.ExitStack) -> Path:
    """OUTPUT.partial, which is this process's until `held` ends.

    Raises:
      InputError: it is another command's, or another process uses it.
    """
    folder = Path(f"{output}.partial")
    path = folder / "identity.json"
    identity = json.loads(json.dumps(identity))
    with naming(output):
        folder.mkdir(exist_ok=True)
        held.enter_context(locked(folder, output=output))
    if path.exists():
        known = json.loads(path.read_text())
        if known != identity:
            other = [key for key in identity if known.get(key) != identity[key]]
            raise InputError(
                f"{folder} is of another command (other {', '.join(other)}): give that one again, "
                f"delete the directory, or give another output than {output}"
            )
    write_atomically(path, json.dumps(identity, indent=1).encode() + b"\n")
    return folder


def _of_run(path: str, inputs: Inputs, rules: Rules) -> Iterator[_Ranked]:
    """The ranking of each query in a run; none of a query that it lacks.

    Raises:
      InputError: it names a query or a passage that is not there, or has no scores for the rules.
    """
    rankings: dict[str, list[Candidate]] = {}
    scores: dict[str, dict[int, float | None]] = {}
    places = {one.id: one for one in inputs.asked}
    if len(places) < len(inputs.asked):
        raise InputError('an id of a query comes twice: give each line an "id" of its own')
    for ranking in read_run(path):
        if ranking.query not in places:
            raise InputError(f"{path} names the query {ranking.query!r}, which the input lacks")
        found = []
        for one in ranking.documents:
            number = inputs.pool.number(one.document)
            if number is None:
                raise InputError(
                    f"{path} names the document {one.document!r}, which the passages lack"
                )
            if one.score is None and rules.scored:
                raise InputError(f"{path} has no scores: a margin or a limit needs TREC's form")
            found.append(Candidate(number, one.score))
        rankings[ranking.query] = found[: rules.last]
        answers = {number for number in places[ranking.query].positives if number is not None}
        scores[ranking.query] = {number: score for number, score in found if number in answers}
    if not rankings:
        raise InputError(f"{path}: no ranking")
    for one in inputs.asked:
        own = scores.get(one.id, {})
        answers = [
            before if number is None else own.get(number, before)
            for number, before in zip(one.positives, one.scores, strict=True)
        ]
        yield _Ranked(rankings.get(one.id, []), answers)


def _of_search(search: EncoderSearch, inputs: Inputs, rules: Rules) -> Iterator[_Ranked]:
    best = search.run(depth=min(rules.last, len(inputs.pool)))
    answers = search.scores_of_answers()
    for scores, rows, own in zip(best.scores, best.rows, answers, strict=True):
        pairs = zip(rows.tolist(), scores.tolist(), strict=True)
        yield _Ranked([Candidate(row, score) for row, score in pairs if row >= 0], [*own])


def _record(
    one: Asked, ranked: _Ranked, chosen: Chosen, pool: Pool, *, rescore: bool
) -> dict[str, Any]:
    """The line of a query."""
    record = {key: value for key, value in one.record.items() if not key.startswith("neg")}
    record["neg"] = [pool.text(number) for number in chosen.numbers]
    record["pos_ids"], record["neg_ids"] = (
        [*one.names],
        [pool.name(number) for number in chosen.numbers],
    )
    record["pos_scores"], record["neg_scores"] = ranked.answers, chosen.scores
    if one.record.get("pos_scores") is not None and not rescore:
        negatives, scores = one.record.get("neg", []), one.record.get("neg_scores")
        known = dict(zip(negatives, scores or [None] * len(negatives), strict=True))
        record["pos_scores"] = one.record["pos_scores"]
        record["neg_scores"] = [known.get(text) for text in record["neg"]]
    if None in one.names:
        del record["pos_ids"], record["neg_ids"]
    return record


class _Report:
    """How many candidates each rule dropped, and how many queries have too few negatives."""

    def __init__(self):
        self._queries = self._negatives = self._few = self._none = self._filled = 0
        self._dropped: Counter[str] = Counter()

    def add(self, chosen: Chosen, rules: Rules) -> None:
        num = len(chosen.numbers) - chosen.filled
        self._queries += 1
        self._negatives += num
        self._filled += chosen.filled
        self._few += num < rules.negatives
        self._none += num == 0
        self._dropped.update(chosen.dropped)

    def as_json(self) -> dict[str, Any]:
        return {
            "queries": self._queries,
            "negatives": self._negatives,
            "filled": self._filled,
            "queries_with_too_few": self._few,
            "queries_with_none": self._none,
            "dropped": dict(sorted(self._dropped.items())),
        }

    def tell(self, output: str) -> None:
        dropped = [f"{num} {why}" for why, num in sorted(self._dropped.items())]
        _logger.info(
            "%s: %d queries, %d negatives and %d random ones; candidates dropped: %s",
            output,
            self._queries,
            self._negatives,
            self._filled,
            ", ".join(dropped) or "none",
        )
        if self._few:
            _logger.warning(
                "%d queries have fewer negatives of their ranking than were asked for, and %d none",
                self._few,
                self._none,
            )
