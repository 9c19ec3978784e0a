import hashlib
import json

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.cache.files import INDEX_NAME, Cache, Index, file_digest
from t5x_lite.data.vocabularies.loading import load_vocabulary


@pytest.fixture
def examples(pairs):
    return pairs(60)


@pytest.fixture
def directory(tmp_path, small_cache, recipes, examples):
    return small_cache(
        tmp_path / "cache", {"train": examples, "validation": examples[:3]}, recipes.supervised
    )


def test_examples_are_read_in_any_order(directory, examples):
    split = Cache(directory).split("train")
    assert split.size == 60
    for wanted in ([7, 59, 0, 7], list(range(59, -1, -1))):
        found = split.read(np.array(wanted))
        assert split.counts(np.array(wanted)).tolist() == [
            [len(part) for part in examples[i]] for i in wanted
        ]
        for example, i in zip(found, wanted, strict=True):
            assert [example[name].dtype for name in example] == [np.int32, np.int32]
            assert [example["inputs"].tolist(), example["targets"].tolist()] == [
                part.tolist() for part in examples[i]
            ]
    assert split.read(np.zeros(0, np.int64)) == []


def test_the_index_says_what_the_rest_is(directory, examples, byte_vocabulary):
    cache = Cache(directory)
    split = cache.index.splits["train"]
    assert (split.examples, len(split.shards) > 2) == (60, True)
    assert split.tokens == sum(len(part) for parts in examples for part in parts)
    assert sum(shard.examples for shard in split.shards) == 60
    for file in split.files:
        assert file.sha256 == file_digest(directory / file.name)
    vocabulary = load_vocabulary(directory / "vocabulary", extra_ids=100)
    assert vocabulary.digest == cache.index.vocabulary["digest"] == byte_vocabulary.digest
    assert Index.from_json(cache.index.to_json()) == cache.index


def test_equal_caches_have_equal_digests(directory, tmp_path, small_cache, recipes, examples):
    splits = {"train": examples, "validation": examples[:3]}
    again = small_cache(tmp_path / "again", splits, recipes.supervised)
    assert Cache(again).digest == Cache(directory).digest
    other = small_cache(tmp_path / "other", {"train": examples}, recipes.supervised)
    assert Cache(other).digest != Cache(directory).digest


def one_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_split_that_is_not_there_is_refused(directory):
    with pytest.raises(InputError, match="has no split 'tset'; its splits are train, validation"):
        Cache(directory).split("tset")


def test_what_is_no_cache_is_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"is not a cache, because it has no cache\.json; write a cache with"
    ):
        Cache(tmp_path)
    (tmp_path / "a").write_text("")
    with pytest.raises(InputError, match=r"cannot read cache .*Not a directory"):
        Cache(tmp_path / "a")
    with pytest.raises(InputError, match=r"gs://b/c/cache\.json needs the package gcsfs, wh"):
        Cache("gs://b/c")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "..", ""])
def test_a_file_outside_the_cache_is_refused(directory, name):
    index = directory / INDEX_NAME
    node = json.loads(index.read_text())
    node["splits"]["train"]["ends"]["name"] = name
    del node["sha256"]
    digest = hashlib.sha256(json.dumps(node, sort_keys=True).encode()).hexdigest()
    index.write_text(json.dumps({**node, "sha256": digest}))
    with pytest.raises(InputError, match=r"must be a plain name, without a directory") as error:
        Cache(directory)
    one_line(error)


def test_another_format_is_refused(directory):
    index = json.loads((directory / INDEX_NAME).read_text())
    (directory / INDEX_NAME).write_text(json.dumps(index | {"format": 3}))
    with pytest.raises(
        InputError, match="has format 3, but this version reads only formats 1 and 2"
    ) as error:
        Cache(directory)
    one_line(error)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"after_trim"', '"before_trim"'),
        lambda text: "[]",
        lambda text: '{"format": 1}',
        lambda text: text.replace('"recipe"', '"receipt"'),
    ],
)
def test_a_damaged_index_is_refused(directory, change):
    index = directory / INDEX_NAME
    index.write_text(change(index.read_text()))
    with pytest.raises(InputError, match=r"cache\.json is .*; copy the cache again") as error:
        Cache(directory)
    one_line(error)


