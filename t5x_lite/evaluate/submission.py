"""Submission files for GLUE, SuperGLUE, SQuAD and CoNLL.

    answers = [Answer(index=(0,), text="acceptable", value=1), ...]
    written = write(FORMATS["glue_cola"], answers, "out/glue")      # out/glue/CoLA.tsv
    written.invalid                         # predictions that were not valid labels

GLUE's files are TSV with the header "index<TAB>prediction". SuperGLUE's files are JSON lines
{"idx", "label"}; for MultiRC the labels are nested by passage and question. Rows are sorted by
index. Sources: the FAQ of gluebenchmark.com and super.gluebenchmark.com, and the files that jiant
writes (jiant 1.3, jiant/evaluate.py, _write_glue_preds and its siblings).

A server accepts only valid labels, so an invalid prediction is replaced by the first label of the
format, and the number of invalid predictions is logged. For STS-B, a non-numeric prediction becomes
0.0, and other numbers are clipped to [0, 5]. For ReCoRD, surrounding white space is removed.

Tagging tasks use the format of conlleval: each line has a word, its tag, and the predicted tag.

    EU B-ORG B-ORG
    rejects O O

A blank line ends each sentence. If the test split has no tags, a line has only the word and the
predicted tag. A space inside a word is written "_", and so is an empty word.

SQuAD's server and scripts (evaluate-v1.1.py and -v2.0.py) read these files:

    predictions.json        {"56ddde6b9a695914005b9628": "France", ...}; "" means unanswerable
    null_odds.json          {"56ddde6b9a695914005b9628": -5.3, ...}, SQuAD 2.0's --na-prob-file

SQuAD's test split is hidden, so the files contain the evaluated split.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import made_directory, write_atomically
from t5x_lite.data.preprocessors import UNKNOWN

Line = tuple[str, ...]
"""Line of a tagging file: a word, its tag if known, and the predicted tag."""


def sentence(example: Mapping[str, Any], predicted: str) -> tuple[list[Line], bool]:
    """Return a sentence's lines of word and tags; also True if each word has a predicted tag."""
    words = example.get("words", "").split("\n") if example else []
    target = example.get("targets_pretokenized", UNKNOWN)
    tags = predicted.split()
    got = [*tags, *["O"] * len(words)][: len(words)]
    known = [] if target == UNKNOWN else [target.split()]
    names = [word.replace(" ", "_") or "_" for word in words]
    return [*zip(names, *known, got, strict=True)], len(tags) == len(words)


def dump(rows: Sequence[tuple[Any, Sequence[Line]]]) -> str:
    """Format tagged sentences as the text of a conlleval file."""
    return "".join("".join(f"{' '.join(line)}\n" for line in lines) + "\n" for _, lines in rows)


def load(text: str) -> list[tuple[tuple[int], list[Line]]]:
    """Parse the text of a conlleval file into numbered sentences."""
    found: list[list[Line]] = [[]]
    width = len(text.partition("\n")[0].split(" "))
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        columns = tuple(line.split(" ")) if line else ()
        if columns and (len(columns) != width or width not in (2, 3)):
            raise ValueError(f"line {number} must have a word and its tags, but is {line!r}")
        found[-1:] = [[*found[-1], columns]] if columns else [found[-1], []]
    return [((index,), lines) for index, lines in enumerate(found[:-1])]


