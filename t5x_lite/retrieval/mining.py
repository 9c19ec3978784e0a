"""Hard negatives: rules that select passages of a ranking, and queries with their vectors.

Mining of hard negatives: selection of passages from a query's ranking, by rules.

    rules = Rules(first=0, last=4, negatives=2, take="top", margin=0.1)
    chosen = choose("q1", [Candidate(3, 0.9), Candidate(0, 0.8), ...], known, pool, rules)
    chosen.numbers, chosen.dropped                  # [0, 5], {"positive": 1, "margin": 1}

The candidates are the passages at ranks [first, last), counting from 0. The following candidates
are dropped, in this order: positives of the query, by id or by words; the query's own text;
passages with the words of an earlier candidate; passages that score too close to the positives, or
outside of [min_score, max_score]; and passages that contain a positive or are part of one (of at
least 24 characters). The negatives are the first of the remaining candidates, or a random sample of
them that depends only on (seed, query, passage).

Sources: Xiong et al. 2021 (ANCE), section 3; Qu et al. 2021 (RocketQA), section 4.2, denoised hard
negatives; FlagEmbedding's scripts/hn_mine.py (ranks 10 to 210, 15 negatives); Moreira et al. 2024
(NV-Retriever), margins to the score of the positive.

Queries with their vectors, and the vector search of `t5x-lite mine`.

names, vectors = QueryEncoder("work/bert").read("queries.jsonl")      # float32 [Q, D] names,
vectors = QueryEncoder().read("queries.npy")

With a checkpoint, `t5x-lite mine` encodes the pool and searches the nearest passages of each query.
"""

import dataclasses
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from t5x_lite.core.errors import InputError
from t5x_lite.core.option_types import (
    ALL_MODULES,
    Modules,
    Natural,
    OptionalDirectory,
    OptionalNumber,
    OptionalPooling,
    OptionalPositive,
    OptionalText,
    Positive,
    Step,
)
from t5x_lite.core.workers import counting

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

    from t5x_lite.data.formats.vectors import VectorShards
    from t5x_lite.models.vector_heads import Role
    from t5x_lite.retrieval.exact import Best
    from t5x_lite.retrieval.refresh_search import Inputs, Pool

_logger = logging.getLogger(__name__)


