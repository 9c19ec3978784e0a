"""Rules: the pairs of hand-made documents."""

import pytest

from t5x_lite.retrieval.pair_rules import RULES, Document


@pytest.mark.parametrize(
    ("rule", "record", "pairs"),
    [
        ("title_body", {"title": "T", "text": "B"}, [("T", "B")]),
        ("title_body", {"text": "T\nB\nC", "lang": "en"}, [("T", "B\nC", ("en", "en"))]),
        ("title_body", {"text": "alone"}, []),
        ("title_abstract", {"title": "T", "abstract": "A", "text": "x"}, [("T", "A")]),
        ("title_abstract", {"title": "T"}, []),
        ("question_answer", {"question": "Q", "answer": "A"}, [("Q", "A")]),
        ("question_answer", {"question": "Q", "answers": ["A", 1, "B"]}, [("Q", "A"), ("Q", "B")]),
        ("question_answer", {"question": "Q", "answers": {"text": ["A"]}}, [("Q", "A")]),
        ("instruction_output", {"instruction": "I", "input": "J", "output": "O"}, [("I\nJ", "O")]),
        ("instruction_output", {"inputs": "I", "targets": "O"}, [("I", "O")]),
        ("heading_section", {"sections": [{"heading": "H", "text": "S"}, 3]}, [("H", "S")]),
        (
            "heading_section",
            {"text": "lead\n# H\none\ntwo\n== I ==\nthree\n## J ##\n"},
            [("H", "one\ntwo"), ("I", "three")],
        ),
        ("code_docstring", {"docstring": "D", "code": "C"}, [("D", "C")]),
        (
            "code_docstring",
            {"func_documentation_string": "D", "func_code_string": "C"},
            [("D", "C")],
        ),
        (
            "parallel",
            {"src": "S", "tgt": "T", "langs": ["en", "de"]},
            [("S", "T", ("en", "de")), ("T", "S", ("de", "en"))],
        ),
        (
            "parallel",
            {"translation": {"en": "S", "de": "T"}},
            [("S", "T", ("en", "de")), ("T", "S", ("de", "en"))],
        ),
        ("parallel", {"src": "S", "tgt": " "}, []),
    ],
)
def test_pairs_of_a_document(rule, record, pairs):
    found = [tuple(raw) for raw in RULES[rule](Document("f:1", record))]
    assert found == [(*pair, ("", ""))[:3] for pair in pairs]


def test_two_sentences_of_a_paragraph():
    record = {"text": "One is. Two is! Three is?\nalone.\n一。二。"}
    found = [raw[:2] for raw in RULES["sentences"](Document("f:1", record))]
    assert len(found) == 2
    assert {*found[0]} < {"One is.", "Two is!", "Three is?"}
    assert {*found[1]} == {"一。", "二。"}
    others = {next(iter(RULES["sentences"](Document(f"f:{i}", record))))[:2] for i in range(40)}
    assert len(others) == 6
