"""The device mesh and the one table that maps logical axis names to its axes.

Parameters name their axes ("embed", "mlp", ...) where they are created; activations name theirs
where they are constrained; `RULES` says which mesh axis each name is split over. A mesh of one
device is a mesh: nothing here is special for one device.

    mesh = make_mesh(MeshConfig(fsdp=2))    # 8 devices: replica 1, data 4, fsdp 2, tensor 1
    shardings(mesh, {"kernel": ("embed", "mlp")})
    {"kernel": NamedSharding(mesh, PartitionSpec("fsdp", "tensor"))}
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from t5x_lite.types import Array, Axes, InputError

MESH_AXES = ("replica", "data", "fsdp", "tensor")

RULES: dict[str, str | tuple[str, ...] | None] = {
    "batch": ("replica", "data", "fsdp"),
    "length": None,
    "layers": None,
    "vocab": "tensor",
    "embed": "fsdp",
    "mlp": "tensor",
    "heads": "tensor",
    "kv": None,
    "joined_kv": "tensor",
    "relpos_buckets": None,
    "activation_embed": None,
}
"""Logical axis name -> mesh axis or axes; None is replicated."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Sizes of the mesh axes; at most one is -1, which takes the devices that are left.

    Attributes:
      replica: copies of the parameters, over the slow links.
      data: data parallelism, over the fast links.
      fsdp: data parallelism with the parameters split over the same devices.
      tensor: splits heads, d_ff and the vocabulary.
    """

    replica: int = 1
    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in MESH_AXES}
        if any(size == 0 or size < -1 for size in sizes.values()):
            raise InputError(f"mesh sizes must be positive, or -1 for what is left: got {sizes}")
        if list(sizes.values()).count(-1) > 1:
            raise InputError(f"at most one mesh size may be -1: got {sizes}")


def make_mesh(config: MeshConfig, *, devices: Sequence[Any] | None = None) -> Mesh:
    """Builds the mesh over the given devices (all of them by default).

    Raises:
      InputError: the sizes do not multiply to the number of devices.
    """
    devices = list(jax.devices() if devices is None else devices)
    sizes = [getattr(config, name) for name in MESH_AXES]
    known = math.prod(size for size in sizes if size != -1)
    if -1 in sizes:
        if len(devices) % known:
            raise InputError(
                f"mesh: {len(devices)} devices are not divisible by the given sizes "
                f"{dict(zip(MESH_AXES, sizes, strict=True))}; change --mesh.*"
            )
        sizes[sizes.index(-1)] = len(devices) // known
    elif known != len(devices):
        raise InputError(
            f"mesh: {dict(zip(MESH_AXES, sizes, strict=True))} needs {known} devices and there "
            f"are {len(devices)}; set one of --mesh.* to -1"
        )
    return jax.make_mesh(
        tuple(sizes),
        MESH_AXES,
        axis_types=(AxisType.Auto,) * len(MESH_AXES),
        devices=devices,
    )


def partition_spec(logical: Sequence[str | None]) -> PartitionSpec:
    """The mesh axes of one array, from the logical names of its axes.

    Raises:
      ValueError: a name that `RULES` does not have.
    """
    unknown = [name for name in logical if name is not None and name not in RULES]
    if unknown:
        raise ValueError(f"logical axes {unknown} are not in sharding.RULES: {sorted(RULES)}")
    return PartitionSpec(*(None if name is None else RULES[name] for name in logical))


def is_axes(leaf: Any) -> bool:
    """Whether a node of an axes tree is a leaf: a tuple of logical names."""
    return isinstance(leaf, tuple) and all(isinstance(name, str | None) for name in leaf)


def shardings(mesh: Mesh, axes: Axes) -> Any:
    """NamedShardings of a tree of logical axes (tuples of names)."""
    return jax.tree.map(
        lambda logical: NamedSharding(mesh, partition_spec(logical)), axes, is_leaf=is_axes
    )


def check_divisible(mesh: Mesh, axes: Axes, shapes: Any) -> None:
    """Checks that every parameter divides over the mesh.

    Raises:
      InputError: names the parameter's axis, its size and the mesh axes.
    """

    def check(logical: tuple[str | None, ...], leaf: Any) -> None:
        for name, size in zip(logical, leaf.shape, strict=True):
            spread = RULES[name] if name else None
            names = (spread,) if isinstance(spread, str) else spread or ()
            parts = math.prod(mesh.shape[axis] for axis in names)
            if size % parts:
                raise InputError(
                    f"mesh: axis {name!r} of size {size} does not divide over the mesh axes "
                    f"{names} of size {parts}; change --mesh.* or the model's size"
                )

    jax.tree.map(check, axes, shapes, is_leaf=is_axes)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """How a batch [B, length] is split: its rows over all data axes."""
    return NamedSharding(mesh, partition_spec(("batch",)))


def put_batch(batch: Mapping[str, Any], mesh: Mesh) -> dict[str, Array]:
    """This process's rows of a batch, onto the mesh as a part of the global batch.

    Args:
      batch: NumPy arrays [rows, length] by name.
      mesh: where they go.
    """
    rows = batch_sharding(mesh)
    return {
        name: jax.make_array_from_process_local_data(rows, value) for name, value in batch.items()
    }


def replicated(mesh: Mesh) -> NamedSharding:
    """The same array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def data_parallelism(mesh: Mesh) -> int:
    """How many parts a batch is split into."""
    return math.prod(mesh.shape[name] for name in ("replica", "data", "fsdp"))


def constrain(x: Array, *logical: str | None) -> Array:
    """Constrains an activation to the mesh that is set by `jax.set_mesh`; none set, x as it is.

    Args:
      x: an array with as many axes as names are given.
      *logical: its logical axis names.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh is None or mesh.empty:
        return x
    return jax.lax.with_sharding_constraint(x, partition_spec(logical))
