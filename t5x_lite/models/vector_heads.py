"""Retrievers: a second tower, pooling, and dense, lexical and multi-vector heads.

Towers and pooling: additions to the model for retrievers.

Towers are encoders with the architecture of the model, in addition to the model, such as the
passage encoder of a retriever:

    towers = Towers(("passage",), config, rngs=rngs)
    towers["passage"](tokens)                           # parameters at towers/passage

A tower has the architecture and the adapters of the model, with separate parameters:

    model/layers/mlp/wi/kernel            towers/passage/layers/mlp/wi/kernel
    adapters/lora/layers/mlp/in/a         adapters/lora/towers/passage/layers/mlp/in/a

`pool` computes one vector of each text from an encoder's hidden states: the [CLS] state or the
mean.

    pool(model(tokens), tokens != pad_id, "mean")       # [B, D]

"cls" is the hidden state of a text's first token, as in BERT and SimCSE. "mean" is the mean over
all tokens except padding, including [CLS] and [SEP] (Reimers and Gurevych 2019, arXiv:1908.10084).

Heads for retrieval: dense, lexical and multi-vector.

    Dense(pooling="cls")                                   # [CLS] hidden state, of length 1
    Dense(pooling="cls", projection=128, tied=False)       # W h + b, for queries and for passages

A `Dense` head has parameters only with a projection: heads/dense/query, and heads/dense/passage if
the two projections are not tied (DPR's projection_dim; RetroMAE's linear_q and linear_p). The
maximum length of a text and its prompt are also part of the head, so that a loaded checkpoint
computes the vectors that it was trained for.

`Lexical` weights the terms of a text, with one number per token (BGE-M3's sparse retrieval).

    w_i = relu(W h_i + b)                      heads/lexical/out, W [d, 1]
    weight of a term t = max of w_i over its positions, for each t except special tokens

    tokens   0 5 9 5 2          (0 begins, 2 ends)
    w        .9 .2 .4 .7 .1
    terms    5: .7, 9: .4

The score of two texts is the sum over their common terms of the products of weights (Chen et al.
2024, arXiv:2402.03216; FlagEmbedding's m3/modeling.py). FlagEmbedding uses vectors [B, L, V] over
the vocabulary. Here a text keeps its length: `term_weights` keeps a term's largest weight at its
position and has 0 elsewhere, and `scores` sums over pairs of positions with the same token.

`MultiVector` computes a vector of each token of a text (ColBERT, as in BGE-M3).

    E_i = norm(W h_i + b)          heads/multi_vector/out; i from 1: [CLS] has none, [SEP] has one
    score(q, p) = (1 / N_q) sum_i max_j E_q,i . E_p,j          N_q: real tokens of q without [CLS]

Padding has no vector and is excluded from the maximum. In FlagEmbedding's code, padding has vectors
of zeros, so that a passage with only negative similarities has the score 0 (Chen et al. 2024,
arXiv:2402.03216; FlagEmbedding m3/modeling.py).
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float, Int

from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import AtLeast, Count
from t5x_lite.core.sharding import constrain
from t5x_lite.core.trees import Array, Key
from t5x_lite.models import heads
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.heads import Head, encoder_of
from t5x_lite.nn.dense import Dense as dense_Dense

TOWERS = "towers/"
"""Prefix of the parameter paths of all towers."""

_OF_TOWER = re.compile(r"towers/([^/]+)/(.*)|(adapters/[^/]+)/towers/([^/]+)/(.*)")
_OF_MODEL = re.compile(r"model/(.*)|(adapters/[^/]+)/(.*)")


def tower_of(path: str) -> tuple[str, str] | None:
    """Split a parameter path of an additional encoder into encoder name and path in the model."""
    match = _OF_TOWER.fullmatch(path)
    if match is None:
        return None
    if match[1] is not None:
        return match[1], f"model/{match[2]}"
    return match[4], f"{match[3]}/{match[5]}"


def in_tower(path: str, tower: str) -> str:
    """Convert a parameter path of the model to the same path in an additional encoder."""
    match = _OF_MODEL.fullmatch(path)
    if match is None or tower_of(path) is not None:
        return path
    if match[1] is not None:
        return f"{TOWERS}{tower}/{match[1]}"
    return f"{match[2]}/{TOWERS}{tower}/{match[3]}"


def as_model(arrays: Mapping[str, Any], tower: str = "") -> dict[str, Any]:
    """Select the arrays of one encoder, by the paths that they have in a single-encoder model.

    Args:
      arrays: arrays of all encoders, by path.
      tower: name of an additional encoder, such as "passage"; "" selects the main encoder.

    Returns:
      Arrays of the encoder, its adapters, and all shared arrays, such as heads, by path.
    """
    own = {path: tower_of(path) for path in arrays}
    shared = {
        path: array
        for path, array in arrays.items()
        if own[path] is None and (not tower or in_tower(path, tower) == path)
    }
    if not tower:
        return shared
    return shared | {found[1]: arrays[p] for p, found in own.items() if found and found[0] == tower}


def with_towers(tree: Any, names: Sequence[str]) -> Any:
    """Return nested parameters with the adapters copied to each additional encoder."""
    flat = trees.flatten(tree)
    adapters = {path: leaf for path, leaf in flat.items() if path.startswith("adapters/")}
    more = {in_tower(path, name): leaf for name in names for path, leaf in adapters.items()}
    return trees.unflatten({**flat, **more}) if more else tree


class Towers(nnx.Module):
    """Additional encoders of a retriever, such as a separate encoder for passages.

    Args:
      names: names of the encoders, such as "passage"; () for none.
      model: config of each encoder.
      rngs: random streams; "params" is used.
    """

    def __init__(self, names: Sequence[str], model: ModelConfig, *, rngs: nnx.Rngs):
        self.names = tuple(names)
        for name in names:
            setattr(self, name, model.build(rngs=rngs))

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


Pooling = Literal["cls", "mean"]


def pool(
    hidden: Float[Array, "B T D"], mask: Bool[Array, "B T"] | Int[Array, "B T"], kind: Pooling
) -> Float[Array, "B D"]:
    """Pool the hidden states of each text into one float32 vector.

    Args:
      hidden: hidden states of an encoder.
      mask: mask of tokens: True or positive at tokens, False or 0 at padding.
      kind: "cls" or "mean".
    """
    check_pooling("pooling", kind)
    if kind == "cls":
        return hidden[:, 0].astype(jnp.float32)
    weights = (mask > 0).astype(jnp.float32)
    total = jnp.sum(hidden.astype(jnp.float32) * weights[..., None], axis=1)
    return total / jnp.maximum(jnp.sum(weights, axis=1), 1.0)[:, None]


def check_pooling(name: str, kind: str) -> None:
    """Raise InputError if the pooling is unknown. `name` is the option in the error message."""
    if kind not in get_args(Pooling):
        raise InputError(f"{name} must be one of {get_args(Pooling)}: got {kind!r}")


Projected = Literal["identity", "tanh"]
"""Activation after a projection."""
Role = Literal["query", "passage"]
"""Role of a text in a pair; in a symmetric pair, both texts are queries."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt:
    """Text that is prepended to all texts of one kind, such as queries.

    Attributes:
      name: name of the prompt, such as "query" or "document".
      text: text of the prefix, including a trailing space if wanted.
    """

    name: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dense(Head):
    """Head that computes one vector of a text.

    Attributes:
      pooling: "cls" for the first hidden state, or "mean" for the mean of all hidden states.
      normalize: True if vectors are scaled to length 1.
      max_length: maximum length of a text in tokens, including [CLS] and [SEP]; None if unknown.
      prompts: prefixes of texts, by kind of text.
      default_prompt: name of the prompt for texts without a kind, or "".
      projection: output size of a linear layer after the pooling; None without this layer.
      tied: True if queries and passages share the projection.
      activation: activation after the projection, before normalization; LaBSE has "tanh".
      projection_bias: True if the projection has a bias; False for Sentence-T5.
    """

    name: str = "dense"
    pooling: Pooling = "mean"
    normalize: bool = True
    max_length: Count | None = None
    prompts: tuple[Prompt, ...] = ()
    default_prompt: str = ""
    projection: Count | None = None
    tied: bool = True
    activation: Projected = "identity"
    projection_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.activation != "identity" and self.projection is None:
            raise InputError(
                f"activation {self.activation} applies only to a projection, but projection is "
                "None; set projection"
            )
        names = [prompt.name for prompt in self.prompts]
        if len(set(names)) < len(names):
            raise InputError(f"two prompts have the same name: {', '.join(names)}")
        if self.default_prompt and self.default_prompt not in names:
            raise InputError(
                f"default_prompt {self.default_prompt!r} is not among the prompts: "
                f"{', '.join(names) or 'no prompts'}"
            )

    @property
    def has_parameters(self) -> bool:
        return self.projection is not None

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "DenseHead":
        """Build the head's module.

        Raises:
          InputError: if the pooling is "cls", but rows do not begin with [CLS].
        """
        check_cls(self.pooling, model)
        return DenseHead(self, model, rngs=rngs)

    def prompt(self, *names: str) -> str:
        """Return the text of the first of several prompts that exists, or of the default prompt.

        Args:
          names: names of prompts, in order of preference.
        """
        texts = {prompt.name: prompt.text for prompt in self.prompts}
        return next((texts[name] for name in (*names, self.default_prompt) if name in texts), "")


