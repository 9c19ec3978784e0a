"""Lookup of tasks by name: task functions, seqio's registry, and vocabularies for seqio.

Conversion of vocabularies to seqio.Vocabulary, for the preprocessors of tasks.

The classes are created on first use, because seqio takes seconds to import.

Lookup of task functions by name, and the prefix and template of a task's inputs.

`find_task` returns the function of a task's name, "module:function", without TensorFlow. A name
"seqio:module:name" is looked up in seqio's registry (seqio_registry.py). A task function takes one
TaskArguments. Functions with another signature are rejected before they are called.

`Wording` is the text around a record's columns, a hyperparameter (Raffel et al. 2020, section 2.4):

    mnli = Wording(prefix="mnli", template="hypothesis: {hypothesis} premise: {premise}")
    mnli.changed(arguments)     # with --data.template "{premise} So {hypothesis}?"
    # Wording(prefix="mnli", template="{premise} So {hypothesis}?", ...)

`mark` marks tasks that support data.template and data.prefix. For any other task, including custom
tasks, `loading.load_task` rejects these options.

Tasks and mixtures of seqio's registry, as written for t5x: "seqio:module:name".

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

import atexit
import dataclasses
import functools
import inspect
import logging
import pkgutil
import sys
import tempfile
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from t5x_lite.core import project, renames
from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import BucketPath
from t5x_lite.core.options import did_you_mean
from t5x_lite.core.signals import quiet_import
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.preprocessors import fill, places
from t5x_lite.data.vocabularies.byte_level import FIRST_BYTE, NUM_PLAIN, Bytes
from t5x_lite.data.vocabularies.loading import SentencePiece, Vocabulary
from t5x_lite.data.vocabularies.tokenizer import Tokenizer

_logger = logging.getLogger(__name__)


def seqio_vocabulary(vocabulary: Vocabulary) -> Any:
    """Convert a vocabulary to a seqio.Vocabulary with the same ids.

    The EOS of a `Tokenizer` is [SEP].
    """
    if not isinstance(vocabulary, Tokenizer) and not vocabulary.reads_as_seqio:
        return _tokenizer_class()(vocabulary)
    if isinstance(vocabulary, SentencePiece):
        from t5x_lite.data.elements import seqio

        path = vocabulary.model_path
        if isinstance(path, BucketPath):
            path = _copy(vocabulary.model_bytes)
        return seqio.SentencePieceVocabulary(str(path), extra_ids=vocabulary.extra_ids)
    if isinstance(vocabulary, Bytes):
        return _bytes_class()(extra_ids=vocabulary.size - NUM_PLAIN)
    return _tokenizer_class()(vocabulary)


@functools.cache
def _copy(model: bytes) -> Path:
    directory = tempfile.TemporaryDirectory(prefix="t5x_lite_")
    atexit.register(directory.cleanup)
    path = Path(directory.name, "sentencepiece.model")
    path.write_bytes(model)
    return path


@functools.cache
def _bytes_class() -> Any:
    from t5x_lite.data.elements import seqio, tf

    class ByteVocabulary(seqio.ByteVocabulary):
        """Byte vocabulary for seqio that encodes several texts as a ragged tensor."""

        def _encode_tf(self, s: Any) -> Any:
            if s.shape.rank == 0:
                return super()._encode_tf(s)
            split = tf.strings.bytes_split(s)
            values = tf.io.decode_raw(split.flat_values, tf.uint8)[:, 0]
            return split.with_flat_values(tf.cast(values, tf.int32) + FIRST_BYTE)

    return ByteVocabulary


@functools.cache
def _tokenizer_class() -> Any:
    from t5x_lite.data.elements import seqio, tf

    class Tokenized(seqio.Vocabulary):
        """Vocabulary for seqio that encodes text in Python."""

        def __init__(self, tokenizer: Any):
            super().__init__()
            self.tokenizer = tokenizer

        @property
        def pad_id(self) -> int:
            return self.tokenizer.pad_id

        @property
        def eos_id(self) -> int:
            return self.tokenizer.eos_id

        @property
        def unk_id(self) -> int:
            return self.tokenizer.unk_id

        @property
        def _base_vocab_size(self) -> int:
            return self.tokenizer.size

        def _encode(self, s: str) -> list[int]:
            return self.tokenizer.encode(s)

        def _decode(self, ids: Iterable[int]) -> str:
            return self.tokenizer.decode(ids)

        def _encode_tf(self, s: Any) -> Any:
            def encode(texts):
                found = self.tokenizer.encode_batch([text.decode() for text in texts])
                sizes = np.array([len(ids) for ids in found], np.int64)
                return np.array([i for ids in found for i in ids], np.int32), sizes

            texts = tf.reshape(s, [-1])
            ids, sizes = tf.numpy_function(encode, [texts], [tf.int32, tf.int64], stateful=False)
            ids, sizes = tf.ensure_shape(ids, [None]), tf.ensure_shape(sizes, [None])
            if s.shape.rank == 0:
                return ids
            ragged: Any = tf.RaggedTensor
            return ragged.from_row_lengths(ids, sizes, validate=False)

        def _decode_tf(self, ids: Any) -> Any:
            raise NotImplementedError(
                "decoding in TensorFlow is not supported; texts are decoded in Python"
            )

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Tokenized) and other.tokenizer.digest == self.tokenizer.digest

        def __hash__(self) -> int:
            return hash(self.tokenizer.digest)

    return Tokenized


SEQIO = "seqio"
"""Prefix of the names of tasks in seqio's registry."""


