"""Readers of named data sets, in the files of their authors and of the Hugging Face Hub.

    splits = race_splits("RACE")                 # {"train": (Path("RACE/train/high/1.txt"), ...)}
    for question in read_race(splits["train"]):
        question["article"], question["question"], question["choices"], question["label"]

| data set | files in data.directory |
|---|---|
| RACE | {train,dev,test}/{middle,high}/*.txt, JSON objects; or the Hub's tables |
| SWAG | train.csv, val.csv, test.csv; or the Hub's tables |
| TriviaQA | qa/DOMAIN-{train,dev}.json and evidence/{wikipedia,web}/*; unfiltered-web-*.json |
| SQuAD, as pairs | train-v1.1.json, dev-v1.1.json; or train-v2.0.json, dev-v2.0.json |
| PubMedQA, as pairs | ori_pqa{a,l,u}.json; or *train*.json and *dev*.json, objects by PMID |
| Mr. TyDi, as pairs | mrtydi-v1.1-LANGUAGE/ with train.jsonl, dev.jsonl; or with topic.*.tsv, |
| | qrels.*.txt and collection/docs.jsonl |
| Tevatron, as pairs | *train*.jsonl and *dev*.jsonl with "positive_passages" |
| NLLB, CCMatrix | source TAB target; score TAB source TAB target; NLLB's columns |

Files may be compressed (.gz, .zst, .xz). `PAIRS` lists the formats that are read as pairs by name.
`suites` reads the test sets of retrieval.

Sources: Lai et al. 2017 and the Hub's ehovy/race; rowanz/swagaf data/README.md; mandarjoshi90/
triviaqa, utils/convert_to_squad_format.py; pubmedqa/pubmedqa; castorini/mr.tydi and the Hub's
castorini/mr-tydi; the Hub's allenai/nllb and statmt.org/cc-matrix.
"""

import dataclasses
import itertools
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import reason
from t5x_lite.core.object_store import DataPath, data_path
from t5x_lite.data.formats import tables as named_splits
from t5x_lite.data.formats.benchmark_files import Row, label_index, read_squad
from t5x_lite.data.formats.lines import (
    COMPRESSED,
    Line,
    parse_json,
    plain_name,
    read_examples,
    read_lines,
    read_whole,
)
from t5x_lite.data.formats.pairs import Pairs, titled_text
from t5x_lite.data.formats.retrieval_sets import array_elements, judged_pairs, object_members
from t5x_lite.data.formats.tables import SPLITS, RowFile, Table, read_rows, table_splits

_logger = logging.getLogger(__name__)

Splits = Mapping[str, Sequence[Table]]
"""Files of each split that exists."""

# Multiple choice.

NUM_CHOICES = 4
"""Number of answer choices of a question in RACE and SWAG."""
RACE_LEVELS = ("middle", "high")
_RACE_SPLITS = {"train": "train", "validation": "dev", "test": "test"}
_LETTERS = ("A", "B", "C", "D")
_ENDINGS = tuple(f"ending{number}" for number in range(NUM_CHOICES))


def race_splits(directory: str, levels: Sequence[str] = RACE_LEVELS) -> Splits:
    """Return the files of each split of RACE."""
    root = data_path(directory)
    for place in (root / "RACE", root) if directory else ():
        found = {
            split: tuple(
                file
                for level in levels
                for file in sorted((place / name / level).glob("*.txt*"), key=_numbered_name)
            )
            for split, name in _RACE_SPLITS.items()
        }
        if any(found.values()):
            return {split: files for split, files in found.items() if files}
    return _tables(directory, f"RACE's {'|'.join(_RACE_SPLITS.values())}/{'|'.join(levels)}/*.txt")


def _numbered_name(file: DataPath) -> tuple[int, str]:
    return len(file.name), file.name


def _tables(directory: str, expected: str) -> Splits:
    found = table_splits(directory) if directory else {}
    if not found:
        raise InputError(
            f"data.directory {directory!r} has neither {expected} nor train, validation or test "
            "tables (.jsonl, .csv, .parquet)"
        )
    return found


