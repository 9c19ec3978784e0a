"""Tasks and mixtures of seqio's registry, as written for t5x: "seqio:module:name".

    --data.task seqio:my_package.tasks:my_task

The import of the module, or of a module that it imports, adds the tasks to the registry
(`seqio.TaskRegistry.add`, `seqio.MixtureRegistry.add`). A task keeps its preprocessors, output
features, postprocess_fn and metric_fns. Differences from t5x:

- The model, inputs and targets share the vocabulary data.vocabulary. The vocabularies of the output
  features must be equal to it.
- data.shuffle_buffer replaces the task's shuffle_buffer_size.
- seqio's caches are not read. `t5x-lite cache` writes caches in another format.
- Metrics of scores and of auxiliary values, and metric_objs, are not computed; a warning lists
  their number.

A mixture is flattened to its tasks, with the rates of `seqio.Mixture.get_rate`. These include the
rates of nested mixtures and rates that are functions of the task. Its sample_fn is not used.
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
    """Error of a registered seqio task that has a vocabulary other than data.vocabulary."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegisteredMixture:
    """Mixture of tasks in seqio's registry.

    Attributes:
      rates: sampling rate of each task by its name, "seqio:module:name"; nested mixtures are
        flattened.
    """

    rates: Mapping[str, float]

    def __call__(self, arguments: TaskArguments) -> list[Any]:
        """Return the tasks of the mixture for the given arguments."""
        return [find_registered(name)(arguments) for name in self.rates]


def find_registered(name: str) -> Callable[[TaskArguments], Any]:
    """Return the task function of a registered task, or a `RegisteredMixture`.

    Args:
      name: "seqio:module:name". If a task and a mixture have the same name, the mixture is
        returned, as in seqio.

    Raises:
      InputError: if the name does not have this form, the module does not exist, or its import does
        not register the name. The message suggests the most similar name.
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
    tasks = sorted(mixture.tasks, key=lambda task: task.name)
    return RegisteredMixture(
        rates={f"{SEQIO}:{module}:{task.name}": _rate(mixture, task) for task in tasks}
    )


def _rate(mixture: Any, task: Any) -> float:
    try:
        return float(mixture.get_rate(task))
    except Exception as error:  # a rate function may raise anything
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"the seqio mixture {mixture.name} has no rate for its task {task.name} ({what})"
        ) from error


# Tasks.


def _task(task: Any, arguments: TaskArguments) -> Any:
    check_vocabularies(task, arguments.vocabulary)
    if task.requires_caching:
        raise InputError(
            f"seqio task {task.name} requires seqio's own cache, which is not supported; remove "
            "required=True from its CacheDatasetPlaceholder"
        )
    return _measurable(task)


def check_vocabularies(task: Any, vocabulary: Vocabulary) -> None:
    """Raise OtherVocabulary if a feature of the task has a vocabulary other than the model's.

    Features that hold only ids (`seqio.PassThroughVocabulary`) are not compared.

    Args:
      task: seqio.Task.
      vocabulary: vocabulary of the model.
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
                f"seqio task {task.name} has different vocabularies for {' and '.join(theirs)}, "
                "but a model must have one vocabulary"
            )
        own = f"{vocabulary.model_path} ({vocabulary.size} tokens, sentinels included)"
        raise OtherVocabulary(
            f"seqio task {task.name}: the vocabulary of its {name} is {_shown(other)}, but "
            f"data.vocabulary is {own}{_remedy(other)}"
        )


def _same(task: Any, one: Any, other: Any) -> bool:
    """Return whether two seqio vocabularies encode every text as the same ids."""
    from t5x_lite.data.elements import seqio, tf

    if isinstance(one, seqio.SentencePieceVocabulary) and type(one) is type(other):
        try:
            # The serialized model includes its sentinels, in order, and the normalizer's settings.
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
    """Return a hint with the options that select a seqio vocabulary, or "" without such options."""
    from t5x_lite.data.elements import seqio

    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        place = vocabulary.sentencepiece_model_file
    elif isinstance(vocabulary, seqio.ByteVocabulary):
        place = "bytes"
    else:
        return ""
    return f"; set --data.vocabulary {place} --data.extra-ids {vocabulary.extra_ids}"


# Metrics.


def _measurable(task: Any) -> Any:
    """Return a seqio.Task with its postprocess_fn and metrics adapted to this package.

    Custom subclasses of seqio.Task are returned unchanged.
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
        "seqio task %s: skipping %d of its metrics, which are metric_objs or need scores or "
        "auxiliary values",
        *(name, number),
    )


def _of_bytes(postprocess: Callable[..., Any]) -> Callable[..., Any]:
    """Return a postprocess_fn that gets the texts of the example as bytes, as in seqio."""

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
    """Return a metric function that returns only the plain numbers of `metric`."""

    def measured(targets: Any, predictions: Any) -> dict[str, Any]:
        from t5x_lite.data.elements import seqio

        values = {
            name: value.value if isinstance(value, seqio.metrics.Scalar) else value
            for name, value in metric(targets, predictions).items()
        }
        return {k: v for k, v in values.items() if not isinstance(v, seqio.metrics.MetricValue)}

    return measured
