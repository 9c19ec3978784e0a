r"""Conversion of records and of your own tables to text, with exactly the text of T5.

Conversion of records to the text of T5's tasks, as pure functions over str.

A record is a mapping with the fields of TensorFlow Datasets: text as str, a class label as its
index (-1 if unknown). A function returns T5's example, or list of examples, for the record:
"inputs", "targets", and the fields that the task's metric needs ("idx", "answers").

    glue(
        {"sentence": "it 's charming .", "label": 1, "idx": 7},
        inputs="sst2 sentence: {sentence}",
        labels=("negative", "positive"),
    )
    # {"inputs": "sst2 sentence: it 's charming .", "targets": "positive", "idx": 7}

The text around the fields is a template, a hyperparameter according to the paper (Raffel et al.
2020, arXiv:1910.10683, section 2.4). An unknown label is written "<unk>".

Source: t5 0.9.4, t5/data/preprocessors.py, which builds the text in TensorFlow.

Classification and regression: GLUE, and the tasks of SuperGLUE with one label per record.

Source: t5 0.9.4, t5/data/preprocessors.py (glue, stsb).

Questions about a text: SQuAD, and MultiRC and ReCoRD of SuperGLUE.

    squad({"question": "Why?", "context": "It rains.", "answers": {"text": ["rain"]}, "id": "7"})
    # {"inputs": "question: Why ? context: It rains . ", "targets": "rain", "id": "7", ...}

Source: t5 0.9.4, t5/data/preprocessors.py (squad, glue, record). White space is RE2's "\s", which
is ASCII without the vertical tab.

Templates for the fields of a record:

    fill("sst2 sentence: {sentence}", {"sentence": "it 's charming ."})
    # "sst2 sentence: it 's charming ."

A field's name in braces is replaced by its value, and any name is valid ("{#1 String}"); "{{" and
"}}" are braces. The value of a field is text and is never read as a template.

Winograd schemas as text: WSC of SuperGLUE, WNLI of GLUE, and definite pronoun resolution (DPR).

T5 uses one form for all three: the pronoun is between asterisks, and the answer is the noun that it
refers to (Raffel et al. 2020, section 2.4):

    wsc_simple({"text": "Ann asked Bob if he could go .", "span1_text": "Bob", "span2_text": "he",
                "span2_index": 4, "label": 1, "idx": 0})
    # {"inputs": "wsc: Ann asked Bob if *he* could go .", "targets": "Bob", "label": 1, "idx": 0}

In WSC and WNLI the label tells if a given noun is the referent. The given noun is always the
target, even with label 0, so train only on examples with label 1.

Source: t5 0.9.4, t5/data/preprocessors.py (wsc, wsc_simple, definite_pronoun_resolution_simple,
wnli_simple).

Training on your own tables: columns that form the inputs and the targets.

    Columns(inputs="review: {text}", targets="{stars}", labels=("1=bad", "5=good"))

turns the row text="Fine.", stars="5" of a JSONL, CSV, TSV, Parquet or Arrow file into the example

    {"inputs": "review: Fine.", "targets": "good"}

`data.formats.table_splits` chooses the files of each split.
"""

import logging
import re
import string
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.benchmark_files import Row, label_index
from t5x_lite.data.formats.documents import fill, places
from t5x_lite.data.formats.tables import SPLITS, Table, check_row, read_rows, table_splits, texts_of

__all__ = ["fill", "places", "prompt", "rewrite"]

_logger = logging.getLogger(__name__)


def prompt(task: str, fields: Mapping[str, str]) -> str:
    """Return a task's name followed by the names and values of its fields, on one line."""
    return " ".join([task, *(f"{key}: {value}" for key, value in fields.items())])


def rewrite(record: Mapping[str, object], *, inputs: str, targets: str) -> dict[str, str]:
    """Format a record with a template for the inputs and a template for the targets.

    T5 uses "summarize: {article}" and "translate English to German: {en}".
    """
    return {"inputs": fill(inputs, record), "targets": fill(targets, record)}


UNKNOWN = "<unk>"
"""Target of a record without a known answer, such as in a test split."""


