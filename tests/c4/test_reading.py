import dataclasses
import os
import pathlib
import random

import pytest

from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.pages import Page, Tally, page_lines, read_pages
from t5x_lite.core.errors import InputError
from tests.c4.wet_files import (
    blocked,
    inflated_before,
    info_record,
    members,
    response_record,
    wet_record,
)
from tests.fake_bucket import bucket  # noqa: F401 (a fixture)


def read(path: pathlib.Path | str, **options):
    tally = Tally()
    return list(read_pages(str(path), Cleaning(), tally, **options)), tally


def write(path: pathlib.Path, content: bytes) -> pathlib.Path:
    path.write_bytes(content)
    return path


def test_pages(tmp_path):
    records = [info_record(), wet_record("http://a.com/b", " One line. \r\n\n\tTwo.\rThree.\n")]
    expected = [
        Page(
            "http://a.com/b", "One line.\nTwo.\nThree.", "2019-04-20T10:00:00Z", "27", "text/plain"
        )
    ]
    for name, content in (
        ("a.warc.wet", b"".join(records)),
        ("a.warc.wet.gz", members(*records)),
        ("b.warc.wet.gz", blocked(b"".join(records), 50)),
        ("named", members(*records)),
    ):
        pages, tally = read(write(tmp_path / name, content))
        assert pages == expected
        assert dict(tally.damage) == {}
        assert dict(tally.stages["read"]) == {
            "pages_in": 1,
            "pages_out": 1,
            "bytes_in": 21,
            "bytes_out": 21,
        }


def test_metadata_lines_are_dropped(tmp_path):
    text = "WARC is a format.\nContent-Type: x\nCONTENT-A\ncontent-b\nThe WARC stays."
    path = write(tmp_path / "a.wet", wet_record("http://a.com/", text))
    pages, tally = read(path)
    assert pages[0].text == "content-b\nThe WARC stays."
    assert pages[0].content_type == "text/plain"
    assert tally.rules["read"]["metadata_line"]["lines"] == 3
    everything = dataclasses.replace(Cleaning(), metadata_prefixes=())
    assert next(read_pages(str(path), everything, Tally())).text == text


def test_incomplete_records(tmp_path):
    content = (
        wet_record("", "Text.")
        + wet_record("http://b.com", " \n ")
        + wet_record("http://c.com", "Text.", date="")
        + wet_record("http://d.com", "Text.")
    )
    pages, tally = read(write(tmp_path / "a.wet", content))
    assert [page.url for page in pages] == ["http://d.com"]
    assert {rule: counts["pages"] for rule, counts in tally.rules["read"].items()} == {
        "no_url": 1,
        "no_text": 1,
        "no_timestamp": 1,
    }


def test_warc_files(tmp_path):
    pytest.importorskip("resiliparse")
    content = members(
        info_record(),
        response_record("http://a.com/", b"<p>One.</p><p>Two.</p>"),
        response_record("http://b.com/", b"\x89PNG", headers="Content-Type: image/png\r\n"),
        response_record("http://c.com/", b"gone", status="404 Not Found"),
        b"WARC/1.0\r\nWARC-Type: response\r\nContent-Length: 3\r\n\r\nbad\r\n\r\n",
        response_record("http://d.com/", b"Plain.", headers="Content-Type: text/plain\r\n"),
        b"WARC/1.0\r\nWARC-Type: request\r\nContent-Length: 3\r\n\r\nGET\r\n\r\n",
    )
    pages, tally = read(write(tmp_path / "a.warc.gz", content))
    assert [(page.url, page.text) for page in pages] == [
        ("http://a.com/", "One.\nTwo."),
        ("http://d.com/", "Plain."),
    ]
    assert pages[0].content_type == "text/plain"
    assert pages[0].content_length == "9"
    assert dict(tally.notes) == {
        "responses that are neither HTML nor plain text": 1,
        "responses with a status other than 200": 1,
    }
    assert dict(tally.damage) == {"damaged HTTP header": 1}


def test_text_of_any_kind(tmp_path):
    texts = {
        "nul": "a\0b stays.",
        "rtl": "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u200fabc.",
        "cjk": "\u4e2d\u6587\u7f51\u9875\u3002\n\u65e5\u672c\u8a9e",
        "emoji": "\U0001f600 face",
        "separators": "a\u2028b\x0bc",
    }
    content = b"".join(wet_record(f"http://{name}/", text) for name, text in texts.items())
    pages, tally = read(write(tmp_path / "a.wet", content))
    assert [page.text for page in pages] == list(texts.values())
    assert not tally.damage


def test_invalid_utf8_and_binary_records(tmp_path):
    text = "A line of text. " * 5
    record = wet_record("http://a.com/", text + "\xff").replace(b"\xc3\xbf", b"\xff\xff")
    noise = bytes(random.Random(0).randrange(256) for _ in range(1000))
    binary = wet_record("http://b.com/", "x" * 1000).replace(b"x" * 1000, noise)
    path = write(tmp_path / "a.wet.gz", members(record, binary, wet_record("http://c.com/", "C.")))
    pages, tally = read(path)
    assert [page.text for page in pages] == [text + "\ufffd\ufffd", "C."]
    assert tally.damaged_records == [
        (str(path), 0, "invalid UTF-8; read with U+FFFD in its place"),
        (str(path), len(members(record)), "a binary record"),
    ]


def test_a_million_lines(tmp_path):
    content = wet_record("http://a.com/", "a b.\n" * 1_000_000) + wet_record("http://b.com/", "B.")
    pages, _ = read(write(tmp_path / "a.wet", content))
    assert [len(page.text) for page in pages] == [4_999_999, 2]


