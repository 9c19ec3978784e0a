r"""Reader of pages from WET and WARC files, and expansion of `--input` to files.

`read_pages` yields the pages of a WET or WARC file:

    for page in read_pages("CC-MAIN-00000.warc.wet.gz", cleaning, tally): ...

A page is a record of type "conversion" (WET), or the text of a "response" (WARC). Its text is the
same as from `c4_utils.split_wet_file`: lines, which end in "\n", "\r" or both, are stripped, and
empty lines and lines that begin like a header ("WARC", "Content-", "CONTENT-") are removed. There
are two intended differences. URL, date and type are read only from the record's header, not from
lines of the text that look like a header. Google's code fails on a damaged file; this module counts
the damaged record in the tally and continues.

Invalid UTF-8 becomes U+FFFD; a record with more than one such character in ten is not text.

`response_text` returns the text of a web page that is stored as an HTTP response in a WARC file:

    response_text(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>One. <b>Two.</b>")
        == "One. Two."

resiliparse extracts the text from HTML (Bevendorff et al., "Elastic ChatNoir", ECIR 2018). All text
is extracted, not only the main content, as in Common Crawl's WET files.

`--input` accepts files, globs, directories, lists of paths, and a crawl's paths file:

    expand_inputs(["crawl/*.warc.wet.gz", "gs://crawl/2019-18"])
    expand_inputs(["wet.paths.gz"], base="s3://commoncrawl")

A file named *.paths, *.txt or *.list (or with .gz) contains one path per line, relative to `base`,
or without `base` to the directory of the file. A directory is searched recursively for *.warc and
*.wet files, with or without .gz.
"""

import functools
import glob
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.pages import Page, Tally
from t5x_lite.c4.warc import MAX_RECORD_BYTES, Damage, Readable, Record, read_members, read_records
from t5x_lite.core.errors import InputError, install_command
from t5x_lite.core.remote import AnyPath, files_below, is_remote, open_path, size_of
from t5x_lite.data.formats.lines import LARGEST_WHOLE

_BLANK = re.compile(rb"\r?\n\r?\n")
_STATUS = re.compile(rb"HTTP/[0-9.]+[ \t]+([0-9]{3})")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.ASCII)
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")
_MOST_CHUNKS = 1 << 16
_HTML = ("text/html", "application/xhtml+xml")
MAX_ATTRIBUTES = 10_000
"""Maximum number of attributes of an HTML tag; the parser's time is quadratic in this number."""
MAX_TAG_CHARS = 5 * MAX_ATTRIBUTES
_QUOTED = r"""(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z)|[^\s>"'][^\s>]*+)"""
_ATTRIBUTE_PATTERN = rf"[\s/]*+[^\s/>][^\s/>=]*+(?:\s*+=\s*+{_QUOTED}?)?"
_ATTRIBUTE = re.compile(_ATTRIBUTE_PATTERN)
_TAG = re.compile(rf"<[A-Za-z][^\s/>]*+(?:{_ATTRIBUTE_PATTERN})*+")


class NoText(Exception):
    """Error of a response without readable text; its message is the reason."""


@functools.cache
def _resiliparse():
    try:
        from resiliparse.extract.html2text import extract_plain_text
        from resiliparse.parse.encoding import bytes_to_str, detect_encoding
    except ImportError as error:
        raise InputError(
            f"reading WARC files needs resiliparse, which is not installed; {install_command('c4')}"
        ) from error
    return extract_plain_text, bytes_to_str, detect_encoding


def check_installed() -> None:
    """Raise InputError if resiliparse is not installed."""
    _resiliparse()


def response_text(block: bytes, *, max_bytes: int) -> str:
    """Return the text of a stored HTTP response; raise NoText if it has no readable text."""
    blank = _BLANK.search(block)
    status = _STATUS.match(block)
    if blank is None or status is None:
        raise NoText("damaged HTTP header")
    if status.group(1) != b"200":
        raise NoText("responses with a status other than 200")
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
    """Return the text of an HTML page, one line per block."""
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
    """Return the body of a response after decoding of chunks and compression."""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = _without_chunks(body)
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity") or not body:
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise NoText("responses in a compression that is not gzip")
    if encoding != "deflate" and not body.startswith(b"\x1f\x8b"):
        return body  # Common Crawl decompresses, but older crawls kept the header
    inflate = zlib.decompressobj(wbits=47 if encoding != "deflate" else _deflate_bits(body))
    try:
        content = inflate.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise NoText("damaged compression of a response") from error
    if len(content) > max_bytes:
        raise NoText("responses longer than the limit when decompressed")
    return content


