"""Scores of a passage for a query by the heads of a BGE-M3.

    scorer = HeadScorer.load("work/m3", heads=("dense", "lexical"), weights=(1, 0.3, 1))
    scorer.scores([("who wrote Emma", "Jane Austen wrote ...")])        # float32

Of several heads a score is the weighted mean: (w1 dense + w2 lexical + w3 multi_vector) over the
sum of the weights of those that are asked (FlagEmbedding's compute_score). Nothing is divided by
the temperature.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from t5x_lite.errors import InputError
from t5x_lite.evaluate.head_vectors import DENSE, LEXICAL, MULTI_VECTOR, HeadEmbedder, Several
from t5x_lite.retrieval.hybrid import late_score
from t5x_lite.run.best_step import Step
from t5x_lite.run.text_encoder import TextEncoder

HEADS = (DENSE, LEXICAL, MULTI_VECTOR)
"""In the order of their weights."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadScorer:
    """A checkpoint's heads, ready to score.

    Attributes:
      encoder: the checkpoint.
      embedder: for the heads.
      weights: by head.
      length: tokens of a passage at most.
      query_length: tokens of a query at most.
    """

    encoder: TextEncoder
    embedder: HeadEmbedder
    weights: Mapping[str, float]
    length: int
    query_length: int

    @classmethod
    def load(
        cls,
        checkpoint: str,
        *,
        heads: Sequence[str],
        weights: Sequence[float] = (1.0, 1.0, 1.0),
        step: Step = None,
        use: str | None = None,
        batch_size: int = 32,
        length: int | None = None,
        query_length: int | None = None,
        mesh: Mesh | None = None,
    ) -> "HeadScorer":
        """Reads a checkpoint.

        Args:
          checkpoint: a work directory or a step directory.
          heads: some of `HEADS`.
          weights: of all three.
          step: of a work directory: its number, "best", or None for the newest.
          use: as for `load_using`.
          batch_size: texts encoded at once.
          length: tokens of a passage at most; None is what the model was trained with.
          query_length: tokens of a query at most; None is as of passages.
          mesh: whose devices share the texts; None is one device.

        Raises:
          InputError: the checkpoint is damaged or lacks a head, or the weights of the heads are
            negative or all 0.
        """
        for head in heads:
            if head not in HEADS:
                raise InputError(f"heads are some of {', '.join(HEADS)}: got {head!r}")
        known = dict(zip(HEADS, map(float, weights), strict=True))
        asked = {head: known[head] for head in HEADS if head in heads}
        if not asked or min(asked.values()) < 0.0 or not sum(asked.values()):
            raise InputError(
                f"the weights of the heads must not be negative, and one must be above 0: {asked}"
            )
        encoder = TextEncoder.load(checkpoint, step=step, use=use, mesh=mesh, length=length)
        return cls(
            encoder=encoder,
            embedder=encoder.head_embedder(tuple(asked), batch_size=batch_size),
            weights=asked,
            length=encoder.length,
            query_length=encoder.length if query_length is None else query_length,
        )

    def scores(self, pairs: Sequence[tuple[str, str]]) -> Float[np.ndarray, " n"]:
        """The weighted mean of each (query, passage).

        Raises:
          InputError: a vector or a score is not finite.
        """
        queries = self._made([query for query, _ in pairs], ("query",), self.query_length)
        names = ("document", "passage", "corpus")
        passages = self._made([passage for _, passage in pairs], names, self.length)
        found = [self._score(queries[query], passages[passage]) for query, passage in pairs]
        scores = np.array(found, np.float32)
        if not np.all(np.isfinite(scores)):
            raise InputError(f"checkpoint {self.encoder.loaded.directory}: a score is not finite")
        return scores

    def _made(
        self, texts: Sequence[str], prompts: Sequence[str], length: int
    ) -> dict[str, dict[str, Any]]:
        """What the heads make of each text, by text."""
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
    """What heads made of one text, by head."""
    made = dict(zip(HEADS, found, strict=True))
    return {head: values[number] for head, values in made.items() if values is not None}
