"""Stages of C4 in order, for both drivers.

    rules = Rules(cleaning)
    page = rules.before_urls(page, tally)           # length, domains
    page = rules.newest(pages, tally)               # among pages with one normalized URL
    page = rules.after_urls(page, tally)            # URLs, paragraphs, lines
    rules.keys(page)                                # keys that are deduplicated across pages
    page = rules.remove(page, lost, tally)          # duplicates
    page = rules.finish(page, tally)                # language, bad words
    rules.split(page)                               # "train", "validation", or mC4's "fr"

Each method returns None for a page that is dropped. A stage that the config disables is not
counted.
"""

from collections.abc import Collection, Iterable
from functools import cached_property

from t5x_lite.c4.bad_words import BadWordsFilter, DomainList, UrlList, load_domains, load_urls
from t5x_lite.c4.cleaning import (
    LanguageIdentifier,
    SentenceCounter,
    clean_page,
    keep_length,
    keep_paragraphs,
    load_counter,
)
from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.dedup import line_keys, remove_lines, remove_spans, span_keys
from t5x_lite.c4.pages import Page, Tally, is_validation, newest


class Rules:
    """Cleaning rules of a config with their lists and models, which are loaded on first use.

    Attributes:
      cleaning: config of the rules.
    """

    def __init__(self, cleaning: Cleaning):
        self.cleaning = cleaning

    @cached_property
    def counter(self) -> SentenceCounter:
        """Counter of sentences, which is loaded on first use."""
        return load_counter()

    @cached_property
    def _domains(self) -> DomainList:
        return load_domains(self.cleaning.domains)

    @cached_property
    def _urls(self) -> UrlList:
        return load_urls(self.cleaning.urls)

    @cached_property
    def _language(self) -> LanguageIdentifier:
        return LanguageIdentifier(self.cleaning)

    @cached_property
    def _bad_words(self) -> BadWordsFilter:
        return BadWordsFilter(self.cleaning)

    def load(self) -> None:
        """Load all lists and models that the config needs, so that missing ones are found early."""
        _ = self.counter
        if self.cleaning.domains:
            _ = self._domains
        if self.cleaning.urls:
            _ = self._urls
        if self.cleaning.languages:
            _ = self._language
        if self.cleaning.bad_words:
            _ = self._bad_words

    def before_urls(self, page: Page, tally: Tally) -> Page | None:
        """Apply the length rule and the list of domains; return None for a dropped page."""
        kept = keep_length(page, self.cleaning, tally)
        if kept is not None and self.cleaning.domains:
            kept = self._domains.keep(kept, tally)
        return kept

    def newest(self, pages: Iterable[Page], tally: Tally) -> Page:
        """Return the newest of all pages with one normalized URL."""
        kept = None
        for page in pages:
            kept = self.newer(kept, page, tally)
        if kept is None:
            raise ValueError("there must be at least one page")
        tally.page_out("url_dedup", kept)
        return kept

    def newer(self, kept: Page | None, page: Page, tally: Tally) -> Page:
        """Return the newer of two pages with the same URL, and count the other page as dropped."""
        tally.page_in("url_dedup", page)
        if kept is None:
            return page
        winner = newest((kept, page))
        tally.drop_page("url_dedup", "older", page if winner is kept else kept)
        return winner

    def after_urls(self, page: Page, tally: Tally) -> Page | None:
        """Apply the list of URLs, mC4's paragraph rule and the line rules."""
        kept: Page | None = page
        if self.cleaning.urls:
            kept = self._urls.keep(page, tally)
        if kept is not None and self.cleaning.min_paragraphs:
            kept = keep_paragraphs(kept, self.cleaning, tally)
        if kept is not None and self.cleaning.clean_lines:
            kept = clean_page(kept, self.cleaning, self.counter, tally)
        return kept

    def keys(self, page: Page) -> list[bytes]:
        """Return the deduplication keys of a page: one per line, or one per window of sentences."""
        if self.cleaning.dedup == "lines":
            return line_keys(page.text)
        if self.cleaning.dedup == "spans":
            return span_keys(page.text, self.counter, n=self.cleaning.span_sentences)
        return []

    def remove(self, page: Page, lost: Collection[int], tally: Tally) -> Page | None:
        """Remove the lines or spans with the indices `lost`, which other pages keep."""
        if self.cleaning.dedup == "lines":
            return remove_lines(page, lost, self.cleaning, self.counter, tally)
        if self.cleaning.dedup == "spans":
            return remove_spans(page, lost, self.cleaning, self.counter, tally)
        return page

    def finish(self, page: Page, tally: Tally) -> Page | None:
        """Apply the language filter and the bad-words filter; return None for a dropped page."""
        kept: Page | None = page
        if self.cleaning.languages:
            kept = self._language.keep(page, tally)
        if kept is not None and self.cleaning.bad_words:
            kept = self._bad_words.keep(kept, tally)
        return kept

    def split(self, page: Page) -> str:
        """Return the name of the split to which a page is written.

        Source: c4.C4._split_generators: "train" and "validation", or "fr" and "fr-validation".
        """
        validation = is_validation(page.url, modulus=self.cleaning.validation_modulus)
        if not self.cleaning.splits_by_language:
            return "validation" if validation else "train"
        return f"{page.language}-validation" if validation else page.language
