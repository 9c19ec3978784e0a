"""`t5x-lite train`: complete a config, create the objects that it describes, and train.

Config values that depend on data and checkpoint: epochs, classes, schedule offset.

    with_epochs(experiment)         # epochs=3 of 67,349 rows in batches of 32: steps 6,314
    with_classes(experiment)        # Classify(num_classes=0, head="auto") of MNLI: 3, "bert"

| data | an epoch |
|---|---|
| caches | each example of all caches; if packed, the number of rows that the examples fill |
| a task, or a mixture of tasks, with a countable number of examples | each example |
| a stream, and rows that a task packs on the fly | unknown |

With a schedule offset, the learning rate continues after the steps for which the weights of
`--init` were trained:

    --init work/t5 --optimizer.schedule-offset auto       # 1000000 of t5x's checkpoint_1000000

All values are determined when a run starts, and stored in its config. So a resumed run needs
neither the checkpoint nor the option.

Training: `t5x-lite train` creates the objects that a config describes, and runs the loop.
"""

import dataclasses
import functools
import hashlib
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from t5x_lite.checkpoints import items, reading
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.init import Base
from t5x_lite.checkpoints.reading import Checkpoints
from t5x_lite.config import Experiment, Hosts
from t5x_lite.config.batches import batch_flops, batch_row, check_batch, check_devices, with_choices
from t5x_lite.config.evaluation import Capture, Patience
from t5x_lite.config.experiment import with_length
from t5x_lite.config.file import to_json
from t5x_lite.core import devices, sharding, trees
from t5x_lite.core.accelerators import keep_freed_memory
from t5x_lite.core.devices import (
    check_compiler_options,
    compiler_options,
    matmul_precision,
    use_compilation_cache,
    within_memory,
)
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import given_options
from t5x_lite.core.remote import AnyPath
from t5x_lite.core.tracking import (
    KnownIds,
    MakeTracker,
    TrackedRun,
    evaluated_steps,
    find_trackers,
    recorded,
)
from t5x_lite.data import batches as data_batches
from t5x_lite.data.config import Data, shapes_of
from t5x_lite.data.mixing import UnknownSize
from t5x_lite.data.vocabularies.byte_level import NAMES as BYTES_NAMES
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens
from t5x_lite.data.vocabularies.loading import Vocabulary, load_vocabulary
from t5x_lite.evaluate.results import best_of_run
from t5x_lite.inference import loading
from t5x_lite.inference.loading import find_step, learner_of, read_experiment, told_at_end
from t5x_lite.interop import encoder_checkpoints
from t5x_lite.metrics.benchmarks import Mode, contradiction, described, matching, refuse_test
from t5x_lite.models import encoder as encoders
from t5x_lite.models.base import hidden_size
from t5x_lite.models.heads import Head, by_name
from t5x_lite.objectives.learner import Learner
from t5x_lite.optim.config import AUTO
from t5x_lite.optim.partial import joint_optimizer
from t5x_lite.plan.program import bytes_on_device
from t5x_lite.train import hosts, phases, restoring, stopping
from t5x_lite.train.loop import Periods, fit
from t5x_lite.train.measuring import Measurement, is_there, until_stopped
from t5x_lite.train.restoring import WorkDirectory
from t5x_lite.train.step import (
    TrainState,
    abstract_state,
    init_state,
    make_train_step,
    state_shardings,
)
from t5x_lite.train.stopping import SaveClock, StopSignals, Watchdog
from t5x_lite.train.throughput import NonFiniteLoss
from t5x_lite.train.track import Goodput, Tracker

_logger = logging.getLogger(__name__)


_MOST_STEPS = 1 << 40


