r"""Commands that mine hard negatives, from a finished search or during training: mine, refresh.

    mine("pairs.jsonl", output="mined.jsonl", checkpoint="work/retriever")
    mine("scifact", output="mined.jsonl", rankings="bm25.trec")    # BEIR
    refresh("work/run", passages=["corpus.jsonl"])

`mine` writes the input of `tasks.pairs`: {"query", "pos", "neg", "pos_ids", "neg_ids",
"pos_scores", "neg_scores"} and all other fields of the input line. OUTPUT.settings.json lists the
settings, and the number of candidates that each rule of `retrieval.mining` dropped. The passage
vectors and the search results are kept in OUTPUT.partial until the output is complete, so a killed
command resumes.

`refresh` searches for hard negatives with the checkpoints of a training run that uses them (ANCE):

    t5x-lite train CONFIG --workdir W --data.cache C --data.refresh.period 1000 \
        --data.refresh.directory W/refresh
    t5x-lite refresh W --passages corpus.jsonl          # meanwhile, here or on another machine

The result of a search is written when it is complete; a killed command repeats its last search.
"""

import contextlib
import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from t5x_lite.commands.command import command
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import write_atomically
from t5x_lite.core.jobs import resumable_directory
from t5x_lite.core.option_types import (
    SHARED,
    File,
    Files,
    OptionalDirectory,
    OptionalFile,
    Positive,
    SomeDirectory,
)
from t5x_lite.core.options import OptionError
from t5x_lite.core.project import trusting_checkpoints
from t5x_lite.retrieval.mining import Candidate, Chosen, Known, Rules, choose
from t5x_lite.retrieval.queries import EncoderSearch, PairEncoder

if TYPE_CHECKING:
    from t5x_lite.retrieval.mining_inputs import Asked, Inputs, Pool

_RULES = Rules()
_ENCODER = PairEncoder()

_logger = logging.getLogger(__name__)


class _Ranked(NamedTuple):
    """Passages ranked for a query, and the score of each positive of the query or None."""

    candidates: list[Candidate]
    answers: list[float | None]


@command
def mine(
    input: File,
    *,
    output: File,
    checkpoint: OptionalDirectory = None,
    rankings: OptionalFile = None,
    passages: Files = (),
    vectors: Files = (),
    split: Literal["train", "validation", "test"] = "train",
    rules: Annotated[Rules, SHARED] = _RULES,
    rescore: bool = False,
    encoder: Annotated[PairEncoder, SHARED] = _ENCODER,
) -> None:
    r"""Find hard negatives: passages ranked high for a query that are not among its positives.

    A passage with the id or the words of a positive, a passage with the words of the query, and a
    duplicate of another negative are never negatives. The same files and options give the same
    negatives. If the command is killed, run it again to resume.

    Example:
        t5x-lite mine --input pairs/train.jsonl --checkpoint work/encoder --passages corpus.jsonl \
            --output mined/train.jsonl

    Args:
      input: queries with positives: JSON lines {"query", "pos"}, or a directory in BEIR's format.
      output: output file with the input lines and their negatives: "neg", ids and scores. The
        settings are written to OUTPUT.settings.json.
      checkpoint: checkpoint of the encoder that searches for candidates, instead of --rankings.
      rankings: run file of bm25 search, search, fuse or rerank with the candidates, instead of
        --checkpoint; its query ids are the "id" fields of the input.
      passages: passage files to take negatives from; default: the passages of the input.
      vectors: vector files of the passages, in the same order; default: encode the passages.
      split: split of a BEIR directory with the relevance judgments (qrels) that define the
        positives.
      rules: settings of the rules that choose negatives (`mining.Rules`), one option each.
      rescore: replace the "pos_scores" of the input by scores of the search; default: keep them.
      encoder: options that encode the queries and the passages, such as lengths and batch size.
    """
    from t5x_lite.checkpoints.base import base_at
    from t5x_lite.data.formats.lines import writer
    from t5x_lite.retrieval.mining_inputs import read_inputs

    if (checkpoint is None) == (rankings is None):
        raise OptionError("mine needs exactly one of --checkpoint DIR and --rankings FILE")
    if vectors and checkpoint is None:
        raise OptionError("--vectors needs --checkpoint, which encodes the queries")
    if output == "-":
        raise InputError(
            "--output must be a file, but is standard output; the settings are written to "
            "OUTPUT.settings.json"
        )
    with (
        trusting_checkpoints(encoder.trust_project),
        base_at(encoder.base),
        contextlib.ExitStack() as held,
    ):
        inputs = read_inputs(input, passages=passages, split=split)
        made_of: dict[str, Any] = {"input": inputs.digest, "pool": inputs.pool.identity()}
        if checkpoint is None:
            assert rankings is not None
            made_of["source"] = {"run": _digest_of(rankings)}
            found = _of_run(rankings, inputs, rules)
        else:
            made_of["source"] = encoder.identity(checkpoint, vectors)
            identity = {**made_of, "last": rules.last}
            folder = held.enter_context(
                resumable_directory(output, identity=identity, content="the vectors", scratch=True)
            )
            search = EncoderSearch(checkpoint, inputs, encoder, vectors=vectors, folder=folder)
            found = _of_search(search, inputs, rules)
        report = _Report()
        with writer(output) as file:
            for record in _records(inputs, found, rules, report, rescore=rescore):
                file.write(record)
            settings = {
                **made_of,
                "passages": len(inputs.pool),
                "rules": asdict(rules),
                "rescore": rescore,
                "report": report.as_json(),
            }
            header = json.dumps(settings, indent=1)
            write_atomically(Path(f"{output}.settings.json"), header.encode() + b"\n")
        report.tell(output)


