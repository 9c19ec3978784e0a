"""Page for page, line for line and count for count what tensorflow_datasets' c4_utils does.

The reference gets our sentence tokenizer, and no TensorFlow: of it c4_utils uses nothing here but
`as_text`. Pages are put together from English that every Python carries and from lines that were
chosen to trip a faster implementation.
"""

import collections
import contextlib
import io
import random
import re
import types

import pytest

from t5x_lite.c4.bad_words import BadWords, BadWordsFilter, DomainList, UrlList
from t5x_lite.c4.cleaning import (
    LanguageIdentifier,
    clean_page,
    keep_length,
    keep_paragraphs,
    load_counter,
)
from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.dedup import line_keys, remove_lines
from t5x_lite.c4.pages import (
    Page,
    Tally,
    is_validation,
    newest,
    normalize_url,
    page_rank,
    url_number,
)

COUNTERS = {
    "too_long_word": "line-filtered:too_long_word",
    "no_end_mark": "line-filtered:no_endmark",
    "too_few_words": "line-filtered:too_short",
    "javascript": "line-filtered:javascript",
    "policy": "line-filtered:policy",
    "lorem_ipsum": "filtered:loremipsum",
    "brace": "filtered:squigglybracket",
    "too_few_sentences": "filtered:too_few_sentences",
    "global_duplicate": "line-filtered:global_duplicate",
    "local_duplicate": "line-filtered:local_duplicate",
    "empty": "filtered:empty",
}
ODD_LINES = [
    "Home | About | Contact us | Site map",
    "Read more...",
    "This line looks fine but it trails off...",
    "And this one trails off in a single character …",
    "def area(width): return {width: width * 2}.",
    "A brace { in a line without an end mark",
    "Too short by one.",
    "Dr. Smith met Mr. Jones at 5 p.m. on Jan. 3 in Washington D.C. on a Monday.",
    "It has apples, pears, plums, etc.",
    "What is this? It is a test! Is it? Yes.",
    'He said: "It is late." She said: "It is not."',
    "Wait!!! What?! No way... Really?!! I do not believe it.",
    "One. Two. Three. Four. Five. Six.",
    "The temperature was 3.5 degrees, not 3. 5 degrees were measured before.",
    "J. R. R. Tolkien wrote it, and C. S. Lewis read it.",
    "(It stands in brackets.) [So does this.] It is followed by more.",
    "And some of these lines end with citations.[3]",
    "And some of these lines end with citations. [3]",
    "[1] A line may begin with a citation, and then with a space.",
    "Citations may be[citation needed] anywhere[edit] in[][12345] a line.",
    "Nested [[1]] brackets and [[edit]edit] leave something behind them.",
    "Digits of other scripts are digits too.[٣][३]",
    "Please enable java[1]script now, it says in this line.",
    "The words lorem[2] ipsum come into being here, do they not?",
    "Open {[3] braces are found in this very line here.",
    "You need to enable JavaScript to see this page at all.",
    "JAVASCR\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}PT has a dot on the capital I here.",
    "Lorem Ipsum dolor sit amet, consectetur adipiscing elit.",
    "Our use of coo\N{KELVIN SIGN}ies and other things is spelt with a Kelvin sign.",
    "By using this page you accept our Terms of Use, all of them.",
    "Read our Privacy Policy, it is a good one to read.",
    "This site uses cookies. We use cookies, you see.",
    "Colin has a cookie\tpolicy that has a tab in it, see.",
    "x" * 1000 + " is a word of one thousand characters, which may stay.",
    "x" * 1001 + " is a word of one thousand and one, which may not.",
    "\u201cCurly quotes end this line, which has enough words.\u201d",
    '"Straight quotes end this line, which has enough words."',
    "   Spaces on both sides of a line are taken away first.   ",
    "\u00a0\u2003Other spaces as well, those of Unicode among them.\u00a0",
    "Lines\x0bare divided\x0cat more\x1cthan one\x85thinks,\u2028by Python at least. Is it so?",
    "A unit separator\x1fis white\x1fspace for\x1fsome\x1fand not for others. So what.\x1f",
    "NUL bytes \x00 may be here and there\x00, is that not so?",
    "Zero\u200bwidth\u200bspaces\u200bdo\u200bnot\u200bdivide\u200bwords, says Unicode today.",
    "Der Hund läuft über die Straße und sieht die Katze nicht.",
    "Le chat est assis sur la table et regarde par la fenêtre.",
    "Собака бежит по улице и не видит кошку, которая сидит на крыше.",
    "これは日本語の文です。とても短いです。",
    "هذا سطر باللغة العربية ينتهي بنقطة واحدة فقط.",
    "ΟΔΥΣΣΕΥΣ ΚΑΙ ΟΙ ΣΕΙΡΗΝΕΣ ΕΙΝΑΙ ΕΔΩ. ΝΑΙ ΟΔΥΣΣΕΥΣ.",
    "The emoji 🖕 is one character, and so is 🏴, they say.",
    "The donkey is also called an ass by some people.",
    "Ass, at the start of a line, is the same as before.",
    "A class of assassins will pass the grass, alas, at last.",
    "é\u0301ass and assé are no words, nor is ass_ one or _ass.",
    "An “ass” in curly quotes is one, or ass’s for its own.",
    "WARC is a format. Content- is how a header begins.",
    ".....",
    '"',
    "? ! . ? ! .",
    "a b c d .",
    "",
    "   ",
    "[1][2][3]",
]
BAD_WORDS = [
    "ass",
    "s&m",
    "a b c",
    "🖕",
    "c++",
    "plumş",
    "kelvin",
    "(so",
    "pass the",
    "i̇pek",
    "x" * 30,
]


