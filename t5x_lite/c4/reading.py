r"""Pages out of WET and WARC files.

    for page in read_pages("CC-MAIN-00000.warc.wet.gz", cleaning, tally): ...

A page is a record of type "conversion" (WET), or the text of a "response" (WARC). Its text is what
`c4_utils.split_wet_file` makes of the record: lines, which end in "\n", "\r" or both, stripped;
without those that are empty and those that begin like a header ("WARC", "Content-", "CONTENT-").
Two differences are meant: URL, date and type come from the record's header alone, and not from a
line of the page that looks like one; and where the reference dies of a damaged file, this names
the record in the tally and goes on.

Invalid UTF-8 becomes U+FFFD; a record with more than one such character in ten is no text.
"""

import io
from collections.abc import Iterator, Sequence
from typing import cast

from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.gzip_members import Readable, read_members
from t5x_lite.c4.html import NoText, response_text
from t5x_lite.c4.inputs import Input
from t5x_lite.c4.pages import Page, Tally
from t5x_lite.c4.warc import MAX_RECORD_BYTES, Damage, Record, read_records
from t5x_lite.errors import InputError
from t5x_lite.remote import open_path

_MOST_REPLACED = 0.1


def read_pages(
    path: str, cleaning: Cleaning, tally: Tally, *, max_record_bytes: int = MAX_RECORD_BYTES
) -> Iterator[Page]:
    """The pages of a file, in its order.

    Args:
      path: a WET or WARC file, .gz or not, of this machine or gs://, s3://.
      cleaning: `metadata_prefixes` is the rule for lines.
      tally: gets what is dropped, and the damaged records.
      max_record_bytes: a longer record is passed over, and is a damaged one.

    Raises:
      InputError: the file is not there, or the disk or the network fails.
    """
    try:
        with open_path(path).open("rb") as file:
            yield from _pages(cast(Readable, file), path, cleaning, tally, max_record_bytes)
    except OSError as error:
        why = error.strerror or str(error).partition("\n")[0]
        raise InputError(f"{path}: cannot be read ({why})") from error


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
"""Bytes of a file that are searched for a record."""


def check_archives(files: Sequence[Input]) -> None:
    """Raise InputError if no file begins with WARC records, the form of WET and WARC files."""
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
        f"no WARC record in {len(files)} input files, such as {files[0].path}; give WET or WARC "
        "files of Common Crawl (*.warc.wet.gz, *.warc.gz)"
    )


_TEXT_TYPES = ("conversion", "resource", "")
"""A record without a type is one of text, for hand-made files; `resource` where it is text."""


def _page(
    record: Record, path: str, cleaning: Cleaning, tally: Tally, max_bytes: int
) -> Page | None:
    """The page of a record; None where it is none, or is dropped."""
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
        # As the WET record would have it that Common Crawl makes of this one.
        size = str(len(page.text.encode("utf-8", "surrogatepass")))
        page = Page(page.url, page.text, page.timestamp, size, content_type)
    if len(kept) < len(lines):
        dropped = [line for line in lines if line.startswith(prefixes)]
        tally.drop_lines("read", "metadata_line", page, dropped)
    return _complete(page, tally)


def page_lines(text: str) -> list[str]:
    """The lines of a record's text, stripped, without empty ones."""
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
    if reason.startswith("responses"):  # as they should be, but no pages
        tally.notes[reason] += 1
    else:
        tally.damaged(path, record.offset, reason)


def _complete(page: Page, tally: Tally) -> Page | None:
    """The page if it has all that a page needs; c4_utils.split_wet_file's order."""
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
