"""One occurrence of every run of three sentences: the deduplication of the paper.

Source: Raffel et al. (JMLR 2020), section 2.2: "we discarded all but one of any three-sentence span
occurring more than once in the data set." What that means where spans overlap the paper leaves
open; here it means, over the text as it is before anything is removed:

* A *window* is `span_sentences` consecutive sentences of a page, compared with their runs of
  whitespace as single spaces. Shorter pages have none.
* Of all occurrences of a window, that on the page with the smallest `pages.page_rank` stays, and on
  that page the first. All others are *lost*.
* A sentence is removed if it belongs to a lost window, unless the same window is kept on this page
  and the sentence belongs to it too ("a a a a a" leaves "a a a").

So nothing depends on the order of pages, every sentence stays somewhere, and no window is left
twice. Who keeps a window is for the drivers to find:

    for number, key in enumerate(span_keys(page.text, counter)):
        smallest page_rank of all pages with this key is not this page's -> `number` is lost
    remove_spans(page, lost, cleaning, counter, tally)

A window that the page repeats need not be among the lost: `remove_spans` finds those itself.
"""

import hashlib
from collections.abc import Collection, Sequence

from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.lines import finish_dedup
from t5x_lite.c4.pages import Page, Tally
from t5x_lite.c4.sentences import SentenceCounter


def page_sentences(text: str, counter: SentenceCounter) -> list[str]:
    """The sentences of a page, line by line, for a sentence does not go on beyond its line."""
    return [sentence for line in text.split("\n") for sentence in counter.sentences(line)]


def span_keys(text: str, counter: SentenceCounter, *, n: int = 3) -> list[bytes]:
    """16 bytes for each window of `n` sentences, by the number of its first sentence."""
    return _keys(page_sentences(text, counter), n)


def remove_spans(
    page: Page,
    lost: Collection[int],
    cleaning: Cleaning,
    counter: SentenceCounter,
    tally: Tally,
) -> Page | None:
    """Stage 5 of `paper`: the page without repeated spans, or None where too little is left.

    Args:
      page: a page as `clean_page` gave it.
      lost: numbers, from 0, of the windows that another page keeps.
      cleaning: `span_sentences` and `min_sentences_after_dedup`.
      counter: counts sentences.
      tally: gets what is dropped.
    """
    tally.page_in("dedup", page)
    lines = page.text.split("\n")
    divided = [counter.sentences(line) for line in lines]
    flat = [sentence for sentences in divided for sentence in sentences]
    removed = _removed(_keys(flat, cleaning.span_sentences), lost, cleaning.span_sentences)
    if not removed:
        return finish_dedup(page, page.text, cleaning, counter, tally)
    tally.drop_lines("dedup", "repeated_span", page, [flat[number] for number in sorted(removed)])
    left, number = [], 0
    for line, sentences in zip(lines, divided, strict=True):
        stay = [text for place, text in enumerate(sentences, number) if place not in removed]
        number += len(sentences)
        if len(stay) == len(sentences):
            left.append(line)
        elif stay:
            left.append(" ".join(stay))
    return finish_dedup(page, "\n".join(left), cleaning, counter, tally)


def _keys(sentences: Sequence[str], n: int) -> list[bytes]:
    digests = [
        hashlib.md5(
            " ".join(sentence.split()).encode("utf-8", "surrogatepass"), usedforsecurity=False
        ).digest()
        for sentence in sentences
    ]
    return [
        hashlib.md5(b"".join(digests[first : first + n]), usedforsecurity=False).digest()
        for first in range(len(digests) - n + 1)
    ]


def _removed(keys: Sequence[bytes], lost: Collection[int], n: int) -> set[int]:
    """Numbers of the sentences that lost windows take with them."""
    kept: dict[bytes, int] = {}
    gone: set[bytes] = set()
    removed: set[int] = set()
    for number, key in enumerate(keys):
        if key in kept:
            removed.update(range(max(number, kept[key] + n), number + n))
        elif number in lost or key in gone:
            removed.update(range(number, number + n))
            gone.add(key)
        else:
            kept[key] = number
    return removed
