import dataclasses

import pytest

from t5x_lite.c4.config import Cleaning, paper, preset
from t5x_lite.c4.dedup import Rules
from t5x_lite.c4.pages import Page, Tally

TEXT = "This line is a good one. It has two sentences.\nshort\nThis line is another good one."


def page(url: str = "http://a.com/", text: str = TEXT, timestamp: str = "2019") -> Page:
    return Page(url, text, timestamp, "1", "text/plain")


def test_the_newest_page_of_a_url_stays():
    rules, tally = Rules(Cleaning()), Tally()
    pages = [page(timestamp="2019"), page(timestamp="2020"), page(timestamp="2018")]
    assert rules.newest(pages, tally) == pages[1]
    assert tally.stages["url_dedup"]["pages_in"] == 3
    assert tally.stages["url_dedup"]["pages_out"] == 1
    assert tally.rules["url_dedup"]["older"]["pages"] == 2
    for order in (pages, pages[::-1]):
        assert Rules(Cleaning()).newest(order, Tally()) == pages[1]


def test_stages_in_order():
    rules, tally = Rules(dataclasses.replace(Cleaning(), languages=())), Tally()
    rules.load()
    kept = rules.before_urls(page(), tally)
    assert kept is not None
    kept = rules.after_urls(kept, tally)
    assert kept is not None
    assert kept.text == TEXT.replace("short\n", "")
    assert len(rules.keys(kept)) == 2
    left = rules.remove(kept, frozenset({5}), tally)
    assert left == kept
    assert rules.finish(kept, tally) == kept
    assert list(tally.stages) == ["length", "clean", "dedup"]
    assert rules.remove(kept, frozenset({0}), tally) is None


def test_what_is_off_is_not_counted():
    rules, tally = (
        Rules(dataclasses.replace(preset("released", "en.noclean"), languages=())),
        Tally(),
    )
    assert rules.after_urls(page(), tally) == page()
    assert rules.keys(page()) == []
    assert rules.remove(page(), frozenset(), tally) == page()
    assert rules.finish(page(), tally) == page()
    assert tally.stages == {}


def test_spans():
    rules = Rules(paper())
    assert len(rules.keys(page(text="One is a sentence. Two is. Three is. Four is."))) == 2


@pytest.mark.parametrize("by_language", [False, True])
def test_splits(by_language):
    cleaning = preset("released", "multilingual") if by_language else Cleaning()
    rules = Rules(cleaning)
    pages = [page(f"http://a.com/{n}").with_language("fr") for n in range(3000)]
    found = {rules.split(one) for one in pages}
    assert found == ({"fr", "fr-validation"} if by_language else {"train", "validation"})
