"""Pages a second on one core: C4's cleaning and bad-word filter beside tensorflow_datasets' own.

    python scripts/bench/c4_cleaning.py --data TEXT_DIRECTORY [--bad-words FILE] [--pages 4000]
        [--bad-word-pages 1000] [--bad-word-bytes 6500] [--repeats 3] [--seed 0]

Pages are put together from the paragraphs of DIRECTORY/*.txt and from the kinds of lines that fill
real ones: menus, lists, policies, citations, code. All sides get the same pages and the same
parameters of punkt, count into plain dictionaries (c4_utils' own counters, Beam's, cost it several
times more), and run in turn, `repeats` times each; that they keep the same pages with the same text
is asserted. "c4_utils" has NLTK's tokenizer as it is, "c4_utils_untimed" that tokenizer without the
limit of wall clock on each pattern, as ours is. Where datatrove is installed, its C4QualityFilter
runs too, with T5's thresholds and ends of lines, and NLTK's punkt in place of its own, slower
sentences. The bad-word filters get cleaned pages, put together to 6,500 bytes, and the same list:
FILE, or 400 rare words of the text. Time is CPU time of the process, so that other programs count
less.

One JSON line for each of the two: pages a second and MB a second (median and range), the ratio of
the medians, the share of pages that is kept, and the machine's load.
"""

import argparse
import collections
import json
import os
import pathlib
import platform
import random
import statistics
import time
import types
from collections.abc import Callable, Sequence

from t5x_lite.c4.bad_words import BadWordsFilter, load_bad_words
from t5x_lite.c4.cleaning import clean_page, load_counter
from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.pages import Page, Tally, utf8_length

FURNITURE = (
    "Home | About us | Contact | Privacy | Site map",
    "Read more...",
    "By using this site you agree to our Terms of Use.",
    "This website uses cookies to improve your experience.",
    "Please enable JavaScript in your browser to see this page.",
    "Copyright 2019 All rights reserved",
    "Posted by admin on April 3, 2019 at 10:15 am",
    "Share on Facebook Share on Twitter",
)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--bad-words", type=pathlib.Path)
    parser.add_argument("--pages", type=int, default=4000)
    parser.add_argument("--bad-word-pages", type=int, default=1000)
    parser.add_argument("--bad-word-bytes", type=int, default=6500, help="of a page, at least")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def read_paragraphs(directory: pathlib.Path, *, limit: int = 20_000_000) -> list[str]:
    """Paragraphs of 40 to 3,000 characters, from files by name, up to `limit` characters."""
    paragraphs, size = [], 0
    for path in sorted(directory.glob("*.txt")):
        for block in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            text = " ".join(block.split())
            if 40 <= len(text) <= 3000:
                paragraphs.append(text)
                size += len(text)
        if size > limit:
            break
    return paragraphs


def make_pages(paragraphs: Sequence[str], *, count: int, seed: int) -> list[Page]:
    """About half of the lines of a page are prose; one page in fifty has code."""
    generator = random.Random(seed)
    pages = []
    for number in range(count):
        lines = []
        for _ in range(generator.choice((3, 6, 12, 25, 50))):
            draw = generator.random()
            paragraph = generator.choice(paragraphs)
            if draw < 0.45:
                lines.append(paragraph)
            elif draw < 0.8:
                words = paragraph.split()
                start = generator.randrange(len(words))
                lines.append(" ".join(words[start : start + generator.randrange(1, 6)]))
            elif draw < 0.9:
                lines.append(f"* {paragraph[:80]}")
            elif draw < 0.95:
                lines.append(f"{paragraph}[{generator.randrange(99)}]")
            else:
                lines.append(generator.choice(FURNITURE))
        if generator.random() < 0.02:
            lines.append("function open(name) { return window.open(name, 1); }.")
        url = f"https://www.site{generator.randrange(500)}.com/{number}"
        pages.append(Page(url, "\n".join(lines), "2019-04-24T00:00:00Z", "1", "text/plain"))
    return pages


def load_reference() -> types.SimpleNamespace:
    """c4_utils with plain counters and as much of TensorFlow as it uses; `use` sets a tokenizer."""
    from tensorflow_datasets.text import c4_utils

    counts: collections.Counter[str] = collections.Counter()

    def count(namespace: str):
        def add(name: str, amount: int = 1) -> None:
            counts[name] += amount

        return add

    def use(tokenize: Callable[[str], list[str]]) -> None:
        c4_utils._SENTENCE_TOKENIZER = types.SimpleNamespace(tokenize=tokenize)

    c4_utils.tf = types.SimpleNamespace(compat=types.SimpleNamespace(as_text=str))
    c4_utils.get_counter_inc_fn = count
    return types.SimpleNamespace(
        clean=c4_utils.get_clean_page_fn(), c4_utils=c4_utils, count=count("clean"), use=use
    )


