"""scripts/bench/corpus.py: what it reads of packages, without apt."""

import gzip
import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"


@pytest.fixture
def corpus(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.delitem(sys.modules, "corpus", raising=False)
    import corpus

    return corpus


def test_translated_descriptions(corpus):
    text = (
        "Package: boats\nDescription-md5: 1a\nDescription-en: race of boats\n"
        " A game of boats\n that race.\n .\n It has:\n  * water;\n  * wind.\n\n"
        "Package: broken\nDescription-en: no sum\n"
    )
    found = list(corpus.described(text, "en"))
    assert found == [
        ("1a", "race of boats", "A game of boats that race.\nIt has:\n* water;\n* wind.")
    ]


def test_markup(corpus):
    page = (
        "<html><head><title>Boats &amp; ships</title><style>p {}</style></head><body>"
        "<nav><p>Next page of this book.</p></nav><p>A boat is <em>smaller</em>\n than a ship.</p>"
        "<pre>boat = 1</pre><ul><li>Oars.</li></ul></body></html>"
    )
    title, found = corpus.from_markup(page)
    assert (title, found[1:]) == ("Boats & ships", ["A boat is smaller than a ship.", "Oars."])


def test_manual_pages(corpus):
    page = (
        '.\\" a comment\n.TH BOAT 1 "2020" "x"\n.SH NAME\nboat \\- a thing\n.SH OPTIONS\n'
        'The option\n.BR \\-\\-sail " (" see\n\\fBwind\\fP) needs\nair.\n.nf\ncode\n.fi\nEnd.\n'
    )
    title, found = corpus.from_roff(page)
    assert title == "boat"
    assert found == ["boat - a thing", "The option --sail (see wind) needs air.", "End."]


def test_perl_pages(corpus):
    text = (
        "=head1 NAME\n\nboat - a thing\n\n=head1 X\n\nThe C<< a->b >> of B<I<boats>>.\n\n  code\n"
    )
    assert corpus.from_pod(text) == (
        "boat - a thing",
        ["boat - a thing", "The a->b of boats."],
    )


def test_dictionaries(corpus):
    entries = ["00-database-info\n  made", "Boat \\B\\, n. [OE. boot,\n D. boot.]\n   1. A {ship}."]
    content = "".join(entries).encode()

    def digits(number):
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
        high, low = divmod(number, 64)
        return alphabet[high] + alphabet[low]

    index, start = "", 0
    for name, entry in zip(("00-database-info", "boat"), entries, strict=True):
        index += f"{name}\t{digits(start)}\t{digits(len(entry))}\n"
        start += len(entry)
    ((word, entry),) = corpus.from_dictd(index.encode(), content)
    assert (word, corpus.gcide_text(entry)) == ("boat", "1. A ship .")


def test_prose_and_splits(corpus):
    sentence = "This is a sentence of more than seven words."
    assert corpus.is_prose(sentence)
    assert not corpus.is_prose("Too short to keep.")
    assert not corpus.is_prose(sentence[:-1])
    assert not corpus.is_prose("0x00 0x01 0x02 0x03 0x04 0x05 0x06 0x07 0x08.")
    shares = [corpus.split_of(str(number)) for number in range(2000)]
    assert 100 < shares.count("test") < 220 < 1600 < shares.count("train")


def test_a_repeated_paragraph_is_kept_once(corpus, tmp_path):
    paragraphs = [f"This is paragraph {word} of some length, with an end." for word in "abc"]
    documents = {"one": [paragraphs[:2]], "two": [paragraphs[1:], ["Too short."]]}
    for name, texts in documents.items():
        lines = [{"title": name, "paragraphs": text} for text in texts]
        assert corpus.write_lines(tmp_path / "sources" / f"{name}.jsonl.gz", lines) == len(texts)
    sizes = corpus.merge(tmp_path, ["one", "two"])
    assert [sizes[name]["documents"] for name in ("one", "two")] == [1, 1]
    found = []
    for split in ("train", "validation"):
        with gzip.open(tmp_path / split / "corpus.jsonl.gz", "rt") as file:
            found += [json.loads(line)["text"] for line in file]
    assert sorted(found) == ["\n".join(paragraphs[:2]), paragraphs[2]]