def dense_of(heads: Mapping[str, Head]) -> Dense | None:
    """Return the `Dense` head named "dense" of a checkpoint, or None."""
    head = heads.get("dense")
    return head if isinstance(head, Dense) else None


def check_cls(pooling: Pooling, model: ModelConfig) -> None:
    """Raise InputError for pooling "cls" if texts of the model do not begin with [CLS]."""
    if pooling == "cls" and not model.begins_with_cls:
        raise InputError(
            "pooling 'cls' requires rows that begin with [CLS], but rows of a "
            f"{type(model).__name__} do not; set pooling 'mean'"
        )


class DenseHead(nnx.Module):
    """Module that computes the vector of a text by pooling and an optional linear layer.

    Args:
      config: config of the head.
      model: config of the model that provides the hidden states; needed only for a projection.
      rngs: random streams; "params" is used.
    """

    def __init__(
        self, config: Dense, model: ModelConfig | None = None, *, rngs: nnx.Rngs | None = None
    ):
        self.config = config
        if config.projection is None:
            return
        if rngs is None:
            raise ValueError("a projection needs rngs for its random initialization")
        size, stddev = _sizes(model)
        for role in get_args(Role)[: 1 if config.tied else 2]:
            axes = ("embed", None)
            layer = heads.dense(
                *(size, config.projection),
                axes=axes,
                stddev=stddev,
                bias=config.projection_bias,
                rngs=rngs,
            )
            setattr(self, role, layer)

    def __call__(
        self,
        hidden: Float[Array, "B S D"],
        mask: Bool[Array, "B S"] | Int[Array, "B S"],
        *,
        role: Role = "query",
    ) -> Float[Array, "B K"]:
        """Return float32 vectors of texts, one per row.

        Args:
          hidden: hidden states of the encoder.
          mask: mask of tokens: True or positive at tokens, False or 0 at padding.
          role: kind of the texts, "query" or "passage".
        """
        vectors = self.project(pool(hidden, mask, self.config.pooling), role=role)
        return unit(vectors) if self.config.normalize else vectors

    def project(self, pooled: Float[Array, "B D"], *, role: Role = "query") -> Float[Array, "B K"]:
        """Apply the projection to pooled hidden states, if the head has one.

        Args:
          pooled: float32 vectors.
          role: kind of the texts, "query" or "passage".
        """
        if self.config.projection is not None:
            layer = getattr(self, "query" if self.config.tied else role)
            pooled = layer.product(pooled.astype(layer.kernel[...].dtype)).astype(jnp.float32)
            pooled = jnp.tanh(pooled) if self.config.activation == "tanh" else pooled
        return constrain(pooled, "batch", None)