def _digest_of(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"run file {path} cannot be read ({error.strerror})") from error


def _of_run(path: str, inputs: "Inputs", rules: Rules) -> Iterator[_Ranked]:
    from t5x_lite.data.formats.rankings import read_run

    rankings: dict[str, list[Candidate]] = {}
    scores: dict[str, dict[int, float | None]] = {}
    places = {one.id: one for one in inputs.asked}
    if len(places) < len(inputs.asked):
        raise InputError('two input lines have the same query id; give each line a different "id"')
    for ranking in read_run(path):
        if ranking.query not in places:
            raise InputError(
                f"run file {path} has the query {ranking.query!r}, but --input does not contain "
                "this query"
            )
        found = []
        for one in ranking.documents:
            number = inputs.pool.number(one.document)
            if number is None:
                raise InputError(
                    f"run file {path} has the document {one.document!r}, but the passages do "
                    "not contain this document"
                )
            if one.score is None and rules.scored:
                raise InputError(
                    f"run file {path} has no scores, but --margin, --relative-margin, "
                    "--min-score and --max-score need them; give a run in TREC format"
                )
            found.append(Candidate(number, one.score))
        rankings[ranking.query] = found[: rules.last]
        answers = {number for number in places[ranking.query].positives if number is not None}
        scores[ranking.query] = {number: score for number, score in found if number in answers}
    if not rankings:
        raise InputError(f"run file {path} contains no ranking")
    for one in inputs.asked:
        own = scores.get(one.id, {})
        answers = [
            before if number is None else own.get(number, before)
            for number, before in zip(one.positives, one.scores, strict=True)
        ]
        yield _Ranked(rankings.get(one.id, []), answers)


def _of_search(search: EncoderSearch, inputs: "Inputs", rules: Rules) -> Iterator[_Ranked]:
    best = search.run(depth=min(rules.last, len(inputs.pool)))
    answers = search.scores_of_answers()
    for scores, rows, own in zip(best.scores, best.rows, answers, strict=True):
        pairs = zip(rows.tolist(), scores.tolist(), strict=True)
        yield _Ranked([Candidate(row, score) for row, score in pairs if row >= 0], [*own])