def with_epochs(
    experiment: Experiment, *, options: Sequence[str] = (), may_lack_data: bool = False
) -> Experiment:
    """Return the experiment with steps and schedules computed from its number of epochs.

    If the size of the data is unknown, the config's steps are used, and a message is logged.
    """
    epochs = experiment.epochs
    if epochs is None:
        return experiment
    fixed = given_options(options)
    try:
        vocabulary = load_vocabulary(
            experiment.data.vocabulary, extra_ids=experiment.data.extra_ids
        )
        data = experiment.data
        epoch = data_batches.epoch_of(data, vocabulary, seed=experiment.seed)
    except InputError as error:
        is_unknown = may_lack_data or isinstance(error, UnknownSize)
        if "--epochs" in fixed or not is_unknown:
            raise
        _logger.info(
            "the number of steps of an epoch is unknown (%s); training for the %s steps of the "
            "config",
            error,
            f"{experiment.steps:,}",
        )
        return dataclasses.replace(experiment, epochs=None)
    steps = max(1, math.ceil(epochs * epoch.batches - 1e-9))
    if steps >= _MOST_STEPS:
        raise InputError(
            f"epochs {epochs:g} would take {steps:,} steps; reduce the number of epochs"
        )
    if steps != experiment.steps:
        _logger.info(
            "%s: training for %s steps, about %.4g epochs of %s examples",
            experiment.data.task or experiment.data.cache,
            f"{steps:,}",
            epochs,
            f"{epoch.examples:,}",
        )
    return with_length(experiment, steps, fixed=fixed)


def with_classes(
    experiment: Experiment, *, earlier: Experiment | None = None, reads_task: bool = True
) -> Experiment:
    """Return the experiment with the kind and classes of its classification head filled in."""
    objective = experiment.objective
    undecided = objective.undecided()
    if not undecided:
        return experiment
    if earlier is not None and type(earlier.objective) is type(objective):
        known: Any = earlier.objective
        kind = getattr(known, "head", "")
        resolved = objective.with_classes(kind=kind, num_classes=known.num_classes)
        resolved = resolved.with_weights(getattr(known, "class_weights", ()))
        return dataclasses.replace(experiment, objective=resolved)
    # A plan knows the classes by their weights, or takes two.
    given = vars(objective).get("class_weights")
    kind, classes = "bert", len(given) if isinstance(given, tuple) and given else 2
    if "head" in undecided:
        model = experiment.model
        if not encoders.is_encoder(model):
            raise InputError(
                f"objective Classify needs an encoder, but the model is a {type(model).__name__}; "
                "use `t5x-lite glue`, or a config of objective Seq2Seq"
            )
        kind = encoder_checkpoints.classifier_kind(model, _heads_of_init(experiment))
    if "classes" in undecided and reads_task:
        classes = num_classes(experiment.data)
    resolved = objective.with_classes(kind=kind, num_classes=classes)
    if "weights" in undecided:
        number = vars(resolved)["num_classes"]
        weights = balanced_weights(experiment.data, number) if reads_task else ()
        resolved = resolved.with_weights(weights)
    return dataclasses.replace(experiment, objective=resolved)


def _heads_of_init(experiment: Experiment) -> tuple[Head, ...]:
    if not experiment.init.checkpoint:
        return experiment.heads
    step = find_step(experiment.init.checkpoint, step=experiment.init.step)
    saved = read_experiment(step, reading.step_files(step))
    named = by_name(experiment.heads)
    own = learner_of(saved).heads
    return (*experiment.heads, *(head for name, head in own.items() if name not in named))


def num_classes(data: Data) -> int:
    """Return the number of classes of a task; 1 for a regression task."""
    if not data.task:
        raise InputError(
            "objective.num_classes 0 counts the classes of data.task, but data.task is not set; "
            "set --data.task, or --objective.num-classes N"
        )
    from t5x_lite.data.loading import load_task, task_labels

    vocabulary = load_vocabulary(data.vocabulary, extra_ids=data.extra_ids)
    labels = task_labels(load_task(data, vocabulary))
    return 1 if labels is None else len(labels)


_AT_A_TIME = 4096