def glue(record: Mapping[str, Any], *, inputs: str, labels: Sequence[str]) -> dict[str, Any]:
    """Format a record of a classification task of GLUE or SuperGLUE.

    Args:
      record: the fields, including "label" and "idx".
      inputs: template of the inputs. T5's templates have the fields in alphabetical order.
      labels: target words of the labels, in the order of the label indices.
    """
    return {
        "inputs": fill(inputs, record),
        "targets": label_text(record["label"], labels),
        "idx": record["idx"],
    }


def stsb(
    record: Mapping[str, Any], *, inputs: str = "stsb sentence1: {sentence1} sentence2: {sentence2}"
) -> dict[str, Any]:
    """Format a record of STS-B; the target is the similarity from 0 to 5, rounded to a fifth.

    The 26 targets are "0.0", "0.2" ... "5.0". Rounding is the same as TensorFlow's, in float32 with
    ties to even: 2.5 is "2.4". An unknown label of -1 is "-1.0".
    """
    fifths = np.rint(np.float32(record["label"]) * np.float32(5))
    return {
        "inputs": fill(inputs, record),
        "targets": f"{float(fifths / np.float32(5)):.1f}",
        "idx": record["idx"],
    }


def label_text(label: int, labels: Sequence[str]) -> str:
    """Return the target word of a label index, or "<unk>" for -1."""
    return UNKNOWN if label == -1 else labels[label]


_SPACES = re.compile(r"[\t\n\f\r ]+")
_PUNCTUATION = re.compile(f"([{re.escape(string.punctuation)}])")
_SENTENCE_END = re.compile(r"""([.?!"'])\n@highlight\n""")


def pad_punctuation(text: str) -> str:
    """Put spaces around each ASCII punctuation mark, and collapse repeated white space."""
    return _SPACES.sub(" ", _PUNCTUATION.sub(r" \1 ", text))


def squad(
    record: Mapping[str, Any], *, inputs: str = "question: {question} context: {context}"
) -> dict[str, Any]:
    """Format a record of SQuAD; the target is the first answer, and "answers" has all answers.

    Args:
      record: "id", "question", "context", and "answers" with the list "text", empty if they are
        unknown.
      inputs: template of the inputs; T5's closed-book template is "squad trivia question:
        {question}".
    """
    question, context = pad_punctuation(record["question"]), pad_punctuation(record["context"])
    answers = [pad_punctuation(answer) for answer in record["answers"]["text"]]
    return {
        "inputs": _SPACES.sub(" ", fill(inputs, {"question": question, "context": context})),
        "targets": answers[0] if answers else UNKNOWN,
        "id": record["id"],
        "context": context,
        "question": question,
        "answers": answers,
    }


def multirc(
    record: Mapping[str, Any],
    *,
    inputs: str = "multirc question: {question} answer: {answer} paragraph: {paragraph}",
) -> dict[str, Any]:
    """Format a record of MultiRC; the target is whether the given answer is correct.

    Args:
      record: "question", "answer", "paragraph", "label", and "idx" with the numbers of paragraph,
        question and answer. The metric groups answers by question.
      inputs: template of the inputs; <br> becomes a space, and <b> is removed.
    """
    return {
        "inputs": without_html(fill(inputs, record)),
        "targets": label_text(record["label"], ("False", "True")),
        **{f"idx/{name}": record["idx"][name] for name in ("paragraph", "question", "answer")},
    }


def without_html(text: str) -> str:
    """Remove HTML from a text of MultiRC: <br> becomes a space, and <b> is removed."""
    return re.sub("</?b>", "", text.replace("<br>", " "))


def record(
    record: Mapping[str, Any],
    *,
    inputs: str = "record query: {query} entities: {entities} passage: {passage}",
) -> list[dict[str, Any]]:
    """Return one example for each answer of a ReCoRD record; each answer is an entity.

    A record without answers has one example with the target "<unk>". The metric counts a query
    once, with the best score over its answers.

    Args:
      record: "query", "passage", the lists "entities" and "answers", and "idx" with the numbers
        "passage" and "query".
      inputs: template of the inputs.
    """
    passage = without_highlights(record["passage"])
    fields = {**record, "passage": passage, "entities": ", ".join(record["entities"])}
    return [
        {
            "idx/passage": record["idx"]["passage"],
            "idx/query": record["idx"]["query"],
            "inputs": fill(inputs, fields),
            "targets": answer,
            "answers": list(record["answers"]),
        }
        for answer in record["answers"] or [UNKNOWN]
    ]


