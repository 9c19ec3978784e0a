import base64
import hashlib
import html.parser
import re

from t5x_lite.serve.app import PAGE_HEADERS, page

EXAMPLES = {
    "predict": {"inputs": ["a", "b </script>"]},
    "rerank": {"query": 'a "q"', "texts": ["x"]},
}


def test_every_endpoint_has_a_form_of_its_example():
    content = page("work/<run>", EXAMPLES, needs_token=False)
    assert "<title>work/&lt;run&gt;</title>" in content
    assert '<textarea name="inputs">a\nb &lt;/script&gt;</textarea>' in content
    assert '<input name="query" value="a &quot;q&quot;">' in content
    assert re.findall(r'<form data-name="(\w+)"', content) == ["predict", "rerank"]
    assert 'id="token"' not in content
    assert 'id="token" type="password"' in page("x", EXAMPLES, needs_token=True)


class Tags(html.parser.HTMLParser):
    """Collects the tags that are open, the ids, and the fields of each form."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.fields = [], [], {}

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []
        if tag == "form":
            self.form = self.fields.setdefault(values["data-name"], {})
        elif tag in ("input", "textarea") and "name" in values:
            self.form[values["name"]] = values.get("type", tag)
        if tag not in ("meta", "link", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_tags_are_closed_and_the_script_finds_its_elements():
    examples = {**EXAMPLES, "head": {"inputs": "a", "choices": ["b"], "probabilities": False}}
    tags = Tags()
    content = page("x", examples, needs_token=True)
    tags.feed(content)
    assert tags.open == []
    assert len(set(tags.ids)) == len(tags.ids)
    assert set(re.findall(r'getElementById\("(\w+)"\)', content)) == set(tags.ids)
    assert {name: set(fields) for name, fields in tags.fields.items()} == {
        name: set(example) for name, example in examples.items()
    }
    assert tags.fields["head"] == {
        "inputs": "input",
        "choices": "textarea",
        "probabilities": "checkbox",
    }


def test_nothing_comes_from_outside():
    content = page("x", EXAMPLES, needs_token=True)
    assert re.findall(r'(?:src|href)=("[^"]*")', content) == ['"data:,"']
    assert "//" not in content
    policy = PAGE_HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    [script] = re.findall(r"<script>(.*?)</script>", content, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
