"""Official files of GLUE, SuperGLUE and XNLI, and the tasks over them.

GLUE (Wang et al. 2019, arXiv:1804.07461) has TSV files:

    SST2 = GlueTask(
        name="sst2",
        directory="SST-2",
        template="sentence: {sentence}",
        labels={"0": "negative", "1": "positive"},
    )
    benchmarks.task(SST2.benchmark(), arguments)        # a seqio.Task

The files have no quoting: a quotation mark is an ordinary character.

SuperGLUE (Wang et al. 2019, arXiv:1905.00537) has JSONL files:

    CB = SuperGlueTask(
        name="cb",
        directory="CB",
        template="hypothesis: {hypothesis} premise: {premise}",
        labels=("entailment", "contradiction", "neutral"),
    )
    benchmarks.task(CB.benchmark(), arguments)          # a seqio.Task

Each reader yields the records of one kind of file with the features of TensorFlow Datasets. In a
test split a label may be missing or null; it is then -1. A number may be written as a string:
"idx": "0" is 0.

XNLI (Conneau et al. 2018, arXiv:1809.05053) has TSV files, read as in GLUE:

    XNLI-1.0/xnli.dev.tsv, xnli.test.tsv            columns language, gold_label, ...
    XNLI-MT-1.0/multinli/multinli.train.LANG.tsv    premise, hypo, label; "contradictory"

Columns are found by the header. Both splits of XNLI-1.0 have labels. TFDS has the held-out splits
as `xnli`, and XTREME's machine translations of MNLI as `xtreme_xnli`. A TFDS record holds all
languages:

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
    """Definition of one task of GLUE: its files, columns, labels and text template.

    The text of a record is "<prefix> <template>" with the record's fields filled in.

    Attributes:
      name: name of the task and of its TFDS config.
      directory: official name of the folder.
      template: template with the fields of the text, in T5's order.
      labels: word of each entry of the label column, in class order; empty if labels are numbers.
      prefix: first word of the text; None for the task's name.
      columns: column in the files for each field of a record; empty if the names are equal.
      label_column: column of the labels, which test files lack.
      id_column: column of the example numbers. If a file lacks it, rows are counted from 0.
      header: columns of the train and validation files, if these files have no header.
      skip_incomplete: True to skip rows with too few columns, with a warning.
      files: official file of each split.
      tfds_splits: TFDS's name of each split that TFDS names differently.
      as_text: function (record, inputs=prefix and template) that returns an example; None for
        `preprocessors.glue`.
      extras: types of an example's fields other than inputs and targets.
      postprocess: function (text, example=, is_target=) that returns the value that metrics
        compare; None for the class index.
      metrics: functions (targets, predictions) -> {name: value}.
      texts: fields that an encoder reads, in this order; empty for the fields of the template.
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
        """Return the task as a `Benchmark`, with data from official files or TFDS."""
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
        """Return the prompt of the task, and the columns that a custom template may use."""
        prefix = self.name if self.prefix is None else self.prefix
        shown = places(self.template)
        columns = tuple(dict.fromkeys([*shown, *self.columns]))
        return Wording(prefix=prefix, template=self.template, columns=columns)

    def labelled(self) -> Labelled | None:
        """Return the task's description for encoders; None if encoders are not supported."""
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
                postprocess=any_number,  # a regression head predicts any number
            )
        words = tuple(self.labels.values())
        return Labelled(
            texts=texts,
            label=lambda record: of_class(record["label"]),
            target=lambda record: label_text(record["label"], words),
        )

    def example(self, record: Mapping[str, Any], *, inputs: str | None = None) -> dict[str, Any]:
        """Convert a record to a text-to-text example with "inputs" and "targets".

        Args:
          record: record of an official file or of TFDS.
          inputs: template to use instead of the task's default.
        """
        if inputs is None:
            inputs = f"{self.name if self.prefix is None else self.prefix} {self.template}"
        if self.as_text is not None:
            return self.as_text(record, inputs=inputs)
        return glue(record, inputs=inputs, labels=tuple(self.labels.values()))

    def records(self, file: DataPath, split: str) -> Iterator[dict[str, Any]]:
        """Yield the records of an official file, with the field names of TFDS.

        Missing or unknown labels of a test split are -1.
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
        raise InputError(f"{where}: column {column} must be a number, got {entry!r}")
    return score


SUPER_GLUE_FILES = {"train": "train.jsonl", "validation": "val.jsonl", "test": "test.jsonl"}
YES_OR_NO = ("False", "True")
PLACEHOLDER = "@placeholder"
"""Marker in a ReCoRD query for the entity to fill in."""
COPA_QUESTIONS = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}
"""COPA's questions in the words of Roemmele et al. 2011, by "question" in the files."""


