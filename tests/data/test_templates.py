import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.preprocessors import fill, places, prompt, rewrite


def test_prompt_names_the_task_and_its_fields_in_order():
    assert prompt("sst2", {"sentence": "it 's charming . "}) == "sst2 sentence: it 's charming . "
    assert prompt("rte", {"sentence1": "a", "sentence2": "b"}) == "rte sentence1: a sentence2: b"


def test_fill_puts_fields_in_their_places():
    fields = {"a": "{b} \\1", "#1 String": "x", "n": 3}
    assert fill("{a} and {#1 String}, {n}", fields) == "{b} \\1 and x, 3"
    assert fill("{{{n}}} {{a}}", fields) == "{3} {a}"
    assert fill("no place", {}) == "no place"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{text}: {label}",
            r"'\{text\}: \{label\}' names the field 'label', but the fields are text, stars",
        ),
        ("{text", r"has a single brace \{; write \{\{"),
        ("text}", r"has a single brace \}; write \}\}"),
        ("{}", r"names the field ''"),
    ],
)
def test_a_template_that_does_not_fit_is_refused(template, message):
    with pytest.raises(InputError, match=message):
        fill(template, {"text": "a", "stars": "5"})


def test_places_are_the_fields_of_a_template():
    assert places("{b} {a} {b} {{c}} {d e}") == ("b", "a", "d e")


def test_rewrite_is_two_templates():
    record = {"en": "That is good.", "de": "Das ist gut."}
    assert rewrite(record, inputs="translate English to German: {en}", targets="{de}") == {
        "inputs": "translate English to German: That is good.",
        "targets": "Das ist gut.",
    }
