"""The report of C4: every count is on the page, and nothing of the crawl is markup."""

import html.parser
import json
import re

import pytest

from t5x_lite.c4.config import SOURCES
from t5x_lite.c4.pages import Page, Tally
from t5x_lite.report import c4 as c4_report

ABOUT = {"preset": "released", "variant": "en", "cleaning": {"min_words": 5}}
HOSTILE = '</td><script>alert("1")</script><img src=x onerror=alert(2)> & \x00\x1b[31m \udc80'


def a_page(number: int = 0, *, text: str = "One sentence. Another one.", url: str = "") -> Page:
    url = url or f"http://site{number}.org/page"
    return Page(url, text, "2019-04-24T09:23:58Z", str(len(text)), "text/plain")


def a_tally() -> Tally:
    """Five pages read: one without text, one too long, one in German; two written."""
    tally = Tally()
    for number in range(5):
        tally.page_in("read", a_page(number))
    tally.drop_page("read", "no_text", a_page(4, text=""))
    for number in range(4):
        tally.page_out("read", a_page(number))
        tally.page_in("length", a_page(number))
    tally.drop_page("length", "too_long", a_page(3))
    for number in range(3):
        tally.page_out("length", a_page(number))
        tally.page_in("clean", a_page(number))
        tally.drop_lines("clean", "no_end_mark", a_page(number), ["Buy now", "Buy now"])
        cleaned = a_page(number, text="One sentence.")
        tally.page_out("clean", cleaned)
        tally.page_in("language", cleaned)
    tally.drop_page("language", "other_language", a_page(2))
    for number in range(2):
        tally.page_out("language", a_page(number))
        tally.wrote("train", a_page(number).with_language("en"))
    tally.damaged("crawl.wet.gz", 4096, "the member is cut off")
    return tally


class _Document(html.parser.HTMLParser):
    """Collects tags and words, and refuses what is not closed in its order."""

    def __init__(self):
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in ("meta", "img", "br", "input"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def close(self):
        super().close()
        assert self._open == []


def read(document: str) -> _Document:
    parsed = _Document()
    parsed.feed(document)
    parsed.close()
    return parsed


def test_the_funnel_says_what_is_left_after_every_stage():
    rows = re.findall(r"<tr><td>(.*?)</td><td><svg.*?</svg></td>(.*?)</tr>", page())
    cells = {name: re.findall("<td>(.*?)</td>", rest) for name, rest in rows}
    assert cells["read"][:4] == ["5", "1", "4", "80.0%"]
    assert cells["page length"][:4] == ["4", "1", "3", "60.0%"]
    assert cells["clean lines"] == ["3", "0", "3", "60.0%", "78 bytes", "39 bytes", "30.0%"]
    assert cells["language"][:4] == ["3", "1", "2", "40.0%"]


def page() -> str:
    return c4_report.page(a_tally(), ABOUT)


def test_each_rule_has_its_counts_its_samples_and_its_source():
    document = page()
    words = " ".join(read(document).words)
    assert "clean lines: no end mark" in words
    assert "6 lines" in words
    assert "Buy now" in words
    assert "http://site4.org/page" in words
    assert SOURCES["clean"]["no_end_mark"].split(":")[0] in words


def test_kept_pages_come_before_what_was_dropped():
    document = page()
    kept, dropped = document.index("Kept pages"), document.index("Samples of what was dropped")
    assert document.index("The funnel") < kept < dropped
    words = read(document).words
    assert "2 of 2 pages, picked by URL hash, and their beginnings." in words
    assert words[words.index("Kept pages") :].count("One sentence. Another one.") >= 2


def test_rules_name_their_options_and_values():
    words = read(page()).words
    row = words.index("language: other language")
    assert words[row + 1] == "--cleaning.languages"
    about = {"cleaning": {"min_words": 5, "max_chars": 100}}
    words = read(c4_report.page(a_tally(), about)).words
    assert words[words.index("page length: too long") + 1] == "--cleaning.max-chars 100"


def test_lengths_domains_splits_and_damage_are_shown():
    words = " ".join(read(page()).words)
    assert "site0.org" in words
    assert "2 in all" in words
    assert "crawl.wet.gz" in words
    assert "the member is cut off" in words
    assert "after read" in words


def test_what_comes_from_the_crawl_is_text_and_never_markup():
    tally = a_tally()
    hostile = a_page(text=HOSTILE, url=f"http://{HOSTILE}/")
    tally.drop_page("clean", "brace", hostile)
    tally.drop_lines("clean", "javascript", hostile, [HOSTILE])
    tally.wrote(HOSTILE, hostile.with_language(HOSTILE))
    tally.damaged(HOSTILE, 1, HOSTILE)
    document = c4_report.page(tally, {"preset": HOSTILE, "variant": HOSTILE})
    assert set(read(document).tags) & {"script", "img", "link", "iframe"} == set()
    assert HOSTILE not in document


def test_it_needs_no_network():
    document = page()
    assert "default-src 'none'" in document
    assert not re.search(r'(?:src|href)="', document)


@pytest.mark.parametrize(
    ("fill", "told"),
    [
        (lambda tally: None, "The input has no pages."),
        (lambda tally: tally.page_in("read", a_page()), "No page was kept"),
    ],
)
def test_a_run_without_pages_says_so(fill, told):
    tally = Tally()
    fill(tally)
    assert told in " ".join(read(c4_report.page(tally, {})).words)


def test_both_files_are_written_and_the_tally_comes_back(tmp_path):
    c4_report.write_report(str(tmp_path), a_tally(), ABOUT)
    found = json.loads((tmp_path / "stats.json").read_text())
    assert found["preset"] == "released"
    assert found["num_domains"] == 2
    assert Tally.from_json(found).to_json() == a_tally().to_json()
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page()


def test_a_lone_surrogate_is_written(tmp_path):
    tally = a_tally()
    tally.drop_page("clean", "brace", a_page(text="\udc80"))
    c4_report.write_report(str(tmp_path), tally, ABOUT)
    assert "\\udc80" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_only_the_largest_domains_are_kept(monkeypatch):
    monkeypatch.setattr(c4_report, "DOMAINS_KEPT", 2)
    tally = Tally()
    tally.domains.update({"b.org": 1, "a.org": 1, "c.org": 5})
    found = c4_report.stats(tally, {})
    assert (found["domains"], found["num_domains"]) == ({"c.org": 5, "a.org": 1}, 3)


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (2_000_000_000, "2 GB")],
)
def test_size(count, words):
    assert c4_report.size(count) == words
