"""Estimates of a run before it starts: `t5x-lite plan`, and `train --dry-run`.

`t5x-lite plan` compiles a config's train step for devices that need not be attached. It reads only
the config, no data, vocabulary or weights. Only for a config with epochs, examples are counted if
the data are available.

`t5x-lite train --dry-run` prints the plan of a run, and writes nothing:

    print(rehearse(config.load("configs/tiny_pretrain.py", ["--workdir", "work/run"])))

The dry run makes the same checks as `train` up to the first batch: vocabulary, checkpoint of
`init`, devices, data. It creates no parameters and compiles nothing.
"""

import dataclasses
import json
import logging
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.init import part_of
from t5x_lite.config import Experiment
from t5x_lite.config.batches import (
    check_batch,
    check_devices,
    empty_row,
    num_parts,
    row_lengths,
    step_flops,
    with_choices,
)
from t5x_lite.core import accelerators, remote, sharding, trees
from t5x_lite.core.accelerators import GIB
from t5x_lite.core.devices import (
    check_compiler_options,
    compiler_options,
    matmul_precision,
    of_device,
)
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import first_told
from t5x_lite.data import batches as data_batches
from t5x_lite.data.config import rows_named, shapes_of
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.inference import loading
from t5x_lite.inference.loading import learner_of
from t5x_lite.objectives.learner import Learner
from t5x_lite.optim.partial import joint_optimizer
from t5x_lite.plan import program as attached_slices
from t5x_lite.plan import program as topologies
from t5x_lite.plan.program import (
    OutOfMemory,
    Program,
    Sheet,
    Sheets,
    bytes_on_device,
    compile_step,
    narrow_shards,
    widest_fsdp,
)
from t5x_lite.train import hosts, phases
from t5x_lite.train.restoring import WorkDirectory
from t5x_lite.train.step import TrainState, abstract_state, make_train_step, state_shardings
from t5x_lite.train.training import completed, with_classes, with_epochs

_logger = logging.getLogger(__name__)


class DoesNotFit(RuntimeError):
    """Error of a train step that needs too much device memory; the message lists remedies."""


def plan(
    experiment: Experiment,
    *,
    topology: str | None = None,
    devices: str | None = None,
    attached: bool = False,
    as_json: bool = False,
    hbm: float | None = None,
    operations: int = 0,
) -> None:
    """Print time and memory of a train step; raise DoesNotFit if it needs too much memory."""
    if attached:
        hosts.join(experiment.hosts)
        found, asked = _attached(topology, devices, jax.devices())
        hbm = _own_memory(found, hbm)
    else:
        found, asked = _devices(topology, devices)
    sheets = make_sheets(experiment, found, asked=asked, hbm=hbm, operations=operations)
    if not attached or jax.process_index() == 0:
        print(json.dumps(sheets.record()) if as_json else sheets.text())
    if sheets.largest.fits is False:
        raise DoesNotFit(sheets.verdict())


def make_sheets(
    experiment: Experiment,
    devices: Sequence[Any],
    *,
    asked: str,
    hbm: float | None = None,
    operations: int = 0,
) -> Sheets:
    """Compile the train step for each batch shape, and report its time and memory."""
    experiment = with_classes(experiment, reads_task=False)
    # Choices depend on the longest rows, as in `train`, and not on each shape.
    experiment, choices = with_choices(experiment, devices[0].device_kind)
    data = experiment.data
    check_batch(experiment, sharding.make_mesh(experiment.mesh, devices=devices))
    found = []
    for shape in shapes_of(data):
        alone = dataclasses.replace(experiment, data=shape)
        sheet = make_sheet(alone, devices, asked=asked, hbm=hbm)
        if data.batches.buckets():
            remedies = [
                f"fewer rows in {rows_named(data, shape)}" if "--data.batch-size" in each else each
                for each in sheet.remedies
            ]
            sheet = dataclasses.replace(sheet, remedies=remedies)
        found.append(dataclasses.replace(sheet, operations=operations, choices=choices))
    lengths = tuple(length for length, _ in data.batches.buckets())
    return Sheets(sheets=tuple(found), lengths=lengths)