def read_race(
    files: Sequence[Table], levels: Sequence[str] = RACE_LEVELS
) -> Iterator[dict[str, Any]]:
    """Yield the questions of RACE's files, in order.

    Each question has "article", "question", "choices", "label" (0 to 3) and "id".
    """
    number = 0
    for file in files:
        is_text = isinstance(file, DataPath) and ".txt" in file.name
        for question in _race_text(file) if is_text else _race_rows(file, levels):
            number += 1
            yield question
    if not number:
        raise InputError(f"{files[0]} has no question of the RACE level {' or '.join(levels)}")


def _race_text(file: Any) -> Iterator[dict[str, Any]]:
    """Yield the questions of one RACE article, each with an id such as "high/1.txt:0"."""
    where = str(file)
    record = parse_json(_whole(file), where=where)
    if not isinstance(record, dict):
        raise InputError(f"{where}: must be a JSON object with an article of RACE")
    lists = [record.get(name) for name in ("questions", "options", "answers")]
    article = record.get("article")
    if not isinstance(article, str) or not all(isinstance(one, list) for one in lists):
        raise InputError(
            f'{where}: must have "article", and the lists "questions", "options" and "answers"'
        )
    questions, options, answers = (one or [] for one in lists)
    if not len(questions) == len(options) == len(answers):
        raise InputError(
            f"{where}: the article has {len(questions)} questions, {len(options)} lists of options "
            f"and {len(answers)} answers, but the three numbers must be equal"
        )
    for number, each in enumerate(zip(questions, options, answers, strict=True)):
        place = f"{where}: question {number}"
        name = f"{file.parent.name}/{file.name}:{number}"
        yield _race_question(article, *each, where=place, name=name)


def _race_rows(table: Table, levels: Sequence[str]) -> Iterator[dict[str, Any]]:
    columns = ("article", "question", "options", "answer")
    for number, row in enumerate(read_rows(table, columns=columns)):
        article, question = _texts_of(row, "article", "question")
        name = str(row.fields.get("example_id", number))
        if len(levels) < len(RACE_LEVELS) and not name.startswith(tuple(levels)):
            if not name.startswith(RACE_LEVELS):
                raise InputError(
                    f'{row.where}: "example_id" must begin with high or middle, got {name!r}; use '
                    "the task tasks.choices:race, which reads both levels"
                )
            continue
        yield _race_question(
            article,
            question,
            row.fields.get("options"),
            row.fields.get("answer"),
            where=row.where,
            name=f"{name}:{number}",
        )


def _race_question(
    article: str, question: Any, options: Any, answer: Any, *, where: str, name: str
) -> dict[str, Any]:
    texts = [question, *options] if isinstance(options, list) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f"{where}: the question and all its options must be strings")
    if len(options) != NUM_CHOICES:
        raise InputError(f"{where}: a question must have {NUM_CHOICES} options, got {len(options)}")
    label = label_index(Row(where, {"answer": answer}), "answer", _LETTERS)
    record = {"article": article, "question": question, "choices": list(options), "id": name}
    return {**record, "label": label}


def swag_splits(directory: str) -> Splits:
    """Return the files of each split of SWAG, from the release or from the Hugging Face Hub."""
    return _tables(directory, "SWAG's train.csv and val.csv")


def read_swag(files: Sequence[Table], split: str) -> Iterator[dict[str, Any]]:
    """Yield the questions of SWAG's tables, in order.

    Each question has "sent1", "sent2" (the beginning of the second sentence), "choices" (four
    endings), "label" (0 to 3, or -1 if unknown) and "id".
    """
    columns = ["sent1", "sent2", *_ENDINGS]
    labels = tuple(map(str, range(NUM_CHOICES)))
    number = 0
    for table in files:
        known = [] if split == "test" else ["label"]
        for row in read_rows(table, columns=[*columns, *known]):
            texts = _texts_of(row, *columns)
            hidden = split == "test" and row.fields.get("label") in (None, "", -1, "-1")
            label = -1 if hidden else label_index(row, "label", labels)
            record = {"sent1": texts[0], "sent2": texts[1], "choices": texts[2:], "label": label}
            yield {**record, "id": str(number)}
            number += 1
    if not number:
        raise InputError(f"{files[0]}: no question")


