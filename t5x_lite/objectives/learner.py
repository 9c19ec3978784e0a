"""The learner: a model with heads, objective and adapters, from stored parameters to a loss.

    learner = Learner.of(T5Config(...), Seq2Seq(), optimizer=Adafactor(...), dtype="bfloat16")
    params = jax.jit(learner.init)(jax.random.key(0))         # {"model": ..., "heads": ...}
    loss = learner.loss(params, batch, key)                   # sums, to be differentiated
    bound = learner.bind(params)                              # bound.model, bound.heads

Parameters are stored in float32. A module reads them through views
(`t5x_lite.core.tied_parameters`), in the compute dtype. All methods may be traced. Heads that the
loss does not read are frozen: they have no gradient, no weight decay and no optimizer state. With
adapters, the model is also frozen, unless `train` names parameters. `bind` inserts the adapters
into the model's layers.

A tower, such as the encoder of passages, has the model's architecture and adapters. It is bound by
the model's structure with the tower's parameters (`models.towers.as_model`).

`Bound` joins a model, its heads, its objective and its adapters in one module:

    bound = Bound(T5Config(...), Seq2Seq(), rngs=nnx.Rngs(0))
    bound(batch, key=key)                             # a loss: sums, to be differentiated
    bound.model, bound.heads, bound.encoder("query")

`Learner` traces this module, and rebuilds it from stored parameters.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from t5x_lite.adapters.base import ADAPTERS, Adapter, AdapterModules, at_step
from t5x_lite.adapters.composition import Block, metrics_of, penalties_of, routers_of
from t5x_lite.adapters.config import COMPOSING, HEAD
from t5x_lite.adapters.delta_merging import delta_form
from t5x_lite.adapters.delta_merging import merge_adapters as merge
from t5x_lite.adapters.delta_parts import Part
from t5x_lite.core import sharding, tied_parameters, trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.tied_parameters import View
from t5x_lite.core.trees import Array, Axes, Batch, Key, Params
from t5x_lite.layouts.base import ADAPTER_IDS
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.heads import HEADS, Head, HeadModules, by_name
from t5x_lite.models.vector_heads import TOWERS, Role, Towers, as_model, in_tower, with_towers
from t5x_lite.nn import experts
from t5x_lite.nn.slots import GraphDef, bind, cast, init, shapes, split
from t5x_lite.objectives.base import Loss, Objective, Phase
from t5x_lite.optim.config import AUTO, Optimizer
from t5x_lite.optim.partial import Update, check_updates


class Bound(nnx.Module):
    """Module of model, heads, objective and adapters that computes the loss of a batch.

    Args:
      model: config of the model; its parameters are below "model/".
      objective: config of the objective.
      heads: configs of heads that are kept in addition to the objective's heads.
      adapters: configs of adapters; `Learner.bind` inserts them into the model's layers.
      use: composition of the adapters; () applies each separately.
      rngs: random streams; "params" is used.
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
        """Return the loss of a batch, or of one phase of the objective; a key enables dropout."""
        more: dict[str, Any] = {} if phase is None else {"phase": phase}
        if self.towers.names:
            more["towers"] = self.towers
        if self.has_adapters:
            encoders = (self.model, *(self.towers[name] for name in self.towers.names))
            batch = self.adapters.of_batch(encoders, batch, keep_ids=self.reads_tasks)
            with experts.collecting() as found:
                loss = self.objective(self.model, self.heads, batch, key=key, **more)
            routers = dict(self.routers)
            loss = loss.plus_metrics(metrics_of(found, routers))
            return loss if key is None else loss.plus_terms(penalties_of(found, routers))
        if ADAPTER_IDS in batch and not self.reads_tasks:  # ids of adapters that are not in use
            batch = {name: x for name, x in batch.items() if name != ADAPTER_IDS}
        return self.objective(self.model, self.heads, batch, key=key, **more)

    def encoder(self, role: Role) -> Any:
        """Return the encoder for the texts of a role, "query" or "passage"."""
        return self.towers[role] if role in self.towers.names else self.model


