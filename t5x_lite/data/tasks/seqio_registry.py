"""Tasks and mixtures of seqio's registry, as programs for t5x have them: "seqio:module:name".

    --data.task seqio:my_package.tasks:my_task

The module is imported, and adds its tasks to the registry as it is (`seqio.TaskRegistry.add`,
`seqio.MixtureRegistry.add`); it may do so in modules that it imports. A task comes with its own
preprocessors, output features, postprocess_fn and metric_fns. What is different from t5x:

- One vocabulary serves model, inputs and targets: that of data.vocabulary, with which those of the
  output features are compared.
- data.shuffle_buffer takes the place of the task's shuffle_buffer_size.
- seqio's own caches are not read: `t5x-lite cache` writes others.
- Metrics of scores and of auxiliary values, and metric_objs, are not measured; a line says so.

A mixture is flattened to its tasks, with the rates that `seqio.Mixture.get_rate` says of them:
nested ones and functions of the task included. Its sample_fn is not used.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import did_you_mean
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.seqio_vocabularies import seqio_vocabulary
from t5x_lite.data.tasks.names import SEQIO, import_tasks, parts_of
from t5x_lite.data.vocabularies.loading import Vocabulary

_logger = logging.getLogger(__name__)

_LISTED = 20


class OtherVocabulary(InputError):
    """A task of the registry has another vocabulary than data.vocabulary."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegisteredMixture:
    """The tasks of a mixture of the registry.

    Attributes:
      rates: of each task by its name, "seqio:module:name"; nested mixtures are flattened.
    """

    rates: Mapping[str, float]

    def __call__(self, arguments: TaskArguments) -> list[Any]:
        """Its tasks, as its name is in the place of a task function's."""
        return [find_registered(name)(arguments) for name in self.rates]


def find_registered(name: str) -> Callable[[TaskArguments], Any]:
    """The task function of a registered task, or a `RegisteredMixture`.

    Args:
      name: "seqio:module:name"; of a task and a mixture of one name the mixture is meant, as in
        seqio.

    Raises:
      InputError: the name has another form, there is no such module, or its import does not
        register the name; the message offers the nearest one.
    """
    module, registered = parts_of(name)
    if not module or not registered:
        raise InputError(
            "data.task must be seqio:module:name, where importing module adds name to seqio's "
            f"registry, as seqio:my_package.tasks:my_task; got {name!r}"
        )
    import_tasks(module)
    from t5x_lite.data.elements import seqio

    if registered in seqio.MixtureRegistry.names():
        return _mixture(seqio.MixtureRegistry.get(registered), module)
    if registered in seqio.TaskRegistry.names():
        return partial(_task, seqio.TaskRegistry.get(registered))
    known = sorted({*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()})
    listed = f"; it has {', '.join(known[:_LISTED])}" if known else ", which is empty"
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    hint = did_you_mean(registered, known) or listed + more
    raise InputError(f"data.task: {module} registers no {registered!r} in seqio's registry{hint}")


# Mixtures.


@functools.cache
def _mixture(mixture: Any, module: str) -> RegisteredMixture:
    """A seqio.Mixture; its functions of the task are called once."""
    tasks = sorted(mixture.tasks, key=lambda task: task.name)
    return RegisteredMixture(
        rates={f"{SEQIO}:{module}:{task.name}": _rate(mixture, task) for task in tasks}
    )


def _rate(mixture: Any, task: Any) -> float:
    try:
        return float(mixture.get_rate(task))
    except Exception as error:  # a function of the user's
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"the seqio mixture {mixture.name} has no rate for its task {task.name} ({what})"
        ) from error


# Tasks.


def _task(task: Any, arguments: TaskArguments) -> Any:
    """A registered task for these arguments."""
    check_vocabularies(task, arguments.vocabulary)
    if task.requires_caching:
        raise InputError(
            f"seqio task {task.name} is read from seqio's own cache alone, which is not read here: "
            "let its CacheDatasetPlaceholder be without required=True"
        )
    return _measurable(task)


