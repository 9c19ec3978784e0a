"""Each line on one page only: the deduplication of the published C4.

Source: c4_utils.remove_duplicate_text. Of all pages with a line, compared stripped and in lower
case, the one whose URL has the smallest MD5 keeps it, where it stands first; then the page needs
enough sentences again, counted over the joined text (a line that ends in "etc." joins the next).

Who keeps a line is for the drivers to find, by `line_keys` and `pages.page_rank`:

    for number, key in enumerate(line_keys(page.text)):
        smallest page_rank of all pages with this key is not this page's -> `number` is lost
    remove_lines(page, lost, cleaning, counter, tally)

A line that the page repeats need not be among the lost: `remove_lines` finds those itself.
"""

import hashlib
from collections.abc import Collection

from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.pages import Page, Tally
from t5x_lite.c4.sentences import SentenceCounter


def page_lines(text: str) -> list[str]:
    """The lines of a page, as the numbers of lost lines count them."""
    return text.split("\n")


def line_key(line: str) -> bytes:
    """16 bytes that are the same for lines that are one: MD5 of the stripped, lower-cased line."""
    return hashlib.md5(
        line.strip().lower().encode("utf-8", "surrogatepass"), usedforsecurity=False
    ).digest()


def line_keys(text: str) -> list[bytes]:
    """The key of each line of a text."""
    return [line_key(line) for line in page_lines(text)]


def remove_lines(
    page: Page,
    lost: Collection[int],
    cleaning: Cleaning,
    counter: SentenceCounter,
    tally: Tally,
) -> Page | None:
    """Stage 5 of `released`: the page without repeated lines, or None where too little is left.

    Args:
      page: a page as `clean_page` gave it.
      lost: numbers, from 0, of the lines that another page keeps.
      cleaning: `min_sentences_after_dedup` is the threshold.
      counter: counts sentences.
      tally: gets what is dropped.
    """
    tally.page_in("dedup", page)
    elsewhere: list[str] = []
    above: list[str] = []
    kept: dict[str, str] = {}
    gone: set[str] = set()
    for number, line in enumerate(page_lines(page.text)):
        same = line.strip().lower()
        if same in kept:
            above.append(line)
        elif number in lost or same in gone:
            elsewhere.append(line)
            gone.add(same)
        else:
            kept[same] = line
    if elsewhere:
        tally.drop_lines("dedup", "global_duplicate", page, elsewhere)
    if above:
        tally.drop_lines("dedup", "local_duplicate", page, above)
    return finish_dedup(page, "\n".join(kept.values()), cleaning, counter, tally)


def finish_dedup(
    page: Page, text: str, cleaning: Cleaning, counter: SentenceCounter, tally: Tally
) -> Page | None:
    """The page with the text that is left of it, or None where that is too little."""
    if not text:
        tally.drop_page("dedup", "empty", page)
        return None
    if not counter.at_least(text, cleaning.min_sentences_after_dedup):
        tally.drop_page("dedup", "too_few_sentences", page)
        return None
    left = page.with_text(text)
    tally.page_out("dedup", left)
    return left
