import time

import pytest

from t5x_lite.c4.cleaning import clean_page, load_counter
from t5x_lite.c4.config import Cleaning, paper, preset
from t5x_lite.c4.pages import Page, Tally

GOOD = "Here is a good line. It has more. Is it not so?"


@pytest.fixture(scope="module")
def counter():
    return load_counter(installed=False)


@pytest.fixture
def clean(counter):
    """A function (text, cleaning) -> (cleaned text or None, {rule: pages + lines})."""

    def run(text, cleaning=None):
        tally = Tally()
        page = Page("http://a.com", text, "t", "1", "text/plain")
        found = clean_page(page, cleaning or Cleaning(), counter, tally)
        rules = tally.rules.get("clean", {})
        counts = {rule: counted["pages"] + counted["lines"] for rule, counted in rules.items()}
        return (found.text if found else None), counts

    return run


def test_page_of_the_reference_test(clean):
    text = """This line has enough words and ends in punctuation, Dr. Roberts!
Economic History | All Institutions | Open Access Articles | Digital Commons Network
"Open Access. Powered by Scholars. Published by Universities."
Digital Commons Network™/ Social and Behavioral Sciences...
Too few words.
You need to enable javascript in your browser in order to see this page.
You have JavaScript disabled and that means you can't see this page.
Adam Roberts has a cookie policy: always eat them.
Colin has a privacy policy: don't share people's secrets.
You'd better follow our terms of use!
"""
    assert clean(text) == (
        "This line has enough words and ends in punctuation, Dr. Roberts!\n"
        '"Open Access. Powered by Scholars. Published by Universities."',
        {"no_end_mark": 2, "too_few_words": 1, "javascript": 2, "policy": 3},
    )


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("  Spaces around this line are gone.\t", "Spaces around this line are gone."),
        ("x" * 1000 + " is a long word indeed.", "x" * 1000 + " is a long word indeed."),
        ("A citation here is gone now.[3]", "A citation here is gone now."),
        ("An edit[edit] and a citation[citation needed] too.", "An edit and a citation too."),
        ("Empty brackets[] are gone as well.", "Empty brackets are gone as well."),
        ("An ellipsis … is one character …?", "An ellipsis … is one character …?"),
        ("[1] It began with a citation here.", "It began with a citation here."),
    ],
)
def test_lines_that_stay(clean, line, left):
    assert clean(f"{line}\n{GOOD}") == (f"{left}\n{GOOD}", {})


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("x" * 1001 + " is a longer word indeed.", "too_long_word"),
        ("No end mark is in this line", "no_end_mark"),
        ("It goes on and on and on...", "no_end_mark"),
        ("“A curly quote is no end mark.”", "no_end_mark"),
        ("A citation after a space is gone. [3]", "no_end_mark"),
        ("Only four words here.", "too_few_words"),
        ("Please turn JavaScript on, dear reader.", "javascript"),
        ("A citation parted java[1]script in this line.", "javascript"),
        ("Read our Terms of Use with care.", "policy"),
        ("This site uses cookies, as all do.", "policy"),
        ("Our use of coo\N{KELVIN SIGN}ies has a Kelvin sign.", "policy"),
    ],
)
def test_lines_that_go(clean, line, rule):
    for good in (GOOD, GOOD.replace("Here", "Hère")):
        assert clean(f"{line}\n{good}\n{line}") == (good, {rule: 2})


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("Lorem ipsum dolor sit amet, consectetur.", "lorem_ipsum"),
        ("A citation parted lorem[1] ipsum in this line.", "lorem_ipsum"),
        ("if (a) { b = a + 10; }.", "brace"),
    ],
)
def test_lines_that_take_the_page_with_them(clean, line, rule):
    assert clean(f"{GOOD}\nNo end mark\n{line}\nNo end mark") == (None, {rule: 1, "no_end_mark": 1})


def test_rules_of_a_page_see_only_lines_that_passed_the_others(clean):
    text = f"{GOOD}\nfunction() {{\nLorem ipsum\n"
    assert clean(text) == (GOOD, {"no_end_mark": 2})
    whole = Cleaning(page_rules_see="page")
    assert clean(text, whole) == (None, {"lorem_ipsum": 1})
    assert clean(f"{GOOD}\nfunction() {{", whole) == (None, {"brace": 1})
    kept = Cleaning(page_rules_see="page", drop_braces=False, drop_lorem_ipsum=False)
    assert clean(text, kept) == (GOOD, {"no_end_mark": 2})


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("One line of five words.\nTwo lines of five words.", False),
        ("One line of five words.\nTwo lines of five words.\nAnd three of five words.", True),
        ("A line may have three. Or so. As this has.", True),
        ("This line looks like it has three sentences...but it's actually just 1.", False),
        ("Dr. A. Smith met Mr. Jones at 5 p.m. today.", False),
        ("", False),
    ],
)
def test_sentences_are_counted_line_by_line(clean, text, stays):
    left, counts = clean(text)
    assert left == (text if stays else None)
    assert counts == ({} if stays else {"too_few_sentences": 1})


