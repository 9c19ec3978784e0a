"""The head that makes one vector of a text: pooling, perhaps a projection, and the length 1.

    Dense(pooling="cls")                                   # the state of [CLS], of length 1
    Dense(pooling="cls", projection=128, tied=False)       # W h + b, of queries and of passages

It has parameters where there is a projection alone: heads/dense/query, and heads/dense/passage
where the two are not tied (DPR's projection_dim; RetroMAE's linear_q and linear_p).

How long a text may be and what is put before it are facts of such a checkpoint as well: they stand
here, so that who reads the checkpoint makes the vectors that it was trained for.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float, Int

from t5x_lite.errors import InputError
from t5x_lite.heads import base
from t5x_lite.heads.base import Head
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.pooling import Pooling, check_pooling, pool
from t5x_lite.sharding import constrain
from t5x_lite.types import Array

Projected = Literal["identity", "tanh"]
"""What becomes of a projection's result."""
Role = Literal["query", "passage"]
"""What a text is to another; where both are alike it is a query."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt:
    """What is put before a text.

    Attributes:
      name: such as "query" or "document".
      text: with the space at its end, if there is to be one.
    """

    name: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dense(Head):
    """One vector of a text.

    Attributes:
      pooling: "cls" or "mean"; `models.pooling`.
      normalize: whether vectors have length 1.
      max_length: tokens of a text at most, [CLS] and [SEP] included; None is not known.
      prompts: that texts of some kinds begin with.
      default_prompt: the name of the one that a text without a kind begins with; "" is none.
      projection: numbers of a vector, by a linear layer behind the pooling; None has no such layer.
      tied: whether queries and passages have the same.
      activation: of the projection's result, before the length is 1; LaBSE has "tanh".
      projection_bias: whether the projection has a bias; Sentence-T5's has none.
    """

    name: str = "dense"
    pooling: Pooling = "mean"
    normalize: bool = True
    max_length: int | None = None
    prompts: tuple[Prompt, ...] = ()
    default_prompt: str = ""
    projection: int | None = None
    tied: bool = True
    activation: Projected = "identity"
    projection_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pooling("pooling", self.pooling)
        if self.max_length is not None and self.max_length < 1:
            raise InputError(f"max_length must be at least 1: got {self.max_length}")
        if self.activation != "identity" and self.projection is None:
            raise InputError(f"activation {self.activation} is of a projection, and there is none")
        if self.projection is not None and self.projection < 1:
            raise InputError(f"projection must be at least 1, or None: got {self.projection}")
        names = [prompt.name for prompt in self.prompts]
        if len(set(names)) < len(names):
            raise InputError(f"two prompts have one name: {', '.join(names)}")
        if self.default_prompt and self.default_prompt not in names:
            raise InputError(
                f"default_prompt {self.default_prompt!r} is none of the prompts: "
                f"{', '.join(names) or 'there are none'}"
            )

    @property
    def has_parameters(self) -> bool:
        """Those of its projection."""
        return self.projection is not None

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "DenseHead":
        """Makes the module.

        Raises:
          InputError: the pooling is "cls", and rows do not begin with [CLS].
        """
        check_cls(self.pooling, model)
        return DenseHead(self, model, rngs=rngs)

    def prompt(self, *names: str) -> str:
        """What a text of a kind begins with: the first of some prompts that there is.

        Args:
          names: of prompts; where there is none of them it is the default one, or "".
        """
        texts = {prompt.name: prompt.text for prompt in self.prompts}
        return next((texts[name] for name in (*names, self.default_prompt) if name in texts), "")


def dense_of(heads: Mapping[str, Head]) -> Dense | None:
    """The head that makes vectors, of a checkpoint's heads by name; None where there is none."""
    head = heads.get("dense")
    return head if isinstance(head, Dense) else None


def check_cls(pooling: Pooling, model: ModelConfig) -> None:
    """Refuses, by an InputError, the pooling "cls" of a model whose rows have no [CLS]."""
    if pooling == "cls" and not model.begins_with_cls:
        raise InputError(
            f"pooling 'cls': the rows of a {type(model).__name__} do not begin with [CLS]; use "
            "'mean'"
        )


class DenseHead(nnx.Module):
    """Pooled states, or what a linear layer makes of them.

    Args:
      config: of the head.
      model: of the states; what it is matters to a projection alone.
      rngs: the stream "params" is used.
    """

    def __init__(
        self, config: Dense, model: ModelConfig | None = None, *, rngs: nnx.Rngs | None = None
    ):
        self.config = config
        if config.projection is None:
            return
        if rngs is None:
            raise ValueError("a projection begins at random: give rngs")
        size, stddev = _sizes(model)
        for role in get_args(Role)[: 1 if config.tied else 2]:
            axes = ("embed", None)
            layer = base.dense(
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
        """Float32 vectors of texts, one a row.

        Args:
          hidden: the encoder's states.
          mask: what is no padding: true, or above 0.
          role: of the texts.
        """
        vectors = self.project(pool(hidden, mask, self.config.pooling), role=role)
        return unit(vectors) if self.config.normalize else vectors

    def project(self, pooled: Float[Array, "B D"], *, role: Role = "query") -> Float[Array, "B K"]:
        """What the projection makes of pooled states, where there is one.

        Args:
          pooled: float32.
          role: of the texts.
        """
        if self.config.projection is not None:
            layer = getattr(self, "query" if self.config.tied else role)
            pooled = layer.product(pooled.astype(layer.kernel[...].dtype)).astype(jnp.float32)
            pooled = jnp.tanh(pooled) if self.config.activation == "tanh" else pooled
        return constrain(pooled, "batch", None)


def _sizes(model: ModelConfig | None) -> tuple[int, float]:
    """The size of a model's states, and the deviation of a fresh kernel that reads them."""
    d_model = getattr(model, "d_model", None)
    if not isinstance(d_model, int):
        raise InputError(f"a projection reads the states of an encoder, not of a {type(model)}")
    return d_model, getattr(model, "initializer_stddev", d_model**-0.5)


def unit(vectors: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
    """The vectors at length 1; one of zeros stays as it is, with a gradient that is finite."""
    squares = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))
