import pytest

from t5x_lite.c4 import local
from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.local import Plan
from t5x_lite.c4.output import Part, shard_of
from t5x_lite.c4.pages import expand_inputs
from tests.c4.wet_files import wet_record


@pytest.fixture
def plan(tmp_path) -> Plan:
    """A plan for one file of three pages, two of which are one."""
    text = "This is a line of text.\nThis is a second line of text.\nAnd this is the third {}."
    records = [
        wet_record("http://a.com/1", text.format("one"), date="2019-01-01"),
        wet_record("https://www.a.com/1/", text.format("newer"), date="2019-01-02"),
        wet_record("http://b.com/2", text.format("two"), date="2019-01-01"),
    ]
    (tmp_path / "a.wet").write_bytes(b"".join(records))
    for name in ("read", "keys", "clean", "duplicates", "filter", "write"):
        (tmp_path / "work" / name).mkdir(parents=True)
    (tmp_path / "c4").mkdir()
    return Plan(
        output=tmp_path / "c4",
        work=tmp_path / "work",
        cleaning=Cleaning(languages=(), min_sentences_after_dedup=1),
        inputs=tuple(expand_inputs([str(tmp_path / "a.wet")])),
        num_buckets=2,
        num_shards=2,
    )


def texts(plan: Plan, stage: str, part: int, group: int | str) -> list[str]:
    return [record[2] for record in Part(plan.part(stage, part)).records(group)]


def test_stages(plan):
    pytest.importorskip("duckdb")
    local.read_file(plan, 0)
    assert sum(len(texts(plan, "read", 0, bucket)) for bucket in range(2)) == 3
    for bucket in range(2):
        local.clean_bucket(plan, bucket)
    cleaned = [text for bucket in range(2) for text in texts(plan, "clean", bucket, 0)]
    assert sorted(text.split()[-1] for text in cleaned) == ["newer.", "two."]
    local.find_all(plan, threads=1, memory_limit=1 << 27)
    for bucket in range(2):
        local.filter_bucket(plan, bucket)
    kept = [
        text
        for bucket in range(2)
        for shard in range(2)
        for text in texts(plan, "filter", bucket, f"train/{shard}")
    ]
    assert sorted(len(text.split("\n")) for text in kept) == [1, 3]
    for shard in range(2):
        local.write_one(plan, ("train", shard))
    assert len(list(plan.output.iterdir())) == 2
    # What is done is not done again.
    plan.inputs[0].path  # noqa: B018
    before = plan.part("read", 0).stat().st_mtime_ns
    local.read_file(plan, 0)
    assert plan.part("read", 0).stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("num_shards", "num_buckets"), [(1, 4), (4, 1), (3, 8), (8, 8), (1000, 64)]
)
def test_buckets_of_a_shard(num_shards, num_buckets):
    for first in range(256):
        for rest in (b"\0\0\0", b"\x55\xaa\x55", b"\xff\xff\xff"):
            key = bytes([first]) + rest
            shard, bucket = shard_of(key, num_shards), shard_of(key, num_buckets)
            assert bucket in local._buckets_of(shard, num_shards, num_buckets)
