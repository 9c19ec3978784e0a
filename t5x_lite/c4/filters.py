"""The lists of the variants: domains of news (realnewslike) and URLs of OpenWebText (webtextlike).

Source: c4_utils.is_realnews_domain and filter_by_webtextlike. The lists are the user's files.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.c4.pages import Page, Tally
from t5x_lite.c4.urls import host, normalize_url, url_digest
from t5x_lite.errors import InputError


class DomainList:
    """Pages of some domains only.

    Args:
      domains: registered domain in lower case ("bbc.co.uk") to True, or to a list of the subdomains
        that are allowed ("" is the domain itself).
    """

    def __init__(self, domains: Mapping[str, bool | list[str]]):
        self._domains = {
            name: frozenset(allowed) if isinstance(allowed, list) else None
            for name, allowed in domains.items()
        }

    def keep(self, page: Page, tally: Tally) -> Page | None:
        """The page if its domain is in the list, and its subdomain allowed."""
        tally.page_in("domains", page)
        rule = self._rule(host(normalize_url(page.url)))
        if rule:
            tally.drop_page("domains", rule, page)
            return None
        tally.page_out("domains", page)
        return page

    def _rule(self, name: str) -> str:
        """The rule that a host falls to.

        The reference asks tldextract for the registered domain; the list holds nothing else, so the
        longest ending of the host that is in the list is that domain, without a list of suffixes.
        """
        labels = name.split(".")
        for first in range(len(labels)):
            ending = ".".join(labels[first:])
            if ending in self._domains:
                allowed = self._domains[ending]
                if allowed is None or ".".join(labels[:first]) in allowed:
                    return ""
                return "bad_subdomain"
        return "bad_domain"


def load_domains(path: str | os.PathLike[str]) -> DomainList:
    """Reads a JSON object {domain: true or list of subdomains}, as Grover publishes RealNews.

    Raises:
      InputError: the file is not there, or holds something else.
    """
    text = _read(Path(path), field="domains")
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        raise InputError(f"cleaning.domains: {path} is not JSON: {error}") from error
    if not isinstance(found, dict) or not all(
        isinstance(allowed, bool) or _is_list_of_text(allowed) for allowed in found.values()
    ):
        raise InputError(
            f"cleaning.domains: {path} must be a JSON object of domains, each true or a list of "
            "its subdomains"
        )
    return DomainList(found)


class UrlList:
    """Pages of some URLs only.

    Held as sorted 64-bit hashes: 23 million URLs of OpenWebText take 0.2 GB, and a page outside the
    list passes with a probability of one in 10**12.

    Args:
      urls: as they are listed; normalized here.
    """

    def __init__(self, urls: Iterable[str]):
        numbers = (_number(normalize_url(url)) for url in urls)
        self._numbers = np.unique(np.fromiter(numbers, dtype=np.uint64))

    def __len__(self) -> int:
        return len(self._numbers)

    def keep(self, page: Page, tally: Tally) -> Page | None:
        """The page if its normalized URL is in the list."""
        tally.page_in("urls", page)
        number = np.uint64(_number(normalize_url(page.url)))
        place = int(np.searchsorted(self._numbers, number))
        if place == len(self._numbers) or self._numbers[place] != number:
            tally.drop_page("urls", "unlisted_url", page)
            return None
        tally.page_out("urls", page)
        return page


def load_urls(path: str | os.PathLike[str]) -> UrlList:
    """Reads a file with a URL on each line, or all *.txt of a folder.

    Raises:
      InputError: there is no such file, or no URL in it.
    """
    root = Path(path)
    files = sorted(root.glob("*.txt")) if root.is_dir() else [root]
    found = UrlList(_urls(files))
    if not len(found):
        raise InputError(f"cleaning.urls: {path} holds no URL; give one on each line")
    return found


def _urls(files: Iterable[Path]) -> Iterator[str]:
    for file in files:
        try:
            with file.open(encoding="utf-8", errors="replace") as lines:
                yield from filter(None, map(str.strip, lines))
        except OSError as error:
            raise InputError(f"cleaning.urls: cannot read {file}: {error.strerror}") from error


def _number(url: str) -> int:
    return int.from_bytes(url_digest(url)[:8], "big")


def _is_list_of_text(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)


def _read(path: Path, *, field: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cleaning.{field}: cannot read {path}: {error}") from error