def without_highlights(passage: str) -> str:
    """Replace "@highlight" lines in a passage of ReCoRD by ends of sentences, as T5 does."""
    return _SENTENCE_END.sub(r"\1 ", passage).replace("\n@highlight\n", ". ")


PRONOUNS = ("he", "she", "they", "it", "her", "his", "their", "them", "him")
_ARTICLES = ("a", "an", "the")
_MARKS = (".", ",", "!", "?")
_SPACE = r"[\t\n\f\r ]"  # RE2's \s
_TOO_FAR = 10

# Two texts of WSC with a pronoun that is not a separate word at its index, replaced by X.
_PONY = (
    "The boy continued to whip the pony , and eventually the pony threw him over. John laughed out "
    'quite loud. "Good for him," he said. '
)
_PEBBLE = (
    "When they had eventually calmed down a bit , and had gotten home, Mr. Farley put the magic "
    "pebble in an iron safe . Some day they might want to use it , but really for now, what more "
    "could they wish for?"
)
_BLANKED = {
    _PONY: _PONY.replace('for him," he said. ', 'for X ," he said.'),
    _PEBBLE: _PEBBLE.replace("use it ,", "use X ,"),
}


def wsc_simple(record: Mapping[str, Any], *, inputs: str = "wsc: {text}") -> dict[str, Any]:
    """Format a record of WSC: asterisks mark the pronoun (span2); the noun (span1) is the target.

    Raises:
      InputError: if the word at span2_index is not span2_text.
    """
    pronoun = record["span2_text"]
    text = _blanked(record).replace(" X ", f" *{pronoun}* ")
    return {
        "inputs": fill(inputs, {**record, "text": text}),
        "targets": record["span1_text"],
        "label": record.get("label", 0),
        "idx": record["idx"],
    }


def _blanked(record: Mapping[str, Any]) -> str:
    text, pronoun, index = record["text"], record["span2_text"], record["span2_index"]
    if text in _BLANKED:
        return _BLANKED[text]
    words = text.split(" ")
    if not 0 < index < len(words) or words[index] != pronoun:
        raise _no_pronoun(record)
    # A pronoun at the end keeps a space after it, as in T5.
    return " ".join([" ".join(words[:index]), "X", " ".join(words[index + 1 :])])


def marked_pronoun(record: Mapping[str, Any]) -> str:
    """Put asterisks around the occurrence of the pronoun (span2) that is nearest to span2_index.

    In the official files, punctuation follows pronouns without a space, as in '"for him," he said',
    and indices may count punctuation as words.

    Raises:
      InputError: if the pronoun does not occur within ten words of the index.
    """
    text, pronoun, index = record["text"], record["span2_text"], record["span2_index"]
    starts = [word.start() for word in re.finditer(r"\S+", text)]
    bare = re.escape(pronoun)
    words = [*re.finditer(rf"(?<!\w){bare}(?!\w)", text, re.IGNORECASE)]
    places = words or [*re.finditer(bare, text, re.IGNORECASE)]
    if pronoun and places and index < len(starts):
        nearest = min(places, key=lambda place: abs(place.start() - starts[index]))
        start, end = nearest.span()
        if abs(sum(begin <= start for begin in starts) - 1 - index) < _TOO_FAR:
            return f"{text[:start]}*{text[start:end]}*{text[end:]}"
    raise _no_pronoun(record)


def wsc(record: Mapping[str, Any], *, inputs: str = "wsc text: {text}") -> dict[str, Any]:
    """Format a record of WSC with marks around noun and pronoun; the target is "True" or "False".

    The noun (span1) is between asterisks, the pronoun (span2) between hash signs. A span that is
    not at its index is not marked.
    """
    first, second = record["span1_index"], record["span2_index"]
    text = _marked(record["text"], record["span1_text"], first, mark="*")
    second += 2 * (first < second)  # the two asterisks count as words
    text = _marked(text, record["span2_text"], second, mark="#")
    return {
        "inputs": fill(inputs, {**record, "text": text}),
        "targets": label_text(record["label"], ("False", "True")),
        "idx": record["idx"],
    }