def with_microbatches(experiment: Experiment, *, earlier: Experiment | None) -> Experiment:
    """Return the experiment with microbatches doubled until the train step fits into memory.

    A resumed run keeps its number of microbatches.

    Raises:
      InputError: if the step does not fit with one row per device and microbatch.
    """
    if earlier is not None and earlier.find_batch_size:
        return dataclasses.replace(experiment, microbatches=earlier.microbatches)
    if experiment.tokens_per_part is not None:
        raise InputError(
            "the config fields find_batch_size and tokens_per_part both set the number of "
            "microbatches; unset tokens_per_part"
        )
    found, local = jax.devices(), jax.local_devices()
    memory = of_device(local[0])
    if memory is not None and local[0].platform == "cpu":
        memory //= len(local)
    while True:
        hbm = None if memory is None else memory / GIB
        sheets = make_sheets(experiment, found, asked="attached", hbm=hbm)
        fits = sheets.largest.fits is not False
        # Processes may have different memory; the least decides.
        if not first_told("" if fits else "larger"):
            break
        number = 2 * experiment.microbatches
        rows = [shape.batch_size for shape in shapes_of(experiment.data)]
        shared = sharding.data_parallelism(sharding.make_mesh(experiment.mesh))
        if any(size % (shared * number) for size in rows):
            raise InputError(f"find_batch_size: {sheets.verdict()}")
        experiment = dataclasses.replace(experiment, microbatches=number)
    _logger.info("find_batch_size: using %d microbatches", experiment.microbatches)
    return experiment


def make_sheet(
    experiment: Experiment, devices: Sequence[Any], *, asked: str, hbm: float | None = None
) -> Sheet:
    """Compile the train step for one batch shape, and report its time and memory."""
    mesh = sharding.make_mesh(experiment.mesh, devices=devices)
    experiment, _ = with_choices(experiment, devices[0].device_kind)
    check_batch(experiment, mesh)
    check_compiler_options(compiler_options(experiment.xla), mesh)
    check_devices(experiment, mesh)
    learner = learner_of(experiment)
    learner.check_mesh(mesh)
    step, state = _step(experiment, learner, mesh)
    kind = devices[0].device_kind
    chip = accelerators.chip(kind)
    if hbm is not None:
        chip = dataclasses.replace(chip, hbm=int(hbm * GIB))
    narrow = narrow_shards(mesh.shape, learner.axes, learner.shapes) if _has_tiles(mesh) else []
    program: Program | None = None
    try:
        with matmul_precision(experiment.matmul_precision):
            program = compile_step(step, state, _batch(experiment, mesh), mesh=mesh)
        needed, seconds = program.memory.peak, program.compile_seconds
    except OutOfMemory as overflow:
        needed, seconds = overflow.needed, overflow.seconds
        chip = dataclasses.replace(chip, hbm=overflow.available or chip.hbm)
    sheet = Sheet(
        model=type(experiment.model).__name__,
        num_parameters=trees.count_parameters(learner.float32_shapes),
        compute_dtype=experiment.compute_dtype,
        devices=(kind, asked),
        num_devices=mesh.size,
        mesh=dict(mesh.shape),
        rows=experiment.data.batch_size,
        steps=experiment.steps,
        epochs=experiment.epochs,
        lengths=row_lengths(experiment.data),
        microbatches=num_parts(experiment, experiment.data, mesh),
        chip=chip,
        flops=step_flops(experiment),
        memory=program.memory if program else None,
        needed=needed,
        reading=program.reading if program else None,
        compiled_flops=program.flops if program else None,
        compiled_bytes_accessed=program.bytes_accessed if program else None,
        trace_seconds=program.trace_seconds if program else None,
        compile_seconds=seconds,
        warnings=narrow,
    )
    if sheet.fits is not False:
        return sheet
    return dataclasses.replace(sheet, remedies=_remedies(experiment, learner, mesh, state, chip))


def _devices(topology: str | None, devices: str | None) -> tuple[list[Any], str]:
    """Return the devices described by --topology or --devices, and this option's value."""
    if (topology is None) == (devices is None):
        raise InputError("pass either --topology, such as v5e:4x4, or --devices cpu:N")
    # Tracing needs a backend; the CPU's does not occupy an accelerator of this machine.
    jax.config.update("jax_platforms", "cpu")
    if topology is not None:
        return topologies.topology_devices(topology), topology
    count = re.fullmatch(r"cpu:([1-9]\d*)", devices or "")
    if count is None:
        raise InputError(
            f"--devices is {devices!r}, but must be cpu:N; use --topology for TPU slices"
        )
    return topologies.cpu_devices(int(count.group(1))), str(devices)


def _attached(
    topology: str | None, devices: str | None, attached: Sequence[Any]
) -> tuple[list[Any], str]:
    """Return the attached devices and their description; check them against --topology."""
    if devices is not None:
        raise InputError("--attached and --devices cannot be combined; remove --devices")
    if attached[0].platform == "cpu":
        raise InputError(
            "--attached needs an accelerator, but JAX finds none; pass only --topology"
        )
    own = attached_slices.described(attached)
    if topology is not None:
        meant = attached_slices.described(topologies.topology_devices(topology))
        differs = attached_slices.difference(own, meant, name=topology)
        if differs is not None:
            raise InputError(f"--attached: {differs}")
    return list(attached), topology or f"attached: {own}"


