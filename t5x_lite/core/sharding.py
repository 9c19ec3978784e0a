"""The device mesh, sharding rules for logical axes, microbatches, and communication of processes.

Parameters name their axes ("embed", "mlp", ...) where they are created; activations name theirs
where they are constrained; `RULES` maps each name to the mesh axis that splits it. A single device
is a mesh of size 1, so it is not a special case.

    mesh = make_mesh(MeshConfig(fsdp=2))    # 8 devices: data 4, fsdp 2, the other axes 1
    shardings(mesh, {"kernel": ("embed", "mlp")})
    {"kernel": NamedSharding(mesh, PartitionSpec("fsdp", "tensor"))}

If the devices form several slices (TPU slices, GPU nodes), the links between slices are slow. The
outermost mesh axes that fit, `replica` first, run across the slices.

A batch can be split into microbatches that run one after another:

    batch of 4 rows on 2 devices, 2 microbatches: rows 0 1 | 2 3
    the first microbatch has rows 0 | 2, the second 1 | 3: every row stays on its device

`Parts` sets the number of microbatches, or the maximum tokens of a device, which sets the number
for each static shape of a batch. For a loss that compares each row with the complete batch
(`objectives.base`), `train.step` has the modes "cached" and "recompute".
"""

import dataclasses
import functools
import hashlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Count, check_bounds
from t5x_lite.core.trees import Array, Axes, Batch

MESH_AXES = ("replica", "data", "fsdp", "sequence", "tensor")
"""Mesh axes, from least to most communication; the last axis gets the nearest devices."""

_BATCH_AXES = ("replica", "data", "fsdp")

RULES: dict[str, str | tuple[str, ...] | None] = {
    "batch": _BATCH_AXES,
    "length": "sequence",
    "layers": None,
    "vocab": "tensor",
    "embed": "fsdp",
    "mlp": "tensor",
    "experts": "tensor",
    "heads": "tensor",
    "kv": None,
    "joined_kv": "tensor",
    "relpos_buckets": None,
    "activation_embed": None,
}
"""Logical axis name -> mesh axis or axes that split it; None means replicated."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Sizes of the mesh axes; one size may be -1, which uses all remaining devices.

    Attributes:
      replica: number of copies of the parameters for data parallelism over slow links.
      data: number of copies of the parameters for data parallelism over fast links.
      fsdp: data parallelism in which the parameters are split over the devices.
      sequence: parts of the sequence length, in batches and activations.
      tensor: parts of the attention heads, d_ff and the vocabulary.
    """

    replica: int = 1
    data: int = -1
    fsdp: int = 1
    sequence: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in MESH_AXES}
        if any(size == 0 or size < -1 for size in sizes.values()):
            raise InputError(
                f"mesh sizes must be positive, or -1 for all remaining devices, but got {sizes}"
            )
        if list(sizes.values()).count(-1) > 1:
            raise InputError(f"only one mesh size may be -1, but got {sizes}")


def make_mesh(config: MeshConfig, *, devices: Sequence[Any] | None = None) -> Mesh:
    """Build the device mesh.

    Args:
      config: sizes of the mesh axes.
      devices: devices of the mesh; default: all devices.

    Raises:
      InputError: if the product of the sizes is not the number of devices, or an axis that needs
        fast links would cross slices.
    """
    devices = list(jax.devices() if devices is None else devices)
    sizes = [getattr(config, name) for name in MESH_AXES]
    known = math.prod(size for size in sizes if size != -1)
    if -1 in sizes:
        if len(devices) % known:
            raise InputError(
                f"mesh: the number of devices, {len(devices)}, is not divisible by the sizes "
                f"{dict(zip(MESH_AXES, sizes, strict=True))}; change --mesh.*"
            )
        sizes[sizes.index(-1)] = len(devices) // known
    elif known != len(devices):
        raise InputError(
            f"mesh: {dict(zip(MESH_AXES, sizes, strict=True))} needs {known} devices, but "
            f"{len(devices)} are available; set one of --mesh.* to -1"
        )
    arrange = hybrid_devices if _slices(devices)[1] > 1 else near_devices
    types = (AxisType.Auto,) * len(MESH_AXES)
    return Mesh(arrange(sizes, devices), MESH_AXES, axis_types=types)