Take = Literal["top", "sample"]
Fill = Literal["none", "random"]
_DRAWN_AT_A_TIME = 64
_LEAST_CHARACTERS = 24
"""Minimum characters of a text that is searched for inside of another text."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """Rules that choose negatives from a ranking; the fields are options of `t5x-lite mine`.

    Attributes:
      first: rank at which the candidates start, counting from 0.
      last: rank at which the candidates end (exclusive), counting from 0.
      negatives: maximum number of negatives per query.
      take: choice among the candidates: "top" takes the highest ranked candidates, "sample" takes a
        random sample of all candidates.
      margin: minimum difference between the lowest score of a positive and the score of a negative;
        default: no minimum.
      relative_margin: minimum difference between the lowest score of a positive and the score of a
        negative, as a fraction of the positive's score; default: no minimum.
      min_score: minimum score of a negative; default: no minimum.
      max_score: maximum score of a negative; default: no maximum.
      fill: additional negatives for queries with fewer negatives than --negatives: "random" adds
        random passages from outside of the ranking, "none" adds no passages.
      seed: random seed of --take sample and --fill random.
    """

    first: Natural = 10
    last: Positive = 210
    negatives: Positive = 15
    take: Take = "sample"
    margin: OptionalNumber = None
    relative_margin: OptionalNumber = None
    min_score: OptionalNumber = None
    max_score: OptionalNumber = None
    fill: Fill = "none"
    seed: Natural = 0

    def __post_init__(self):
        if 1 <= self.last <= self.first:
            raise InputError(
                "--first must be below --last, because negatives are taken from these ranks, "
                f"got {self.first} and {self.last}"
            )

    @property
    def scored(self) -> bool:
        """True if a rule needs the scores of candidates."""
        values = (self.margin, self.relative_margin, self.min_score, self.max_score)
        return any(value is not None for value in values)

    @property
    def compares(self) -> bool:
        """True if a rule compares the scores of candidates and positives."""
        return self.margin is not None or self.relative_margin is not None


class Candidate(NamedTuple):
    """Passage in the ranking of a query, which may become a negative.

    Attributes:
      number: index of the passage among all passages.
      score: score of the passage, or None if the ranking has no scores.
    """

    number: int
    score: float | None


class Known(NamedTuple):
    """Positives and text of a query; passages that match them must not become negatives.

    Attributes:
      numbers: indices of the positives among all passages.
      digests: digests of the positives' words.
      own: digests of the query's words.
      lowest: lowest score of a positive; None if a score is unknown.
      texts: words of the positives, to find candidates that contain a positive or are part of one.
    """

    numbers: frozenset[int]
    digests: frozenset[int]
    own: frozenset[int]
    lowest: float | None
    texts: tuple[str, ...] = ()


class Chosen(NamedTuple):
    """Hard negatives that were chosen for a query.

    Attributes:
      numbers: indices of the negatives among all passages, in ranking order, followed by random
        passages.
      scores: score of each passage, or None.
      dropped: number of dropped candidates by rule.
      filled: number of random passages from outside of the ranking.
    """

    numbers: list[int]
    scores: list[float | None]
    dropped: Counter[str]
    filled: int


def choose(
    query: str, ranking: Sequence[Candidate], known: Known, pool: "Pool", rules: Rules
) -> Chosen:
    """Return the negatives of a query, chosen by rules.

    Args:
      query: id of the query, which seeds the sampling.
      ranking: ranked passages of the query, best first.
      known: positives and words of the query.
      pool: all passages.
      rules: rules that choose negatives.
    """
    dropped: Counter[str] = Counter()
    kept: list[Candidate] = []
    seen: set[int] = set()
    for candidate in ranking[rules.first : rules.last]:
        digests = pool.digests(candidate.number)
        why = _text_rule(candidate.number, digests, known, seen) or _score_rule(
            candidate.score, known.lowest, rules
        )
        why = why or _part_rule(candidate.number, known, pool)
        if why:
            dropped[why] += 1
        else:
            kept.append(candidate)
            seen |= digests
    taken = kept[: rules.negatives]
    if rules.take == "sample":
        taken = _sampled(query, kept, pool, rules)
    dropped["not taken"] += len(kept) - len(taken)
    numbers, scores = [one.number for one in taken], [one.score for one in taken]
    filling: list[int] = []
    if rules.fill == "random" and len(numbers) < rules.negatives:
        ranked = {one.number for one in ranking[: rules.last]}
        filling = _filling(query, rules.negatives - len(numbers), ranked, known, pool, rules)
    blank: list[float | None] = [None] * len(filling)
    return Chosen([*numbers, *filling], [*scores, *blank], +dropped, len(filling))


def _text_rule(number: int, digests: set[int], known: Known, seen: set[int]) -> str:
    if number in known.numbers:
        return "answer"
    if digests & known.digests:
        return "words of an answer"
    if digests & known.own:
        return "words of the query"
    return "duplicate" if digests & seen else ""


def _part_rule(number: int, known: Known, pool: "Pool") -> str:
    for answer in known.texts:
        candidate = pool.words(number)
        if len(answer) >= _LEAST_CHARACTERS and f" {answer} " in f" {candidate} ":
            return "contains an answer"
        if candidate.split(" ")[-1] not in answer:
            continue
        text = pool.words_of_text(number)
        if len(text) >= _LEAST_CHARACTERS and f" {text} " in f" {answer} ":
            return "part of an answer"
    return ""


def _score_rule(score: float | None, lowest: float | None, rules: Rules) -> str:
    if not rules.scored:
        return ""
    assert score is not None
    if rules.compares and lowest is None:
        return "margin"
    if rules.margin is not None and score > (lowest or 0.0) - rules.margin:
        return "margin"
    share = rules.relative_margin
    if share is not None and lowest is not None and score > lowest * (1 - share) and lowest > 0:
        return "margin"
    low = rules.min_score is not None and score < rules.min_score
    high = rules.max_score is not None and score > rules.max_score
    return "score" if low or high else ""


def _drawn(*parts: str | int) -> int:
    content = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _sampled(query: str, kept: list[Candidate], pool: "Pool", rules: Rules) -> list[Candidate]:
    draws = [_drawn(rules.seed, query, pool.name(one.number)) for one in kept]
    places = sorted(range(len(kept)), key=lambda place: (draws[place], place))
    return [kept[place] for place in sorted(places[: rules.negatives])]


def _filling(
    query: str, num: int, ranked: set[int], known: Known, pool: "Pool", rules: Rules
) -> list[int]:
    import numpy as np

    from t5x_lite.data.mixing import order

    found: list[int] = []
    seen: set[int] = set()
    seed = _drawn(rules.seed, query)
    for number in ranked:
        seen |= pool.digests(number)
    for start in range(0, len(pool), _DRAWN_AT_A_TIME):
        places = np.arange(start, min(start + _DRAWN_AT_A_TIME, len(pool)))
        for number in order(places, np.zeros_like(places), size=len(pool), seed=seed).tolist():
            digests = pool.digests(number)
            why = _text_rule(number, digests, known, seen) or _part_rule(number, known, pool)
            if len(found) < num and not why:
                found.append(number)
                seen |= digests
        if len(found) == num:
            break
    return found


class Queries(NamedTuple):
    """Queries with their vectors.

    Attributes:
      ids: ids of the queries.
      vectors: vectors of the queries, float32 [Q, D].
    """

    ids: list[str]
    vectors: "np.ndarray"


@dataclasses.dataclass(frozen=True)
class QueryEncoder:
    """Encoder of queries into vectors; the fields are options of search commands.

    Attributes:
      checkpoint: work directory or checkpoint directory of the encoder, if the queries are texts;
        default: the queries are vectors.
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
      prefix: text put before every query; default: the checkpoint's prompt.
      prompt: name of the checkpoint's prompt to put before every query; default: query, if the
        checkpoint has it.
      batch_size: number of queries per batch.
      inputs_length: maximum number of tokens of a query; default: the length in the checkpoint's
        config (for a run on pairs, the larger of its two lengths).
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.
    """

    checkpoint: OptionalDirectory = None
    step: Step = None
    base: OptionalDirectory = None
    adapters: Modules = ALL_MODULES
    pooling: OptionalPooling = None
    normalize: bool | None = None
    dimensions: OptionalPositive = None
    prefix: OptionalText = None
    prompt: OptionalText = None
    batch_size: Positive = 32
    inputs_length: OptionalPositive = None
    trust_project: bool = False

    def named(self) -> str:
        """Return the directory of the checkpoint; raise InputError if `checkpoint` is not set."""
        if self.checkpoint is None:
            raise InputError("this command needs a checkpoint; give --checkpoint DIR")
        return self.checkpoint

    def read(self, path: str, *, ids: Sequence[str] = ()) -> Queries:
        """Read queries as vectors; a checkpoint, if given, encodes the queries from texts.

        Args:
          path: query file.
          ids: text files from which the vectors of an .npy file were computed; they have the query
            ids.

        Raises:
          InputError: if the file or the checkpoint is invalid, or two queries have the same id.
        """
        from t5x_lite.data.formats.pairs import read_passages
        from t5x_lite.data.formats.vectors import VectorShards

        if self.checkpoint is None:
            shards = VectorShards.open([path], ids=ids)
            names, vectors = shards.names(0, len(shards)), shards.rows(0, len(shards))
        else:
            passages = list(read_passages(path))
            names = [passage.id for passage in passages]
            vectors = self._encode(self.checkpoint, [passage.whole for passage in passages])
        if not names:
            raise InputError(f"query file {path} contains no query")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"query file {path}: two queries have the id {twice!r}")
        return Queries(names, vectors)

    def _encode(self, checkpoint: str, texts: Sequence[str]) -> "np.ndarray":
        from t5x_lite.checkpoints.init import base_at
        from t5x_lite.core.project import trusting_checkpoints
        from t5x_lite.core.sharding import MeshConfig, make_mesh
        from t5x_lite.inference.checkpoint import Checkpoint

        with trusting_checkpoints(self.trust_project), base_at(self.base):
            encoder = Checkpoint.load(
                [checkpoint],
                step=self.step,
                use=self.adapters.use,
                mesh=make_mesh(MeshConfig()),
                inputs_length=self.inputs_length,
            ).encoder(pooling=self.pooling, normalize=self.normalize, dimensions=self.dimensions)
        prompt = self.prompt
        if prompt is None and self.prefix is None:
            prompt = encoder.known_prompt("query")
        begins = encoder.begins_with(self.prefix, prompt)
        rows, longer = encoder.rows([begins + text for text in texts])
        if longer:
            _logger.warning(
                "truncated %d queries to the maximum length of %d tokens",
                len(longer),
                encoder.length,
            )
        return encoder.embedder(batch_size=self.batch_size).run(encoder.params, rows)


_CHUNK_BATCHES = 32
"""Number of batches per chunk of passages that is encoded and written together."""
_PROMPTS = {"query": ("query",), "passage": ("document", "passage", "corpus")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairEncoder:
    """Encoder of queries and passages into vectors; the fields are options of `t5x-lite mine`.

    Attributes:
      step: step number of the checkpoint to load from a work directory, or "best" for the
        checkpoint with the best evaluation result; default: the newest checkpoint.
      base: directory of the base model, for a checkpoint that stores only its trained parameters;
        default: the base directory recorded in the checkpoint.
      adapters: names of the checkpoint's adapters to use; default: the adapters used in training.
      pooling: pooling of hidden states into a vector: "cls" takes the [CLS] hidden state, "mean"
        averages all hidden states; default: the checkpoint's setting, or mean with a warning.
      normalize: scale vectors to length 1; default: the checkpoint's setting, or True if it has
        none.
      query_prefix: text put before every query; default: the checkpoint's prompt.
      passage_prefix: text put before every passage; default: the checkpoint's prompt.
      batch_size: number of texts per batch.
      query_length: maximum number of tokens of a query; default: the length in the checkpoint's
        config (for a run on pairs, its data.inputs_length).
      passage_length: maximum number of tokens of a passage; default: the length in the checkpoint's
        config (for a run on pairs, its data.targets_length).
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.
    """

    step: Step = None
    base: OptionalDirectory = None
    adapters: Modules = ALL_MODULES
    pooling: OptionalPooling = None
    normalize: bool | None = None
    query_prefix: OptionalText = None
    passage_prefix: OptionalText = None
    batch_size: Positive = 32
    query_length: OptionalPositive = None
    passage_length: OptionalPositive = None
    trust_project: bool = False

    def identity(self, checkpoint: str, vectors: Sequence[str] = ()) -> dict[str, Any]:
        """Return JSON values that must be unchanged to resume an interrupted search."""
        from t5x_lite.data.formats.vectors import identity_of
        from t5x_lite.inference.loading import find_step

        return {
            "checkpoint": str(find_step(checkpoint, step=self.step)),
            **(identity_of(vectors) if vectors else {}),
            "use": self.adapters.use,
            "vectors_are": [self.pooling, self.normalize],
            "prefixes": [self.query_prefix, self.passage_prefix],
            "lengths": [self.query_length, self.passage_length],
            "batch_size": self.batch_size,
        }


class EncoderSearch:
    """Search for the nearest passages of each query, with vectors and results kept in a folder.

    Args:
      checkpoint: work directory or checkpoint directory.
      inputs: queries and passages.
      options: options of the encoder.
      vectors: vector files of the passages, in order; () encodes the passages by the checkpoint.
      folder: directory that holds only these vectors and results.
    """

    def __init__(
        self,
        checkpoint: str,
        inputs: "Inputs",
        options: PairEncoder,
        *,
        vectors: Sequence[str] = (),
        folder: Path,
    ):
        from t5x_lite.core.sharding import MeshConfig, make_mesh
        from t5x_lite.inference.checkpoint import Checkpoint
        from t5x_lite.retrieval.exact import check_vectors

        self._options, self._inputs, self._folder = options, inputs, folder
        self._mesh = make_mesh(MeshConfig())
        self._encoder = Checkpoint.load(
            [checkpoint], step=options.step, use=options.adapters.use, mesh=self._mesh
        ).encoder(pooling=options.pooling, normalize=options.normalize)
        self._embedder = self._encoder.embedder(batch_size=options.batch_size)
        texts = [one.prompted for one in inputs.asked]
        self._queries = self._encoded(texts, "query")
        check_vectors(self._queries, what="a query")
        self._shards = self._open(vectors)

    def run(self, *, depth: int) -> "Best":
        """Return the scores and passage numbers of the nearest passages of each query."""
        from t5x_lite.retrieval.exact import search_shards

        return search_shards(
            self._shards,
            self._queries,
            depth=depth,
            mesh=self._mesh,
            state=str(self._folder / "search.npz"),
            identity={"depth": depth},
        )

    def scores_of_answers(self) -> list[list[float]]:
        """Return the scores of all positives of each query, even of those not found."""
        import numpy as np

        absent = [
            text
            for one in self._inputs.asked
            for number, text in zip(one.positives, one.texts, strict=True)
            if number is None
        ]
        others = iter(self._encoded(absent, "passage") if absent else ())
        found = []
        for one, query in zip(self._inputs.asked, self._queries, strict=True):
            vectors = [
                next(others) if number is None else self._shards.rows(number, number + 1)[0]
                for number in one.positives
            ]
            found.append([float(np.dot(query, vector)) for vector in vectors])
        return found

    def _encoded(self, texts: Sequence[str], role: "Role") -> "Float[np.ndarray, 'n D']":
        from t5x_lite.data.config import text_lengths
        from t5x_lite.inference.text_encoder import most_tokens, rows_of

        options, encoder = self._options, self._encoder
        is_query = role == "query"
        prefix = options.query_prefix if is_query else options.passage_prefix
        if prefix is None:
            names = [encoder.known_prompt(name) for name in _PROMPTS[role]]
            known = next((name for name in names if name is not None), None)
            prefix = encoder.begins_with(None, known)
        experiment = encoder.loaded.experiment
        trained = text_lengths(experiment.data).get("query" if is_query else "document")
        length = (options.query_length if is_query else options.passage_length) or trained
        length = min(length or encoder.length, most_tokens(experiment) or encoder.length)
        cut = rows_of(experiment, encoder.loaded.vocabulary)
        rows, _ = cut([prefix + text for text in texts], length=length)
        return self._embedder.run(encoder.params, rows, role=role)

    def _open(self, vectors: Sequence[str]) -> "VectorShards":
        from t5x_lite.data.formats.vectors import VectorShards

        pool = self._inputs.pool
        if not vectors:
            self._embed()
            vectors = (str(self._folder / "passages.npy"),)
        shards = VectorShards.open(vectors)
        if len(shards) != len(pool):
            raise InputError(
                f"--vectors {vectors[0]} has {len(shards)} vectors, but there are {len(pool)} "
                "passages; give the vectors of the same passage files"
            )
        return shards

    def _embed(self) -> None:
        from t5x_lite.core.jobs import ResumableArray

        pool, chunk = self._inputs.pool, _CHUNK_BATCHES * self._options.batch_size
        path = self._folder / "passages.npy"
        _cut_former(path)
        path.touch()
        with open(path, "r+b") as opened:
            file = ResumableArray(opened, chunk=chunk, path=str(path))
            if file.done:
                _logger.info("resuming the encoding after %d of %d passages", file.done, len(pool))
            with counting(
                "embedding", unit="passages", total=len(pool), done=file.done, steps=True
            ):
                for start in range(file.done, len(pool), chunk):
                    texts = [pool.text(k) for k in range(start, min(start + chunk, len(pool)))]
                    file.write(self._encoded(texts, "passage"))
            file.finish()


def _cut_former(path: Path) -> None:
    import numpy as np

    count = path.with_suffix(".done")
    if count.exists() and path.exists():
        rows = np.lib.format.open_memmap(path, mode="r")
        os.truncate(path, rows.offset + int(count.read_text()) * rows.strides[0])
    count.unlink(missing_ok=True)
