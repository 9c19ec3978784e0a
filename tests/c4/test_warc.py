import io

import pytest

from t5x_lite.c4.warc import Damage, Record, read_members, read_records
from tests.c4.wet_files import blocked, info_record, members, wet_record

A = wet_record("http://a.com/", "One line.\nAnother line.")
B = wet_record("http://b.com/", "WARC is a format.\n\nContent-Length: 3 is a header.")
C = wet_record("http://c.com/", "\N{GREEK SMALL LETTER ALPHA}" * 100)


def read(content: bytes, **options):
    return list(read_records(read_members(io.BytesIO(content)), **options))


def urls(content: bytes, **options):
    """URLs of records, and reasons of damages, in order."""
    return [
        found.headers.get("warc-target-uri", "?")[7:8]
        if isinstance(found, Record)
        else found.reason
        for found in read(content, **options)
    ]


def test_a_record():
    (record,) = read(A)
    assert record == Record(
        offset=0,
        headers={
            "warc-type": "conversion",
            "warc-target-uri": "http://a.com/",
            "warc-date": "2019-04-20T10:00:00Z",
            "warc-record-id": "<urn:uuid:00000000-0000-0000-0000-000000000000>",
            "content-type": "text/plain",
            "content-length": "23",
        },
        body=b"One line.\nAnother line.",
    )


@pytest.mark.parametrize("size", [1, 7, 100, 333, 100_000])
def test_members_may_end_anywhere(size):
    content = info_record() + A + B + C
    expected = [record.body for record in read(content)]
    assert len(expected) == 4
    assert [record.body for record in read(blocked(content, size))] == expected


def test_offsets():
    assert [found.offset for found in read(A + B + C)] == [0, len(A), len(A + B)]
    assert [found.offset for found in read(members(A, B, C))] == [
        0,
        len(members(A)),
        len(members(A, B)),
    ]


def test_newlines_of_unix_and_folded_headers():
    content = b"WARC/1.1\nWARC-Target-URI: http://a.com/\n b\nContent-Length: 2\n\nhi\n\n"
    (record,) = read(content)
    assert (record.headers["warc-target-uri"], record.body) == ("http://a.com/ b", b"hi")


@pytest.mark.parametrize("length", [0, 5, 20, 60, 10**6, 10**15])
def test_wrong_content_length(length):
    wrong = wet_record("http://w.com/", "One line.\nAnother line.", length=length)
    for content in (A + wrong + B, members(A, wrong, B)):
        first, found, last = read(content)
        assert (first.body, last.body) == (b"One line.\nAnother line.", read(B)[0].body)
        if length < 10**7:
            assert found.body == b"One line.\nAnother line."
            assert found.note == "wrong Content-Length; read to the next record"
        else:
            assert found.reason == "the record is longer than the limit"


def test_no_content_length():
    content = A + b"WARC/1.0\r\nWARC-Target-URI: http://w.com/\r\n\r\nText.\r\n\r\n" + B
    _, found, _ = read(content)
    assert (found.body, found.note) == (b"Text.", "no Content-Length; read to the next record")


def test_damaged_headers():
    bad_version = A.replace(b"WARC/1.0", b"WARD/1.0")
    assert urls(B + bad_version + C) == ["b", "no WARC header where a record begins", "c"]
    assert urls(members(B, bad_version, C)) == ["b", "no WARC header where a record begins", "c"]
    no_colon = A.replace(b"WARC-Date:", b"WARC-Date\xff")
    assert urls(B + no_colon + C) == ["b", "damaged WARC header: a line is no field", "c"]
    endless = b"WARC/1.0\r\n" + b"X-A: b\r\n" * 20_000
    assert urls(B + endless + C) == ["b", "damaged WARC header: a line is no field", "c"]


def test_truncated_files():
    whole = A + B + C
    for cut in range(len(A + B), len(whole) - 4):
        found = urls(whole[:cut])
        assert found[:2] == ["a", "b"]
        assert len(found) == (2 if cut == len(A + B) else 3)
    packed = members(A, B, C)
    for cut in range(len(members(A, B)) + 3, len(packed)):
        assert urls(packed[:cut])[:2] == ["a", "b"]
        assert urls(packed[:cut])[-1] == "truncated gzip member"


def test_splice_loses_no_other_record():
    for cut in (1, 20, 150, len(B) - 20):
        found = urls(A + B[:cut] + C)
        assert (found[0], found[-1]) == ("a", "c")
        found = urls(members(A) + members(B)[:cut] + members(C))
        assert (found[0], found[-1]) == ("a", "c")


def test_records_beyond_the_limit_are_passed_over():
    long = wet_record("http://l.com/", "word " * 10_000)
    too_long = "the record is longer than the limit"
    for content in (A + long + B, members(A, long, B), blocked(A + long + B, 999)):
        assert urls(content, max_bytes=1000) == ["a", too_long, "b"]
    unknown = long.replace(b"Content-Length", b"Content-Lengtx")
    assert urls(A + unknown + B, max_bytes=1000) == ["a", too_long, "b"]


def test_memory_does_not_grow_with_a_record():
    import tracemalloc

    def events():
        from t5x_lite.c4.warc import End, Start

        yield Start(0, plain=True)
        yield A
        yield wet_record("http://l.com/", "").replace(b"Length: 0", b"Length: 500000000").rstrip()
        yield b"\r\n\r\n"
        piece = b"x" * 1_000_000
        for _ in range(500):
            yield piece
        yield b"\r\n\r\n" + B
        yield End()

    tracemalloc.start()
    found = list(read_records(events()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [type(record) for record in found] == [Record, Damage, Record]
    assert peak < 30_000_000


def test_damage_in_a_member_with_many_records_costs_what_is_behind_it():
    import gzip

    content = gzip.compress(A + B + C, mtime=0)
    damaged = bytearray(content)
    damaged[-6] ^= 1
    found = urls(bytes(damaged))
    assert found == ["a", "b", "c", "damaged gzip member: its checksum differs"]
    assert urls(content[:-20])[0] == "a"
    # Of a member that holds one record alone, that record is what is damaged.
    single = bytearray(members(B))
    single[-6] ^= 1
    assert urls(members(A) + bytes(single) + members(C)) == [
        "a",
        "the record is lost: its gzip member is damaged",
        "damaged gzip member: its checksum differs",
        "c",
    ]
