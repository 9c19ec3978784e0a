"""Config of C4: every threshold and rule is a field of `Cleaning`, with its source.

Presets only set fields of `Cleaning`.

Two presets, each with the variants of tensorflow_datasets' `c4`:

    released  tensorflow_datasets text/c4 3.x: the published C4, on which all released models train
    paper     section 2.2 of Raffel et al. (JMLR 2020) as first published, rule by rule

    preset("released", "en") == Cleaning()
    preset("paper", "en").min_sentences == 5

`SOURCES[stage][rule]` names the function of `tensorflow_datasets.text.c4_utils` (or the section of
the paper) and what it does; the report shows it as a column. A test checks that every rule that a
tally counts has a source. `OPTIONS[stage][rule]` names the field of `Cleaning` that changes or
removes the rule.
"""

import dataclasses
from typing import Literal

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Count, Share, Whole, check_bounds

PRESETS = ("released", "paper")
VARIANTS = ("en", "en.noclean", "realnewslike", "webtextlike", "multilingual")
UNKNOWN_LANGUAGE = "und"
POLICIES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
"""c4_utils._POLICY_SUBSTRINGS."""
_MC4 = """
af am ar az be bg bg-Latn bn ca ceb co cs cy da de el el-Latn en eo es et eu fa fi fil fr fy ga gd
gl gu ha haw hi hi-Latn hmn ht hu hy id ig is it iw ja ja-Latn jv ka kk km kn ko ku ky la lb lo lt
lv mg mi mk ml mn mr ms mt my ne nl no ny pa pl ps pt ro ru ru-Latn sd si sk sl sm sn so sq sr st
su sv sw ta te tg th tr uk ur uz vi xh yi yo zh zh-Latn zu
"""
MC4_LANGUAGES = tuple(_MC4.split())
"""c4.MC4_LANGUAGES: the languages of CLD3 with at least 10,000 pages in mC4."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cleaning:
    """Rules and thresholds, in the order in which they are applied; the defaults are `released`.

    Attributes:
      metadata_prefixes: lines of a record that start with one of these are not text (reading).
      max_chars: longer pages are dropped; 0 keeps every length.
      domains: path of a JSON object {registered domain: true or a list of its subdomains}
        (RealNews); pages of other domains are dropped before URLs are deduplicated. "" is off.
      dedup_urls: if True, only the newest page with the same normalized URL is kept.
      urls: path of a text file, or of a folder of *.txt, with one URL per line (OpenWebText);
        pages of other URLs are dropped after URLs are deduplicated. "" is off.
      min_paragraphs: minimum lines of a page with at least `min_paragraph_chars`; 0 is off.
      min_paragraph_chars: minimum characters of a line that counts in `min_paragraphs`.
      clean_lines: apply the rules from here to `min_sentences`.
      max_word_chars: a line with a longer word is dropped; 0 is off.
      remove_citations: remove [1], [edit] and [citation needed] from lines.
      end_marks: a kept line ends in one of these; () keeps every ending.
      ellipsis: a line that ends in this is dropped, independent of `end_marks`; "" is off.
      min_words: minimum words of a kept line; at least 1, because empty lines are dropped.
      page_rules_see: text that `drop_lorem_ipsum` and `drop_braces` check: the lines that passed
        the rules above, as in the released code, or the whole page, as in the paper.
      drop_lorem_ipsum: drop pages with "lorem ipsum", in any case.
      drop_javascript: drop lines with "javascript", in any case.
      drop_braces: drop pages with "{".
      policies: drop lines that contain one of these phrases, in any case, given in lower case.
      min_sentences: minimum sentences of a cleaned page, counted line by line; 0 is off.
      dedup: "lines" keeps each line on only one page; "spans" keeps one occurrence of every run of
        `span_sentences` sentences; "none".
      span_sentences: sentences of a span.
      min_sentences_after_dedup: minimum sentences of the text after deduplication; 0 is off.
      languages: pages of other languages are dropped; () disables language identification.
      languages_by: the identifier: langdetect with seed 0, or CLD3.
      min_language_probability: minimum probability of the best guess.
      keep_undetermined: keep pages without a certain language as "und" instead of dropping them.
      bad_words: path of a list, one entry per line, or of a folder of lists named by language; a
        page with an entry as a word is dropped. "" is off.
      bad_words_fraction: fraction of such pages that is dropped, chosen by the URL.
      unspaced_languages: languages in which an entry needs no boundary on its sides.
      allowed_bad_words: "language:entry" that are removed from the lists, as common subwords.
      validation_modulus: one page in this many is for validation, chosen by its URL; 0 disables it.
    """

    metadata_prefixes: tuple[str, ...] = ("WARC", "CONTENT-", "Content-")
    max_chars: Whole = 190_000
    domains: str = ""
    dedup_urls: bool = True
    urls: str = ""
    min_paragraphs: Whole = 0
    min_paragraph_chars: Whole = 200
    clean_lines: bool = True
    max_word_chars: Whole = 1000
    remove_citations: bool = True
    end_marks: tuple[str, ...] = (".", "?", "!", '"')
    ellipsis: str = "..."
    min_words: Count = 5
    page_rules_see: Literal["kept_lines", "page"] = "kept_lines"
    drop_lorem_ipsum: bool = True
    drop_javascript: bool = True
    drop_braces: bool = True
    policies: tuple[str, ...] = POLICIES
    min_sentences: Whole = 3
    dedup: Literal["none", "lines", "spans"] = "lines"
    span_sentences: Count = 3
    min_sentences_after_dedup: Whole = 3
    languages: tuple[str, ...] = ("en",)
    languages_by: Literal["langdetect", "cld3"] = "langdetect"
    min_language_probability: Share = 0.99
    keep_undetermined: bool = False
    bad_words: str = ""
    bad_words_fraction: Share = 1.0
    unspaced_languages: tuple[str, ...] = ("ja", "th", "zh")
    allowed_bad_words: tuple[str, ...] = ("ja:sm", "ja:グロ", "ja:女の子", "zh:性")
    validation_modulus: Whole = 1000

    def __post_init__(self):
        """Check for values that no rule can use, and for contradictory rules."""
        check_bounds(self, prefix="cleaning.")
        for name in ("end_marks", "policies", "languages", "metadata_prefixes"):
            if "" in getattr(self, name):
                raise InputError(f'cleaning.{name} holds ""; remove the entry, or give ()')
        for phrase in self.policies:
            if phrase != phrase.lower() or len(phrase.splitlines()) != 1:
                raise InputError(
                    f"cleaning.policies must be single lines in lower case; got {phrase!r}"
                )
        if any(character.isspace() for character in "".join((self.ellipsis, *self.end_marks))):
            raise InputError("cleaning.end_marks and cleaning.ellipsis must hold no whitespace")
        if self.keep_undetermined and not self.languages:
            raise InputError(
                "cleaning.keep_undetermined needs cleaning.languages: () identifies no language"
            )
        for entry in self.allowed_bad_words:
            if not all(entry.partition(":")):
                raise InputError(
                    f'cleaning.allowed_bad_words entries are "language:word"; got {entry!r}'
                )

    @property
    def splits_by_language(self) -> bool:
        """True if each language is a separate split, as in mC4."""
        return len(self.languages) > 1 or self.keep_undetermined


def released() -> Cleaning:
    """Return the rules of tensorflow_datasets' `c4/en` 3.x; to match it, also set `bad_words`."""
    return Cleaning()


