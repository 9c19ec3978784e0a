import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.preprocessors import (
    definite_pronoun_resolution,
    marked_pronoun,
    wnli_simple,
    wsc,
    wsc_simple,
)

WSC = {
    "text": "Mitchell asked Tom if he could lend some money .",
    "span1_text": "Tom",
    "span1_index": 2,
    "span2_text": "he",
    "span2_index": 4,
    "label": 1,
    "idx": 3,
}


def test_wsc_simple_marks_the_pronoun_and_asks_for_the_noun():
    assert wsc_simple(WSC) == {
        "inputs": "wsc: Mitchell asked Tom if *he* could lend some money .",
        "targets": "Tom",
        "label": 1,
        "idx": 3,
    }
    assert wsc_simple({**WSC, "label": 0})["targets"] == "Tom"
    ended = {**WSC, "text": "Ann saw Tom and met him", "span2_text": "him", "span2_index": 5}
    assert wsc_simple(ended)["inputs"] == "wsc: Ann saw Tom and met *him* "


@pytest.mark.parametrize(
    ("text", "pronoun", "expected"),
    [
        (
            "The boy continued to whip the pony , and eventually the pony threw him over. John "
            'laughed out quite loud. "Good for him," he said. ',
            "him",
            "The boy continued to whip the pony , and eventually the pony threw him over. John "
            'laughed out quite loud. "Good for *him* ," he said.',
        ),
        (
            "When they had eventually calmed down a bit , and had gotten home, Mr. Farley put the "
            "magic pebble in an iron safe . Some day they might want to use it , but really for "
            "now, what more could they wish for?",
            "it",
            "When they had eventually calmed down a bit , and had gotten home, Mr. Farley put the "
            "magic pebble in an iron safe . Some day they might want to use *it* , but really for "
            "now, what more could they wish for?",
        ),
    ],
)
def test_the_two_texts_whose_pronoun_is_not_at_its_index(text, pronoun, expected):
    record = {**WSC, "text": text, "span2_text": pronoun, "span2_index": 28}
    assert wsc_simple(record)["inputs"] == f"wsc: {expected}"


@pytest.mark.parametrize("index", [0, 3, 99])
def test_a_pronoun_that_is_not_at_its_index_is_refused(index):
    with pytest.raises(InputError, match=f"WSC 3: word {index} of .* is not the pronoun 'he'"):
        wsc_simple({**WSC, "span2_index": index})


@pytest.mark.parametrize(
    ("text", "pronoun", "index", "expected"),
    [
        ("He saw Tom if he slept .", "he", 4, "He saw Tom if *he* slept ."),
        ("He saw Tom if he slept .", "He", 0, "*He* saw Tom if he slept ."),
        ('Tom hid him. "Good for him," he said.', "him", 5, 'Tom hid him. "Good for *him*," he'),
        ("Tom met  him", "him", 2, "Tom met  *him*"),
        ("The hen , he said , went if he left", "he", 6, "The hen , he said , went if *he* left"),
        ("because theyscold", "they", 1, "because *they*scold"),
    ],
)
def test_the_pronoun_nearest_to_its_index_is_marked(text, pronoun, index, expected):
    record = {**WSC, "text": text, "span2_text": pronoun, "span2_index": index}
    assert marked_pronoun(record).startswith(expected)


@pytest.mark.parametrize("change", [{"span2_index": 99}, {"span2_text": "she"}, {"span2_text": ""}])
def test_a_pronoun_that_is_nowhere_near_is_not_marked(change):
    record = {**WSC, **change}
    with pytest.raises(InputError, match=r"WSC 3: word \d+ of 'Mitchell .* is not the pronoun"):
        marked_pronoun(record)
    far = {**WSC, "text": "he " + "went " * 12, "span2_index": 11}
    with pytest.raises(InputError, match="word 11 of"):
        marked_pronoun(far)
    assert marked_pronoun({**far, "span2_index": 9}).startswith("*he* went")


def test_wsc_marks_both_spans():
    record = {
        "text": "This is a test sentence .",
        "span1_text": "test",
        "span1_index": 3,
        "span2_text": "This",
        "span2_index": 0,
        "label": 0,
        "idx": 0,
    }
    assert wsc(record) == {
        "inputs": "wsc text: # This # is a * test * sentence .",
        "targets": "False",
        "idx": 0,
    }
    assert wsc(WSC)["inputs"] == (
        "wsc text: Mitchell asked * Tom * if # he # could lend some money ."
    )
    assert wsc({**WSC, "span1_index": 1})["inputs"] == (
        "wsc text: Mitchell asked Tom if he could lend some money ."
    )


def test_dpr_marks_the_first_pronoun_and_asks_for_the_right_candidate():
    record = {
        "sentence": "The cat saw the dog, it hissed and it ran.",
        "pronoun": "it",
        "candidates": ["The cat", "The dog"],
        "label": 0,
    }
    assert definite_pronoun_resolution(record) == {
        "inputs": "wsc: The cat saw the dog, *it* hissed and it ran.",
        "targets": "The cat",
    }
    ended = {**record, "sentence": "It is Ann who saw it.", "label": 1}
    assert definite_pronoun_resolution(ended) == {
        "inputs": "wsc: It is Ann who saw *it*.",
        "targets": "The dog",
    }


@pytest.mark.parametrize(
    ("premise", "hypothesis", "inputs", "targets"),
    [
        (
            "The fish ate the worm. It was tasty.",
            "The worm was tasty.",
            "The fish ate the worm. *It* was tasty.",
            "The worm",
        ),
        (
            "Ann thanked Bob because he had helped her.",
            "Bob had helped her.",
            "Ann thanked Bob because *he* had helped her.",
            "Bob",
        ),
        (
            "Ann thanked Bob because he had helped her.",
            "Bob had helped Ann.",
            "Ann thanked Bob because *he* had helped her.",
            "Bob",
        ),
        (
            "Jane lost her hat and blamed Joan for it.",
            "Jane lost Jane's hat.",
            "Jane lost *her* hat and blamed Joan for it.",
            "Jane",
        ),
        (
            "The trophy does not fit in the case because it, sadly, is too big.",
            "The trophy sadly, is too big.",
            "The trophy does not fit in the case because *it* , sadly, is too big.",
            "The trophy",
        ),
    ],
)
def test_wnli_finds_the_pronoun_and_the_noun(premise, hypothesis, inputs, targets):
    record = {"sentence1": premise, "sentence2": hypothesis, "label": 1, "idx": 8}
    assert wnli_simple(record) == {
        "inputs": f"wsc: {inputs}",
        "targets": targets,
        "premise": premise,
        "hypothesis": hypothesis,
        "label": 1,
        "idx": 8,
    }


def test_wnli_without_a_pronoun_is_refused():
    record = {"sentence1": "Ann thanked Bob.", "sentence2": "Bob.", "label": 0, "idx": 8}
    with pytest.raises(
        InputError, match=r"WNLI example 8: the premise 'Ann thanked Bob\.' contains no"
    ):
        wnli_simple(record)