@pytest.fixture(scope="module")
def reference():
    """c4_utils with our tokenizer; `reference.counts` is what its functions counted."""
    c4_utils = pytest.importorskip("tensorflow_datasets.text.c4_utils")
    counts = collections.Counter()

    def count(namespace):
        def add(name, amount=1):
            counts[name] += amount

        return add

    counter = load_counter()
    with pytest.MonkeyPatch.context() as patch:
        as_text = types.SimpleNamespace(as_text=lambda text: text)
        patch.setattr(c4_utils, "tf", types.SimpleNamespace(compat=as_text))
        patch.setattr(
            c4_utils, "_SENTENCE_TOKENIZER", types.SimpleNamespace(tokenize=counter.sentences)
        )
        patch.setattr(c4_utils, "get_counter_inc_fn", count)
        yield types.SimpleNamespace(c4=c4_utils, counts=counts, clean=c4_utils.get_clean_page_fn())


@pytest.fixture(scope="module")
def counter():
    return load_counter()


def make_pages(lines, *, count, seed):
    """Pages of few and of many lines, of prose and of oddities, with repeats across pages."""
    generator = random.Random(seed)
    pages = []
    for number in range(count):
        kind = generator.random()
        chosen = []
        for _ in range(generator.choice((1, 2, 3, 3, 4, 5, 8, 20))):
            draw = generator.random()
            if draw < (0.1 if kind < 0.5 else 0.5):
                chosen.append(generator.choice(ODD_LINES))
            elif draw < 0.9:
                chosen.append(generator.choice(lines))
            else:
                words = generator.choice(lines).split()
                start = generator.randrange(len(words))
                mark = generator.choice([".", "!", "?", '"', "...", ".[7]", " etc.", "", ' ."'])
                chosen.append(" ".join(words[start : start + generator.randrange(1, 12)]) + mark)
        if chosen and generator.random() < 0.2:
            chosen.append(generator.choice(chosen).swapcase())
        address = f"{generator.choice(['http://', 'https://www.', 'https://'])}a{number % 97}.com"
        pages.append(
            Page(
                f"{address}/{number}{generator.choice(['', '/', '?utm_x=1', '?q=1'])}",
                "\n".join(chosen),
                f"2019-04-{generator.randrange(10, 30)}T00:00:00Z",
                "1",
                "text/plain",
            )
        )
    return pages


def features(reference, page, *, language=None):
    return reference.c4.PageFeatures(
        url=page.url,
        normalized_url=reference.c4.normalize_url(page.url),
        text=page.text,
        timestamp=page.timestamp,
        content_length=page.content_length,
        content_type=page.content_type,
        language=language,
    )


def rule_counts(tally, stage):
    """What a stage counted, in the words of the reference."""
    return {
        COUNTERS[rule]: counts["pages"] + counts["lines"]
        for rule, counts in tally.rules.get(stage, {}).items()
    }


def check_cleaning(reference, counter, pages):
    """Equal pages, equal counts; the pages that are kept."""
    tally, kept = Tally(), []
    reference.counts.clear()
    for page in pages:
        ours = clean_page(page, Cleaning(), counter, tally)
        theirs = list(
            reference.clean(
                page=features(reference, page),
                counter_inc_fn=reference.c4.get_counter_inc_fn("clean"),
            )
        )
        assert [ours.text] * bool(ours) == [found.text for found in theirs] if ours else not theirs
        if ours:
            kept.append(ours)
    stage = tally.stages["clean"]
    assert stage["pages_in"] == len(pages)
    assert stage["pages_out"] == len(kept) == reference.counts["passed"]
    assert rule_counts(tally, "clean") == {
        name: count
        for name, count in reference.counts.items()
        if name not in ("passed", "line-passed")
    }
    return kept


