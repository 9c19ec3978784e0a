"""`t5x-lite synthesize requests` and `collect`: questions about long articles, by your generator.

    requests    articles -> {"id", "lang", "text", "prompt"}, of which a generator makes
                {"id", "question"}
    collect     articles and these answers -> {"query", "pos": [the whole article], "id"}

Both name in OUTPUT.report.json what was left out and why. The order is that of the articles, and
the outputs are functions of the inputs and the seed.
"""

import heapq
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_lite.c4.language import identifier
from t5x_lite.errors import InputError
from t5x_lite.files import LONGEST_LINE, write_atomically
from t5x_lite.progress import counting
from t5x_lite.records.compressed import read_whole
from t5x_lite.records.json_lines import read_examples, writer
from t5x_lite.records.passages import of_object
from t5x_lite.retrieval.synthesis import PROMPT, Article, Excerpts, check, draw_of, request_of

_USUAL = Excerpts()

_logger = logging.getLogger(__name__)


def requests(
    articles: Sequence[str],
    *,
    output: str,
    prompt: str | None = None,
    excerpts: Excerpts = _USUAL,
) -> None:
    """Writes what a generator is asked.

    Args:
      articles: files of JSON lines {"id", "text"}, perhaps with "title" and "lang".
      output: *.jsonl.
      prompt: a file with the template, in which {text} stands for the excerpt; None is ours.
      excerpts: which articles, and how much of each.

    Raises:
      InputError: a file or a line is wrong, or no article is long enough.
    """
    template = PROMPT if prompt is None else _template(prompt)
    chosen = _chosen(articles, excerpts)
    num, dropped = 0, Counter[str]()
    counter = counting("writing requests", unit="articles")
    with counter as advance, writer(output) as file:
        for article in _articles(articles):
            num += 1
            advance(1)
            if chosen is not None and article.id not in chosen:
                dropped["too short, or not drawn"] += 1
                continue
            request = request_of(article, excerpts, template)
            if request is None:
                dropped["too short"] += 1
                continue
            file.write(request)
        if num == dropped.total():
            raise InputError(
                f"{articles[0]}: none of {num} articles has {excerpts.min_words} words: give "
                "longer ones, or lower --min-words"
            )
        _report(output, {"articles": num, "requests": num - dropped.total()}, dropped)


def collect(
    articles: Sequence[str],
    *,
    answers: str,
    output: str,
    min_words: int = 3,
    max_words: int = 64,
    languages_by: str = "",
) -> None:
    """Writes pairs of the questions that came back and the whole articles.

    Args:
      articles: the files of `requests`.
      answers: JSON lines {"id", "question"}; one of an id.
      output: *.jsonl.
      min_words: of a question at least.
      max_words: of a question at most.
      languages_by: "langdetect" or "cld3" drops questions in another language than the article's;
        "" believes them.

    Raises:
      InputError: a file or a line is wrong, or an answer is to no article.
    """
    questions = _questions(answers)
    guess = identifier(languages_by) if languages_by else None
    dropped, kept = Counter[str](), 0
    counter = counting("making pairs", unit="articles")
    with counter as advance, writer(output) as file:
        for article in _articles(articles):
            advance(1)
            question = questions.pop(article.id, None)
            if question is None:
                continue
            why = check(
                question,
                article.text,
                language=article.language,
                min_words=min_words,
                max_words=max_words,
                guess=guess,
            )
            if why:
                dropped[why] += 1
                continue
            kept += 1
            record = {"query": " ".join(question.split()), "pos": [article.text], "id": article.id}
            file.write({**record, **({"lang": article.language} if article.language else {})})
        if questions:
            raise InputError(
                f"{answers} has an answer to {min(questions)!r}, which the articles do not have"
            )
        if not kept:
            raise InputError(f"{answers}: no question is left; {dict(dropped)}")
        _report(output, {"answers": kept + dropped.total(), "kept": kept}, dropped)


def _articles(paths: Sequence[str]) -> Iterator[Article]:
    """The articles of files, each id once."""
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


def _chosen(paths: Sequence[str], excerpts: Excerpts) -> set[str] | None:
    """The ids of the articles with the lowest draws of each language; None are all."""
    if excerpts.number is None:
        return None
    heaps: dict[str, list[tuple[int, str]]] = {}
    for article in _articles(paths):
        if request_of(article, excerpts, "") is None:
            continue
        heap = heaps.setdefault(article.language, [])
        heapq.heappush(heap, (-draw_of(article.id, excerpts.seed), article.id))
        if len(heap) > excerpts.number:
            heapq.heappop(heap)
    return {name for heap in heaps.values() for _, name in heap}


def _questions(path: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for where, record in read_examples(path, fields=("question",)):
        name = record.get("id")
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise InputError(f'{where}: must have "id", that of its request, got {name!r:.40}')
        if str(name) in found:
            raise InputError(f"{where}: the id {name!r} comes twice")
        found[str(name)] = record["question"]
    return found


def _template(path: str) -> str:
    try:
        text = read_whole(path, most=LONGEST_LINE).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    if "{text}" not in text:
        raise InputError(f"{path}: must have {{text}}, where the excerpt goes")
    return text


def _report(output: str, counts: Mapping[str, int], dropped: Counter[str]) -> None:
    report: dict[str, Any] = {**counts, "dropped": dict(sorted(dropped.items()))}
    if output != "-":
        content = json.dumps(report, indent=1, ensure_ascii=False).encode() + b"\n"
        write_atomically(Path(f"{output}.report.json"), content)
    _logger.info("%s: %s", output, report)
