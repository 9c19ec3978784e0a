import pytest

from t5x_lite.c4.pages import (
    domain,
    host,
    is_validation,
    normalize_url,
    url_digest,
    url_md5,
    url_number,
)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://example.com", "example.com"),
        ("https://www.example.com/a/?utm_source=x&b=1", "example.com/a"),
        ("http://example.com/a?q=1", "example.com/a?q=1"),
        ("http://example.com/a?reference=1", "example.com/a"),
        ("http://example.com/a?feed=rss", "example.com/a"),
        ("http://example.com///", "example.com"),
        ("http://a.com/?u=http://www.b.com", "a.com/?u=b.com"),
        ("ftp://example.com/", "ftp://example.com"),
        ("", ""),
    ],
)
def test_normalize(url, expected):
    assert normalize_url(url) == expected


def test_hashes():
    assert url_md5("a") == "0cc175b9c0f1b6a831c399e269772661" == url_digest("a").hex()
    assert url_number("http://www.a/") == 0x0CC175B9C0F1B6A831C399E269772661
    assert len(url_md5("\ud800")) == 32


def test_validation_is_one_page_in_a_thousand():
    urls = [f"http://example.com/{number}" for number in range(20_000)]
    chosen = [url for url in urls if is_validation(url)]
    assert 10 < len(chosen) < 32
    assert all(is_validation(url.replace("http://", "https://www.") + "/") for url in chosen)
    assert not any(is_validation(url, modulus=0) for url in urls)
    assert all(is_validation(url, modulus=1) for url in urls)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://www.Example.com:8080/a?b#c", "www.example.com"),
        ("http://user:secret@example.com/", "example.com"),
        ("http://[2001:DB8::1]:80/", "[2001:db8::1]"),
        ("example.com/a@b", "example.com"),
        ("http://example.com.", "example.com"),
        ("http://", ""),
        ("", ""),
    ],
)
def test_host(url, expected):
    assert host(url) == expected


def test_domain_is_the_host_without_www():
    assert domain("https://www.example.com/a") == "example.com"
