import gzip
import io
import random
import zlib

import pytest

from t5x_lite.c4 import warc
from t5x_lite.c4.warc import End, Start, read_members

TEXTS = [b"first " * 50, b"second " * 50, b"third " * 50]
MEMBERS = [gzip.compress(text, mtime=0) for text in TEXTS]
SIZES = [len(member) for member in MEMBERS]


def read(content: bytes, **options):
    """Start offsets, content, and what the end says, for each member."""
    found = []
    for event in read_members(io.BytesIO(content), **options):
        if isinstance(event, Start):
            found.append([event.offset, b"", None])
        elif isinstance(event, End):
            found[-1][2] = event
        else:
            found[-1][1] += event
    return found


def test_members_are_read_one_by_one():
    assert read(b"".join(MEMBERS)) == [
        [0, TEXTS[0], End()],
        [SIZES[0], TEXTS[1], End()],
        [SIZES[0] + SIZES[1], TEXTS[2], End()],
    ]


def test_files_that_are_not_compressed():
    assert read(b"plain text") == [[0, b"plain text", End()]]
    assert next(read_members(io.BytesIO(b"ab"))) == Start(0, plain=True)
    assert read(b"") == []
    assert read(b"plain", compressed=True) == [[0, b"", End("no gzip header")]]


def test_large_members_come_in_pieces():
    content = b"0123456789" * 200_000
    events = list(read_members(io.BytesIO(gzip.compress(content))))
    pieces = [event for event in events if isinstance(event, bytes)]
    assert b"".join(pieces) == content
    assert max(map(len, pieces)) == warc._PIECE


def test_zeros_between_members_are_padding():
    assert [text for _, text, _ in read(MEMBERS[0] + b"\0" * 70_000 + MEMBERS[1] + b"\0")] == TEXTS[
        :2
    ]


def test_garbage_between_members():
    garbage = b"garbage\x1f\x8b and \x1f\x8b\x08\x00 more"
    found = read(MEMBERS[0] + garbage + MEMBERS[1])
    assert found[0] == [0, TEXTS[0], End()]
    assert found[1] == [SIZES[0], b"", End("no gzip header")]
    assert found[-1] == [SIZES[0] + len(garbage), TEXTS[1], End()]


@pytest.mark.parametrize("cut", [5, 12, 30, SIZES[1] - 9, SIZES[1] - 1])
def test_truncated_member_gives_what_it_has(cut):
    found = read(MEMBERS[0] + MEMBERS[1][:cut])
    assert found[0] == [0, TEXTS[0], End()]
    assert found[1][0] == SIZES[0]
    assert TEXTS[1].startswith(found[1][1])
    assert found[1][2] == End("truncated gzip member", cut=True)
    if cut >= SIZES[1] - 9:
        assert found[1][1] == TEXTS[1]


def test_checksum_that_differs():
    damaged = bytearray(MEMBERS[1])
    damaged[-6] ^= 1
    found = read(MEMBERS[0] + damaged + MEMBERS[2])
    assert found[1] == [SIZES[0], TEXTS[1], End("damaged gzip member: its checksum differs")]
    assert found[2] == [SIZES[0] + SIZES[1], TEXTS[2], End()]


@pytest.mark.parametrize("at", range(0, SIZES[1], 3))
def test_members_around_a_damaged_one_are_read(at):
    damaged = bytearray(MEMBERS[1])
    damaged[at] ^= 0xFF
    found = read(MEMBERS[0] + damaged + MEMBERS[2])
    assert found[0] == [0, TEXTS[0], End()]
    assert found[-1] == [SIZES[0] + SIZES[1], TEXTS[2], End()]


def test_bytes_before_the_damage_are_given():
    words = random.Random(0).choices(["alpha ", "beta ", "gamma ", "delta "], k=40_000)
    content = "".join(words).encode()
    member = bytearray(gzip.compress(content, mtime=0))
    for at in (200, len(member) // 2, len(member) - 100):
        damaged = member.copy()
        damaged[at : at + 8] = b"\xff" * 8
        ((_, text, end),) = read(bytes(damaged))
        good = zlib.decompressobj(wbits=31).decompress(bytes(member[:at]))
        assert len(good) > 500
        assert text.startswith(good)
        assert end.reason


def test_reading_around_damage_ends(monkeypatch):
    monkeypatch.setattr(warc, "_READ_AT_LEAST", 1000)
    monkeypatch.setattr(warc, "_READ_AGAIN", 2)
    stored = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\x00\x0f\x00\xf0\xff" * 5000
    assert list(read_members(io.BytesIO(stored)))[-1] == End(
        "the rest is not read: too much of the file is damaged"
    )
