"""What an objective is: a frozen config that builds a module (model, batch, key) -> Loss.

A loss is made of terms, each a SUM and the weight to divide it by. The train step divides each
term by its own global weight and adds scale * term, once, over the global batch; so microbatching,
packing and data parallelism give the same gradient.

    Loss(terms={"cross_entropy": Term(total, weight)}, metrics={"accuracy": (correct, weight)})
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from flax import nnx

from t5x_lite.models.base import ModelConfig
from t5x_lite.types import Array, Batch, Key, Params


class Term(NamedTuple):
    """One part of a loss: scale * total / weight over the global batch.

    Attributes:
      total: float32 scalar, a sum over positions.
      weight: float32 scalar, the sum of their weights.
      scale: of the term in the loss.
    """

    total: Array
    weight: Array
    scale: float = 1.0


class Loss(NamedTuple):
    """The sums that a batch gives.

    Attributes:
      terms: name -> Term; differentiated.
      metrics: name -> (total, weight); logged as total / weight.
    """

    terms: Mapping[str, Term]
    metrics: Mapping[str, tuple[Array, Array]]

    def value(self) -> Array:
        """scale * total / weight, summed over the terms; a term of weight 0 counts 0."""
        parts = [
            term.scale * term.total / jnp.where(term.weight > 0, term.weight, 1.0)
            for term in self.terms.values()
        ]
        return sum(parts[1:], start=parts[0])

    def plus(self, other: "Loss") -> "Loss":
        """The sums of two batches together; the scales stay."""
        return Loss(
            terms={
                name: Term(
                    term.total + other.terms[name].total,
                    term.weight + other.terms[name].weight,
                    term.scale,
                )
                for name, term in self.terms.items()
            },
            metrics={
                name: (total + other.metrics[name][0], weight + other.metrics[name][1])
                for name, (total, weight) in self.metrics.items()
            },
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """Base of the objectives' configs.

    Attributes:
      layouts: the values of data.layout whose rows it reads; none says nothing.
    """

    layouts: ClassVar[tuple[str, ...]] = ()

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> Any:
        """Makes the module `(model, batch, key) -> Loss`, with parameters of its own or none."""
        raise TypeError(f"{type(self).__name__} does not define build")

    def check_model(self, model: nnx.Module) -> None:
        """Refuses, by an InputError, a model that the objective cannot train."""

    def export(self, params: Params) -> Params:
        """The model's own parameters, from {"model": ..., "objective": ...}."""
        return params["model"]


class Learner(nnx.Module):
    """A model and its objective as one module: what is split, trained and checkpointed.

    Args:
      model: config of the architecture.
      objective: config of the objective.
      rngs: the stream "params" is used.
    """

    def __init__(self, model: ModelConfig, objective: Objective, *, rngs: nnx.Rngs):
        self.model = model.build(rngs=rngs)
        objective.check_model(self.model)
        self.objective = objective.build(model, rngs=rngs)

    def __call__(self, batch: Batch, *, key: Key | None = None) -> Loss:
        """The loss of a batch; a key turns dropout on."""
        return self.objective(self.model, batch, key=key)
