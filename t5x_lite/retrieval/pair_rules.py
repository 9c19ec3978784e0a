"""Queries and passages that stand together in unlabelled text: a rule makes pairs of a document.

    list(RULES["title_body"](Document("f:1", {"title": "Emma", "text": "Jane Austen ..."})))
                                                        # [Raw("Emma", "Jane Austen ...")]

A document is a JSON object. Pages of WET and WARC files, and documents of text files, are objects
whose "text" begins with their title, a line of its own.

| rule | query | passage |
|---|---|---|
| `title_body` | "title", or the first line | "text" ("body", "contents", "document") |
| `title_abstract` | "title" | "abstract" |
| `question_answer` | "question" | "answer", or each of "answers" |
| `instruction_output` | "instruction" and "input", or "inputs" | "output", or "targets" |
| `heading_section` | a heading | what stands below it: "sections", or lines of "# ..." in "text" |
| `sentences` | a sentence | another one of the same paragraph, both drawn by place |
| `ict` | a sentence | the rest of its passage; in a tenth of the pairs, the whole passage |
| `code_docstring` | "docstring" ("func_documentation_string") | "code" ("func_code_string") |
| `parallel` | each of "src" and "tgt", or of "translation" | the other |

`ict` is the inverse cloze task. A passage has whole sentences of one document, as many as have 200
words or fewer together (ours; Lee et al. have 288 word pieces), so that short documents are one.

Source: Chen et al. 2024 (BGE-M3), section 3.1 and its appendix, which names the kinds of pairs and
no code; Lee et al. 2019, "Latent Retrieval for Weakly Supervised Open Domain Question Answering",
section 4, for `ict`.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from t5x_lite.retrieval.words import words

_BODIES = ("text", "body", "contents", "document")
_HEADING = re.compile(r"^(?:#{1,6}\s+(?P<mark>.*?)\s*#*|(?P<bars>={2,6})\s*(?P<wiki>.+?)\s*=+)\s*$")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=\S)|(?<=[。！？])\s*(?=\S)")
_WITH_SPACE = re.compile(f"({_SENTENCE.pattern})")


BLOCK_WORDS = 200
"""Words of a passage of `ict` at most, unless a sentence has more."""
KEPT_ONE_IN = 10
"""One passage of `ict` in so many keeps the sentence (Lee et al. 2019)."""


class Document(NamedTuple):
    """A document.

    Attributes:
      where: its place, "file:line".
      record: its fields.
      seed: of what a rule draws.
    """

    where: str
    record: Mapping[str, Any]
    seed: int = 0


class Raw(NamedTuple):
    """A pair, before the filters.

    Attributes:
      query: of the pair.
      passage: of the pair.
      languages: of query and passage, "" where they are not known.
    """

    query: str
    passage: str
    languages: tuple[str, str] = ("", "")


def _text(record: Mapping[str, Any], *names: str) -> str:
    """The first of some fields that is a text; "" is none."""
    return next((record[name] for name in names if isinstance(record.get(name), str)), "")


def _language(record: Mapping[str, Any]) -> str:
    return _text(record, "lang", "language")


def _alone(record: Mapping[str, Any], query: str, passage: str) -> Iterator[Raw]:
    if query.strip() and passage.strip():
        yield Raw(query, passage, (_language(record), _language(record)))


def title_body(document: Document) -> Iterator[Raw]:
    """The title, and the rest."""
    record = document.record
    title, body = _text(record, "title"), _text(record, *_BODIES)
    if not title.strip():
        title, _, body = body.strip().partition("\n")
    return _alone(record, title, body)


def title_abstract(document: Document) -> Iterator[Raw]:
    """The title, and the abstract of an article."""
    record = document.record
    return _alone(record, _text(record, "title"), _text(record, "abstract"))


def question_answer(document: Document) -> Iterator[Raw]:
    """A question, and each of its answers."""
    record = document.record
    answers = record.get("answers", record.get("answer"))
    if isinstance(answers, Mapping):  # SQuAD's form
        answers = answers.get("text")
    for answer in answers if isinstance(answers, list) else [answers]:
        if isinstance(answer, str):
            yield from _alone(record, _text(record, "question"), answer)


def instruction_output(document: Document) -> Iterator[Raw]:
    """An instruction with its input, and the output (xP3 has inputs and targets)."""
    record = document.record
    asked = [_text(record, "instruction", "inputs"), _text(record, "input")]
    query = "\n".join(part for part in asked if part.strip())
    return _alone(record, query, _text(record, "output", "targets"))


def heading_section(document: Document) -> Iterator[Raw]:
    """Each heading, and the text up to the next one."""
    record = document.record
    sections = record.get("sections")
    if isinstance(sections, list):
        for section in sections:
            if isinstance(section, Mapping):
                heading = _text(section, "heading", "title")
                yield from _alone(record, heading, _text(section, *_BODIES))
        return
    heading, lines = "", list[str]()
    for line in [*_text(record, *_BODIES).split("\n"), "# end"]:
        match = _HEADING.match(line)
        if match is None:
            lines.append(line)
            continue
        yield from _alone(record, heading, "\n".join(lines).strip())
        heading, lines = match["mark"] or match["wiki"] or "", []


def sentences(document: Document) -> Iterator[Raw]:
    """Two sentences of each paragraph: neighbours are no more likely than others."""
    record = document.record
    for number, paragraph in enumerate(_text(record, *_BODIES).split("\n")):
        found = [each for each in _SENTENCE.split(paragraph) if each.strip()]
        if len(found) < 2:
            continue
        key = f"{document.where}\0{number}".encode()
        draw = int.from_bytes(hashlib.blake2b(key, digest_size=16).digest(), "little")
        draw, first = divmod(draw, len(found))
        second = draw % (len(found) - 1)
        yield from _alone(record, found[first], found[second + (second >= first)])


def ict(document: Document) -> Iterator[Raw]:
    """A sentence of each passage, and the rest of the passage behind the document's title.

    What is drawn depends on the seed and the passage alone.
    """
    record = document.record
    text, title = _text(record, *_BODIES), _text(record, "title").strip()
    for passage in _passages(text):
        if len(passage) < 2:
            continue
        key = f"{document.seed}\0{''.join(passage)}".encode("utf-8", "replace")
        draw = int.from_bytes(hashlib.blake2b(key, digest_size=16).digest(), "little")
        draw, place = divmod(draw, len(passage))
        keeps = draw % KEPT_ONE_IN == 0
        rest = "".join(each for at, each in enumerate(passage) if keeps or at != place)
        yield from _alone(record, passage[place].strip(), f"{title} {rest}".strip())


def _passages(text: str) -> Iterator[list[str]]:
    """The sentences of a text, in runs of up to `BLOCK_WORDS` words or of one longer sentence.

    A sentence ends in the space before the next one, if there is any.
    """
    passage, size = list[str](), 0
    parts = [*_WITH_SPACE.split(text), ""]
    for sentence, space in zip(parts[::2], parts[1::2], strict=True):
        one = " ".join(sentence.split())
        count = len(one.split()) if one.isascii() else len(words(one))
        if passage and size + count > BLOCK_WORDS:
            yield passage
            passage, size = [], 0
        if one:
            passage.append(one + " " * bool(space))
            size += count
    if passage:
        yield passage


def code_docstring(document: Document) -> Iterator[Raw]:
    """What a function does in words, and its code (CodeSearchNet)."""
    record = document.record
    words = _text(record, "docstring", "func_documentation_string")
    return _alone(record, words, _text(record, "code", "func_code_string"))


def parallel(document: Document) -> Iterator[Raw]:
    """Two texts of one meaning, in both directions."""
    record = document.record
    pair = record.get("translation")
    if isinstance(pair, Mapping):
        texts = {str(k): v for k, v in pair.items() if isinstance(v, str)}
        languages, both = [*texts], [*texts.values()]
    else:
        both = [_text(record, "src"), _text(record, "tgt")]
        languages = record.get("langs", record.get("lang", ["", ""]))
        if isinstance(languages, str):
            languages = ([*languages.split("-"), "", ""])[:2]
    if len(both) == 2 and all(text.strip() for text in both):
        one, other = (str(each) for each in (*languages, "", "")[:2])
        yield Raw(both[0], both[1], (one, other))
        yield Raw(both[1], both[0], (other, one))


RULES: Mapping[str, Callable[[Document], Iterator[Raw]]] = {
    "title_body": title_body,
    "title_abstract": title_abstract,
    "question_answer": question_answer,
    "instruction_output": instruction_output,
    "heading_section": heading_section,
    "sentences": sentences,
    "ict": ict,
    "code_docstring": code_docstring,
    "parallel": parallel,
}
"""Rules by name."""
