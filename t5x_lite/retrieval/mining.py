"""Hard negatives: selection of passages from a ranking of a query, by rules.

    rules = Rules(first=0, last=4, negatives=2, take="top", margin=0.1)
    chosen = choose("q1", [Candidate(3, 0.9), Candidate(0, 0.8), ...], known, pool, rules)
    chosen.numbers, chosen.dropped                  # [0, 5], {"positive": 1, "margin": 1}

The candidates are the ranks [first, last) of the ranking, from 0. These are dropped, in this order:
positives of the query, by id and by words; the query's own text; passages with the words of an
earlier candidate; passages that score too close to the positives, or outside of [min_score,
max_score]; and passages that contain a positive or are a part of one, of 24 characters or more.
From the rest the first are taken, or a sample by (seed, query, passage) in the order of the
ranking: the same in every process, whatever their number.

Sources: Xiong et al. 2021 (ANCE), section 3; Qu et al. 2021 (RocketQA), section 4.2, denoised hard
negatives; FlagEmbedding's scripts/hn_mine.py (ranks 10 to 210, 15 negatives); Moreira et al. 2024
(NV-Retriever), margins to the score of the positive.
"""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from t5x_lite.core.errors import InputError
from t5x_lite.core.option_types import Natural, OptionalNumber, Positive

if TYPE_CHECKING:
    from t5x_lite.retrieval.mining_inputs import Pool

Take = Literal["top", "sample"]
Fill = Literal["none", "random"]
_DRAWN_AT_A_TIME = 64
_LEAST_CHARACTERS = 24
"""Minimum characters of a text that is recognized inside another one, by its words."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """Rules for the choice of negatives; the fields are options of `t5x-lite mine`.

    Attributes:
      first: first rank to consider, counting from 0.
      last: stop before this rank, counting from 0.
      negatives: maximum negatives per query.
      take: first takes the highest ranked candidates, sample takes a random sample of all
        candidates.
      margin: minimum gap between a negative's score and the lowest positive score.
      relative_margin: minimum gap as a fraction of the lowest positive score.
      min_score: minimum score of a negative.
      max_score: maximum score of a negative.
      fill: random fills up queries that have too few negatives with random passages outside the
        ranking.
      seed: random seed of samples.
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
                f"negatives come from the ranks first to last, which must be 0 or more and "
                f"ascending: got {self.first} to {self.last}"
            )

    @property
    def scored(self) -> bool:
        """True if candidates need scores."""
        values = (self.margin, self.relative_margin, self.min_score, self.max_score)
        return any(value is not None for value in values)

    @property
    def compares(self) -> bool:
        """True if candidates are compared with the positives."""
        return self.margin is not None or self.relative_margin is not None


class Candidate(NamedTuple):
    """A passage of a ranking.

    Attributes:
      number: number of the passage in the pool.
      score: score, or None if the ranking has none.
    """

    number: int
    score: float | None


class Known(NamedTuple):
    """Known facts about a query.

    Attributes:
      numbers: the answers that are in the pool.
      digests: digests of the answers' words.
      own: digest of the query's words.
      lowest: the score of the answer that has the lowest; None is below all candidates.
      texts: the answers' words, of `same_words`, for candidates that contain one or are part of it.
    """

    numbers: frozenset[int]
    digests: frozenset[int]
    own: frozenset[int]
    lowest: float | None
    texts: tuple[str, ...] = ()


class Chosen(NamedTuple):
    """The negatives of a query.

    Attributes:
      numbers: numbers of the passages in ranking order, then of passages that fill up.
      scores: score of each; None has no score.
      dropped: candidates by the rule that dropped them.
      filled: number of passages from outside of the ranking.
    """

    numbers: list[int]
    scores: list[float | None]
    dropped: Counter[str]
    filled: int


def choose(
    query: str, ranking: Sequence[Candidate], known: Known, pool: "Pool", rules: Rules
) -> Chosen:
    """Return the negatives of a query.

    Args:
      query: id of the query, which seeds sampling.
      ranking: passages, best first.
      known: known facts about the query.
      pool: the passages.
      rules: rules for negatives.
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
    """Return the rule about scores that drops a candidate, or ""."""
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
    """Sample candidates with the lowest random values, in their order."""
    draws = [_drawn(rules.seed, query, pool.name(one.number)) for one in kept]
    places = sorted(range(len(kept)), key=lambda place: (draws[place], place))
    return [kept[place] for place in sorted(places[: rules.negatives])]


def _filling(
    query: str, num: int, ranked: set[int], known: Known, pool: "Pool", rules: Rules
) -> list[int]:
    """Passages that a permutation of the pool, the query's own, has first."""
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