def check_vocabularies(task: Any, vocabulary: Vocabulary) -> None:
    """Refuses a task whose features have another vocabulary; one of ids alone may have any.

    Args:
      task: a seqio.Task.
      vocabulary: of the model.

    Raises:
      OtherVocabulary: naming both, and the options that take that of the task.
    """
    from t5x_lite.data.elements import seqio

    theirs = {
        name: feature.vocabulary
        for name, feature in task.output_features.items()
        if not isinstance(feature.vocabulary, seqio.PassThroughVocabulary)
    }
    ours = seqio_vocabulary(vocabulary)
    for name, other in theirs.items():
        if _same(task, other, ours):
            continue
        if any(not _same(task, one, other) for one in theirs.values()):
            raise OtherVocabulary(
                f"seqio task {task.name} has different vocabularies for {' and '.join(theirs)}: a "
                "model has one here"
            )
        own = f"{vocabulary.model_path} ({vocabulary.size} tokens, sentinels included)"
        raise OtherVocabulary(
            f"seqio task {task.name}: the vocabulary of its {name} is {_shown(other)}, and "
            f"data.vocabulary is {own}{_remedy(other)}"
        )


def _same(task: Any, one: Any, other: Any) -> bool:
    """Whether two vocabularies of seqio give every text the same ids."""
    from t5x_lite.data.elements import seqio, tf

    if isinstance(one, seqio.SentencePieceVocabulary) and type(one) is type(other):
        try:
            # The model with its sentinels, in their order, and with the normaliser's settings.
            return one.sp_model == other.sp_model
        except (OSError, RuntimeError, tf.errors.OpError) as error:
            what = " ".join(str(error).split())
            raise InputError(
                f"seqio task {task.name}: its vocabulary cannot be read ({what})"
            ) from error
    return bool(one == other)


def _shown(vocabulary: Any) -> str:
    from t5x_lite.data.elements import seqio

    sizes = f"({vocabulary.vocab_size} tokens, sentinels included)"
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        return f"{vocabulary.sentencepiece_model_file} {sizes}"
    return f"a {type(vocabulary).__name__} {sizes}"


def _remedy(vocabulary: Any) -> str:
    """The options that take a vocabulary of seqio, where there are such."""
    from t5x_lite.data.elements import seqio

    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        place = vocabulary.sentencepiece_model_file
    elif isinstance(vocabulary, seqio.ByteVocabulary):
        place = "bytes"
    else:
        return ""
    return f": give --data.vocabulary {place} --data.extra-ids {vocabulary.extra_ids}"


# What is measured.


def _measurable(task: Any) -> Any:
    """The task with a postprocess_fn and metrics that take and give what ours do.

    A class of the user's own stays as it is.
    """
    from t5x_lite.data.elements import seqio

    if type(task) is not seqio.Task:
        return task
    metrics = task.predict_metric_fns
    if others := len(task.metric_objs) - len(metrics):
        _tell_of_others(task.name, others)
    postprocess = task.postprocessor
    return task.replace(
        postprocess_fn=None if postprocess is None else _of_bytes(postprocess),
        metric_fns=[_plain(metric) for metric in metrics],
        metric_objs=[],
    )


@functools.cache
def _tell_of_others(name: str, number: int) -> None:
    _logger.warning(
        "seqio task %s: %d of its metrics are not measured, since they are metric_objs or ask for "
        "scores or auxiliary values",
        *(name, number),
    )


def _of_bytes(postprocess: Callable[..., Any]) -> Callable[..., Any]:
    """The function with texts of the example as bytes, as seqio hands them over."""

    @functools.wraps(postprocess, assigned=())
    def wrapped(output: Any, *, example: Any = None, **options: Any) -> Any:
        if isinstance(example, Mapping):
            example = {k: v.encode() if isinstance(v, str) else v for k, v in example.items()}
        return postprocess(output, example=example, **options)

    labels = getattr(postprocess, "labels", None)
    if labels is not None:
        wrapped.labels = labels  # type: ignore[attr-defined]
    return wrapped


def _plain(metric: Callable[..., Mapping[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The function with numbers in place of seqio's Scalar; texts and pictures are left out."""

    def measured(targets: Any, predictions: Any) -> dict[str, Any]:
        from t5x_lite.data.elements import seqio

        values = {
            name: value.value if isinstance(value, seqio.metrics.Scalar) else value
            for name, value in metric(targets, predictions).items()
        }
        return {k: v for k, v in values.items() if not isinstance(v, seqio.metrics.MetricValue)}

    return measured
