"""WET and WARC files made of literals."""

import gzip
import zlib


def wet_record(
    url: str, text: str, *, date: str = "2019-04-20T10:00:00Z", length: int | None = None
) -> bytes:
    """A record as Common Crawl's WET files have it."""
    body = text.encode()
    header = (
        "WARC/1.0\r\nWARC-Type: conversion\r\n"
        f"WARC-Target-URI: {url}\r\nWARC-Date: {date}\r\n"
        "WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-000000000000>\r\n"
        "Content-Type: text/plain\r\n"
        f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
    )
    return header.encode() + body + b"\r\n\r\n"


def response_record(
    url: str,
    body: bytes,
    *,
    headers: str = "Content-Type: text/html; charset=utf-8\r\n",
    status: str = "200 OK",
) -> bytes:
    """A record of a WARC file: what a server said."""
    block = f"HTTP/1.1 {status}\r\n{headers}\r\n".encode() + body
    header = (
        "WARC/1.0\r\nWARC-Type: response\r\n"
        f"WARC-Target-URI: {url}\r\nWARC-Date: 2019-04-20T10:00:00Z\r\n"
        "Content-Type: application/http; msgtype=response\r\n"
        f"Content-Length: {len(block)}\r\n\r\n"
    )
    return header.encode() + block + b"\r\n\r\n"


def info_record() -> bytes:
    """What a WET file begins with."""
    body = b"Software-Info: test\r\n\r\n"
    return (
        b"WARC/1.0\r\nWARC-Type: warcinfo\r\nWARC-Date: 2019-04-20T10:00:00Z\r\n"
        b"Content-Type: application/warc-fields\r\n"
        b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body + b"\r\n\r\n"
    )


def members(*records: bytes) -> bytes:
    """A gzip member for each record, as in a crawl."""
    return b"".join(gzip.compress(record, mtime=0) for record in records)


def blocked(content: bytes, size: int) -> bytes:
    """Gzip members of `size` bytes each, wherever records end: bgzip and pigz write such files."""
    return b"".join(
        gzip.compress(content[at : at + size], mtime=0) for at in range(0, len(content), size)
    )


def inflated_before(content: bytes, damage: int) -> bytes:
    """What the members of a gzip file give before the one with byte `damage`, and of that one."""
    out = b""
    data = content[:damage]
    while data:
        inflate = zlib.decompressobj(wbits=31)
        try:
            out += inflate.decompress(data)
        except zlib.error:
            break
        data = inflate.unused_data
    return out
