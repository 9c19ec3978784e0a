"""Texts with a label, tagged sentences and questions with spans, as tasks.

A text, or a pair of texts, with a label, as a seqio task: what a head on an encoder answers.

    {"inputs": [CLS] a [SEP] b [SEP], "labels": [class + 1, 0]}        data.layout is Labelled()

A pair that is too long loses tokens of its longer text, one after the other (google-research/bert
run_classifier.py, _truncate_seq_pair). Of vocabularies whose rows begin with <s>, those of RoBERTa
and XLM-R, a pair is <s> a </s></s> b </s>. The tasks of GLUE are these where data.layout says so:
the same files, labels and metrics as text to text.

Sentences with a tag for each word, as a seqio task: what the head "token" on an encoder answers.

    {"inputs": [CLS] pieces of the words [SEP], "token_labels": the class + 1 at first pieces, or 0}

data.layout is Tokens(). Each word is encoded by itself, as a word that a space comes before, and
its first piece has its label (Devlin et al. 2019, section 5.3; transformers' run_ner.py). A word
that the vocabulary drops, such as a stray accent, is unknown, so that each has a piece.

Tags are read as IOB2: an I that begins an entity, as all do in the files of CoNLL-2003 (IOB1), is a
B. Such files and those in IOB2 give the same labels, and conlleval counts the same entities.

A sentence that is too long is cut. Words behind the cut teach nothing, and in an evaluation they
are answered "O": they count, as misses where they are of an entity. A head says the tag of each
token of a row, and `WordTags` gives those of the words.

Questions whose answer is a span of their context, for an encoder (SQuAD 1.1 and 2.0).

    [CLS] question [SEP] context [SEP]          labels: the places of the answer's two ends

With data.layout Windows() a context that does not fit is divided, as in BERT (`windows`). With
Labelled() a question has 64 tokens at most, and the context is cut at its end: an answer behind the
cut has no label, and is not found. A question without an answer has the label [CLS]. A head says
which tokens of the context the answer is, "12 15", and `SpanText` gives its text as the context has
it.
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
"""Tokens of a question; BERT's max_query_length."""
IMPOSSIBLE: labelled.Label = (-1, -1)
"""The characters of an answer that the context does not have."""
NULL: labelled.Label = labelled.of_span(0, 0)
"""The label of no answer: [CLS]."""


def encode_spans(
    first: Sequence[str],
    second: Sequence[str],
    given: np.ndarray,
    *,
    vocabulary: Vocabulary,
    tokens: EncoderTokens,
    length: int,
) -> tuple[list[list[int]], list[labelled.Label]]:
    """Rows of questions and contexts, labelled by tokens; see `Encode`.

    Args:
      first: the questions.
      second: the contexts.
      given: of each answer in its context, the first character and the one behind the last; two
        equal numbers are an answer that is not known, or `IMPOSSIBLE`.
      vocabulary: a tokenizer, which knows the characters of its tokens.
      tokens: the vocabulary's.
      length: of a row at most.
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
    """The first and the last token that have a character of a span; None where it goes on behind.

    Args:
      offsets: of each token, its first character and the one behind its last.
      start: the span's first character.
      stop: the character behind its last.
    """
    inside = [place for place, (a, b) in enumerate(offsets) if a < stop and b > start]
    if start >= stop or not inside or offsets[-1][1] < stop:
        return None
    return inside[0], inside[-1]


def offsets_of(
    vocabulary: Vocabulary, texts: Sequence[str]
) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """Tokens of texts with their characters.

    Raises:
      InputError: the vocabulary does not know them.
    """
    if not isinstance(vocabulary, Tokenizer):
        raise InputError(
            "a task of spans needs a vocabulary that knows which characters a token is: a "
            "tokenizer.json, a vocab.txt or an spm.model"
        )
    return vocabulary.encode_with_offsets(texts)


def first_answer(record: Mapping[str, Any]) -> labelled.Label:
    """The characters of a record's first answer, from the first to behind the last; or none.

    A record may say by "is_impossible" that there is no answer.
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
    """From a span of a context's tokens, "12 15", to its text; of a target, all answers.

    Attributes:
      vocabulary: of the tokens.
      nulls: whether there may be no answer, which is the text "". A prediction is then {"value":
        the text, "null_odds": the score of no answer less that of the best one}.
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
        """What the metrics compare; a text that is no span is given back as it is."""
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
"""Fields of an example that are not yet tokens."""
READ = ("inputs", "targets", "label", "label_end")
"""Fields of a raw example that its examples have in another form."""

Record = Mapping[str, Any]
Text = str | Callable[[Record], str]
"""A field of a record, a template, or a function of the record."""
Encode = Callable[[Sequence[str], Sequence[str], np.ndarray], tuple[list[list[int]], Any]]
"""(first texts, second texts, raw labels [n, 2]) -> (rows without their last [SEP], labels)."""


@runtime_checkable
class Form(Protocol):
    """How a task's records are shown to an encoder."""

    @property
    def head(self) -> str:
        """The name of the head that answers."""
        ...

    @property
    def nulls(self) -> bool:
        """Whether there may be no answer."""
        ...

    @property
    def candidates(self) -> str:
        """What a candidate stands in place of, in a row of its own; "" where there are none."""
        ...


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """How the records of a benchmark are shown to an encoder.

    Attributes:
      texts: the one or two fields that it reads, in their order; or templates, "{word}: {text}"; or
        functions of the record. Of a task of choices the question, and then each choice.
      label: of a record, as in `labels`; of a span, its first character and the one behind it.
      score: of a record of regression, NaN where it has none; None of other tasks.
      target: of a record, the text of its label: what the task's postprocess_fn reads.
      spans: whether the labels are spans of the second text.
      nulls: whether a span may be missing, as the second text does not have it; the answer is "".
      choices: whether the label is the number of a choice, and a row has all of them.
      candidates: what of the second text each candidate of a record stands in place of, in a row of
        its own (`candidates`); the second text is then cut last. "" of other tasks.
      fields: of a record, what stands in place of the fields that its form as text has.
      kinds: of `fields`, if these are all and no form as text is made; None: that one's, too.
      postprocess: in place of that of the task as text; None is that one.
      clean: what is read of a text.
      columns: fields of the record that may still have the files' names, and these.
      words: field -> value in a file -> what is read in its place.
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
        """The name of the head that answers."""
        if self.choices:
            return "choice"
        return "span" if self.spans else "classifier"

    def example(self, record: Record, others: Mapping[str, Any]) -> dict[str, Any]:
        """A record with the fields of `others`, as a source of `labelled_task` yields it."""
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
    """What one of `Labelled.texts` is of a record."""
    if not isinstance(text, str):
        return text(record)
    return fill(text, record) if "{" in text else record[text]


def extras(others: Mapping[str, type], form: Labelled) -> dict[str, type]:
    """The kinds of an example's fields beside inputs and targets."""
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
    """A seqio.Task of texts with labels.

    Args:
      name: the task's, for messages of seqio.
      arguments: of the task.
      form: how records become examples.
      source: a seqio source of the examples that `Labelled.example` makes.
      postprocess: (text, example=, is_target=) -> what the metrics compare.
      metrics: functions (targets, predictions) -> {name: value}.

    Raises:
      InputError: the rows are too short, or the vocabulary has no [CLS].
    """
    how = row_options(arguments)
    encode: Encode
    if form.spans:
        encode = partial(encode_spans, **how)
    else:
        is_pair, whole = len(form.texts) > 1, bool(form.candidates)
        encode = partial(encode_texts, is_pair=is_pair, whole=whole, **how)
    scored = form.score is not None

    def make(raw: Raw) -> Iterator[list[dict[str, Any]]]:
        first, second = ([one[name] for one in raw] for name in ("inputs", "second"))
        rows, found = encode(first, second, raw_labels(raw))
        for one, row, label in zip(raw, rows, found, strict=True):
            score = {"scores": [one["score"]]} if scored else {}
            yield [{"inputs": row, "labels": label, **score, **shown(one)}]

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
        others=SHOWN,
        drops=(*READ, "second", "score"),
        postprocess=postprocess,
        metrics=metrics,
    )
    return with_form(task, form)