def heads_of(objective: Objective, kept: Sequence[Head]) -> dict[str, Head]:
    """Return the configs of a learner's heads by name, with the objective's heads first."""
    others = by_name(kept)
    own = by_name(objective.heads(others))
    return {**own, **{name: head for name, head in others.items() if name not in own}}


_DRAWN = 0x6D6F64
"""Constant folded into the step's random key, so that adapters sample other bits than dropout."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learner:
    """Model, heads, objective and adapters to train, as a static structure without parameters.

    Its methods rebuild the module `Bound` from stored parameters.

    Attributes:
      model: config of the model; its parameters are below "model/".
      objective: config of the objective.
      heads: configs of all heads by name, with the objective's heads first.
      adapters: configs of the adapters.
      use: composition of the adapters (`t5x_lite.adapters.composition`); () applies each
        separately.
      train: paths of trained parameters, or regular expressions that match them. () freezes only
        heads that the loss does not read and, if there are adapters, the model's parameters, unless
        an adapter trains them.
      optimizer: optimizer of the run; phases may have other optimizers. None without training.
      dtype: compute dtype.
      graphdef: static structure of the module.
      seen: shapes of the module's parameters.
      shapes: shapes of the stored parameters, a nested dict.
      axes: logical axes of the stored parameters.
      views: rules that compute the module's parameters from stored parameters.
    """

    model: ModelConfig
    objective: Objective
    heads: Mapping[str, Head]
    adapters: tuple[Adapter, ...]
    use: tuple[str | Block, ...]
    train: tuple[str, ...]
    optimizer: Optimizer | None
    dtype: str
    graphdef: GraphDef
    seen: Any
    shapes: Any
    axes: Axes
    views: tuple[View, ...]

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        objective: Objective,
        *,
        heads: Sequence[Head] = (),
        adapters: Sequence[Adapter] = (),
        use: Sequence[str | Block] = (),
        train: Sequence[str] = (),
        optimizer: Optimizer | None = None,
        dtype: str = "float32",
        base_dtype: str = "float32",
    ) -> "Learner":
        """Build a learner by tracing its module, without allocating memory.

        The arguments are attributes of the class; `heads` are kept in addition to the objective's
        heads. `base_dtype` is the dtype in which the model's frozen parameters are stored.

        Raises:
          InputError: if the objective cannot train the model, an adapter does not fit the model, or
            nothing would be trained.
        """
        graphdef, seen, axes = shapes(
            lambda rngs: Bound(model, objective, heads, adapters, use, rngs=rngs)
        )
        towers = objective.more_towers()
        seen, axes = (with_towers(tree, towers) for tree in (seen, axes))
        its_views = views_of(model, objective)
        stored, axes = tied_parameters.stored(its_views, seen, axes)
        made = cls(
            model=model,
            objective=objective,
            heads=heads_of(objective, heads),
            adapters=tuple(adapters),
            use=tuple(use),
            train=tuple(train),
            optimizer=optimizer,
            dtype=dtype,
            graphdef=graphdef,
            seen=seen,
            shapes=stored,
            axes=axes,
            views=its_views,
        )
        _check_adapter_sizes(stored)
        made.check_train()
        if adapters:  # two modules at one site are rejected here
            modules: AdapterModules = made._module.adapters
            modules.check()
            _check_copied(modules, its_views)
        return made if base_dtype == "float32" else made._with_base_in(base_dtype)

    def _with_base_in(self, dtype: str) -> "Learner":
        flat = trees.flatten(self.shapes)
        frozen = [p for p in flat if p.startswith(("model/", TOWERS)) and not self.trains(p)]
        if dtype == "int8":  # but for arrays that adapters replace, and tied arrays
            copied = self._module.adapters.copied() if self.adapters else ()
            starts = ("model/", *(f"{TOWERS}{name}/" for name in self._towers))
            other = {start + path for start in starts for path in copied}
            other |= tied_parameters.mentioned(self.views, flat)
            kernels = [p for p in frozen if p.endswith("/kernel") and p not in other]
            stored, axes = tied_parameters.with_int8(self.shapes, self.axes, kernels)
            return dataclasses.replace(self, shapes=stored, axes=axes)
        narrow = {p: jax.ShapeDtypeStruct(flat[p].shape, jnp.dtype(dtype)) for p in frozen}
        return dataclasses.replace(self, shapes=trees.unflatten({**flat, **narrow}))

    def check_train(self) -> None:
        """Raise InputError for a pattern of `train` that matches no trainable parameter."""
        _ = self._adapted
        paths = [path for path in trees.flatten(self.shapes) if not self._unread(path)]
        for pattern, meant in self._meant.items():
            if pattern != HEAD and not any(trees.covers(m, path) for m in meant for path in paths):
                parts = dict.fromkeys(path.partition("/")[0] for path in paths)
                raise InputError(
                    f"train: the pattern {pattern!r} matches no parameter that the loss reads; "
                    f"parameter paths begin with {', '.join(parts)}"
                )

    def init(self, key: Key) -> Params:
        """Return the initial values of the stored parameters."""
        parts = (self.model, self.objective, tuple(self.heads.values()), self.adapters, self.use)
        fresh = tied_parameters.fresh(self.views, init(lambda rngs: Bound(*parts, rngs=rngs), key))
        if self._towers:  # they start as copies of the model
            flat = trees.flatten(fresh)
            same = {
                in_tower(path, name): jnp.copy(leaf)
                for name in self._towers
                for path, leaf in flat.items()
                if in_tower(path, name) != path
            }
            fresh = trees.unflatten({**flat, **same})
        return tied_parameters.in_dtypes_of(fresh, self.shapes)

    def read(self, params: Params) -> Params:
        """Compute the module's parameters from stored parameters, without a change of dtype.

        In the result, the arrays below "model" are separate instead of tied, as exports need them.
        """
        return tied_parameters.read(self.views, tied_parameters.joined(params))

    def write(self, seen: Params) -> Params:
        """Convert the module's parameters to stored parameters; the inverse of `read`."""
        return tied_parameters.write(self.views, seen)

    def bind(
        self, params: Params, *, key: Key | None = None, adapter_ids: Array | None = None
    ) -> Bound:
        """Build the module from stored parameters, in the compute dtype and with inserted adapters.

        Args:
          params: stored parameters; for inference, also `adapter_ids`.
          key: random key of the adapters in training.
          adapter_ids: [B], index of each row's adapter, for a model that is called without a loss.
        """
        if ADAPTER_IDS in params:
            adapter_ids = params[ADAPTER_IDS]
            params = {part: tree for part, tree in params.items() if part != ADAPTER_IDS}
        changed = cast(self.changed(params, key=key), jnp.dtype(self.dtype))
        bound: Bound = self._bound(changed)
        if self.adapters:
            bound.adapters.attach(bound.model)
            bound.adapters.see(bound.model, adapter_ids)
            for name in self._towers:
                tower = self._bound(changed, name)
                tower.adapters.attach(tower.model)
                tower.adapters.see(tower.model, adapter_ids)
                setattr(bound.towers, name, tower.model)
            if not self.objective.models():  # otherwise another model predicts the tokens
                for name in self.heads:
                    bound.adapters.attach_output(bound.model, bound.heads[name])
        return bound

    def changed(self, params: Params, *, key: Key | None = None) -> Params:
        """Return the module's parameters after adapters have replaced some of the arrays."""
        seen = self.read(params)
        if not self._has_copies:
            return seen
        own = None if key is None else jax.random.fold_in(key, _DRAWN)
        changed = {**seen, "model": self._bound(seen).adapters.read(seen["model"], key=own)}
        if self._towers:
            changed["towers"] = {
                name: self._bound(seen, name).adapters.read(seen["towers"][name], key=own)
                for name in self._towers
            }
        return changed

    def merged(self, params: Params, *, tower: str = "") -> Params:
        """Return the model's parameters with the adapters merged into them.

        Args:
          params: stored parameters.
          tower: name of the second encoder to merge; "" is the model.

        Raises:
          InputError: if an adapter cannot be merged into kernels.
        """
        bound = self._bound(self.changed(params), tower)
        if self.adapters:
            bound.adapters.attach(bound.model)
            merge(bound.model)
        return split(bound.model)[1]

    def delta_form(self, adapters: Params) -> tuple[dict[str, Part], tuple[Adapter, ...]]:
        """Return the adapters as changes of the model's parameters.

        Returns:
          The change of each array, by parameter path; and the adapters that have no such form.
        """
        seen = trees.overlaid(self.seen, {"adapters": adapters})
        found: dict[str, Part] = {}
        rest: tuple[Adapter, ...] = ()
        for start, tower in (
            ("model/", ""),
            *((f"{TOWERS}{name}/", name) for name in self._towers),
        ):
            bound = self._bound(seen, tower)
            parts, rest = delta_form(bound.adapters, self.adapters, bound.model)
            found |= {start + path: part for path, part in parts.items()}
        return found, rest

    def bind_model(self, params: Params, *, adapter_ids: Array | None = None) -> Any:
        """Build the model with its adapters from stored parameters."""
        return self.bind(params, adapter_ids=adapter_ids).model

    def check_mesh(self, mesh: Mesh) -> None:
        """Raise InputError unless the mesh divides the parameters and the attention heads."""
        heads = self.model.divided_heads
        sharding.check_divisible(mesh, self.axes, self.shapes, num_heads=heads)

    @property
    def model_type(self) -> type:
        return type(self._module.model)

    def loss(
        self, params: Params, batch: Batch, key: Key | None = None, *, phase: str | None = None
    ) -> Loss:
        """Return the loss of a batch, or of one phase of the objective.

        Terms that compare the rows of a batch come from `joint`. With a key, as in training, the
        terms include the adapters' penalties.
        """
        loss = self.bind(params, key=key)(batch, key=key, phase=phase)
        if key is None or not self.adapters:
            return loss
        seen = self.read(params)
        for name in ("", *self._towers):
            start = f"{name}_" if name else ""
            found = self._bound(seen, name).adapters.penalties()
            loss = loss.plus_terms({f"{start}{term}": value for term, value in found.items()})
        return loss

    def joint(self, rows: Mapping[str, Array], batch: Batch, *, step: Array | None = None) -> Loss:
        """Return a loss with the added terms that compare the rows of a whole batch."""
        return self.objective.joint(rows, batch, step=step)

    def whole_loss(self, params: Params, batch: Batch, key: Key | None = None) -> Loss:
        """Return the complete loss of a batch that is not split into microbatches."""
        loss = self.loss(params, batch, key)
        return loss.joined(self.joint(loss.rows, batch)) if loss.rows else loss

    def updates(self) -> tuple[Update, ...]:
        """Return the updates of a train step: one, or one for each phase of the objective.

        Raises:
          InputError: if everything is frozen.
          ValueError: if the optimizer is missing, or phases do not train every path exactly once.
        """
        if not any(map(self.trains, trees.flatten(self.shapes))):
            raise InputError(
                "all parameters are frozen, so nothing would be trained; select parameters by "
                "--train, or in a run with adapters by --adapters.train"
            )
        phases, main, below = self.objective.phases(), self._main, self.model.below
        if not phases:
            axes = self._trained(self.axes)
            update = Update(
                self.loss,
                main.build(axes, below=below, depth=self._depth),
                main.rate(),
                trains=self.trains if self._is_partial else None,
                joint=self.joint,
                live=main.live(axes, depth=self._depth),
                scheduled=self._scheduled,
            )
            return (update,)
        made = []
        for phase in phases:
            optimizer, axes = phase.optimizer or main, self._trained(self.axes, phase)
            if phase.optimizer is not None and phase.optimizer.schedule_offset == AUTO:
                raise InputError(
                    f"schedule_offset auto works only for the experiment's optimizer; set a number "
                    f"for phase {phase.name}"
                )
            update = Update(
                functools.partial(self.loss, phase=phase.name),
                optimizer.build(axes, below=below, depth=self._depth),
                optimizer.rate(),
                name=phase.name,
                trains=functools.partial(self._phase_trains, phase),
                joint=self.joint,
                live=optimizer.live(axes, depth=self._depth),
                scheduled=self._scheduled,
            )
            made.append(update)
        check_updates(made, [path for path in trees.flatten(self.shapes) if self.trains(path)])
        return tuple(made)

    def optimizer_axes(self) -> Axes:
        """Return the logical axes of the optimizer state, in the structure of the state."""
        phases, main = self.objective.phases(), self._main
        if not phases:
            return main.state_axes(self._trained(self.axes), self._trained(self.shapes))
        return {
            phase.name: (phase.optimizer or main).state_axes(
                self._trained(self.axes, phase), self._trained(self.shapes, phase)
            )
            for phase in phases
        }

    def head(self, name: str) -> list[str]:
        """Return the paths of a head's parameters; [] for a head without parameters."""
        return [path for path in trees.flatten(self.seen) if path.startswith(f"{HEADS}{name}/")]

    @property
    def frozen_heads(self) -> tuple[str, ...]:
        """Names of the heads that the loss does not read."""
        read = {head.name for head in self.objective.heads(self.heads)}
        return tuple(name for name in self.heads if name not in read)

    def trains(self, path: str) -> bool:
        """Return True if the parameter at a path is trained."""
        if self._unread(path):
            return False
        if self.train:
            return path in self._chosen
        if self.adapters and path.startswith(("model/", TOWERS, ADAPTERS)):
            return path in self._adapted
        return True

    @property
    def float32_shapes(self) -> Params:
        """Shapes of the stored parameters in float32, without the scales of int8 arrays."""
        return tied_parameters.in_float32(self.shapes)

    def num_unused(self, *, trained: bool = False) -> int:
        """Return the number of adapter parameters that are only padding and have no effect.

        Args:
          trained: True to count only trained adapters.
        """
        if not self.adapters:
            return 0
        modules: AdapterModules = self._module.adapters
        names = {adapter.name for adapter in self.adapters}
        if trained:
            names = {
                p.split("/")[1]
                for p in self._covered([ADAPTERS + n for n in names])
                if self.trains(p)
            }
        return sum(map(modules.num_unused, names)) * (1 + len(self._towers))

    def holds_still(self, path: str) -> bool:
        """Return True if a parameter is frozen because training is limited to some parameters."""
        return bool(self.train or self.adapters) and not self.trains(path)

    def _unread(self, path: str) -> bool:
        return path.startswith(tuple(f"{HEADS}{name}/" for name in self.frozen_heads))

    @functools.cached_property
    def _has_copies(self) -> bool:
        return bool(self.adapters) and bool(self._module.adapters.copied())

    @functools.cached_property
    def _adapted(self) -> frozenset[str]:
        return self._covered([*COMPOSING, *(p for one in self.adapters for p in self._of(one))])

    @functools.cached_property
    def _chosen(self) -> frozenset[str]:
        return self._covered([each for meant in self._meant.values() for each in meant])

    @property
    def _meant(self) -> dict[str, tuple[str, ...]]:
        own = {f"{ADAPTERS}{adapter.name}": self._of(adapter) for adapter in self.adapters}
        return {pattern: own.get(pattern, (pattern,)) for pattern in self.train}

    def _of(self, adapter: Adapter) -> tuple[str, ...]:
        flat = trees.flatten(self.shapes)
        patterns = adapter.trains(list(as_model(flat)))
        if not self._towers:
            return patterns
        found = []
        for name in ("", *self._towers):
            paths = as_model(flat, name)
            own = [p for p in paths if any(trees.covers(pattern, p) for pattern in patterns)]
            found += [in_tower(path, name) for path in own] if name else own
        return tuple(found)

    @property
    def _towers(self) -> tuple[str, ...]:
        return self.objective.more_towers()

    @functools.cached_property
    def _module(self) -> Bound:
        return self._bound(self.seen)

    def _bound(self, seen: Params, tower: str = "") -> Bound:
        if not (self.adapters and self._towers):
            return bind(self.graphdef, seen)
        flat = trees.flatten(seen)
        others = {path: leaf for path, leaf in flat.items() if path.startswith(TOWERS)}
        return bind(self.graphdef, trees.unflatten({**others, **as_model(flat, tower)}))

    @property
    def _scheduled(self) -> Callable[[Array], dict[str, Array]] | None:
        of_model = at_step(self.adapters)
        if of_model is None or not self._towers:
            return of_model

        def scheduled(step: Array) -> dict[str, Array]:
            found = of_model(step)
            names = [(name, path) for name in self._towers for path in found]
            return {**found, **{in_tower(path, name): found[path] for name, path in names}}

        return scheduled

    def _covered(self, patterns: Sequence[str]) -> frozenset[str]:
        paths = trees.flatten(self.shapes)
        return frozenset(p for p in paths if any(trees.covers(pattern, p) for pattern in patterns))

    @property
    def _is_partial(self) -> bool:
        return not all(map(self.trains, trees.flatten(self.shapes)))

    @property
    def _depth(self) -> int:
        shapes, axes = trees.flatten(self.shapes), trees.flatten(self.axes)
        stacked = (p for p in shapes if p.startswith("model/") and axes[p][:1] == ("layers",))
        return max((shapes[path].shape[0] for path in stacked), default=0)

    def _phase_trains(self, phase: Phase, path: str) -> bool:
        return re.fullmatch(phase.trains, path) is not None and self.trains(path)

    def _trained(self, tree: Any, phase: Phase | None = None) -> Any:
        if phase is not None:
            return trees.partition(tree, lambda path, _: self._phase_trains(phase, path))[0]
        if not self._is_partial:
            return tree
        return trees.partition(tree, lambda path, _: self.trains(path))[0]

    @property
    def _main(self) -> Optimizer:
        if self.optimizer is None:
            raise ValueError("training needs an optimizer, but the learner has none")
        return self.optimizer


