"""`t5x-lite finetune`: derive a config from a checkpoint and a table, and train it.

    finetune("work/flan", table="reviews.csv", inputs="review: {text}", targets="{stars}",
             workdir="work/reviews")

1. The checkpoint sets the model, its sizes and the vocabulary. A T5 generates the target; an
encoder predicts it with a head.
2. One pass over the training rows counts them and collects labels and lengths. Sequence lengths
cover 99 % of the inputs and all targets up to 512 tokens, rounded up to multiples of 8.
3. Optimizer and schedule follow the model's paper: T5's Adafactor at 1e-3, or BERT's AdamW at 3e-5
with warm-up and linear decay; with adapters, AdamW at 1e-3. Models narrower than 512 use learning
rates 5 to 10 times higher.

Config options override all of these settings. The config is saved in the work directory: the same
command resumes the run, and `t5x-lite evaluate WORKDIR/config.json --checkpoint WORKDIR` evaluates
it.
"""

import dataclasses
import itertools
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from glob import has_magic
from typing import Any, Literal

import numpy as np

from t5x_lite import layouts
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.init import Init
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.config.experiment import begun_with, with_options
from t5x_lite.core.errors import InputError
from t5x_lite.core.remote import is_remote
from t5x_lite.data.config import Data
from t5x_lite.data.formats.tables import Table
from t5x_lite.data.preprocessors import MOST_LABELS, Columns
from t5x_lite.data.vocabularies.loading import Vocabulary, load_vocabulary
from t5x_lite.inference.loading import find_step, read_experiment
from t5x_lite.interop import encoder_checkpoints
from t5x_lite.models import encoder as encoders
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.heads import by_name
from t5x_lite.objectives.base import Objective
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.objectives.task_heads import Classify
from t5x_lite.optim.config import Adafactor, AdamW, Constant, Linear, Optimizer

_logger = logging.getLogger(__name__)

Task = Literal["auto", "classify", "regress", "text_to_text", "answer", "translate", "summarize"]

_MEASURED = 10_000
"""Number of training rows, from the first one on, that are tokenized for length statistics."""
_FEW_LABELS = 50
"""Maximum number of distinct targets that --task auto treats as labels."""
_LONGEST = {"inputs": 1024, "targets": 512}
_NARROW = 512
_NO_END = 10**9


@dataclasses.dataclass(frozen=True)
class Measured:
    """Statistics of the training rows of a table, to choose a task and row lengths.

    Attributes:
      rows: number of training rows.
      labels: distinct targets, sorted; () if there are more than `MOST_LABELS`.
      lengths: "inputs" or "targets" -> number of tokens in each of the first rows, int64 [n].
    """

    rows: int
    labels: tuple[str, ...]
    lengths: Mapping[str, np.ndarray]


def finetune(
    checkpoint: str,
    *,
    table: str,
    inputs: str,
    targets: str,
    workdir: str,
    second: str = "",
    labels: Sequence[str] = (),
    task: Task = "auto",
    epochs: int = 3,
    options: Sequence[str] = (),
) -> Experiment:
    """Fine-tune a checkpoint on a table of examples, and return the config of the run."""
    experiment = experiment_for(
        checkpoint,
        columns=Columns(
            inputs=inputs, second=second, targets=targets, labels=tuple(labels), hold_out=10
        ),
        table=table,
        workdir=workdir,
        task=task,
        epochs=epochs,
        options=options,
    )
    from t5x_lite.train.training import train

    train(experiment)
    return experiment


