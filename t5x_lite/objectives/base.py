"""Objectives, losses as sums, and the area under the ROC curve.

A loss consists of terms. A term is a SUM and the weight to divide it by. The train step divides
each term by its own global weight and adds scale * term, once, over the global batch; so
microbatching, packing and data parallelism give the same gradient.

    Loss(terms={"cross_entropy": Term(total, weight)}, metrics={"accuracy": (correct, weight)})

A metric that is not a quotient of two sums can be a `Roc`, see below.

A loss that compares each row with all other rows of the batch has two stages. The module returns
arrays of each row, and `Objective.joint` computes terms from the rows of the whole batch:

    module(...)            -> Loss(terms={}, metrics={}, rows={"queries": [B, D], ...})
    objective.joint(rows)  -> Loss(terms={"contrastive": ...}, metrics={...})

A step can still run the first stage in microbatches. It keeps the rows, computes the gradient of
`joint` at them, and passes it back through each microbatch (Gao et al. 2021, arXiv:2101.06983).

An objective may have several phases. The step then minimizes one loss after the other on the same
batch, each over its own paths with its own optimizer. Later phases read the `Loss.features` of
earlier ones.

`Roc` computes the area under the ROC curve from sums. The area is the fraction of pairs of a
positive and a negative in which the positive has the larger logit; ties count half. The exact area
needs all logits at once. Their histogram in fixed bins can be added up over batches, devices and
hosts:

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
    """Histograms of the logits of positives and negatives, from which the area is computed.

    Attributes:
      positives: weights of the positives in each bin; float32, or NumPy's float64.
      negatives: weights of the negatives.
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
        """Return the histograms of logits.

        Args:
          logits: larger for likelier positives.
          labels: True for positives.
          weights: weight of each logit; 0 excludes it. Counts below 2**24 in a bin are exact.
        """
        place = (logits.astype(jnp.float32) + LARGEST) * (BINS / (2 * LARGEST))
        bins = jnp.clip(jnp.floor(place), 0, BINS - 1).astype(jnp.int32)
        empty = jnp.zeros((BINS,), jnp.float32)
        found = (empty.at[bins].add(jnp.where(which, weights, 0.0)) for which in (labels, ~labels))
        return cls(*found)

    def area(self) -> Any:
        """Return the area under the ROC curve; 0.5 if there are no positives or no negatives."""
        positives, negatives = _shares(self.positives), _shares(self.negatives)
        below = negatives.cumsum() - 0.5 * negatives
        there = (self.positives.sum() > 0) & (self.negatives.sum() > 0)
        return (positives * below).sum() + 0.5 * ~there

    def error(self) -> Any:
        """Return the maximum difference of `area` from the exact area."""
        return 0.5 * (_shares(self.positives) * _shares(self.negatives)).sum()


def _shares(counts: Any) -> Any:
    total = counts.sum()
    return counts / (total + (total == 0))


class Term(NamedTuple):
    """One part of a loss: scale * total / weight over the global batch.

    Attributes:
      total: float32 scalar, a sum over positions.
      weight: float32 scalar, the sum of their weights.
      scale: scale of the term in the loss.
    """

    total: Array
    weight: Array
    scale: float = 1.0


