"""Checks of a config's batches before training, and the shapes and FLOPs of an example.

FLOPs are floating-point operations, counted for a train step.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from t5x_lite.config import Experiment
from t5x_lite.core import sharding
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import check_microbatches
from t5x_lite.data.config import (
    Data,
    lengths_of,
    own_negative_caches,
    rows_named,
    shapes_of,
    text_lengths,
)
from t5x_lite.layouts.base import ADAPTER_IDS, OWN_NEGATIVES


def empty_row(data: Data, *, num_tasks: int = 0) -> dict[str, np.ndarray]:
    """Return a batch of one padding example with the shapes and dtypes of the training features.

    Args:
      data: data config.
      num_tasks: number of tasks of the objective; if positive, the batch has a task index.
    """
    none = np.zeros(0, np.int64)
    made = data.layout.lay_out([], none, num_rows=1, lengths=lengths_of(data), pack=data.pack)
    numbers = {ADAPTER_IDS: data.adapter_of or num_tasks, OWN_NEGATIVES: own_negative_caches(data)}
    return {**made, **{name: np.zeros(1, np.int32) for name, those in numbers.items() if those}}


def batch_row(experiment: Experiment) -> dict[str, np.ndarray]:
    """Return a batch of one padding example with the maximum sequence lengths of a run."""
    longest = max(shapes_of(experiment.data), key=lambda data: data.inputs_length)
    return empty_row(longest, num_tasks=experiment.objective.num_tasks)


def row_shapes(data: Data, *, num_tasks: int = 0) -> dict[str, tuple[int, ...]]:
    """Return the shape of each feature of a training example, without the batch axis."""
    row = empty_row(data, num_tasks=num_tasks)
    return {name: value.shape[1:] for name, value in row.items()}


def row_lengths(data: Data) -> dict[str, int]:
    """Return the maximum length in tokens of each sequence feature of a training example."""
    return {name: shape[-1] for name, shape in row_shapes(data).items() if shape}


def step_flops(experiment: Experiment) -> int | None:
    """Return the estimated FLOPs of one train step over all devices, for the longest batch.

    A train step counts as three forward passes. None if the objective has no FLOP estimate.
    """
    row = experiment.objective.forward_flops(experiment.model, row_shapes(experiment.data))
    return None if row is None else 3 * experiment.data.batch_size * row


def batch_flops(experiment: Experiment) -> Callable[[Mapping[str, np.ndarray]], int | None]:
    """Return a function that estimates the FLOPs of a train step from the shapes of a batch."""

    def flops(batch: Mapping[str, np.ndarray]) -> int | None:
        rows = {name: value.shape[1:] for name, value in batch.items()}
        row = experiment.objective.forward_flops(experiment.model, rows)
        return None if row is None else 3 * len(next(iter(batch.values()))) * row

    return flops


__all__ = [
    "check_batch",
    "check_devices",
    "check_lengths",
    "num_parts",
    "with_choices",
]

LONGEST = 1 << 24
"""Maximum length of a text in tokens that a config may set, as a sanity check."""


def check_batch(experiment: Experiment, mesh: Mesh) -> None:
    """Raise InputError if devices or model do not support the batch size or sequence length."""
    check_lengths(experiment)
    data, parts = experiment.data, sharding.data_parallelism(mesh)
    grouped = bool(data.batches.buckets())
    for shape in shapes_of(data):
        size, named = shape.batch_size, rows_named(data, shape)
        if size % parts:
            option = "--data.batches.shapes" if grouped else "--data.batch-size"
            raise InputError(
                f"{named} is not divisible by the {parts} devices that share a batch "
                f"(mesh {dict(mesh.shape)}); change {option} or --mesh.*"
            )
        check_microbatches(size, experiment.microbatches, mesh, named=named if grouped else None)
        if experiment.tokens_per_part is not None:
            _ = num_parts(experiment, shape, mesh)
        # The first step checks a single shape; a wrong second shape would fail in mid-run.
        columns = [value.shape[1] for value in empty_row(shape).values() if value.ndim > 1]
        if grouped and any(column % mesh.shape["sequence"] for column in columns):
            raise InputError(
                f"{named} is not divisible by the {mesh.shape['sequence']} devices that share a "
                f"row (mesh {dict(mesh.shape)}); change --data.batches.shapes or --mesh.sequence"
            )


def num_parts(experiment: Experiment, shape: Data, mesh: Mesh) -> int:
    """Return the number of microbatches for a batch of the given shape."""
    whole = {
        name: jax.ShapeDtypeStruct((shape.batch_size, *value.shape[1:]), value.dtype)
        for name, value in empty_row(shape, num_tasks=experiment.objective.num_tasks).items()
    }
    return experiment.parts.of(whole, mesh)


def check_devices(experiment: Experiment, mesh: Mesh) -> None:
    """Raise InputError if a model of the config does not support the device mesh."""
    kind = mesh.devices.flat[0].device_kind
    for model in (experiment.model, *experiment.objective.models().values()):
        model.check_devices(kind, dtype=experiment.compute_dtype)


def with_choices(
    experiment: Experiment, kind: str, *, earlier: Experiment | None = None
) -> tuple[Experiment, list[str]]:
    """Replace the value "auto" in model configs by a setting that suits the devices.

    Args:
      experiment: experiment with model configs that may contain "auto".
      kind: JAX's name of the devices, such as "TPU v4".
      earlier: config of the run to resume, which already contains choices, or None.

    Returns:
      The experiment, and a log line for each model with a new choice.
    """
    data, lines = experiment.data, []
    facts = {
        "dtype": experiment.compute_dtype,
        "length": max(data.inputs_length, data.targets_length),
        "one_text_rows": not data.pack,
    }

    def resolve(model: Any, there: Any, name: str) -> Any:
        if earlier is not None and type(there) is type(model):
            return model.with_choices_of(there)
        model, line = model.with_choices(kind, **facts)
        lines.extend([f"{name}: {line}"] if line else [])
        return model

    objective = experiment.objective
    before = {} if earlier is None else earlier.objective.models()
    own = {n: resolve(m, before.get(n), f"objective.{n}") for n, m in objective.models().items()}
    model = resolve(experiment.model, None if earlier is None else earlier.model, "model")
    objective = dataclasses.replace(objective, **own) if own else objective
    return dataclasses.replace(experiment, model=model, objective=objective), lines


def check_lengths(experiment: Experiment) -> None:
    """Raise InputError if a model does not support `data.layout` or the sequence lengths."""
    data = experiment.data
    for name in ("inputs_length", "targets_length"):
        columns = getattr(data, name)
        if columns > LONGEST:
            raise InputError(
                f"data.{name} must be at most {LONGEST:,} tokens, but is {columns:,}; set a "
                "shorter length"
            )
    data.layout.check_model(begins_with_cls=experiment.model.begins_with_cls)
    lengths = {"inputs_length": data.inputs_length}
    if "document" in text_lengths(data):
        lengths["targets_length"] = data.targets_length
    own = {f"objective.{name}": model for name, model in experiment.objective.models().items()}
    for model, config in {"model": experiment.model, **own}.items():
        most = config.longest_document
        for name, length in lengths.items():
            if most is not None and length > most:
                raise InputError(
                    f"data.{name} is {length} tokens, but {model} has only {most} positions; "
                    f"use a shorter length, or increase --{model}.max-positions"
                )