def _texts_of(row: Row, *names: str) -> list[str]:
    for name in names:
        if not isinstance(row.fields.get(name), str):
            has = ", ".join(row.fields) or "nothing"
            raise InputError(f'{row.where}: must have "{name}", a string; it has {has}')
    return [row.fields[name] for name in names]


def _whole(file: Any) -> bytes:
    try:
        return read_whole(file).removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise InputError(f"cannot read {file}: {reason(error)}") from error


# TriviaQA.

_TRIVIA_SPLITS = {"train": "train", "validation": "dev", "test": "test-without-answers"}
_EVIDENCE = {"EntityPages": "wikipedia", "SearchResults": "web"}
"""Fields that list a question's documents, and the folders of the documents in evidence/."""
WORDS_OF_DOCUMENT = 800
"""Maximum words that are read from a document; the authors' conversion reads 800 tokens."""
_WORD = re.compile(r"\S+")


def trivia_splits(directory: str, domains: Sequence[str]) -> dict[str, tuple[DataPath]]:
    """Return the file of each split of TriviaQA."""
    root = data_path(directory)
    places = [root, root / "qa", root / "triviaqa-unfiltered"] if directory else []
    for domain, place in itertools.product(domains, places):
        found = {
            split: (file,)
            for split, name in _TRIVIA_SPLITS.items()
            for file in _first_file([place], f"{domain}-{name}.json")
        }
        if found:
            return found
    names = " or ".join(f"{domain}-train.json" for domain in domains)
    raise InputError(
        f"data.directory {directory!r} has no {names} of TriviaQA, neither directly nor in the "
        "folder qa"
    )


def _first_file(folders: Sequence[Any], name: str) -> list[DataPath]:
    """Find a file by name, plain or compressed, in folders; return [path], or [] if missing."""
    paths = [folder / f"{name}{end}" for folder in folders for end in ("", *COMPRESSED)]
    return next(([path] for path in paths if path.is_file()), [])


def read_trivia_questions(file: DataPath) -> Iterator[dict[str, Any]]:
    """Yield the questions of a TriviaQA file in SQuAD's format, without contexts.

    Each question has "id", "question", "context" (""), and "answers" with "text" (the answer and
    its aliases; empty in the test split) and "answer_start" (-1).
    """
    for where, record in _trivia(file):
        _, answers, _ = _trivia_answers(record, where=where)
        yield _squad_record(record["QuestionId"], record["Question"], "", answers, -1)


def read_trivia_documents(file: DataPath, split: str) -> Iterator[dict[str, Any]]:
    """Yield one example in SQuAD's format for each document of each question in a TriviaQA file.

    The "id" is QuestionId--Filename. The first of the "answers" is the first alias that the
    document contains, with its position; the other answers have no position. Documents that are
    missing on disk are skipped with a warning. In the split "train", documents without any alias
    are also skipped.
    """
    num_read = num_found = 0
    evidence = _Evidence(file)
    for where, record in _trivia(file):
        _, answers, normalized = _trivia_answers(record, where=where)
        for name, _, text in evidence.documents(record, where=where):
            num_read += 1
            place = _find_answer(text, normalized)
            if place is None and split == "train":
                continue
            num_found += place is not None
            found, start = ([], -1) if place is None else ([text[slice(*place)]], place[0])
            texts = [*dict.fromkeys([*found, *answers])]
            yield _squad_record(
                f"{record['QuestionId']}--{name}", record["Question"], text, texts, start
            )
    _logger.info("%s: read %d documents, %d of them with an answer", file, num_read, num_found)
    evidence.finish(kept=bool(num_found if split == "train" else num_read))