def _no_pronoun(record: Mapping[str, Any]) -> InputError:
    return InputError(
        f"WSC {record['idx']}: word {record['span2_index']} of {record['text'][:60]!r} is not the "
        f"pronoun {record['span2_text']!r}"
    )


def _marked(text: str, span: str, index: int, *, mark: str) -> str:
    before = rf"^((?:[^\t\n\f\r ]+{_SPACE}){{{index}}})"
    return re.sub(
        before + re.escape(span), lambda match: f"{match.group(1)}{mark} {span} {mark}", text
    )


def definite_pronoun_resolution(
    record: Mapping[str, Any], *, inputs: str = "wsc: {sentence}"
) -> dict[str, Any]:
    """Format a record of DPR: asterisks mark the pronoun, and the correct candidate is the target.

    Args:
      record: "sentence", "pronoun", the two "candidates" and "label", the index of the correct
        candidate.
      inputs: template of the inputs.
    """
    pronoun = re.compile(rf" ({re.escape(record['pronoun'])})( |\.|,)")
    sentence = pronoun.sub(r" *\1*\2", record["sentence"], count=1)
    return {
        "inputs": fill(inputs, {**record, "sentence": sentence}),
        "targets": record["candidates"][record["label"]],
    }


# WNLI: the pronoun and the noun must be found by comparing premise and hypothesis.


class _Match(NamedTuple):
    """Score of a pronoun of a WNLI premise, and the words that replace it in the hypothesis."""

    score: int
    index: int
    candidate: str


def wnli_simple(record: Mapping[str, Any], *, inputs: str = "wsc: {text}") -> dict[str, Any]:
    """Format a record of WNLI like a record of WSC; only for evaluation.

    The pronoun of the premise ("sentence1") with the longest context in common with the hypothesis
    ("sentence2") is marked. The words that replace this pronoun in the hypothesis are the target.

        "The fish ate the worm. It was tasty.", "The worm was tasty."
        -> "wsc: The fish ate the worm. *It* was tasty.", "The worm"

    Raises:
      InputError: if the premise has no pronoun, or the hypothesis does not fit the premise.
    """
    premise, hypothesis = record["sentence1"], record["sentence2"]
    words, wanted = _words(premise), _words(hypothesis)
    matches = [_match(words, wanted, i) for i, word in enumerate(words) if word in PRONOUNS]
    if not matches:
        raise InputError(
            f"WNLI example {record['idx']}: the premise {premise[:60]!r} contains no pronoun"
        )
    best = max(matches, key=lambda match: match.score)
    targets = _as_in(hypothesis, _without_beginning(best.candidate))
    if targets is None:
        raise InputError(
            f"WNLI example {record['idx']}: the hypothesis {hypothesis[:60]!r} contains no words "
            "that replace the pronoun of the premise"
        )
    return {
        "inputs": fill(inputs, {**record, "text": _highlighted(premise, best.index)}),
        "targets": targets,
        "premise": premise,
        "hypothesis": hypothesis,
        "label": record.get("label", 0),
        "idx": record["idx"],
    }


def _words(sentence: str) -> list[str]:
    words = (re.sub(r"[.,?!]$", "", word) for word in sentence.strip().lower().split(" "))
    return [word for word in words if word]


def _match(premise: Sequence[str], hypothesis: Sequence[str], index: int) -> _Match:
    before, after = premise[:index], premise[index + 1 :]
    num_before = _fitting(before[::-1], hypothesis[::-1])
    num_after = _fitting(after, hypothesis)
    score = num_before + num_after
    if not score:
        return _Match(0, index, "")
    left, right = list(before[len(before) - num_before :]), list(after[:num_after])
    text = " ".join(hypothesis)
    # The words are unescaped patterns, as in T5.
    patterns = ([*left, "(.+)", *right], ["^(.+)", *right], [*left, "(.+)$"])
    try:
        found = (re.search(" ".join(pattern), text) for pattern in patterns)
        match = next((match for match in found if match), None)
    except re.error as error:
        raise InputError(
            f"WNLI: cannot match the hypothesis {text[:60]!r} with the premise, because the words "
            f"are not a valid regular expression ({error})"
        ) from error
    return _Match(score, index, match.group(1) if match else "")