_WIDEST = 64
"""Maximum size of an adapter's array along an axis, as a multiple of the model's largest size."""


def _check_adapter_sizes(shapes: Any) -> None:
    leaves = trees.flatten(shapes)
    own = {path: leaf for path, leaf in leaves.items() if path.startswith(ADAPTERS)}
    base = [max(leaf.shape, default=1) for path, leaf in leaves.items() if path not in own]
    most = max(_SMALLEST_BOUND, _WIDEST * max(base, default=1))
    for path, leaf in own.items():
        if max(leaf.shape, default=1) > most:
            name = path.removeprefix(ADAPTERS).partition("/")[0]
            raise InputError(
                f"adapter {name!r}: the array {path} would have the shape {leaf.shape}, but the "
                f"sizes of the array must be at most {most:,} on this model; reduce the adapter's "
                "rank, length, width or number"
            )


_SMALLEST_BOUND = 100_000
"""Size of an adapter's array up to which it is always allowed."""


def _check_copied(modules: AdapterModules, its_views: Sequence[View]) -> None:
    for path in modules.copied():
        if any(view.mentions(f"model/{path}") for view in its_views):
            raise InputError(
                f"the array model/{path} is shared with another array, so no adapter can copy it"
            )


def views_of(model: ModelConfig, objective: Objective) -> tuple[View, ...]:
    """Return the rules that compute the shared parameters of a model and an objective."""
    towers = [view for name in objective.more_towers() for view in model.views(f"{TOWERS}{name}/")]
    return (*model.views("model/"), *towers, *objective.views(model, "objective/"))