class Loss(NamedTuple):
    """Sums over a batch.

    Attributes:
      terms: name -> Term; differentiated.
      metrics: name -> (total, weight), logged as total / weight; or histograms, as their area.
      features: arrays [B, ...] that later phases of a step read from their batch; without
        gradient.
      rows: float32 arrays [B, ...] from which `Objective.joint` computes terms; differentiated.
    """

    terms: Mapping[str, Term]
    metrics: Mapping[str, tuple[Array, Array] | Roc]
    features: Mapping[str, Array] = {}
    rows: Mapping[str, Array] = {}

    def value(self) -> Array:
        """Return scale * total / weight, summed over the terms; a term of weight 0 counts as 0."""
        if not self.terms:
            return jnp.float32(0)
        parts = [
            term.scale * term.total / jnp.where(term.weight > 0, term.weight, 1.0)
            for term in self.terms.values()
        ]
        return sum(parts[1:], start=parts[0])

    def joined(self, other: "Loss") -> "Loss":
        """Return the loss with the terms and metrics of the second stage instead of the rows.

        Raises:
          ValueError: if both stages have a term or a metric of the same name.
        """
        twice = {*self.terms, *self.metrics} & {*other.terms, *other.metrics}
        if twice:
            raise ValueError(f"both stages of a loss have {sorted(twice)}: give them other names")
        return self._replace(
            terms={**self.terms, **other.terms},
            metrics={**self.metrics, **other.metrics},
            rows={},
        )

    def plus_terms(self, penalties: Mapping[str, tuple[Array, float]]) -> "Loss":
        """Return the loss with terms (total, scale) of the parameters, equal in each microbatch."""
        made = {name: Term(x, jnp.float32(1), scale) for name, (x, scale) in penalties.items()}
        return self._replace(terms={**self.terms, **made}) if made else self

    def plus_metrics(self, metrics: Mapping[str, tuple[Array, Array]]) -> "Loss":
        """Return the loss with more metrics, (total, weight)."""
        return self._replace(metrics={**self.metrics, **metrics}) if metrics else self

    def plus(self, other: "Loss") -> "Loss":
        """Return the loss of two batches: their sums are added, and the scales do not change."""
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
    """Return the value of a metric: total / weight, or the area under its curve.

    Args:
      sums: (total, weight) or a `Roc`, as JAX or NumPy arrays.
    """
    if isinstance(sums, Roc):
        return sums.area()
    total, weight = sums
    return total / (jnp.maximum if isinstance(weight, jax.Array) else max)(weight, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """One of the updates of a step, which are made in order on the same batch.

    Attributes:
      name: name that is passed to the objective's module, and the name of the optimizer's state.
      trains: a regular expression that matches the whole paths of the trained parameters.
      optimizer: optimizer of the phase; None is the experiment's, with separate state.
    """

    name: str
    trains: str
    optimizer: Optimizer | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """Base of the objectives' configs.

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
        """Number of tasks that the loss reads from `adapter_ids`; 0 if it does not read them."""
        return 0

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> Any:
        """Build the module `(model, heads, batch, key) -> Loss`; it may have parameters.

        With phases, the module also takes `phase`: the phase's name, or None for the loss of all
        phases together, which evaluation reports.
        """
        raise TypeError(f"{type(self).__name__} does not define build")

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        """Return the loss's heads, which are trained; a checkpoint's other heads are frozen.

        Args:
          kept: heads by name, of the experiment or of its initial checkpoint. Their known fields,
            such as labels, are reused.
        """
        return ()

    def more_towers(self) -> tuple[str, ...]:
        """Return names of more encoders like the model, at towers/NAME, such as "passage".

        The loss module is then called with `towers`, the encoders' modules by name.
        """
        return ()

    def with_one_tower(self) -> "Objective":
        """Return the same objective without further encoders."""
        return self

    def with_two_towers(self) -> "Objective":
        """Return the same objective with an encoder for passages, if it computes vectors."""
        return self

    def with_classes(self, *, kind: str, num_classes: int) -> "Objective":
        """Return the objective with its classification head set for a model family and a task.

        Args:
          kind: kind of the classification head.
          num_classes: number of classes of the task; 1 for regression.
        """
        return self

    def with_weights(self, weights: tuple[float, ...]) -> "Objective":
        """Return the objective with class weights, if it uses any."""
        return self

    def undecided(self) -> tuple[str, ...]:
        """Return the settings that model family and data decide: "head", "classes", "weights"."""
        return ()

    def joint(self, rows: Mapping[str, Array], batch: Batch, *, step: Array | None) -> Loss:
        """Return the second stage's terms and metrics of a whole batch; it has no parameters.

        Args:
          rows: name -> array [B, ...], in the order of the batch.
          batch: the whole batch.
          step: step of the optimizer; None in evaluation.
        """
        raise TypeError(f"{type(self).__name__} gives rows and does not define joint")

    def forward_flops(self, model: ModelConfig, shapes: RowShapes) -> int | None:
        """Return the floating-point operations of the loss of one row, or None if not counted.

        The default is the model's operations. A head that reads one vector of a text is not
        counted.

        Args:
          model: model of the architecture.
          shapes: shapes of a row's features, as for `ModelConfig.forward_flops`.
        """
        return model.forward_flops(shapes)

    def phases(self) -> tuple[Phase, ...]:
        """Return the updates of a step; () is one update of everything by the run's optimizer."""
        return ()

    def resolved(self, kept: Mapping[str, Head]) -> "Objective":
        """Return the objective with defaults filled in for its None fields."""
        return self

    def anew(self, earlier: "Objective") -> str:
        """Return a warning if parameters of the objective are reinitialized, or ""."""
        del earlier
        return ""

    def masks_with(self) -> int | None:
        """Return the id of [MASK] that the objective needs, or None."""
        return None

    def no_terms(self) -> tuple[int, ...] | None:
        """Return the tokens that are not terms of a text, or None if it has no terms."""
        return None

    def smaller_logits(self) -> str:
        """Return the option that reduces the number of logits in memory, or ""."""
        return ""

    def models(self) -> Mapping[str, ModelConfig]:
        """Return the objective's models other than the trained one, by field name."""
        return {}

    def check_model(self, model: nnx.Module) -> None:
        """Raise InputError for a model that the objective cannot train."""
        if self.of_encoder and not isinstance(model, EncoderModel):
            raise InputError(
                f"objective {type(self).__name__} trains an encoder, but the model is a "
                f"{type(model).__name__}: take a BertConfig or a DebertaConfig"
            )

    def views(self, model: ModelConfig, prefix: str) -> tuple[View, ...]:
        """Return the views that compute the learner's parameters from stored ones.

        Args:
          model: config of the architecture; its parameters are below "model/".
          prefix: prefix of the objective's own paths.
        """
        return ()

    @property
    def unpackable(self) -> str:
        """Reason why a row cannot hold several documents; "" if it can."""
        return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoLoss(Objective):
    """Objective without a loss, for an imported model with heads that have no loss."""

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "NoLossModule":
        """Build a module that raises InputError."""
        del model, rngs
        return NoLossModule()


class LossModule(nnx.Module):
    """Base of the loss modules that have no parameters.

    Args:
      config: the objective.
    """

    def __init__(self, config: Any):
        self.config = config


class NoLossModule(nnx.Module):
    """Loss module without a loss; it has no parameters."""

    def __call__(self, model: Any, heads: Any, batch: Batch, *, key: Key | None = None) -> Loss:
        """Raise InputError, because there is no loss."""
        raise InputError(
            "an imported checkpoint has no training objective; train with a CONFIG that sets one "
            "and --init CHECKPOINT"
        )


def names_of(layouts: Sequence[type[Layout]]) -> str:
    """Return the names of layouts for a message."""
    return " or ".join(layout.name for layout in layouts)