def _deflate_bits(body: bytes) -> int:
    """Return zlib's window bits: standard format, or raw deflate as some servers send it."""
    return 15 if body[0] & 15 == 8 and int.from_bytes(body[:2], "big") % 31 == 0 else -15


def _without_chunks(body: bytes) -> bytes:
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
    """Decode a body by the charset in its header, or else as UTF-8, or else by detection."""
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


_LISTS = (".paths", ".txt", ".list")
_ARCHIVES = (".warc", ".wet", ".warc.gz", ".wet.gz")
_GLOB = re.compile(r"[*?\[]")
_LONGEST_LINE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Input:
    """Input file of C4.

    Attributes:
      path: absolute path, or gs:// or s3:// URL.
      size: size in bytes.
    """

    path: str
    size: int


def expand_inputs(inputs: Sequence[str], *, base: str = "") -> list[Input]:
    """Return the files that inputs (files, globs, directories, lists) name, sorted by path."""
    if not inputs:
        raise InputError(
            "no input was given; give WET or WARC files, globs, directories or lists of paths"
        )
    paths: set[str] = set()
    for given in inputs:
        paths.update(_expand(given, base))
    return [_input(path) for path in sorted(paths)]


def _expand(given: str, base: str) -> Iterator[str]:
    if not given.strip():
        raise InputError("an input is empty; give a file, a glob, a directory or a list of paths")
    path = open_path(given)
    if not path.exists():
        if _GLOB.search(given) is None:
            raise InputError(f"input {given} does not exist")
        found = sorted(_glob(given))
        if not found:
            raise InputError(f"input {given} matches no file")
        yield from found
    elif path.is_dir():
        found = [name for name in files_below(path) if name.endswith(_ARCHIVES)]
        if not found:
            raise InputError(
                f"input {given} is a directory without files that end in {', '.join(_ARCHIVES)}"
            )
        yield from (_absolute(f"{str(path).rstrip('/')}/{name}") for name in found)
    elif given.removesuffix(".gz").endswith(_LISTS):
        yield from _listed(path, given, base)
    else:
        yield _absolute(given)


def _absolute(path: str) -> str:
    return path if is_remote(path) else os.path.abspath(path)


def _glob(pattern: str) -> Iterator[str]:
    if not is_remote(pattern):
        found = glob.glob(pattern, recursive=True)
        yield from (_absolute(path) for path in found if os.path.isfile(path))
        return
    first = _GLOB.search(pattern)
    assert first is not None
    root, _, _ = pattern[: first.start()].rpartition("/")
    below = pattern[len(root) + 1 :]
    yield from (str(path) for path in open_path(root).glob(below) if not path.is_dir())


def _listed(path: AnyPath, given: str, base: str) -> Iterator[str]:
    """Yield the files named in a list of paths; raise InputError if a file does not exist."""
    root = (base or _absolute(given).rpartition("/")[0]).rstrip("/")
    count = 0
    for number, line in enumerate(_lines(path, given), start=1):
        if not line or line.startswith("#"):
            continue
        count += 1
        named = line if is_remote(line) or line.startswith("/") else f"{root}/{line}"
        if not open_path(named).exists():
            raise InputError(
                f"{given}:{number}: file {named} does not exist"
                + (
                    ""
                    if base
                    else "; paths are relative to the directory of the list, or to --base"
                )
            )
        yield _absolute(named)
    if not count:
        raise InputError(f"input {given} is a list of paths without a path")


def _lines(path: AnyPath, given: str) -> Iterator[str]:
    try:
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
                content = file.read(LARGEST_WHOLE + 1)
        if len(content) > LARGEST_WHOLE:
            raise InputError(
                f"input {given} is a list of paths with more than {LARGEST_WHOLE} bytes; divide "
                "the list"
            )
        lines = content.decode("utf-8").splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"input {given} cannot be read ({error})") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"input {given} is not a list of paths; a WET or WARC file must not end in .txt"
        ) from error
    for number, line in enumerate(lines, start=1):
        if len(line) > _LONGEST_LINE or line.startswith("WARC/"):
            raise InputError(f"{given}:{number} is not a path; rename WET and WARC files to *.warc")
        yield line.strip()


def _input(path: str) -> Input:
    try:
        return Input(path=path, size=size_of(open_path(path)))
    except OSError as error:
        raise InputError(f"input {path} cannot be read ({error.strerror or error})") from error


_MOST_REPLACED = 0.1


def read_pages(
    path: str, cleaning: Cleaning, tally: Tally, *, max_record_bytes: int = MAX_RECORD_BYTES
) -> Iterator[Page]:
    """Yield the pages of a WET or WARC file in order, and count them in `tally`."""
    try:
        with open_path(path).open("rb") as file:
            yield from _pages(cast(Readable, file), path, cleaning, tally, max_record_bytes)
    except OSError as error:
        why = error.strerror or str(error).partition("\n")[0]
        raise InputError(f"{path} cannot be read ({why})") from error


