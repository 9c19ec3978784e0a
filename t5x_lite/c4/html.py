r"""The text of a web page as a crawler stored it: an HTTP response in a WARC file.

    response_text(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>One. <b>Two.</b>")
        == "One. Two."

Text is taken out of HTML by resiliparse (Bevendorff et al., "Elastic ChatNoir", ECIR 2018), all of
it and not the main content alone, as Common Crawl does when it makes WET files of its WARC files.
"""

import functools
import re
import zlib

from t5x_lite.errors import InputError
from t5x_lite.extras import install_command

_BLANK = re.compile(rb"\r?\n\r?\n")
_STATUS = re.compile(rb"HTTP/[0-9.]+[ \t]+([0-9]{3})")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.ASCII)
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")
_MOST_CHUNKS = 1 << 16
_HTML = ("text/html", "application/xhtml+xml")
MAX_ATTRIBUTES = 10_000
"""Attributes of a tag: the parser compares each with all before it."""
MAX_TAG_CHARS = 5 * MAX_ATTRIBUTES
_QUOTED = r"""(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z)|[^\s>"'][^\s>]*+)"""
_ATTRIBUTE_PATTERN = rf"[\s/]*+[^\s/>][^\s/>=]*+(?:\s*+=\s*+{_QUOTED}?)?"
_ATTRIBUTE = re.compile(_ATTRIBUTE_PATTERN)
_TAG = re.compile(rf"<[A-Za-z][^\s/>]*+(?:{_ATTRIBUTE_PATTERN})*+")


class NoText(Exception):
    """A response has no text that can be read; the message says why, without anything of it."""


@functools.cache
def _resiliparse():
    try:
        from resiliparse.extract.html2text import extract_plain_text
        from resiliparse.parse.encoding import bytes_to_str, detect_encoding
    except ImportError as error:
        raise InputError(
            f"reading WARC files needs resiliparse, which is missing: {install_command('c4')}"
        ) from error
    return extract_plain_text, bytes_to_str, detect_encoding


def check_installed() -> None:
    """Says, by an InputError, that the package is missing, before the work and not after it."""
    _resiliparse()


def response_text(block: bytes, *, max_bytes: int) -> str:
    """The text of a stored HTTP response.

    Args:
      block: status line, headers and body.
      max_bytes: of the body, when it is decompressed.

    Raises:
      NoText: it is no page, or cannot be read.
      InputError: resiliparse is not installed.
    """
    blank = _BLANK.search(block)
    status = _STATUS.match(block)
    if blank is None or status is None:
        raise NoText("damaged HTTP header")
    if status.group(1) != b"200":
        raise NoText("responses whose status is not 200")
    headers = _headers(block[: blank.start()])
    kind = headers.get("content-type", "text/html")
    mime = kind.partition(";")[0].strip().lower()
    if mime not in (*_HTML, "text/plain"):
        raise NoText("responses that are neither HTML nor plain text")
    body = _decoded(block[blank.end() :], headers, max_bytes)
    charset = _CHARSET.search(kind)
    text = _to_str(body, charset.group(1) if charset else "", html=mime in _HTML)
    return text if mime == "text/plain" else html_text(text)


def html_text(html: str) -> str:
    """The text of an HTML page, a line for each block.

    Raises:
      NoText: a tag has so many attributes that parsing it would not end.
    """
    extract = _resiliparse()[0]
    if len(html) > MAX_TAG_CHARS:
        for tag in _TAG.finditer(html):
            if tag.end() - tag.start() > MAX_TAG_CHARS and _is_crowded(tag.group()):
                raise NoText("an HTML tag with too many attributes")
    return extract(html, preserve_formatting=True, list_bullets=False)


def _is_crowded(tag: str) -> bool:
    return sum(1 for _ in _ATTRIBUTE.finditer(tag)) > MAX_ATTRIBUTES


def _headers(block: bytes) -> dict[str, str]:
    headers = {}
    for line in block.decode("latin-1").splitlines()[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return headers


def _decoded(body: bytes, headers: dict[str, str], max_bytes: int) -> bytes:
    """The body without chunks and compression, where a crawler left them."""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = _without_chunks(body)
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity") or not body:
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise NoText("responses in a compression that is not gzip")
    if encoding != "deflate" and not body.startswith(b"\x1f\x8b"):
        return body  # Common Crawl decompresses, and older crawls kept the header
    inflate = zlib.decompressobj(wbits=47 if encoding != "deflate" else _deflate_bits(body))
    try:
        content = inflate.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise NoText("damaged compression of a response") from error
    if len(content) > max_bytes:
        raise NoText("responses longer than the limit when decompressed")
    return content


def _deflate_bits(body: bytes) -> int:
    """zlib's format as the standard says, or bare as some servers send it."""
    return 15 if body[0] & 15 == 8 and int.from_bytes(body[:2], "big") % 31 == 0 else -15


def _without_chunks(body: bytes) -> bytes:
    """The content of a chunked body; a body that is not is given as it is."""
    parts, at = [], 0
    while len(parts) < _MOST_CHUNKS:
        size = _CHUNK_SIZE.match(body, at)
        line = body.find(b"\n", at)
        if size is None or line < 0:
            return b"".join(parts) if parts else body
        length = int(size.group(), 16)
        if length == 0:
            break
        parts.append(body[line + 1 : line + 1 + length])
        at = line + 1 + length
        at += 2 if body[at : at + 2] == b"\r\n" else 0
    return b"".join(parts)


def _to_str(body: bytes, charset: str, *, html: bool) -> str:
    """Decodes a page by its header, else by what it says and looks like."""
    _, bytes_to_str, detect_encoding = _resiliparse()
    if charset:
        try:
            return body.decode(charset, "replace")
        except (LookupError, ValueError):
            pass
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        found = detect_encoding(body, from_html_meta=html)
        return bytes_to_str(body, found or "utf-8", errors="replace")
