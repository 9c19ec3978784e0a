import gzip
import zlib

import pytest

from t5x_lite.c4 import pages
from t5x_lite.c4.pages import NoText, html_text, response_text

pytest.importorskip("resiliparse")

HTML = "Content-Type: text/html\r\n"


def text_of(body: bytes, headers: str = HTML, status: str = "200 OK") -> str:
    block = f"HTTP/1.1 {status}\r\n{headers}\r\n".encode() + body
    return response_text(block, max_bytes=10_000)


def test_text_of_a_page():
    page = "<html><head><script>x()</script></head><body><p>One. <b>Two.</b><p>Three.</body></html>"
    assert text_of(page.encode()).split() == ["One.", "Two.", "Three."]
    assert text_of(b"<p>is text</p>", "Content-Type: text/plain\r\n") == "<p>is text</p>"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ("Content-Type: text/html; charset=latin-1\r\n", "Caf\xe9".encode("latin-1")),
        ("Content-Type: text/html; charset=UTF-8\r\n", "Caf\xe9".encode()),
        ("Content-Type: text/html; charset=none-such\r\n", "Caf\xe9".encode()),
        ("", "Caf\xe9".encode()),
        (HTML + "Content-Encoding: gzip\r\n", gzip.compress("Caf\xe9".encode(), mtime=0)),
        (HTML + "Content-Encoding: gzip\r\n", "Caf\xe9".encode()),
        (HTML + "Content-Encoding: deflate\r\n", zlib.compress("Caf\xe9".encode())),
        (HTML + "Content-Encoding: deflate\r\n", zlib.compress("Caf\xe9".encode(), wbits=-15)),
        (HTML + "Transfer-Encoding: chunked\r\n", b"3\r\nCaf\r\n2;x=y\r\n\xc3\xa9\r\n0\r\n\r\n"),
        (HTML + "Transfer-Encoding: chunked\r\n", "Caf\xe9".encode()),
    ],
)
def test_encodings(headers, body):
    assert text_of(body, headers) == "Caf\xe9"


@pytest.mark.parametrize(
    ("reason", "arguments"),
    [
        (
            "responses with a status other than 200",
            (b"x", HTML, "404 Not Found"),
        ),
        (
            "responses that are neither HTML nor plain text",
            (b"x", "Content-Type: image/png\r\n"),
        ),
        (
            "responses in a compression that is not gzip",
            (b"x", HTML + "Content-Encoding: br\r\n"),
        ),
        (
            "damaged compression of a response",
            (b"\x1f\x8b\x09" * 9, HTML + "Content-Encoding: gzip\r\n"),
        ),
        (
            "responses longer than the limit when decompressed",
            (gzip.compress(b"x" * 20_000, mtime=0), HTML + "Content-Encoding: gzip\r\n"),
        ),
    ],
)
def test_what_is_no_page(reason, arguments):
    with pytest.raises(NoText, match=f"^{reason}$"):
        text_of(*arguments)


def test_damaged_headers():
    for block in (b"", b"HTTP/1.1 200 OK\r\n", b"\x00\r\n\r\nbody"):
        with pytest.raises(NoText, match=r"^damaged HTTP header$"):
            response_text(block, max_bytes=100)


def test_pages_that_are_made_to_be_slow():
    many = " ".join(f"a{number}=1" for number in range(3 * pages.MAX_ATTRIBUTES))
    with pytest.raises(NoText, match="too many attributes"):
        html_text(f"<p {many}>text")
    assert html_text("<a " * 9_000 + ">text").strip() == "text"
    assert html_text("<div>" * 10_000 + "text").strip() == "text"
    assert html_text(f'<p title="{"a b " * 30_000}">text').strip() == "text"
