"""An ensemble: the average of several models' logits (Raffel et al. 2020, section 3.6).

model = Ensemble([first, second])     # decoded from like any other model
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from t5x_lite.decoding.prepare import prepared
from t5x_lite.errors import InputError
from t5x_lite.types import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ensemble:
    """Models with one vocabulary that say each token together; a pytree if they are.

    Attributes:
      models: at least one; sizes may differ, the vocabulary's may not.

    Raises:
      InputError: no models.
    """

    models: Sequence[Any]

    def __post_init__(self) -> None:
        if not self.models:
            raise InputError("an ensemble needs at least one model")

    def prepared(self) -> "Ensemble":
        """Every model laid out for decoding."""
        return Ensemble([prepared(model) for model in self.models])

    def prefill(
        self,
        inputs: Int[Array, "B S"],
        *,
        max_length: int,
        prompt: Int[Array, "B P"] | None = None,
    ) -> tuple[Float[Array, "B V"], tuple]:
        """Every model's prefill; the cache is a tuple of theirs."""
        return _together(
            model.prefill(inputs, max_length=max_length, prompt=prompt) for model in self.models
        )

    def step(self, tokens: Int[Array, " R"], cache: tuple) -> tuple[Float[Array, "R V"], tuple]:
        """Every model's step."""
        return _together(
            model.step(tokens, own) for model, own in zip(self.models, cache, strict=True)
        )

    def repeat(self, cache: tuple, num: int) -> tuple:
        """Every model's repeat."""
        return tuple(m.repeat(own, num) for m, own in zip(self.models, cache, strict=True))

    def select(self, cache: tuple, rows: Int[Array, " R"]) -> tuple:
        """Every model's select."""
        return tuple(m.select(own, rows) for m, own in zip(self.models, cache, strict=True))

    def target_logits(
        self, inputs: Int[Array, "B S"], targets: Int[Array, "B T"]
    ) -> Float[Array, "B T V"]:
        """The average of every model's teacher-forced logits."""
        return average([model.target_logits(inputs, targets) for model in self.models])


def average(logits: Sequence[Float[Array, "*batch V"]]) -> Float[Array, "*batch V"]:
    """The mean of several models' logits, in float32.

    Raises:
      InputError: the vocabularies differ in size.
    """
    sizes = sorted({array.shape[-1] for array in logits})
    if len(sizes) > 1:
        raise InputError(
            f"the models of an ensemble must share a vocabulary: got sizes {sizes}; use "
            "checkpoints with the same vocab_size"
        )
    total = logits[0].astype(jnp.float32)
    for array in logits[1:]:
        total = total + array.astype(jnp.float32)
    return total / len(logits)


def _together(results: Any) -> tuple[Any, tuple]:
    logits, caches = zip(*results, strict=True)
    return average(logits), caches
