"""Contrastive training of a bi-encoder: scores in blocks of rows, candidates, grades, triplets.

Base of the retrieval objectives: vectors of texts, and scores within blocks of rows.

    rows = PairVectors(objective)(model, heads, batch).rows
    rows["queries"], rows["passages"]                   # float32 [B, D], [B, P, D]

One encoder computes all vectors, or queries and passages have separate encoders. The head "dense"
pools the hidden states, and may apply a projection. Rows have the features of data.layout Groups().

Other functions compute scores of queries and passages within blocks of consecutive rows:

    four rows, two passages each, blocks of two rows: a query has the scores of four passages
    row   0  1 | 2  3          passages of rows 0 and 1 | of rows 2 and 3

The size of a block is a number of rows, independent of the devices. Blocks do not interact, so
devices with complete blocks exchange no data; the passages of a single block are copied to all
devices.

Contrastive objectives of bi-encoders: InfoNCE, cosine regression and triplets.

One encoder reads queries and passages separately; the vector of a text is pooled from its hidden
states. A query must be closer to its own passage than to all other passages of the batch, both the
passages of other queries and the hard negatives of Groups() (Oord et al. 2018, arXiv:1807.03748;
Karpukhin et al. 2020, arXiv:2004.04906; Gao et al. 2021, arXiv:2104.08821):

    loss of query i = -log( exp(s_ii / t) / sum_j exp(s_ij / t) ),     s_ij = q_i . p_j

    two queries, a passage each, t = 1:
    q = [[1, 0], [0, 1]], p = [[1, 0], [1, 1]]:  s = [[1, 1], [0, 1]]
    losses log 2 and log(1 + 1/e)

The loss uses the passages of the whole batch, on any number of devices. They are gathered, and the
gradient is the same as on one device. (RetroMAE's code gathers the passages, and then averages the
gradients over devices, so that they are too small by a factor of the number of devices.)
Microbatches also use the passages of the whole batch: the loss has two stages (`objectives.base`),
vectors of texts and a loss of all vectors, which is gradient caching (Gao et al. 2021,
arXiv:2101.06983).

Without labels, a text is both query and passage (task tasks.pairs:same_text). Query and passage are
encoded with different dropout keys, like two views of a text (SimCSE).

    dpr()         dot product, t 1, [CLS], a separate encoder for passages
    retromae()    dot product, t 1, [CLS], one encoder
    bge()         cosine, t 0.02, [CLS], one encoder

The candidates of a query are its own passage and the negatives.

    two queries a, b: a has positive 20, hard negative 30; b has positive 21, hard negative 20
    batch      a: 20 30 21 .       b: 20 30 21 .        (of the two 20 the first counts for b)
    group      a: 20 30 . .        b: .  .  21 20

A row with 1 as "own_negatives" [B] is compared only with its own passages, and no other
row is compared with them, as in `group`: a passage of a class or a cluster may be relevant to other
queries.

The following are masked out of the negatives:

- padding;
- a passage with the tokens of the query's positive, in any row with this query;
- passages that the data name as positives by id (features "passage_ids" [B, P, 4] and
  "positive_ids" [B, K, 4]; zeros are absent ids);
- of passages with the same tokens, all but the first.

FlagEmbedding, Tevatron and RetroMAE's code mask out none of these passages, which pushes positives
away.

Texts are compared by two 32-bit hashes, so that a batch of 2,048 passages compares hashes instead
of four million pairs of token rows. Two texts with equal hashes (probability about 2^-64) would
count as one text.

Pairs of texts with a grade, and triplets, are also used to train sentence encoders.

    CosineRegression(scale=5.0)     # (cos(a, b) - grade / 5)^2: STS-B, tasks.pairs:stsb
    Triplets(margin=1.0)            # max(0, |q - p| - |q - n| + margin) of each negative n

Both losses are sums over rows, so they need no second stage. Rows have the features of data.layout
Groups(): the first text of a pair is the query, the second a passage, and the grade the teacher's
score (`Groups(teacher=True)`). Source: Reimers and Gurevych 2019, arXiv:1908.10084, section 3.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float, Int, Shaped, UInt32

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Above, AtLeast
from t5x_lite.core.sharding import constrain
from t5x_lite.core.trees import Array, Batch, Key
from t5x_lite.layouts import Groups, Layout
from t5x_lite.layouts.base import OWN_NEGATIVES
from t5x_lite.models.base import ModelConfig, RowShapes
from t5x_lite.models.heads import Head, HeadModules
from t5x_lite.models.t5 import T5Encoder
from t5x_lite.models.vector_heads import Dense, Pooling, Role, Towers, dense_of, late_scores, unit
from t5x_lite.models.vector_heads import scores as lexical_scores
from t5x_lite.nn.dense import split_key
from t5x_lite.objectives.base import Loss, LossModule, Objective, Term
from t5x_lite.objectives.likelihood import correct, cross_entropy

NumTowers = Literal["one", "two"]

_FEATURES = ("query_tokens", "query_segment_ids", "passage_tokens", "passage_segment_ids")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiEncoder(Objective):
    """Base class of objectives that compute a vector of each query and of each passage.

    Attributes:
      normalize: True if vectors are scaled to length 1, so that a score is a cosine; None is the
        initial checkpoint's setting, by default True.
      pooling: "cls" or "mean"; None is the initial checkpoint's setting, by default "cls".
      projection: output size of a linear layer after the pooling; None is the initial checkpoint's
        setting, by default no such layer.
      tied_projection: True if queries and passages share the projection.
      towers: "one" encoder for queries and passages, or "two": passages have a separate encoder
        (`towers/passage`), which starts as a copy of the queries' encoder.
    """

    normalize: bool | None = None
    pooling: Pooling | None = None
    projection: int | None = None
    tied_projection: bool = True
    towers: NumTowers = "one"

    layouts: ClassVar[tuple[type[Layout], ...]] = (Groups,)
    of_encoder: ClassVar[bool] = True

    def with_one_tower(self) -> "BiEncoder":
        return dataclasses.replace(self, towers="one")

    def with_two_towers(self) -> "BiEncoder":
        return dataclasses.replace(self, towers="two")

    def forward_flops(self, model: Any, shapes: RowShapes) -> int:
        (query,), (num, passage) = shapes["query_tokens"], shapes["passage_tokens"]
        return model.text_flops(query) + num * model.text_flops(passage)

    def more_towers(self) -> tuple[str, ...]:
        return ("passage",) if self.towers == "two" else ()

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        return (self._dense(kept),)

    def _dense(self, kept: Mapping[str, Head]) -> Dense:
        head = dense_of(kept) or Dense(pooling="cls")
        return dataclasses.replace(
            head,
            pooling=head.pooling if self.pooling is None else self.pooling,
            normalize=head.normalize if self.normalize is None else self.normalize,
            **(
                {}
                if self.projection is None
                else {"projection": self.projection, "tied": self.tied_projection}
            ),
        )

    def resolved(self, kept: Mapping[str, Head]) -> "BiEncoder":
        head = self._dense(kept)
        return dataclasses.replace(
            self,
            pooling=head.pooling,
            normalize=head.normalize,
            projection=head.projection,
            tied_projection=head.tied,
        )

    def check_model(self, model: nnx.Module) -> None:
        """Raise InputError unless the model is an encoder, including T5's encoder."""
        if not isinstance(model, T5Encoder):
            super().check_model(model)