def experiment_for(
    checkpoint: str,
    *,
    columns: Columns,
    table: str,
    workdir: str,
    task: Task = "auto",
    epochs: int = 3,
    options: Sequence[str] = (),
) -> Experiment:
    """Return the experiment config for fine-tuning a checkpoint on a table of examples."""
    try:
        step = find_step(checkpoint, step=None)
    except InputError:
        if (saved := begun_with(checkpoint, workdir)) is None:
            raise
        _logger.info(
            "checkpoint %s no longer exists; resuming the run in %s by the config.json of the run",
            checkpoint,
            workdir,
        )
        return _resumed(saved, columns, table=table, workdir=workdir, task=task, options=options)
    trained = read_experiment(step, checkpointing.step_files(step))
    model = model_of(trained.model, where=checkpoint)
    is_encoder = encoders.is_encoder(model)
    place = os.fspath(step / "files" / checkpointing.VOCABULARY_DIRECTORY)
    vocabulary = load_vocabulary(place, extra_ids=trained.data.extra_ids)
    begun = Experiment(
        model=model,
        objective=Classify() if is_encoder else Seq2Seq(),
        data=Data(
            task=f"tasks.files:{'classify' if task == 'auto' else task}",
            directory=table,
            columns=columns,
            vocabulary=place,
            extra_ids=trained.data.extra_ids,
            layout=layouts.Labelled() if is_encoder else layouts.Seq2Seq(),
            batch_size=32,
            pack=False,
        ),
        optimizer=optimizer_for(model, _NO_END, adapted=_named("--adapters.add", options)),
        steps=1,
        workdir=workdir,
        init=Init(checkpoint=checkpoint),
        log_period=20,
    )
    asked = with_options(begun, options, prog="t5x-lite finetune")
    splits = asked.data.columns.splits(asked.data.directory)
    if "train" not in splits:
        raise InputError(_no_training_file(table))
    found = measure(asked.data.columns, splits, vocabulary, is_encoder=is_encoder)
    _tell_lengths(found)
    chosen = _chosen_task(asked, found, task, is_encoder=is_encoder)
    if chosen == "classify":
        _check_labels(asked.data.columns, found, sources=splits["train"])
    steps = asked.steps if _named("--steps", options) else _steps(found.rows, asked, epochs)
    known = {
        **_lengths(found, model),
        "task": f"tasks.files:{chosen}",
        "columns": dataclasses.replace(columns, labels=_labels(asked, found, chosen)),
    }
    period = max(1, math.ceil(steps / max(epochs, 2)))
    made = dataclasses.replace(
        begun,
        objective=_objective(trained, model, chosen, known["columns"]),
        init=_init(checkpoint, trained, chosen, known["columns"]),
        data=dataclasses.replace(begun.data, **known),
        optimizer=optimizer_for(model, steps, adapted=_named("--adapters.add", options)),
        steps=steps,
        checkpoints=Checkpoints(period=period, keep=1, best="validation/score"),
        evaluation=Evaluation(
            period=period, batch_size=64, max_decode_length=known["targets_length"]
        ),
    )
    experiment = with_options(made, options, prog="t5x-lite finetune")
    _logger.info(
        "%s: training for %d steps in batches of %d rows (%.1f epochs of %s rows)",
        experiment.data.task,
        experiment.steps,
        experiment.data.batch_size,
        experiment.steps * experiment.data.batch_size / max(found.rows, 1),
        f"{found.rows:,}",
    )
    return experiment


def _resumed(
    saved: Experiment,
    columns: Columns,
    *,
    table: str,
    workdir: str,
    task: Task,
    options: Sequence[str],
) -> Experiment:
    """Return the config to resume a run without its initial checkpoint, which was deleted."""
    own = saved.data
    named = dataclasses.replace(columns, labels=columns.labels or own.columns.labels)
    data = dataclasses.replace(
        own,
        directory=table,
        columns=named,
        task=own.task if task == "auto" else f"tasks.files:{task}",
    )
    made = dataclasses.replace(saved, data=data, workdir=workdir)
    return with_options(made, options, prog="t5x-lite finetune")


def measure(
    columns: Columns,
    splits: Mapping[str, Sequence[Table]],
    vocabulary: Vocabulary,
    *,
    is_encoder: bool,
) -> Measured:
    """Count the training rows and their distinct targets, and the tokens of the first rows."""
    rows = _training_rows(columns, splits)
    first = [*itertools.islice(rows, _MEASURED)]
    labels = {row["targets"] for row in first}
    number = len(first)
    for row in rows:
        number += 1
        if len(labels) <= MOST_LABELS:
            labels.add(row["targets"])
    if not number:
        raise InputError(f"found no training rows in {', '.join(map(str, splits['train']))}")

    def tokens(name: str) -> np.ndarray:
        texts = [row.get(name, "") for row in first]
        return np.array([len(ids) for ids in vocabulary.encode_batch(texts)], np.int64)

    inputs = tokens("inputs") + 1
    if is_encoder:  # [CLS] a [SEP] b [SEP]; RoBERTa has two separators in the middle
        inputs = inputs + 1 + (tokens("second") + 2 if columns.second else 0)
    few = len(labels) <= MOST_LABELS
    return Measured(
        rows=number,
        labels=tuple(labels) if few else (),
        lengths={"inputs": inputs, "targets": tokens("targets") + 1},
    )


def _training_rows(
    columns: Columns, splits: Mapping[str, Sequence[Table]]
) -> Iterator[dict[str, Any]]:
    plain = dataclasses.replace(columns, labels=())
    divided = bool(columns.hold_out) and splits.get("validation") == splits["train"]
    for row in plain.examples(splits["train"], "train"):
        if not divided or not columns.held_out(row):
            yield row


def _tell_lengths(found: Measured) -> None:
    for name, lengths in found.lengths.items():
        middle, most = (int(np.percentile(lengths, share)) for share in (50, 99))
        rows = "" if len(lengths) == found.rows else f" (the first {len(lengths):,} rows)"
        _logger.info(
            "tokens per text of %s: median %d, 99th percentile %d, maximum %d%s",
            name,
            middle,
            most,
            int(lengths.max()),
            rows,
        )


def _lengths(found: Measured, model: ModelConfig) -> dict[str, int]:
    """Return values for inputs_length and targets_length; log the fraction of truncated rows."""
    sizes = {}
    for name, share in (("inputs", 99), ("targets", 100)):
        lengths = found.lengths[name]
        wanted = math.ceil(float(np.percentile(lengths, share)))
        most = _LONGEST[name]
        if name == "inputs" and model.longest_document is not None:
            most = min(most, model.longest_document)
        sizes[f"{name}_length"] = size = min(max(8, 8 * math.ceil(wanted / 8)), most)
        cut = float(np.mean(lengths > size))
        _logger.info("data.%s_length %d truncates %.1f %% of the rows", name, size, 100 * cut)
    return sizes


