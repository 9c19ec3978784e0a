"""Answers of questions: what the recall of open question answering is measured by.

    answers.jsonl       {"_id": "17", "answers": ["Paris", "City of Paris"]}
    nq-test.qa.csv      question TAB ['Paris', 'City of Paris']     DPR's form; ids are 0, 1, 2, ...
    mkqa.jsonl          {"example_id": 3, "queries": {"de": ...}, "answers": {"de": [{"type": ...,
                        "text": ..., "aliases": [...]}]}}           MKQA's, of one language

A first line of column names, question TAB answers, is a header and has no id. A question of MKQA
counts where it has an answer in English that is neither long nor yes or no, and
is answerable: 6,619 of 10,000 in BGE-M3's evaluation.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from t5x_lite.errors import InputError
from t5x_lite.records.compressed import plain_name
from t5x_lite.records.json_lines import Line, read_examples
from t5x_lite.records.lines import LONGEST_COLUMNS, read_lines

_HEADERS = (["question", "answers"], ["question", "answer"], ["query", "answers"])
_LEFT_OUT = ("unanswerable", "binary", "long_answer")


class Question(NamedTuple):
    """A question of MKQA in one language."""

    id: str
    text: str
    answers: list[str]


def read_answers(path: str) -> dict[str, list[str]]:
    """The answers by question.

    Raises:
      InputError: naming file and line: no list of answers, an id twice; or there is no question.
    """
    found: dict[str, list[str]] = {}
    if Path(plain_name(path)).suffix in (".jsonl", ".json"):
        pairs = map(_of_object, read_examples(path, fields=()))
    else:
        pairs = _of_table(path)
    for where, name, answers in pairs:
        if name in found:
            raise InputError(f"{where}: the id {name!r} comes twice")
        found[name] = answers
    if not found:
        raise InputError(f"{path}: no question")
    return found


def _of_object(line: Line) -> tuple[str, str, list[str]]:
    name, answers = line.record.get("_id", line.record.get("id")), line.record.get("answers")
    if not isinstance(name, str | int) or isinstance(name, bool) or not _are_texts(answers):
        raise InputError(f'{line.where}: must have "_id" and "answers", a list of strings')
    return line.where, str(name), list(answers or ())


def _of_table(path: str) -> Iterator[tuple[str, str, list[str]]]:
    header = 0
    for number, line in enumerate(read_lines([path], longest=LONGEST_COLUMNS)):
        where, fields = f"{path}:{number + 1}", line.split("\t", 2)
        if not number and [name.strip().strip('"').lower() for name in fields[:2]] in _HEADERS:
            header = 1
            continue
        try:
            answers = ast.literal_eval(fields[1].strip('"').replace('""', '"'))
        except (IndexError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InputError(f"{where}: must be question TAB ['answer', ...]") from error
        if not _are_texts(answers):
            raise InputError(f"{where}: must be question TAB ['answer', ...]")
        yield where, str(number - header), answers


def _are_texts(answers: Any) -> bool:
    return isinstance(answers, list) and all(isinstance(answer, str) for answer in answers)


def read_mkqa(path: str, language: str) -> list[Question]:
    """The questions of one language that are measured.

    Args:
      path: MKQA's file.
      language: such as "de".

    Raises:
      InputError: naming file and line: fields are missing; or the language has no question.
    """
    found = []
    for where, record in read_examples(path, fields=()):
        try:
            kinds = {str(one["type"]) for one in record["answers"]["en"]}
            if kinds & set(_LEFT_OUT):
                continue
            texts = [
                text
                for one in record["answers"][language]
                for text in (one.get("text"), *one.get("aliases", ()))
                if isinstance(text, str) and text
            ]
            found.append(Question(str(record["example_id"]), record["queries"][language], texts))
        except (AttributeError, KeyError, TypeError) as error:
            raise InputError(
                f"{where}: must have example_id, queries and answers of en and {language}"
            ) from error
    if not found:
        raise InputError(f"{path}: no question")
    return found
