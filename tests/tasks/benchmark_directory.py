"""Small files in the official layouts of all benchmarks, made of lines of English.

    write(root, lines)      # root holds SST-2/train.tsv, BoolQ/train.jsonl, train-v1.1.json, ...

What is common to SuperGLUE and GLUE, RTE, is there for both: the files end differently. SuperGLUE's
test splits, which have no labels, are of `write_test_splits`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SPLITS = ("train", "dev")
COLUMNS = {
    "CoLA": ("source", "label", "star", "sentence"),
    "SST-2": ("sentence", "label"),
    "MRPC": ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
    "QQP": ("id", "question1", "question2", "is_duplicate"),
    "STS-B": ("index", "sentence1", "sentence2", "score"),
    "MNLI": ("index", "sentence1", "sentence2", "gold_label"),
    "QNLI": ("index", "question", "sentence", "label"),
    "RTE": ("index", "sentence1", "sentence2", "label"),
}
WORDS = {"QNLI", "RTE", "MNLI"}


def write(root: Path, lines: Sequence[str]) -> None:
    """Writes a folder for each benchmark's task, as far as it has training files."""
    texts = [" ".join(line.replace('"', "").split())[:80] for line in lines]
    for folder, columns in COLUMNS.items():
        (root / folder).mkdir(exist_ok=True)
        rows = [_glue_row(columns, i, text, folder) for i, text in enumerate(texts)]
        head = [] if folder == "CoLA" else ["\t".join(columns)]
        for split in ("train", "dev", "dev_matched", "dev_mismatched"):
            (root / folder / f"{split}.tsv").write_text("\n".join([*head, *rows]) + "\n")
    for folder, record in _SUPER_GLUE.items():
        (root / folder).mkdir(exist_ok=True)
        content = "".join(json.dumps(record(i, text)) + "\n" for i, text in enumerate(texts))
        for split in ("train", "val"):
            (root / folder / f"{split}.jsonl").write_text(content)
    _write_others(root, texts)
    answer = [{"text": "it", "answer_start": 0}]
    squad = [
        {"context": text, "qas": [{"id": str(i), "question": "What?", "answers": answer}]}
        for i, text in enumerate(texts)
    ]
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        (root / name).write_text(json.dumps({"data": [{"title": "", "paragraphs": squad}]}))
    for number, paragraph in enumerate(squad):
        (asked,) = paragraph["qas"]
        asked |= {"is_impossible": number % 2 == 1, "answers": answer[number % 2 :]}
    for name in ("train-v2.0.json", "dev-v2.0.json"):
        (root / name).write_text(json.dumps({"data": [{"title": "", "paragraphs": squad}]}))
    (root / "cnn_dailymail").mkdir(exist_ok=True)
    for split in ("train", "validation"):
        content = "".join(
            json.dumps({"article": text, "highlights": text[:20]}) + "\n" for text in texts
        )
        (root / "cnn_dailymail" / f"{split}.jsonl").write_text(content)
        for folder in ("ende", "enfr", "enro", "ende_14", "enfr_14"):
            (root / folder).mkdir(exist_ok=True)
            for language in ("en", folder[2:4]):
                (root / folder / f"{split}.{language}").write_text("\n".join(texts))


def write_test_splits(root: Path, lines: Sequence[str]) -> None:
    """Writes SuperGLUE's test.jsonl, the lines without what is to be answered."""
    for folder, record in _SUPER_GLUE.items():
        (root / folder).mkdir(exist_ok=True)
        records = [_unlabelled(record(i, line[:80])) for i, line in enumerate(lines)]
        content = "".join(json.dumps(record) + "\n" for record in records)
        (root / folder / "test.jsonl").write_text(content)


def _unlabelled(node: Any) -> Any:
    """A record without its labels and answers, but for MultiRC's, which are to be judged."""
    if isinstance(node, list):
        return [_unlabelled(one) for one in node]
    if not isinstance(node, dict):
        return node
    asked = {"label"} if "text" in node or "question" in node else {"label", "answers"}
    return {name: _unlabelled(value) for name, value in node.items() if name not in asked}


