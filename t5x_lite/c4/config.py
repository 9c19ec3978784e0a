"""Configuration of C4's cleaning rules, with presets and the source of each rule.

There are two presets, each with the variants of tensorflow_datasets' `c4`:

    released  tensorflow_datasets text/c4 3.x: the published C4, with which T5 was trained
    paper     section 2.2 of Raffel et al. (JMLR 2020) as first published, rule by rule

    preset("released", "en") == Cleaning()
    preset("paper", "en").min_sentences == 5

`SOURCES[stage][rule]` names the function of `tensorflow_datasets.text.c4_utils` (or the section of
the paper) and describes the rule, for the report. `OPTIONS[stage][rule]` names the field of
`Cleaning` that changes or disables the rule.
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
"""Phrases of lines about policies, c4_utils._POLICY_SUBSTRINGS."""
_MC4 = """
af am ar az be bg bg-Latn bn ca ceb co cs cy da de el el-Latn en eo es et eu fa fi fil fr fy ga gd
gl gu ha haw hi hi-Latn hmn ht hu hy id ig is it iw ja ja-Latn jv ka kk km kn ko ku ky la lb lo lt
lv mg mi mk ml mn mr ms mt my ne nl no ny pa pl ps pt ro ru ru-Latn sd si sk sl sm sn so sq sr st
su sv sw ta te tg th tr uk ur uz vi xh yi yo zh zh-Latn zu
"""
MC4_LANGUAGES = tuple(_MC4.split())
"""Languages of CLD3 with at least 10,000 pages in mC4, c4.MC4_LANGUAGES."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cleaning:
    """Configuration of C4's cleaning rules, in the order in which they are applied.

    Attributes:
      metadata_prefixes: lines with one of these beginnings, such as WARC headers, are removed when
        a page is read.
      max_chars: maximum number of characters of a page; 0 for no limit.
      domains: path of a JSON object {registered domain: true or a list of its subdomains}
        (RealNews); pages of other domains are dropped before URLs are deduplicated. "" disables the
        rule.
      dedup_urls: True to keep only the newest page of each normalized URL.
      urls: path of a text file, or of a directory of *.txt, with one URL per line (OpenWebText);
        pages with other URLs are dropped after URLs are deduplicated. "" disables the rule.
      min_paragraphs: minimum number of lines of a page with at least `min_paragraph_chars`
        characters; 0 disables the rule.
      min_paragraph_chars: minimum number of characters of a line counted for `min_paragraphs`.
      clean_lines: True to apply the following rules, up to `min_sentences`.
      max_word_chars: maximum number of characters of a word; lines with longer words are dropped. 0
        for no limit.
      remove_citations: True to remove [1], [edit] and [citation needed] from lines.
      end_marks: marks in which a line must end; () for all lines.
      ellipsis: ending with which a line is dropped, even if it is in `end_marks`; "" disables the
        rule.
      min_words: minimum number of words of a line; at least 1.
      page_rules_see: text that `drop_lorem_ipsum` and `drop_braces` check: only the lines that
        previous rules kept, as in the released code, or the complete page, as in the paper.
      drop_lorem_ipsum: True to drop pages with "lorem ipsum", in upper or lower case.
      drop_javascript: True to drop lines with "javascript", in upper or lower case.
      drop_braces: True to drop pages with "{".
      policies: phrases, in lower case; lines that contain a phrase in upper or lower case are
        dropped.
      min_sentences: minimum number of sentences of a cleaned page, counted line by line; 0 for no
        minimum.
      dedup: deduplication: "lines" keeps each line on only one page; "spans" keeps one occurrence
        of each sequence of `span_sentences` sentences; "none" disables it.
      span_sentences: number of sentences of a span.
      min_sentences_after_dedup: minimum number of sentences of a page after deduplication; 0 for no
        minimum.
      languages: languages to keep; () disables language identification.
      languages_by: language identifier, "langdetect" (with seed 0) or "cld3".
      min_language_probability: minimum probability of the identified language.
      keep_undetermined: True to keep pages without a certain language as "und" instead of dropping
        them.
      bad_words: path of a list with one bad word per line, or of a directory with a list per
        language; pages with a bad word are dropped. "" disables the rule.
      bad_words_fraction: fraction of the pages with a bad word that are dropped, chosen by URL.
      unspaced_languages: languages in which a bad word need not be a separate word.
      allowed_bad_words: entries "language:word" that are removed from the lists, such as common
        subwords.
      validation_modulus: one page in this many is in the validation split, chosen by URL; 0 for no
        validation split.
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
        """Raise InputError for invalid values and for contradictory rules."""
        check_bounds(self, prefix="cleaning.")
        for name in ("end_marks", "policies", "languages", "metadata_prefixes"):
            if "" in getattr(self, name):
                raise InputError(f'cleaning.{name} contains ""; remove the entry, or give ()')
        for phrase in self.policies:
            if phrase != phrase.lower() or len(phrase.splitlines()) != 1:
                raise InputError(
                    f"cleaning.policies must be single lines in lower case, but one is {phrase!r}"
                )
        if any(character.isspace() for character in "".join((self.ellipsis, *self.end_marks))):
            raise InputError("cleaning.end_marks and cleaning.ellipsis must not contain whitespace")
        if self.keep_undetermined and not self.languages:
            raise InputError(
                "cleaning.keep_undetermined needs languages, but cleaning.languages is (), "
                "which disables language identification"
            )
        for entry in self.allowed_bad_words:
            if not all(entry.partition(":")):
                raise InputError(
                    'cleaning.allowed_bad_words entries must be "language:word", but one is '
                    f"{entry!r}"
                )

    @property
    def splits_by_language(self) -> bool:
        """True if each language is a separate split, as in mC4."""
        return len(self.languages) > 1 or self.keep_undetermined


def released() -> Cleaning:
    """Return the rules of tensorflow_datasets' `c4/en` 3.x, except `bad_words`."""
    return Cleaning()


def paper() -> Cleaning:
    """Return the cleaning rules of the T5 paper (Raffel et al., section 2.2) as first published.

    A page has at least 5 sentences, and a line at least 3 words. Lines may end in a typographic
    quotation mark. Pages with a curly bracket are dropped.
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
    """Return the cleaning rules of a preset and a variant of C4."""
    if name not in PRESETS:
        raise InputError(f"C4 has no preset {name!r}; choose one of {', '.join(PRESETS)}")
    if variant not in VARIANTS:
        raise InputError(f"C4 has no variant {variant!r}; choose one of {', '.join(VARIANTS)}")
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
    """Return the names of the lists that a variant of C4 needs and that `cleaning` lacks.

    Without a list, such as the list of bad words, the output lacks one of C4's rules.
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
"""Field of `Cleaning` for each rule, by stage; rules for broken records have no field."""


def option(stage: str, rule: str) -> str:
    """Return the command line option of a cleaning rule, such as "--cleaning.min-words", or ""."""
    field = OPTIONS.get(stage, {}).get(rule)
    return "" if field is None else f"--cleaning.{field.replace('_', '-')}"