def parts_of(name: str) -> tuple[str, str]:
    """Split a task name, "module:function" or "seqio:module:name", into module and name."""
    module, _, rest = name.partition(":")
    if module == SEQIO:
        module, _, rest = rest.partition(":")
    return module, rest


def find_task(name: str) -> Callable[..., Any]:
    """Import the module of a task "module:function", and return the task function.

    For "seqio:module:name" the returned function returns the registered task.

    Raises:
      InputError: if the name does not have this form, if module or function do not exist, or if the
        function does not take one TaskArguments. The message suggests the most similar task.
    """
    if name.startswith(f"{SEQIO}:"):
        return find_registered(name)
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise InputError(
            f"data.task must be module:function, such as tasks.glue:sst2, got {name!r}"
        )
    module = import_tasks(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InputError(
            f"data.task: module {module_name} has no task {function_name!r}{other_tasks(name)}"
        )
    if inspect.isclass(function):
        raise InputError(f"data.task: {name} is a class, but must be a function{other_tasks(name)}")
    if not _takes_task_arguments(function):
        raise InputError(
            f"data.task: the function {name} must take one TaskArguments, but takes "
            f"{_parameters(function)}{other_tasks(name)}"
        )
    return function


def task_names(module: ModuleType) -> list[str]:
    """Return the names of the public functions that a module defines and that may be tasks.

    functools.partial objects of these functions are included.
    """
    return [
        name
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and not inspect.isclass(value)
        and _home(value) == module.__name__
        and _takes_task_arguments(value)
    ]


def other_tasks(name: str) -> str:
    """Return a hint for a wrong task name: the most similar task, or all tasks of the module."""
    if name.startswith(f"{SEQIO}:"):
        return ""
    module_name, _, function_name = name.partition(":")
    names = [one for one in task_names(sys.modules[module_name]) if one != function_name]
    listed = f"; {module_name} has {', '.join(names)}" if names else ""
    return did_you_mean(function_name, names) or listed


def _takes_task_arguments(function: Callable[..., Any]) -> bool:
    try:
        bound = inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # a C function without a signature
        return True
    (parameter,) = bound.arguments
    try:
        hint = typing.get_type_hints(getattr(function, "func", function)).get(parameter)
        return not isinstance(hint, type) or issubclass(TaskArguments, hint)
    except (NameError, TypeError):  # an annotation that cannot be evaluated
        return True


def _parameters(function: Callable[..., Any]) -> str:
    return str(inspect.signature(function).replace(return_annotation=inspect.Signature.empty))


def _home(value: Any) -> str | None:
    """Return the module of a function, or of the function inside a functools.partial."""
    return getattr(getattr(value, "func", value), "__module__", None)


def import_tasks(name: str) -> ModuleType:
    """Import the module that data.task names."""
    try:
        with quiet_import():
            return project.import_module(name)
    except ImportError as error:
        if renamed := renames.hint(error):
            raise InputError(f"data.task: {name} cannot be imported: {error}{renamed}") from error
        # Report only the absence of the named module; a failing import inside it is reraised.
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent is None or not f"{name}.".startswith(f"{absent}."):
            raise
        hint = did_you_mean(name, _module_names(absent.rpartition(".")[0]))
        raise InputError(
            f"data.task: module {name!r} does not exist{hint} (searched: the current directory, "
            "the config's project and the installed packages)"
        ) from error


def _module_names(parent: str) -> list[str]:
    if not parent:
        return project.module_names()
    path = getattr(sys.modules[parent], "__path__", [])
    return [f"{parent}.{module.name}" for module in pkgutil.iter_modules(path)]


_MARK = "t5x_lite_is_worded"


@dataclass(frozen=True, kw_only=True)
class Wording:
    """Prompt of a task: a prefix and a template with the names of columns.

    Attributes:
      prefix: text before the template, separated by a space; "" for no prefix.
      template: text after the prefix, with column names in braces.
      columns: columns that a custom template may name; () for the columns in `template`, None for
        any columns.
    """

    prefix: str
    template: str
    columns: tuple[str, ...] | None = ()

    @property
    def inputs(self) -> str:
        """Template of the complete inputs: the prefix, a space and `template`."""
        if not self.prefix:
            return self.template
        literal = self.prefix.replace("{", "{{").replace("}", "}}")
        return f"{literal} {self.template}"

    def changed(self, arguments: TaskArguments) -> "Wording":
        """Return the prompt after replacing its template and prefix by custom values, if set."""
        known = places(self.template) if self.columns == () else self.columns
        prefix = self.prefix if arguments.prefix is None else arguments.prefix
        template = arguments.template or self.template
        named = places(template)
        fill(template, dict.fromkeys(named, ""))  # raises InputError for a single brace
        listed = "" if known is None else f"; the task's columns are {', '.join(known)}"
        if arguments.template and not named:
            raise InputError(f"data.template {template!r} names no column in braces{listed}")
        unknown = [name for name in named if known is not None and name not in known]
        if unknown:
            raise InputError(f"data.template {template!r} names {unknown[0]!r}{listed}")
        return dataclasses.replace(self, prefix=prefix, template=template, columns=known)


def mark(task: Any) -> Any:
    """Mark a seqio.Task as supporting custom templates and prefixes."""
    setattr(task, _MARK, True)
    return task


def is_marked(task: Any) -> bool:
    """Return True if a task supports custom templates and prefixes."""
    return getattr(task, _MARK, False)


_LISTED = 20


class OtherVocabulary(InputError):
    """Error raised if a seqio task uses another vocabulary than the model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegisteredMixture:
    """Mixture of tasks in seqio's registry.

    Attributes:
      rates: sampling rate of each task by its name, "seqio:module:name"; nested mixtures are
        flattened.
    """

    rates: Mapping[str, float]

    def __call__(self, arguments: TaskArguments) -> list[Any]:
        return [find_registered(name)(arguments) for name in self.rates]


def find_registered(name: str) -> Callable[[TaskArguments], Any]:
    """Return a function that builds a task or a mixture from seqio's registry.

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
    raise InputError(
        f"data.task: module {module} registers no task {registered!r} in seqio's registry{hint}"
    )


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
    """Raise OtherVocabulary if the task and the model have different vocabularies.

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
            f"seqio task {task.name}: the vocabulary of its feature {name} is {_shown(other)}, but "
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
    def measured(targets: Any, predictions: Any) -> dict[str, Any]:
        from t5x_lite.data.elements import seqio

        values = {
            name: value.value if isinstance(value, seqio.metrics.Scalar) else value
            for name, value in metric(targets, predictions).items()
        }
        return {k: v for k, v in values.items() if not isinstance(v, seqio.metrics.MetricValue)}

    return measured
