import dataclasses
import gzip
import hashlib
import json

import pytest

from t5x_lite.c4 import output
from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.output import (
    Shard,
    describe_run,
    manifest,
    order_key,
    read_manifest,
    shard_name,
    shard_of,
    shards_in,
    write_manifest,
    write_shard,
)
from t5x_lite.c4.pages import Input, Page, Tally
from t5x_lite.core.errors import InputError

PAGES = [
    Page(
        "http://a.com/", 'Quotes " and \\ and\nlines.', "2019-04-20T10:00:00Z", "12", "text/plain"
    ),
    Page("http://b.com/", "\u4e2d\u6587 \u2028 \0", "2019-04-20T10:00:01Z", "7", "text/plain"),
]


def test_names():
    assert shard_name("train", 0, 1024) == "c4-train.00000-of-01024.json.gz"
    assert shard_name("validation", 7, 8) == "c4-validation.00007-of-00008.json.gz"
    assert shard_name("train", 3, 16, "array_record") == "c4-train.array_record-00003-of-00016"


def test_the_release_has_1024_shards_and_8_of_validation():
    assert shards_in("train", 1024) == 1024
    assert shards_in("validation", 1024) == 8
    assert shards_in("fr-validation", 16) == 1


def test_shards_divide_the_hashes():
    assert [shard_of(bytes([first, 0, 0, 0]), 4) for first in (0, 63, 64, 128, 255)] == [
        0,
        0,
        1,
        2,
        3,
    ]
    assert shard_of(b"\xff" * 16, 1000) == 999
    for page in PAGES:
        key = order_key(page)
        assert len(key) == 64
        assert key[:16] == hashlib.md5(page.url[7:].rstrip("/").encode()).digest()
        assert key[16:32] == hashlib.md5(page.url.encode()).digest()


def test_json_shards(tmp_path):
    (shard,) = write_shard(tmp_path, "train", 1, 2, PAGES)
    path = tmp_path / "c4-train.00001-of-00002.json.gz"
    content = path.read_bytes()
    assert shard == Shard(
        name=path.name,
        split="train",
        pages=2,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    assert content[4:8] == b"\0\0\0\0"  # no time stamp
    lines = gzip.decompress(content).split(b"\n")
    assert lines[0] == (
        b'{"text":"Quotes \\" and \\\\ and\\nlines.","timestamp":"2019-04-20T10:00:00Z",'
        b'"url":"http://a.com/","content-length":"12","content-type":"text/plain"}'
    )
    assert json.loads(lines[1])["text"] == PAGES[1].text
    assert lines[2:] == [b""]
    assert write_shard(tmp_path, "train", 1, 2, PAGES) == [shard]
    assert write_shard(tmp_path, "train", 0, 2, [])[0].pages == 0
    assert gzip.decompress((tmp_path / "c4-train.00000-of-00002.json.gz").read_bytes()) == b""


def test_array_record_shards(tmp_path):
    array_record = pytest.importorskip("array_record.python.array_record_module")
    shards = write_shard(tmp_path, "train", 0, 1, PAGES, kinds=("json", "array_record"))
    name = "c4-train.array_record-00000-of-00001"
    assert [shard.name for shard in shards] == ["c4-train.00000-of-00001.json.gz", name]
    reader = array_record.ArrayRecordReader(str(tmp_path / name))
    assert reader.read([0, 1]) == [output.example(page) for page in PAGES]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(s.name for s in shards)


@pytest.mark.slow
def test_what_others_read(tmp_path):
    """TensorFlow parses the examples, and its text reader the lines."""
    tf = pytest.importorskip("tensorflow")
    write_shard(tmp_path, "train", 0, 1, PAGES)
    parsed = tf.train.Example.FromString(output.example(PAGES[1]))
    assert parsed.features.feature["text"].bytes_list.value[0].decode() == PAGES[1].text
    assert sorted(parsed.features.feature) == [
        "content-length",
        "content-type",
        "text",
        "timestamp",
        "url",
    ]
    path = str(tmp_path / "c4-train.00000-of-00001.json.gz")
    lines = list(tf.data.TextLineDataset([path], compression_type="GZIP").as_numpy_iterator())
    assert [json.loads(line)["url"] for line in lines] == [page.url for page in PAGES]


def test_a_shard_that_fails_leaves_nothing(tmp_path):
    def pages():
        yield PAGES[0]
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_shard(tmp_path, "train", 0, 1, pages())
    assert list(tmp_path.iterdir()) == []


def test_manifest(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("bad\n")
    cleaning = dataclasses.replace(Cleaning(), bad_words=str(words))
    run = describe_run(
        cleaning=cleaning, inputs=[Input(path="a.wet", size=3)], sentences="own", num_shards=2
    )
    assert run["lists"] == {"bad_words": hashlib.sha256(b"bad\n").hexdigest()}
    assert run["inputs"] == [{"path": "a.wet", "size": 3}]
    assert read_manifest(tmp_path) is None
    tally = Tally()
    tally.wrote("train", PAGES[0])
    shards = write_shard(tmp_path, "train", 0, 1, PAGES[:1])
    write_manifest(tmp_path, manifest(run, shards, tally))
    found = read_manifest(tmp_path)
    assert found is not None
    assert found["run"] == run
    assert found["pages"] == {"train": 1}
    assert found["files"] == [dataclasses.asdict(shards[0])]
    assert Tally.from_json(found["tally"]).splits == tally.splits
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(InputError, match="was written by another version"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="is not a valid manifest"):
        read_manifest(tmp_path)
    with pytest.raises(InputError, match=r"cannot read the list .*none of cleaning.urls"):
        describe_run(
            cleaning=dataclasses.replace(Cleaning(), urls=str(tmp_path / "none")),
            inputs=[],
            sentences="",
            num_shards=1,
        )