def balanced_weights(data: Data, num: int) -> tuple[float, ...]:
    """Return the balanced weight of each class c: n / (k n_c), or 1 if n_c is 0.

    n is the number of examples, n_c of class c, and k the number of classes with examples.
    """
    words = "token_labels" in data.layout.features
    vocabulary = load_vocabulary(data.vocabulary, extra_ids=data.extra_ids)
    counts = np.zeros(num + 1, np.int64)
    for source in data_batches.training_sources(data, vocabulary, seed=0):
        if source.size is None:
            raise InputError(
                "objective.class_weights balanced counts the training examples of each class, "
                "but the task is streamed, so its examples cannot be counted; write a cache with "
                "`t5x-lite cache` and give --data.cache, or give the weights"
            )
        for first in range(0, source.size, _AT_A_TIME):
            numbers = np.arange(first, min(first + _AT_A_TIME, source.size))
            for example in source.split.read(numbers):
                given = example["token_labels"] if words else example["labels"][:1]
                counts += np.bincount(given, minlength=num + 1)[: num + 1]
    counts = counts[1:]
    if not counts.any():
        raise InputError(
            "objective.class_weights balanced needs labels, but no training example has a label"
        )
    weights = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
    weights = tuple(np.where(counts > 0, weights, 1.0).tolist())
    if jax.process_index() == 0:
        listed = ", ".join(f"{weight:.4g}" for weight in weights)
        _logger.info("using the balanced class weights %s", listed)
    return weights


def with_schedule_offset(experiment: Experiment, *, earlier: Experiment | None) -> Experiment:
    """Return the experiment with a step number instead of "auto" for schedule_offset."""
    if experiment.optimizer.schedule_offset != AUTO:
        return experiment
    if earlier is not None:
        offset = earlier.optimizer.first_step
    elif not experiment.init.checkpoint:
        raise InputError(
            "optimizer.schedule_offset auto needs a checkpoint, but init.checkpoint is not set; "
            "pass --init DIR, or a number of steps"
        )
    else:
        offset = trained_steps(find_step(experiment.init.checkpoint, step=experiment.init.step))
    if earlier is None and jax.process_index() == 0:
        _logger.info("continuing the learning rate schedule from step %d", offset)
    optimizer = dataclasses.replace(experiment.optimizer, schedule_offset=offset)
    return dataclasses.replace(experiment, optimizer=optimizer)


def trained_steps(step: AnyPath) -> int:
    """Return the number of steps that a checkpoint was trained for, including earlier runs."""
    saved = items.saved_step(step)
    if saved is None and step.name.isdecimal():  # saved by an earlier version
        saved = int(step.name)
    before = read_experiment(step, reading.step_files(step)).optimizer.first_step
    if saved is None and not before:
        raise InputError(
            f"checkpoint {step} does not record its number of training steps; set "
            "--optimizer.schedule-offset to a number instead of auto"
        )
    return before + (saved or 0)


class Trained(NamedTuple):
    """Result of a training run.

    Attributes:
      workdir: work directory, an argument for `t5x_lite.load`.
      step: step of the newest checkpoint; 0 without a checkpoint.
      metrics: "<split>/<name>" -> metric of the last evaluation; {} without an evaluation.
    """

    workdir: AnyPath
    step: int
    metrics: dict[str, float]


def train(experiment: Experiment) -> Trained:
    """Train a config, and resume from the newest checkpoint of its work directory.

    For adapters with several training phases, the phases run in order (`train.phases`).
    """
    keep_freed_memory()  # the command line does it before the first thread
    hosts.join(experiment.hosts)
    use_compilation_cache(experiment.compilation_cache)
    # All processes must save the same config, so the settings of this host are removed.
    local, experiment = experiment.hosts, dataclasses.replace(experiment, hosts=Hosts())
    one_phase = functools.partial(_train_phase, local=local)
    experiment = with_epochs(experiment)
    return one_phase(*phases.prepared(experiment, one_phase))


