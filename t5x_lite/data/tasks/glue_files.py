"""Official files of GLUE, SuperGLUE and XNLI, and the tasks over them.

GLUE's official TSV files (Wang et al. 2019, arXiv:1804.07461) and the tasks over them, as rows.

    SST2 = GlueTask(
        name="sst2",
        directory="SST-2",
        template="sentence: {sentence}",
        labels={"0": "negative", "1": "positive"},
    )
    benchmarks.task(SST2.benchmark(), arguments)        # a seqio.Task

The files have no quoting: a quotation mark is a character like any other.

SuperGLUE's official JSONL files (Wang et al. 2019, arXiv:1905.00537), and tasks over them.

    CB = SuperGlueTask(
        name="cb",
        directory="CB",
        template="hypothesis: {hypothesis} premise: {premise}",
        labels=("entailment", "contradiction", "neutral"),
    )
    benchmarks.task(CB.benchmark(), arguments)          # a seqio.Task

Each reader gives the records of one kind of file with the features of TensorFlow Datasets. In a
test split a label may be missing, or be null: it is -1 then. A number may be written as a string:
"idx": "0" is 0.

XNLI's files (Conneau et al. 2018, arXiv:1809.05053), as tasks of GLUE's kind.

    XNLI-1.0/xnli.dev.tsv, xnli.test.tsv            columns language, gold_label, ...
    XNLI-MT-1.0/multinli/multinli.train.LANG.tsv    premise, hypo, label; "contradictory"

Columns are found by the header. Both splits of XNLI-1.0 have labels. TFDS has the held-out splits
as `xnli`, and other machine translations of MNLI, those of XTREME, as `xtreme_xnli`; a record there
holds all languages:

    {"premise": {"ar": ..., "bg": ...}, "hypothesis": {"language": ["ar", ...], "translation": ...}}
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import DataPath
from t5x_lite.data import postprocess
from t5x_lite.data.formats.benchmark_files import (
    Row,
    label_index,
    numbered,
    read_jsonl,
    read_tsv,
    whole_number,
)
from t5x_lite.data.postprocess import ClassIndex, any_number
from t5x_lite.data.preprocessors import (
    UNKNOWN,
    glue,
    label_text,
    marked_pronoun,
    places,
    without_highlights,
    without_html,
)
from t5x_lite.data.tasks import questions
from t5x_lite.data.tasks.benchmarks import Benchmark
from t5x_lite.data.tasks.labelled import Labelled, Text
from t5x_lite.data.tasks.names import Wording
from t5x_lite.layouts.labelled import NONE, of_class
from t5x_lite.metrics.classification import accuracy

FILES = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}


@dataclass(frozen=True, kw_only=True)
class GlueTask:
    """One task of GLUE. Its text is "<prefix> <template>", the record's fields in their places.

    Attributes:
      name: of the task, and TFDS's name of its config.
      directory: the folder's official name.
      template: the fields that are shown, in T5's order.
      labels: the label column's entries and their words, in the order of the class indices; none
        where the label is a number (STS-B).
      prefix: None is the name.
      columns: the record's fields and their official columns; none are the fields of the template,
        under their own names.
      label_column: the column of the labels; test files lack it.
      id_column: the column of the numbers; where a file lacks it, its rows are counted from 0.
      header: the columns of train and validation, where these files have no header.
      skip_incomplete: whether rows with too few columns are left out, with a warning.
      files: the official file of each split.
      tfds_splits: what TFDS calls a split, where it has another name for it.
      as_text: (record, inputs=prefix and template) -> example; None is `preprocess.glue`.
      extras: the fields of an example beside inputs and targets.
      postprocess: None is the class index.
      metrics: functions (targets, predictions) -> {name: value}.
      texts: the fields that an encoder reads, in its order; none are those of the template.
    """

    name: str
    directory: str
    template: str
    labels: Mapping[str, str]
    prefix: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    label_column: str = "label"
    id_column: str = "index"
    header: Sequence[str] = ()
    skip_incomplete: bool = False
    files: Mapping[str, str] = field(default_factory=lambda: FILES)
    tfds_splits: Mapping[str, str] = field(default_factory=dict)
    as_text: Callable[..., dict[str, Any]] | None = None
    extras: Mapping[str, type] = field(default_factory=lambda: {"idx": int})
    postprocess: Callable[..., Any] | None = None
    metrics: Sequence[Callable[..., Any]] = (accuracy,)
    texts: Sequence[str] = ()

    def benchmark(self) -> Benchmark:
        """The task, to be read from its files or from TFDS."""
        words = tuple(self.labels.values())
        return Benchmark(
            name=f"glue_{self.name}",
            tfds=f"glue/{self.name}",
            folder=self.directory,
            files=self.files,
            read=self.records,
            examples=lambda record, split, **words: [self.example(record, **words)],
            extras=self.extras,
            tfds_splits=self.tfds_splits,
            postprocess=self.postprocess or ClassIndex(words),
            metrics=self.metrics,
            labelled=self.labelled(),
            wording=self.wording(),
        )

    def wording(self) -> Wording:
        """The words of its inputs, and the columns that others may show."""
        prefix = self.name if self.prefix is None else self.prefix
        shown = places(self.template)
        columns = tuple(dict.fromkeys([*shown, *self.columns]))
        return Wording(prefix=prefix, template=self.template, columns=columns)

    def labelled(self) -> Labelled | None:
        """How an encoder reads it; None where the template shows what no field is (WNLI)."""
        shown = places(self.template)
        texts = tuple(self.texts) or shown
        if set(texts) - set(self.columns or shown):
            return None
        if not self.labels:
            return Labelled(
                texts=texts,
                label=lambda record: NONE,
                score=lambda record: record["label"] if record["label"] >= 0 else math.nan,
                target=lambda record: f"{record['label']:g}",
                postprocess=any_number,  # a head gives any number, and chooses among no labels
            )
        words = tuple(self.labels.values())
        return Labelled(
            texts=texts,
            label=lambda record: of_class(record["label"]),
            target=lambda record: label_text(record["label"], words),
        )

    def example(self, record: Mapping[str, Any], *, inputs: str | None = None) -> dict[str, Any]:
        """A record, with the features of TFDS, as text.

        Args:
          record: the record.
          inputs: a template in place of the task's own.
        """
        if inputs is None:
            inputs = f"{self.name if self.prefix is None else self.prefix} {self.template}"
        if self.as_text is not None:
            return self.as_text(record, inputs=inputs)
        return glue(record, inputs=inputs, labels=tuple(self.labels.values()))

    def records(self, file: DataPath, split: str) -> Iterator[dict[str, Any]]:
        """The records of an official file, with the features of TFDS.

        In a test split a label may be missing, or be none of the labels: it is -1 then.

        Raises:
          InputError: naming file and line, what `read_tsv` refuses, an unknown label, or two rows
            with one number.
        """
        columns = self.columns or {name: name for name in places(self.template)}
        labelled = not split.startswith("test")
        rows = read_tsv(
            file,
            columns=[*columns.values(), *([self.label_column] if labelled else [])],
            header=self.header if labelled else (),
            skip_incomplete=self.skip_incomplete,
        )
        for row, number in numbered(rows, column=self.id_column):
            yield {
                **{name: row.fields[column] for name, column in columns.items()},
                "label": self._label(row, labelled=labelled),
                "idx": number,
            }

    def _label(self, row: Row, *, labelled: bool) -> int | float:
        entry = row.fields.get(self.label_column)
        if not self.labels:
            return _score(entry, row.where, column=self.label_column) if labelled else -1.0
        if not labelled and entry not in self.labels:
            return -1
        return label_index(row, self.label_column, tuple(self.labels))


def _score(entry: str | None, where: str, *, column: str) -> float:
    try:
        score = float(entry or "")
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{where}: {column} {entry!r} is not a number")
    return score


SUPER_GLUE_FILES = {"train": "train.jsonl", "validation": "val.jsonl", "test": "test.jsonl"}
YES_OR_NO = ("False", "True")
PLACEHOLDER = "@placeholder"
"""What of a query of ReCoRD is asked for."""
COPA_QUESTIONS = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}
"""In the words of Roemmele et al. 2011; COPA's files say which."""