def paper() -> Cleaning:
    """Return the rules of section 2.2 of Raffel et al. as first published.

    A page has at least 5 sentences and a line at least 3 words. An "end quotation mark" can also be
    typographic; "any pages that contained a curly bracket" are dropped wherever the bracket is.
    """
    return Cleaning(
        max_chars=0,
        dedup_urls=False,
        max_word_chars=0,
        remove_citations=False,
        end_marks=(".", "!", "?", '"', "\N{RIGHT DOUBLE QUOTATION MARK}"),
        ellipsis="",
        min_words=3,
        page_rules_see="page",
        policies=(),
        min_sentences=5,
        dedup="spans",
        min_sentences_after_dedup=0,
    )


def preset(name: str = "released", variant: str = "en") -> Cleaning:
    """Return the rules of a preset and a variant."""
    if name not in PRESETS:
        raise InputError(f"no C4 preset {name!r}; choose one of {', '.join(PRESETS)}")
    if variant not in VARIANTS:
        raise InputError(f"no C4 variant {variant!r}; choose one of {', '.join(VARIANTS)}")
    base = released() if name == "released" else paper()
    if variant == "en.noclean":
        return dataclasses.replace(
            base, clean_lines=False, dedup="none", min_sentences_after_dedup=0
        )
    if variant == "multilingual":
        return dataclasses.replace(
            base,
            min_paragraphs=3,
            clean_lines=False,
            min_sentences_after_dedup=0,
            languages=MC4_LANGUAGES,
            languages_by="cld3",
            min_language_probability=0.95,
            keep_undetermined=True,
            bad_words_fraction=0.999,
        )
    return base


def missing_lists(cleaning: Cleaning, variant: str) -> list[str]:
    """Return the names of the fields that `variant` needs and `cleaning` leaves empty.

    The list of bad words is included for variants that filter by one: without it the output is C4
    except for that rule, which commands should report.
    """
    needed = {"realnewslike": ["domains"], "webtextlike": ["urls"]}.get(variant, [])
    if variant != "en.noclean":
        needed = [*needed, "bad_words"]
    return [name for name in needed if not getattr(cleaning, name)]