def _sizes(model: ModelConfig | None) -> tuple[int, float]:
    d_model = getattr(model, "d_model", None)
    if not isinstance(d_model, int):
        raise InputError(f"a projection needs an encoder, but the model is a {type(model)}")
    return d_model, getattr(model, "initializer_stddev", d_model**-0.5)


def unit(vectors: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
    """Scale vectors to length 1; zero vectors are unchanged and have a finite gradient."""
    squares = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))


XLM_R = (0, 1, 2, 3)
"""Special tokens of XLM-R: start of text, padding, end of text, unknown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lexical(Head):
    """Head that computes a lexical weight for each token of a text.

    Attributes:
      specials: tokens that are not terms: start and end of a text, padding, and the unknown token.
    """

    name: str = "lexical"
    specials: Annotated[tuple[int, ...], AtLeast(0)] = XLM_R

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "LexicalHead":
        return LexicalHead(self, encoder_of(self, model).d_model, rngs=rngs)


class LexicalHead(nnx.Module):
    """Module that computes a non-negative weight of each token: linear -> relu.

    Args:
      config: config of the head.
      d_model: size of the hidden states.
      rngs: random streams; "params" is used.
    """

    def __init__(self, config: Lexical, d_model: int, *, rngs: nnx.Rngs):
        self.config = config
        self.out = linear(d_model, 1, rngs=rngs)

    def __call__(self, hidden: Float[Array, "B S D"]) -> Float[Array, "B S"]:
        """Return non-negative float32 weights of all positions, including special tokens."""
        return jax.nn.relu(self.out.product(hidden)[..., 0])

    def terms(
        self,
        hidden: Float[Array, "B S D"],
        tokens: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"],
    ) -> Float[Array, "B S"]:
        """Return the largest weight of each distinct term in each text; other weights are 0."""
        return term_weights(self(hidden), tokens, self.is_term(tokens, segment_ids))

    def is_term(
        self, tokens: Int[Array, "B S"], segment_ids: Int[Array, "B S"]
    ) -> Bool[Array, "B S"]:
        """Return True for tokens that are neither padding (segment_ids 0) nor special."""
        specials = jnp.asarray(self.config.specials, jnp.int32)
        return (segment_ids > 0) & ~jnp.isin(tokens, specials)


def linear(d_in: int, d_out: int, *, rngs: nnx.Rngs) -> dense_Dense:
    """Build a dense layer with PyTorch's initial values, uniform within 1 / sqrt(d_in)."""
    bound = 1 / math.sqrt(d_in)

    def uniform(key: Key, shape: tuple[int, ...], dtype: Any) -> Array:
        return jax.random.uniform(key, shape, dtype, minval=-bound, maxval=bound)

    layer = dense_Dense(
        d_in, d_out, axes=("embed", None), initializer=uniform, bias=True, rngs=rngs
    )
    layer.bias[...] = uniform(rngs.params(), (d_out,), jnp.float32)
    return layer