SHOWN: Mapping[str, type] = {"inputs_pretokenized": str, "targets_pretokenized": str}
"""Fields of an example that a person reads."""


def shown(raw: Mapping[str, Any]) -> dict[str, str]:
    """The texts of a raw example, as `SHOWN`."""
    texts = f"{raw['inputs']} {raw['second']}".strip(string.whitespace)
    return {"inputs_pretokenized": texts, "targets_pretokenized": raw["targets"]}


def raw_labels(raw: Raw) -> np.ndarray:
    """The two numbers that are the label of each raw example, int64 [n, 2]."""
    return np.array([(one["label"], one["label_end"]) for one in raw], np.int64)


def with_form(task: Any, form: Form) -> Any:
    """The task, which says by `task_form` how its records are shown."""
    setattr(task, _FORM, form)
    return task


def task_form(task: Any) -> Form | None:
    """How a task's records are shown; None of a task that has no form for a head."""
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
    """Rows of texts or of pairs, whose labels are as they are given; see `Encode`."""
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
    """[CLS] a, or [CLS] a [SEP] b: a row that still lacks its last [SEP].

    Args:
      parts: the tokens of one text or of two.
      tokens: the vocabulary's.
      length: of the row at most, the last [SEP] included.
      separators: between two texts.
      whole: whether the second text is cut only where it does not fit alone.
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
    """Sizes of two texts that fit: the longer one loses tokens, of equal ones the second."""
    if first + second <= room:
        return first, second
    half = (room + 1) // 2
    if first <= half:
        return first, room - first
    if second <= room - half:
        return room - second, second
    return half, room - half


OUTSIDE = "O"
"""The tag of a word that is of no entity."""
_BETWEEN = "\n"
"""Stands between the words of a sentence in one text."""
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
    from t5x_lite.data.tasks import stages
    from t5x_lite.data.tasks.benchmarks import in_memory

    entries, words = arguments.columns.entries(), arguments.columns.words()
    names = dict(zip(entries, words, strict=True))
    labels = tuple(dict.fromkeys(words)) or tags_of(files, read)
    classes = {tag: number for number, tag in enumerate(labels, start=1)}
    how = row_options(arguments)

    def examples(split: str) -> Any:
        made = [example(one, labels, names) for one in read(files[split], split)]
        return in_memory(made, {"words": str})

    def make(raw: Raw) -> Iterator[list[dict[str, Any]]]:
        rows = encode([words_of(one) for one in raw], **how)
        for one, (row, starts) in zip(raw, rows, strict=True):
            given = np.zeros(len(row) + 1, np.int32)  # of [SEP], too
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
        others={"starts": np.int32, "words": str, **SHOWN},
        postprocess=WordTags(labels),
        metrics=[entity_f1 if of_entities else tag_accuracy],
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
