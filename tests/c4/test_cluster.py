"""What a cluster needs besides the stages: lists that travel, results that add up, directories."""

import dataclasses
import pickle

import pytest

from t5x_lite.c4 import cluster
from t5x_lite.c4.cluster import CarriedRules, Job, Result, largest
from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.output import Shard
from t5x_lite.c4.pages import Page, Tally
from t5x_lite.core.errors import InputError
from tests.fake_bucket import bucket  # noqa: F401

RUN = {"version": "1", "num_shards": 3}
SHARD = Shard(name="c4-train.00000-of-00001.json.gz", split="train", pages=1, size=9, sha256="ab")


def a_page(text: str, language: str = "en") -> Page:
    return Page("http://a.example/", text, "2019", "1", "text/plain", language)


def drops(carried: CarriedRules, page: Page) -> bool:
    """Whether the rules, on another machine, drop a page for its words."""
    arrived = pickle.loads(pickle.dumps(carried))
    return arrived.unpack().finish(page, Tally()) is None


def test_a_list_travels_with_its_content(tmp_path):
    (tmp_path / "bad.txt").write_text("badword\ns&m\n")
    carried = CarriedRules(Cleaning(bad_words=str(tmp_path / "bad.txt"), languages=()))
    (tmp_path / "bad.txt").unlink()
    assert drops(carried, a_page("It has S&M in it."))
    assert not drops(carried, a_page("It has nothing in it."))


def test_a_folder_of_lists_travels_under_its_names(tmp_path):
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "en").write_text("badword\n")
    (tmp_path / "lists" / "de.txt").write_text("böse\n")
    carried = CarriedRules(Cleaning(bad_words=str(tmp_path / "lists"), languages=()))
    (tmp_path / "lists" / "de.txt").unlink()
    assert drops(carried, a_page("Das ist böse.", "de"))
    assert not drops(carried, a_page("Das ist böse.", "en"))


def test_a_large_list_stays_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "CARRIED_BYTES", 10)
    (tmp_path / "urls.txt").write_text("http://a.example/\nhttp://b.example/\n")
    cleaning = Cleaning(urls=str(tmp_path / "urls.txt"))
    carried = CarriedRules(cleaning)
    assert len(pickle.dumps(carried)) < len(pickle.dumps(cleaning)) + 500
    assert carried.unpack().cleaning == cleaning


def test_a_list_that_is_missing_is_named():
    with pytest.raises(InputError, match=r"cannot read the list no/list of cleaning\.bad_words"):
        CarriedRules(Cleaning(bad_words="no/list"))


def test_a_result_is_the_sum_of_its_parts_in_any_order():
    tallies = []
    for text in ("One.", "Two."):
        tally = Tally()
        tally.page_in("read", a_page(text))
        tallies.append(tally)
    domains = [(2, [("a.org", 5), ("b.org", 1)]), (1, [("c.org", 5)])]
    other = dataclasses.replace(SHARD, name="c4-train.00001-of-00002.json.gz")
    found = Result.of(tallies, [other, SHARD], domains)
    assert found.shards == [SHARD, other]
    assert found.tally.stages["read"]["pages_in"] == 2
    assert dict(found.tally.domains) == {"a.org": 5, "c.org": 5, "b.org": 1}
    back = Result.of(tallies[::-1], [SHARD, other], domains[::-1])
    assert back.to_json() == found.to_json()
    assert Result.from_json(found.to_json()).to_json() == found.to_json()


def test_of_too_many_domains_the_largest_are_kept_and_all_are_counted(monkeypatch):
    monkeypatch.setattr(cluster, "DOMAINS_KEPT", 2)
    groups = [(7, largest({"a.org": 5, "b.org": 1}.items())), (9, [("c.org", 2)])]
    found = Result.of([], [], groups)
    assert dict(found.tally.domains) == {"a.org": 5, "c.org": 2}
    assert found.tally.notes["domains"] == 16


def test_largest_orders_equal_ones_by_name():
    assert largest([("b", 1), ("a", 1), ("c", 2)]) == [("c", 2), ("a", 1), ("b", 1)]


@pytest.fixture(params=["here", "bucket"])
def output(request, tmp_path):
    """A directory that does not exist yet, of this machine and in a bucket."""
    if request.param == "here":
        return str(tmp_path / "out"), tmp_path / "out"
    root = request.getfixturevalue("bucket")
    return "gs://bucket/out", root / "out"


def finished(given: str) -> Result:
    """Runs a job to its end."""
    job = Job(given, RUN)
    assert job.complete is None
    assert job.read_result() is None
    tally = Tally()
    tally.wrote("train", a_page("One."))
    result = Result(tally=tally, shards=[SHARD])
    job.finish(result)
    job.close()
    return result


def test_a_job_begins_ends_and_is_complete(output):
    given, path = output
    result = finished(given)
    assert [found.name for found in path.iterdir()] == ["manifest.json"]
    again = Job(given, RUN)
    assert again.complete is not None
    assert again.complete.splits == result.tally.splits


def test_another_run_is_refused(output):
    given, _ = output
    Job(given, RUN).close()
    with pytest.raises(InputError, match="num_shards was 3, but num_shards is now 4"):
        Job(given, {**RUN, "num_shards": 4})
    Job(given, RUN).close()  # the same goes on
    finished(given)
    with pytest.raises(InputError, match="num_shards was 3, but num_shards is now 4"):
        Job(given, {**RUN, "num_shards": 4})


def test_a_directory_with_something_else_is_refused(output):
    given, path = output
    path.mkdir(parents=True)
    (path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        Job(given, RUN)
    assert [found.name for found in path.iterdir()] == ["thesis.tex"]