def _fitting(words: Sequence[str], hypothesis: Sequence[str]) -> int:
    text = " ".join(hypothesis)
    for count in range(len(words)):
        if " ".join(words[: count + 1]) not in text:
            return count
    return len(words)


def _without_beginning(candidate: str) -> str:
    """Remove the words of a candidate before its last article (a, an, the)."""
    words = candidate.split(" ")
    return " ".join(words[max((words.index(a) for a in _ARTICLES if a in words), default=0) :])


def _as_in(hypothesis: str, candidate: str) -> str | None:
    """Return the candidate as the hypothesis spells it, without "'s"; None if it is absent."""
    words = (rf"{re.escape(word)}[.,?!]?" for word in candidate.split(" "))
    match = re.search(f"({' '.join(words)})", hypothesis, re.IGNORECASE)
    if match is None:
        return None
    text = match.group(1)
    text = text[:-1] if text.endswith(_MARKS) else text
    return text.removesuffix("'") if text.endswith("'") else text.removesuffix("'s")


def _highlighted(sentence: str, index: int) -> str:
    words = sentence.split(" ")
    word = words[index]
    ended = word.endswith(_MARKS)
    words[index] = f"*{word[:-1]}* {word[-1]}" if ended else f"*{word}*"
    return " ".join(words)


__all__ = [
    "UNKNOWN",
    "definite_pronoun_resolution",
    "fill",
    "glue",
    "label_text",
    "marked_pronoun",
    "multirc",
    "pad_punctuation",
    "prompt",
    "record",
    "rewrite",
    "squad",
    "stsb",
    "wnli_simple",
    "wsc",
    "wsc_simple",
]