def race(sides: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """CPU seconds of each side, in turn; the results of all must be equal."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        results = []
        for name, run in sides.items():
            start = time.process_time()
            results.append(run())
            seconds[name].append(time.process_time() - start)
        assert all(result == results[0] for result in results), "they keep different pages"
    return seconds


def report(stage: str, pages: Sequence[Page], kept: int, seconds: dict[str, list[float]], **more):
    size = sum(utf8_length(page.text) for page in pages)
    rates = {name: [len(pages) / each for each in found] for name, found in seconds.items()}
    medians = {name: statistics.median(found) for name, found in rates.items()}
    print(
        json.dumps(
            {
                "bench": "c4_cleaning",
                "stage": stage,
                "device": platform.processor() or platform.machine(),
                "cpus": os.cpu_count(),
                "load": round(os.getloadavg()[0], 1),
                "pages": len(pages),
                "bytes": size,
                "kept": round(kept / len(pages), 4),
                **more,
                **{
                    name: {
                        "pages_per_second": round(medians[name]),
                        "range": [round(min(found)), round(max(found))],
                        "mb_per_second": round(medians[name] * size / len(pages) / 1e6, 2),
                    }
                    for name, found in rates.items()
                },
                "ratio": {
                    name: round(medians["t5x_lite"] / rate, 1)
                    for name, rate in medians.items()
                    if name != "t5x_lite"
                },
            }
        ),
        flush=True,
    )


def datatrove_run(
    pages: list[Page], tokenize: Callable[[str], list[str]]
) -> Callable[[], list[tuple[str, str]]] | None:
    """datatrove's filter over the pages, with T5's thresholds; None where it is not installed."""
    try:
        from datatrove.data import Document
        from datatrove.pipeline.filters import c4_filters
    except ImportError:
        return None

    c4_filters.split_into_sentences = lambda text, language: tokenize(text)
    c4_filters.END_PUNCTUATION = (".", "?", "!", '"')
    rules = c4_filters.C4QualityFilter(min_num_sentences=3, min_words_per_line=5)

    def run() -> list[tuple[str, str]]:
        found = []
        for page in pages:
            document = Document(text=page.text, id=page.url)
            if rules.filter(document) is True:
                found.append((page.url, document.text))
        return found

    return run


def bench_cleaning(pages: list[Page], arguments: argparse.Namespace) -> list[Page]:
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    counter = load_counter()
    reference = load_reference()
    theirs = [reference.c4_utils.PageFeatures(url=page.url, text=page.text) for page in pages]
    cleaning = Cleaning()

    def ours() -> list[tuple[str, str]]:
        tally = Tally()
        found = [clean_page(page, cleaning, counter, tally) for page in pages]
        return [(page.url, page.text) for page in found if page]

    def reference_run(tokenize: Callable[[str], list[str]]) -> list[tuple[str, str]]:
        reference.use(tokenize)
        return [
            (found.url, found.text)
            for page in theirs
            for found in reference.clean(page=page, counter_inc_fn=reference.count)
        ]

    nltk = PunktSentenceTokenizer(counter.parameters)
    runs = {
        "t5x_lite": ours,
        "c4_utils": lambda: reference_run(nltk.tokenize),
        "c4_utils_untimed": lambda: reference_run(counter.sentences),
    }
    datatrove = datatrove_run(pages, nltk.tokenize)
    if datatrove:
        runs["datatrove"] = datatrove
    seconds = race(runs, arguments.repeats)
    kept = dict(ours())
    report("clean", pages, len(kept), seconds, counter=counter.name)
    return [page.with_text(kept[page.url]) for page in pages if page.url in kept]


def rare_words(pages: Sequence[Page], count: int) -> list[str]:
    """Words of the pages that are the rarest among those of at least four letters."""
    found = collections.Counter(
        word for page in pages for word in page.text.lower().split() if word.isalpha()
    )
    rare = sorted((times, word) for word, times in found.items() if len(word) > 3)
    return [word for _, word in rare[:count]]


def joined(pages: Sequence[Page], size: int) -> list[Page]:
    """Pages put together until they have so many bytes."""
    texts, found, length = [], [], 0
    for page in pages:
        texts.append(page.text)
        length += utf8_length(page.text)
        if length >= size:
            found.append(page.with_text("\n".join(texts)))
            texts, length = [], 0
    return found


def bench_bad_words(pages: list[Page], arguments: argparse.Namespace) -> None:
    path = arguments.bad_words
    entries = load_bad_words(path) if path else rare_words(pages, 400)
    pages = joined(pages, arguments.bad_word_bytes)[: arguments.bad_word_pages]
    pages = [page.with_language("en") for page in pages]
    reference = load_reference()
    theirs = [
        reference.c4_utils.PageFeatures(url=page.url, text=page.text, language="en")
        for page in pages
    ]
    keep = reference.c4_utils.get_badwords_filter_fn({"en": entries})
    words = BadWordsFilter(Cleaning(), entries=entries)

    def ours() -> list[bool]:
        tally = Tally()
        return [words.keep(page, tally) is not None for page in pages]

    def reference_run() -> list[bool]:
        return [keep(page) for page in theirs]

    seconds = race({"t5x_lite": ours, "c4_utils": reference_run}, arguments.repeats)
    report("bad_words", pages, sum(ours()), seconds, entries=len(entries))


def main() -> None:
    arguments = parse()
    paragraphs = read_paragraphs(arguments.data)
    pages = make_pages(paragraphs, count=arguments.pages, seed=arguments.seed)
    cleaned = bench_cleaning(pages, arguments)
    bench_bad_words(cleaned, arguments)


if __name__ == "__main__":
    main()
