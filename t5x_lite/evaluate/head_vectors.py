"""What all three heads of BGE-M3 make of texts, in one pass of the encoder.

    embedder = HeadEmbedder(learner.bind, ("dense", "lexical"), batch_size=32, ...)
    found = embedder.several(params, [tokens, other_tokens])
    found.dense                 float32 [2, D]
    found.terms                 [{5: 0.7, 9: 0.4}, ...], token -> weight above 0

Rows that have several [CLS] (`evaluate.mcls`) are run apart from the others, whose vectors are so
those of the program without them, to the last bit.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from t5x_lite.evaluate.embed import Embedder, unit_length
from t5x_lite.evaluate.generate import Bind
from t5x_lite.models.pooling import Pooling, pool
from t5x_lite.sharding import jit_rows
from t5x_lite.types import Array, Params

DENSE, LEXICAL, MULTI_VECTOR = "dense", "lexical", "multi_vector"


class Several(NamedTuple):
    """What heads make of texts; None of a head that was not asked.

    Attributes:
      dense: vectors.
      terms: weights above 0 by token, of each text.
      vectors: of the tokens of each text but the first and further [CLS].
    """

    dense: Float[np.ndarray, "n D"] | None
    terms: list[dict[int, float]] | None
    vectors: list[np.ndarray] | None


class HeadEmbedder(Embedder):
    """Encodes for several heads; other arguments are those of `Embedder`.

    Args:
      bind: puts together the learner, with its heads.
      ways: names of the heads.
      batch_size: rows encoded at once.
      pooling: of the dense vector.
      normalize: whether that has length 1.
      cls_id: the token [CLS].
      **options: of `Embedder`.
    """

    def __init__(
        self,
        bind: Bind,
        ways: Sequence[str],
        *,
        batch_size: int,
        pooling: Pooling,
        normalize: bool,
        cls_id: int,
        **options: Any,
    ):
        super().__init__(
            bind, batch_size=batch_size, pooling=pooling, normalize=normalize, **options
        )
        self._cls_id = cls_id

        def several(
            params: Params, tokens: Array, lengths: Array, *, mcls: bool
        ) -> dict[str, Array]:
            bound = bind(params)
            segment_ids = (jnp.arange(tokens.shape[1]) < lengths[:, None]).astype(jnp.int32)
            hidden = bound.model.encode(tokens, segment_ids=segment_ids)
            found: dict[str, Array] = {}
            if DENSE in ways:
                summaries = (tokens == cls_id) & (segment_ids > 0)
                states = hidden.astype(jnp.float32)
                pooled = pool(
                    states, summaries if mcls else segment_ids, "mean" if mcls else pooling
                )
                pooled = bound.heads[DENSE].project(pooled)
                found[DENSE] = unit_length(pooled) if normalize else pooled
            if LEXICAL in ways:
                found[LEXICAL] = bound.heads[LEXICAL].terms(hidden, tokens, segment_ids)
            if MULTI_VECTOR in ways:
                found[MULTI_VECTOR] = bound.heads[MULTI_VECTOR](hidden, segment_ids)
            return found

        def of(mcls: bool) -> Callable[..., Any]:
            def run(params: Params, tokens: Array, lengths: Array) -> dict[str, Array]:
                return several(params, tokens, lengths, mcls=mcls)

            return jit_rows(run, options.get("mesh"))

        self._several = {mcls: of(mcls) for mcls in (False, True)}

    def several(
        self, params: Params, inputs: Sequence[np.ndarray], *, mcls: bool = False
    ) -> Several:
        """What the heads make of each input, in order.

        Args:
          params: what `bind` takes.
          inputs: int32 tokens of each, with those that begin and end a row.
          mcls: whether rows may have several [CLS], whose states are averaged.
        """
        dense: dict[int, np.ndarray] = {}
        terms: dict[int, dict[int, float]] = {}
        vectors: dict[int, np.ndarray] = {}
        has_more = [mcls and int(np.sum(row == self._cls_id)) > 1 for row in inputs]
        for several in (False, True):
            those = [i for i, more in enumerate(has_more) if more == several]
            rows = [inputs[i] for i in those]
            for batch, found in self._results(self._several[several], params, rows):
                for place, number in enumerate(batch):
                    own, row = those[number], rows[number]
                    if DENSE in found:
                        dense[own] = found[DENSE][place]
                    if LEXICAL in found:
                        terms[own] = _above_0(row, found[LEXICAL][place])
                    if MULTI_VECTOR in found:
                        kept = (row[1:] != self._cls_id) | (not several)
                        vectors[own] = found[MULTI_VECTOR][place, : len(row) - 1][kept]
        order = range(len(inputs))
        return Several(
            np.stack([dense[i] for i in order]) if dense else None,
            [terms[i] for i in order] if terms else None,
            [vectors[i] for i in order] if vectors else None,
        )


def _above_0(row: np.ndarray, weights: np.ndarray) -> dict[int, float]:
    """Token -> weight, by falling weight and then by token."""
    there = np.flatnonzero(weights[: len(row)] > 0)
    pairs = [(int(row[place]), float(weights[place])) for place in there]
    return dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))
