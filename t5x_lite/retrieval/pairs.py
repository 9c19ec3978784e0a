"""Pairs from unlabelled documents: rules, filters, and questions by a generator.

Query-passage pairs from unlabeled documents: rules that make pairs, and filters.

A rule makes pairs of a query and a passage from a document:

    list(RULES["title_body"](Document("f:1", {"title": "Emma", "text": "Jane Austen ..."})))
                                                        # [Raw("Emma", "Jane Austen ...")]

A document is a JSON object. Pages of WET and WARC files, and documents of text files, are objects
with a "text" that begins with their title on a separate line.

| rule | query | passage |
|---|---|---|
| `title_body` | "title", or the first line | "text" ("body", "contents", "document") |
| `title_abstract` | "title" | "abstract" |
| `question_answer` | "question" | "answer", or each of "answers" |
| `instruction_output` | "instruction" and "input", or "inputs" | "output", or "targets" |
| `heading_section` | a heading | its section: "sections", or lines of "# ..." in "text" |
| `sentences` | a sentence | another one of the same paragraph, both sampled by position |
| `ict` | a sentence | the rest of its passage; in a tenth of the pairs, the whole passage |
| `code_docstring` | "docstring" ("func_documentation_string") | "code" ("func_code_string") |
| `parallel` | each of the texts "src" and "tgt", or of "translation" | its translation |

`ict` is the inverse cloze task. A passage consists of complete sentences of one document with up to
200 words (our choice; Lee et al. use 288 word pieces), so a short document is one passage.

Source: Chen et al. 2024 (BGE-M3), section 3.1 and its appendix, which names the kinds of pairs but
has no code; Lee et al. 2019, "Latent Retrieval for Weakly Supervised Open Domain Question
Answering", section 4, for `ict`.

`Sieve` filters pairs, and counts the pairs that each filter dropped:

    sieve = Sieve(Filters())
    sieve.keep(Raw("Emma, a novel", "Jane Austen ..."))     # the kept pair, or None
    sieve.dropped                                           # {"passage too short": 1}

A pair is counted for the first filter that drops it. Texts are normalized to Unicode NFC, without
control characters; a query that is the first line of the passage is removed from the passage. The
BGE-M3 paper only mentions that bad content and pairs of low relevance are removed; the filters and
thresholds are ours.

Synthetic questions about long articles: requests for a generator model, and its answers.

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
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from t5x_lite.c4.cleaning import identifier
from t5x_lite.core.errors import InputError
from t5x_lite.core.option_types import Count, OptionalFile, OptionalPositive, Positive
from t5x_lite.data.formats.lines import read_examples
from t5x_lite.data.formats.pairs import of_object
from t5x_lite.retrieval.analyzers import words

_BODIES = ("text", "body", "contents", "document")


_HEADING = re.compile(r"^(?:#{1,6}\s+(?P<mark>.*?)\s*#*|(?P<bars>={2,6})\s*(?P<wiki>.+?)\s*=+)\s*$")


_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=\S)|(?<=[。！？])\s*(?=\S)")


_WITH_SPACE = re.compile(f"({_SENTENCE.pattern})")


BLOCK_WORDS = 200
"""Maximum number of words in a passage of `ict`, unless a single sentence has more."""


KEPT_ONE_IN = 10
"""The rule `ict` keeps the query sentence in one of this many passages (Lee et al. 2019)."""


class Document(NamedTuple):
    """Document from which a rule makes query-passage pairs.

    Attributes:
      where: location of the document for messages, such as "file:line".
      record: fields of the document.
      seed: random seed of the rule.
    """

    where: str
    record: Mapping[str, Any]
    seed: int = 0


class Raw(NamedTuple):
    """Query-passage pair before filtering.

    Attributes:
      query: text of the query.
      passage: text of the passage.
      languages: languages of query and passage; "" if unknown.
    """

    query: str
    passage: str
    languages: tuple[str, str] = ("", "")


def _text(record: Mapping[str, Any], *names: str) -> str:
    return next((record[name] for name in names if isinstance(record.get(name), str)), "")


def _language(record: Mapping[str, Any]) -> str:
    return _text(record, "lang", "language")


def _alone(record: Mapping[str, Any], query: str, passage: str) -> Iterator[Raw]:
    if query.strip() and passage.strip():
        yield Raw(query, passage, (_language(record), _language(record)))


def title_body(document: Document) -> Iterator[Raw]:
    """Return a pair of the title and the remaining text of a document."""
    record = document.record
    title, body = _text(record, "title"), _text(record, *_BODIES)
    if not title.strip():
        title, _, body = body.strip().partition("\n")
    return _alone(record, title, body)


def title_abstract(document: Document) -> Iterator[Raw]:
    """Return a pair of the title and the abstract of a document."""
    record = document.record
    return _alone(record, _text(record, "title"), _text(record, "abstract"))


def question_answer(document: Document) -> Iterator[Raw]:
    """Yield pairs of a document's question and each of its answers."""
    record = document.record
    answers = record.get("answers", record.get("answer"))
    if isinstance(answers, Mapping):  # SQuAD's form
        answers = answers.get("text")
    for answer in answers if isinstance(answers, list) else [answers]:
        if isinstance(answer, str):
            yield from _alone(record, _text(record, "question"), answer)


