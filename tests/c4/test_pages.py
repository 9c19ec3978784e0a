import dataclasses
import hashlib
import json
import random

import pytest

from t5x_lite.c4.pages import (
    DAMAGED_NAMED,
    SAMPLE_CHARS,
    SAMPLES,
    Page,
    Tally,
    newest,
    page_rank,
    url_md5,
    utf8_length,
)


def page(url="http://a.com", text="One.", timestamp="2019", language=""):
    return Page(url, text, timestamp, "4", "text/plain", language)


def test_page_is_frozen_and_gives_changed_copies():
    first = page()
    assert first.with_text("Two.") == dataclasses.replace(first, text="Two.")
    assert first.with_language("en") == dataclasses.replace(first, language="en")
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.text = "x"


def test_rank_is_led_by_the_hash_of_the_url():
    pages = [page(f"http://a.com/{number}") for number in range(20)]
    by_url = sorted(pages, key=lambda found: hashlib.md5(found.url.encode()).hexdigest())
    assert sorted(pages, key=page_rank) == by_url
    assert page_rank(page(text="a")) != page_rank(page(text="b"))
    assert page_rank(page(timestamp="1")) != page_rank(page(timestamp="2"))
    assert len(page_rank(page(text="\ud800"))) == 48


def test_newest_page_in_any_order():
    old, one, two = page(timestamp="2018"), page(text="a"), page(text="b")
    smallest = min("ab", key=lambda text: hashlib.md5(text.encode()).digest())
    for seed in range(6):
        order = [old, one, two, page(text="b")]
        random.Random(seed).shuffle(order)
        assert newest(order).text == smallest


def test_bytes_are_of_utf8():
    assert [utf8_length(text) for text in ("", "abc", "é", "漢", "🖕", "\ud800")] == [
        0,
        3,
        2,
        3,
        4,
        3,
    ]


def test_tally_counts():
    tally = Tally()
    tally.page_in("clean", page(text="é\nNo"))
    tally.drop_lines("clean", "no_end_mark", page(text="é\nNo"), ["é", "No"])
    tally.page_out("clean", page(text="é"))
    tally.page_in("clean", page(text="abcd"))
    tally.drop_page("clean", "brace", page(text="abcd"))
    tally.drop_page("read", "no_url")
    tally.wrote("train", page("https://www.b.org/x", language="en"))
    tally.damaged("f.gz", 7, "truncated")
    assert tally.stages["clean"] == {"pages_in": 2, "bytes_in": 9, "pages_out": 1, "bytes_out": 2}
    assert tally.rules == {
        "clean": {
            "no_end_mark": {"lines": 2, "line_bytes": 4},
            "brace": {"pages": 1, "page_bytes": 4},
        },
        "read": {"no_url": {"pages": 1}},
    }
    assert tally.lengths["clean"] == {1: 1}
    assert tally.splits == {"train": {"pages": 1, "bytes": 4}}
    assert tally.domains == {"b.org": 1}
    assert tally.languages == {"en": 1}
    assert tally.damage == {"truncated": 1}
    assert tally.damaged_records == [("f.gz", 7, "truncated")]
    assert tally.samples("clean", "brace") == [("http://a.com", "abcd")]
    assert tally.samples("clean", "unheard_of") == []
    assert tally.kept_samples == [("https://www.b.org/x", page().text)]
    assert Tally.from_json(tally.to_json()).kept_samples == tally.kept_samples
    earlier = {name: value for name, value in tally.to_json().items() if name != "kept"}
    assert Tally.from_json(earlier).kept_samples == []


def test_samples_are_the_smallest_hashes_one_of_a_url_and_cut():
    tally = Tally()
    urls = [f"http://a.com/{number}" for number in range(100)]
    for url in urls:
        tally.drop_lines("clean", "policy", page(url), ["x" * 1000, f"line of {url}"])
    found = tally.samples("clean", "policy")
    assert [url for url, _ in found] == sorted(urls, key=url_md5)[:SAMPLES]
    assert {text for _, text in found if text[0] == "x"} == {"x" * SAMPLE_CHARS}
    assert all(text in ("x" * SAMPLE_CHARS, f"line of {url}") for url, text in found)
    assert len({text for _, text in found}) > 2


def make_tallies(count):
    """Many small tallies that overlap in stages, rules, URLs and samples."""
    generator = random.Random(0)
    tallies = []
    for _ in range(count):
        tally = Tally()
        for _ in range(30):
            found = page(f"http://{generator.randrange(9)}.com/{generator.randrange(99)}", "é" * 3)
            stage = generator.choice(["clean", "dedup"])
            tally.page_in(stage, found)
            tally.drop_lines(stage, "rule", found, [str(generator.randrange(9)) for _ in range(3)])
            tally.wrote(generator.choice(["train", "validation"]), found)
            tally.damaged("file", generator.randrange(9999), generator.choice(["a", "b"]))
            tally.notes["note"] += 1
        tallies.append(tally)
    return tallies


@pytest.mark.slow
def test_merging_is_commutative_and_associative():
    whole = Tally()
    for tally in make_tallies(60):
        whole.merge(tally)
    for seed in range(4):
        parts = make_tallies(60)
        random.Random(seed).shuffle(parts)
        halves = [Tally(), Tally()]
        for number, tally in enumerate(parts):
            halves[number % 2].merge(tally)
        assert halves[0].merge(halves[1]).to_json() == whole.to_json()
    assert whole.notes["note"] == 60 * 30
    assert len(whole.damaged_records) == DAMAGED_NAMED < sum(whole.damage.values())
    assert len(whole.samples("clean", "rule")) == SAMPLES


def test_json_and_back():
    tally = Tally()
    for part in make_tallies(5):
        tally.merge(part)
    tally.page_out("length", page())
    value = json.loads(json.dumps(tally.to_json()))
    assert list(value["stages"]) == ["length", "clean", "dedup"]
    again = Tally.from_json(value)
    assert again.to_json() == value
    more = make_tallies(7)[6]
    assert again.merge(more).to_json() == tally.merge(more).to_json()
    assert Tally.from_json(Tally().to_json()).to_json() == Tally().to_json()
