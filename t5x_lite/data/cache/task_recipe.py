"""What a seqio task does after its CacheDatasetPlaceholder, as the recipe that a cache holds.

It runs where the cache is read and seqio may be missing, so it may be made of these only:

    stages.count_epochs, stages.corrupt with a function of corruption/recipes.py,
    seqio.preprocessors.append_eos or append_eos_after_trim, stages.append_ending
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from t5x_lite.data.cache.recipe import Recipe
from t5x_lite.data.config import Data, lengths_of, trimmed_lengths
from t5x_lite.data.corruption.recipes import CORRUPTIONS
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.loading import Vocabulary


def recipe_of(data: Data, vocabulary: Vocabulary, task: Any, *, bake: bool) -> Recipe:
    """What a cache of a task holds, and what is done when it is read.

    Args:
      data: the data config.
      vocabulary: of inputs and targets.
      task: a seqio.Task.
      bake: whether whole examples are held.

    Raises:
      InputError: the task has no placeholder, or does after it what cannot be done without seqio.
    """
    from t5x_lite.data.quiet_tensorflow import seqio

    known = {**trimmed_lengths(data), **lengths_of(data)}
    features = task.output_features
    floats = tuple(name for name in features if features[name].dtype.is_floating)
    lengths = {name: length for name, length in known.items() if name in features}
    outputs = {name: bool(features[name].add_eos) for name in (*lengths, *floats)}
    if bake:
        return Recipe(
            stored=tuple(outputs),
            outputs=dict.fromkeys(outputs, False),
            eos="none",
            eos_id=vocabulary.eos_id,
            lengths=lengths,
            floats=floats,
            fixed=data.layout.fixed(),
        )
    steps = list(task.preprocessors)
    places = [i for i, step in enumerate(steps) if isinstance(step, seqio.CacheDatasetPlaceholder)]
    if not places:
        raise InputError(
            f"data.task {data.task!r} does not say what a cache of it holds: put a "
            "seqio.CacheDatasetPlaceholder() after its tokenization, or give --bake"
        )
    eos, corruption, options, ending = _after(steps[places[0] + 1 :], data.task)
    whole = not corruption and all(_is_free_of_lengths(step) for step in steps[: places[0]])
    return Recipe(
        stored=("tokens",) if corruption else tuple(outputs),
        outputs=outputs,
        eos=eos,
        eos_id=vocabulary.eos_id,
        corruption=corruption,
        options=options,
        lengths=None if whole else lengths,
        floats=floats,
        fixed=data.layout.fixed(),
        ending=ending,
    )


def _after(
    steps: Sequence[Callable[..., Any]], task: str
) -> tuple[Any, str, Mapping[str, int | float | list[int]], tuple[int, ...]]:
    """EOS, corruption, its options and words at the end, from what is behind the placeholder."""
    from t5x_lite.data.quiet_tensorflow import seqio
    from t5x_lite.data.tasks import stages

    eos, corruption, options, ending = "none", "", {}, ()
    for step in steps:
        if step is seqio.preprocessors.append_eos_after_trim:
            eos = "after_trim"
        elif step is seqio.preprocessors.append_eos:
            eos = "before_trim"
        elif isinstance(step, partial) and step.func is stages.corrupt and eos == "none":
            function = step.keywords["function"]
            bound = isinstance(function, partial)
            corruption = _name(function)
            options = dict(function.keywords) if bound else {}
            if CORRUPTIONS.get(corruption) is not (function.func if bound else function):
                raise _unknown(f"the corruption {corruption}", task)
        elif isinstance(step, partial) and step.func is stages.append_ending:
            ending = tuple(step.keywords["ending"])
        elif step is not stages.count_epochs and _name(step) != stages.keyed.__name__:
            raise _unknown(_name(step), task)
    return eos, corruption, options, ending


def _unknown(what: str, task: str) -> InputError:
    return InputError(
        f"data.task {task!r} does {what} after its CacheDatasetPlaceholder, which cannot be done "
        "where a cache is read: put it before the placeholder, or give --bake"
    )


def _name(step: Callable[..., Any]) -> str:
    function = step.func if isinstance(step, partial) else step
    return getattr(function, "__name__", type(function).__name__)


def _is_free_of_lengths(step: Callable[..., Any]) -> bool:
    """Whether a preprocessor is known not to look at the lengths of rows."""
    from t5x_lite.data.quiet_tensorflow import seqio

    function = step.func if isinstance(step, partial) else step
    return function in (seqio.preprocessors.tokenize, seqio.preprocessors.rekey)
