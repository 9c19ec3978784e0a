import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.data.cache.recipe import Recipe
from t5x_lite.data.denoising import span_corruption

LENGTHS = {"inputs": 5, "targets": 4}
SUPERVISED = Recipe(
    stored=("inputs", "targets"),
    outputs={"inputs": True, "targets": True},
    eos="after_trim",
    eos_id=1,
)
SPANS = Recipe(
    stored=("tokens",),
    outputs={"inputs": True, "targets": True},
    eos="after_trim",
    eos_id=1,
    corruption="span_corruption",
    options={"sentinel_start": 99},
    lengths={"inputs": 5, "targets": 4},
)
ENDED = dataclasses.replace(SPANS, options={"sentinel_start": 99, "final_sentinel": True})
PREFIX = dataclasses.replace(SPANS, corruption="prefix_split", options={})
WORDS = dataclasses.replace(SUPERVISED, outputs={"inputs": False, "targets": True}, ending=(50, 51))
KEY = {"seed": 3, "epoch": 2, "index": 5}


def ids(*tokens):
    return np.array(tokens, np.int32)


def example(recipe, stored):
    found = recipe.example(stored, lengths=LENGTHS, **KEY)
    assert all(value.dtype == np.int32 for value in found.values())
    return {name: value.tolist() for name, value in found.items()}


STORED = {"inputs": ids(7, 8, 9, 10, 11, 12), "targets": ids(3)}


@pytest.mark.parametrize(
    ("eos", "inputs", "targets"),
    [
        ("after_trim", [7, 8, 9, 10, 1], [3, 1]),
        ("before_trim", [7, 8, 9, 10, 11], [3, 1]),
        ("none", [7, 8, 9, 10, 11], [3]),
    ],
)
def test_trimming_and_eos(eos, inputs, targets):
    recipe = dataclasses.replace(SUPERVISED, eos=eos)
    assert example(recipe, STORED) == {"inputs": inputs, "targets": targets}


def test_eos_ends_the_features_that_ask_for_it():
    recipe = dataclasses.replace(SUPERVISED, outputs={"inputs": False, "targets": True})
    assert example(recipe, STORED) == {"inputs": [7, 8, 9, 10, 11], "targets": [3, 1]}


def test_words_end_the_inputs_in_place_of_eos():
    assert example(WORDS, STORED) == {"inputs": [7, 8, 9, 50, 51], "targets": [3, 1]}
    whole = WORDS.example(STORED, lengths={}, **KEY)
    assert whole["inputs"].tolist() == [7, 8, 9, 10, 11, 12, 50, 51]
    assert "ending" not in SUPERVISED.to_json()
    with pytest.raises(ValueError, match="the recipe field ending requires inputs without EOS"):
        dataclasses.replace(SUPERVISED, ending=(50,))


def test_the_corruption_has_the_examples_own_key():
    tokens = ids(*range(10, 16))
    expected = span_corruption(tokens, sentinel_start=99, **KEY)
    assert example(SPANS, {"tokens": tokens}) == {
        "inputs": [*expected["inputs"][:4], 1],
        "targets": [*expected["targets"][:3], 1],
    }


def test_which_recipes_can_end_in_a_sentinel():
    can = [each.can_end_in_sentinel for each in (SUPERVISED, SPANS, ENDED, PREFIX)]
    assert can == [False, True, True, False]


@given(
    st.sampled_from(["after_trim", "before_trim", "none"]),
    st.sampled_from([SUPERVISED, SPANS, ENDED, PREFIX, WORDS]),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8),
)
def test_the_lengths_are_known_before(eos, recipe, counts):
    recipe = dataclasses.replace(recipe, eos=eos)
    counts = np.array(counts)[:, : len(recipe.stored)]
    numbers = np.arange(len(counts))
    found = recipe.example_lengths(
        counts, lengths=LENGTHS, seed=3, epochs=numbers % 3, indices=numbers
    )
    expected = []
    for i, sizes in enumerate(counts):
        stored = {
            name: np.arange(size, dtype=np.int32) + 2
            for name, size in zip(recipe.stored, sizes, strict=True)
        }
        made = recipe.example(stored, lengths=LENGTHS, seed=3, epoch=i % 3, index=i)
        expected.append([len(made["inputs"]), len(made["targets"])])
    assert found.tolist() == expected


@pytest.mark.parametrize("recipe", [SUPERVISED, SPANS, ENDED, PREFIX, WORDS])
def test_json_gives_it_back(recipe):
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corruption": "shuffle"}, "corruption must be one of"),
        ({"stored": ["inputs"]}, "stored must be"),
        ({"outputs": {}, "corruption": "", "stored": []}, "stored must be"),
    ],
)
def test_what_is_no_recipe_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Recipe.from_json(SPANS.to_json() | change)