def term_weights(
    weights: Float[Array, "B S"], tokens: Int[Array, "B S"], is_term: Bool[Array, "B S"]
) -> Float[Array, "B S"]:
    """Keep the largest weight of each distinct term in a text, and set other weights to 0.

    Among equal weights, one position is kept and receives the full gradient.

    Args:
      weights: non-negative weights of all positions.
      tokens: token ids.
      is_term: True for tokens that are neither padding nor special.
    """
    known = jnp.where(is_term, tokens, -1)
    order = jnp.lexsort((jax.lax.stop_gradient(weights), known), axis=1)
    ordered = jnp.take_along_axis(known, order, axis=1)
    ends = ordered[:, :-1] != ordered[:, 1:]
    last = jnp.concatenate([ends, jnp.ones_like(ordered[:, :1], bool)], axis=1)
    rows = jnp.arange(len(tokens))[:, None]
    stays = jnp.zeros(tokens.shape, bool).at[rows, order].set(last & (ordered >= 0))
    return jnp.where(stays, weights, 0.0)


def scores(
    queries: tuple[Int[Array, "G Lq"], Float[Array, "G Lq"]],
    passages: tuple[Int[Array, "N Lp"], Float[Array, "N Lp"]],
) -> Float[Array, "G N"]:
    """Return lexical scores: the sum over common terms of the products of their weights.

    Two methods give the same numbers; the method with the smaller arrays is used.

    Args:
      queries: token ids and term weights of the queries.
      passages: token ids and term weights of the passages.
    """
    num, length = queries[0].shape
    by_terms = num < passages[0].shape[1] or num * length <= 4096
    return (scores_by_terms if by_terms else scores_by_pairs)(queries, passages)