def near_devices(sizes: Sequence[int], devices: Sequence[Any]) -> np.ndarray:
    """Arrange the devices of one slice in an array; its last axes get the nearest devices.

    Args:
      sizes: sizes of the mesh axes.
      devices: devices; their number is the product of the sizes.
    """
    # Only where an axis has no whole axis of the torus, such as tensor 2 on 4x4x4, is one split;
    # jax.make_mesh rejects that but on v5e.
    return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)


def hybrid_devices(sizes: Sequence[int], devices: Sequence[Any]) -> np.ndarray:
    """Arrange the devices of several slices; only outer mesh axes cross slices.

    Args:
      sizes: sizes of the mesh axes.
      devices: devices of several slices; their number is the product of the sizes.

    Returns:
      Array of devices with the given sizes.

    Raises:
      InputError: if the axes replica, data and fsdp cannot be divided over the slices.
    """
    attribute, slices = _slices(devices)
    slow, left = [1] * len(sizes), slices
    for axis, name in enumerate(MESH_AXES):
        if name in _BATCH_AXES:
            slow[axis] = math.gcd(left, sizes[axis])
            left //= slow[axis]
    if left > 1:
        raise InputError(
            f"mesh: {dict(zip(MESH_AXES, sizes, strict=True))} does not fit {slices} slices (or "
            f"nodes): replica * data * fsdp must be a multiple of {slices}, because sequence and "
            f"tensor need fast links; set --mesh.replica {slices}"
        )
    fast = [size // part for size, part in zip(sizes, slow, strict=True)]
    by_process = attribute == "process_index"
    return mesh_utils.create_hybrid_device_mesh(
        fast, slow, devices, process_is_granule=by_process, allow_split_physical_axes=True
    )


def _slices(devices: Sequence[Any]) -> tuple[str, int]:
    """Return the device attribute that identifies a slice, and the number of slices.

    JAX sets `slice_index` for TPU slices and for nodes of a GPU job. GPUs without it are grouped by
    process, unless each process has one GPU.
    """
    indices = {getattr(device, "slice_index", None) for device in devices}
    processes = {device.process_index for device in devices}
    if indices == {None} and devices[0].platform == "gpu" and len(processes) < len(devices):
        return "process_index", len(processes)
    return "slice_index", len(indices)


def partition_spec(logical: Sequence[str | None]) -> PartitionSpec:
    """Return the PartitionSpec of an array from the logical names of its axes.

    Raises:
      ValueError: if `RULES` does not contain a name.
    """
    unknown = [name for name in logical if name is not None and name not in RULES]
    if unknown:
        raise ValueError(f"unknown logical axes {unknown}; sharding.RULES has {sorted(RULES)}")
    return PartitionSpec(*(None if name is None else RULES[name] for name in logical))


def is_axes(leaf: Any) -> bool:
    """Return True if a node of a tree of logical axes is a leaf, a tuple of axis names."""
    return isinstance(leaf, tuple) and all(isinstance(name, str | None) for name in leaf)


def shardings(mesh: Mesh, axes: Axes) -> Any:
    """Return the NamedSharding of each leaf in a tree of logical axes."""
    return jax.tree.map(
        lambda logical: NamedSharding(mesh, partition_spec(logical)), axes, is_leaf=is_axes
    )


def check_divisible(mesh: Mesh, axes: Axes, shapes: Any, *, num_heads: int | None = None) -> None:
    """Raise InputError if the mesh cannot split a parameter evenly, or splits an attention head.

    Args:
      mesh: device mesh.
      axes: tree of the parameters' logical axes.
      shapes: tree of the parameters, or of objects with their shapes.
      num_heads: number of attention heads of the model.
    """

    def check(logical: tuple[str | None, ...], leaf: Any) -> None:
        for name, size in zip(logical, leaf.shape, strict=True):
            _check_axis(mesh.shape, name, size)

    jax.tree.map(check, axes, shapes, is_leaf=is_axes)
    if num_heads is not None:
        _check_axis(mesh.shape, "heads", num_heads)


def mesh_axes(name: str | None) -> tuple[str, ...]:
    """Return the mesh axes that `RULES` assigns to a logical axis."""
    spread = RULES[name] if name else None
    return (spread,) if isinstance(spread, str) else spread or ()


def _check_axis(shape: Mapping[str, int], name: str | None, size: int) -> None:
    names = mesh_axes(name)
    parts = math.prod(shape[axis] for axis in names)
    if size % parts:
        raise InputError(
            f"mesh: axis {name!r} of size {size} is not divisible by the size {parts} of the "
            f"mesh axes {names}; change --mesh.* or the model's size"
        )


def batch_sharding(mesh: Mesh, *, rank: int = 1) -> NamedSharding:
    """Return the sharding of a batch [B, length]: rows over data axes, length over sequence."""
    names = ("batch", "length") if rank > 1 and mesh.shape["sequence"] > 1 else ("batch",)
    return NamedSharding(mesh, partition_spec(names))


def put_batch(batch: Mapping[str, Any], mesh: Mesh) -> dict[str, Array]:
    """Build a global batch on the mesh from the rows that this process holds.

    Args:
      batch: name -> NumPy array [rows, length] with the part of the batch that `batch_part`
        assigns to this process.
      mesh: mesh of the arrays.

    Raises:
      InputError: if rows or columns cannot be evenly split over the mesh.
    """
    _, parts = batch_part(mesh)
    return {
        name: jax.make_array_from_process_local_data(
            _rows_sharding(mesh, name, value, rows=len(value) * parts),
            value,
            (len(value) * parts, *value.shape[1:]),
        )
        for name, value in batch.items()
    }


def put_whole(batch: Mapping[str, Any], mesh: Mesh) -> dict[str, Array]:
    """Put a batch onto the mesh, given the complete batch in every process.

    Args:
      batch: name -> NumPy array [B, length], equal in all processes.
      mesh: mesh of the arrays.

    Raises:
      InputError: if rows or columns cannot be evenly split over the mesh.
    """
    return {
        name: _spread(value, _rows_sharding(mesh, name, value, rows=len(value)))
        for name, value in batch.items()
    }


def _spread(value: np.ndarray, sharding: NamedSharding) -> Array:
    return jax.make_array_from_callback(value.shape, sharding, value.__getitem__)


def _rows_sharding(mesh: Mesh, name: str, value: Any, *, rows: int) -> NamedSharding:
    sharding = batch_sharding(mesh, rank=value.ndim)
    sizes = (rows, *value.shape[1:])
    for axis, size in zip(("batch", "length"), sizes[: len(sharding.spec)], strict=False):
        parts = math.prod(mesh.shape[part] for part in mesh_axes(axis))
        if size % parts:
            raise InputError(
                f"mesh: axis {axis!r} of {name} has size {size}, not divisible by the size {parts} "
                f"of the mesh axes {mesh_axes(axis)}; change --mesh.* or the data's sizes"
            )
    return sharding


@functools.lru_cache
def batch_part(mesh: Mesh) -> tuple[int, int]:
    """Return the index of the batch part that this process reads, and the number of parts.

    Processes along the mesh axes tensor and sequence read the same part.

    Raises:
      InputError: if two processes share only some of their rows.
    """
    held: dict[int, set[int]] = {}
    where = batch_sharding(mesh).devices_indices_map((data_parallelism(mesh),))
    for device, (rows,) in where.items():
        held.setdefault(device.process_index, set()).add(rows.start or 0)
    parts = sorted({tuple(sorted(rows)) for rows in held.values()})
    if sum(map(len, parts)) != data_parallelism(mesh) or len(set(map(len, parts))) > 1:
        raise InputError(
            f"mesh: with {dict(mesh.shape)}, two of the {len(held)} processes must read either "
            "equal or entirely different rows of a batch, but some share only a part of their "
            "rows; change --mesh.*"
        )
    return parts.index(tuple(sorted(held[jax.process_index()]))), len(parts)


def jit_rows(function: Callable[..., Any], mesh: Mesh | None) -> Callable[..., Any]:
    """Compile a function(params, *rows) for a mesh; every process passes the complete rows.

    Args:
      function: function that returns arrays; arguments after `params` are [B, ...] arrays or None.
      mesh: mesh to split the rows over; every process gets complete results. If None, the function
        runs in one process, on the device of the parameters.
    """
    if mesh is None:
        return jax.jit(function)
    compiled = jax.jit(function, out_shardings=replicated(mesh))

    def call(params: Any, *rows: Any) -> Any:
        split = batch_sharding(mesh)
        with jax.set_mesh(mesh):
            return compiled(params, *(None if x is None else _spread(x, split) for x in rows))

    return call


MOST_ROWS = 1 << 20
"""Maximum rows of a batch."""


def rounded_rows(rows: int, mesh: Mesh | None) -> int:
    """Round a number of rows up to a multiple that the mesh can evenly split.

    Raises:
      InputError: if there are more than `MOST_ROWS` rows.
    """
    if rows > MOST_ROWS:
        raise InputError(f"a batch must have at most {MOST_ROWS:,} rows, got {rows:,}")
    parts = 1 if mesh is None else data_parallelism(mesh)
    return -(-rows // parts) * parts


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding that copies an array to every device."""
    return NamedSharding(mesh, PartitionSpec())


def data_parallelism(mesh: Mesh) -> int:
    """Return the number of device groups that a batch is split over."""
    return math.prod(mesh.shape[name] for name in _BATCH_AXES)


def traced_kind() -> str:
    """Return the device kind of the current mesh; if no mesh is set, of the first device.

    Examples are "TPU v5 lite", "NVIDIA H100 80GB HBM3" and "cpu". Devices of the mesh need not be
    attached.
    """
    mesh = jax.sharding.get_abstract_mesh()
    device = None if mesh.empty else mesh.abstract_device
    return jax.devices()[0].device_kind if device is None else device.device_kind


def check_whole_rows(what: str, *, instead: str) -> None:
    """Raise InputError if the current mesh splits the sequence length.

    Args:
      what: name of the feature that needs complete rows.
      instead: alternative option that works with a split sequence length.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty and mesh.shape["sequence"] > 1:
        raise InputError(
            f"{what} needs complete rows on each device, but mesh.sequence is "
            f"{mesh.shape['sequence']}; set --mesh.sequence 1 or {instead}"
        )


def constrain(x: Array, *logical: str | None) -> Array:
    """Constrain the sharding of an activation on the current mesh of `jax.set_mesh`.

    A sequence length that the mesh cannot divide is not split.

    Args:
      x: array with one axis per name.
      *logical: logical axis names.

    Raises:
      InputError: if the mesh cannot divide another axis.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh is None or mesh.empty:
        return x
    names: list[str | None] = []
    for name, size in zip(logical, x.shape, strict=True):
        if name == "length" and size % mesh.shape["sequence"]:
            names.append(None)
        else:
            names.append(name)
            _check_axis(mesh.shape, name, size)
    return jax.lax.with_sharding_constraint(x, partition_spec(names))


Mode = Literal["cached", "recompute"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """Division of a batch into microbatches.

    Attributes:
      count: number of microbatches.
      tokens: maximum tokens per device and microbatch; if None, `count` is used.
      mode: gradient of a loss over the complete batch, such as a contrastive loss. "cached" stores
        the outputs and runs each microbatch twice (gradient caching). "recompute" differentiates
        through the loop over microbatches, with rematerialization. The gradients are equal.
    """

    count: Count = 1
    tokens: Count | None = None
    mode: Mode = "cached"

    def __post_init__(self) -> None:
        check_bounds(self, prefix="microbatches: ")
        if self.tokens is not None and self.count > 1:
            raise InputError(
                f"microbatches {self.count} and tokens_per_part {self.tokens} both set the number "
                "of microbatches; set only one of them"
            )

    @property
    def may_be_several(self) -> bool:
        """True if a batch may have several microbatches."""
        return self.count > 1 or self.tokens is not None

    def of(self, batch: Mapping[str, Any], mesh: Mesh) -> int:
        """Return the number of microbatches of a batch.

        Args:
          batch: name -> array [B, ...], or objects with the shapes.
          mesh: device mesh.

        Raises:
          InputError: if the rows cannot be evenly split, or one row has more than `tokens` tokens.
        """
        rows = next(iter(batch.values())).shape[0]
        if self.tokens is None:
            check_microbatches(rows, self.count, mesh)
            return self.count
        devices = data_parallelism(mesh)
        check_microbatches(rows, 1, mesh)
        each, own = tokens_of_row(batch), rows // devices
        if each > self.tokens:
            raise InputError(
                f"tokens_per_part {self.tokens} is less than the {each} tokens of one row; set "
                f"--tokens-per-part to {each} or more"
            )
        return next(n for n in range(1, own + 1) if own % n == 0 and own // n * each <= self.tokens)


def tokens_of_row(batch: Mapping[str, Any]) -> int:
    """Return the number of tokens in a row of a batch, with padding but without target features.

    Args:
      batch: name -> array [B, ...]; names of token features end in "_tokens", and names of target
        features in "_target_tokens".
    """
    read = [name for name in batch if name.endswith("_tokens") and "_target_" not in name]
    return sum(math.prod(batch[name].shape[1:]) for name in read)


def check_microbatches(
    batch_size: int, microbatches: int, mesh: Mesh, *, named: str | None = None
) -> None:
    """Raise InputError if a batch cannot be evenly divided over microbatches and devices.

    Args:
      batch_size: number of rows of the global batch.
      microbatches: number of microbatches.
      mesh: device mesh.
      named: name of the batch in the message; default: data.batch_size.
    """
    devices = data_parallelism(mesh)
    if batch_size % (devices * microbatches):
        raise InputError(
            f"{named or f'data.batch_size {batch_size}'} is not divisible by microbatches "
            f"{microbatches} * {devices} devices; change --microbatches, "
            f"{'--data.batches.shapes' if named else '--data.batch-size'} or --mesh.*"
        )


def split_batch(batch: Batch, microbatches: int, mesh: Mesh) -> dict[str, Array]:
    """Reshape arrays [B, ...] to [microbatches, B / microbatches, ...], inside a jit.

    Microbatch i has the rows i, i + microbatches, i + 2 * microbatches and so on, so every row
    stays on its device.
    """
    check_microbatches(len(next(iter(batch.values()))), microbatches, mesh)

    def split(x: Array) -> Array:
        parts = jnp.reshape(x, (len(x) // microbatches, microbatches, *x.shape[1:]))
        return constrain(jnp.swapaxes(parts, 0, 1), None, "batch", *_columns(x, mesh))

    return {name: split(value) for name, value in batch.items()}


def together(x: Array) -> Array:
    """Join an array of microbatches to one array [B, ...]; the inverse of `split_batch`."""
    whole = jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])
    return constrain(whole, "batch", *[None] * (whole.ndim - 1))


def _columns(x: Array, mesh: Mesh) -> tuple[str | None, ...]:
    rest: list[str | None] = [None] * (x.ndim - 1)
    if rest and mesh.shape["sequence"] > 1:
        rest[0] = "length"
    return tuple(rest)


_BYTES = 400


ending = threading.Event()
"""Event that is set when a signal ends a run with a single process."""


class Ended(Exception):
    """Exception for a canceled wait for other processes."""


def first_told(text: str) -> str:
    """Return the first nonempty text among all processes; every process must call this.

    Args:
      text: this process's text, truncated to 400 bytes if there are several processes.
    """
    if jax.process_count() == 1:
        return text
    mine = np.zeros(_BYTES, np.uint8)
    encoded = np.frombuffer(text.encode()[:_BYTES], np.uint8)
    mine[: encoded.size] = encoded
    every = _gathered(mine)
    told = [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in every]
    return next((text for text in told if text), "")


def all_told(text: str) -> list[str]:
    """Return the texts of all processes, by process index; every process must call this.

    Only digests are sent if all texts are equal.
    """
    if jax.process_count() == 1:
        return [text]
    own = np.frombuffer(text.encode(), np.uint8)
    head = np.frombuffer(
        hashlib.sha256(own.tobytes()).digest() + own.size.to_bytes(8, "little"), np.uint8
    )
    heads = _gathered(head)
    if (heads == head).all():
        return [text] * len(heads)
    sizes = [int.from_bytes(bytes(row[-8:]), "little") for row in heads]
    rows = _gathered(np.pad(own, (0, max(sizes) - own.size)))
    return [bytes(row[:size]).decode() for row, size in zip(rows, sizes, strict=True)]


def _gathered(own: np.ndarray) -> np.ndarray:
    return np.asarray(multihost_utils.process_allgather(own)).reshape(-1, own.size)
