"""A module in t5x's style, for tests: tasks and mixtures in seqio's registry.

`written(directory, vocabulary)` makes directory/my_seqio/tasks.py, which a config names.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from t5x_lite.core import project

MODULE = '''
"""Counting words, as a program for t5x has it."""

import functools
import os

import seqio
import tensorflow as tf

DATA = os.path.dirname(__file__)
VOCABULARY = seqio.SentencePieceVocabulary({vocabulary!r}, extra_ids=100)
FEATURES = {{
    "inputs": seqio.Feature(vocabulary=VOCABULARY, add_eos=True),
    "targets": seqio.Feature(vocabulary=VOCABULARY, add_eos=True),
}}


@seqio.map_over_dataset
def parse(line, prefix):
    text, label = tf.unstack(tf.strings.split(line, "\\t"), num=2)
    return {{"inputs": tf.strings.join([prefix, text], " "), "targets": label, "line": line}}


@seqio.map_over_dataset(num_seeds=1)
def maybe_lower(example, seed):
    lower = tf.random.stateless_uniform([], seed) < 0.5
    text = tf.where(lower, tf.strings.lower(example["inputs"]), example["inputs"])
    return {{**example, "inputs": text}}


def label_of(text, example=None, is_target=False):
    if is_target:
        assert isinstance(example["line"], bytes) and example["line"].endswith(text.encode())
    return text.strip()


def accuracy(targets, predictions):
    right = sum(a == b for a, b in zip(targets, predictions, strict=True))
    return {{"accuracy": seqio.metrics.Scalar(right / len(targets)),
            "examples": float(len(targets)),
            "shown": seqio.metrics.Text("text")}}


def likelihood(targets, scores):
    return {{"mean_score": sum(scores) / len(scores)}}


def source(name):
    return seqio.TextLineDataSource(
        {{
            "train": os.path.join(DATA, f"{{name}}_train.tsv"),
            "validation": os.path.join(DATA, f"{{name}}_validation.tsv"),
        }}
    )


for name in ("length", "first"):
    seqio.TaskRegistry.add(
        f"count_{{name}}",
        source=source(name),
        preprocessors=[
            functools.partial(parse, prefix=name),
            seqio.preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
            seqio.preprocessors.append_eos_after_trim,
        ],
        postprocess_fn=label_of,
        metric_fns=[accuracy, likelihood],
        output_features=FEATURES,
    )

seqio.TaskRegistry.add(
    "count_random",
    source=source("length"),
    preprocessors=[
        functools.partial(parse, prefix="Random"),
        maybe_lower,
        seqio.preprocessors.tokenize,
        seqio.preprocessors.append_eos_after_trim,
    ],
    metric_fns=[accuracy],
    output_features=FEATURES,
)


def by_name(task):
    return float(len(task.name))


seqio.MixtureRegistry.add("count_both", [("count_length", 3), ("count_first", by_name)])
seqio.MixtureRegistry.add("count_all", [("count_both", 6.0), "count_random"], default_rate=2.0)
seqio.MixtureRegistry.add("count_broken", [("count_first", lambda task: task.nothing)])
'''


@contextlib.contextmanager
def written(directory: Path, vocabulary: str) -> Iterator[str]:
    """Writes the module and its files, and lets configs name it; what it registers goes again.

    Yields:
      The module's name.
    """
    package = directory / "my_seqio"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "tasks.py").write_text(MODULE.format(vocabulary=vocabulary))
    words = ["one", "two", "three", "four", "five", "Six", "SEVEN"]
    for name in ("length", "first"):
        for split, count in (("train", 60), ("validation", 7)):
            lines = []
            for number in range(count):
                chosen = [words[(number * k + k) % 7] for k in range(1, 2 + number % 4)]
                label = str(len(chosen)) if name == "length" else chosen[0]
                lines.append(f"{' '.join(chosen)} {number}\t{label}\n")
            (package / f"{name}_{split}.tsv").write_text("".join(lines))
    before = project.opened()
    project.open_at(directory)
    try:
        yield "my_seqio.tasks"
    finally:
        project.open_again(before)
        for module in [name for name in sys.modules if name.startswith("my_seqio")]:
            del sys.modules[module]
        from t5x_lite.data.elements import seqio

        for registry in (seqio.TaskRegistry, seqio.MixtureRegistry):
            for name in [name for name in registry.names() if name.startswith("count_")]:
                registry.remove(name)
