"""Mining of hard negatives: selection of passages from a query's ranking, by rules.

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
"""Minimum characters of a text that is searched for inside of another text."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """Rules that choose negatives from a ranking; the fields are options of `t5x-lite mine`.

    Attributes:
      first: rank at which the candidates start, counting from 0.
      last: rank at which the candidates end (exclusive), counting from 0.
      negatives: maximum number of negatives per query.
      take: choice among the candidates: "top" takes the highest ranked candidates, "sample" a
        random sample of all candidates.
      margin: minimum by which the lowest score of a positive exceeds the score of a negative;
        default: none.
      relative_margin: minimum margin (see --margin) as a fraction of the positive's score; default:
        none.
      min_score: minimum score of a negative; default: no minimum.
      max_score: maximum score of a negative; default: no maximum.
      fill: additional negatives for queries with fewer than --negatives: "random" adds random
        passages from outside of the ranking, "none" adds nothing.
      seed: random seed of the samples.
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
    """Passage in the ranking of a query.

    Attributes:
      number: index of the passage in the pool.
      score: score of the passage, or None if the ranking has no scores.
    """

    number: int
    score: float | None


class Known(NamedTuple):
    """Positives and words of a query, which its negatives must not match.

    Attributes:
      numbers: indices of the positives in the pool.
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
      numbers: pool indices of the negatives, in ranking order, followed by random passages.
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
    """Return the name of the rule about scores that drops a candidate, or "" to keep it."""
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
    """Return indices of random passages that are not in the ranking and that no rule drops."""
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