class PairVectors(LossModule):
    """Loss module that computes the vectors of queries and passages."""

    def __call__(
        self,
        model: Any,
        heads: HeadModules,
        batch: Batch,
        *,
        key: Key | None = None,
        towers: Towers | None = None,
    ) -> Loss:
        check_groups(self.config, batch)
        rows = self.encode(model, heads, batch, key=key, towers=towers)
        return Loss(terms={}, metrics={}, rows=rows)

    def encode(
        self,
        model: Any,
        heads: HeadModules,
        batch: Batch,
        *,
        key: Key | None = None,
        towers: Towers | None = None,
    ) -> dict[str, Array]:
        """Return the vectors of queries and passages; a key enables dropout."""
        query_key, passage_key = split_key(key, 2)
        rows, num, length = batch["passage_tokens"].shape
        passage_model = model if towers is None else towers["passage"]

        def vectors(
            model: Any, tokens: Array, segment_ids: Array, *, role: Role, key: Key | None
        ) -> Array:
            hidden = model(tokens, segment_ids=segment_ids, key=key)
            return heads["dense"](hidden, segment_ids, role=role)

        asked = (batch["query_tokens"], batch["query_segment_ids"])
        shown = (batch["passage_tokens"], batch["passage_segment_ids"])
        flat = [x.reshape(rows * num, length) for x in shown]
        queries = vectors(model, *asked, role="query", key=query_key)
        passages = vectors(passage_model, *flat, role="passage", key=passage_key)
        return {"queries": queries, "passages": passages.reshape(rows, num, -1)}