def signed(node):
    del node["sha256"]
    digest = hashlib.sha256(json.dumps(node, sort_keys=True).encode()).hexdigest()
    return json.dumps({**node, "sha256": digest})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("splits", "train", "examples"), "60"),
        (("splits", "train", "examples"), 61),
        (("splits", "train", "ends", "size"), None),
        (("splits", "train", "shards", 0, "name"), "../a"),
        (("splits", "train", "shards", 0, "examples"), 1 << 70),
        (("dtype",), "object"),
        (("vocabulary", "size"), 2.5),
        (("vocabulary",), []),
        (("recipe", "eos_id"), "1"),
        (("recipe", "outputs"), {"inputs": 1, "targets": True}),
        (("recipe", "lengths"), {"other": 3}),
        (("recipe", "options"), {"sentinel": 3}),
    ],
)
def test_an_index_that_is_signed_and_of_other_things_is_refused(directory, path, value):
    node = json.loads((directory / INDEX_NAME).read_text())
    place = node
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (directory / INDEX_NAME).write_text(signed(node))
    with pytest.raises(InputError, match=r"cache\.json (is damaged|has a number)") as error:
        Cache(directory).split("train")
    one_line(error)


@pytest.mark.parametrize("depth", [900, 100_000])
def test_a_nested_index_is_refused(directory, depth):
    for text in (
        "[" * depth + "]" * depth,
        '{"format": 1, "a": ' + "[" * depth + "]" * depth + "}",
    ):
        (directory / INDEX_NAME).write_text(text)
        with pytest.raises(InputError, match=r"cache\.json is "):
            Cache(directory)


@pytest.mark.parametrize("name", ["train-00001.tokens", "train.ends", "train.checksums"])
def test_a_file_that_was_cut_or_lost_is_named(directory, name):
    content = (directory / name).read_bytes()
    (directory / name).write_bytes(content[:-9])
    with pytest.raises(InputError) as error:
        Cache(directory)
    assert f"{name} has {len(content) - 9} bytes, but should have {len(content)}" in one_line(error)
    (directory / name).unlink()
    with pytest.raises(InputError, match=f"{name} cannot be read .No such file"):
        Cache(directory)


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_flipped_ends_are_found_when_the_split_is_opened(directory):
    flip(directory / "train.ends", 40)
    with pytest.raises(InputError, match=r"train\.ends does not fit its checksum"):
        Cache(directory).split("train")


def test_a_flipped_record_is_found_when_it_is_read(directory, examples):
    name = "train-00000.tokens"
    record = np.concatenate(examples[2]).astype("<u2").tobytes()
    flip(directory / name, (directory / name).read_bytes().find(record) + 4)
    split = Cache(directory).split("train")
    split.read(np.array([0, 1, 3]))
    told = rf"cache .* is damaged \(example 2 in shard {name} does not fit its checksum\); copy"
    with pytest.raises(InputError, match=told) as error:
        split.read(np.arange(60))
    one_line(error)


def test_a_flipped_checksum_is_an_error_of_its_example(directory):
    flip(directory / "train.checksums", 4 * 7)
    split = Cache(directory).split("train")
    split.read(np.array([6, 8]))
    with pytest.raises(InputError, match=r"example 7 in .* does not fit its checksum"):
        split.read(np.array([8, 7]))


def test_verify_reads_every_byte(directory):
    Cache(directory).verify()
    flip(directory / "validation-00000.tokens", -1)
    with pytest.raises(InputError, match=r"validation-00000\.tokens does not fit its check"):
        Cache(directory).verify()
