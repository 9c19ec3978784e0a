import base64
import hashlib
import re

from t5x_lite.serve.page import PAGE_HEADERS, page

EXAMPLES = {
    "predict": {"inputs": ["a", "b </script>"]},
    "rerank": {"query": 'a "q"', "texts": ["x"]},
}


def test_every_endpoint_has_a_form_of_its_example():
    html = page("work/<run>", EXAMPLES, needs_token=False)
    assert "<title>work/&lt;run&gt;</title>" in html
    assert '<textarea name="inputs">a\nb &lt;/script&gt;</textarea>' in html
    assert '<input name="query" value="a &quot;q&quot;">' in html
    assert re.findall(r'<form data-name="(\w+)"', html) == ["predict", "rerank"]
    assert 'id="token"' not in html
    assert 'id="token" type="password"' in page("x", EXAMPLES, needs_token=True)


def test_nothing_comes_from_outside():
    html = page("x", EXAMPLES, needs_token=True)
    assert re.findall(r'(?:src|href)=("[^"]*")', html) == ['"data:,"']
    assert "//" not in html
    policy = PAGE_HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    [script] = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
