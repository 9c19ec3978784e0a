import dataclasses
import itertools
import json

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError


@pytest.fixture(scope="module")
def text():
    from tasks import text

    return text


@pytest.fixture
def arguments(tmp_path, vocabulary, english_lines):
    """Twenty lines to train on."""
    from t5x_lite.data.config import TaskArguments

    (tmp_path / "train.txt").write_text("\n".join(english_lines[:20]))
    (tmp_path / "validation.txt").write_text("A line.\n")
    return TaskArguments(
        vocabulary=vocabulary, directory=str(tmp_path), inputs_length=24, targets_length=20
    )


def examples(task, arguments, *, epochs=1):
    lengths = {"inputs": arguments.inputs_length, "targets": arguments.targets_length}
    dataset = task.get_dataset(lengths, "train", shuffle=False, num_epochs=epochs)
    return list(dataset.as_numpy_iterator())


def test_of_fewer_files_about_every_hundredth_line_is_held_out(text, tmp_path):
    lines_and_blanks = "".join(f"{i}\n\n" for i in range(2000))
    (tmp_path / "a.txt").write_text(lines_and_blanks + "7\n" * 5)
    source = text.source(str(tmp_path))

    def lines(split):
        dataset = source.get_dataset(split, shuffle=False)
        return [int(e["text"]) for e in dataset.as_numpy_iterator()]

    train, validation = lines("train"), lines("validation")
    assert sorted({*train, *validation}) == list(range(2000))
    assert not {*train} & {*validation}
    assert 10 < len({*validation}) < 40
    assert validation == lines("validation")


def test_language_model_is_the_text_in_chunks_with_eos(text, arguments, english_lines):
    found = [e["targets"] for e in examples(text.language_model(arguments), arguments)]
    assert all(len(row) == 20 and row[-1] == 1 for row in found[:-1])
    tokens = itertools.chain(*(arguments.vocabulary.encode(line) for line in english_lines[:20]))
    assert np.concatenate([row[:-1] for row in found]).tolist() == list(tokens)


def test_language_model_has_no_inputs(text, arguments):
    task = text.language_model(arguments)
    assert set(task.output_features) == {"targets"}
    assert set(examples(task, arguments)[0]) == {"targets"}


def test_prefix_lm_splits_chunks_of_one_document_each(text, arguments, english_lines):
    found = examples(text.prefix_lm(arguments), arguments)
    texts = [[*e["inputs"][:-1], *e["targets"][:-1]] for e in found]
    assert all(e["inputs"][-1] == e["targets"][-1] == 1 for e in found)
    assert all(len(e["inputs"]) > 1 and len(e["targets"]) > 1 for e in found)
    expected = []
    for line in english_lines[:20]:
        tokens = arguments.vocabulary.encode(line)
        chunks = [tokens[start : start + 18] for start in range(0, len(tokens), 18)]
        expected += [chunk for chunk in chunks if len(chunk) > 1]
    assert texts == expected
    assert len({len(e["inputs"]) for e in found}) > 5


def test_prefix_lm_splits_elsewhere_in_the_next_epoch(text, arguments):
    found = examples(text.prefix_lm(arguments), arguments, epochs=2)
    half = len(found) // 2
    first, second = ([len(e["inputs"]) for e in part] for part in (found[:half], found[half:]))
    assert first != second
    again = examples(text.prefix_lm(arguments), arguments)
    assert first == [len(e["inputs"]) for e in again]


@pytest.mark.slow
def test_two_chunks_just_fill_a_row_of_the_prefix_lm_layout(text, arguments):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.config import Data

    data = Data(
        task="tasks.text:prefix_lm",
        vocabulary="",
        directory=arguments.directory,
        layout=layouts.PrefixLM(),
        batch_size=1,
        inputs_length=8,
        targets_length=8,
    )
    batches = itertools.islice(data_batches.train_batches(data, arguments.vocabulary, seed=0), 50)
    filled = [(batch["decoder_segment_ids"] > 0).mean() for batch in batches]
    assert np.mean(filled) > 0.95
    assert filled.count(1.0) > 25


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("language_model", "data.targets_length must be at least 3 for this task: got 2"),
        ("prefix_lm", "data.inputs_length and data.targets_length must be at least 4 for"),
    ],
)
def test_lengths_that_hold_no_chunk_are_refused(text, arguments, name, message):
    with pytest.raises(InputError, match=message):
        getattr(text, name)(dataclasses.replace(arguments, targets_length=2))


@pytest.mark.parametrize(
    "name",
    [
        "final span_corruption",
        "final iid_50_u_u",
        "all_permute",
        "iid_15_d_d",
        "iid_15_m_f",
        "iid_15_r10s90_f",
        "iid_50_u_u",
        "language_model",
        "prefix_lm",
        "span_10_15_u_u",
        "ul2",
    ],
)
@pytest.mark.slow
def test_a_cache_gives_the_same_examples(text, arguments, name):
    from t5x_lite.data.cache.recipe import Recipe, recipe_of
    from t5x_lite.data.config import Data

    lengths = {"inputs": 32, "targets": 40}
    sizes = {f"{side}_length": length for side, length in lengths.items()}
    final, _, name = name.rpartition(" ")
    sizes["final_sentinel"] = bool(final)
    task = getattr(text, name)(dataclasses.replace(arguments, **sizes, seed=3))
    data = Data(task=f"tasks.text:{name}", vocabulary="", **sizes)
    made = recipe_of(data, arguments.vocabulary, task, bake=False)
    recipe = Recipe.from_json(json.loads(json.dumps(made.to_json())))
    assert recipe == made
    assert recipe.options.get("final_sentinel", False) is bool(final)
    source = task.source.get_dataset("train", shuffle=False)
    stored = list(task.preprocess_precache(source).as_numpy_iterator())
    on_the_fly = task.get_dataset(lengths, "train", shuffle=False, num_epochs=2)
    number = 0
    for number, expected in enumerate(on_the_fly.as_numpy_iterator(), start=1):
        epoch, index = divmod(number - 1, len(stored))
        key = {"lengths": lengths, "seed": 3}
        found = recipe.example(stored[index], **key, epoch=epoch, index=index)
        assert found.keys() == set(task.output_features)
        for feature, tokens in found.items():
            assert tokens.tolist() == expected[feature].tolist()
        counts = np.array([[len(stored[index][feature]) for feature in recipe.stored]])
        keys = {"epochs": np.array([epoch]), "indices": np.array([index])}
        assert recipe.example_lengths(counts, **key, **keys).tolist() == [
            [len(tokens) for tokens in found.values()]
        ]
    assert number == 2 * len(stored)
