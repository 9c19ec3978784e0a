"""URLs: which are one page, and which are for validation.

    normalize_url("https://www.example.com/a/?utm_source=x") == "example.com/a"

Source: c4_utils.normalize_url and get_hashed_url_filter_fn, and the split predicates of
c4.C4._split_generators.
"""

import hashlib
import re

_SCHEME = re.compile(r"https?:\/\/(www\.)?")
_CAMPAIGN = re.compile(r"\?(utm_|ref|feed).*")


def normalize_url(url: str) -> str:
    """Strips the scheme, "www.", tails such as "?utm_source=x" and slashes at the end.

    As in the reference, a scheme is stripped wherever it stands ("a.com/?u=http://b.com" too).
    """
    if "://" in url:
        url = _SCHEME.sub("", url)
    if "?" in url:
        url = _CAMPAIGN.sub("", url)
    return url.rstrip("/")


def url_digest(url: str) -> bytes:
    """MD5 of a URL as it stands, 16 bytes (c4_utils._hash_text)."""
    return hashlib.md5(url.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()


def url_md5(url: str) -> str:
    """`url_digest` as 32 hexadecimal digits, which sort alike."""
    return url_digest(url).hex()


def url_number(url: str) -> int:
    """MD5 of the normalized URL as a number, by which the reference draws lots."""
    return int.from_bytes(url_digest(normalize_url(url)), "big")


def is_validation(url: str, *, modulus: int = 1000) -> bool:
    """Whether a page is for validation: one in `modulus`; 0 is none."""
    return bool(modulus) and url_number(url) % modulus == 0


def host(url: str) -> str:
    """The host of a URL in lower case, without user and port; "" where there is none."""
    _, mark, rest = url.partition("://")
    name = rest if mark else url
    for mark in "/?#\\":
        name = name.partition(mark)[0]
    name = name.rpartition("@")[2]
    if name.startswith("["):
        return name.partition("]")[0].lower() + "]"
    return name.partition(":")[0].strip(" .").lower()


def domain(url: str) -> str:
    """The host without "www.", for the report."""
    return host(url).removeprefix("www.")