SOURCES: dict[str, dict[str, str]] = {
    "read": {
        "no_url": "c4_utils.split_wet_file: a record without WARC-Target-URI",
        "no_text": "c4_utils.split_wet_file: a record without text",
        "no_timestamp": "c4_utils.split_wet_file: a record without WARC-Date",
        "metadata_line": "c4_utils._METADATA_PREFIXES: lines that start as WARC headers do",
    },
    "length": {
        "too_long": "c4_utils.is_valid_length: more than 190,000 characters",
    },
    "domains": {
        "bad_domain": "c4_utils.is_realnews_domain: the domain is not in the list",
        "bad_subdomain": "c4_utils.is_realnews_domain: the domain is, but not this subdomain",
    },
    "url_dedup": {
        "older": "c4_utils.select_newest_page: another page of this URL is newer",
    },
    "urls": {
        "unlisted_url": "c4_utils.filter_by_webtextlike: the URL is not in the list",
    },
    "paragraphs": {
        "too_few_paragraphs": "c4_utils.paragraph_filter: fewer than 3 lines of 200 characters",
    },
    "clean": {
        "too_long_word": "c4_utils.clean_page: a line with a word over 1,000 characters",
        "no_end_mark": 'c4_utils.clean_page: a line must end in . ? ! or " and not in "..."; '
        "JMLR 2020, 2.2: in a terminal punctuation mark",
        "too_few_words": "c4_utils.clean_page: a line of fewer than 5 words; JMLR 2020, 2.2: 3",
        "lorem_ipsum": 'c4_utils.clean_page; JMLR 2020, 2.2: pages with "lorem ipsum"',
        "javascript": 'c4_utils.clean_page; JMLR 2020, 2.2: lines with "javascript"',
        "brace": 'c4_utils.clean_page; JMLR 2020, 2.2: pages with "{", probably code',
        "policy": "c4_utils._POLICY_SUBSTRINGS: lines about terms of use, privacy and cookies",
        "too_few_sentences": "c4_utils.clean_page: a page of fewer than 3 sentences; "
        "JMLR 2020, 2.2: 5",
    },
    "dedup": {
        "global_duplicate": "c4_utils._remove_lines_from_text: another page keeps the line",
        "local_duplicate": "c4_utils._remove_lines_from_text: the page has the line above",
        "repeated_span": "JMLR 2020, 2.2: sentences of a three-sentence span that stays elsewhere",
        "empty": "c4_utils._remove_lines_from_text: nothing is left of the page",
        "too_few_sentences": "c4_utils._remove_lines_from_text: fewer than 3 sentences are left",
    },
    "language": {
        "no_features": "c4_utils.detect_english: langdetect finds no letters",
        "no_prediction": "c4_utils.detect_english, detect_languages: no reliable guess",
        "low_confidence": "c4_utils.detect_english: the best guess is below 0.99; mC4: 0.95",
        "other_language": "c4_utils.detect_english, detect_languages: not a wanted language",
    },
    "bad_words": {
        "bad_word": "c4_utils.get_badwords_filter_fn; JMLR 2020, 2.2: an entry of the list",
    },
}

OPTIONS: dict[str, dict[str, str]] = {
    "read": {"metadata_line": "metadata_prefixes"},
    "length": {"too_long": "max_chars"},
    "domains": {"bad_domain": "domains", "bad_subdomain": "domains"},
    "url_dedup": {"older": "dedup_urls"},
    "urls": {"unlisted_url": "urls"},
    "paragraphs": {"too_few_paragraphs": "min_paragraphs"},
    "clean": {
        "too_long_word": "max_word_chars",
        "no_end_mark": "end_marks",
        "too_few_words": "min_words",
        "lorem_ipsum": "drop_lorem_ipsum",
        "javascript": "drop_javascript",
        "brace": "drop_braces",
        "policy": "policies",
        "too_few_sentences": "min_sentences",
    },
    "dedup": {
        "global_duplicate": "dedup",
        "local_duplicate": "dedup",
        "repeated_span": "dedup",
        "empty": "dedup",
        "too_few_sentences": "min_sentences_after_dedup",
    },
    "language": {
        "no_features": "languages",
        "no_prediction": "languages",
        "low_confidence": "min_language_probability",
        "other_language": "languages",
    },
    "bad_words": {"bad_word": "bad_words"},
}
"""Field of `Cleaning` for each rule; broken records (no URL, text or timestamp) have no option."""


def option(stage: str, rule: str) -> str:
    """Return a rule's option on the command line, such as "--cleaning.min-words", or ""."""
    field = OPTIONS.get(stage, {}).get(rule)
    return "" if field is None else f"--cleaning.{field.replace('_', '-')}"
