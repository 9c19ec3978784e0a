import random

import pytest

from t5x_lite.c4.dedup import find_losers, owner_key, read_losers, write_keys
from t5x_lite.core.errors import InputError

pytest.importorskip("duckdb")


def losers(tmp_path, buckets, **options):
    """What `find_losers` says of {bucket: entries}."""
    (tmp_path / "keys").mkdir()
    for bucket, entries in buckets.items():
        write_keys(tmp_path / "keys" / f"{bucket}.parquet", bucket, entries)
    settings = {"threads": 1, "memory_limit": 1 << 28, "temporary": tmp_path / "spill"} | options
    count = find_losers(tmp_path / "keys", tmp_path / "losers.parquet", **settings)
    found = {bucket: read_losers(tmp_path / "losers.parquet", bucket) for bucket in buckets}
    assert count == sum(len(lost) for pages in found.values() for lost in pages.values())
    return found


def test_literals(tmp_path):
    one, two, three = (bytes([n]) * 16 for n in (1, 2, 3))
    near = one[:15] + b"\x09"  # half of its bytes are those of `one`
    found = losers(
        tmp_path,
        {
            0: [(one, b"\xff" * 16, 0, 0), (two, b"\xff" * 16, 0, 1), (near, b"\xff" * 16, 0, 2)],
            1: [(one, b"\x00" * 15 + b"\x02", 4, 7), (three, b"\x00" * 16, 5, 0)],
            2: [(one, b"\x00" * 15 + b"\x01", 2, 3), (two, b"\xff" * 15 + b"\xfe", 3, 1)],
            3: [],
        },
    )
    assert found == {0: {0: [0, 1]}, 1: {4: [7]}, 2: {}, 3: {}}


def test_owners_are_ordered_as_pages():
    urls = [bytes([0] * 11 + [1]), bytes([255] * 12)]
    keys = [owner_key(url + b"\x77" * 4, page) for url in urls for page in (0, 1, 256)]
    assert keys == sorted(keys)
    assert {len(key) for key in keys} == {16}


@pytest.mark.parametrize("threads", [1, 2])
def test_equal_to_plain_python(tmp_path, threads):
    rng = random.Random(threads)
    buckets, occurrences = {}, {}
    for bucket in range(4):
        entries = []
        for page in range(rng.randint(0, 30)):
            owner = owner_key(rng.randbytes(16), page)
            for position in sorted(rng.sample(range(40), 10)):
                key = bytes([rng.randrange(40)]) * 8 + bytes([rng.randrange(4)]) * 8
                if any(key == e[0] and page == e[2] for e in entries):
                    continue
                entries.append((key, owner, page, position))
                occurrences.setdefault(key, []).append((owner, bucket, page, position))
        buckets[bucket] = entries
    expected = {bucket: {} for bucket in buckets}
    for found in occurrences.values():
        for _, bucket, page, position in sorted(found)[1:]:
            expected[bucket].setdefault(page, []).append(position)
    found = losers(tmp_path, buckets, threads=threads)
    assert {b: {p: sorted(n) for p, n in pages.items()} for b, pages in found.items()} == {
        b: {p: sorted(n) for p, n in pages.items()} for b, pages in expected.items()
    }


def test_what_fails_is_one_line(tmp_path):
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/0.parquet").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"^deduplicating failed: .*; free disk space"):
        find_losers(
            tmp_path / "keys",
            tmp_path / "losers",
            temporary=tmp_path,
            threads=1,
            memory_limit=1 << 28,
        )
