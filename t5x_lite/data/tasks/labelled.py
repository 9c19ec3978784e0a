"""Seqio tasks for encoder heads: labelled texts, tagged sentences, and questions with spans.

A text, or a pair of texts, with a label:

    {"inputs": [CLS] a [SEP] b [SEP], "labels": [class + 1, 0]}        data.layout is Labelled()

If a pair is too long, tokens are removed from its longer text one by one (google-research/bert
run_classifier.py, _truncate_seq_pair). With the vocabularies of RoBERTa and XLM-R, which begin rows
with <s>, a pair is <s> a </s></s> b </s>. With such a data.layout, the tasks of GLUE use this form,
with the same files, labels and metrics as in the text-to-text form.

Sentences with a tag for each word, for the head "token":

    {"inputs": [CLS] pieces of the words [SEP], "token_labels": the class + 1 at first pieces, or 0}

data.layout is Tokens(). Each word is encoded separately, as after a space, and its first token has
its label (Devlin et al. 2019, section 5.3; transformers' run_ner.py). A word that the vocabulary
drops, such as a stray accent, is an unknown token, so that each word has a token.

Tags are read as IOB2: an I that begins an entity becomes a B. All entities in the files of
CoNLL-2003 (IOB1) begin with an I. Files in IOB1 and IOB2 give the same labels, and conlleval counts
the same entities.

A sentence that is too long is truncated. The truncated words are not trained. In an evaluation they
are predicted as "O", so they count as misses if they belong to an entity. A head predicts the tag
of each token of a row, and `WordTags` selects the tags of the words.

Questions with a span of their context as the answer (SQuAD 1.1 and 2.0):

    [CLS] question [SEP] context [SEP]      labels: positions of the answer's first and last token

With data.layout Windows() a context that does not fit is divided, as in BERT (`questions`). With
Labelled() a question has at most 64 tokens, and the end of the context is truncated: a truncated
answer has no label and cannot be predicted. A question without an answer has the label [CLS]. A
head predicts the answer's token indices in the context, "12 15". `SpanText` returns the answer's
text, exactly as in the context.
"""

import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import DataPath
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.formats.benchmark_files import Sentence
from t5x_lite.data.postprocess import UNKNOWN
from t5x_lite.data.preprocessors import fill
from t5x_lite.data.tasks.encoder import Raw, example_task, row_options
from t5x_lite.data.vocabularies.encoder_tokens import separators, without_special
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.data.vocabularies.tokenizer import Tokenizer
from t5x_lite.layouts import labelled
from t5x_lite.layouts import labelled as labels
from t5x_lite.layouts.base import EncoderTokens
from t5x_lite.metrics.classification import entity_f1, tag_accuracy

LONGEST_QUESTION = 64
"""Maximum tokens of a question; max_query_length of BERT."""
IMPOSSIBLE: labelled.Label = (-1, -1)
"""Character span that marks a question without an answer."""
NULL: labelled.Label = labelled.of_span(0, 0)
"""Label of a question without an answer: the span of the token [CLS]."""