@pytest.mark.parametrize(
    "options",
    [
        {"max_word_chars": 0},
        {"remove_citations": False},
        {"end_marks": ()},
        {"ellipsis": ""},
        {"min_words": 1},
        {"drop_javascript": False},
        {"drop_braces": False, "drop_lorem_ipsum": False},
        {"policies": ()},
        {"min_sentences": 0},
    ],
)
def test_every_rule_can_be_switched_off(clean, options):
    lines = {
        "max_word_chars": "x" * 1001 + " is a longer word indeed.",
        "remove_citations": "A citation here stays now[3].",
        "end_marks": "No end mark is in this line",
        "ellipsis": "It goes on and on and on...",
        "min_words": "Word.",
        "drop_javascript": "Please turn JavaScript on, dear reader.",
        "drop_braces": "Lorem ipsum is { in this line.",
        "policies": "Read our Terms of Use with care.",
        "min_sentences": "This sentence is all there is.",
    }
    text = lines[next(iter(options))]
    if "min_sentences" not in options:
        text = f"{text}\n{GOOD}"
    assert clean(text)[0] != text
    assert clean(text, Cleaning(**options)) == (text, {})


def test_paper(clean):
    five = 'One is here.\nTwo is here.\nThree is here!\nFour is “here”?\nFive is "here"'
    assert clean(five, paper()) == (five, {})
    assert clean(five.partition("\n")[2], paper()) == (None, {"too_few_sentences": 1})
    assert clean(f"Two words.\n{five}", paper()) == (five, {"too_few_words": 1})
    quote = "“Six is here.”"
    assert clean(f"{five}\n{quote}", paper()) == (f"{five}\n{quote}", {})
    rest = "It goes on...\nOur cookie policy is here.\nSee page one.[1]"
    assert clean(f"{five}\n{rest}", paper()) == (
        f"{five}\nIt goes on...\nOur cookie policy is here.",
        {"no_end_mark": 1},
    )
    assert clean(f"{five}\nUse Javascript here.", paper()) == (five, {"javascript": 1})
    assert clean(f"{five}\nlorem ipsum", paper()) == (None, {"lorem_ipsum": 1})
    assert clean(f"{five}\nvoid main() {{", paper()) == (None, {"brace": 1})


def test_noclean_changes_nothing(clean):
    text = "  a {\nlorem ipsum"
    assert clean(text, preset("released", "en.noclean")) == (text, {})


def test_phrases_beyond_ascii(clean):
    cleaning = Cleaning(policies=("política de cookies",))
    assert clean(f"Esta es la POLÍTICA de cookies nuestra.\n{GOOD}", cleaning) == (
        GOOD,
        {"policy": 1},
    )


def test_accounts_add_up(counter):
    tally = Tally()
    texts = [GOOD, "Short.", f"{GOOD}\na {{ b c d.", f"{GOOD}\nLast line"]
    for number, text in enumerate(texts):
        clean_page(Page(f"u{number}", text, "", "", ""), Cleaning(), counter, tally)
    stage = tally.stages["clean"]
    fallen = sum(counts["pages"] for counts in tally.rules["clean"].values())
    assert stage["pages_in"] == stage["pages_out"] + fallen == 4
    assert stage["bytes_in"] == sum(len(text) for text in texts)
    assert stage["bytes_out"] == 2 * len(GOOD)
    assert sum(tally.lengths["clean"].values()) == stage["pages_out"] == 2
    assert tally.samples("clean", "no_end_mark") == [("u3", "Last line")]


@pytest.mark.parametrize(
    "line",
    [
        *(piece * 1_000_000 for piece in (" ", "[", "a", ".", "\n")),
        *(piece * 300_000 for piece in ("[1", "a ", "é[]", "lorem ipsu", "[citation needed")),
        "[" + "1" * 1_000_000,
    ],
    ids=lambda line: repr(line[:4]),
)
@pytest.mark.parametrize("cleaning", [Cleaning(), paper()], ids=["released", "paper"])
def test_adversarial_lines_take_linear_time(clean, cleaning, line):
    start = time.process_time()
    clean(f"{line}\nIt is {line} so.\n{GOOD}", cleaning)
    assert time.process_time() - start < 10