@dataclass(frozen=True, kw_only=True)
class SuperGlueTask:
    """One task of SuperGLUE with a record, and a label, a line.

    Attributes:
      name: of the task, and TFDS's name of its config.
      directory: the folder's official name.
      template: the fields that are shown, in T5's order.
      labels: the words of the labels, in the order of their indices.
      prefix: what the text begins with; None is the name.
      entries: how the files write the labels, in the same order; none are the words themselves, or
        false and true for `YES_OR_NO`.
      columns: the record's fields and their names in the files; none are the fields of the
        template, under their own names.
      files: the official file of each split.
      tfds_splits: what TFDS calls a split, where it has another name for it.
      metrics: functions (targets, predictions) -> {name: value} on class indices.
      texts: what an encoder reads, one text or two, as of `labelled.Labelled`; () are the fields of
        a template of two, the last one first, and of a template of more fields nothing.
      choices: whether `texts` are a question and its choices.
      words: field -> value in a file -> what an encoder reads in its place.
    """

    name: str
    directory: str
    template: str
    labels: tuple[str, ...] = YES_OR_NO
    prefix: str | None = None
    entries: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=lambda: SUPER_GLUE_FILES)
    tfds_splits: Mapping[str, str] = field(default_factory=dict)
    metrics: Sequence[Callable[..., Any]] = (accuracy,)
    texts: tuple[str, ...] = ()
    choices: bool = False
    words: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def benchmark(self) -> Benchmark:
        """The task, to be read from its files or from TFDS."""
        return Benchmark(
            name=f"super_glue_{self.name}",
            tfds=f"super_glue/{self.name}",
            folder=self.directory,
            files=self.files,
            read=self.records,
            examples=lambda record, split, **words: [self.example(record, **words)],
            tfds_splits=self.tfds_splits,
            postprocess=ClassIndex(self.labels),
            metrics=self.metrics,
            labelled=self.labelled(),
            wording=Wording(
                prefix=self.name if self.prefix is None else self.prefix, template=self.template
            ),
        )

    def labelled(self) -> Labelled | None:
        """How an encoder reads it; None where it does not."""
        shown = places(self.template)
        texts = self.texts or (shown[::-1] if len(shown) == 2 else ())
        if not texts:
            return None
        form = labelled_form(texts, self.labels)
        return replace(form, columns=self.columns, choices=self.choices, words=self.words)

    def example(self, record: Mapping[str, Any], *, inputs: str | None = None) -> dict[str, Any]:
        """A record, with the features of TFDS, as text; fields may still have the files' names.

        Args:
          record: the record.
          inputs: a template in place of the task's own.
        """
        own = {name: record[old] for name, old in self.columns.items() if old in record}
        if inputs is None:
            inputs = f"{self.name if self.prefix is None else self.prefix} {self.template}"
        return glue({**record, **own}, inputs=inputs, labels=self.labels)

    def records(self, file: DataPath, split: str) -> Iterator[dict[str, Any]]:
        """The records of an official file, with the features of TFDS.

        Raises:
          InputError: naming file and line.
        """
        columns = self.columns or {name: name for name in places(self.template)}
        entries = self.entries or self.labels
        rows = read_jsonl(file, fields=tuple(columns.values()), numbers=("idx",))
        for row, number in numbered(rows, column="idx"):
            yield {
                **{name: row.fields[old] for name, old in columns.items()},
                "label": read_label(row, entries, split=split),
                "idx": number,
            }