def read_trivia_pairs(file: DataPath) -> Iterator[Pairs]:
    """Yield TriviaQA's questions; documents with an answer are positives, all others negatives."""
    num_read = num_kept = 0
    evidence = _Evidence(file)
    for where, record in _trivia(file):
        num_read += 1
        _, _, normalized = _trivia_answers(record, where=where)
        sides: tuple[dict[str, str], dict[str, str]] = ({}, {})
        for name, title, text in evidence.documents(record, where=where):
            side = sides[_find_answer(text, normalized) is None]
            side.setdefault(titled_text({"title": title, "text": text}), name)
        if sides[0]:
            num_kept += 1
            yield Pairs(
                record["Question"],
                [*sides[0]],
                [*sides[1]],
                positive_ids=[*sides[0].values()],
                negative_ids=[*sides[1].values()],
            )
    evidence.finish(kept=bool(num_kept))
    _logger.info(
        "%s: read %d questions, %d of them with an answer in a document", file, num_read, num_kept
    )


def _trivia(file: DataPath) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    for number, record in enumerate(array_elements(file, member="Data"), start=1):
        where = f"{file}: question {number}"
        for name in ("Question", "QuestionId"):
            if not isinstance(record.get(name), str):
                raise InputError(f'{where}: must have "{name}", a string')
        yield where, {**record, "Question": record["Question"].strip()}
    if not number:
        raise InputError(f"{file}: no question")


def _trivia_answers(
    record: Mapping[str, Any], *, where: str
) -> tuple[str, list[str], Sequence[str]]:
    """Return a TriviaQA question's answer, its aliases, and its normalized aliases."""
    answer = record.get("Answer")
    if answer is None:
        return "", [], ()
    lists = [
        answer.get(n) if isinstance(answer, dict) else None
        for n in ("Aliases", "NormalizedAliases")
    ]
    value = answer.get("Value") if isinstance(answer, dict) else None
    texts = [value, *(text for one in lists for text in (one if isinstance(one, list) else [None]))]
    if not all(isinstance(text, str) for text in texts):
        raise InputError(
            f'{where}: "Answer" must have "Value", a string, and "Aliases" and '
            '"NormalizedAliases", lists of strings'
        )
    aliases, normalized = (one or [] for one in lists)
    written = [text.strip() for text in (str(value), *aliases)]
    return written[0], [*dict.fromkeys(filter(None, written))], [n for n in normalized if n.strip()]


class _Evidence:
    """Documents of the questions in a TriviaQA file.

    Args:
      file: file of questions; its folder, or the folder above, contains the folder "evidence".
    """

    def __init__(self, file: DataPath):
        folders = [file.parent / "evidence", file.parent.parent / "evidence"]
        root = next((folder for folder in folders if folder.is_dir()), None)
        if root is None:
            raise InputError(
                f"{file}: the folder {folders[1]} with the documents of TriviaQA is missing"
            )
        self._file, self._root = file, root
        self._missing: list[str] = []

    def documents(self, record: Mapping[str, Any], *, where: str) -> Iterator[tuple[str, str, str]]:
        """Yield filename, title and first words of a question's documents; skip missing files."""
        for kind, folder in _EVIDENCE.items():
            for page in record.get(kind) or ():
                name = page.get("Filename") if isinstance(page, dict) else None
                if name is None:
                    continue
                if not isinstance(name, str) or name.startswith("/") or ".." in name.split("/"):
                    raise InputError(
                        f'{where}: "Filename" must be a file in the folder evidence, got {name!r}'
                    )
                path = self._root / folder
                for part in name.split("/"):
                    path = path / part
                if not path.is_file():
                    self._missing.append(str(path))
                    continue
                title = page.get("Title")
                yield name, title.strip() if isinstance(title, str) else "", _first_words(path)

    def finish(self, *, kept: bool) -> None:
        """Log a warning if documents are missing; raise InputError if all are missing."""
        missing = f"{len(self._missing)} documents are missing, such as {self._missing[:1]}"
        if not kept:
            why = f"; {missing}" if self._missing else ""
            raise InputError(f"{self._file}: no question has a document with an answer{why}")
        if self._missing:
            _logger.warning("%s: %s", self._file, missing)