def _write_others(root: Path, texts: Sequence[str]) -> None:
    """Tasks that are not trained on, and definite pronoun resolution."""
    pairs = [f"{i}\tAnn saw Bob. He left {i}.\tBob left {i}.\t{i % 2}" for i in range(len(texts))]
    files = {
        "WNLI/dev.tsv": ["index\tsentence1\tsentence2\tlabel", *pairs],
        "diagnostic/diagnostic.tsv": [
            "index\tsentence1\tsentence2",
            *(f"{i}\t{text}\t{text[:9]}" for i, text in enumerate(texts)),
        ],
        "AX-b/AX-b.jsonl": [json.dumps(_AXB(i, text)) for i, text in enumerate(texts)],
        "AX-g/AX-g.jsonl": [json.dumps(_NLI(i, text)) for i, text in enumerate(texts)],
        "DPR/train.c.txt": [f"Ann saw Bob as he left {i}.\nhe\nAnn,Bob\nBob\n" for i in range(60)],
        "DPR/test.c.txt": ["Ann saw Bob as he left.\nhe\nAnn,Bob\nBob\n"],
    }
    for name, lines in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("\n".join(lines) + "\n")


def _glue_row(columns: Sequence[str], number: int, text: str, folder: str) -> str:
    labels = ("entailment", "neutral") if folder == "MNLI" else ("entailment", "not_entailment")
    label = labels[number % 2] if folder in WORDS else str(number % 2)
    values = {"index": str(number), "id": str(number), "#1 ID": "1", "#2 ID": "2", "score": "2.5"}
    values |= dict.fromkeys(("label", "gold_label", "Quality", "is_duplicate"), label)
    return "\t".join(values.get(column, text) for column in columns)


def _wsc(number: int, text: str) -> dict[str, Any]:
    words = ["Ann", "saw", "it", *text.split()]
    spans = {"span1_text": "Ann", "span1_index": 0, "span2_text": "it", "span2_index": 2}
    return {"text": " ".join(words), "target": spans, "idx": number, "label": bool(number % 2)}


def _multirc(number: int, text: str) -> dict[str, Any]:
    answers = [{"text": text[:9], "idx": i, "label": i} for i in range(2)]
    question = {"question": text[:30], "answers": answers, "idx": number}
    return {"idx": number, "passage": {"text": text, "questions": [question]}}


def _record(number: int, text: str) -> dict[str, Any]:
    answers = [{"text": text[: i + 2]} for i in range(number % 3 + 1)]
    query = {"query": "@placeholder", "idx": number, "answers": answers}
    ends = ((0, 2), (0, 1), (5, 9))
    entities = [{"start": start, "end": end} for start, end in ends]
    passage = {"text": text + " end", "entities": entities}
    return {"idx": number, "passage": passage, "qas": [query]}


def _labelled(*fields: str, labels: Sequence[Any] = (False, True)) -> Any:
    def record(number: int, text: str) -> Mapping[str, Any]:
        return {**dict.fromkeys(fields, text), "label": labels[number % 2], "idx": number}

    return record


_NLI = _labelled("premise", "hypothesis", labels=("entailment", "not_entailment"))
_AXB = _labelled("sentence1", "sentence2", labels=("entailment", "not_entailment"))
_SUPER_GLUE = {
    "BoolQ": _labelled("question", "passage"),
    "CB": _labelled("premise", "hypothesis", labels=("entailment", "neutral")),
    "COPA": _labelled("premise", "choice1", "choice2", "question", labels=(0, 1)),
    "MultiRC": _multirc,
    "ReCoRD": _record,
    "RTE": _NLI,
    "WiC": _labelled("sentence1", "sentence2", "word"),
    "WSC": _wsc,
}
