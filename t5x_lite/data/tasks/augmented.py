"""Retrieved passages (`data.augment`) added to the inputs of a task's raw examples.

    source -> + passages, by id -> template, as many words of the passages as fit -> tokens -> ...

The run and its top-ranked passages are read into memory when a split is read. The template is
filled in before the task's first preprocessor, so a cache holds the passages.
"""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Augment
from t5x_lite.data.elements import as_numpy, deterministic, seqio, tf
from t5x_lite.data.formats.passages import read_passages
from t5x_lite.data.formats.rankings import read_run
from t5x_lite.data.preprocessors import fill
from t5x_lite.data.tasks import labelled, names, shuffling, stages
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens, separators, without_special
from t5x_lite.data.vocabularies.loading import Vocabulary

_logger = logging.getLogger(__name__)

PASSAGES = "augment_passages"
"""Field of a raw example with its retrieved passages."""
_SPLIT = "{split}"
_IDS = ("id", "idx")
_LOOKED_AT = 100


def augmented(
    task: seqio.Task, augment: Augment, *, vocabulary: Vocabulary, length: int, is_encoder: bool
) -> Any:
    """Return a seqio.Task with the retrieved passages of a run added to its inputs."""
    form = labelled.task_form(task)
    if form is not None and form.head == "span":
        raise InputError(
            f"data.augment: the task {task.name} finds its answers in its own context; "
            "unset data.augment.run"
        )
    room = _Room(vocabulary, length=length, is_encoder=is_encoder)
    made = task.replace(
        source=_Source(task, _Join(task, augment)),
        preprocessors=[partial(_compose, augment=augment, room=room), *task.preprocessors],
    )
    if names.is_marked(task):
        made = names.mark(made)
    return made if form is None else labelled.with_form(made, form)


class _Source(stages.Source):
    def __init__(self, task: seqio.Task, join: "_Join"):
        self._inner, self._join = task.source, join
        one_to_one = isinstance(self._inner, stages.Source) and self._inner.one_to_one
        # `get_dataset` is overridden below and calls the inner source.
        super().__init__(tuple(task.splits), task.source.get_dataset, one_to_one=one_to_one)

    def get_dataset(self, split: str = "train", *arguments: Any, **options: Any) -> tf.data.Dataset:
        return self._join.add(self._inner.get_dataset(split, *arguments, **options), split)

    def fits_in_memory(self, split: str) -> bool:
        return isinstance(self._inner, stages.Source) and self._inner.fits_in_memory(split)

    def passes(self, split: str, *, seed: int) -> shuffling.Passes | None:
        inner, join = self._inner, self._join
        found = inner.passes(split, seed=seed) if isinstance(inner, stages.Source) else None
        if found is None:
            return None
        join.load(split)  # now, as a pass is built while tf.data traces a function
        of_epoch = found.of_epoch
        return dataclasses.replace(found, of_epoch=lambda epoch: join.add(of_epoch(epoch), split))


class _Join:
    """Retrieved passages of the examples of a task, loaded split by split."""

    def __init__(self, task: Any, augment: Augment):
        self._task, self._augment = task, augment
        self._found: dict[str, dict[str, str]] = {}

    def load(self, split: str) -> dict[str, str]:
        """Return the retrieved passages of each example of a split, by the example's id."""
        if split not in self._found:
            self._found[split] = self._loaded(split)
        return self._found[split]

    def add(self, dataset: Any, split: str) -> Any:
        """Add the retrieved passages of each raw example as the field `PASSAGES`."""
        by_id, name = self.load(split), _id_field(dataset.element_spec, self._task.name)

        def joined(example: Mapping[str, Any]) -> dict[str, Any]:
            return {**example, PASSAGES: by_id.get(_as_id(example[name]), "").encode()}

        spec = {**dataset.element_spec, PASSAGES: tf.TensorSpec([], tf.string)}
        return stages.map_numpy(dataset, joined, spec)

    def _loaded(self, split: str) -> dict[str, str]:
        augment = self._augment
        run = augment.run.replace(_SPLIT, split)
        ids = dict.fromkeys(self._ids(split))
        if _SPLIT not in augment.run and len(self._task.splits) > 1:
            first = [*itertools.islice(ids, _LOOKED_AT)]
            if first and first == [*map(str, range(len(first)))]:
                raise InputError(
                    f"data.augment.run {augment.run}: the ids of {self._task.name} are the numbers "
                    "of rows, which are equal in all splits; write {split} into the path, or set "
                    "data.columns.id"
                )
        ranked = {
            ranking.query: [one.document for one in ranking.documents[: augment.k]]
            for ranking in read_run(run)
            if ranking.query in ids
        }
        absent = [one for one in ids if not ranked.get(one)]
        if absent and (augment.missing == "error" or len(absent) == len(ids)):
            raise InputError(
                f"{run}: {len(absent)} of the {len(ids)} examples of the split {split} have no "
                f"passages, such as the id {absent[0]!r}; rank passages for the ids of the "
                "examples, or set data.augment.missing keep"
            )
        if absent:
            _logger.warning(
                "%s: %d of the %d examples of the split %s have no passages and stay unchanged",
                *(run, len(absent), len(ids), split),
            )
        texts = self._texts({name for names in ranked.values() for name in names}, run)
        return {query: " ".join(texts[name] for name in names) for query, names in ranked.items()}

    def _ids(self, split: str) -> Iterator[str]:
        dataset = self._task.source.get_dataset(split, shuffle=False)
        name = _id_field(dataset.element_spec, self._task.name)
        batches = _only(dataset, [name]).batch(1024)
        for batch in as_numpy(deterministic(batches)):
            yield from map(_as_id, batch[name].tolist())

    def _texts(self, names: set[str], run: str) -> dict[str, str]:
        files = [file.strip() for file in self._augment.passages.split(",")]
        found = {
            passage.id: " ".join(
                fill(self._augment.passage, {"title": passage.title, "text": passage.text}).split()
            )
            for file in files
            for passage in read_passages(file)
            if passage.id in names
        }
        if lost := names - found.keys():
            raise InputError(
                f"{run}: {len(lost)} passages are not in {', '.join(files)}, such as "
                f"{min(lost)!r}; data.augment.passages must have the passages of the run"
            )
        return found


