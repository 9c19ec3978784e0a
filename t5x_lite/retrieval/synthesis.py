"""Synthetic questions about long articles: requests for a generator model, and its answers.

    request = request_of(Article("a7", "en", text), Excerpts(min_words=1000), template)
    {"id": "a7", "lang": "en", "text": "a run of paragraphs", "prompt": "..."}
    check("What drives the plot?", text, language="en")             # "", or the reason to drop it

A request contains consecutive complete paragraphs of the article, sampled by (seed, id). The
generated question becomes a query with the COMPLETE article as its positive, so that a retriever
learns to search long texts. The idea comes from the BGE-M3 paper, in which the prompt asks for one
specific, valuable question about the core of the text, without pronouns. The sampling of the
excerpt and the checks are ours.

Source: Chen et al. 2024 (BGE-M3), section 3.1 and appendix (MultiLongDoc).
"""

import dataclasses
import hashlib
import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from t5x_lite.core.errors import InputError
from t5x_lite.core.option_types import Count, OptionalPositive, Positive
from t5x_lite.data.formats.lines import read_examples
from t5x_lite.data.formats.passages import of_object
from t5x_lite.retrieval.analyzers import words
from t5x_lite.retrieval.pair_rules import plain

PROMPT = (
    "Read the text below and ask one specific and valuable question about its core. A reader who "
    "has not seen the text must understand the question: use names and no pronouns. Write the "
    "question alone, on one line, in the language of the text.\n\n{text}"
)
"""Default template of a request's prompt."""
_LABEL = re.compile(r"^\s*(?:question|query|q|answer|问题|問題)\s*\d*\s*[:：]", re.IGNORECASE)


class Article(NamedTuple):
    """Long text to generate a question about.

    Attributes:
      id: id of the article.
      language: language of the article; "" if unknown.
      text: complete text, including the title.
    """

    id: str
    language: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Excerpts:
    """Selection of articles and excerpts; the fields are options of `t5x-lite synthesize requests`.

    In scripts without spaces, each character counts as a word.

    Attributes:
      min_words: minimum number of words of an article; shorter articles are skipped.
      max_words: maximum number of words of an excerpt, made of consecutive paragraphs.
      number: maximum number of articles per language, sampled at random; default: all articles.
      seed: random seed of the samples of articles and excerpts.
    """

    min_words: Positive = 1000
    max_words: Positive = 350
    number: OptionalPositive = None
    seed: Count = 0


def draw_of(article: str, seed: int) -> int:
    """Return a 64-bit hash of the seed and the article's id."""
    content = hashlib.blake2b(f"{seed}\0{article}".encode(), digest_size=8).digest()
    return int.from_bytes(content, "little")


def excerpt(article: Article, excerpts: Excerpts) -> str:
    """Return consecutive paragraphs from a random one on, or the start of a long paragraph.

    Returns:
      The text of the excerpt, or "" if the article is too short.
    """
    paragraphs = [each for each in plain(article.text).split("\n") if each]
    counts = [len(words(each)) for each in paragraphs]
    if sum(counts) < excerpts.min_words:
        return ""
    start = draw_of(article.id, excerpts.seed) % len(paragraphs)
    end, total = start, 0
    while end < len(paragraphs) and total + counts[end] <= excerpts.max_words:
        total += counts[end]
        end += 1
    if end > start:
        return "\n".join(paragraphs[start:end])
    return _first_words(paragraphs[start], excerpts.max_words)


def _first_words(text: str, num: int) -> str:
    end = 0
    for word in words(text)[:num]:
        end = text.index(word, end) + len(word)
    return text[:end]


def request_of(article: Article, excerpts: Excerpts, template: str) -> dict[str, str] | None:
    """Return the request for an article, or None if the article is too short."""
    text = excerpt(article, excerpts)
    if not text:
        return None
    return {
        "id": article.id,
        "lang": article.language,
        "text": text,
        "prompt": template.replace("{text}", text),
    }


def check(
    question: str,
    text: str,
    *,
    language: str = "",
    min_words: int = 3,
    max_words: int = 64,
    guess: Callable[[str], tuple[str, float, str]] | None = None,
) -> str:
    """Return the reason to drop a generated question, or "" to keep it.

    Args:
      question: generated question.
      text: text of the article.
      language: language of the article.
      min_words: minimum number of words of a question.
      max_words: maximum number of words of a question.
      guess: function that detects the language of a question; None does not check the language.
    """
    asked = plain(question)
    if "\n" in asked:
        return "more than one line"
    if _LABEL.match(asked):
        return "a label before it"
    num = len(words(asked))
    if num < min_words:
        return "too short"
    if num > max_words:
        return "too long"
    if asked.casefold() in plain(text).casefold():
        return "words of the text"
    if guess is not None and language and guess(asked)[0].split("-")[0] != language.split("-")[0]:
        return "other language"
    return ""


def read_articles(paths: Sequence[str]) -> Iterator[Article]:
    """Yield the articles of files: JSON lines {"id", "text"}, optionally with "title" and "lang".

    Raises:
      InputError: if a line is invalid, or two articles have the same id.
    """
    seen: set[str] = set()
    for path in paths:
        lines = read_examples(path, fields=("text",), optional=("title", "lang"))
        for number, line in enumerate(lines):
            passage = of_object(line, number=number)
            if passage.id in seen:
                raise InputError(f"{passage.where}: two articles have the id {passage.id!r}")
            seen.add(passage.id)
            text = "\n".join(part for part in (passage.title, passage.text) if part)
            yield Article(passage.id, line.record.get("lang", ""), text)


def sampled_ids(articles: Iterator[Article], excerpts: Excerpts) -> set[str] | None:
    """Return the ids of randomly sampled articles, up to a number per language; None for all."""
    if excerpts.number is None:
        return None
    heaps: dict[str, list[tuple[int, str]]] = {}
    for article in articles:
        if request_of(article, excerpts, "") is None:
            continue
        heap = heaps.setdefault(article.language, [])
        heapq.heappush(heap, (-draw_of(article.id, excerpts.seed), article.id))
        if len(heap) > excerpts.number:
            heapq.heappop(heap)
    return {name for heap in heaps.values() for _, name in heap}


def read_questions(path: str) -> dict[str, str]:
    """Return article id -> generated question, from a file of JSON lines {"id", "question"}.

    Raises:
      InputError: if a line is invalid, or two questions have the same id.
    """
    found: dict[str, str] = {}
    for where, record in read_examples(path, fields=("question",)):
        name = record.get("id")
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise InputError(
                f'{where}: the field "id" must be the id of a request, got {name!r:.40}'
            )
        if str(name) in found:
            raise InputError(f"{where}: two questions have the id {name!r}")
        found[str(name)] = record["question"]
    return found