def _train_phase(experiment: Experiment, start: phases.Start | None, *, local: Hosts) -> Trained:
    spent = Goodput()
    with (
        StopSignals() as stop,
        stopping.watched(stop),
        WorkDirectory.open(experiment.workdir) as workdir,
        hosts.ending_together(NonFiniteLoss),
        matmul_precision(experiment.matmul_precision),
    ):
        watchdog = Watchdog(spent, seconds=float(local.watchdog), directory=workdir.local)
        _train(experiment, workdir, start=start, stop=stop, spent=spent, watchdog=watchdog)
        steps = checkpointing.saved_steps(workdir.path / checkpointing.DIRECTORY)
        measured = evaluated_steps(workdir.local, until=experiment.steps)
        last = measured[max(measured)] if measured else {}
        return Trained(workdir.path, steps[-1] if steps else 0, last)


def _train(
    experiment: Experiment,
    workdir: WorkDirectory,
    *,
    start: phases.Start | None,
    stop: StopSignals,
    spent: Goodput,
    watchdog: Watchdog,
) -> None:
    """Create the objects that the config describes, cheap checks first, and train.

    1. Check that the settings and files of all processes are equal.
    2. Complete the config (`completed`). Raise InputError if the work directory, the vocabulary or
    the checkpoint of `init` does not fit; arrays are not read yet.
    3. Create mesh, learner and optimizer, and check that sizes are divisible.
    4. Open the data and the evaluation, and check the names of metrics.
    5. Load the last good checkpoint; without a checkpoint, use the seed and `init`.
    6. Write the config to the work directory.
    7. Open the tracker. If no step is left, the run ends here.
    8. Compile the step, and run the loop.
    """
    saved = checkpointing.saved_steps(workdir.path / checkpointing.DIRECTORY)
    hosts.check_agreement(experiment, **{"the steps saved in the work directory": saved})
    complete = completed(experiment, workdir)
    experiment, vocabulary = complete.experiment, complete.vocabulary
    if experiment.find_batch_size:
        from t5x_lite.train.planning import with_microbatches  # it imports this module

        experiment = with_microbatches(experiment, earlier=workdir.earlier())
    kind = jax.devices()[0].device_kind
    mesh = sharding.make_mesh(experiment.mesh)
    check_batch(experiment, mesh)
    loading.check_children(experiment)
    options = compiler_options(experiment.xla)
    check_compiler_options(options, mesh)
    check_devices(experiment, mesh)
    learner = learner_of(experiment)
    learner.check_mesh(mesh)
    updates = learner.updates()
    optimizer = joint_optimizer(updates)
    layout = state_shardings(mesh, learner.axes, learner.optimizer_axes())
    abstract = abstract_state(learner.shapes, optimizer, layout)
    check_memory(experiment, learner, abstract, mesh)
    batches = _batches(experiment, vocabulary, part=sharding.batch_part(mesh))
    hosts.check_agreement(
        experiment,
        vocabulary=vocabulary.digest,
        cache=hashlib.sha256(batches.state()).hexdigest() if experiment.data.cache else "",
    )
    measurement = Measurement(experiment, learner, vocabulary, mesh=mesh, workdir=workdir.local)
    if measurement.suite is not None and not saved:
        heads = measurement.suite.named_heads(experiment.heads)
        experiment = dataclasses.replace(experiment, heads=heads)
    trackers = find_trackers(experiment.tracking)
    names = measurement.names(learner.shapes)
    choices = _check_metrics(experiment, names)

    with _open_checkpoints(workdir, experiment, stop) as checkpoints:
        state, base = restoring.resume(checkpoints, experiment, abstract, batches)
        going_on = (
            "" if state is None else f"resuming from step {int(state.step)} of {workdir.path}"
        )
        if state is None:
            state = init_state(learner.init, optimizer, layout, seed=experiment.seed)
            if experiment.init.checkpoint:
                state, base = restoring.with_initial(
                    *(state, experiment, learner, vocabulary, abstract.params),
                    step=complete.initial,
                    steps=workdir.path / checkpointing.DIRECTORY,
                )
            else:
                loading.check_init(experiment)
                restoring.check_int8(abstract.params, None)
            state = restoring.with_start(state, learner)
            if start is not None:
                state = restoring.with_arrays(state, start())
        workdir.write(experiment, vocabulary)
        with _tracker(workdir, experiment, trackers, step=int(state.step)) as tracker:
            if going_on:
                tracker.message(going_on)
            history = evaluated_steps(workdir.local, until=int(state.step))
            spent.go_on(recorded(workdir.local), step=int(state.step))
            owed = bool(names) and _is_owed(experiment, int(state.step), history)
            if int(state.step) >= experiment.steps and not owed:
                done = f"{workdir.path} is at step {int(state.step)} of {experiment.steps}: done"
                tracker.message(done)
                return
            workdir.add_start(step=int(state.step), devices=f"{mesh.size} {kind}")
            tracker.message(
                f"{trees.count_parameters(learner.float32_shapes):,} parameters on {mesh.size} "
                f"{kind} device(s), {experiment.compute_dtype}"
            )
            for line in _trained_part(learner, base):
                tracker.message(line)
            for choice in (*complete.choices, *choices):
                tracker.message(choice)
            train_step = make_train_step(
                updates,
                mesh=mesh,
                layout=layout,
                seed=experiment.seed,
                microbatches=experiment.parts,
                options=options,
            )
            # Also here, because closing the checkpoints waits for all processes.
            with hosts.ending_together(NonFiniteLoss):
                fit(
                    state,
                    batches,
                    within_memory(train_step),
                    mesh=mesh,
                    periods=_periods(experiment),
                    evaluate=until_stopped(measurement, stop, mesh=mesh),
                    save=restoring.saver(
                        *(checkpoints, experiment, vocabulary, workdir),
                        base=base,
                        saved=tracker.saved if tracker.has_callbacks else None,
                    ),
                    tracker=tracker,
                    stop=stop,
                    save_clock=SaveClock(experiment.checkpoints.minutes),
                    flops=batch_flops(experiment),
                    patience=Patience(experiment.stop_early, list(history.values())),
                    capture=Capture(experiment.profile, os.fspath(workdir.path / "profile")),
                    owed=checkpoints.add_metrics if owed else None,
                    spent=spent,
                    watchdog=watchdog,
                )
            checkpoints.wait()
            _tell_best(tracker, workdir, experiment)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Complete:
    """Config of a run with all fields resolved, its vocabulary and its initial checkpoint.

    Attributes:
      experiment: config of the run, including its heads.
      vocabulary: vocabulary of the data; a resumed run uses its saved vocabulary.
      initial: checkpoint directory of `init` for a new run, or None.
      choices: log line for each field that was "auto".
    """

    experiment: Experiment
    vocabulary: Vocabulary
    initial: AnyPath | None
    choices: tuple[str, ...]