def check_groups(objective: Objective, batch: Batch) -> None:
    """Raise InputError if a batch lacks the tokens of queries or of passages."""
    missing = sorted(set(_FEATURES) - set(batch))
    if missing:
        raise InputError(
            f"objective {type(objective).__name__} reads {', '.join(_FEATURES)}, but the batch has "
            f"no {', '.join(missing)}: data.layout must be groups"
        )


def own_block(x: Shaped[Array, "B N"], block: int) -> Shaped[Array, "B M"]:
    """Select the scores of each query for the passages in the same block of rows.

    Args:
      x: values of B queries for all N passages, N / B per row.
      block: number of rows per block.
    """
    size = x.shape[1] // len(x) * block
    first = jnp.arange(len(x)) // block * size
    return jnp.take_along_axis(x, first[:, None] + jnp.arange(size), axis=1)


def own_group(x: Shaped[Array, "B M"], block: int, num: int) -> Shaped[Array, "B P"]:
    """Select the scores of each query for the `num` passages of the same row."""
    first = jnp.arange(len(x)) % block * num
    return jnp.take_along_axis(x, first[:, None] + jnp.arange(num), axis=1)


def of_lexical(rows: Mapping[str, Array], batch: Batch, *, block: int) -> Float[Array, "B M"]:
    """Return the lexical scores of each query for the passages in the same block of rows.

    Args:
      rows: "query_terms" [B, Lq] and "passage_terms" [B, P, Lp], from `LexicalHead.terms`.
      batch: batch with the tokens.
      block: number of rows per block.
    """
    asked = _of_queries(batch["query_tokens"], block), _of_queries(rows["query_terms"], block)
    shown = (
        _of_passages(batch["passage_tokens"], block),
        _of_passages(rows["passage_terms"], block),
    )
    return _flat(jax.vmap(lexical_scores)(asked, shown))


def of_multi_vectors(rows: Mapping[str, Array], batch: Batch, *, block: int) -> Float[Array, "B M"]:
    """Return the multi-vector scores of each query for the passages in the same block of rows.

    Args:
      rows: "query_vectors" [B, Lq - 1, K] and "passage_vectors" [B, P, Lp - 1, K], from
        `MultiVectorHead`.
      batch: batch with the segment ids; 0 is padding.
      block: number of rows per block.
    """
    asked = batch["query_segment_ids"][:, 1:] > 0
    shown = batch["passage_segment_ids"][:, :, 1:] > 0
    return _flat(
        late_scores(
            (_of_queries(rows["query_vectors"], block), _of_queries(asked, block)),
            (_of_passages(rows["passage_vectors"], block), _of_passages(shown, block)),
        )
    )


def _of_queries(x: Array, block: int) -> Array:
    return x.reshape(-1, block, *x.shape[1:])


def _of_passages(x: Array, block: int) -> Array:
    found = x.reshape(-1, block * x.shape[1], *x.shape[2:])
    return constrain(found, *[None] * found.ndim) if len(found) == 1 else found