def labelled_form(
    texts: Sequence[Text], labels: Sequence[str], *, clean: Callable[[str], str] = str
) -> Labelled:
    """How an encoder reads a task whose record has a "label", the index of one of some words.

    Args:
      texts: as of `Labelled`.
      labels: the words.
      clean: as of `Labelled`.
    """
    return Labelled(
        texts=texts,
        label=lambda record: of_class(record["label"]),
        target=lambda record: label_text(record["label"], labels),
        clean=clean,
    )


MULTIRC_TEXTS = labelled_form(("{paragraph} {question}", "answer"), YES_OR_NO, clean=without_html)
"""Paragraph and question, and an answer."""


WSC_TEXTS = replace(
    labelled_form((marked_pronoun, "span1_text"), YES_OR_NO),
    fields=lambda record: {"idx": record["idx"]},
    kinds={"idx": int},
    postprocess=ClassIndex(YES_OR_NO),
)
"""The text with its pronoun between asterisks, and the noun: is this what the pronoun means?

So do P-tuning v2 (Liu et al. 2022, arXiv:2110.07602) and those who compare with it. The baseline of
SuperGLUE classifies the pooled states of both spans instead, for which there is no head here.
"""


def _record_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{f"idx/{name}": record["idx"][name] for name in ("passage", "query")},
        "question": f"{without_highlights(record['passage'])} {record['query']}",
        "candidates": list(record["entities"]),
        "answers": list(record["answers"]),
    }