def check_dedup(reference, counter, pages):
    """Equal pages after lines were deduplicated; the pages that are kept."""
    owner = {}
    for page in sorted(pages, key=page_rank):
        for key in line_keys(page.text):
            owner.setdefault(key, page.url)
    tally, ours = Tally(), {}
    for page in pages:
        lost = {n for n, key in enumerate(line_keys(page.text)) if owner[key] != page.url}
        found = remove_lines(page, lost, Cleaning(), counter, tally)
        if found:
            ours[page.url] = found
    reference.counts.clear()
    urls = collections.defaultdict(set)
    for page in pages:
        for line, url in reference.c4._emit_url_to_lines(features(reference, page)):
            urls[line].add(url)
    kept = collections.defaultdict(list)
    for line, found in urls.items():
        kept[min(found, key=reference.c4._hash_text)].append(line)
    theirs = {}
    for page in pages:
        joined = {"pages": [features(reference, page)], "lines": kept[page.url]}
        for found in reference.c4._remove_lines_from_text(
            (page.url, joined), reference.c4.get_counter_inc_fn("dedup"), 3
        ):
            theirs[page.url] = found.text
    assert {url: page.text for url, page in ours.items()} == theirs
    assert rule_counts(tally, "dedup") == {
        name: count
        for name, count in reference.counts.items()
        if name not in ("passed", "line-passed")
    }
    return list(ours.values())


def check_bad_words(reference, entries, texts):
    pattern = re.compile(r"(?:\W|^)({})(?:\W|$)".format("|".join(map(re.escape, entries))))
    words = BadWords(entries)
    found = 0
    for text in texts:
        expected = pattern.search(text.lower()) is not None
        assert (words.find(text) is not None) == expected, text
        found += expected
    return found


def test_every_odd_line_alone_and_among_good_ones(reference, counter):
    good = ["This first line is a sentence.", "The second line is one as well."]
    pages = [Page("http://a.com", line, "", "", "") for line in ODD_LINES]
    pages += [Page("http://a.com", "\n".join([*good, line]), "", "", "") for line in ODD_LINES]
    pages += [
        Page("http://a.com", "\n".join([one, two]), "", "", "") for one in ODD_LINES for two in good
    ]
    assert len(check_cleaning(reference, counter, pages)) > 20


def test_clean_and_dedup_synthetic_pages(reference, counter, english_lines):
    pages = make_pages(english_lines, count=500, seed=0)
    cleaned = check_cleaning(reference, counter, pages)
    assert 150 < len(cleaned) < 450
    assert 50 < len(check_dedup(reference, counter, cleaned)) < len(cleaned)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_clean_and_dedup_many_pages_of_docstrings(reference, counter):
    from t5x_lite.data.tasks.python_docs import documents

    lines = [document.text for document in documents()]
    pages = make_pages(lines, count=12_000, seed=1)
    cleaned = check_cleaning(reference, counter, pages)
    assert len(check_dedup(reference, counter, cleaned)) > 1000
    assert check_bad_words(reference, BAD_WORDS, [page.text for page in pages]) > 100


def test_bad_words(reference, english_lines):
    texts = [page.text for page in make_pages(english_lines, count=500, seed=2)]
    glue = ["", " ", "é", "_", "“", "\n", "\u212a", "\u0130", "\x00", "a", "\u0301", "🏴", "."]
    texts += [
        before + case(word) + after
        for word in BAD_WORDS
        for before in glue
        for after in glue
        for case in (str, str.upper, str.title)
    ]
    assert check_bad_words(reference, BAD_WORDS, texts) > 300


def test_bad_words_without_boundaries(reference, english_lines, tmp_path):
    entries = {"ja": ["グロい", "ass", "女"], "fr": ["plumş", "ass"], "zh": ["性", "c++"]}
    for language, words in entries.items():
        (tmp_path / language).write_text("\n".join(words), encoding="utf-8")
    ours = BadWordsFilter(Cleaning(bad_words=str(tmp_path), bad_words_fraction=0.5))
    # The reference takes its allow list off before, in c4.C4._get_pages_pcollection.
    entries["zh"].remove("性")
    theirs = reference.c4.get_badwords_filter_fn(entries, filter_fraction=0.5)
    tally, kept = Tally(), 0
    for page in make_pages(english_lines, count=200, seed=3):
        for language in ("ja", "fr", "fr-CA", "zh", "zh-Latn", "de", "und"):
            found = ours.keep(page.with_language(language), tally) is not None
            assert found == theirs(features(reference, page, language=language))
            kept += found
    assert 0 < tally.notes["bad_word_pages_kept"] < kept < 200 * 7


