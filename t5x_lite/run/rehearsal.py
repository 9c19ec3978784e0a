"""`t5x-lite train --dry-run`: says what a run would do, and writes nothing.

    print(rehearse(config.load("configs/tiny_pretrain.py", ["--workdir", "work/run"])))

The checks are those of `train`, up to the first batch: vocabulary, checkpoint of `init`, devices,
data. No parameter is made and nothing is compiled; `t5x-lite plan` also says what a step needs.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5x_lite import remote, sharding, trees
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.init import part_of
from t5x_lite.config import Experiment
from t5x_lite.data.mixtures import find_mixture
from t5x_lite.data.sources import batch_source
from t5x_lite.inference.loading import learner_of
from t5x_lite.learner import Learner
from t5x_lite.optim.updates import joint_optimizer
from t5x_lite.plan.program import bytes_on_device
from t5x_lite.run import hosts, modules, phases, restoring
from t5x_lite.run.data_facts import with_classes, with_epochs
from t5x_lite.run.loading import check_batch, check_devices, with_choices
from t5x_lite.run.schedule_offset import with_schedule_offset
from t5x_lite.run.training import vocabulary_of
from t5x_lite.run.workdir import WorkDirectory
from t5x_lite.train.compilation import check_compiler_options, compiler_options
from t5x_lite.train.state import abstract_state, state_shardings
from t5x_lite.vocabulary.loading import Vocabulary

_MIB = 1 << 20
_SHOWN_ROWS = 2
_SHOWN_CHARACTERS = 600


def rehearse(experiment: Experiment) -> str:
    """What `train` would do, as lines of text.

    Raises:
      InputError: where `train` would raise it before its first step.
    """
    hosts.join(experiment.hosts)
    with tempfile.TemporaryDirectory(prefix="t5x_lite-") as empty:
        workdir = _workdir(experiment.workdir, empty)
        experiment = phases.with_steps(with_epochs(experiment))
        experiment = modules.with_loaded(experiment, earlier=workdir.earlier())
        experiment = with_schedule_offset(experiment, earlier=workdir.earlier())
        experiment = with_classes(experiment, earlier=workdir.earlier())
        kind = jax.devices()[0].device_kind
        experiment, chosen = with_choices(experiment, kind, earlier=workdir.earlier())
        workdir.check(restoring.with_kept_heads(experiment, workdir, step=None))
        vocabulary = workdir.check_vocabulary(vocabulary_of(experiment, workdir))
        saved = checkpointing.saved_steps(workdir.path / checkpointing.DIRECTORY)
        initial = None
        if not saved:
            modules.check_init(experiment)
            if experiment.init.checkpoint:
                initial = restoring.check_init(experiment, vocabulary)
        experiment = restoring.with_kept_heads(experiment, workdir, step=initial)
    mesh = sharding.make_mesh(experiment.mesh)
    check_batch(experiment, mesh)
    modules.check_children(experiment)
    check_compiler_options(compiler_options(experiment.xla), mesh)
    check_devices(experiment, mesh)
    learner = learner_of(experiment)
    learner.check_mesh(mesh)
    index, count = sharding.batch_part(mesh)
    batches = batch_source(experiment.data).train_batches(
        experiment.data, vocabulary, seed=experiment.seed, process_index=index, process_count=count
    )
    try:
        batch = next(batches)
    finally:
        batches.close()
    lines = [
        *_start(experiment, saved, workdir),
        *_sizes(experiment, learner, mesh),
        *chosen,
        *_steps(experiment, vocabulary, batch, count=count),
        *_rows(experiment, vocabulary, batch),
        "dry run: nothing was written; `t5x-lite plan` compiles the step and says what it needs",
    ]
    return "\n".join(lines)


def _workdir(workdir: str, empty: str) -> WorkDirectory:
    """The work directory, which is looked at alone; an empty one where none is named."""
    path = remote.open_path(workdir or empty)
    return WorkDirectory(path, path if isinstance(path, Path) else Path(empty))


def _start(experiment: Experiment, saved: list[int], workdir: WorkDirectory) -> list[str]:
    if saved:
        return [f"start: resumes from step {saved[-1]} of {workdir.path}"]
    where = experiment.workdir or "no --workdir yet"
    weights = experiment.init.checkpoint or f"fresh weights, seed {experiment.seed}"
    return [f"start: {weights}; work directory {where}"]


def _sizes(experiment: Experiment, learner: Learner, mesh: Any) -> list[str]:
    """Parameters by part, and the memory that a device needs for the state."""
    shapes = trees.flatten(learner.shapes)
    parts: dict[str, int] = {}
    for path, leaf in shapes.items():
        parts[part_of(path)] = parts.get(part_of(path), 0) + leaf.size
    trained = sum(leaf.size for path, leaf in shapes.items() if learner.trains(path))
    listed = ", ".join(f"{name} {size:,}" for name, size in parts.items())
    total = trees.count_parameters(learner.shapes)
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
    experiment: Experiment, vocabulary: Vocabulary, batch: Mapping[str, np.ndarray], *, count: int
) -> list[str]:
    """Lengths, steps and epochs."""
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in sorted(batch.items()))
    examples = count * _examples(batch)
    known = _size(experiment, vocabulary)
    total = experiment.steps * examples
    epochs = "" if known is None else f", about {total / known:.2f} epochs of {known:,}"
    return [
        f"data: {experiment.data.task or experiment.data.cache}, rows of "
        f"{experiment.data.inputs_length} and {experiment.data.targets_length} tokens",
        f"batch: {shapes}",
        f"steps: {experiment.steps:,}, some {examples} examples each{epochs}; evaluation every "
        f"{experiment.evaluation.period}, checkpoint every {experiment.checkpoints.period}",
    ]


def _examples(batch: Mapping[str, np.ndarray]) -> int:
    """Examples in a batch: packed ones are counted by their segments."""
    segments = [array for name, array in batch.items() if name.endswith("segment_ids")]
    if segments:
        return int(max(array.max(axis=-1).sum() for array in segments))
    return len(next(iter(batch.values())))


def _size(experiment: Experiment, vocabulary: Vocabulary) -> int | None:
    """Training examples of an epoch, where the data are a task's that is held in memory."""
    data = experiment.data
    if data.cache or find_mixture(data) is not None:
        return None
    from t5x_lite.data.live import tasks

    task = tasks.load_task(data, vocabulary, seed=experiment.seed)
    passes = tasks.training_passes(data, task, seed=experiment.seed)
    if passes is None or passes.needs_buffer:  # several examples are made of one, or it is a stream
        return None
    return passes.size if isinstance(passes.size, int) else None


def _rows(
    experiment: Experiment, vocabulary: Vocabulary, batch: Mapping[str, np.ndarray]
) -> list[str]:
    """The first rows of the batch as text."""
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
    """A row's examples as text, with " | " between them."""
    if segments is None:
        return _cut(vocabulary.decode(tokens[tokens != 0].tolist()))
    numbers = [number for number in np.unique(segments) if number]
    return _cut(" | ".join(vocabulary.decode(tokens[segments == n].tolist()) for n in numbers))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
