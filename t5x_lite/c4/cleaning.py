"""Which lines of a page stay, and whether enough is left of it.

Source: c4_utils.clean_page, line for line and page for page, given the same sentence tokenizer;
section 2.2 of Raffel et al. (JMLR 2020) for the preset `paper`. For each line, in this order:
strip; a word too long; take citations out; the end mark; the number of words; "lorem ipsum" drops
the page; "javascript" the line; "{" the page; a policy phrase the line. Then the page needs enough
sentences.

    "Buy now" -> dropped, no end mark
    "See the map.[3] It is old." -> "See the map. It is old."

It is fast because of what need not be looked at, none of which changes the result:

* A word longer than the limit needs a line longer than the limit.
* A phrase that the whole page does not contain, no line contains; only where a citation was taken
  out may one have come into being ("java[1]script").
* Every kept line has a word, and so at least one sentence: punkt is asked only where a page keeps
  fewer lines than it needs sentences, and only until there are enough.
"""

import functools
import re

from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.pages import Page, Tally
from t5x_lite.c4.sentences import SentenceCounter

_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
"""c4_utils.get_clean_page_fn. Linear: a run of digits is read once for the bracket before it."""
_LOREM_IPSUM = "lorem ipsum"
_JAVASCRIPT = "javascript"
_LOWERED_TO_ASCII = ("\N{KELVIN SIGN}", "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}")
"""The only characters beyond ASCII whose lower case has an ASCII letter."""

_Lines = dict[str, list[str]]


def clean_page(
    page: Page, cleaning: Cleaning, counter: SentenceCounter, tally: Tally
) -> Page | None:
    """Stage 4: the page with its good lines, or None where too little is left.

    Args:
      page: a page of the crawl.
      cleaning: the rules; nothing is done where `clean_lines` is off.
      counter: counts sentences.
      tally: gets what each rule drops. Lines of a page that is dropped are counted up to the one
        that dropped it, as in the reference.
    """
    tally.page_in("clean", page)
    if not cleaning.clean_lines:
        tally.page_out("clean", page)
        return page
    dropped: _Lines = {}
    kept: list[str] = []
    fell_to = _clean_lines(page.text, cleaning, kept, dropped)
    for rule, lines in dropped.items():
        tally.drop_lines("clean", rule, page, lines)
    if not fell_to and not _enough_sentences(kept, cleaning.min_sentences, counter):
        fell_to = "too_few_sentences"
    if fell_to:
        tally.drop_page("clean", fell_to, page)
        return None
    cleaned = page.with_text("\n".join(kept).strip())
    tally.page_out("clean", cleaned)
    return cleaned


def _clean_lines(text: str, cleaning: Cleaning, kept: list[str], dropped: _Lines) -> str:
    """Sorts the lines of a text into `kept` and `dropped`; the rule that drops the page, or ""."""
    watch = _watched(text, cleaning)
    if cleaning.page_rules_see == "page":
        if cleaning.drop_lorem_ipsum and watch and _LOREM_IPSUM in text.lower():
            return "lorem_ipsum"
        if cleaning.drop_braces and "{" in text:
            return "brace"
    longest = cleaning.max_word_chars
    citations = cleaning.remove_citations and "[" in text
    end_marks = cleaning.end_marks or ("",)
    ellipsis = cleaning.ellipsis
    min_words = cleaning.min_words
    too_long_word: list[str] = []
    no_end_mark: list[str] = []
    too_few_words: list[str] = []
    fell_to = ""
    for line in text.splitlines():
        line = line.strip()
        if longest and len(line) > longest and max(map(len, line.split())) > longest:
            too_long_word.append(line)
            continue
        look = watch
        if citations and "[" in line:
            before = line
            line = _CITATION.sub("", line)
            look = watch or line != before
        if not line.endswith(end_marks) or (ellipsis and line.endswith(ellipsis)):
            no_end_mark.append(line)
        elif len(line.split(None, min_words - 1)) < min_words:
            too_few_words.append(line)
        elif look and (rule := _phrase_rule(line, cleaning)):
            if rule in _PAGE_RULES:
                fell_to = rule
                break
            dropped.setdefault(rule, []).append(line)
        else:
            kept.append(line)
    for rule, lines in (
        ("too_long_word", too_long_word),
        ("no_end_mark", no_end_mark),
        ("too_few_words", too_few_words),
    ):
        if lines:
            dropped[rule] = lines
    return fell_to


_PAGE_RULES = ("lorem_ipsum", "brace")


def _phrase_rule(line: str, cleaning: Cleaning) -> str:
    """The rule about phrases that a line falls to, in the order of the reference; "" is none."""
    lowered = line.lower()
    if cleaning.drop_lorem_ipsum and _LOREM_IPSUM in lowered:
        return "lorem_ipsum"
    if cleaning.drop_javascript and _JAVASCRIPT in lowered:
        return "javascript"
    if cleaning.drop_braces and "{" in line:
        return "brace"
    if any(phrase in lowered for phrase in cleaning.policies):
        return "policy"
    return ""


def _watched(text: str, cleaning: Cleaning) -> bool:
    """Whether any line as it stands could fall to a rule about phrases."""
    if cleaning.drop_braces and "{" in text:
        return True
    phrases = cleaning.policies
    if cleaning.drop_lorem_ipsum:
        phrases = (_LOREM_IPSUM, *phrases)
    if cleaning.drop_javascript:
        phrases = (_JAVASCRIPT, *phrases)
    words = _words(phrases)
    if words is None or (not text.isascii() and any(map(text.__contains__, _LOWERED_TO_ASCII))):
        return True
    # Lower case of ASCII alone costs a fraction of str.lower() on text that has other characters.
    lowered = text.encode("utf-8", "surrogatepass").lower()
    return any(map(lowered.__contains__, words)) and any(
        phrase.encode() in lowered for phrase in phrases
    )


@functools.lru_cache
def _words(phrases: tuple[str, ...]) -> tuple[bytes, ...] | None:
    """Few texts of which every phrase contains one; None if any is beyond ASCII.

    "use cookies", "uses cookies" and "cookie policy" all have "cookie"; "terms of use" is alone.
    """
    if not all(phrase.isascii() for phrase in phrases):
        return None
    longest = {max(phrase.split() or [phrase], key=len) for phrase in phrases}
    shared = {word for word in longest if sum(word in phrase for phrase in phrases) > 1}
    alone = {phrase for phrase in phrases if not any(word in phrase for word in shared)}
    needed = {word for word in shared if not any(o != word and o in word for o in shared)}
    return tuple(text.encode() for text in sorted(needed | alone))


def _enough_sentences(lines: list[str], minimum: int, counter: SentenceCounter) -> bool:
    """Whether lines, none of them blank, have so many sentences, each line counted alone."""
    missing = minimum - len(lines)
    for line in lines:
        if missing <= 0:
            break
        missing -= counter.count(line, limit=missing + 1) - 1
    return missing <= 0