def encode_spans(
    first: Sequence[str],
    second: Sequence[str],
    given: np.ndarray,
    *,
    vocabulary: Vocabulary,
    tokens: EncoderTokens,
    length: int,
) -> tuple[list[list[int]], list[labelled.Label]]:
    """Encode questions and contexts as token rows, with the token spans of the answers as labels.

    Args:
      first: questions.
      second: contexts.
      given: character span of each answer in its context, end excluded, int64 [n, 2]. Two equal
        numbers mean an unknown answer; `IMPOSSIBLE` means that the question has no answer.
      vocabulary: tokenizer that supports character offsets.
      tokens: special tokens of the vocabulary.
      length: maximum tokens of a row.
    """
    num = separators(vocabulary)
    rows, found = [], []
    contexts = offsets_of(vocabulary, second)
    questions = vocabulary.encode_batch(first)
    for question, (ids, offsets), span in zip(questions, contexts, given.tolist(), strict=True):
        asked = without_special(question, tokens)[: min(LONGEST_QUESTION, length // 2)]
        start = 1 + len(asked) + num
        read = without_special(ids, tokens)[: length - 1 - start]
        rows.append([tokens.cls_id, *asked, *[tokens.sep_id] * num, *read])
        places = token_span(offsets[: len(read)], *span)
        if tuple(span) == IMPOSSIBLE:
            found.append(NULL)
        else:
            found.append(
                labelled.NONE if places is None else labelled.of_span(*(start + p for p in places))
            )
    return rows, found


def token_span(offsets: Sequence[tuple[int, int]], start: int, stop: int) -> tuple[int, int] | None:
    """Return the first and last token of a character span, or None if tokens end before the span.

    Args:
      offsets: character span of each token, end excluded.
      start: first character of the span.
      stop: end of the span, excluded.
    """
    inside = [place for place, (a, b) in enumerate(offsets) if a < stop and b > start]
    if start >= stop or not inside or offsets[-1][1] < stop:
        return None
    return inside[0], inside[-1]


def offsets_of(
    vocabulary: Vocabulary, texts: Sequence[str]
) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """Return the tokens of each text, with the character span of each token.

    Raises:
      InputError: if the vocabulary does not support character offsets.
    """
    if not isinstance(vocabulary, Tokenizer):
        raise InputError(
            "a task of text spans requires a vocabulary with character offsets of its tokens; use "
            "a tokenizer.json, a vocab.txt or an spm.model"
        )
    return vocabulary.encode_with_offsets(texts)


def first_answer(record: Mapping[str, Any]) -> labelled.Label:
    """Return the character span [start, end) of the first answer of a SQuAD record.

    The span is `IMPOSSIBLE` if "is_impossible" is true, and `NONE` if the answer is unknown.
    """
    if record.get("is_impossible", False):
        return IMPOSSIBLE
    answers = record["answers"]
    if not answers["text"] or answers["answer_start"][0] < 0:
        return labelled.NONE
    start = answers["answer_start"][0]
    return start, start + len(answers["text"][0])


@dataclass(frozen=True)
class SpanText:
    """Postprocessor that converts the token indices of an answer, "12 15", to the answer's text.

    Attributes:
      vocabulary: vocabulary of the tokens.
      nulls: True if a question may have no answer; the text is then "". A prediction is a dict of
        "value" (the text) and "null_odds" (the score of no answer minus the best answer's score).
    """

    vocabulary: Vocabulary
    nulls: bool = False

    def __call__(
        self,
        text: str,
        example: Mapping[str, Any] | None = None,
        is_target: bool = False,
        null_odds: float = 0.0,
    ) -> str | list[str] | dict[str, Any]:
        """Return the predicted answer's text; for a target, return all correct answers."""
        assert example is not None
        if is_target:
            return [a.decode() if isinstance(a, bytes) else a for a in example["answers"]]
        answer = self._answer(text, example)
        return {"value": answer, "null_odds": null_odds} if self.nulls else answer

    def _answer(self, text: str, example: Mapping[str, Any]) -> str:
        places = text.split()
        if len(places) != 2 or not all(place.isdecimal() for place in places):
            return text
        first, last = map(int, places)
        [(_, offsets)] = offsets_of(self.vocabulary, [example["context"]])
        return example["context"][offsets[first][0] : offsets[last][1]].strip()


_FORM = "labelled_form"
_RAW = {"second": str, "label": int, "label_end": int}
"""Types of the fields of a raw example, before tokenization."""
RAW_FIELDS = ("inputs", "targets", "label", "label_end")
"""Fields of a raw example that tokenization replaces by other fields."""
TEXT_FIELDS: Mapping[str, type] = {"inputs_pretokenized": str, "targets_pretokenized": str}
"""Fields with the untokenized texts of an example, for display."""

Record = Mapping[str, Any]
Text = str | Callable[[Record], str]
"""Text of a record: name of a field, template, or function of the record."""
Encode = Callable[[Sequence[str], Sequence[str], np.ndarray], tuple[list[list[int]], Any]]
"""Function from first texts, second texts and raw labels [n, 2] to token rows, without their last
[SEP], and labels."""


@runtime_checkable
class Form(Protocol):
    """Protocol of a task's description for encoders, such as `Labelled` or `Tagged`."""

    @property
    def head(self) -> str:
        """Name of the model's head that predicts the label."""
        ...

    @property
    def nulls(self) -> bool:
        """True if a question may have no answer."""
        ...

    @property
    def candidates(self) -> str:
        """Placeholder for a candidate answer in the second text; "" for other tasks."""
        ...


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """Description of a task for encoders: how a record gives texts and a label.

    Attributes:
      texts: one text or a pair of texts, each as a field name, a template "{word}: {text}" or a
        function of the record. With `choices`, the question and then each choice.
      label: function from a record to its label; for spans, the character span of the answer, end
        excluded.
      score: function from a record to its regression target, NaN if unknown; None for other tasks.
      target: function from a record to the text of its label, which the task's postprocess_fn
        reads.
      spans: True if labels are spans of the second text.
      nulls: True if the second text may lack an answer; the answer is then "".
      choices: True if the label is the index of a choice, and a row has all choices.
      candidates: placeholder in the second text; each candidate answer replaces it in a separate
        row. "" for other tasks.
      fields: function from a record to fields of the example that replace the text-to-text fields.
      kinds: types of the values of `fields` if an example has only these fields; None if an example
        also has the fields of the text-to-text example.
      postprocess: postprocessor for encoders; None for the postprocessor of the text-to-text task.
      clean: function applied to each text before it is encoded.
      columns: for each field, its name in records of the official files.
      words: for each field, replacements of the values in the files.
    """

    texts: Sequence[Text]
    label: Callable[[Record], labels.Label]
    target: Callable[[Record], str]
    score: Callable[[Record], float] | None = None
    spans: bool = False
    nulls: bool = False
    choices: bool = False
    candidates: str = ""
    fields: Callable[[Record], Mapping[str, Any]] = lambda record: {}
    kinds: Mapping[str, type] | None = None
    postprocess: Callable[..., Any] | None = None
    clean: Callable[[str], str] = str
    columns: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def head(self) -> str:
        if self.choices:
            return "choice"
        return "span" if self.spans else "classifier"

    def example(self, record: Record, others: Mapping[str, Any]) -> dict[str, Any]:
        """Convert a record to the texts and labels that an encoder reads."""
        own = {name: record[old] for name, old in self.columns.items() if old in record}
        record = {**record, **own}
        record |= {
            name: values.get(record[name], record[name]) for name, values in self.words.items()
        }
        first, *rest = (self.clean(_text(text, record)) for text in self.texts)
        label, end = self.label(record)
        others_read = {"choices": rest} if self.choices else {"second": rest[0] if rest else ""}
        texts = {"inputs": first, **others_read, "targets": self.target(record)}
        others = {**others, **self.fields(record)}
        score = {} if self.score is None else {"score": float(self.score(record))}
        return {**others, **texts, "label": label, "label_end": end, **score}


def _text(text: Text, record: Record) -> str:
    if not isinstance(text, str):
        return text(record)
    return fill(text, record) if "{" in text else record[text]


def extras(others: Mapping[str, type], form: Labelled) -> dict[str, type]:
    """Return the types of an example's fields other than inputs and targets.

    Args:
      others: types of the fields of the text-to-text example.
      form: description of the task for encoders.
    """
    if form.choices:
        return {**others, "choices": list, "label": int, "label_end": int}
    return {**others, **_RAW, **({} if form.score is None else {"score": float})}


def labelled_task(
    name: str,
    arguments: TaskArguments,
    form: Labelled,
    *,
    source: Any,
    postprocess: Callable[..., Any] | None,
    metrics: Sequence[Callable[..., Any]],
) -> Any:
    """Make a seqio.Task of texts, or pairs of texts, with labels.

    Args:
      name: name of the task, for messages of seqio.
      arguments: arguments of the task function.
      form: description of the task for encoders.
      source: seqio source of the raw examples that `Labelled.example` returns.
      postprocess: function (text, example=, is_target=) that returns the value that metrics
        compare.
      metrics: functions (targets, predictions) -> {name: value}.
    """
    options = row_options(arguments)
    encode: Encode
    if form.spans:
        encode = partial(encode_spans, **options)
    else:
        is_pair, whole = len(form.texts) > 1, bool(form.candidates)
        encode = partial(encode_texts, is_pair=is_pair, whole=whole, **options)
    scored = form.score is not None

    def make(raw: Raw) -> Iterator[list[dict[str, Any]]]:
        first, second = ([one[name] for one in raw] for name in ("inputs", "second"))
        rows, found = encode(first, second, raw_labels(raw))
        for one, row, label in zip(raw, rows, found, strict=True):
            score = {"scores": [one["score"]]} if scored else {}
            yield [{"inputs": row, "labels": label, **score, **text_fields(one)}]

    task = example_task(
        name,
        arguments,
        source=source,
        make=make,
        features={
            "inputs": np.int32,
            "labels": np.int32,
            **({"scores": np.float32} if scored else {}),
        },
        extras=TEXT_FIELDS,
        drop=(*RAW_FIELDS, "second", "score"),
        postprocess=postprocess,
        metrics=metrics,
    )
    return with_form(task, form)


def text_fields(raw: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of an example for display."""
    texts = f"{raw['inputs']} {raw['second']}".strip(string.whitespace)
    return {"inputs_pretokenized": texts, "targets_pretokenized": raw["targets"]}


def raw_labels(raw: Raw) -> np.ndarray:
    """Return "label" and "label_end" of each example, int64 [examples, 2]."""
    return np.array([(one["label"], one["label_end"]) for one in raw], np.int64)


def with_form(task: Any, form: Form) -> Any:
    """Store a task's description for encoders in the task, and return the task."""
    setattr(task, _FORM, form)
    return task


def task_form(task: Any) -> Form | None:
    """Return a task's description for encoders; None for a text-to-text task."""
    return getattr(task, _FORM, None)


def encode_texts(
    first: Sequence[str],
    second: Sequence[str],
    given: np.ndarray,
    *,
    vocabulary: Vocabulary,
    tokens: EncoderTokens,
    length: int,
    is_pair: bool,
    whole: bool = False,
) -> tuple[list[list[int]], np.ndarray]:
    """Encode texts, or pairs of texts, as rows of token ids; return the rows and the labels."""
    encoded = vocabulary.encode_batch([*first, *(second if is_pair else ())])
    plain = [without_special(ids, tokens) for ids in encoded]
    parts = [plain[: len(first)], plain[len(first) :]] if is_pair else [plain]
    options = {"tokens": tokens, "length": length, "separators": separators(vocabulary)}
    return [join(row, whole=whole, **options) for row in zip(*parts, strict=True)], given


def join(
    parts: Sequence[Sequence[int]],
    *,
    tokens: EncoderTokens,
    length: int,
    separators: int = 1,
    whole: bool = False,
) -> list[int]:
    """Join the tokens of one or two texts to a row [CLS] a [SEP] b, without the last [SEP].

    Args:
      parts: tokens of one or two texts.
      tokens: special tokens of the vocabulary.
      length: maximum tokens of the row after the last [SEP] is added.
      separators: number of [SEP] between two texts.
      whole: True to truncate the first text before the second.
    """
    if len(parts) == 1:
        return [tokens.cls_id, *parts[0][: length - 2]]
    room = length - 2 - separators
    sizes = cut_longest(len(parts[0]), len(parts[1]), room=room)
    if whole:
        second = min(len(parts[1]), room)
        sizes = room - second, second
    between = [tokens.sep_id] * separators
    return [tokens.cls_id, *parts[0][: sizes[0]], *between, *parts[1][: sizes[1]]]


def cut_longest(first: int, second: int, *, room: int) -> tuple[int, int]:
    """Return the lengths to which two texts are truncated so that they fit into `room` tokens.

    Tokens are removed from the longer text, or from the second text if both are equally long.
    """
    if first + second <= room:
        return first, second
    half = (room + 1) // 2
    if first <= half:
        return first, room - first
    if second <= room - half:
        return room - second, second
    return half, room - half


OUTSIDE = "O"
"""Tag of a word outside all entities."""
_BETWEEN = "\n"
"""Separator of the words of a sentence that are joined to one text."""
_ENTITY = ("B-", "I-", "E-", "S-")

Read = Callable[[DataPath, str], Iterable[Sentence]]
"""Function from a file and its split to the sentences of the file."""


@dataclass(frozen=True)
class Tagged:
    """Description of a tagging task for encoders: each word of a sentence has a tag.

    Attributes:
      head: name of the model's head that predicts the tags.
      nulls: False, as in `Form` for tasks without questions.
      candidates: "", as in `Form` for tasks without candidate answers.
    """

    head: str = "token"
    nulls: bool = False
    candidates: str = ""


@dataclass(frozen=True)
class WordTags:
    """Postprocessor that converts predicted tags of tokens to one tag per word.

    Attributes:
      labels: all tags, in the order of the class indices.
    """

    labels: tuple[str, ...]

    def __call__(
        self, text: str, example: Mapping[str, Any] | None = None, is_target: bool = False
    ) -> str:
        """Return the tags of the words, separated by spaces.

        Targets, and predictions without exactly one tag for each token, are returned unchanged.
        """
        assert example is not None
        tags = text.split()
        if is_target or len(tags) != len(example["inputs"]):
            return text
        seen = [tags[place] for place in example["starts"]]
        return " ".join(seen + [OUTSIDE] * (len(words_of(example)) - len(seen)))

    def is_answer(self, text: str) -> bool:
        """Return True if all words of a text are tags."""
        return set(text.split()) <= {*self.labels}


def words_of(example: Mapping[str, Any]) -> list[str]:
    """Return the words of a tagging example."""
    return example["words"].split(_BETWEEN)


def token_task(
    name: str, arguments: TaskArguments, *, files: Mapping[str, DataPath], read: Read
) -> Any:
    """Make a seqio.Task of sentences with a tag for each word.

    The tags are data.columns.labels, or the tags of the training file. The metric is F1 of
    entities, or accuracy for other tags.

    Args:
      name: name of the task, for messages of seqio.
      arguments: arguments of the task function.
      files: file of each split.
      read: function from a file and its split to sentences. Sentences of the split "test" may lack
        tags.
    """
    from t5x_lite.data.tasks import stages
    from t5x_lite.data.tasks.benchmarks import in_memory

    entries, words = arguments.columns.entries(), arguments.columns.words()
    names = dict(zip(entries, words, strict=True))
    labels = tuple(dict.fromkeys(words)) or tags_of(files, read)
    classes = {tag: number for number, tag in enumerate(labels, start=1)}
    options = row_options(arguments)

    def examples(split: str) -> Any:
        made = [example(one, labels, names) for one in read(files[split], split)]
        return in_memory(made, {"words": str})

    def make(raw: Raw) -> Iterator[list[dict[str, Any]]]:
        rows = encode([words_of(one) for one in raw], **options)
        for one, (row, starts) in zip(raw, rows, strict=True):
            given = np.zeros(len(row) + 1, np.int32)  # including [SEP]
            if one["targets"] != UNKNOWN:
                given[starts] = [classes[tag] for tag in one["targets"].split()[: len(starts)]]
            yield [
                {
                    "inputs": row,
                    "token_labels": given,
                    "starts": starts,
                    "words": one["words"],
                    "inputs_pretokenized": one["inputs"],
                    "targets_pretokenized": one["targets"],
                }
            ]

    of_entities = all(tag == OUTSIDE or tag.startswith(_ENTITY) for tag in labels)
    task = example_task(
        name,
        arguments,
        source=stages.source(tuple(files), examples, one_to_one=True),
        make=make,
        features={"inputs": np.int32, "token_labels": np.int32},
        extras={"starts": np.int32, "words": str, **TEXT_FIELDS},
        postprocess=WordTags(labels),
        metrics=[entity_f1 if of_entities else tag_accuracy],
    )
    return with_form(task, Tagged())


def tags_of(files: Mapping[str, DataPath], read: Read) -> tuple[str, ...]:
    """Return the different tags in the training file, sorted.

    Raises:
      InputError: if the training file is missing, has numbers as tags, or has fewer than two tags.
    """
    remedy = "list all tags by --data.columns.labels, such as O B-PER I-PER"
    if "train" not in files:
        there = ", ".join(str(file) for file in files.values())
        raise InputError(f"no training file to read the tags from, only {there}; {remedy}")
    file = files["train"]
    found = {tag for one in read(file, "train") for tag in iob2(one.tags or ())}
    if found and all(tag.isdecimal() for tag in found):
        raise InputError(
            f"{file}: the tags are numbers; name each tag by --data.columns.labels, such as 0=O "
            "1=B-PER 2=I-PER"
        )
    if len(found) < 2:
        raise InputError(
            f"{file}: must have at least two tags, but has {', '.join(found) or 'no tag'}; {remedy}"
        )
    return tuple(sorted(found))


def iob2(tags: Sequence[str]) -> list[str]:
    """Convert tags of entities to IOB2 format, where every entity begins with a B tag."""
    found, before = [], OUTSIDE
    for tag in tags:
        goes_on = before[:2] in ("B-", "I-") and before[2:] == tag[2:]
        found.append(f"B-{tag[2:]}" if tag.startswith("I-") and not goes_on else tag)
        before = tag
    return found


def example(sentence: Sentence, labels: Sequence[str], names: Mapping[str, str]) -> dict[str, str]:
    """Convert a tagged sentence to a dict of texts: "inputs", "targets" and "words".

    Args:
      sentence: sentence with words and tags.
      labels: all tags.
      names: replacement for each tag of the file; tags without a replacement are kept.
    """
    words, targets = sentence.words, UNKNOWN
    if sentence.tags is not None:
        tags = iob2([names.get(tag, tag) for tag in sentence.tags])
        for place, tag in enumerate(tags):
            if tag not in labels:
                of_file = sentence.tags[place]
                read_as = "" if of_file == tag else f", which is read as {tag},"
                raise InputError(
                    f"{sentence.where(place)}: the tag {of_file!r}{read_as} must be one of "
                    f"{', '.join(labels)}; correct the tag, or list all tags by "
                    "--data.columns.labels"
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
    """Return each sentence as a row of token ids, with the index of each word's first token.

    Args:
      sentences: words of each sentence.
      vocabulary: vocabulary of the tokens.
      tokens: special tokens of the vocabulary.
      length: maximum tokens of a row, including [SEP]. Truncated words have no index.
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