def _records(
    inputs: "Inputs", rankings: Iterable[_Ranked], rules: Rules, report: "_Report", *, rescore: bool
) -> Iterator[dict[str, Any]]:
    from t5x_lite.retrieval.mining_inputs import digest

    answers, digests = inputs.answers_by_query(), inputs.digests_by_query()
    texts = inputs.texts_by_query()
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
        yield _record(one, ranked, chosen, inputs.pool, rescore=rescore)


def _record(
    one: "Asked", ranked: _Ranked, chosen: Chosen, pool: "Pool", *, rescore: bool
) -> dict[str, Any]:
    """Return the line of --output for a query: its input line with negatives, ids and scores.

    Without `rescore`, the input's "pos_scores" are kept, and a negative gets its score of the input
    or null, because scores of two scales in one line would mislead a student model.
    """
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
    """Counter of the candidates that each rule dropped, and of queries with too few negatives."""

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
            "%s: wrote %d queries with %d mined and %d random negatives; dropped candidates by "
            "rule: %s",
            output,
            self._queries,
            self._negatives,
            self._filled,
            ", ".join(dropped) or "none",
        )
        if self._few:
            _logger.warning(
                "%d queries have fewer mined negatives than --negatives, and %d queries have "
                "no mined negative",
                self._few,
                self._none,
            )


@command
def refresh(
    workdir: SomeDirectory,
    *,
    passages: Files,
    batch_size: Positive = 32,
    once: bool = False,
    trust_project: bool = False,
) -> None:
    """Search for hard negatives with each new checkpoint of a running training (ANCE).

    The training run must set --data.refresh.period. Training waits for a search that is late, so
    the negatives of a step do not depend on the speed of this command. The command ends after the
    last search that the run needs.

    Example:
        t5x-lite refresh work/ance --passages corpus.jsonl

    Args:
      workdir: work directory of the training run.
      passages: passage files to search for negatives.
      batch_size: number of texts per batch.
      once: process the existing checkpoints and exit; default: wait for new checkpoints.
      trust_project: allow the checkpoint's config to import classes from outside of t5x_lite.
    """
    from t5x_lite.config import load
    from t5x_lite.data.batches import open_sources
    from t5x_lite.data.cache import refreshes
    from t5x_lite.data.config import text_lengths
    from t5x_lite.data.vocabularies.loading import load_vocabulary
    from t5x_lite.retrieval import refresh_search

    if not passages:
        raise OptionError("--passages needs at least one file")
    with trusting_checkpoints(trust_project):
        experiment = load(str(Path(workdir) / "config.json"))
        data = experiment.data
        if not data.refresh.period:
            raise InputError(
                f"the config of {workdir} has no data.refresh.period, so its training uses no "
                "refreshed negatives"
            )
        vocabulary = load_vocabulary(data.vocabulary, extra_ids=data.extra_ids)
        pool = refresh_search.tokenized_passages(data, vocabulary, passages)
        (source,) = open_sources(data, vocabulary, split="train")
        cache = source.cache
        assert cache is not None
        length = text_lengths(data)["document"]
        examples = refresh_search.examples_of(cache.split("train"))
        queries = refresh_search.CachedQueries(examples, pool, length=length)
        queries.tell()
        for step in refresh_search.needed_steps(data.refresh, experiment.steps):
            if refreshes.is_whole(data.refresh.directory, step):
                continue
            if not refresh_search.wait_for(workdir, step, once=once):
                return
            started = time.monotonic()
            numbers = refresh_search.search(
                data.refresh, workdir, step, pool, queries, batch_size=batch_size
            )
            top, digest = data.refresh.top, cache.digest
            settings = {"top": top, "passages": len(pool), "cache": digest}
            refreshes.write(data.refresh.directory, step, numbers, settings=settings)
            _logger.info(
                "searched with the checkpoint of step %d in %.0f s",
                step,
                time.monotonic() - started,
            )
