"""Pages that are too long, and pages with too few paragraphs.

Source: c4_utils.is_valid_length and paragraph_filter (mC4 only).
"""

import heapq

from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.pages import Page, Tally


def keep_length(page: Page, cleaning: Cleaning, tally: Tally) -> Page | None:
    """The page unless its text has more than `max_chars` characters."""
    tally.page_in("length", page)
    if cleaning.max_chars and len(page.text) > cleaning.max_chars:
        tally.drop_page("length", "too_long", page)
        return None
    tally.page_out("length", page)
    return page


def keep_paragraphs(page: Page, cleaning: Cleaning, tally: Tally) -> Page | None:
    """The page if `min_paragraphs` of its lines have at least `min_paragraph_chars` characters.

    c4_utils.paragraph_filter looks at the three longest lines whatever its `min_paragraphs`; this
    at as many as are asked for, which is the same for three.
    """
    tally.page_in("paragraphs", page)
    wanted = cleaning.min_paragraphs
    longest = heapq.nlargest(wanted, map(len, page.text.split("\n")))
    if wanted and (len(longest) < wanted or longest[-1] < cleaning.min_paragraph_chars):
        tally.drop_page("paragraphs", "too_few_paragraphs", page)
        return None
    tally.page_out("paragraphs", page)
    return page
