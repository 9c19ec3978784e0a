"""Sentences with a tag for each word, as a seqio task: what the head "token" on an encoder answers.

    {"inputs": [CLS] pieces of the words [SEP], "token_labels": the class + 1 at first pieces, or 0}

data.layout is Tokens(). Each word is encoded by itself, as a word that a space comes before, and
its first piece has its label (Devlin et al. 2019, section 5.3; transformers' run_ner.py). A word
that the vocabulary drops, such as a stray accent, is unknown, so that each has a piece.

Tags are read as IOB2: an I that begins an entity, as all do in the files of CoNLL-2003 (IOB1), is a
B. Such files and those in IOB2 give the same labels, and conlleval counts the same entities.

A sentence that is too long is cut. Words behind the cut teach nothing, and in an evaluation they
are answered "O": they count, as misses where they are of an entity. A head says the tag of each
token of a row, and `WordTags` gives those of the words.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from t5x_lite.buckets.paths import DataPath
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.postprocess import UNKNOWN
from t5x_lite.data.tasks.encoder import check_lengths
from t5x_lite.data.tasks.labelled import with_form
from t5x_lite.errors import InputError
from t5x_lite.metrics.entities import entity_f1, tag_accuracy
from t5x_lite.records.tagged_files import Sentence
from t5x_lite.vocabulary.encoder_tokens import EncoderTokens, encoder_tokens, without_special
from t5x_lite.vocabulary.loading import Vocabulary

OUTSIDE = "O"
"""The tag of a word that is of no entity."""
_BETWEEN = "\n"
"""Stands between the words of a sentence in one text."""
_AT_A_TIME = 64
_ENTITY = ("B-", "I-", "E-", "S-")

Read = Callable[[DataPath, str], Iterable[Sentence]]
"""(file, split) -> its sentences."""


@dataclass(frozen=True)
class Tagged:
    """The form of such a task; see `labelled.Form`.

    Attributes:
      head: the name of the head that answers.
      nulls: False.
      candidates: "".
    """

    head: str = "token"
    nulls: bool = False
    candidates: str = ""


@dataclass(frozen=True)
class WordTags:
    """From the tags of a row's tokens to those of a sentence's words, with spaces between them.

    Attributes:
      labels: all tags, in the order of the classes.
    """

    labels: tuple[str, ...]

    def __call__(
        self, text: str, example: Mapping[str, Any] | None = None, is_target: bool = False
    ) -> str:
        """What the metrics compare; a text that has not a tag for each token is given back."""
        assert example is not None
        tags = text.split()
        if is_target or len(tags) != len(example["inputs"]):
            return text
        seen = [tags[place] for place in example["starts"]]
        return " ".join(seen + [OUTSIDE] * (len(words_of(example)) - len(seen)))

    def is_answer(self, text: str) -> bool:
        """Whether a text is made of tags."""
        return set(text.split()) <= {*self.labels}


def words_of(example: Mapping[str, Any]) -> list[str]:
    """The words of an example of such a task."""
    return example["words"].split(_BETWEEN)


def token_task(
    name: str, arguments: TaskArguments, *, files: Mapping[str, DataPath], read: Read
) -> Any:
    """A seqio.Task of sentences with tags.

    The tags are data.columns.labels, or else those of the training file in sorted order. The metric
    is F1 of entities, or, of tags that are of no entities, accuracy.

    Args:
      name: the task's, for messages of seqio.
      arguments: of the task.
      files: of each split that is there.
      read: their sentences; those of the split "test" may lack tags.

    Raises:
      InputError: the tags are not known, the rows are too short, or the vocabulary has no [CLS].
    """
    from t5x_lite.data.quiet_tensorflow import seqio, tf
    from t5x_lite.data.seqio_vocabularies import seqio_vocabulary
    from t5x_lite.data.tasks import stages
    from t5x_lite.data.tasks.benchmarks import in_memory

    check_lengths(arguments, ("inputs_length",))
    vocabulary, length = arguments.vocabulary, arguments.inputs_length
    entries, words = arguments.columns.entries(), arguments.columns.words()
    names = dict(zip(entries, words, strict=True))
    labels = tuple(dict.fromkeys(words)) or tags_of(files, read)

    def examples(split: str) -> Any:
        made = [example(one, labels, names) for one in read(files[split], split)]
        return in_memory(made, {"words": str})

    options = {"tokens": encoder_tokens(vocabulary), "vocabulary": vocabulary, "length": length}
    ids = seqio_vocabulary(vocabulary)
    features: dict[str, Any] = {
        "inputs": seqio.Feature(vocabulary=ids, add_eos=True, dtype=tf.int32),
        "token_labels": seqio.Feature(vocabulary=ids, add_eos=False, dtype=tf.int32),
    }
    of_entities = all(tag == OUTSIDE or tag.startswith(_ENTITY) for tag in labels)
    task = seqio.Task(
        name,
        source=stages.source(tuple(files), examples, one_to_one=True),
        preprocessors=[
            partial(_encode, encode=partial(encode, **options), labels=labels, length=length),
            seqio.CacheDatasetPlaceholder(),
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features=features,
        postprocess_fn=WordTags(labels),
        metric_fns=[entity_f1 if of_entities else tag_accuracy],
    )
    return with_form(task, Tagged())


def tags_of(files: Mapping[str, DataPath], read: Read) -> tuple[str, ...]:
    """The tags of the training file, sorted.

    Raises:
      InputError: there is none, or its tags are numbers, or all the same.
    """
    remedy = "say all tags by --data.columns.labels, such as O B-PER I-PER"
    if "train" not in files:
        there = ", ".join(str(file) for file in files.values())
        raise InputError(f"no training file beside {there}, whose tags are the classes: {remedy}")
    file = files["train"]
    found = {tag for one in read(file, "train") for tag in iob2(one.tags or ())}
    if found and all(tag.isdecimal() for tag in found):
        raise InputError(
            f"{file}: the tags are numbers: name them by --data.columns.labels, such as 0=O "
            "1=B-PER 2=I-PER"
        )
    if len(found) < 2:
        raise InputError(f"{file}: has {', '.join(found) or 'no tag'} alone: {remedy}")
    return tuple(sorted(found))


def iob2(tags: Sequence[str]) -> list[str]:
    """The same entities in IOB2: an I that begins one is a B."""
    found, before = [], OUTSIDE
    for tag in tags:
        goes_on = before[:2] in ("B-", "I-") and before[2:] == tag[2:]
        found.append(f"B-{tag[2:]}" if tag.startswith("I-") and not goes_on else tag)
        before = tag
    return found


def example(sentence: Sentence, labels: Sequence[str], names: Mapping[str, str]) -> dict[str, str]:
    """A sentence as the task's source yields it: "inputs" and "targets" to be shown, and "words".

    Args:
      sentence: of a file.
      labels: all tags.
      names: what a tag of the file is called; one that is missing has its own name.

    Raises:
      InputError: a tag is none of the labels, with file and line.
    """
    words, targets = sentence.words, UNKNOWN
    if sentence.tags is not None:
        tags = iob2([names.get(tag, tag) for tag in sentence.tags])
        for place, tag in enumerate(tags):
            if tag not in labels:
                of_file = sentence.tags[place]
                read_as = "" if of_file == tag else f", which is read as {tag},"
                raise InputError(
                    f"{sentence.where(place)}: the tag {of_file!r}{read_as} is none of "
                    f"{', '.join(labels)}: mend it, or say all tags by --data.columns.labels"
                )
        targets = " ".join(tags)
    return {"inputs": " ".join(words), "targets": targets, "words": _BETWEEN.join(words)}


def encode(
    sentences: Sequence[Sequence[str]],
    *,
    vocabulary: Vocabulary,
    tokens: EncoderTokens,
    length: int,
) -> list[tuple[list[int], list[int]]]:
    """The row of each sentence, without its last [SEP], and the places of its words' first pieces.

    Args:
      sentences: their words.
      vocabulary: of the tokens.
      tokens: the vocabulary's.
      length: of a row at most, [SEP] included; words behind it have no place.
    """
    pieces = iter(vocabulary.encode_batch([f" {word}" for words in sentences for word in words]))
    found = []
    for words in sentences:
        row, starts = [tokens.cls_id], []
        for _ in words:
            if len(row) < length - 1:
                starts.append(len(row))
            row += without_special(next(pieces), tokens) or [tokens.unk_id]
        found.append((row[: length - 1], starts))
    return found


def _encode(
    dataset: Any,
    *,
    encode: Callable[[Sequence[Sequence[str]]], list[tuple[list[int], list[int]]]],
    labels: Sequence[str],
    length: int,
) -> Any:
    """Examples of int32 "inputs" without the last [SEP], "token_labels", and "starts"."""
    from t5x_lite.data.quiet_tensorflow import tf
    from t5x_lite.data.tasks import stages

    classes = {tag: number for number, tag in enumerate(labels, start=1)}
    names = ("inputs", "token_labels", "starts")

    def rows(block: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        made = encode([text.decode().split(_BETWEEN) for text in block["words"]])
        found = {name: np.zeros((len(made), length), np.int32) for name in names}
        sizes = np.array([[len(row), len(starts)] for row, starts in made], np.int32)
        for place, ((row, starts), target) in enumerate(zip(made, block["targets"], strict=True)):
            found["inputs"][place, : len(row)] = row
            found["starts"][place, : len(starts)] = starts
            if (text := target.decode()) != UNKNOWN:
                tags = text.split()[: len(starts)]
                found["token_labels"][place, starts] = [classes[tag] for tag in tags]
        return {**found, "sizes": sizes}

    spec = {name: tf.TensorSpec([None, length], tf.int32) for name in names}
    raw = dataset.map(lambda one: {name: one[name] for name in ("words", "targets")})
    sized = {**spec, "sizes": tf.TensorSpec([None, 2], tf.int32)}
    encoded = stages.map_numpy(raw.batch(_AT_A_TIME), rows, sized).unbatch()

    @tf.autograph.experimental.do_not_convert
    def tagged(one: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
        size, words = row["sizes"][0], row["sizes"][1]
        return {
            "inputs": row["inputs"][:size],
            "token_labels": row["token_labels"][: size + 1],  # of [SEP], too
            "starts": row["starts"][:words],
            "words": one["words"],
            "inputs_pretokenized": one["inputs"],
            "targets_pretokenized": one["targets"],
        }

    return tf.data.Dataset.zip((dataset, encoded)).map(tagged)