def _id_field(spec: Any, task: str) -> str:
    """Return the name of the field with the example's id in raw examples."""
    inputs = spec.get("inputs") if isinstance(spec, Mapping) else None
    if inputs is None or inputs.dtype != tf.string or inputs.shape.rank != 0:
        raise InputError(
            f"data.augment: the inputs of the task {task} are not a single text; unset "
            "data.augment.run"
        )
    for name in _IDS:
        if name in spec and spec[name].shape.rank == 0:
            return name
    raise InputError(
        f"data.augment: the examples of the task {task} have no id to look up in the run; use "
        "tasks.files with data.columns.id"
    )


def _only(dataset: Any, names: Sequence[str]) -> Any:
    @tf.autograph.experimental.do_not_convert
    def some(example: Mapping[str, Any]) -> dict[str, Any]:
        return {name: example[name] for name in names}

    return dataset.map(some)


def _as_id(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class _Room:
    """Helper that truncates passages so that a row fits its maximum length."""

    def __init__(self, vocabulary: Vocabulary, *, length: int, is_encoder: bool):
        self._vocabulary = vocabulary
        self._tokens = encoder_tokens(vocabulary) if is_encoder else None
        self._length = length - (2 if is_encoder else 1)
        self._between = separators(vocabulary) if is_encoder else 0

    def counts(self, texts: Sequence[str]) -> list[int]:
        encoded = self._vocabulary.encode_batch(list(texts))
        if self._tokens is None:
            return [len(ids) for ids in encoded]
        return [len(without_special(ids, self._tokens)) for ids in encoded]

    def beside(self, others: Sequence[str]) -> int:
        used = [count + self._between for count in self.counts(others)] if others else [0]
        return self._length - max(used)

    def fitted(self, write: Callable[[str], str], passages: str, *, room: int) -> str:
        """Return `write(passages)`, with passages truncated so that `room` tokens suffice."""
        whole = write(passages)
        if not passages or self.counts([whole])[0] <= room:
            return whole
        ends = [place for place, sign in enumerate(passages) if sign == " "]
        fits, breaks = 0, len(ends) + 1  # numbers of words: 0 fit, and all of them do not fit
        while breaks - fits > 1:
            middle = (fits + breaks) // 2
            enough = self.counts([write(passages[: ends[middle - 1]])])[0] <= room
            fits, breaks = (middle, breaks) if enough else (fits, middle)
        return write(passages[: ends[fits - 1]] if fits else "")


def _compose(dataset: Any, *, augment: Augment, room: _Room) -> Any:
    """Fill the template with inputs and passages, and drop the field `PASSAGES`."""
    spec = dict(dataset.element_spec)
    others = [name for name in ("second", "choices") if name in spec]

    def composed(example: Mapping[str, Any]) -> dict[str, Any]:
        inputs, passages = (example[name].decode() for name in ("inputs", PASSAGES))
        beside = [one for name in others for one in np.atleast_1d(example[name]).tolist()]
        left = room.beside([one.decode() for one in beside if one])

        def write(words: str) -> str:
            return fill(augment.template, {"inputs": inputs, "passages": words}).strip()

        return {**example, "inputs": room.fitted(write, passages, room=left).encode()}

    del spec[PASSAGES]
    return stages.map_numpy(dataset, composed, spec)