def _own_memory(devices: Sequence[Any], hbm: float | None) -> float | None:
    """Return `hbm`, or the memory that attached devices report, in GiB.

    A warning is logged if the memory is less than usual for the device kind.
    """
    own = [device for device in devices if device.process_index == jax.process_index()]
    limit = attached_slices.memory(own)
    less = attached_slices.less_memory(limit, accelerators.chip(own[0].device_kind).hbm)
    if less is not None:
        _logger.warning(less)
    return limit / GIB if hbm is None and limit is not None else hbm


def _has_tiles(mesh: Mesh) -> bool:
    return mesh.devices.flat[0].device_kind.startswith("TPU")


def _step(experiment: Experiment, learner: Learner, mesh: Mesh) -> tuple[Any, TrainState]:
    updates = learner.updates()
    layout = state_shardings(mesh, learner.axes, learner.optimizer_axes())
    step = make_train_step(
        updates,
        mesh=mesh,
        layout=layout,
        seed=experiment.seed,
        microbatches=experiment.parts,
        options=compiler_options(experiment.xla),
    )
    return step, abstract_state(learner.shapes, joint_optimizer(updates), layout)


def _batch(experiment: Experiment, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    rows = experiment.data.batch_size
    row = empty_row(experiment.data, num_tasks=experiment.objective.num_tasks)
    return {
        name: jax.ShapeDtypeStruct(
            (rows, *value.shape[1:]),
            value.dtype,
            sharding=sharding.batch_sharding(mesh, rank=value.ndim),
        )
        for name, value in row.items()
    }


def _remedies(
    experiment: Experiment, learner: Learner, mesh: Mesh, state: TrainState, chip: accelerators.Chip
) -> list[str]:
    found = []
    fsdp, shared = mesh.shape["fsdp"], sharding.data_parallelism(mesh)
    inside = shared // mesh.shape["replica"]
    wider = widest_fsdp(learner.axes, learner.shapes, inside) if _has_tiles(mesh) else inside
    if fsdp < wider and bytes_on_device((state.params, state.optimizer)) > 0.1 * (chip.hbm or 0):
        found.append(f"--mesh.data {inside // wider} --mesh.fsdp {wider}")
    if names := experiment.model.more_remat():
        found.append(" or ".join(f"--model.remat {name}" for name in names))
    microbatches = 2 * experiment.microbatches
    fewer = experiment.tokens_per_part
    if fewer is not None:
        found.append(f"--tokens-per-part {max(1, fewer // 2)}")
    elif experiment.data.batch_size % (shared * microbatches) == 0:
        found.append(f"--microbatches {microbatches}")
    if option := experiment.objective.smaller_logits():
        found.append(option)
    if experiment.data.batch_size > shared:
        found.append(f"--data.batch-size {max(shared, experiment.data.batch_size // 2)}")
    return [*found, "more or larger devices"]


_MIB = 1 << 20
_SHOWN_ROWS = 2
_SHOWN_CHARACTERS = 600


def rehearse(experiment: Experiment) -> str:
    """Return the text that `train --dry-run` prints."""
    hosts.join(experiment.hosts)
    with tempfile.TemporaryDirectory(prefix="t5x_lite-") as empty:
        workdir = _workdir(experiment.workdir, empty)
        experiment = phases.with_steps(with_epochs(experiment))
        saved = checkpointing.saved_steps(workdir.path / checkpointing.DIRECTORY)
        complete = completed(experiment, workdir)
        experiment, vocabulary = complete.experiment, complete.vocabulary
    mesh = sharding.make_mesh(experiment.mesh)
    check_batch(experiment, mesh)
    loading.check_children(experiment)
    check_compiler_options(compiler_options(experiment.xla), mesh)
    check_devices(experiment, mesh)
    learner = learner_of(experiment)
    learner.check_mesh(mesh)
    index, count = sharding.batch_part(mesh)
    batches = data_batches.train_batches(
        experiment.data, vocabulary, seed=experiment.seed, process_index=index, process_count=count
    )
    try:
        batch = next(batches)
    finally:
        batches.close()
    lines = [
        *_start(experiment, saved, workdir, learner),
        *_sizes(experiment, learner, mesh),
        *complete.choices,
        *_steps(experiment, None if experiment.data.cache else batches.size, batch, count=count),
        *_rows(experiment, vocabulary, batch),
        "dry run: nothing was written; `t5x-lite plan` estimates memory and time of a step",
    ]
    return "\n".join(lines)


def _workdir(workdir: str, empty: str) -> WorkDirectory:
    path = remote.open_path(workdir or empty)
    return WorkDirectory(path, path if isinstance(path, Path) else Path(empty))


def _start(
    experiment: Experiment, saved: list[int], workdir: WorkDirectory, learner: Learner
) -> list[str]:
    if saved:
        return [f"start: resumes from step {saved[-1]} of {workdir.path}"]
    where = experiment.workdir or "no --workdir yet"
    weights = experiment.init.checkpoint or f"fresh weights, seed {experiment.seed}"
    frozen = not experiment.init.checkpoint and any(
        path.startswith("model/") and not learner.trains(path)
        for path in trees.flatten(learner.shapes)
    )
    return [
        f"start: {weights}; work directory {where}",
        *(["warning: the frozen weights are random; pass --init CHECKPOINT"] if frozen else []),
    ]


def _sizes(experiment: Experiment, learner: Learner, mesh: Any) -> list[str]:
    shapes = trees.flatten(learner.float32_shapes)
    parts: dict[str, int] = {}
    for path, leaf in shapes.items():
        parts[part_of(path)] = parts.get(part_of(path), 0) + leaf.size
    trained = sum(leaf.size for path, leaf in shapes.items() if learner.trains(path))
    listed = ", ".join(f"{name} {size:,}" for name, size in parts.items())
    total = trees.count_parameters(learner.float32_shapes)
    layout = state_shardings(mesh, learner.axes, learner.optimizer_axes())
    state = abstract_state(learner.shapes, joint_optimizer(learner.updates()), layout)
    held = {
        "parameters": bytes_on_device(state.params),
        "optimizer": bytes_on_device(state.optimizer),
    }
    memory = ", ".join(f"{name} {size / _MIB:.1f} MiB" for name, size in held.items())
    return [
        f"parameters: {total:,} ({listed}), of which {trained:,} are trained",
        f"devices: {mesh.size} x {mesh.devices.flat[0].device_kind}, mesh "
        f"{ {name: size for name, size in mesh.shape.items() if size > 1} or 'of one' }, "
        f"{experiment.compute_dtype}",
        f"memory of the state, each device: {memory}; activations and gradients come on top",
    ]


def _steps(
    experiment: Experiment, size: int | None, batch: Mapping[str, np.ndarray], *, count: int
) -> list[str]:
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in sorted(batch.items()))
    examples = count * _examples(batch)
    total = experiment.steps * examples
    epochs = "" if size is None else f", about {total / size:.2f} epochs of {size:,}"
    return [
        f"data: {experiment.data.task or experiment.data.cache}",
        f"batch: {shapes}",
        f"steps: {experiment.steps:,}, some {examples} examples each{epochs}; evaluation every "
        f"{experiment.evaluation.period}, checkpoint every {experiment.checkpoints.period}",
    ]


