"""Hypernetwork adapter (HyperFormer++): one network generates the bottlenecks of several tasks.

    e = LN(relu([task; layer; site] W1 + b1) W2 + b2)         task, layer, site: trained, [E] each
    Wd, bd, Wu, bu = reshape(e G_k + c_k)                     one G_k [E, ...] for all of them

The tasks share the network; each task adds only E parameters. A composition selects a task:

    h = hyper(tasks=2)
    MultiTask(Task(h, of=0), Task(h, of=1))       in training, by adapter_ids
    Task(h, of=1)                                 in inference; `ejected` makes a bottleneck of it

Source: Karimi Mahabadi et al. 2021 (arXiv:2106.04489), section 2.3. The authors also generate the
norms of adapters, which is not supported here.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.base import ADAPTERS, Site
from t5x_lite.adapters.bottleneck import (
    Bottleneck,
    BottleneckBlock,
    BottleneckModules,
    double_seq_bn,
)
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Count
from t5x_lite.core.trees import Array
from t5x_lite.nn.bind import bind, shapes
from t5x_lite.nn.dense import Dense
from t5x_lite.nn.dropout import LayerNorm

_ARRAYS = ("down/kernel", "down/bias", "up/kernel", "up/bias")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hyper(Bottleneck):
    """Configuration of a hypernetwork that generates bottleneck adapters for several tasks.

    Attributes:
      tasks: number of tasks.
      embedding: size E of the embeddings of tasks, layers and positions in a layer.
      hidden: size of the network's hidden layer.
    """

    name: str = "hyper"
    tasks: Count = 2
    embedding: Count = 64
    hidden: Count = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if not super()._is_plain:
            raise InputError(
                "hyper needs one width for all layers, and does not support trained scales, norms "
                "or gates"
            )

    def block(self, site: Site, rngs: nnx.Rngs) -> "HyperBlock":
        return HyperBlock(plain(self), site)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> "HyperModules":
        return HyperModules(self, self._blocks(model, rngs=rngs), rngs=rngs)

    @property
    def _is_plain(self) -> bool:
        return False

    def scaled(self, params: Mapping[str, Any], factor: float | int) -> dict[str, Any]:
        """Raise InputError; use `ejected`, because only its bottlenecks support a factor."""
        raise InputError(
            f"hypernetwork {self.name} cannot be multiplied by {factor}; convert a task's adapter "
            "to a bottleneck first (ejected)"
        )


def hyper(*, name: str = "hyper", cross: bool = False, **changes: Any) -> Hyper:
    """Return a hypernetwork config for bottlenecks after attention and feed-forward blocks."""
    like = double_seq_bn(cross=cross)
    options = {"sites": like.sites, "reads": like.reads, "activation": "gelu_new", **changes}
    return Hyper(name=name, **options)


def plain(config: Hyper) -> Bottleneck:
    """Return the config of the bottleneck adapters that a hypernetwork generates."""
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(Bottleneck)}
    return Bottleneck(**fields)


class HyperModules(BottleneckModules):
    """Bottleneck modules that a hypernetwork generates, and the network, at adapters/NAME.

    Args:
      config: config of the adapter.
      found: stack ("encoder" or "decoder") -> site -> adapter module.
      rngs: random streams; "params" is used.
    """

    def __init__(self, config: Hyper, found: Any, *, rngs: nnx.Rngs):
        super().__init__(found)
        self.num_tasks = config.tasks
        blocks: list[HyperBlock] = [self.at(*place) for place in self.places]
        self.site_names = tuple(dict.fromkeys(block.site for block in blocks))
        size, layers = config.embedding, max((block.layers.stop for block in blocks), default=1)
        none = (None, None)
        self.task_embedding, self.layer_embedding, self.site_embedding = (
            nnx.Param(jax.random.normal(rngs.params(), (num, size), jnp.float32), logical=none)
            for num in (config.tasks, layers, max(1, len(self.site_names)))
        )
        init = jax.nn.initializers.lecun_normal()
        widths = (3 * size, config.hidden, size)
        self.inner, self.outer = (
            Dense(widths[i], widths[i + 1], axes=none, initializer=init, bias=True, rngs=rngs)
            for i in (0, 1)
        )
        self.norm = LayerNorm(size, 1e-5)
        small = jax.nn.initializers.normal(0.01)
        for name, shape in blocks[0].shapes().items() if blocks else ():
            number = 1
            for each in shape:
                number *= each
            made = Dense(size, number, axes=none, initializer=small, bias=True, rngs=rngs)
            setattr(self, name.replace("/", "_"), made)

    def complete(self) -> None:
        """Generate the bottlenecks of all tasks and store them in the modules, in place."""
        for place in self.places:
            block: HyperBlock = self.at(*place)
            block.put(self.arrays(block))

    def arrays(self, block: "HyperBlock") -> dict[str, Float[Array, "N tasks *_"]]:
        """Return the generated arrays of one bottleneck module, by name: [layers, tasks, ...]."""
        embeddings = (self.task_embedding, self.layer_embedding, self.site_embedding)
        task, layer, site = (each[...] for each in embeddings)
        numbers = jnp.arange(block.layers.start, block.layers.stop)
        parts = (
            task[None],
            layer[numbers][:, None],
            site[self.site_names.index(block.site)][None, None],
        )
        size = task.shape[-1]
        shape = (len(block.layers), self.num_tasks, size)
        given = jnp.concatenate([jnp.broadcast_to(part, shape) for part in parts], axis=-1)
        hidden = jax.nn.relu(self.inner.product(given))
        code = self.norm(self.outer.product(hidden))
        return {
            name: getattr(self, name.replace("/", "_"))
            .product(code)
            .astype(task.dtype)
            .reshape(*shape[:2], *own)
            for name, own in block.shapes().items()
        }


class HyperBlock(nnx.Module):
    """Generated bottleneck modules of all tasks, for one position in each layer.

    Args:
      config: config of the generated bottlenecks.
      site: position of the bottlenecks in the layers.
    """

    def __init__(self, config: Bottleneck, site: Site):
        def block(rngs: nnx.Rngs) -> BottleneckBlock:
            return BottleneckBlock(config, site.d_model, rngs=rngs)

        self.site, self.layers = site.name, range(site.first, site.first + site.num_layers)
        self.graphdef, abstract, _ = shapes(block)
        self.sizes = tuple((p, tuple(x.shape)) for p, x in trees.flatten(abstract).items())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the array shapes of one layer's bottleneck by parameter path."""
        return {name: dict(self.sizes)[name] for name in _ARRAYS}

    def put(self, arrays: Mapping[str, Array]) -> None:
        """Store the generated arrays of all layers and tasks in this module, in place."""
        for name, x in arrays.items():
            axes = ("layers", *(None,) * (x.ndim - 1))
            setattr(self, name.replace("/", "_"), nnx.Variable(x, logical=axes))

    def task(self, number: int) -> BottleneckBlock:
        """Return the generated bottleneck module of one task."""
        own = {name: getattr(self, name.replace("/", "_"))[...][number] for name in _ARRAYS}
        return bind(self.graphdef, trees.unflatten(own))

    def clear_unused(self) -> None:
        """Do nothing, because the bottlenecks of all layers have the same width."""

    def num_unused(self) -> int:
        return 0

    @property
    def is_here(self) -> bool:
        return True

    def reads(self, *arguments: Any) -> Float[Array, "B T D"]:
        return self.task(0).reads(*arguments)

    def skip(self, *arguments: Any) -> Float[Array, "B T D"]:
        return self.task(0).skip(*arguments)


def ejected(
    config: Hyper, modules: HyperModules, *, task: int, name: str = ""
) -> tuple[Bottleneck, dict[str, Array]]:
    """Return the bottleneck adapter that a hypernetwork generates for one task.

    Args:
      config: config of the hypernetwork.
      modules: modules of the hypernetwork.
      task: task number.
      name: name of the bottleneck adapter; "" is the name of the hypernetwork.

    Returns:
      Config of the bottleneck adapter, and its parameters by path.
    """
    made = dataclasses.replace(plain(config), name=name or config.name)
    found: dict[str, Array] = {}
    for stack, site in modules.places:
        for path, x in modules.arrays(modules.at(stack, site)).items():
            found[f"{ADAPTERS}{made.name}/{stack}/{site}/{path}"] = x[:, task]
    return made, found
