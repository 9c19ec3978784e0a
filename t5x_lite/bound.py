"""A model, its heads, its objective and its adapters as one module: what a learner binds.

    bound = Bound(T5Config(...), Seq2Seq(), rngs=nnx.Rngs(0))
    bound(batch, key=key)                             # a loss: sums, to be differentiated
    bound.model, bound.heads, bound.encoder("query")

`t5x_lite.learner` traces it, and puts it together again of stored parameters.
"""

from collections.abc import Sequence
from typing import Any

from flax import nnx

from t5x_lite.adapters.base import Adapter, AdapterModules
from t5x_lite.adapters.composition import Block
from t5x_lite.adapters.routing import metrics_of, penalties_of, routers_of
from t5x_lite.data.config import ADAPTER_IDS
from t5x_lite.heads.base import Head, HeadModules, by_name
from t5x_lite.heads.dense import Role
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.towers import Towers
from t5x_lite.nn import tally
from t5x_lite.objectives.base import Loss, Objective
from t5x_lite.types import Batch, Key


class Bound(nnx.Module):
    """A model, its heads and its objective as one module.

    Args:
      model: config of the architecture.
      objective: config of the objective.
      heads: configs of heads that are kept besides the objective's own.
      adapters: configs of adapters; `Learner.bind` puts them into the model's slots.
      use: how they are composed; () is each by itself.
      rngs: the stream "params" is used.

    Raises:
      InputError: the objective cannot train the model.
    """

    def __init__(
        self,
        model: ModelConfig,
        objective: Objective,
        heads: Sequence[Head] = (),
        adapters: Sequence[Adapter] = (),
        use: Sequence[str | Block] = (),
        *,
        rngs: nnx.Rngs,
    ):
        self.model = model.build(rngs=rngs)
        objective.check_model(self.model)
        self.objective = objective.build(model, rngs=rngs)
        self.reads_tasks = objective.num_tasks > 0
        self.towers = Towers(objective.more_towers(), model, rngs=rngs)
        self.heads = HeadModules(heads_of(objective, heads), model, rngs=rngs)
        if adapters:
            self.adapters = AdapterModules(adapters, self.model, use=use, rngs=rngs)
        self.has_adapters = bool(adapters)
        self.routers = tuple(routers_of(adapters, use).items())

    def __call__(self, batch: Batch, *, key: Key | None = None, phase: str | None = None) -> Loss:
        """The loss of a batch, or of one of its phases; a key turns dropout on."""
        more: dict[str, Any] = {} if phase is None else {"phase": phase}
        if self.towers.names:
            more["towers"] = self.towers
        if self.has_adapters:
            encoders = (self.model, *(self.towers[name] for name in self.towers.names))
            batch = self.adapters.of_batch(encoders, batch, keep_ids=self.reads_tasks)
            with tally.collecting() as found:
                loss = self.objective(self.model, self.heads, batch, key=key, **more)
            routers = dict(self.routers)
            loss = loss.plus_metrics(metrics_of(found, routers))
            return loss if key is None else loss.plus_terms(penalties_of(found, routers))
        if ADAPTER_IDS in batch and not self.reads_tasks:  # of modules that are not in use
            batch = {name: x for name, x in batch.items() if name != ADAPTER_IDS}
        return self.objective(self.model, self.heads, batch, key=key, **more)

    def encoder(self, role: Role) -> Any:
        """The encoder of texts of a role: a tower of its own, or the model."""
        return self.towers[role] if role in self.towers.names else self.model


def heads_of(objective: Objective, kept: Sequence[Head]) -> dict[str, Head]:
    """The configs of a learner's heads by name: those that the objective reads, then the others.

    Raises:
      InputError: two have one name.
    """
    others = by_name(kept)
    own = by_name(objective.heads(others))
    return {**own, **{name: head for name, head in others.items() if name not in own}}