def _examples(batch: Mapping[str, np.ndarray]) -> int:
    """Return the number of examples in a batch.

    A packed row contains several examples. A row with several texts, such as a query with its
    passages, is one example.
    """
    segments = [array for name, array in batch.items() if name.endswith("segment_ids")]
    if segments:
        return int(max(array.reshape(len(array), -1).max(axis=1).sum() for array in segments))
    return len(next(iter(batch.values())))


def _rows(
    experiment: Experiment, vocabulary: Vocabulary, batch: Mapping[str, np.ndarray]
) -> list[str]:
    found = []
    for row in range(min(_SHOWN_ROWS, len(next(iter(batch.values()))))):
        for name, array in batch.items():
            if name.endswith("_tokens") and "decoder_input" not in name and array.ndim == 2:
                segments = batch.get(f"{name.partition('_')[0]}_segment_ids")
                text = _text(array[row], None if segments is None else segments[row], vocabulary)
                found.append(f"row {row + 1}, {name}: {text}")
            elif name in ("labels", "scores") and array.ndim <= 2:
                shown = _label(name, array[row])
                found.append(f"row {row + 1}, {name}: {shown}")
    return found


def _label(name: str, value: np.ndarray) -> str:
    if name == "labels" and value.shape == (2,):
        return "none" if value[0] == 0 else f"class {int(value[0]) - 1}"
    return str(value.tolist())


def _text(tokens: np.ndarray, segments: np.ndarray | None, vocabulary: Vocabulary) -> str:
    """Decode a row of token ids to text, with " | " between packed examples."""
    if segments is None:
        return _cut(vocabulary.decode(tokens[tokens != 0].tolist()))
    numbers = [number for number in np.unique(segments) if number]
    return _cut(" | ".join(vocabulary.decode(tokens[segments == n].tolist()) for n in numbers))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
