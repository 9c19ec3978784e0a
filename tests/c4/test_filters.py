import json

import pytest

from t5x_lite.c4.bad_words import DomainList, UrlList, load_domains, load_urls
from t5x_lite.c4.pages import Page, Tally
from t5x_lite.core.errors import InputError


def page(url):
    return Page(url, "Text.", "", "", "")


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("https://www.bbc.co.uk/news", None),
        ("https://bbc.co.uk/news", "bad_subdomain"),
        ("http://news.bbc.co.uk:80/", None),
        ("http://sport.bbc.co.uk/", "bad_subdomain"),
        ("http://a.b.Example.com/", None),
        ("http://notexample.com/", "bad_domain"),
        ("http://example.com.au/", "bad_domain"),
        ("", "bad_domain"),
    ],
)
def test_domains(tmp_path, url, rule):
    # "www." is stripped with the scheme, as in the reference, so the bare domain is listed as "".
    listed = {"bbc.co.uk": ["news"] + ([""] if "www" in url else []), "example.com": True}
    (tmp_path / "domains.json").write_text(json.dumps(listed))
    tally = Tally()
    found = load_domains(tmp_path / "domains.json").keep(page(url), tally)
    assert found == (None if rule else page(url))
    assert list(tally.rules.get("domains", {})) == ([rule] if rule else [])


@pytest.mark.parametrize("text", ["{", "[]", '{"a.com": 1}', '{"a.com": [1]}'])
def test_domains_that_are_none(tmp_path, text):
    path = tmp_path / "domains.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"cleaning\.domains"):
        load_domains(path)
    with pytest.raises(InputError, match="cannot read"):
        load_domains(tmp_path / "nothing.json")


def test_a_listed_domain_of_any_subdomain():
    words = DomainList({"a.com": True})
    assert words.keep(page("http://x.y.a.com"), Tally()) == page("http://x.y.a.com")


def test_urls(tmp_path):
    (tmp_path / "1.txt").write_text("http://www.a.com/x/\n\nhttps://b.com/?utm_source=1\n")
    (tmp_path / "2.txt").write_text("http://c.com")
    (tmp_path / "notes.md").write_text("http://d.com")
    urls = load_urls(tmp_path)
    assert len(urls) == 3
    tally = Tally()
    stays = [
        urls.keep(page(url), tally) is not None
        for url in (
            "https://a.com/x",
            "http://b.com",
            "http://c.com/",
            "http://d.com",
            "http://a.com",
        )
    ]
    assert stays == [True, True, True, False, False]
    assert tally.rules["urls"]["unlisted_url"]["pages"] == 2
    assert len(load_urls(tmp_path / "2.txt")) == 1


def test_urls_that_are_none(tmp_path):
    with pytest.raises(InputError, match="has no URLs"):
        load_urls(tmp_path)
    with pytest.raises(InputError, match="cannot read"):
        load_urls(tmp_path / "nothing.txt")
    assert UrlList([]).keep(page("http://a.com"), Tally()) is None
