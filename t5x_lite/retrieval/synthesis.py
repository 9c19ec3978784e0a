"""Questions about long articles that the user's generator writes: requests, and answers.

    request = request_of(Article("a7", "en", text), Excerpts(min_words=1000), template)
    {"id": "a7", "lang": "en", "text": "a run of paragraphs", "prompt": "..."}
    check("What drives the plot?", text, language="en")             # "", or the reason to drop it

A request has one run of whole paragraphs of the article, sampled by (seed, id). The question that
comes back is a query with the WHOLE article as positive, so that a retriever learns to search long
texts. The sampling of the excerpt and the checks are ours: BGE-M3's paper has the idea, and its
prompt asks for one specific, valuable question about the core of the text, without pronouns.

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
"""Default template."""
_LABEL = re.compile(r"^\s*(?:question|query|q|answer|问题|問題)\s*\d*\s*[:：]", re.IGNORECASE)


class Article(NamedTuple):
    """A long text.

    Attributes:
      id: id of the article.
      language: its language; "" if unknown.
      text: the complete text.
    """

    id: str
    language: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Excerpts:
    """The choice of articles and excerpts: options of `synthesize requests`.

    In scripts without spaces, each character counts as a word.

    Attributes:
      min_words: minimum words of an article.
      max_words: maximum words of an excerpt, which consists of consecutive whole paragraphs.
      number: maximum articles per language, sampled by the seed; default: all.
      seed: random seed of all samples.
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
    """Return whole paragraphs from a random one on, or words of a paragraph that is too long.

    Returns:
      "" where the article is too short.
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
    """Return the generator's request, or None if the article is too short."""
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
    """Return the reason to drop a question of the generator, or "" to keep it.

    Args:
      question: question that it wrote.
      text: the article.
      language: language of the article.
      min_words: minimum words of a question.
      max_words: maximum words of a question.
      guess: function that finds the language of a question; None does not check it.
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
    """Read the articles of files: JSON lines {"id", "text"}, perhaps with "title" and "lang".

    Raises:
      InputError: if a line is wrong, or an id comes twice.
    """
    seen: set[str] = set()
    for path in paths:
        lines = read_examples(path, fields=("text",), optional=("title", "lang"))
        for number, line in enumerate(lines):
            passage = of_object(line, number=number)
            if passage.id in seen:
                raise InputError(f"{passage.where}: the id {passage.id!r} comes twice")
            seen.add(passage.id)
            text = "\n".join(part for part in (passage.title, passage.text) if part)
            yield Article(passage.id, line.record.get("lang", ""), text)


def sampled_ids(articles: Iterator[Article], excerpts: Excerpts) -> set[str] | None:
    """Return the ids of the articles with the lowest random values per language; None for all."""
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
    """Read a generator's questions, by the id of their article: JSON lines {"id", "question"}.

    Raises:
      InputError: if a line is wrong, or an id comes twice.
    """
    found: dict[str, str] = {}
    for where, record in read_examples(path, fields=("question",)):
        name = record.get("id")
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise InputError(f'{where}: must have the "id" of its request, got {name!r:.40}')
        if str(name) in found:
            raise InputError(f"{where}: the id {name!r} comes twice")
        found[str(name)] = record["question"]
    return found
