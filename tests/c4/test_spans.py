import random

import pytest

from t5x_lite.c4.cleaning import load_counter
from t5x_lite.c4.config import paper
from t5x_lite.c4.dedup import page_sentences, remove_spans, span_keys
from t5x_lite.c4.pages import Page, Tally, page_rank


@pytest.fixture(scope="module")
def counter():
    return load_counter(installed=False)


def deduplicate(pages, counter):
    """The pages that are left, by URL: what a driver does with these functions."""
    owner = {}
    for page in pages:
        for key in span_keys(page.text, counter):
            owner[key] = min(owner.get(key, b"\xff"), page_rank(page))
    tally, left = Tally(), {}
    for page in pages:
        keys = span_keys(page.text, counter)
        lost = {number for number, key in enumerate(keys) if owner[key] != page_rank(page)}
        found = remove_spans(page, lost, paper(), counter, tally)
        if found:
            left[page.url] = page_sentences(found.text, counter)
    return left


def reference(pages, counter):
    """Every pair of windows compared; quadratic."""
    divided = {page.url: page_sentences(page.text, counter) for page in pages}
    order = [page.url for page in sorted(pages, key=page_rank)]
    windows = [
        (url, first, divided[url][first : first + 3])
        for url in order
        for first in range(len(divided[url]) - 2)
    ]
    removed = {url: set() for url in order}
    for place, (url, first, window) in enumerate(windows):
        kept = next((found for found in windows[:place] if found[2] == window), None)
        if kept is None:
            continue
        sentences = {first, first + 1, first + 2}
        if kept[0] == url:
            sentences -= {kept[1], kept[1] + 1, kept[1] + 2}
        removed[url] |= sentences
    left = {
        url: [text for number, text in enumerate(divided[url]) if number not in removed[url]]
        for url in order
    }
    return {url: sentences for url, sentences in left.items() if sentences}


def make_pages(seed, *, vocabulary, count=25):
    """Pages of numbered sentences on several lines, with runs that were planted in many of them."""
    generator = random.Random(seed)
    planted = [
        [f"Planted {generator.randrange(vocabulary)} is here." for _ in range(n)]
        for n in (3, 3, 4, 6)
    ]
    pages = []
    for number in range(count):
        sentences = []
        for _ in range(generator.randrange(1, 7)):
            if generator.random() < 0.4:
                sentences += generator.choice(planted)
            else:
                sentences.append(f"Sentence {generator.randrange(vocabulary)} is there!")
        text = "".join(sentence + generator.choice(" \n") for sentence in sentences)
        pages.append(Page(f"http://a.com/{number}", text.strip(), "", "", ""))
    return pages


@pytest.mark.parametrize("vocabulary", [2, 5, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_equal_to_the_quadratic_reference_in_any_order(counter, seed, vocabulary):
    pages = make_pages(seed, vocabulary=vocabulary)
    expected = reference(pages, counter)
    assert sum(map(len, expected.values())) < sum(
        len(page_sentences(page.text, counter)) for page in pages
    )
    for order in range(3):
        random.Random(order).shuffle(pages)
        assert deduplicate(pages, counter) == expected


@pytest.mark.parametrize("seed", range(4))
def test_no_span_is_left_twice_and_no_sentence_is_lost(counter, seed):
    pages = make_pages(seed, vocabulary=6)
    before = [page_sentences(page.text, counter) for page in pages]
    after = list(deduplicate(pages, counter).values())
    assert {text for page in before for text in page} == {text for page in after for text in page}
    repeated = [tuple(page[n : n + 3]) for page in before for n in range(len(page) - 2)]
    repeated = {window for window in repeated if repeated.count(window) > 1}
    assert repeated


def run(text, lost, counter):
    tally = Tally()
    found = remove_spans(Page("u", text, "", "", ""), lost, paper(), counter, tally)
    lines = tally.rules.get("dedup", {}).get("repeated_span", {})
    return (found.text if found else None), lines.get("lines", 0)


@pytest.mark.parametrize(
    ("text", "lost", "left", "removed"),
    [
        ("Ax. Bx.\nCx.", set(), "Ax. Bx.\nCx.", 0),
        ("Ax. Bx.\nCx.", {0}, None, 3),
        ("Ax. Bx.\nCx.  Dx. Ex.", {0}, "Dx. Ex.", 3),
        ("Ax.  Bx.\nCx.  Dx. Ex.", {2}, "Ax.  Bx.", 3),
        ("Ax. Bx.\nCx. Dx.\nEx. Fx.", {1}, "Ax.\nEx. Fx.", 3),
        ("Ax. Bx. Cx.\nAx. Bx. Cx.", set(), "Ax. Bx. Cx.", 3),
        ("Ax. Bx. Cx.\nAx. Bx. Cx.", {0}, None, 6),
        ("Ax. Ax. Ax. Ax. Ax.", set(), "Ax. Ax. Ax.", 2),
        ("Ax. Bx. Ax. Bx. Ax.", set(), "Ax. Bx. Ax.", 2),
    ],
)
def test_literals(counter, text, lost, left, removed):
    assert run(text, lost, counter) == (left, removed)


def test_keys(counter):
    keys = span_keys("Ax. Bx.\nCx.\nDx.", counter)
    assert len(keys) == 2
    assert span_keys("Ax.\n Bx.  Cx.", counter) == keys[:1]
    assert span_keys("Bx. Cx. Dx.", counter) == keys[1:]
    assert span_keys("bx. Cx. Dx.", counter) != keys[1:]
    assert len(span_keys("Ax. Bx.", counter, n=1)) == 2
    assert span_keys("Ax. Bx.", counter) == span_keys("", counter) == []