MOST_LABELS = 1000
"""Maximum number of different labels that are collected from the training rows."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Configuration of how columns of a table become inputs and targets of a task.

    Attributes:
      inputs: input text with column names in braces, such as "review: {text}". For unlabelled text,
        the complete text; "" is "{text}".
      second: second text of a pair with column names in braces, such as "{hypothesis}", for an
        encoder; "" for no second text.
      targets: target text or label with column names in braces, such as "{label}". A test split may
        lack the column.
      labels: all possible targets, each either as in the file ("negative") or with the word that
        replaces it ("0=negative"). () if targets are free text, or to collect the labels from the
        training rows.
      id: column with a unique value for each row of a split; "" to number the rows.
      quoting: if True, entries of a CSV or TSV file may be in quotation marks, as spreadsheets
        write them; if False, quotation marks are ordinary characters.
      train: files of the training split, or patterns such as "2024-*.csv", relative to
        data.directory. By default, the files with the split's name.
      validation: files of the validation split; same format as `train`.
      test: files of the test split; same format as `train`.
      min_score: minimum score of a pair in parallel files with scores; None keeps all pairs.
      hold_out: without validation files, one training row in `hold_out` is used for validation,
        chosen by a hash of its inputs. 0 uses none; for unlabelled text, 0 uses one document in
        100.
      stream: if True, rows are read as needed and shuffled through data.shuffle_buffer; if False,
        all rows are kept in memory and permuted completely. None chooses by the size of the files.
    """

    inputs: str = ""
    second: str = ""
    targets: str = ""
    labels: tuple[str, ...] = ()
    id: str = ""
    quoting: bool = True
    train: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    min_score: float | None = None
    hold_out: int = 0
    stream: bool | None = None

    def __post_init__(self):
        twice = [entry for entry in self.entries() if list(self.entries()).count(entry) > 1]
        if twice:
            raise InputError(f"data.columns.labels has {twice[0]!r} twice")
        if self.hold_out < 0 or self.hold_out == 1:
            raise InputError(
                f"data.columns.hold_out must be 0 or at least 2, but is {self.hold_out}"
            )

    def entries(self) -> tuple[str, ...]:
        """Return the labels as they are written in the file."""
        return tuple(label.partition("=")[0] for label in self.labels)

    def words(self) -> tuple[str, ...]:
        """Return the target word of each label, which may differ from the label in the file."""
        return tuple(label.partition("=")[2] or label for label in self.labels)

    def check(self) -> None:
        """Raise InputError if `inputs` or `targets` contains no column name in braces."""
        for name in ("inputs", "targets"):
            if not places(getattr(self, name)):
                raise InputError(
                    f"data.columns.{name} must name a column in braces, such as '{{text}}', but "
                    f"is {getattr(self, name)!r}"
                )

    def splits(self, directory: str) -> dict[str, tuple[Table, ...]]:
        """Return the tables of each split."""
        own = {name: getattr(self, name) for name in SPLITS}
        found = table_splits(directory, patterns=own)
        if self.hold_out and "train" in found and "validation" not in found:
            found = {"train": found["train"], "validation": found["train"], **found}
        return found

    def examples(self, sources: Sequence[Table], split: str) -> Iterator[dict[str, Any]]:
        """Yield the examples of a split, with the keys "inputs", "second", "targets" and "id"."""
        needed = [*places(self.inputs), *places(self.second), *([self.id] if self.id else [])]
        if split != "test":
            needed += places(self.targets)
        needed = [*dict.fromkeys(needed)]
        seen: dict[str, str] = {}
        rows = (
            row
            for table in sources
            for row in read_rows(table, columns=needed, quoting=self.quoting)
        )
        for count, row in enumerate(rows):
            check_row(row, needed)
            fields = texts_of(row)
            identity = fields[self.id] if self.id else str(count)
            if identity in seen:
                raise InputError(
                    f"{row.where}: column {self.id} has the id {identity!r}, which is also in "
                    f"{seen[identity]}; ids must be unique"
                )
            if self.id and not self.stream:
                seen[identity] = row.where
            second = {"second": fill(self.second, fields)} if self.second else {}
            yield {
                "inputs": fill(self.inputs, fields),
                **second,
                "targets": self._target(Row(row.where, fields), split),
                "id": identity,
            }

    def held_out(self, example: dict[str, Any]) -> bool:
        """Return True if an example of the training files is used for validation instead."""
        text = f"{example['inputs']}\n{example.get('second', '')}"
        return zlib.crc32(text.encode("utf-8", "surrogatepass")) % self.hold_out == 0

    def known_labels(self, sources: Sequence[Table]) -> tuple[str, ...]:
        """Return `labels`, or all different targets in the tables if `labels` is empty."""
        if self.labels:
            return self.labels
        found: set[str] = set()
        for example in self.examples(sources, "train"):
            found.add(example["targets"])
            if not example["targets"].strip():
                self.check_labels(found, sources)
            if len(found) > MOST_LABELS:
                raise InputError(
                    f"data.columns.targets {self.targets!r} has more than {MOST_LABELS} "
                    "different texts, which are too many for a classification; use "
                    "tasks.files:text_to_text"
                )
        self.check_labels(found, sources)
        return self.sorted_labels(found)

    def check_labels(self, labels: Collection[str], sources: Sequence[Table]) -> None:
        """Raise InputError if a training row has an empty label; warn if all labels are equal."""
        if any(not label.strip() for label in labels):
            names = places(self.targets)
            for row in (r for table in sources for r in read_rows(table, columns=names)):
                if not fill(self.targets, texts_of(row)).strip():
                    raise InputError(
                        f"{row.where}: the label {self.targets!r} is empty; fill it in or remove "
                        "the row"
                    )
        if len(labels) == 1:
            _logger.warning(
                "all training rows have the label %r; a model learns nothing from a single class",
                *labels,
            )

    @staticmethod
    def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
        """Sort labels: numbers in ascending order, then other texts in alphabetical order."""
        found = sorted(labels, key=_order)
        divided = [label for label in found if "=" in label]
        if divided:
            raise InputError(
                f"the label {divided[0]!r} contains '='; list all labels in data.columns.labels, "
                "each with a word, such as 0=no 1=yes"
            )
        return tuple(found)

    def _target(self, row: Row, split: str) -> str:
        names = places(self.targets)
        if split == "test" and any(row.fields.get(name, "") == "" for name in names):
            return UNKNOWN
        text = fill(self.targets, row.fields)
        if not self.labels:
            return text
        # The complete target is looked up as a label: usually "{label}".
        found = Row(row.where, {"label": text})
        return self.words()[label_index(found, "label", self.entries())]


def _order(label: str) -> tuple[bool, float, str]:
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label
