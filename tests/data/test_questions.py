from t5x_lite.data.preprocessors import multirc, pad_punctuation, record, squad


def test_pad_punctuation_is_ascii_and_joins_white_space():
    assert pad_punctuation('He said:\t"3.5%"\n\nof it') == 'He said : " 3 . 5 % " of it'
    assert pad_punctuation("¿Qué? «oui» a\xa0b\x0bc_d") == "¿Qué ? «oui» a\xa0b\x0bc _ d"
    assert pad_punctuation("(x)") == " ( x ) "


def test_squad_pads_and_keeps_all_answers():
    fields = {
        "id": "56",
        "title": "Rain",
        "question": "Why is it wet?",
        "context": "It rained (a lot).",
        "answers": {"text": ["rained", "a lot)."], "answer_start": [3, 11]},
    }
    assert squad(fields) == {
        "inputs": "question: Why is it wet ? context: It rained ( a lot ) . ",
        "targets": "rained",
        "id": "56",
        "context": "It rained ( a lot ) . ",
        "question": "Why is it wet ? ",
        "answers": ["rained", "a lot ) . "],
    }
    closed = squad(fields, inputs="squad trivia question: {question}")
    assert closed["inputs"] == "squad trivia question: Why is it wet ? "


def test_squad_without_answers():
    fields = {"id": "7", "question": "Who?", "context": "Ann.", "answers": {"text": []}}
    assert squad(fields)["targets"] == "<unk>"
    assert squad(fields)["answers"] == []


def test_multirc_drops_html_and_keeps_the_three_numbers():
    fields = {
        "paragraph": "<b>Sent 1: </b>It rained.<br><b>Sent 2: </b>Ann left.<br>",
        "question": "Who <b>left</b>?",
        "answer": "Ann",
        "label": 1,
        "idx": {"paragraph": 3, "question": 14, "answer": 15},
    }
    assert multirc(fields) == {
        "inputs": (
            "multirc question: Who left? answer: Ann paragraph: Sent 1: It rained. Sent 2: "
            "Ann left. "
        ),
        "targets": "True",
        "idx/paragraph": 3,
        "idx/question": 14,
        "idx/answer": 15,
    }
    assert multirc({**fields, "label": -1})["targets"] == "<unk>"


RECORD = {
    "passage": 'It rained\n@highlight\nAnn left.\n@highlight\nBob "stayed"\n@highlight\nEnd',
    "query": "@placeholder stayed at home",
    "entities": ["Ann", "Bob", "Bob B."],
    "answers": ["Bob", "Bob B."],
    "idx": {"passage": 2, "query": 9},
}


def test_record_is_an_example_for_each_answer():
    inputs = (
        "record query: @placeholder stayed at home entities: Ann, Bob, Bob B. passage: "
        'It rained. Ann left. Bob "stayed" End'
    )
    both = {"idx/passage": 2, "idx/query": 9, "inputs": inputs, "answers": ["Bob", "Bob B."]}
    assert record(RECORD) == [{**both, "targets": "Bob"}, {**both, "targets": "Bob B."}]


def test_record_without_answers_is_one_example():
    (example,) = record({**RECORD, "answers": []})
    assert example["targets"] == "<unk>"
    assert example["answers"] == []


def test_record_highlights_end_sentences_that_have_no_end():
    def passage(text):
        (example,) = record({**RECORD, "passage": text, "answers": ["Bob"]})
        return example["inputs"].partition(" passage: ")[2]

    assert passage("a?\n@highlight\nb!\n@highlight\nc'\n@highlight\nd") == "a? b! c' d"
    assert passage("a\n@highlight\n\n@highlight\nb") == "a. . b"
    assert passage("a,\n@highlight\nb @highlight c") == "a,. b @highlight c"