def test_urls(reference):
    urls = [
        "http://www.example.com/",
        "https://example.com/a/?utm_source=x",
        "https://example.com/a?q=1&utm_source=x",
        "http://example.com/?ref=1?feed=2",
        "http://example.com/a?feed",
        "http://web.archive.org/web/2010/http://www.example.com/",
        "https://www.www.com///",
        "HTTP://www.example.com",
        "http://example.com/?refer\nand a line",
        "http://example.com/ä?utm",
        "",
    ]
    urls += [f"http://example.com/{number}/" for number in range(1500)]
    for url in urls:
        normalized = reference.c4.normalize_url(url)
        assert normalize_url(url) == normalized
        page = reference.c4.PageFeatures(url=url, normalized_url=normalized)
        split = reference.c4.get_hashed_url_filter_fn(lambda number: number % 1000 == 0)
        assert is_validation(url) == split(page)
        equal = reference.c4.get_hashed_url_filter_fn(lambda n, url=url: n == url_number(url))
        assert equal(page)


def test_newest_page_of_a_url(reference, english_lines):
    pages = make_pages(english_lines, count=400, seed=4)
    for first in range(0, len(pages), 4):
        group = pages[first : first + 4]
        theirs = reference.c4.select_newest_page([features(reference, page) for page in group])
        ours = newest(group)
        assert ours.timestamp == theirs.timestamp
        if sum(page.timestamp == ours.timestamp for page in group) == 1:
            assert ours.text == theirs.text


def test_length_and_paragraphs(reference):
    cleaning = Cleaning(min_paragraphs=3)
    texts = ["a" * 190_000, "a" * 190_001, "é" * 190_000]
    texts += ["\n".join(["b" * 200] * n + ["c" * 199] * m) for n in range(5) for m in range(3)]
    for text in texts:
        page = Page("http://a.com", text, "", "", "")
        theirs = features(reference, page)
        assert (keep_length(page, cleaning, Tally()) is not None) == (
            reference.c4.is_valid_length(theirs)
        )
        assert (keep_paragraphs(page, cleaning, Tally()) is not None) == (
            reference.c4.paragraph_filter(theirs)
        )


@pytest.mark.slow
def test_language(reference, english_lines):
    pytest.importorskip("langdetect")
    identifier = LanguageIdentifier(Cleaning())
    texts = [*english_lines[:12], *ODD_LINES, "", "12 34", "."]
    texts += [f"{one} {two}" for one, two in zip(english_lines, ODD_LINES[:20], strict=False)]
    passed = 0
    with contextlib.redirect_stderr(io.StringIO()):
        for text in texts:
            page = Page("http://a.com", text, "", "", "")
            theirs = [
                found.language for found in reference.c4.detect_english(features(reference, page))
            ]
            ours = identifier.keep(page, Tally())
            assert ([ours.language] if ours else []) == theirs
            passed += bool(theirs)
    assert 15 < passed < len(texts)


def test_domains_and_urls_of_the_variants(reference):
    listed = {"bbc.co.uk": ["news", ""], "example.com": True, "co.uk": []}
    ours = DomainList(listed)

    def extract(url):
        host = url.split("/")[0]
        suffix = "co.uk" if host.endswith(".co.uk") else host.rpartition(".")[2]
        rest = host.removesuffix(f".{suffix}")
        subdomain, _, domain = rest.rpartition(".")
        return types.SimpleNamespace(domain=domain, suffix=suffix, subdomain=subdomain)

    with pytest.MonkeyPatch.context() as patch:
        imports = types.SimpleNamespace(tldextract=types.SimpleNamespace(extract=extract))
        patch.setattr(reference.c4.tfds.core, "lazy_imports", imports)
        hosts = ["bbc.co.uk", "news.bbc.co.uk", "sport.bbc.co.uk", "www.bbc.co.uk", "example.com"]
        hosts += ["a.b.example.com", "badexample.com", "example.com.au", "localhost"]
        for host in hosts:
            page = Page(f"https://{host}/a/b", "text", "", "", "")
            theirs = reference.c4.is_realnews_domain(features(reference, page), listed)
            assert (ours.keep(page, Tally()) is not None) == theirs, host
    urls = UrlList(["http://www.example.com/a/", "https://example.com/b?utm_x"])
    for url, there in (("https://example.com/a", True), ("http://example.com/c", False)):
        joined = {
            "pages": [Page(url, "", "", "", "")],
            "webtextlike_urls": [None]
            if reference.c4.normalize_url(url) in ("example.com/a", "example.com/b")
            else [],
        }
        assert len(list(reference.c4.filter_by_webtextlike((url, joined)))) == there
        assert (urls.keep(joined["pages"][0], Tally()) is not None) == there