RECORD_TEXTS = Labelled(
    texts=("passage", "query"),
    clean=without_highlights,
    label=lambda record: NONE,
    target=lambda record: UNKNOWN,
    candidates=PLACEHOLDER,
    fields=_record_fields,
    kinds={"idx/passage": int, "idx/query": int, **questions.KINDS},
    postprocess=questions.CandidateText(postprocess.record),
)
"""The passage, and the query with each of the entities in turn, which have labels of their own.

So does the BERT baseline of SuperGLUE, which has a row for each mention of an entity; here, as in
TFDS and P-tuning v2, there is one for each of its names.
"""


MULTIRC_WORDS = Wording(
    prefix="multirc", template="question: {question} answer: {answer} paragraph: {paragraph}"
)
RECORD_WORDS = Wording(
    prefix="record", template="query: {query} entities: {entities} passage: {passage}"
)
WSC_WORDS = Wording(prefix="wsc:", template="{text}")
DPR_WORDS = Wording(prefix="wsc:", template="{sentence}")


def read_label(row: Row, entries: Sequence[str], *, split: str) -> int:
    """The index of a line's "label", which only a test split may lack: it is -1 then."""
    label = row.fields.get("label")
    if label is None and split == "test":
        return -1
    fields = row.fields if label is not None else {}
    if isinstance(label, bool):  # JSON's true is True in Python
        fields = {"label": str(label)}
    elif entries == YES_OR_NO and label in (0, 1):  # MultiRC's
        fields = {"label": YES_OR_NO[label]}
    return label_index(Row(row.where, fields), "label", entries)


def multirc_records(file: DataPath, split: str) -> Iterator[dict[str, Any]]:
    """MultiRC: a record for each answer of each question of each paragraph.

    Raises:
      InputError: naming file and line.
    """
    for row, paragraph in numbered(read_jsonl(file, fields=()), column="idx"):
        passage = _object(row, row.fields, "passage")
        questions = _objects(row, passage, "questions")
        _check_numbers(row, questions, what="questions")
        for question in questions:
            answers = _objects(row, question, "answers")
            _check_numbers(row, answers, what="answers")
            for answer in answers:
                yield {
                    "paragraph": _text(row, passage, "text"),
                    "question": _text(row, question, "question"),
                    "answer": _text(row, answer, "text"),
                    "label": read_label(Row(row.where, answer), YES_OR_NO, split=split),
                    "idx": {
                        "paragraph": paragraph,
                        "question": _number(row, question),
                        "answer": _number(row, answer),
                    },
                }