def test_damaged_files_are_named(tmp_path):
    good = wet_record("http://a.com/", "A.")
    assert read(write(tmp_path / "empty.wet", b""))[1].damage == {"empty file": 1}
    assert read(write(tmp_path / "text.wet", b"Some text.\n"))[1].damage == {
        "no WARC header where a record begins": 1
    }
    cut = write(tmp_path / "cut.wet.gz", members(good, good)[:-20])
    pages, tally = read(cut)
    assert [page.text for page in pages] == ["A."]
    assert {(path, offset) for path, offset, _ in tally.damaged_records} == {
        (str(cut), len(members(good)))
    }
    long = write(tmp_path / "long.wet", wet_record("http://l.com/", "x" * 2000) + good)
    pages, tally = read(long, max_record_bytes=1000)
    assert len(pages) == 1
    assert tally.damage == {"the record is longer than the limit": 1}


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"none.wet cannot be read \(No such file or directory\)"):
        read(tmp_path / "none.wet")


def test_files_of_a_bucket(bucket):  # noqa: F811
    (bucket / "a.wet.gz").write_bytes(members(wet_record("http://a.com/", "A.")))
    assert [page.text for page in read("gs://bucket/a.wet.gz")[0]] == ["A."]


def test_lines():
    assert page_lines("\n a \n\n\tb\r\nc\rd\x1f\n") == ["a", "b", "c", "d"]
    assert page_lines("") == []


@pytest.mark.slow
def test_equal_to_the_reference(tmp_path):
    c4_utils = pytest.importorskip("tensorflow_datasets.text.c4_utils")
    texts = [
        " One. \r\n\nTwo.\rThree.",
        "WARC is.\nContent-A\nCONTENT-B\n content-c",
        "\u3000\u4e2d\u6587\u2028a\x0bb\x85\n\ufeffx",
        "",
    ]
    records = [wet_record(f"http://{n}.com/?ref=1", text) for n, text in enumerate(texts)]
    made = write(tmp_path / "a.warc.wet.gz", members(info_record(), *records))
    # A folder with files of a real crawl, where there is one.
    real = pathlib.Path(os.environ.get("T5X_LITE_CRAWL", os.devnull)).glob("*.wet.gz")
    for path in [made, *real]:
        expected = list(c4_utils.split_wet_file(str(path), counter_inc_fn=lambda *_: None))
        assert expected
        found = [dataclasses.astuple(page)[:5] for page in read(path)[0]]
        assert found == [
            (page.url, page.text, page.timestamp, page.content_length, page.content_type)
            for page in expected
        ]


def mutated(content: bytes, rng: random.Random) -> tuple[bytes, int]:
    """Content with a few changes, and where the first of them is."""
    changed, first = bytearray(content), len(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed)) if changed else 0
        kind = rng.randrange(4)
        first = min(first, at)
        if kind == 0 and changed:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del changed[at:]
        elif kind == 2:
            del changed[at : at + rng.randint(1, 300)]
        else:
            start = rng.randrange(len(content))
            changed[at:at] = content[start : start + rng.randint(1, 300)]
    return bytes(changed), first


def fuzz(count: int, directory: pathlib.Path) -> None:
    path = directory / "a.wet"
    rng = random.Random(count)
    texts = [f"Page {number} has text.\n" + "word " * (number * 7 % 50) for number in range(6)]
    records = [wet_record(f"http://{number}.com/", text) for number, text in enumerate(texts)]
    records[3] = response_record("http://3.com/", b"<p>Page 3 has <b>text</b>.</p>" * 5)
    plain = b"".join(records)
    ends = [len(b"".join(records[: number + 1])) for number in range(len(records))]
    files = [plain, members(*records), members(plain), blocked(plain, 200)]
    before, _ = read(write(path, plain))
    assert len(before) == 6
    for turn in range(count):
        original = files[turn % len(files)]
        content, damage = mutated(original, rng)
        name = "a.wet" if original is plain else "a.wet.gz"
        pages, _ = read(write(directory / name, content))
        # All records of which every byte lies before the first change.
        whole = damage if original is plain else len(inflated_before(original, damage))
        if original is files[1]:
            whole = max(
                (
                    end
                    for end, n in zip(ends, range(1, 7), strict=True)
                    if len(members(*records[:n])) <= damage
                ),
                default=0,
            )
        intact = sum(end <= whole for end in ends)
        if original is files[2] and intact == 1:
            intact = 0  # it may be the member's only record
        assert pages[:intact] == before[:intact], (turn, damage)


def test_a_flipped_byte_costs_one_record(tmp_path):
    records = [wet_record(f"http://{number}.com/", f"Page {number}.") for number in range(3)]
    whole = read(write(tmp_path / "a.wet.gz", members(*records)))[0]
    begin, end = len(members(records[0])), len(members(*records[:2]))
    for at in range(begin, end, 4):
        content = bytearray(members(*records))
        content[at] ^= 0x55
        pages, tally = read(write(tmp_path / "a.wet.gz", bytes(content)))
        assert (pages[0], pages[-1]) == (whole[0], whole[2])
        assert len(pages) == 2 or pages == whole  # a header's time stamp may be anything
        assert len(pages) == 3 or tally.damaged_records[0][1] == begin


def test_mutated_files(tmp_path):
    fuzz(200, tmp_path)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_ten_thousand_mutated_files(tmp_path):
    fuzz(10_000, tmp_path)