def completed(experiment: Experiment, workdir: WorkDirectory) -> Complete:
    """Return the config of a run with resolved fields, such as fields with the value "auto".

    Raises:
      InputError: if the work directory or the checkpoint of `init` belongs to another experiment.
    """
    earlier = workdir.earlier()
    experiment = loading.with_loaded(experiment, earlier=earlier)
    experiment = with_schedule_offset(experiment, earlier=earlier)
    experiment = with_classes(experiment, earlier=earlier)
    kind = jax.devices()[0].device_kind
    experiment, choices = with_choices(experiment, kind, earlier=earlier)
    workdir.check(restoring.with_kept_heads(experiment, workdir, step=None))
    vocabulary = workdir.check_vocabulary(vocabulary_of(experiment, workdir))
    initial = None
    if not checkpointing.saved_steps(workdir.path / checkpointing.DIRECTORY):
        loading.check_init(experiment)
        if experiment.init.checkpoint:
            initial = restoring.check_init(experiment, vocabulary)
    return Complete(
        experiment=restoring.with_kept_heads(experiment, workdir, step=initial),
        vocabulary=vocabulary,
        initial=initial,
        choices=tuple(choices),
    )


def check_memory(experiment: Experiment, learner: Learner, state: TrainState, mesh: Mesh) -> None:
    """Raise InputError if a train step certainly needs more memory than a device has.

    The minimum memory counts parameters, gradients of trained parameters, optimizer state, one
    batch, and the hidden states of one layer.
    """
    parameters = trees.flatten(state.params)
    trained = [leaf for path, leaf in parameters.items() if learner.trains(path)]
    rows = max(shape.batch_size for shape in shapes_of(experiment.data))
    row = batch_row(experiment)
    parts = sharding.data_parallelism(mesh)
    here = -(-rows // parts)
    tokens = max((math.prod(x.shape[1:]) for x in row.values() if x.ndim > 1), default=0)
    states = (hidden_size(experiment.model) or 1) * jnp.dtype(experiment.compute_dtype).itemsize
    at_once = here // max(1, experiment.microbatches) if experiment.tokens_per_part is None else 1
    batch = here * sum(value.nbytes for value in row.values())
    devices.check_fits(
        {
            "parameters": bytes_on_device(list(parameters.values())),
            "gradients": bytes_on_device(trained),
            "optimizer state": bytes_on_device(state.optimizer),
            "a batch": batch,
            "the states of a layer": at_once * tokens * states // mesh.shape["sequence"],
        },
        list(mesh.devices.flat),
        remedy="reduce the sizes of the model, an adapter or the batch; `t5x-lite plan` shows the "
        "memory of a config",
    )


def _tracker(
    workdir: WorkDirectory,
    experiment: Experiment,
    trackers: Mapping[str, MakeTracker],
    *,
    step: int,
) -> Tracker:
    settings = experiment.tracking
    run = TrackedRun(
        directory=os.fspath(workdir.local),
        name=settings.name or workdir.path.name,
        project=settings.project,
        config=json.loads(to_json(experiment)),
        total_steps=experiment.steps,
        first_step=step + 1,
        history=evaluated_steps(workdir.local, until=step, training=True),
    )
    return Tracker(
        workdir.local,
        total_steps=experiment.steps,
        enabled=jax.process_index() == 0,
        trackers=trackers,
        run=run,
        ids=KnownIds(workdir.path),
    )


def _trained_part(learner: Learner, base: Base | None) -> list[str]:
    """Return log lines about the fraction of trained parameters; [] if all are trained."""
    shapes = trees.flatten(learner.float32_shapes)
    trained = {path: leaf for path, leaf in shapes.items() if learner.trains(path)}
    if len(trained) == len(shapes):
        return []
    if learner.frozen_heads and not any(map(learner.holds_still, shapes)):
        unused = [name for name in learner.frozen_heads if learner.head(name)]
        return [
            f"the loss does not use the head {name}; keeping the head without training"
            for name in unused
        ]
    num = sum(leaf.size for leaf in trained.values()) - learner.num_unused(trained=True)
    total = sum(leaf.size for leaf in shapes.values()) - learner.num_unused()
    held = shapes if base is None else trees.flatten(base.rest(learner.shapes))
    kept = sum(leaf.size * leaf.dtype.itemsize for leaf in held.values())
    named = "in the checkpoint" if base is None else base.digest[:12]
    lines = [
        f"trained {num:,} of {total:,} ({100 * num / total:.2f} %), base {named}, {kept:,} bytes "
        "of parameters in a checkpoint"
    ]
    if base is not None:
        lines.append(
            "checkpoints hold only the trained parameters; all other parameters are read from "
            f"{base.checkpoint}, so keep that directory (--checkpoints.whole True copies it)"
        )
    return lines


def _is_owed(experiment: Experiment, step: int, history: Mapping[int, object]) -> bool:
    """Return True if an evaluation is due at a checkpoint's step, but its result is missing."""
    due = step >= experiment.steps or step % experiment.evaluation.period == 0
    return step > 0 and due and step not in history


def _tell_best(tracker: Tracker, workdir: WorkDirectory, experiment: Experiment) -> None:
    if jax.process_index():
        return
    split = experiment.evaluation.split
    shown = best_of_run(workdir.local, until=experiment.steps, split=split)
    if shown is not None:
        tracker.message(f"best checkpoint of each task:\n{shown}")
    best = told_at_end(workdir.path / checkpointing.DIRECTORY)
    if best is not None:
        tracker.message(best)


def _batches(experiment: Experiment, vocabulary: Vocabulary, *, part: tuple[int, int]) -> Any:
    return data_batches.train_batches(
        experiment.data,
        vocabulary,
        seed=experiment.seed,
        process_index=part[0],
        process_count=part[1],
    )


def vocabulary_of(experiment: Experiment, workdir: WorkDirectory | None = None) -> Vocabulary:
    """Load the vocabulary of a config, and check that it fits the model.

    If the vocabulary file of the config is missing, the copy in the work directory is used.
    """
    path = experiment.data.vocabulary
    if workdir is not None and path not in BYTES_NAMES and not is_there(path):
        copy = workdir.path / checkpointing.VOCABULARY_DIRECTORY
        if copy.is_dir():
            _logger.info("data.vocabulary %s no longer exists; using the copy %s", path, copy)
            path = os.fspath(copy)
    vocabulary = load_vocabulary(path, extra_ids=experiment.data.extra_ids)
    if vocabulary.size > experiment.model.vocab_size:
        raise InputError(
            f"model.vocab_size {experiment.model.vocab_size} is smaller than the vocabulary "
            f"{experiment.data.vocabulary}, which has {vocabulary.size} tokens with "
            f"{experiment.data.extra_ids} extra ids; set --model.vocab-size"
        )
    masked = experiment.objective.masks_with()
    if masked is not None and masked != (found := encoder_tokens(vocabulary).mask_id):
        raise InputError(
            f"objective.mask_id {masked} is not the [MASK] token of the vocabulary "
            f"{experiment.data.vocabulary}; set --objective.mask-id {found}"
        )
    objective = experiment.objective.resolved(by_name(experiment.heads))
    if (specials := objective.no_terms()) is not None:
        tokens = encoder_tokens(vocabulary)
        wanted = {tokens.cls_id, tokens.pad_id, tokens.sep_id, tokens.unk_id}
        if not wanted <= set(specials):
            raise InputError(
                f"objective.specials {sorted(specials)} does not contain the [CLS], padding, "
                f"[SEP] and unknown tokens of the vocabulary {experiment.data.vocabulary}; set "
                f"--objective.specials {' '.join(map(str, sorted(wanted)))}"
            )
    return vocabulary


def _open_checkpoints(
    workdir: WorkDirectory, experiment: Experiment, stop: StopSignals
) -> Checkpoints:
    settings = experiment.checkpoints
    return Checkpoints(
        workdir.path,
        keep=settings.keep,
        best=settings.best,
        best_mode=settings.best_mode,
        timeout=settings.timeout,
        hurried=lambda: stop.received is not None,
    )


def _periods(experiment: Experiment) -> Periods:
    return Periods(
        total=experiment.steps,
        log=experiment.log_period,
        evaluation=experiment.evaluation.period,
        checkpoint=experiment.checkpoints.period,
        save_measured=experiment.checkpoints.best is not None,
    )


def _check_metrics(experiment: Experiment, names: Sequence[str]) -> list[str]:
    kept, stop, lines = experiment.checkpoints, experiment.stop_early, []
    wanted: tuple[tuple[str, str | None, str, Mode | None], ...] = (
        ("checkpoints.best", kept.best, "checkpoints.best_mode", kept.best_mode),
        ("stop_early.metric", stop.metric, "stop_early.mode", stop.mode),
    )
    for field, name, mode_field, mode in wanted:
        if name is None:
            continue
        matched = matching(name, names) if field == "checkpoints.best" else [name]
        for metric in matched:
            refuse_test(field, metric)
        if not set(matched) & set(names):
            raise InputError(
                f"{field} is {name!r}, but the evaluation has the metrics "
                f"{', '.join(names) or 'none'}"
            )
        against = contradiction(mode_field, matched, mode)
        lines.append(f"warning: {against}" if against else f"{field}: {described(matched)} is best")
    return lines
