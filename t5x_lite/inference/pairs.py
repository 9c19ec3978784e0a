"""Scores of query-passage pairs, by a cross-encoder or by the heads of a BGE-M3.

    scorer = Checkpoint.load(["work/ranker"]).pair_scorer()
    scorer.scores([("who wrote Emma", "Jane Austen wrote ..."), ...])      # float32, raw logits

The head "classifier" of a cross-encoder has one class. It is trained by the objective Ranker, or
imported from a *ForSequenceClassification with one label. If a pair is too long, its passage is
truncated.

    model = Checkpoint.load(["work/m3"])
    scorer = model.pair_scorer(heads=("dense", "lexical"), weights=(1, 0.3, 1))

With several heads, a score is the weighted mean (w1 dense + w2 lexical + w3 multi_vector) divided
by the sum of the weights of the requested heads (FlagEmbedding's compute_score). Scores are not
divided by the temperature.

    scores = PairScores(learner.bind, head="classifier", batch_size=32, longest=200, ...)
    scores.of(params, [row, other_row])         # float32 [2], raw logits

Rows are [CLS] query [SEP] passage [SEP]. Rows of similar length form a batch.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from t5x_lite.config import Experiment
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import Params
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens, without_special
from t5x_lite.inference.answers import answering_heads
from t5x_lite.inference.generate import Prediction
from t5x_lite.inference.head_answers import HeadAnswers
from t5x_lite.inference.loading import Loaded
from t5x_lite.inference.text_encoder import (
    DENSE,
    LEXICAL,
    MULTI_VECTOR,
    HeadEmbedder,
    Several,
    TextEncoder,
)
from t5x_lite.layouts.base import EncoderTokens
from t5x_lite.layouts.groups import joined
from t5x_lite.objectives.m3 import Ranker


class PairScores(HeadAnswers):
    """Predictor of one logit per row of tokens, by an encoder head with one class."""

    def of(
        self,
        params: Params,
        rows: Sequence[np.ndarray],
        *,
        static_length: int | None = None,
        adapter_ids: Sequence[int] | None = None,
    ) -> Float[np.ndarray, " n"]:
        """Return the logit of each row, in order.

        Args:
          params: parameter tree of the model and its heads.
          rows: token ids of each row, int32.
          static_length: length in tokens to which rows are padded; None is the next power of two.
          adapter_ids: adapter id of each row; None if all rows use the same adapters.
        """
        found = self._of_rows(
            params,
            rows,
            lambda logits, _: float(logits[0]),
            static_length=static_length,
            adapter_ids=adapter_ids,
        )
        return np.array(found, np.float32)

    def _answers(self, logits: np.ndarray, second: np.ndarray) -> list[Prediction]:
        del second
        return [Prediction(text=f"{logits[0]:g}", ids=(), score=float(logits[0]))]


_HEAD = "classifier"
HEADS = (DENSE, LEXICAL, MULTI_VECTOR)
"""Heads of a BGE-M3 model, in the order of their weights."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossEncoder:
    """Cross-encoder that scores query-passage pairs.

    Attributes:
      loaded: the loaded checkpoint.
      scorer: predictor of the head's logit of each row.
      tokens: special tokens of the vocabulary.
      length: maximum number of tokens of a row.
      query_length: maximum number of tokens of a query, including [CLS] and [SEP].
    """

    loaded: Loaded
    scorer: PairScores
    tokens: EncoderTokens
    length: int
    query_length: int

    @classmethod
    def of(
        cls,
        loaded: Loaded,
        *,
        batch_size: int = 32,
        length: int | None = None,
        query_length: int | None = None,
        mesh: Mesh | None = None,
    ) -> "CrossEncoder":
        """Return the cross-encoder of a checkpoint.

        Args:
          loaded: the loaded checkpoint.
          batch_size: number of pairs per batch.
          length: maximum number of tokens of a pair; None uses the length in training.
          query_length: maximum number of tokens of a query; None uses the length in training.
          mesh: device mesh that divides the pairs; None uses one device.

        Raises:
          InputError: if the checkpoint has no head with one class, or a length is not supported.
        """
        if not scores_texts(loaded):
            other = (
                "; for its other heads, use `t5x-lite predict`"
                if answering_heads(loaded.experiment)
                else ""
            )
            raise InputError(
                f"checkpoint {loaded.directory} has no head {_HEAD!r} with one class, which "
                f"scores query-passage pairs; train it by the objective Ranker{other}"
            )
        length, query_length = _lengths(loaded, length, query_length)
        tokens = encoder_tokens(loaded.vocabulary)
        scorer = PairScores(
            loaded.learner.bind,
            head=_HEAD,
            batch_size=batch_size,
            longest=length,
            pad_id=loaded.vocabulary.pad_id,
            sep_id=tokens.sep_id,
            mesh=mesh,
        )
        return cls(
            loaded=loaded,
            scorer=scorer,
            tokens=tokens,
            length=length,
            query_length=query_length,
        )

    def scores(self, pairs: Sequence[tuple[str, str]]) -> Float[np.ndarray, " n"]:
        """Return the raw logit of each (query, passage) pair.

        Raises:
          InputError: if a score is NaN or infinite.
        """
        found = self.scorer.of(self.loaded.params, self.rows(pairs))
        if not np.all(np.isfinite(found)):
            raise InputError(
                f"checkpoint {self.loaded.directory}: the score of a query-passage pair is NaN "
                "or infinite; check the checkpoint's weights, or use float32 as the compute "
                "dtype"
            )
        return found

    def rows(self, pairs: Sequence[tuple[str, str]]) -> list[np.ndarray]:
        """Return the token ids of each pair: [CLS] query [SEP] passage [SEP]."""
        return [row for row, _ in self.rows_and_cuts(pairs)]

    def rows_and_cuts(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[np.ndarray, bool]]:
        """Return the token ids of each (query, passage) pair, and True if a text was truncated."""
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        encoded = self.loaded.vocabulary.encode_batch(texts)
        ids = {
            text: without_special(found, self.tokens)
            for text, found in zip(texts, encoded, strict=True)
        }
        return [self._row(ids[query], ids[passage]) for query, passage in pairs]

    def _row(self, query: Sequence[int], passage: Sequence[int]) -> tuple[np.ndarray, bool]:
        row = joined(
            self._cut(query, self.query_length),
            self._cut(passage, self.length),
            size=self.length,
            separators=self.tokens.separators,
        )
        whole = len(query) + len(passage) + 2 + self.tokens.separators
        return row, len(row) < whole

    def _cut(self, ids: Sequence[int], length: int) -> np.ndarray:
        return np.array([self.tokens.cls_id, *ids[: length - 2], self.tokens.sep_id], np.int32)


