"""The steps of a cluster, one by one, on elements as a runner gives them."""

import gzip
import json
import random

import hypothesis
import pytest
from hypothesis import strategies as st

from t5x_lite.c4 import cluster as work
from t5x_lite.c4.cluster import CarriedRules
from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.dedup import line_keys
from t5x_lite.c4.pages import Page, Tally, page_rank
from tests.c4.wet_files import members, wet_record
from tests.fake_bucket import bucket  # noqa: F401

LINES = [f"This is line number {number} of the page." for number in range(5)]


def a_page(
    url: str = "http://a.example/", text: str = "\n".join(LINES), date: str = "2019"
) -> Page:
    return Page(url, text, date, str(len(text)), "text/plain")


def done(step, element, **changes):
    """What a step gives, and the counts of its tally."""
    made = step(CarriedRules(Cleaning(languages=(), **changes)))
    made.setup()
    tally = Tally()
    return list(made(element, tally)), tally


def test_read_gives_the_pages_of_a_file_and_drops_long_ones(tmp_path):
    path = tmp_path / "a.wet.gz"
    path.write_bytes(
        members(
            wet_record("http://a.example/", "Short."), wet_record("http://b.example/", "x" * 99)
        )
    )
    found, tally = done(work.Read, str(path), max_chars=50)
    assert [(page.url, page.text) for page in found] == [("http://a.example/", "Short.")]
    assert tally.stages["length"] == {
        "pages_in": 2, "pages_out": 1, "bytes_in": 105, "bytes_out": 6
    }  # fmt: skip


def test_of_the_pages_of_a_url_the_newest_is_cleaned():
    pages = [a_page(date="2018"), a_page(date="2019", text="\n".join([*LINES, "No end"]))]
    found, tally = done(work.CleanNewest, (b"key", iter(pages)))
    assert found == [pages[1].with_text("\n".join(LINES))]
    assert tally.rules["url_dedup"]["older"]["pages"] == 1
    assert tally.rules["clean"]["no_end_mark"]["lines"] == 1


def test_each_key_of_a_page_comes_once_with_its_first_number():
    page = a_page(text="\n".join([LINES[0], LINES[1], LINES[0].upper()]))
    found, _ = done(work.Keys, page)
    keys = line_keys(page.text)
    assert found == [(keys[0], (page_rank(page), 0)), (keys[1], (page_rank(page), 1))]


OWNERS = st.lists(st.tuples(st.binary(min_size=1, max_size=1), st.integers(0, 3)), min_size=1)


@hypothesis.given(owners=OWNERS, seed=st.integers(0, 9))
def test_all_owners_but_the_smallest_lose_in_any_order(owners, seed):
    one_each = list(dict(owners).items())  # a page has a key once
    random.Random(seed).shuffle(one_each)
    winner = min(rank for rank, _ in one_each)
    expected = sorted(owner for owner in one_each if owner[0] != winner)
    assert sorted(work.losers((b"key", iter(one_each)))) == expected


def test_pages_of_one_rank_are_one_owner():
    assert list(work.losers((b"key", [(b"a", 0), (b"a", 0)]))) == []
    assert list(work.losers((b"key", [(b"b", 1), (b"b", 1), (b"a", 0)]))) == [(b"b", 1)]


def test_a_page_loses_what_others_keep():
    element = (b"rank", {"pages": [a_page()], "lost": iter([1, 3])})
    found, tally = done(work.RemoveAndFinish, element)
    assert [page.text for page in found] == ["\n".join([LINES[0], LINES[2], LINES[4]])]
    assert tally.rules["dedup"]["global_duplicate"]["lines"] == 2


def test_of_equal_pages_one_stays():
    element = (b"rank", {"pages": [a_page(), a_page()], "lost": []})
    found, tally = done(work.RemoveAndFinish, element)
    assert found == [a_page()]
    assert tally.rules["dedup"]["empty"]["pages"] == 1


def test_a_page_has_its_shard():
    by_shard = work.ByShard(Cleaning(validation_modulus=0), 4)
    shards = [by_shard(a_page(url=f"http://a.example/{number}"))[0] for number in range(64)]
    assert set(shards) == {("train", shard) for shard in range(4)}


@pytest.mark.parametrize(
    ("language", "modulus", "splits"),
    [
        ("", 1000, ["train", "train", "validation"]),
        ("", 0, ["train", "train"]),
        ("fr", 1000, ["fr", "fr", "fr-validation"]),
    ],
)
def test_every_shard_is_written(language, modulus, splits):
    found = list(work.empty_shards(language, modulus, 2))
    assert [key[0] for key, _ in found] == splits
    assert [page for _, page in found] == [None] * len(splits)


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("where", ["here", "bucket"])
def test_a_shard_is_sorted_and_written(tmp_path, bucket, where):  # noqa: F811
    output, path = (
        (str(tmp_path), tmp_path) if where == "here" else ("gs://bucket/out", bucket / "out")
    )
    rules = CarriedRules(Cleaning())
    write = work.Write(rules, output=output, num_shards=1, kinds=("json",))
    write.setup()
    pages = [a_page(url=f"http://a.example/{number}") for number in range(3)]
    written = []
    for order in (pages, pages[::-1]):
        tally = Tally()
        [shard] = write((("train", 0), [None, *order]), tally)
        content = (path / shard.name).read_bytes()
        written.append((shard, content))
        assert tally.splits["train"]["pages"] == 3
        assert tally.domains == {"a.example": 3}
    assert written[0] == written[1]
    urls = [json.loads(line)["url"] for line in gzip.decompress(content).splitlines()]
    assert sorted(urls) == [page.url for page in pages]
