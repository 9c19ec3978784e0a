"""Rules: the pairs of hand-made documents."""

import pytest

from t5x_lite.retrieval.pairs import RULES, Document


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


def ict(text, *, title="", where="f:1", seed=0):
    record = {"text": text, "title": title} if title else {"text": text}
    return [raw[:2] for raw in RULES["ict"](Document(where, record, seed))]


def test_inverse_cloze_is_a_sentence_and_the_rest_of_its_passage():
    text = "One is here. Two\n is there! Three is?"
    whole = ["One is here.", "Two is there!", "Three is?"]
    found = [one for seed in range(3000) for one in ict(text, title="T", seed=seed)]
    assert len(found) == 3000
    kept = [one for one in found if one[1] == "T " + " ".join(whole)]
    for query, passage in found:
        rest = " ".join(["T", *(one for one in whole if one != query)])
        assert query in whole
        assert passage == rest or (query, passage) in kept
    assert 240 < len(kept) < 360  # 0.1 of 3000, within 3.6 deviations
    for sentence in whole:
        assert 880 < sum(query == sentence for query, _ in found) < 1120


def test_inverse_cloze_depends_on_the_seed_and_the_passage_alone():
    text = " ".join(f"Sentence {i} is one of many." for i in range(400))
    first = ict(text)
    assert first == ict(text, where="g:7")
    assert first != ict(text, seed=1)
    sizes = [len(f"{query} {passage}".split()) for query, passage in first]
    assert len(first) == 13  # of 2,400 words, 33 sentences of 6 words each
    assert max(sizes) <= 198 + 6
    assert ict("Alone.") == ict("") == []
    assert len(ict("一二三。" * 120)) == 2  # ideographs count one by one: 198 and 162
    assert {*ict("一二。三四。")} < {
        ("一二。", "三四。"),
        ("三四。", "一二。"),
        ("一二。", "一二。三四。"),
        ("三四。", "一二。三四。"),
    }


def test_a_sentence_longer_than_a_passage_is_one():
    long = "word " * 300 + "end."
    assert ict(f"{long} A short one. Another one.") == ict("A short one. Another one.")