def scores_texts(loaded: Loaded) -> bool:
    """Return True if a checkpoint has a head with one class that scores query-passage pairs."""
    head = loaded.learner.heads.get(_HEAD)
    return head is not None and head.scores_texts


def trains_ranking(experiment: Experiment) -> bool:
    """Return True if a checkpoint was trained to rank passages for queries."""
    return isinstance(experiment.objective, Ranker)


def _lengths(loaded: Loaded, length: int | None, query_length: int | None) -> tuple[int, int]:
    experiment = loaded.experiment
    most, data = experiment.model.longest_document, experiment.data
    trained = {"inputs": data.inputs_length, "targets": data.targets_length}
    own, own_query = data.layout.pair_lengths(**trained)
    if length is None:
        length = own if most is None else min(own, most)
    loaded.check_length(length, what="rows")
    if query_length is None:
        query_length = min(length // 2 if own_query is None else own_query, length - 4)
    if not 3 <= query_length <= length - 4:
        raise InputError(
            f"inputs_length {length} and query_length {query_length} leave too few tokens for a "
            "passage; raise inputs_length or lower query_length"
        )
    return length, query_length


def sigmoid_or_raw(*, sigmoid: bool) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function to apply to logits: the sigmoid 1 / (1 + e^-x), or the identity."""
    return (lambda x: 1.0 / (1.0 + np.exp(-np.float64(x)))) if sigmoid else (lambda x: x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadScorer:
    """Scorer of query-passage pairs by the heads of a BGE-M3 model.

    Attributes:
      encoder: encoder of the loaded checkpoint.
      embedder: embedder that computes the outputs of the heads.
      weights: name of a head -> weight of its score.
      length: maximum number of tokens of a passage.
      query_length: maximum number of tokens of a query.
    """

    encoder: TextEncoder
    embedder: HeadEmbedder
    weights: Mapping[str, float]
    length: int
    query_length: int

    @classmethod
    def of(
        cls,
        encoder: TextEncoder,
        heads: Sequence[str],
        *,
        weights: Sequence[float] = (1.0, 1.0, 1.0),
        batch_size: int = 32,
        query_length: int | None = None,
    ) -> "HeadScorer":
        """Return a scorer that uses the given heads of an encoder.

        Args:
          encoder: encoder of the checkpoint; its length is the maximum length of a passage.
          heads: names of heads, some of `HEADS`.
          weights: weights of all three `HEADS`.
          batch_size: number of texts per batch.
          query_length: maximum number of tokens of a query; None uses the length of a passage.

        Raises:
          InputError: if a head is missing, or the weights are negative or all 0.
        """
        for head in heads:
            if head not in HEADS:
                raise InputError(f"heads must be some of {', '.join(HEADS)}, got {head!r}")
        known = dict(zip(HEADS, map(float, weights), strict=True))
        asked = {head: known[head] for head in HEADS if head in heads}
        if not asked or min(asked.values()) < 0.0 or not sum(asked.values()):
            raise InputError(
                f"the weights of the heads must be at least 0, and one of them above 0, got {asked}"
            )
        return cls(
            encoder=encoder,
            embedder=encoder.head_embedder(tuple(asked), batch_size=batch_size),
            weights=asked,
            length=encoder.length,
            query_length=encoder.length if query_length is None else query_length,
        )

    def scores(self, pairs: Sequence[tuple[str, str]]) -> Float[np.ndarray, " n"]:
        """Return the weighted mean of the heads' scores for each (query, passage) pair.

        Raises:
          InputError: if a vector or a score is NaN or infinite.
        """
        queries = self._made([query for query, _ in pairs], ("query",), self.query_length)
        names = ("document", "passage", "corpus")
        passages = self._made([passage for _, passage in pairs], names, self.length)
        found = [self._score(queries[query], passages[passage]) for query, passage in pairs]
        scores = np.array(found, np.float32)
        if not np.all(np.isfinite(scores)):
            raise InputError(
                f"checkpoint {self.encoder.loaded.directory}: the score of a query-passage pair "
                "is NaN or infinite; check the checkpoint's weights"
            )
        return scores

    def _made(
        self, texts: Sequence[str], prompts: Sequence[str], length: int
    ) -> dict[str, dict[str, Any]]:
        different = list(dict.fromkeys(texts))
        known = [self.encoder.known_prompt(name) for name in prompts]
        prompt = next((name for name in known if name is not None), None)
        before = self.encoder.begins_with(None, prompt)
        cut = dataclasses.replace(self.encoder, length=length)
        rows = cut.rows([before + text for text in different]).rows
        found = self.embedder.several(self.encoder.params, rows)
        return {text: _of(found, number) for number, text in enumerate(different)}

    def _score(self, query: Mapping[str, Any], passage: Mapping[str, Any]) -> float:
        own = {
            DENSE: lambda a, b: float(a @ b),
            LEXICAL: lambda a, b: sum(weight * b.get(term, 0.0) for term, weight in a.items()),
            MULTI_VECTOR: late_score,
        }
        scored = (w * own[h](query[h], passage[h]) for h, w in self.weights.items())
        return sum(scored) / sum(self.weights.values())


def _of(found: Several, number: int) -> dict[str, Any]:
    made = dict(zip(HEADS, found, strict=True))
    return {head: values[number] for head, values in made.items() if values is not None}


def late_score(query: Float[np.ndarray, "S K"], passage: Float[np.ndarray, "T K"]) -> float:
    """Return the late-interaction score: maximum similarity per query token, averaged."""
    if not len(query) or not len(passage):
        return 0.0
    return float(np.mean(np.max(query @ passage.T, axis=1)))