def instruction_output(document: Document) -> Iterator[Raw]:
    """Return a pair of an instruction (with its input) and its output."""
    record = document.record
    asked = [_text(record, "instruction", "inputs"), _text(record, "input")]
    query = "\n".join(part for part in asked if part.strip())
    return _alone(record, query, _text(record, "output", "targets"))


def heading_section(document: Document) -> Iterator[Raw]:
    """Yield pairs of a heading and the text below it, up to the next heading."""
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
    """Yield a pair of two random sentences of each paragraph; they need not be adjacent."""
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
    """Yield a random sentence of each passage, paired with the title and the rest of the passage.

    The sampled sentence depends only on the seed and the passage.
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
    """Yield a pair of a function's docstring and its code (CodeSearchNet)."""
    record = document.record
    words = _text(record, "docstring", "func_documentation_string")
    return _alone(record, words, _text(record, "code", "func_code_string"))


def parallel(document: Document) -> Iterator[Raw]:
    """Yield pairs of a text and its translation, in both directions."""
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
"""Name of a rule -> function that yields the pairs of a document."""


_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u2060\ufeff]")


_UNSPACED = ("ja", "th", "zh")


SAMPLES = 3
"""Number of dropped pairs of each filter that the report shows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Filters:
    """Filters of query-passage pairs; the fields are options of `t5x-lite pairs`.

    Attributes:
      min_query_words: minimum number of words of a query; shorter queries are dropped.
      max_query_words: maximum number of words of a query; longer queries are dropped.
      min_passage_words: minimum number of words of a passage; shorter passages are dropped.
      max_queries: maximum number of pairs with the same passage; further pairs are dropped.
      bad_words: file with one bad word per line; pairs with a bad word are dropped; default: none.
      languages_by: language detector, langdetect or cld3, to drop passages that are not in their
        stated language; default: no detection.
    """

    min_query_words: Positive = 2
    max_query_words: Positive = 64
    min_passage_words: Positive = 10
    max_queries: Positive = 20
    bad_words: OptionalFile = None
    languages_by: Literal["langdetect", "cld3"] | None = None

    def __post_init__(self):
        if 1 <= self.max_query_words < self.min_query_words:
            raise InputError(
                "--min-query-words must not be above --max-query-words, got "
                f"{self.min_query_words} and {self.max_query_words}"
            )


class Sieve:
    """Filter of query-passage pairs, which also drops repeated pairs and counts dropped pairs.

    Attributes:
      seen: number of pairs.
      kept: number of pairs that passed all filters.
      dropped: number of dropped pairs by filter.
      samples: the first dropped pairs by filter.
    """

    def __init__(self, filters: Filters):
        from t5x_lite.c4.bad_words import BadWords, load_bad_words

        self._filters = filters
        self._bad = BadWords(load_bad_words(filters.bad_words)) if filters.bad_words else None
        self._bad_anywhere = (
            BadWords(load_bad_words(filters.bad_words), word_boundaries=False)
            if filters.bad_words
            else None
        )
        self._guess: Callable[[str], tuple[str, float, str]] | None = None
        if filters.languages_by:
            self._guess = identifier(filters.languages_by)
        self._pairs: set[int] = set()
        self._queries: Counter[int] = Counter()
        self.seen = self.kept = 0
        self.dropped: Counter[str] = Counter()
        self.samples: dict[str, list[list[str]]] = {}

    def keep(self, raw: Raw) -> Raw | None:
        """Return the normalized pair, or None if a filter dropped it."""
        self.seen += 1
        query, passage = plain(raw.query), plain(raw.passage)
        first, _, rest = passage.partition("\n")
        if first.strip().casefold() == query.casefold():
            passage = rest.strip()
        pair = Raw(query, passage, raw.languages)
        if why := self._why(pair):
            self.drop(pair, why)
            return None
        self.kept += 1
        return pair

    def drop(self, pair: Raw, why: str) -> None:
        """Count a query-passage pair as dropped by a filter, and keep it as a sample."""
        self.dropped[why] += 1
        samples = self.samples.setdefault(why, [])
        if len(samples) < SAMPLES:
            samples.append([pair.query[:200], pair.passage[:200]])

    def _why(self, pair: Raw) -> str:
        filters = self._filters
        num = _count(pair.query, filters.max_query_words + 1)
        if num < filters.min_query_words:
            return "query too short"
        if num > filters.max_query_words:
            return "query too long"
        if _count(pair.passage, filters.min_passage_words) < filters.min_passage_words:
            return "passage too short"
        if pair.query.casefold() == pair.passage.casefold():
            return "query is passage"
        if self._has_bad_word(pair):
            return "bad word"
        if self._guess is not None and pair.languages[1]:
            found = self._guess(pair.passage)[0].split("-")[0]
            if found != pair.languages[1].split("-")[0]:
                return "other language"
        return self._repeated(pair)

    def _has_bad_word(self, pair: Raw) -> bool:
        if self._bad is None or self._bad_anywhere is None:
            return False
        for text, language in zip((pair.query, pair.passage), pair.languages, strict=True):
            bad = self._bad_anywhere if language in _UNSPACED else self._bad
            if bad.find(text) is not None:
                return True
        return False

    def _repeated(self, pair: Raw) -> str:
        both = _digest(pair.query, pair.passage)
        if both in self._pairs:
            return "duplicate"
        passage = _digest(pair.passage)
        if self._queries[passage] >= self._filters.max_queries:
            return "passage of too many queries"
        self._pairs.add(both)
        self._queries[passage] += 1
        return ""


def plain(text: str) -> str:
    """Return a text in NFC without control characters and without white space at line ends."""
    lines = unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(_CONTROLS.sub("", line).strip() for line in lines).strip()


def _count(text: str, enough: int) -> int:
    spaced = len(text.split(None, enough))
    return spaced if text.isascii() or spaced > enough else len(words(text))


def _digest(*texts: str) -> int:
    content = hashlib.blake2b("\0".join(texts).encode("utf-8", "replace"), digest_size=8)
    return int.from_bytes(content.digest(), "little")


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
      seed: random seed for sampling articles and excerpts.
    """

    min_words: Positive = 1000
    max_words: Positive = 350
    number: OptionalPositive = None
    seed: Count = 0


def draw_of(article: str, seed: int) -> int:
    """Return a 64-bit hash of a seed and an article's id, for random sampling."""
    content = hashlib.blake2b(f"{seed}\0{article}".encode(), digest_size=8).digest()
    return int.from_bytes(content, "little")


def excerpt(article: Article, excerpts: Excerpts) -> str:
    """Return a random excerpt of an article: consecutive paragraphs, or the start of a long one.

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
    """Return a request to generate a question about an article; None for a short article."""
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
    """Return the ids of a random sample of articles, or None to use all articles."""
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
                f'{where}: the field "id" must be a string or an integer (the id of the request), '
                f"got {name!r:.40}"
            )
        if str(name) in found:
            raise InputError(f"{where}: two questions have the id {name!r}")
        found[str(name)] = record["question"]
    return found