@dataclass(frozen=True, kw_only=True)
class SuperGlueTask:
    """Definition of a SuperGLUE task with one labelled record per line.

    Attributes:
      name: name of the task and of its TFDS config.
      directory: official name of the folder.
      template: template with the fields of the text, in T5's order.
      labels: words of the labels, in the order of their indices.
      prefix: first word of the text; None for the task's name.
      entries: labels as written in the files, in the order of `labels`. If empty, the files contain
        `labels`; for `YES_OR_NO` they may also contain JSON's false and true.
      columns: column in the files for each field of a record; empty if the names are equal.
      files: official file of each split.
      tfds_splits: name of a split in TFDS, for each split with a different name in TFDS.
      metrics: functions (targets, predictions) -> {name: value} on class indices.
      texts: one or two texts that an encoder reads, as in `labelled.Labelled`; if empty, the two
        fields of the template in reverse order.
      choices: True if `texts` are a question and its choices.
      words: for each field, the words that an encoder reads instead of the values in the files.
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
        """Return the task as a `Benchmark`, with data from official files or TFDS."""
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
        """Return the task's description for encoders; None if encoders are not supported."""
        shown = places(self.template)
        texts = self.texts or (shown[::-1] if len(shown) == 2 else ())
        if not texts:
            return None
        form = labelled_form(texts, self.labels)
        return replace(form, columns=self.columns, choices=self.choices, words=self.words)

    def example(self, record: Mapping[str, Any], *, inputs: str | None = None) -> dict[str, Any]:
        """Convert a record to a text-to-text example with "inputs" and "targets".

        Args:
          record: record, with the field names of TFDS or of the files.
          inputs: template to use instead of the task's default.
        """
        own = {name: record[old] for name, old in self.columns.items() if old in record}
        if inputs is None:
            inputs = f"{self.name if self.prefix is None else self.prefix} {self.template}"
        return glue({**record, **own}, inputs=inputs, labels=self.labels)

    def records(self, file: DataPath, split: str) -> Iterator[dict[str, Any]]:
        """Yield the records of an official file, with the field names of TFDS."""
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
    """Return the description of a classification task for encoders.

    Args:
      texts: one or two texts in the order of the row: names of fields, or templates.
      labels: word of each class.
      clean: function applied to each text before it is encoded.
    """
    return Labelled(
        texts=texts,
        label=lambda record: of_class(record["label"]),
        target=lambda record: label_text(record["label"], labels),
        clean=clean,
    )


MULTIRC_TEXTS = labelled_form(("{paragraph} {question}", "answer"), YES_OR_NO, clean=without_html)
"""Form in which an encoder reads MultiRC: two texts, paragraph with question, and answer."""


WSC_TEXTS = replace(
    labelled_form((marked_pronoun, "span1_text"), YES_OR_NO),
    fields=lambda record: {"idx": record["idx"]},
    kinds={"idx": int},
    postprocess=ClassIndex(YES_OR_NO),
)
"""Form in which an encoder reads WSC: the text with its pronoun between asterisks, and the noun.

The label is True if the pronoun means the noun, as in P-tuning v2 (Liu et al. 2022,
arXiv:2110.07602). The baseline of SuperGLUE instead classifies the pooled hidden states of both
spans, and this package has no such head.
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
"""Form in which an encoder reads ReCoRD: the passage, and the query with one entity filled in.

Each entity has its own label. The BERT baseline of SuperGLUE has a row for each mention of an
entity. Here, as in TFDS and P-tuning v2, there is one row for each distinct name.
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
    """Return the class index of a row's label, or -1 if the label of a test split is missing."""
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
    """Yield MultiRC's records, one for each answer of each question of each paragraph."""
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
    """Yield ReCoRD's records, one for each query, with sorted distinct entities and answers."""
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
                raise InputError(
                    f"{row.where}: a query has no answers; only a test split may lack answers"
                )
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
    """Yield the records of WSC, after correcting wrong text spans as TFDS's "wsc.fixed" does."""
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
    text, found = record["text"], record[f"{span}_text"]
    # In the text, other words separate the names of these two spans.
    if found in text or found in ("Kamenev and Zinoviev", "Kamenev, Zinoviev, and Stalin"):
        return
    words = text.split()
    if record[f"{span}_index"] >= len(words) or not found:
        raise InputError(
            f"{row.where}: field {span}_index must be the index of a word in the text, got "
            f"{record[f'{span}_index']}"
        )
    first = words[record[f"{span}_index"]]
    if "theyscold" in found:
        record["span2_index"] = 10
    begin = found[0].lower() if first[0].islower() else found[0].upper()
    repaired = (begin + found[1:]).rstrip(".").replace("\n", " ")
    if repaired not in text:
        raise InputError(f"{row.where}: field {span}_text is {found!r}, which is not in the text")
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
        raise InputError(
            f"{row.where}: an entity from character {start} to {end} is not within the passage"
        )
    return text[start : end + 1]


LANGUAGES = (
    "ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh",
)  # fmt: skip
EXAMPLES = 392_702
"""Number of pairs in MNLI's training file, and in each translation."""
_WORDS = ("entailment", "neutral", "contradiction")
_HELD_OUT = {"validation": "xnli.dev.tsv", "test": "xnli.test.tsv"}


@dataclass(frozen=True, kw_only=True)
class XnliTask(GlueTask):
    """Definition of the task XNLI in one language.

    Attributes:
      language: language of the rows to read from a held-out file; a training file has only one
        language.
    """

    language: str = ""

    @classmethod
    def held_out(cls, language: str) -> "XnliTask":
        """Return the task with the validation and test splits of XNLI in one language."""
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
        """Return the task with MNLI's training pairs translated into one language."""
        return replace(
            cls.held_out(language),
            name=f"train_{language}",
            directory="XNLI-MT-1.0",
            columns={"hypothesis": "hypo", "premise": "premise"},
            label_column="label",
            files={"train": f"multinli/multinli.train.{language}.tsv"},
        )

    def benchmark(self) -> Benchmark:
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
        shown = {name: self.text(name, record) for name in self.columns}
        return super().example({**record, **shown}, inputs=inputs)

    def text(self, name: str, record: Mapping[str, Any]) -> str:
        """Return the premise or the hypothesis of a record in the task's language.

        Args:
          name: "premise" or "hypothesis".
          record: record of a file, with one text per field, or of TFDS, with the texts of all
            languages.

        Raises:
          InputError: if the TFDS record lacks the language.
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
                f"TFDS's {self.benchmark().tfds}: a {name} has no text in {self.language!r}; the "
                f"languages are {', '.join(found)}"
            )
        return found[self.language]

    def records(self, file: DataPath, split: str) -> Iterator[dict[str, Any]]:
        """Yield the records of a file in the task's language."""
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