Index = tuple[int, ...]
"""Index of a test example; MultiRC has (passage, question, answer), other tasks one number."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """Prediction of a model for one test example.

    Attributes:
      index: index of the example in the test set.
      text: output text of the model.
      value: prediction converted by the task's postprocessor.
      example: fields of the example, for formats that repeat them.
    """

    index: Index
    text: str
    value: Any
    example: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """Submission format of one task.

    Attributes:
      benchmark: "GLUE" or "SuperGLUE" (scored by a server), or "CoNLL" (scored by a script).
      file: file name.
      rows: number of lines in the official test set, without the header; None without an official
        set.
      labels: T5's label text -> the benchmark's label; None if any text or number is valid.
      values: postprocessed value -> the benchmark's label; used instead of `labels`.
      kind: file format.
    """

    benchmark: str
    file: str
    rows: int | None
    labels: Mapping[str, Any] | None = None
    values: Mapping[int, Any] | None = None
    kind: "Kind"

    @property
    def allowed(self) -> list[Any] | None:
        """Valid labels of the benchmark; None if any text or number is valid."""
        labels = self.labels if self.labels is not None else self.values
        return None if labels is None else list(labels.values())

    @property
    def default(self) -> Any:
        """Label that replaces an invalid prediction."""
        return self.label(Answer(index=(), text="", value=math.nan))[0]

    def label(self, answer: Answer) -> tuple[Any, bool]:
        """Return the label for a prediction, and True if the prediction was valid."""
        if self.labels is not None:
            text = answer.text.strip()
            valid = text in self.labels
            return (self.labels[text] if valid else next(iter(self.labels.values()))), valid
        if self.values is not None:
            valid = answer.value in self.values
            return (
                self.values[int(answer.value)] if valid else next(iter(self.values.values()))
            ), valid
        return self.kind.free(answer)


@dataclasses.dataclass(frozen=True)
class Kind:
    """Functions that write and read a file format.

    Attributes:
      dump: function that formats sorted pairs (index, label) as the file's text.
      load: function that parses the file's text into pairs (index, label), or raises ValueError.
      free: function for tasks without a fixed set of labels: prediction -> (label, is valid).
    """

    dump: Callable[[Sequence[tuple[Index, Any]]], str]
    load: Callable[[str], list[tuple[Index, Any]]]
    free: Callable[[Answer], tuple[Any, bool]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
    """Summary of a written submission file.

    Attributes:
      path: path of the file.
      rows: number of lines, without the header.
      invalid: number of predictions that were not valid labels.
      default: label written for invalid predictions.
      official: True if the number of rows equals the official test set's.
    """

    path: Path
    rows: int
    invalid: int
    default: Any
    official: bool


def write(
    submission: Format, answers: Iterable[Answer], directory: str | Path, *, where: str = ""
) -> Written:
    """Write the submission file of a benchmark task atomically, after checking its format."""
    rows: dict[Index, Any] = {}
    invalid = 0
    for answer in answers:
        if answer.index in rows:
            if submission.kind is _RECORD:
                continue
            number = "-".join(map(str, answer.index))
            raise InputError(
                f"{where or submission.file}: two test examples have the index {number}"
            )
        rows[answer.index], valid = submission.label(answer)
        invalid += not valid
    # MultiRC's lines are its passages; the official number of rows counts lines.
    text = submission.kind.dump(sorted(rows.items(), key=lambda row: row[0]))
    check(submission, text, expected=list(rows))
    path = Path(directory, submission.file)
    try:
        with made_directory(path.parent):
            write_atomically(path, text.encode())
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    lines = text.count("\n") - (submission.benchmark == "GLUE")
    return Written(
        path=path,
        rows=lines,
        invalid=invalid,
        default=submission.default,
        official=submission.rows in (None, lines),
    )


def check(submission: Format, text: str, *, expected: Iterable[Index] | None = None) -> None:
    """Raise ValueError if the text of a submission file is invalid."""
    name = submission.file
    if not text.endswith("\n") or "\r" in text or text.startswith("\ufeff"):
        raise ValueError(f"{name}: lines must end with a newline, without carriage returns or BOM")
    try:
        rows = submission.kind.load(text)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{name}: {error}") from error
    indices = [index for index, _ in rows]
    if len(set(indices)) < len(indices):
        raise ValueError(f"{name}: two rows have the same index")
    if indices != sorted(indices):
        raise ValueError(f"{name}: the rows must be sorted by index")
    if expected is not None and (differing := set(expected) ^ set(indices)):
        raise ValueError(
            f"{name}: {len(differing)} row indices are missing from the file or unknown"
        )
    allowed = submission.allowed
    for index, label in rows:
        # 1 == True == 1.0 in Python, and not in a file.
        if allowed is not None and not any(
            type(label) is type(one) and label == one for one in allowed
        ):
            raise ValueError(
                f"{name}: the label of row {index} must be one of {allowed}, but is {label!r}"
            )


# GLUE: TSV.


def _dump_tsv(rows: Sequence[tuple[Index, Any]]) -> str:
    return "index\tprediction\n" + "".join(f"{index}\t{label}\n" for (index,), label in rows)


def _load_tsv(text: str) -> list[tuple[Index, Any]]:
    header, *lines = text.split("\n")[:-1]
    if header != "index\tprediction":
        raise ValueError(f"the header must be index<TAB>prediction, but is {header!r}")
    rows = []
    for number, line in enumerate(lines, start=2):
        entries = line.split("\t")
        if len(entries) != 2 or not (entries[0].isascii() and entries[0].isdigit()):
            raise ValueError(f"line {number} must have an index and a prediction, but is {line!r}")
        rows.append(((int(entries[0]),), entries[1]))
    return rows


def _load_numbers(text: str) -> list[tuple[Index, Any]]:
    rows = [(index, float(entry)) for index, entry in _load_tsv(text)]
    for index, value in rows:
        if not 0.0 <= value <= 5.0:
            raise ValueError(
                f"the prediction of row {index} must be between 0 and 5, but is {value}"
            )
    return rows


def _any_text(answer: Answer) -> tuple[str, bool]:
    text = answer.text.strip()
    return text, bool(text)


def _number(answer: Answer) -> tuple[str, bool]:
    value = float(answer.value)
    valid = math.isfinite(value) and value >= 0.0
    return f"{min(5.0, value) if valid else 0.0:.3f}", valid


# SuperGLUE: JSON lines.


def _dump_json(rows: Sequence[tuple[Index, Any]]) -> str:
    return _lines({"idx": index, "label": label} for (index,), label in rows)


def _load_json(text: str) -> list[tuple[Index, Any]]:
    rows = []
    for line in text.split("\n")[:-1]:
        node = json.loads(line)
        if list(node) != ["idx", "label"]:
            raise ValueError(f'a line must have the keys "idx" and "label", but is {line[:60]}')
        rows.append(((_whole(node["idx"]),), node["label"]))
    return rows


def _load_texts(text: str) -> list[tuple[Index, Any]]:
    rows = _load_json(text)
    for index, label in rows:
        if not isinstance(label, str):
            raise ValueError(f"the label of row {index} must be a string, but is {label!r}")
    return rows


def _dump_multirc(rows: Sequence[tuple[Index, Any]]) -> str:
    passages: dict[int, dict[int, list[dict[str, Any]]]] = {}
    for (passage, question, answer), label in rows:
        questions = passages.setdefault(passage, {})
        questions.setdefault(question, []).append({"idx": answer, "label": label})
    return _lines(
        {
            "idx": passage,
            "passage": {
                "questions": [{"idx": q, "answers": answers} for q, answers in questions.items()]
            },
        }
        for passage, questions in passages.items()
    )


def _load_multirc(text: str) -> list[tuple[Index, Any]]:
    rows = []
    for line in text.split("\n")[:-1]:
        node = json.loads(line)
        if list(node) != ["idx", "passage"] or list(node["passage"]) != ["questions"]:
            raise ValueError(
                f'a line must be {{"idx", "passage": {{"questions"}}}}, but is {line[:60]}'
            )
        for question in node["passage"]["questions"]:
            if list(question) != ["idx", "answers"] or not question["answers"]:
                raise ValueError(
                    f'a question must have the keys "idx" and "answers", but is {question}'
                )
            for answer in question["answers"]:
                if list(answer) != ["idx", "label"]:
                    raise ValueError(
                        f'an answer must have the keys "idx" and "label", but is {answer}'
                    )
                index = tuple(_whole(part["idx"]) for part in (node, question, answer))
                rows.append((index, answer["label"]))
    return rows


def _lines(nodes: Iterable[Any]) -> str:
    return "".join(json.dumps(node) + "\n" for node in nodes)


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"idx must be a whole number, but is {value!r}")
    return value


_TSV = Kind(_dump_tsv, _load_tsv, _any_text)
_NUMBERS = Kind(_dump_tsv, _load_numbers, _number)
_JSON = Kind(_dump_json, _load_json, _any_text)
_RECORD = Kind(_dump_json, _load_texts, _any_text)
_MULTIRC = Kind(_dump_multirc, _load_multirc, _any_text)
_CONLL = Kind(
    dump,
    load,
    lambda answer: sentence(answer.example, str(answer.value)),
)


def _words(benchmark: str, file: str, rows: int, *labels: tuple[str, Any]) -> Format:
    kind = _TSV if benchmark == "GLUE" else _JSON
    return Format(benchmark=benchmark, file=file, rows=rows, labels=dict(labels), kind=kind)


_glue = partial(_words, "GLUE")
_super_glue = partial(_words, "SuperGLUE")
_TAGS = Format(benchmark="CoNLL", file="test.txt", rows=None, kind=_CONLL)
_TWO_WAY = (("entailment", "entailment"), ("not_entailment", "not_entailment"))
_NLI = tuple((word, word) for word in ("entailment", "neutral", "contradiction"))
_CB = tuple((word, word) for word in ("entailment", "contradiction", "neutral"))
_TRUTH = (("False", "false"), ("True", "true"))

FORMATS: dict[str, Format] = {
    "glue_cola": _glue("CoLA.tsv", 1063, ("unacceptable", "0"), ("acceptable", "1")),
    "glue_sst2": _glue("SST-2.tsv", 1821, ("negative", "0"), ("positive", "1")),
    "glue_mrpc": _glue("MRPC.tsv", 1725, ("not_equivalent", "0"), ("equivalent", "1")),
    "glue_stsb": Format(benchmark="GLUE", file="STS-B.tsv", rows=1379, kind=_NUMBERS),
    "glue_qqp": _glue("QQP.tsv", 390_965, ("not_duplicate", "0"), ("duplicate", "1")),
    "glue_mnli_matched": _glue("MNLI-m.tsv", 9796, *_NLI),
    "glue_mnli_mismatched": _glue("MNLI-mm.tsv", 9847, *_NLI),
    "glue_qnli": _glue("QNLI.tsv", 5463, *_TWO_WAY),
    "glue_rte": _glue("RTE.tsv", 3000, *_TWO_WAY),
    "glue_wnli": Format(
        benchmark="GLUE", file="WNLI.tsv", rows=146, values={0: "0", 1: "1"}, kind=_TSV
    ),
    "glue_ax": _glue("AX.tsv", 1104, *_NLI),
    "super_glue_boolq": _super_glue("BoolQ.jsonl", 3245, *_TRUTH),
    "super_glue_cb": _super_glue("CB.jsonl", 250, *_CB),
    "super_glue_copa": _super_glue("COPA.jsonl", 500, ("choice1", 0), ("choice2", 1)),
    "super_glue_multirc": dataclasses.replace(
        _super_glue("MultiRC.jsonl", 166, ("False", 0), ("True", 1)), kind=_MULTIRC
    ),
    "super_glue_record": Format(
        benchmark="SuperGLUE", file="ReCoRD.jsonl", rows=10_000, kind=_RECORD
    ),
    "super_glue_rte": _super_glue("RTE.jsonl", 3000, *_TWO_WAY),
    "super_glue_wic": _super_glue("WiC.jsonl", 1400, *_TRUTH),
    "super_glue_wsc": Format(
        benchmark="SuperGLUE",
        file="WSC.jsonl",
        rows=146,
        values={0: "False", 1: "True"},
        kind=_JSON,
    ),
    "super_glue_axb": _super_glue("AX-b.jsonl", 1104, *_TWO_WAY),
    "super_glue_axg": _super_glue("AX-g.jsonl", 356, *_TWO_WAY),
    "tokens_conll": _TAGS,
    "tokens_jsonl": _TAGS,
}
"""Task name "<module>_<function>" -> submission format."""


def example_index(raw: Mapping[str, Any], *, number: int) -> Index:
    """Return the index of an example in a benchmark's test set."""
    if "idx/answer" in raw:
        return tuple(int(raw[f"idx/{name}"]) for name in ("paragraph", "question", "answer"))
    if "idx/query" in raw:
        return (int(raw["idx/query"]),)
    return (int(raw["idx"]),) if "idx" in raw else (number,)


FOLDERS = {"squad_squad": "squad_v1.1", "squad_squad_v2": "squad_v2.0"}
"""Task name -> directory of the task's submission files."""


def write_squad(answers: Iterable[tuple[Mapping[str, Any], Any]], directory: Path) -> list[Path]:
    """Write predictions.json and, for SQuAD 2.0, null_odds.json."""
    texts: dict[str, str] = {}
    odds: dict[str, float] = {}
    for fields, answer in answers:
        if isinstance(answer, Mapping):
            texts[fields["id"]], odds[fields["id"]] = answer["value"], answer["null_odds"]
        else:
            texts[fields["id"]] = answer
    files = {"predictions.json": texts, **({"null_odds.json": odds} if odds else {})}
    for name, content in files.items():
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_atomically(directory / name, f"{json.dumps(content, indent=1)}\n".encode())
        except OSError as error:
            message = f"{directory / name}: cannot be written ({error.strerror})"
            raise InputError(message) from error
    return [directory / name for name in files]
