"""Where each rule comes from: the report's column of sources.

`SOURCES[stage][rule]` names the function of `tensorflow_datasets.text.c4_utils` (or the section of
the paper) and what it does. A rule that a tally counts and that stands not here is a mistake, and a
test finds it. `OPTIONS[stage][rule]` names the field of `Cleaning` that changes or removes it.
"""

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
"""Rules of broken records have no option: `read` of no URL, no text or no timestamp."""


def option(stage: str, rule: str) -> str:
    """The option of a rule as the command line has it, or "": "--cleaning.min-words"."""
    field = OPTIONS.get(stage, {}).get(rule)
    return "" if field is None else f"--cleaning.{field.replace('_', '-')}"