def scores_by_terms(
    queries: tuple[Int[Array, "G Lq"], Float[Array, "G Lq"]],
    passages: tuple[Int[Array, "N Lp"], Float[Array, "N Lp"]],
) -> Float[Array, "G N"]:
    """Compute lexical scores by vectors over the distinct tokens of the queries."""
    (asked, asked_weights), (shown, shown_weights) = queries, passages
    terms = jnp.unique(asked, size=asked.size, fill_value=jnp.iinfo(jnp.int32).max)

    def vectors(tokens: Array, weights: Array) -> Array:
        places = jnp.minimum(jnp.searchsorted(terms, tokens), terms.size - 1)
        own = jnp.where(terms[places] == tokens, weights, 0.0)
        rows = jnp.arange(len(tokens))[:, None]
        return jnp.zeros((len(tokens), terms.size), jnp.float32).at[rows, places].add(own)

    highest = jax.lax.Precision.HIGHEST
    vector_pairs = vectors(asked, asked_weights), vectors(shown, shown_weights)
    return jnp.einsum("GU,NU->GN", *vector_pairs, precision=highest)


_LARGEST_TERMS = 1 << 22
"""Maximum number of pairs of positions that `scores_by_pairs` compares at a time."""


def scores_by_pairs(
    queries: tuple[Int[Array, "G Lq"], Float[Array, "G Lq"]],
    passages: tuple[Int[Array, "N Lp"], Float[Array, "N Lp"]],
) -> Float[Array, "G N"]:
    """Compute lexical scores by a comparison of all pairs of positions."""
    (asked, asked_weights), (shown, shown_weights) = queries, passages
    each = in_chunks(len(shown), at_most=max(1, _LARGEST_TERMS // (asked.size * shown.shape[1])))

    @jax.checkpoint
    def some(_: None, these: tuple[Array, Array]) -> tuple[None, Array]:
        tokens, weights = these
        same = (asked[:, None, :, None] == tokens[None, :, None, :]).astype(jnp.float32)
        highest = jax.lax.Precision.HIGHEST
        found = jnp.einsum("GCST,CT->GCS", same, weights, precision=highest)
        return None, jnp.einsum("GCS,GS->CG", found, asked_weights, precision=highest)

    chunks = [x.reshape(-1, each, x.shape[1]) for x in (shown, shown_weights)]
    _, found = jax.lax.scan(some, None, tuple(chunks))
    return found.reshape(len(shown), len(asked)).T


def in_chunks(num: int, *, at_most: int) -> int:
    """Return the size of equal chunks: the largest divisor of `num` that is at most `at_most`."""
    return max(size for size in range(1, min(num, at_most) + 1) if num % size == 0)


_LARGEST_SCORES = 1 << 24
"""Maximum number of token similarities that `late_scores` computes at a time."""
_NONE = -1e9
"""Similarity with padding; finite, so that passages of only padding do not give NaN."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiVector(Head):
    """Head that computes a vector of each token except the first.

    Attributes:
      size: dimensions of a vector; None for the size of the hidden states.
      normalize: True if vectors are scaled to length 1.
    """

    name: str = "multi_vector"
    size: Count | None = None
    normalize: bool = True

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "MultiVectorHead":
        return MultiVectorHead(self, encoder_of(self, model).d_model, rngs=rngs)


class MultiVectorHead(nnx.Module):
    """Module that computes a vector of each token except the first: linear, then normalization.

    Args:
      config: config of the head.
      d_model: size of the hidden states.
      rngs: random streams; "params" is used.
    """

    def __init__(self, config: MultiVector, d_model: int, *, rngs: nnx.Rngs):
        self.config = config
        self.out = linear(d_model, config.size or d_model, rngs=rngs)

    def __call__(
        self, hidden: Float[Array, "B S D"], segment_ids: Int[Array, "B S"]
    ) -> Float[Array, "B N K"]:
        """Return float32 vectors of all S - 1 positions after the first; zeros for padding.

        Args:
          hidden: hidden states of the encoder.
          segment_ids: segment id of each token; 0 is padding.
        """
        vectors = self.out.product(hidden[:, 1:])
        vectors = unit(vectors) if self.config.normalize else vectors
        return jnp.where(segment_ids[:, 1:, None] > 0, vectors, 0.0)


def late_scores(
    queries: tuple[Float[Array, "*A G Lq K"], Bool[Array, "*A G Lq"]],
    passages: tuple[Float[Array, "*A N Lp K"], Bool[Array, "*A N Lp"]],
) -> Float[Array, "*A G N"]:
    """Return late-interaction scores: the mean over query tokens of their maximum similarity.

    The maximum is over the tokens of a passage. Texts without tokens have the score 0. Passages
    are processed in chunks, to save memory.

    Args:
      queries: token vectors of the queries, and the mask of tokens.
      passages: token vectors of the passages, and the mask of tokens.
    """
    (asked, there), (shown, real) = queries, passages
    blocks, (num, length) = asked.shape[:-3], shown.shape[-3:-1]
    whole = asked.size // asked.shape[-1] * length
    each = in_chunks(num, at_most=max(1, _LARGEST_SCORES // whole))
    count = jnp.sum(there, axis=-1, dtype=jnp.float32)[..., None]
    axis = len(blocks)

    @jax.checkpoint
    def some(_: None, these: tuple[Array, Array]) -> tuple[None, Array]:
        vectors, of_tokens = these
        similar = jnp.einsum(
            "...GSK,...CTK->...GCST", asked, vectors, precision=jax.lax.Precision.HIGHEST
        )
        similar = jnp.where(of_tokens[..., None, :, None, :], similar, _NONE)
        best = jnp.max(similar, axis=-1)
        counts = there[..., None, :] & jnp.any(of_tokens, axis=-1)[..., None, :, None]
        return None, jnp.sum(jnp.where(counts, best, 0.0), axis=-1)

    def chunked(x: Array) -> Array:
        split = x.reshape(*blocks, num // each, each, *x.shape[axis + 1 :])
        return jnp.moveaxis(split, axis, 0)

    _, sums = jax.lax.scan(some, None, (chunked(shown), chunked(real)))
    # [chunks, *A, G, c] -> [*A, G, chunks * c]
    sums = jnp.moveaxis(sums, 0, -2).reshape(*asked.shape[:-2], num)
    return sums / jnp.maximum(count, 1.0)