def _flat(scores: Float[Array, "A G M"]) -> Float[Array, "B M"]:
    return scores.reshape(-1, scores.shape[2])


BATCH, GROUP = "batch", "group"
_BLOCK = re.compile(r"block:([1-9]\d*)")
_SEEDS = (0x9E3779B1, 0x85EBCA77)


def check_scope(scope: str) -> None:
    """Raise InputError unless the scope of candidates is "batch", "block:N" or "group"."""
    if scope not in (BATCH, GROUP) and not _BLOCK.fullmatch(scope):
        raise InputError(
            f"objective.candidates must be batch, group or block:N, such as block:32, got {scope!r}"
        )


def block_size(scope: str) -> int | None:
    """Return the number of rows per block for the scope "block:N", else None."""
    block = _BLOCK.fullmatch(scope)
    return int(block.group(1)) if block else None


def candidates(batch: Batch, scope: str = BATCH) -> Bool[Array, "B N"]:
    """Return a mask of the candidates of each query, among the N passages of the batch.

    Args:
      batch: batch of B queries, each with N / B passages.
      scope: "batch", "group" (only a row's own passages), or "block:N" (the passages of N
        consecutive rows, independent of the devices).
    """
    may = _wrong_or_own(batch, scope)
    return _first_of_each(may, _passage_keys(batch)) | _own(batch)


def asking(batch: Batch, scope: str = BATCH) -> Bool[Array, "B B"]:
    """Return a mask of the queries to compare with each row's first passage.

    The mask is for a symmetric loss. It includes the row's own query, and each distinct query for
    which the passage is not relevant.
    """
    rows, num = batch["passage_tokens"].shape[:2]
    firsts = _wrong_or_own(batch, scope)[:, ::num].T
    there = jnp.any(batch["query_segment_ids"] > 0, axis=1)
    return _first_of_each(firsts & there, _query_keys(batch)) | jnp.eye(rows, dtype=bool)


def others(batch: Batch, scope: str = BATCH) -> Bool[Array, "B N"]:
    """Return a mask of each query's negatives from other rows, without duplicates."""
    rows, num = batch["passage_tokens"].shape[:2]
    keys = _passage_keys(batch)

    def more(so_far: Array, own: Array) -> tuple[Array, None]:
        return so_far | jnp.all(own[:, None] == keys[None], axis=2), None

    groups = jnp.swapaxes(keys.reshape(rows, num, 2), 0, 1)
    of_group = jnp.arange(rows * num)[None] // num == jnp.arange(rows)[:, None]
    of_group, _ = jax.lax.scan(more, of_group, groups)
    return _first_of_each(_wrong_or_own(batch, scope) & ~of_group, keys)


def _wrong_or_own(batch: Batch, scope: str) -> Bool[Array, "B N"]:
    rows, num = batch["passage_tokens"].shape[:2]
    there = jnp.any(batch["passage_segment_ids"] > 0, axis=2).reshape(1, rows * num)
    wrong = there & ~_answers(batch) & ~_answers_by_id(batch)
    return (wrong | _own(batch)) & _within(rows, num, scope) & _allowed(batch)


def _answers(batch: Batch) -> Bool[Array, "B N"]:
    num = batch["passage_tokens"].shape[1]
    queries, passages = _query_keys(batch), _passage_keys(batch)
    asks = jnp.all(queries[:, None] == queries[None], axis=2)
    is_answer = jnp.all(passages[::num, None] == passages[None], axis=2)
    # A product of zeros and ones instead of a loop over the B rows with the same query.
    counts = jnp.einsum("BC,CN->BN", asks.astype(jnp.float32), is_answer.astype(jnp.float32))
    return counts > 0


