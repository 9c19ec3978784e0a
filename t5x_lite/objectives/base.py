"""Interfaces of objectives: losses as sums, phases, and the area under the ROC curve.

A loss consists of terms. A term is a SUM and the weight to divide it by. The train step divides
each term by its global weight and adds scale * term, once, over the global batch. Microbatching,
packing and data parallelism therefore give the same gradient.

    Loss(terms={"cross_entropy": Term(total, weight)}, metrics={"accuracy": (correct, weight)})

A metric that is not a quotient of two sums can be a `Roc`, see below.

A loss that compares each row with all other rows of the batch has two stages. The module returns
arrays of each row, and `Objective.joint` computes terms from the rows of the whole batch:

    module(...)            -> Loss(terms={}, metrics={}, rows={"queries": [B, D], ...})
    objective.joint(rows)  -> Loss(terms={"contrastive": ...}, metrics={...})

A step can still run the first stage in microbatches. It keeps the rows, computes the gradient of
`joint` at these rows, and passes the gradient back through each microbatch (Gao et al. 2021,
arXiv:2101.06983).

An objective may have several phases. The step then minimizes one loss after the other on the same
batch. Each phase trains its own paths with its own optimizer, and later phases read the
`Loss.features` of earlier phases.

`Roc` computes the area under the ROC curve from sums. The area is the fraction of pairs of a
positive and a negative in which the positive has the larger logit; ties count half. The exact area
needs all logits at once, but histograms of logits in fixed bins can be added up over batches,
devices and hosts:

    Roc.of(logits, labels, weights).area()

    logits -3, 1 negative; 1.01, 4 positive: the pair (1, 1.01) shares a bin and counts half, as a
    tie; the area is (3 + 1/2) / 4

`BINS` bins of equal width divide the logits from -`LARGEST` to `LARGEST`; the first and the last
bin also hold all logits beyond. Only pairs within one bin can be counted wrong, each by up to 1/2:

    |area() - exact area|  <=  1/2 sum_b  p_b n_b  =  `error`

with p_b and n_b the fractions of the positives and of the negatives in bin b. With logits spread
over a range of width 4, this is up to about 1/2 / 256 = 0.002.
"""

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import check_bounds
from t5x_lite.core.tied_parameters import View
from t5x_lite.core.trees import Array, Batch, Key
from t5x_lite.layouts import Layout
from t5x_lite.models.base import ModelConfig, RowShapes
from t5x_lite.models.encoder import EncoderModel
from t5x_lite.models.heads import Head
from t5x_lite.optim.config import Optimizer

BINS, LARGEST = 2048, 16.0


class Roc(NamedTuple):
    """Histograms of the logits of positives and negatives, for the area under the ROC curve.

    Attributes:
      positives: total weight of the positives in each bin; float32, or NumPy's float64.
      negatives: total weight of the negatives in each bin.
    """

    positives: Any
    negatives: Any

    @classmethod
    def of(
        cls,
        logits: Float[Array, "*batch"],
        labels: Bool[Array, "*batch"],
        weights: Float[Array, "*batch"],
    ) -> "Roc":
        """Build the histograms of a batch of logits.

        Args:
          logits: scores, larger for likelier positives.
          labels: True for positives.
          weights: weight of each logit; 0 excludes the logit. Counts below 2**24 in a bin are
            exact.
        """
        place = (logits.astype(jnp.float32) + LARGEST) * (BINS / (2 * LARGEST))
        bins = jnp.clip(jnp.floor(place), 0, BINS - 1).astype(jnp.int32)
        empty = jnp.zeros((BINS,), jnp.float32)
        found = (empty.at[bins].add(jnp.where(which, weights, 0.0)) for which in (labels, ~labels))
        return cls(*found)

    def area(self) -> Any:
        """Return the area under the ROC curve; 0.5 without positives or without negatives."""
        positives, negatives = _shares(self.positives), _shares(self.negatives)
        below = negatives.cumsum() - 0.5 * negatives
        there = (self.positives.sum() > 0) & (self.negatives.sum() > 0)
        return (positives * below).sum() + 0.5 * ~there

    def error(self) -> Any:
        """Return an upper bound of the error of `area` that is caused by the bins."""
        return 0.5 * (_shares(self.positives) * _shares(self.negatives)).sum()


