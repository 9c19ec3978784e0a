"""The updates of a train step: most steps are one, of all parameters.

An objective of several phases (`objectives.base.Phase`) is as many updates, one after the other on
one batch: each has a loss, the paths that it trains and an optimizer of its own, and begins from
the parameters that the one before has left. So is trained DeBERTaV3: first the generator, then the
discriminator, which reads the tables that the generator has just changed.

    one update:       state.optimizer = {"count": ..., "mu": ...}
    several updates:  state.optimizer = {"generator": {"count": ...}, "discriminator": {...}}
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import optax

from t5x_lite import trees
from t5x_lite.types import Batch, Key, Params

LossFunction = Callable[[Params, Batch, Key | None], Any]
"""(params, batch, key) -> Loss, the first of its two stages: objectives/base.py."""


@dataclasses.dataclass(frozen=True)
class Update:
    """One update.

    Attributes:
      loss_function: gives the sums of a batch; their quotient over the global batch is minimised.
      optimizer: gives the change of the trained parameters.
      schedule: step -> learning rate, for the metrics.
      name: of its part of the optimizer's state; "" where it is the only one.
      trains: whether a path is trained; None trains all.
      joint: the second stage of the loss, (rows, batch, step=) -> Loss; None where there is none.
      live: (gradient, optimizer's state) -> the gradient with 0 for layers that are still frozen
        (`optim.unfreezing`); None where there are none.
      scheduled: steps taken -> parameters by path that follow from them alone; they do not train.
        None where there are none.
    """

    loss_function: LossFunction
    optimizer: optax.GradientTransformation
    schedule: Callable[[Any], Any]
    name: str = ""
    trains: Callable[[str], bool] | None = None
    joint: Callable[..., Any] | None = None
    live: Callable[[Params, Any], Params] | None = None
    scheduled: Callable[[Any], dict[str, Any]] | None = None

    def complete(self, loss: Any, batch: Batch, step: Any) -> Any:
        """A whole batch's loss with the terms of its rows, if it has rows.

        Raises:
          ValueError: there is no second stage.
        """
        if not loss.rows:
            return loss
        if self.joint is None:
            raise ValueError(f"the loss has rows, {sorted(loss.rows)}, and nothing joins them")
        return loss.joined(self.joint(loss.rows, batch, step=step))

    def part(self, tree: Any) -> Any:
        """What is trained, of a tree that has the parameters' paths."""
        trains = self.trains
        if trains is None:
            return tree
        return trees.partition(tree, lambda path, _: trains(path))[0]

    def loss_of(self, params: Params) -> LossFunction:
        """The loss as a function of the trained part, whose other parameters are given."""
        if self.trains is None:
            return self.loss_function

        def loss(trained: Params, batch: Batch, key: Key | None) -> Any:
            return self.loss_function(trees.overlaid(params, trained), batch, key)

        return loss

    def at_step(self, params: Params, step: Any) -> Params:
        """Parameters with those that follow from the number of steps taken."""
        new = {} if self.scheduled is None else self.scheduled(step)
        return trees.overlaid(params, trees.unflatten(new)) if new else params

    def apply(self, grads: Params, state: Any, params: Params) -> tuple[Params, Any]:
        """All parameters after the update, and the state of its optimizer.

        Args:
          grads: of the trained part.
          state: of this optimizer.
          params: all of them.
        """
        trained = self.part(params)
        updates, state = self.optimizer.update(grads, state, trained)
        changed = cast(Params, optax.apply_updates(trained, updates))
        return changed if self.trains is None else trees.overlaid(params, changed), state


def check_updates(updates: Sequence[Update], paths: Sequence[str]) -> None:
    """Refuses several updates that do not train every path exactly once.

    Raises:
      ValueError: with the paths.
    """
    names = [update.name for update in updates]
    if len(updates) > 1 and (len(set(names)) < len(names) or "" in names):
        raise ValueError(f"several updates need names that are different: got {names}")
    times = {path: sum(u.trains is None or u.trains(path) for u in updates) for path in paths}
    wrong = [f"{path} ({number})" for path, number in times.items() if number != 1]
    if wrong:
        raise ValueError(f"every path must be trained by exactly one update: {', '.join(wrong)}")


def joint_optimizer(updates: Sequence[Update]) -> optax.GradientTransformation:
    """The optimizer whose init makes the state of all updates; one without a name is as it is."""
    first = updates[0]
    if not first.name and first.trains is None:
        return first.optimizer

    def init(params: Any) -> Any:
        states = [update.optimizer.init(update.part(params)) for update in updates]
        return joint_state(updates, states)

    def refuse(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del updates, state, params
        raise TypeError("several updates are made one after the other, each by its own optimizer")

    return optax.GradientTransformation(init, refuse)


def state_of(update: Update, states: Any) -> Any:
    """The state of one update's optimizer, of the train state's."""
    return states[update.name] if update.name else states


def joint_state(updates: Sequence[Update], states: Sequence[Any]) -> Any:
    """The train state's optimizer state, of each update's."""
    if not updates[0].name:
        return states[0]
    return {update.name: state for update, state in zip(updates, states, strict=True)}