def _answers_by_id(batch: Batch) -> Bool[Array, "B N"]:
    rows, num = batch["passage_tokens"].shape[:2]
    if "passage_ids" not in batch or "positive_ids" not in batch:
        return jnp.zeros((rows, rows * num), bool)
    ids = batch["passage_ids"].reshape(rows * num, -1)

    def one(known: Array) -> Array:
        same = jnp.all(known[:, None] == ids[None], axis=2)
        return same & jnp.any(ids > 0, axis=1)

    each = jnp.swapaxes(batch["positive_ids"], 0, 1)
    found, _ = jax.lax.scan(
        lambda so_far, known: (so_far | one(known), None), jnp.zeros((rows, rows * num), bool), each
    )
    return found


def _own(batch: Batch) -> Bool[Array, "B N"]:
    rows, num = batch["passage_tokens"].shape[:2]
    return jnp.arange(rows * num)[None] == jnp.arange(rows)[:, None] * num


def _within(rows: int, num: int, scope: str) -> Bool[Array, "B N"]:
    if scope == BATCH:
        return jnp.ones((rows, rows * num), bool)
    size = block_size(scope) or 1
    of_passages = jnp.arange(rows * num) // num // size
    return (jnp.arange(rows) // size)[:, None] == of_passages[None]


def _allowed(batch: Batch) -> Bool[Array, "B N"]:
    rows, num = batch["passage_tokens"].shape[:2]
    if OWN_NEGATIVES not in batch:
        return jnp.ones((rows, rows * num), bool)
    alone = batch[OWN_NEGATIVES] > 0
    return _within(rows, num, GROUP) | ~(alone[:, None] | jnp.repeat(alone, num)[None])


def _first_of_each(candidate: Bool[Array, "B N"], keys: UInt32[Array, "N 2"]) -> Bool[Array, "B N"]:
    """Keep only the first candidate per row among passages with equal keys."""
    order = jnp.lexsort((keys[:, 1], keys[:, 0]))  # stable: the first of equal keys stays first
    found, ordered = candidate[:, order], keys[order]
    begins = jnp.any(ordered != jnp.roll(ordered, 1, axis=0), axis=1).at[0].set(True)
    start = jax.lax.cummax(jnp.where(begins, jnp.arange(len(keys)), 0))
    before = jnp.cumsum(found, axis=1) - found
    first = found & (before == before[:, start])
    return jnp.zeros_like(candidate).at[:, order].set(first)


def _query_keys(batch: Batch) -> UInt32[Array, "B 2"]:
    return text_keys(batch["query_tokens"], batch["query_segment_ids"])


def _passage_keys(batch: Batch) -> UInt32[Array, "N 2"]:
    tokens = batch["passage_tokens"]
    shape = (-1, tokens.shape[-1])
    return text_keys(tokens.reshape(shape), batch["passage_segment_ids"].reshape(shape))


def text_keys(tokens: Int[Array, "N L"], segment_ids: Int[Array, "N L"]) -> UInt32[Array, "N 2"]:
    """Return two hashes of each text's tokens and their positions, ignoring padding.

    Args:
      tokens: token ids.
      segment_ids: segment id of each token; 0 is padding.
    """
    places = jnp.arange(tokens.shape[1], dtype=jnp.uint32)
    hashes = []
    for seed in _SEEDS:
        at = _mixed(places * jnp.uint32(2) + jnp.uint32(seed))
        each = _mixed((tokens.astype(jnp.uint32) + jnp.uint32(seed)) ^ at)
        hashes.append(jnp.sum(jnp.where(segment_ids > 0, each, 0), axis=1, dtype=jnp.uint32))
    return jnp.stack(hashes, axis=1)


def _mixed(x: UInt32[Array, "*_"]) -> UInt32[Array, "*_"]:
    """Apply the last step of MurmurHash3, in which every input bit affects every output bit."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> shift)) * jnp.uint32(factor)
    return x ^ (x >> 16)


NEVER = -1e9
"""Score of passages that are not candidates; finite, so that a row of padding does not give NaN."""
DOT: dict[str, Any] = {"temperature": 1.0, "normalize": False, "pooling": "cls"}
"""Fields for dot products of [CLS] hidden states, without normalization."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contrastive(BiEncoder):
    """InfoNCE loss: cross-entropy of a query's own passage among its candidates.

    Attributes:
      temperature: divisor of the scores, only in training.
      candidates: "batch", the passages of all rows; "group", the passages of the query's own row;
        or "block:N", the passages of N consecutive rows, independent of the devices.
      symmetric: True to also compare each row's first passage with the queries, for parallel texts;
        the loss is the mean of both directions.
    """

    temperature: Annotated[float, Above(0)] = 0.05
    candidates: str = BATCH
    symmetric: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scope(self.candidates)

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> PairVectors:
        del model, rngs
        return PairVectors(self)

    def joint(self, rows: Mapping[str, Array], batch: Batch, *, step: Array | None) -> Loss:
        """Return the InfoNCE loss of the vectors of a whole batch.

        Args:
          rows: "queries" [B, D], and "passages" [B, P, D] with the positive first, then hard
            negatives.
          batch: batch with the texts, to detect padding and duplicates.
          step: not used.
        """
        scores = self.scores(rows)
        real = jnp.any(batch["query_segment_ids"] > 0, axis=1).astype(jnp.float32)
        loss, weight = self.info_nce(scores, batch, real), jnp.sum(real)
        return Loss(
            terms={"contrastive": Term(loss, weight)},
            metrics={
                **of_scores(scores, candidates(batch, self.candidates), real),
                **of_vectors(rows, real),
            },
        )

    def scores(self, rows: Mapping[str, Array]) -> Float[Array, "B N"]:
        """Return the dot product of each query and passage, not divided by the temperature."""
        passages = rows["passages"]
        # Every device needs all passages; the gradient returns to the devices that computed them.
        gathered = constrain(passages.reshape(-1, passages.shape[2]), None, None)
        highest = jax.lax.Precision.HIGHEST
        return jnp.einsum("BD,ND->BN", rows["queries"], gathered, precision=highest)

    def info_nce(
        self, scores: Float[Array, "B N"], batch: Batch, real: Float[Array, " B"]
    ) -> Float[Array, ""]:
        """Return the sum of the InfoNCE losses of all queries except padding.

        Args:
          scores: score of each query and passage.
          batch: batch of queries with their passages.
          real: 1 for a query, and 0 for a row of padding.
        """
        num_rows, num = batch["passage_tokens"].shape[:2]
        scaled, rows = scores / self.temperature, jnp.arange(num_rows, dtype=jnp.int32)
        may = candidates(batch, self.candidates)
        losses, _ = cross_entropy(jnp.where(may, scaled, NEVER), rows * num)
        total = jnp.sum(losses * real)
        if not self.symmetric:
            return total
        back = jnp.where(asking(batch, self.candidates), scaled[:, ::num].T, NEVER)
        losses, _ = cross_entropy(back, rows)
        return (total + jnp.sum(losses * real)) / 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Matryoshka(Contrastive):
    """Sum of the contrastive losses of complete vectors and of vectors shortened to each size.

    A shortened vector has the leading dimensions of the complete vector; `embed --dimensions N`
    computes it after training. The losses are added, as in sentence-transformers' MatryoshkaLoss.
    Shortened vectors are normalized if the complete vectors are. Source: Kusupati et al. 2022,
    arXiv:2205.13147.

    Attributes:
      dimensions: sizes of the shortened vectors, each below the size of the complete vectors.
    """

    dimensions: Annotated[tuple[int, ...], AtLeast(1)] = (64, 128, 256)

    def joint(self, rows: Mapping[str, Array], batch: Batch, *, step: Array | None) -> Loss:
        loss = super().joint(rows, batch, step=step)
        real = jnp.any(batch["query_segment_ids"] > 0, axis=1).astype(jnp.float32)
        may, whole = candidates(batch, self.candidates), rows["queries"].shape[-1]
        terms, metrics = dict(loss.terms), dict(loss.metrics)
        for size in self.dimensions:
            if size >= whole:
                raise InputError(
                    f"objective.dimensions must be below {whole}, the size of a vector: got {size}"
                )
            short = {name: vectors[..., :size] for name, vectors in rows.items()}
            if self.normalize is not False:
                short = {name: unit(vectors) for name, vectors in short.items()}
            scores = self.scores(short)
            own = Term(self.info_nce(scores, batch, real), jnp.sum(real))
            terms[f"contrastive_{size}"] = own
            metrics[f"accuracy_{size}"] = of_scores(scores, may, real)["accuracy"]
        return Loss(terms=terms, metrics=metrics)


def dpr(**fields: Any) -> Contrastive:
    """Return DPR's objective: two encoders, dot products of [CLS] states."""
    return Contrastive(**{**DOT, "towers": "two", **fields})


def retromae(**fields: Any) -> Contrastive:
    """Return RetroMAE's fine-tuning objective: one encoder, dot products of [CLS] states."""
    return Contrastive(**{**DOT, **fields})


def bge(**fields: Any) -> Contrastive:
    """Return BGE's fine-tuning objective: one encoder, cosines of [CLS], temperature 0.02."""
    return Contrastive(**{"temperature": 0.02, "normalize": True, "pooling": "cls", **fields})


def of_scores(
    scores: Float[Array, "B N"], may: Bool[Array, "B N"], real: Float[Array, " B"]
) -> dict[str, tuple[Array, Array]]:
    """Return accuracy, mean score of the positives and mean score of the hardest negatives.

    Args:
      scores: dot products of queries and passages.
      may: True for the candidates of each query, which include its own passage.
      real: 1 for a query, and 0 for a row of padding.
    """
    num_rows, num = scores.shape[0], scores.shape[1] // scores.shape[0]
    rows = jnp.arange(num_rows, dtype=jnp.int32)
    own = rows * num
    own_scores = jnp.take_along_axis(scores, own[:, None], axis=1)[:, 0]
    others = may & (jnp.arange(scores.shape[1])[None] != own[:, None])
    hardest = jnp.max(jnp.where(others, scores, -jnp.inf), axis=1)
    has_others = jnp.any(others, axis=1) * real
    right = correct(jnp.where(others, scores, -jnp.inf).at[rows, own].set(own_scores), own_scores)
    weight = jnp.sum(real)
    return {
        "accuracy": (jnp.sum(right * real), weight),
        "own_score": (jnp.sum(own_scores * real), weight),
        "hardest_negative_score": (
            jnp.sum(jnp.where(has_others > 0, hardest, 0.0)),
            jnp.sum(has_others),
        ),
    }


def of_vectors(
    rows: Mapping[str, Array], real: Float[Array, " B"]
) -> dict[str, tuple[Array, Array]]:
    """Return the metrics alignment and uniformity of vectors (Wang and Isola 2020).

    Alignment is E |f(q) - f(p)|^2 of a query and its passage. Uniformity is log E exp(-2 |x - y|^2)
    of different texts of the batch, averaged over queries and first passages. Both use vectors of
    length 1 (arXiv:2005.10242). Uniformity is computed for each batch and then averaged over
    batches.

    Args:
      rows: "queries" [B, D], and "passages" [B, P, D] with the positive first.
      real: 1 for a query, and 0 for a row of padding.
    """
    queries = unit(jax.lax.stop_gradient(rows["queries"]))
    passages = unit(jax.lax.stop_gradient(rows["passages"][:, 0]))
    weight = jnp.sum(real)
    apart = jnp.sum(jnp.square(queries - passages), axis=1)
    pairs = real[:, None] * real[None] * (1.0 - jnp.eye(len(real)))
    spread = jnp.float32(0)
    for vectors in (queries, passages):
        # |x - y|^2 = 2 - 2 x.y of vectors of length 1.
        cosines = jnp.einsum("BD,CD->BC", vectors, constrain(vectors, None, None))
        mean = jnp.sum(jnp.exp(4.0 * (cosines - 1.0)) * pairs) / jnp.maximum(jnp.sum(pairs), 1.0)
        spread += 0.5 * jnp.log(jnp.maximum(mean, 1e-30))
    return {
        "alignment": (jnp.sum(apart * real), weight),
        "uniformity": (spread * weight, weight),
    }


Distance = Literal["euclidean", "cosine"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CosineRegression(BiEncoder):
    """Regression of cosines: squared error between the cosine of two texts and their grade.

    Attributes:
      scale: divisor of the grades, which moves them into [-1, 1].
    """

    scale: Annotated[float, Above(0)] = 1.0

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "GradedLoss":
        del model, rngs
        return GradedLoss(self)

    def of_vectors(self, queries: Array, passages: Array, batch: Batch) -> Loss:
        """Return the loss of float32 vectors of queries [B, D] and passages [B, P, D].

        Raises:
          InputError: if the batch has no grades.
        """
        if "teacher_scores" not in batch:
            raise InputError(
                "objective CosineRegression needs grades, but the batch has no teacher_scores; set "
                '--data.layout.teacher True, and use a task with "pos_scores"'
            )
        grades = batch["teacher_scores"]
        there = jnp.any(batch["passage_segment_ids"] > 0, axis=2) & ~jnp.isnan(grades)
        cosines = jnp.einsum("BD,BPD->BP", unit(queries), unit(passages))
        # Zeros instead of NaN before the square: a gradient of NaN times 0 is NaN.
        errors = jnp.where(there, cosines - jnp.nan_to_num(grades) / self.scale, 0.0)
        total, weight = jnp.sum(jnp.square(errors)), jnp.sum(there.astype(jnp.float32))
        return Loss(
            terms={"squared_error": Term(total, weight)},
            metrics={"squared_error": (total, weight)},
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Triplets(BiEncoder):
    """Triplet margin loss: a query must be nearer to its positive than to each of its negatives.

    Attributes:
      margin: minimum difference between the distances to a negative and to the positive.
      distance: "euclidean", or "cosine" for 1 - cosine.
    """

    margin: Annotated[float, Above(0)] = 1.0
    distance: Distance = "euclidean"

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "GradedLoss":
        del model, rngs
        return GradedLoss(self)

    def of_vectors(self, queries: Array, passages: Array, batch: Batch) -> Loss:
        """Return the loss of float32 vectors of queries [B, D] and passages [B, P, D]."""
        if passages.shape[1] < 2:
            raise InputError(
                "objective Triplets needs negatives, but rows have only one passage; set "
                "--data.layout.negatives 1 or more"
            )
        there = jnp.any(batch["passage_segment_ids"] > 0, axis=2)
        pairs = (there[:, :1] & there[:, 1:]).astype(jnp.float32)
        far = self._distances(queries[:, None], passages)
        losses = jnp.maximum(far[:, :1] - far[:, 1:] + self.margin, 0.0)
        right = 0.5 * (1.0 + jnp.sign(far[:, 1:] - far[:, :1]))  # a tie is half right
        weight = jnp.sum(pairs)
        return Loss(
            terms={"triplets": Term(jnp.sum(losses * pairs), weight)},
            metrics={"accuracy": (jnp.sum(right * pairs), weight)},
        )

    def _distances(self, a: Array, b: Array) -> Array:
        if self.distance == "cosine":
            return 1.0 - jnp.sum(unit(a) * unit(b), axis=-1)
        # The root of 0 has no finite gradient.
        return jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(a - b), axis=-1), 1e-12))


class GradedLoss(nnx.Module):
    """Module that computes the loss of graded pairs or triplets of texts.

    Args:
      config: the objective.
    """

    def __init__(self, config: CosineRegression | Triplets):
        self.config = config
        self.vectors = PairVectors(config)

    def __call__(
        self,
        model: Any,
        heads: HeadModules,
        batch: Batch,
        *,
        key: Key | None = None,
        towers: Towers | None = None,
    ) -> Loss:
        check_groups(self.config, batch)
        rows = self.vectors.encode(model, heads, batch, key=key, towers=towers)
        return self.config.of_vectors(rows["queries"], rows["passages"], batch)