def _shares(counts: Any) -> Any:
    total = counts.sum()
    return counts / (total + (total == 0))


class Term(NamedTuple):
    """One term of a loss: scale * total / weight over the global batch.

    Attributes:
      total: float32 scalar, sum over positions.
      weight: float32 scalar, sum of the positions' weights.
      scale: scale of the term in the loss.
    """

    total: Array
    weight: Array
    scale: float = 1.0


class Loss(NamedTuple):
    """Loss terms and metrics of a batch, as sums and weights.

    Attributes:
      terms: terms of the loss by name, for differentiation.
      metrics: metrics by name: (total, weight), logged as total / weight; or a `Roc`, logged as its
        area.
      features: arrays [B, ...] for later phases of the train step; without gradient.
      rows: float32 arrays [B, ...] from which `Objective.joint` computes terms, for
        differentiation.
    """

    terms: Mapping[str, Term]
    metrics: Mapping[str, tuple[Array, Array] | Roc]
    features: Mapping[str, Array] = {}
    rows: Mapping[str, Array] = {}

    def value(self) -> Array:
        """Return scale * total / weight, summed over all terms; 0 for terms with weight 0."""
        if not self.terms:
            return jnp.float32(0)
        parts = [
            term.scale * term.total / jnp.where(term.weight > 0, term.weight, 1.0)
            for term in self.terms.values()
        ]
        return sum(parts[1:], start=parts[0])

    def joined(self, other: "Loss") -> "Loss":
        """Return this loss with the terms and metrics of another loss added, but without `rows`."""
        twice = {*self.terms, *self.metrics} & {*other.terms, *other.metrics}
        if twice:
            raise ValueError(f"both stages of a loss have terms named {sorted(twice)}; rename them")
        return self._replace(
            terms={**self.terms, **other.terms},
            metrics={**self.metrics, **other.metrics},
            rows={},
        )

    def plus_terms(self, penalties: Mapping[str, tuple[Array, float]]) -> "Loss":
        """Return the loss with extra penalty terms."""
        made = {name: Term(x, jnp.float32(1), scale) for name, (x, scale) in penalties.items()}
        return self._replace(terms={**self.terms, **made}) if made else self

    def plus_metrics(self, metrics: Mapping[str, tuple[Array, Array]]) -> "Loss":
        """Return the loss with additional metrics (total, weight)."""
        return self._replace(metrics={**self.metrics, **metrics}) if metrics else self

    def plus(self, other: "Loss") -> "Loss":
        """Add the sums of another batch to the loss; scales do not change."""
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
                name: jax.tree.map(operator.add, sums, other.metrics[name])
                for name, sums in self.metrics.items()
            },
        )