def record_records(file: DataPath, split: str) -> Iterator[dict[str, Any]]:
    """ReCoRD: a record for each query, its entities and answers sorted and each once.

    Raises:
      InputError: naming file and line.
    """
    for row, number in numbered(read_jsonl(file, fields=()), column="idx"):
        passage = _object(row, row.fields, "passage")
        text = _text(row, passage, "text")
        entities = {_span(row, text, entity) for entity in _objects(row, passage, "entities")}
        if not entities:
            raise InputError(f"{row.where}: the passage has no entities to choose from")
        queries = _objects(row, row.fields, "qas")
        _check_numbers(row, queries, what="queries")
        for query in queries:
            known = "answers" in query
            if not known and split != "test":
                raise InputError(f"{row.where}: a query has no answers; only those of test may not")
            if PLACEHOLDER not in _text(row, query, "query"):
                raise InputError(f"{row.where}: a query has no {PLACEHOLDER}")
            answers = _objects(row, query, "answers") if known else []
            yield {
                "passage": text,
                "query": _text(row, query, "query"),
                "entities": sorted(entities),
                "answers": sorted({_text(row, answer, "text") for answer in answers}),
                "idx": {"passage": number, "query": _number(row, query)},
            }


def wsc_records(file: DataPath, split: str) -> Iterator[dict[str, Any]]:
    """WSC with repaired spans, TFDS's "wsc.fixed".

    Raises:
      InputError: naming file and line.
    """
    rows = read_jsonl(file, fields=("text",), numbers=("idx",))
    for row, number in numbered(rows, column="idx"):
        target = _object(row, row.fields, "target")
        record = {
            "text": row.fields["text"],
            **{name: _text(row, target, name) for name in ("span1_text", "span2_text")},
            **{name: _number(row, target, name=name) for name in ("span1_index", "span2_index")},
        }
        for span in ("span1", "span2"):
            _repair(row, record, span)
        label = read_label(row, YES_OR_NO, split=split)
        record |= {"label": label, "idx": number}
        try:
            marked_pronoun(record)
        except InputError as error:
            raise InputError(f"{row.where}: {error}") from error
        yield record


def _repair(row: Row, record: dict[str, Any], span: str) -> None:
    """Makes a span a part of the text, as TFDS does: its case, a full stop, a line end."""
    text, found = record["text"], record[f"{span}_text"]
    # Of the two named, other words stand between the names.
    if found in text or found in ("Kamenev and Zinoviev", "Kamenev, Zinoviev, and Stalin"):
        return
    words = text.split()
    if record[f"{span}_index"] >= len(words) or not found:
        raise InputError(f"{row.where}: {span}_index {record[f'{span}_index']} is not in the text")
    first = words[record[f"{span}_index"]]
    if "theyscold" in found:
        record["span2_index"] = 10
    begin = found[0].lower() if first[0].islower() else found[0].upper()
    repaired = (begin + found[1:]).rstrip(".").replace("\n", " ")
    if repaired not in text:
        raise InputError(f"{row.where}: {span}_text {found!r} is not in the text")
    record[f"{span}_text"] = repaired