def _first_words(path: DataPath) -> str:
    try:
        text = _whole(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8; convert the file to UTF-8") from error
    words = itertools.islice(_WORD.finditer(text), WORDS_OF_DOCUMENT)
    return text[: max((word.end() for word in words), default=0)]


def _find_answer(text: str, normalized: Sequence[str]) -> tuple[int, int] | None:
    """Find the first of `normalized` that occurs in a text; return its (start, end), or None."""
    lower = text.lower()
    for alias in normalized:
        if len(lower) == len(text):
            start = lower.find(alias.lower())
            if start >= 0:
                return start, start + len(alias)
        elif match := re.search(re.escape(alias), text, re.IGNORECASE):
            return match.span()  # because "İ" is two characters in lower case
    return None


def _squad_record(
    identity: str, question: str, context: str, answers: Sequence[str], start: int
) -> dict[str, Any]:
    starts = [start, *[-1] * (len(answers) - 1)] if answers else []
    found = {"text": [*answers], "answer_start": starts}
    return {"id": identity, "question": question, "context": context, "answers": found}


# Pairs.


class PairFormat(NamedTuple):
    """Functions that read a data set as queries with positive and negative passages.

    Attributes:
      splits: function from data.directory to the existing splits.
      read: function from data.directory and a split to the queries of the split.
    """

    splits: Callable[[str], tuple[str, ...]]
    read: Callable[[str, str], Iterator[Pairs]]


def _squad_files(directory: str) -> dict[str, tuple[DataPath, bool]]:
    """Return SQuAD's file of each split, and True if questions may lack an answer."""
    root = data_path(directory)
    for version in ("v1.1", "v2.0") if directory else ():
        found = {
            split: (file, version == "v2.0")
            for split, name in {"train": "train", "validation": "dev"}.items()
            for file in _first_file([root / "SQuAD", root], f"{name}-{version}.json")
        }
        if "train" in found:
            return found
    raise InputError(
        f"data.directory {directory!r} has no train-v1.1.json or train-v2.0.json of SQuAD"
    )


def _read_squad_pairs(directory: str, split: str) -> Iterator[Pairs]:
    """Yield SQuAD's questions, each with its paragraph as the positive passage.

    Equal paragraphs have the same id.
    """
    file, unanswerable = _squad_files(directory)[split]
    ids: dict[str, str] = {}
    num_left_out = 0
    for number, record in enumerate(read_squad(file, unanswerable=unanswerable)):
        if record.get("is_impossible", False) or not record["question"].strip():
            num_left_out += 1
            continue
        context = record["context"].strip()
        name = ids.setdefault(context, str(number))
        yield Pairs(record["question"].strip(), [context], positive_ids=[name], negative_ids=[])
    if not ids:
        raise InputError(f"{file}: no question has an answer in its paragraph")
    if num_left_out:
        _logger.info("%s: skipped %d questions without an answer", file, num_left_out)


_PUBMED = ("ori_pqaa.json", "ori_pqal.json", "ori_pqau.json")


def _pubmed_files(directory: str) -> dict[str, list[DataPath]]:
    """Return the PubMedQA files of each split."""
    root = data_path(directory)
    places = [root, root / "data"] if directory else []
    whole = [file for name in _PUBMED for file in _first_file(places, name)]
    if whole:
        return {"train": whole}
    expected = f"{', '.join(_PUBMED)}, nor *train*.json of PubMedQA"
    return named_splits.split_files(directory, suffix=".json", expected=expected)


def _read_pubmed_pairs(directory: str, split: str) -> Iterator[Pairs]:
    """Yield PubMedQA's questions, each with its abstract as the positive passage."""
    count = 0
    for file in _pubmed_files(directory)[split]:
        for name, record in object_members(file):
            where = f"{file}: {name!r}"
            contexts, asked = record.get("CONTEXTS"), record.get("QUESTION")
            texts: list[Any] = [asked, *contexts] if isinstance(contexts, list) else [None]
            if not all(isinstance(text, str) for text in texts):
                raise InputError(
                    f'{where}: must have "QUESTION", a string, and "CONTEXTS", a list of strings'
                )
            answer = record.get("LONG_ANSWER")
            parts = [*texts[1:], answer if isinstance(answer, str) else ""]
            abstract = " ".join(part.strip() for part in parts if part and part.strip())
            if texts[0].strip() and abstract:
                count += 1
                yield Pairs(texts[0].strip(), [abstract], positive_ids=[name], negative_ids=[])
    if not count:
        raise InputError(
            f"{', '.join(map(str, _pubmed_files(directory)[split]))}: no question has an abstract"
        )


def tevatron_pairs(files: Sequence[str | DataPath]) -> Iterator[Pairs]:
    """Yield the queries of Tevatron's files with their positive and negative passages.

    A query has "query", "positive_passages" and "negative_passages". A passage is an object with
    "text", and optionally "title" and "docid". Queries without a positive passage are skipped.
    """
    num_read = num_kept = 0
    for file in files:
        for line in read_examples(str(file), fields=("query",)):
            num_read += 1
            positives = _tevatron_passages(line, "positive_passages")
            negatives = _tevatron_passages(line, "negative_passages")
            if not positives:
                continue
            num_kept += 1
            named = all(name for one in (positives, negatives) for name in one.values())
            yield Pairs(
                line.record["query"],
                [*positives],
                [*negatives],
                positive_ids=[*positives.values()] if named else None,
                negative_ids=[*negatives.values()] if named else None,
            )
    if not num_kept:
        raise InputError(f"{', '.join(map(str, files))}: no query has a positive passage")
    _logger.info(
        "read %d queries, %d of them without a positive passage, which are skipped",
        num_read,
        num_read - num_kept,
    )


def _tevatron_passages(line: Line, name: str) -> dict[str, str]:
    """Return a dict from the texts of a query's passages to their ids; "" for a missing id."""
    found: dict[str, str] = {}
    passages = line.record.get(name) or []
    for passage in passages if isinstance(passages, list) else [None]:
        record = passage if isinstance(passage, dict) else {}
        title = record.get("title") or ""
        if not isinstance(record.get("text"), str) or not isinstance(title, str):
            raise InputError(f'{line.where}: "{name}" must be a list of objects with "text"')
        text = titled_text({"title": title, "text": record["text"]})
        if text:
            found.setdefault(text, str(record.get("docid", "")))
    return found


_TEVATRON = '*train*.jsonl of Tevatron, objects with "query" and "positive_passages"'


def _tevatron_files(directory: str) -> dict[str, list[DataPath]]:
    return named_splits.split_files(directory, suffix=".jsonl", expected=_TEVATRON)


TYDI_LANGUAGES = (
    *("arabic", "bengali", "english", "finnish", "indonesian", "japanese", "korean", "russian"),
    *("swahili", "telugu", "thai"),
)
_TYDI_SPLITS = {"train": "train", "validation": "dev", "test": "test"}


class TydiFiles(NamedTuple):
    """Files of one language and one split of Mr. TyDi.

    Attributes:
      rows: file of queries with their passages, as on the Hub; None if missing.
      topics: file of queries; None if missing.
      qrels: file of relevance judgments; None if missing.
      corpus: file of passages; None if missing.
    """

    rows: DataPath | None
    topics: DataPath | None
    qrels: DataPath | None
    corpus: DataPath | None

    @property
    def is_judged(self) -> bool:
        return None not in (self.topics, self.qrels, self.corpus)


def tydi_files(directory: str, language: str, split: str) -> TydiFiles:
    """Return the Mr. TyDi files of one language and split, from the release or from the Hub."""
    root, name = data_path(directory), _TYDI_SPLITS[split]
    folders = [root / f"mrtydi-v1.{minor}-{language}" for minor in (1, 0)]
    places = [place for one in folders for place in (one, one / "ir-format-data")]
    kinds = [
        ([f"{name}.jsonl"], folders),
        ([f"topic.{name}.tsv", f"topics.{name}.txt", f"topics.{name}.tsv"], places),
        ([f"qrels.{name}.txt", f"qrels.{name}.tsv"], places),
        (["corpus.jsonl", "docs.jsonl"], [p for one in folders for p in (one, one / "collection")]),
    ]
    found = [
        next((file for each in names for file in _first_file(where, each)), None)
        for names, where in kinds
    ]
    return TydiFiles(*found)


def _tydi_splits(directory: str) -> tuple[str, ...]:
    found = tuple(
        split
        for split in ("train", "validation")
        if directory and any(_tydi_sources(directory, split))
    )
    if "train" not in found:
        raise InputError(
            f"data.directory {directory!r} has no language of Mr. TyDi to train on; it must "
            "contain mrtydi-v1.1-LANGUAGE with train.jsonl.gz, or with topic.train.tsv, "
            "qrels.train.txt and collection/docs.jsonl.gz"
        )
    return found


def _tydi_sources(directory: str, split: str) -> Iterator[TydiFiles]:
    """Yield Mr. TyDi's files of a split, for each language with all required files."""
    for language in TYDI_LANGUAGES:
        files = tydi_files(directory, language, split)
        if files.rows is not None or files.is_judged:
            yield files


def _read_tydi_pairs(directory: str, split: str) -> Iterator[Pairs]:
    for files in _tydi_sources(directory, split):
        if files.rows is not None:
            yield from tevatron_pairs([files.rows])
        else:
            yield from judged_pairs(str(files.topics), str(files.qrels), [str(files.corpus)])


def _of_files(
    files: Callable[[str], Mapping[str, Any]], read: Callable[[str, str], Iterator[Pairs]]
) -> PairFormat:
    return PairFormat(lambda directory: tuple(files(directory)), read)


def _trivia_files(directory: str) -> dict[str, tuple[DataPath]]:
    found = trivia_splits(directory, ("wikipedia", "web"))
    return {split: files for split, files in found.items() if split != "test"}


PAIRS: Mapping[str, PairFormat] = {
    "squad": _of_files(_squad_files, _read_squad_pairs),
    "triviaqa": _of_files(
        _trivia_files, lambda where, split: read_trivia_pairs(_trivia_files(where)[split][0])
    ),
    "pubmedqa": _of_files(_pubmed_files, _read_pubmed_pairs),
    "mrtydi": PairFormat(_tydi_splits, _read_tydi_pairs),
    "tevatron": _of_files(
        _tevatron_files, lambda where, split: tevatron_pairs(_tevatron_files(where)[split])
    ),
}
"""Formats of queries with passages that `tasks.pairs` selects by name."""


# Parallel lines.

SCORED = {2: ("source", "target"), 3: ("score", "source", "target")}
"""Columns of parallel files without a header, by the number of columns."""
_NLLB = ("source", "target", "score")
"""First columns of parallel files with four or more columns."""


class Parallel(NamedTuple):
    """Text and its translation, from a line of a parallel file.

    Attributes:
      where: location, "file:line".
      source: text in the first language.
      target: text in the second language.
      score: mining score, such as LASER's margin; None if the file has no scores.
    """

    where: str
    source: str
    target: str
    score: float | None


def read_parallel(path: str, *, min_score: float | None = None) -> Iterator[Parallel]:
    """Yield the lines of a parallel file, text and translation, in order.

    Lines are source TAB target; score TAB source TAB target, as in CCMatrix; or source TAB target
    TAB score and more columns, as in NLLB. Blank lines and lines with a score below `min_score` are
    skipped.
    """
    num_columns = 0
    for number, line in enumerate(read_lines([path]), start=1):
        if not line.strip():
            continue
        where, fields = f"{path}:{number}", line.split("\t")
        num_columns = num_columns or len(fields)
        names = SCORED.get(num_columns, _NLLB)
        if len(fields) != num_columns or num_columns < len(SCORED[2]):
            raise InputError(
                f"{where}: a line must be source TAB target, score TAB source TAB target, or "
                "source TAB target TAB score TAB more, with as many columns in all lines: got "
                f"{len(fields)} columns: {line[:60]!r}"
            )
        found = dict(zip(names, fields, strict=False))
        score = _score_of(found, where, needed=min_score is not None)
        if min_score is None or (score is not None and score >= min_score):
            yield Parallel(where, found["source"].strip(), found["target"].strip(), score)


def _score_of(fields: Mapping[str, str], where: str, *, needed: bool) -> float | None:
    if "score" not in fields:
        if needed:
            raise InputError(
                f"{where}: the line has no score, which a minimum score requires; unset the "
                "minimum score, or give a file with score TAB source TAB target"
            )
        return None
    try:
        score = float(fields["score"])
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{where}: the score {fields['score'][:40]!r} is not a number")
    return score


@dataclasses.dataclass(frozen=True)
class ParallelFile(RowFile):
    """Parallel file as a table with the columns source, target and, if present, score.

    Attributes:
      path: path of the file, in a format of `read_parallel`.
      min_score: minimum score of a line to keep; None keeps all lines.
    """

    path: DataPath
    min_score: float | None = None

    def rows(self) -> Iterator[Row]:
        """Yield a row for each line with at least the minimum score."""
        for where, source, target, score in read_parallel(str(self.path), min_score=self.min_score):
            scored = {} if score is None else {"score": score}
            yield Row(where, {"source": source, "target": target, **scored})

    def __fspath__(self) -> str:
        return str(self.path)


@dataclasses.dataclass(frozen=True)
class AlignedFiles(RowFile):
    """Files in different languages, aligned by line, as a table with a column per language.

    Attributes:
      paths: language code and path of each file.
    """

    paths: tuple[tuple[str, DataPath], ...]

    def rows(self) -> Iterator[Row]:
        """Yield a row for each line number, with the line of each file."""
        columns = [read_lines([str(path)]) for _, path in self.paths]
        for number, lines in enumerate(itertools.zip_longest(*columns), start=1):
            for (_, path), line in zip(self.paths, lines, strict=True):
                if line is None:
                    raise InputError(
                        f"{path} ends before line {number}, but {self.paths[0][1].name} and "
                        f"{self.paths[-1][1].name} must be translations of each other, line by line"
                    )
            codes = [code for code, _ in self.paths]
            yield Row(f"{self}:{number}", dict(zip(codes, lines, strict=True)))

    def __fspath__(self) -> str:
        return str(self.paths[0][1])


def parallel_splits(directory: str, min_score: float | None = None) -> dict[str, tuple[RowFile]]:
    """Return the parallel files of each split, such as train.tsv, or train.de with train.en."""
    root = data_path(directory)
    there = [file for file in sorted(root.glob("*")) if file.is_file()] if directory else []
    found: dict[str, tuple[RowFile]] = {}
    for split, names in SPLITS.items():
        own = [file for file in there if plain_name(file.name).rpartition(".")[0] in names]
        codes = [plain_name(file.name).rpartition(".")[2] for file in own]
        if codes == ["tsv"]:
            found[split] = (ParallelFile(own[0], min_score),)
        elif len({*codes} - {"tsv"}) == len(own) == 2:
            if min_score is not None:
                raise InputError(
                    f"{own[0]}: parallel texts in two files have no scores; unset "
                    "data.columns.min_score"
                )
            found[split] = (AlignedFiles(tuple(zip(codes, own, strict=True))),)
        elif own:
            raise InputError(
                f"data.directory {directory}: the split {split} must be one .tsv file, or two text "
                f"files such as {split}.de and {split}.en, got "
                f"{', '.join(file.name for file in own)}"
            )
    if not found:
        raise InputError(
            f"data.directory {directory!r} has no train.tsv of parallel lines, nor two files such "
            "as train.de and train.en"
        )
    return found