def _pages(
    file: Readable, path: str, cleaning: Cleaning, tally: Tally, max_record_bytes: int
) -> Iterator[Page]:
    events = read_members(file, compressed=path.endswith(".gz"))
    empty = True
    for found in read_records(events, max_bytes=max_record_bytes):
        empty = False
        if isinstance(found, Damage):
            tally.damaged(path, found.offset, found.reason)
            continue
        if found.note:
            tally.damaged(path, found.offset, found.note)
        page = _page(found, path, cleaning, tally, max_record_bytes)
        if page is not None:
            yield page
    if empty:
        tally.damaged(path, 0, "empty file")


_FIRST_BYTES = 1 << 22
"""Number of bytes at the beginning of a file that are searched for a WARC record."""


def check_archives(files: Sequence[Input]) -> None:
    """Raise InputError if none of the files begins with WARC records."""
    for file in files:
        try:
            with open_path(file.path).open("rb") as stream:
                head = io.BytesIO(cast(Readable, stream).read(_FIRST_BYTES))
        except OSError:
            return  # the run reports the file that it cannot read
        records = read_records(read_members(head, compressed=file.path.endswith(".gz")))
        if any(isinstance(found, Record) for found in records):
            return
    raise InputError(
        f"none of {len(files)} input files, such as {files[0].path}, has a WARC record; give WET "
        "or WARC files of Common Crawl (*.warc.wet.gz, *.warc.gz)"
    )


_TEXT_TYPES = ("conversion", "resource", "")
"""Types of WARC records that contain text; "" is a record without a type."""


def _page(
    record: Record, path: str, cleaning: Cleaning, tally: Tally, max_bytes: int
) -> Page | None:
    """Return the page of a record, or None if the record is not a page or is dropped."""
    headers = record.headers
    kind = headers.get("warc-type", "").lower()
    content_type = headers.get("content-type", "")
    if kind == "response":
        try:
            text = response_text(record.body, max_bytes=max_bytes)
        except NoText as error:
            _no_text(str(error), record, path, tally)
            return None
        length = ""
        content_type = "text/plain"
    elif kind in _TEXT_TYPES and (kind != "resource" or content_type.startswith("text/plain")):
        decoded = _decode(record, path, tally)
        if decoded is None:
            return None
        text, length = decoded, headers.get("content-length", "")
    else:
        return None
    lines = page_lines(text)
    prefixes = cleaning.metadata_prefixes
    kept = [line for line in lines if not line.startswith(prefixes)] if prefixes else lines
    page = Page(
        url=headers.get("warc-target-uri", "").removeprefix("<").removesuffix(">"),
        text="\n".join(kept),
        timestamp=headers.get("warc-date", ""),
        content_length=length,
        content_type=content_type,
    )
    if kind == "response":
        # Same value as in the WET record that Common Crawl makes of this one.
        size = str(len(page.text.encode("utf-8", "surrogatepass")))
        page = Page(page.url, page.text, page.timestamp, size, content_type)
    if len(kept) < len(lines):
        dropped = [line for line in lines if line.startswith(prefixes)]
        tally.drop_lines("read", "metadata_line", page, dropped)
    return _complete(page, tally)


def page_lines(text: str) -> list[str]:
    """Return the stripped nonempty lines of a record's text."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return [line for line in map(str.strip, text.split("\n")) if line]


def _decode(record: Record, path: str, tally: Tally) -> str | None:
    try:
        return record.body.decode("utf-8")
    except UnicodeDecodeError:
        pass
    text = record.body.decode("utf-8", "replace")
    if text.count("\ufffd") > _MOST_REPLACED * len(text):
        tally.damaged(path, record.offset, "a binary record")
        return None
    tally.damaged(path, record.offset, "invalid UTF-8; read with U+FFFD in its place")
    return text


def _no_text(reason: str, record: Record, path: str, tally: Tally) -> None:
    if reason.startswith("responses"):  # valid, but not a page
        tally.notes[reason] += 1
    else:
        tally.damaged(path, record.offset, reason)


def _complete(page: Page, tally: Tally) -> Page | None:
    """Return the page if it has URL, text and timestamp, or else None."""
    tally.page_in("read", page)
    for rule, there in (
        ("no_url", page.url),
        ("no_text", page.text),
        ("no_timestamp", page.timestamp),
    ):
        if not there:
            tally.drop_page("read", rule, page)
            return None
    tally.page_out("read", page)
    return page