def metric_value(sums: Any) -> Any:
    """Return the value of a metric: total / weight, or the area under the ROC curve.

    Args:
      sums: (total, weight) or a `Roc`, as JAX or NumPy arrays.
    """
    if isinstance(sums, Roc):
        return sums.area()
    total, weight = sums
    return total / (jnp.maximum if isinstance(weight, jax.Array) else max)(weight, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """One of several consecutive updates of a train step on the same batch.

    Attributes:
      name: name of the phase, which the objective's module and the optimizer state use.
      trains: regular expression that matches the complete paths of the trained parameters.
      optimizer: optimizer of the phase; None is the experiment's optimizer, with separate state.
    """

    name: str
    trains: str
    optimizer: Optimizer | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """Base class of training objectives.

    Attributes:
      layouts: types of data.layout that the objective accepts; () accepts all.
      of_encoder: True if the objective trains only encoders.
    """

    layouts: ClassVar[tuple[type[Layout], ...]] = ()
    of_encoder: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_bounds(self, prefix="objective.")

    @property
    def num_tasks(self) -> int:
        """Number of tasks of a multi-task loss; 0 for other losses, which ignore `adapter_ids`."""
        return 0

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> Any:
        """Build the module that computes the loss from model, heads, batch and random key.

        With phases, the module also has an argument `phase`: the name of a phase, or None for the
        loss of all phases together, which evaluation reports.
        """
        raise TypeError(f"class {type(self).__name__} does not define the method build")

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        """Return the heads that the loss trains; other heads of a checkpoint are frozen.

        Args:
          kept: heads of the experiment or of its initial checkpoint, by name. Their fields, such as
            labels, are reused if set.
        """
        return ()

    def more_towers(self) -> tuple[str, ...]:
        """Return the names of additional encoders (towers), such as "passage"; () for none.

        Their parameters are at towers/NAME. The loss module is called with `towers`, the modules of
        these encoders by name.
        """
        return ()

    def with_one_tower(self) -> "Objective":
        """Return the same objective without additional encoders."""
        return self

    def with_two_towers(self) -> "Objective":
        """Return the same objective with a separate encoder for passages."""
        return self

    def with_classes(self, *, kind: str, num_classes: int) -> "Objective":
        """Return the objective with a classification head of this kind and number of classes.

        Args:
          kind: kind of the classification head.
          num_classes: number of classes of the task; 1 for regression.
        """
        return self

    def with_weights(self, weights: tuple[float, ...]) -> "Objective":
        """Return the objective with class weights, if it uses any."""
        return self

    def undecided(self) -> tuple[str, ...]:
        """Return the names of settings that must still be derived from the model or the data."""
        return ()

    def joint(self, rows: Mapping[str, Array], batch: Batch, *, step: Array | None) -> Loss:
        """Compute loss terms and metrics that compare the rows of a whole batch.

        Args:
          rows: arrays [B, ...] by name, in the order of the batch.
          batch: whole batch.
          step: step of the optimizer; None in evaluation.
        """
        raise TypeError(f"objective {type(self).__name__} returns rows, but has no method joint")

    def forward_flops(self, model: ModelConfig, shapes: RowShapes) -> int | None:
        """Return the FLOPs of the loss for one row, or None if they are unknown.

        The default is the FLOPs of the model. Heads that read one vector of a text are not counted.

        Args:
          model: config of the model.
          shapes: shapes of a row's features, by name.
        """
        return model.forward_flops(shapes)

    def phases(self) -> tuple[Phase, ...]:
        """Return the phases of a train step; () is one update of all parameters."""
        return ()

    def resolved(self, kept: Mapping[str, Head]) -> "Objective":
        """Return the objective with defaults filled in for its None fields."""
        return self

    def anew(self, earlier: "Objective") -> str:
        """Return a warning if parameters of the objective are reinitialized, or ""."""
        del earlier
        return ""

    def masks_with(self) -> int | None:
        """Return the token id of [MASK] that the objective uses, or None."""
        return None

    def no_terms(self) -> tuple[int, ...] | None:
        """Return the ids of special tokens that get no lexical weight, or None."""
        return None

    def smaller_logits(self) -> str:
        """Return the name of the option that reduces the number of logits in memory, or ""."""
        return ""

    def models(self) -> Mapping[str, ModelConfig]:
        """Return the configs of additional models of the objective, by field name."""
        return {}

    def check_model(self, model: nnx.Module) -> None:
        """Raise InputError if the objective cannot train the model."""
        if self.of_encoder and not isinstance(model, EncoderModel):
            raise InputError(
                f"objective {type(self).__name__} trains an encoder, but the model is a "
                f"{type(model).__name__}; use a BertConfig or a DebertaConfig"
            )

    def views(self, model: ModelConfig, prefix: str) -> tuple[View, ...]:
        """Return rules that compute shared parameters, such as tied embeddings, from stored ones.

        Args:
          model: config of the model; its parameters are below "model/".
          prefix: prefix of the objective's parameter paths.
        """
        return ()

    @property
    def unpackable(self) -> str:
        """Reason why rows must hold only one document; "" if packed rows are supported."""
        return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoLoss(Objective):
    """Objective without a loss, for imported models that are not trained."""

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "NoLossModule":
        del model, rngs
        return NoLossModule()


class LossModule(nnx.Module):
    """Base class of loss modules without parameters.

    Args:
      config: the objective.
    """

    def __init__(self, config: Any):
        self.config = config


class NoLossModule(nnx.Module):
    """Loss module that raises InputError when called; it has no parameters."""

    def __call__(self, model: Any, heads: Any, batch: Batch, *, key: Key | None = None) -> Loss:
        raise InputError(
            "an imported checkpoint has no training objective; train with a CONFIG that sets one "
            "and --init CHECKPOINT"
        )


def names_of(layouts: Sequence[type[Layout]]) -> str:
    """Return the names of layout types, joined by "or" for a message."""
    return " or ".join(layout.name for layout in layouts)