def _chosen_task(asked: Experiment, found: Measured, task: Task, *, is_encoder: bool) -> str:
    """Return the task for fine-tuning, such as "classify", and log the reason."""
    if task != "auto":
        if is_encoder and task not in ("classify", "regress"):
            raise InputError(
                f"--task {task} generates text, but an encoder cannot generate text; set --task "
                "classify or --task regress"
            )
        return task
    if asked.data.columns.labels:
        return "classify"
    few = 0 < len(found.labels) <= min(_FEW_LABELS, max(2, found.rows // 4))
    if few:
        shown = ", ".join(sorted(found.labels)[:6]) + (", ..." if len(found.labels) > 6 else "")
        _logger.info(
            "found %d distinct targets; training with --task classify (%s)",
            len(found.labels),
            shown,
        )
        return "classify"
    if not is_encoder:
        _logger.info("found many distinct targets; training with --task text_to_text")
        return "text_to_text"
    if all(map(_is_number, found.labels)):
        _logger.info("found many distinct numbers; training with --task regress")
        return "regress"
    number = len(found.labels) or f"more than {MOST_LABELS}"
    raise InputError(
        f"the column {asked.data.columns.targets!r} (data.columns.targets) has {number} distinct "
        "texts, which are too many for the classes of an encoder; set --task classify to use "
        "them as classes anyway"
    )


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _labels(asked: Experiment, found: Measured, task: str) -> tuple[str, ...]:
    columns = asked.data.columns
    if task != "classify" or columns.labels:
        return columns.labels
    if not found.labels:
        raise InputError(
            f"the column {columns.targets!r} (data.columns.targets) has more than {MOST_LABELS} "
            "distinct texts, which are too many for classes; set --task text_to_text to train a "
            "model that generates texts"
        )
    return columns.sorted_labels(found.labels)


def _check_labels(columns: Columns, found: Measured, *, sources: Sequence[Table]) -> None:
    """Raise InputError for wrong labels in the training rows; warn about unused labels."""
    columns.check_labels(found.labels, sources)
    unused = [entry for entry in columns.entries() if found.labels and entry not in found.labels]
    if unused:
        _logger.warning("no training row has the label %s", ", ".join(map(repr, unused)))


def _no_training_file(table: str) -> str:
    """Return the error message for a table without a file of training rows."""
    if not is_remote(table) and not has_magic(table) and not os.path.exists(table):
        return f"--table {table}: no such file or directory"
    return (
        f"--table {table} has no file of training rows; name it train.csv (.tsv, .jsonl, .parquet, "
        ".arrow), or set --data.columns.train FILE"
    )


def _steps(rows: int, asked: Experiment, epochs: int) -> int:
    return max(1, math.ceil(epochs * rows / asked.data.batch_size))


def model_of(model: ModelConfig, *, where: str) -> ModelConfig:
    """Return the model config for fine-tuning, or raise InputError for an unsupported model."""
    tuned = model.to_finetune()
    if tuned is None:
        raise InputError(
            f"checkpoint {where} is a {type(model).__name__}, but only T5 models and encoders are "
            "supported; write a config for `t5x-lite train`"
        )
    return tuned


def optimizer_for(model: Any, steps: int, *, adapted: bool) -> Optimizer:
    """Return the default optimizer for fine-tuning; `adapted` is True if adapters are trained."""
    narrow, is_encoder = model.d_model < _NARROW, encoders.is_encoder(model)
    warmup = steps // 10 if steps < _NO_END else 0
    if adapted:
        peak = 5e-3 if narrow else 1e-3
        schedule = Linear(peak=peak, total_steps=steps, warmup_steps=warmup)
        return AdamW(schedule=schedule, weight_decay=0.0, clip_norm=1.0)
    if is_encoder:
        peak = 3e-4 if narrow else 3e-5
        schedule = Linear(peak=peak, total_steps=steps, warmup_steps=warmup)
        return AdamW(schedule=schedule, eps=1e-6, clip_norm=1.0)
    return Adafactor(schedule=Constant(value=5e-3 if narrow else 1e-3))


def _objective(trained: Experiment, model: Any, task: str, columns: Columns) -> Objective:
    if not encoders.is_encoder(model):
        return Seq2Seq()
    kind = encoder_checkpoints.classifier_kind(model, trained.heads)
    return Classify(num_classes=len(columns.labels) if task == "classify" else 1, head=kind)


def _init(checkpoint: str, trained: Experiment, task: str, columns: Columns) -> Init:
    heads: dict[str, Any] = {**by_name(trained.heads)}
    if "classifier" not in heads:
        return Init(checkpoint=checkpoint)
    words = columns.words() if task == "classify" else ()
    head = heads["classifier"]
    same = head.num_classes == max(len(words), 1) and head.labels in ((), words)
    return Init(checkpoint=checkpoint, fresh=() if same else ("heads/classifier",))


def _named(option: str, options: Sequence[str]) -> bool:
    return any(o.partition("=")[0].replace("_", "-") == option for o in options)