def _object(row: Row, node: Mapping[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(node.get(name), dict):
        raise InputError(f'{row.where}: must have "{name}", an object')
    return node[name]


def _objects(row: Row, node: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = node.get(name)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise InputError(f'{row.where}: must have "{name}", a list of objects')
    return found


def _text(row: Row, node: Mapping[str, Any], name: str) -> str:
    if not isinstance(node.get(name), str):
        raise InputError(f'{row.where}: must have "{name}", a string')
    return node[name]


def _number(row: Row, node: Mapping[str, Any], *, name: str = "idx") -> int:
    value = whole_number(node.get(name))
    if type(value) is not int or not 0 <= value < 2**31:
        raise InputError(f'{row.where}: must have "{name}", a whole number from 0')
    return value


def _check_numbers(row: Row, nodes: Sequence[Mapping[str, Any]], *, what: str) -> None:
    numbers = [_number(row, node) for node in nodes]
    twice = [number for number in dict.fromkeys(numbers) if numbers.count(number) > 1]
    if twice:
        raise InputError(f"{row.where}: two {what} have the idx {twice[0]}")


def _span(row: Row, text: str, node: Mapping[str, Any]) -> str:
    start, end = _number(row, node, name="start"), _number(row, node, name="end")
    if not start <= end < len(text):
        raise InputError(f"{row.where}: an entity from {start} to {end} is not in the passage")
    return text[start : end + 1]


LANGUAGES = (
    "ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh",
)  # fmt: skip
EXAMPLES = 392_702
"""Pairs of MNLI's training file, and of each translation."""
_WORDS = ("entailment", "neutral", "contradiction")
_HELD_OUT = {"validation": "xnli.dev.tsv", "test": "xnli.test.tsv"}


@dataclass(frozen=True, kw_only=True)
class XnliTask(GlueTask):
    """One language.

    Attributes:
      language: of the held-out rows; a training file is of one language.
    """

    language: str = ""

    @classmethod
    def held_out(cls, language: str) -> "XnliTask":
        """Validation and test of a language."""
        return cls(
            name=language,
            directory="XNLI-1.0",
            template="hypothesis: {hypothesis} premise: {premise}",
            labels={word: word for word in _WORDS},
            prefix="xnli",
            columns={"hypothesis": "sentence2", "premise": "sentence1"},
            texts=("premise", "hypothesis"),
            label_column="gold_label",
            files=_HELD_OUT,
            language=language,
        )

    @classmethod
    def training(cls, language: str) -> "XnliTask":
        """MNLI's training pairs, translated."""
        return replace(
            cls.held_out(language),
            name=f"train_{language}",
            directory="XNLI-MT-1.0",
            columns={"hypothesis": "hypo", "premise": "premise"},
            label_column="label",
            files={"train": f"multinli/multinli.train.{language}.tsv"},
        )

    def benchmark(self) -> Benchmark:
        """The task, to be read from its files or from TFDS."""
        made = super().benchmark()
        labelled = made.labelled
        assert labelled is not None
        texts = tuple(partial(self.text, name) for name in self.texts)
        return replace(
            made,
            name=f"xnli_{self.name}",
            tfds="xtreme_xnli" if "train" in self.files else "xnli",
            labelled=replace(labelled, texts=texts),
        )

    def example(self, record: Mapping[str, Any], *, inputs: str | None = None) -> dict[str, Any]:
        """A record of a file or of TFDS as text; see `GlueTask.example`."""
        shown = {name: self.text(name, record) for name in self.columns}
        return super().example({**record, **shown}, inputs=inputs)

    def text(self, name: str, record: Mapping[str, Any]) -> str:
        """A field in the task's language.

        Args:
          name: "premise" or "hypothesis".
          record: of a file, which has the text, or of TFDS, which has those of all languages.

        Raises:
          InputError: the record of TFDS lacks the language.
        """
        value = record[name]
        if isinstance(value, str):
            return value
        found = (
            dict(zip(value["language"], value["translation"], strict=True))
            if "language" in value
            else value
        )
        if self.language not in found:
            raise InputError(
                f"TFDS's {self.benchmark().tfds}: a {name} has no text in {self.language!r}; "
                f"it has {', '.join(found)}"
            )
        return found[self.language]

    def records(self, file: DataPath, split: str) -> Iterator[dict[str, Any]]:
        """The records of the language.

        Raises:
          InputError: naming file and line, what `read_tsv` refuses or an unknown label; or the
            language has no row.
        """
        held_out = split != "train"
        named = ["language"] if held_out else []
        rows = read_tsv(file, columns=[*named, *self.columns.values(), self.label_column])
        number = 0
        for row in rows:
            if held_out and row.fields["language"] != self.language:
                continue
            fields = dict(row.fields)
            if fields[self.label_column] == "contradictory":
                fields[self.label_column] = "contradiction"
            yield {
                **{name: fields[column] for name, column in self.columns.items()},
                "label": label_index(row._replace(fields=fields), self.label_column, _WORDS),
                "idx": number,
            }
            number += 1
        if not number:
            raise InputError(f"{file}: no row of the language {self.language}")
