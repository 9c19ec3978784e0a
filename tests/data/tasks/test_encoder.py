"""From documents to rows of an encoder, on the fly and from a cache."""

import dataclasses
import inspect
import itertools
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data import batches as data_batches
from t5x_lite.data.cache.making import write_cache
from t5x_lite.data.config import Data, TaskArguments
from t5x_lite.data.tasks.encoder import example_task, make_examples, pieces
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens
from t5x_lite.data.vocabularies.loading import load_vocabulary
from tests import tokenizer_files
from tests.batches import assert_equal_batches

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module", params=["wordpiece", "byte_level"])
def vocabulary(request, tmp_path_factory):
    """With padding 0, and with [CLS] 0 and padding 1."""
    write = getattr(tokenizer_files, f"write_{request.param}")
    return load_vocabulary(write(tmp_path_factory.mktemp("vocabulary")))


@pytest.fixture(scope="module")
def data(tmp_path_factory, english_lines):
    directory = tmp_path_factory.mktemp("documents")
    (directory / "prose.txt").write_text("\n\n".join(line[:150] for line in english_lines[:300]))
    return Data(
        task="tasks.encoder:documents",
        vocabulary="",
        directory=str(directory),
        layout=layouts.Encoder(),
        batch_size=4,
        inputs_length=64,
        shuffle=False,
        shuffle_buffer=16,
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory, data, vocabulary):
    directory = tmp_path_factory.mktemp("cache") / "encoder"
    index = write_cache(data, vocabulary, directory)
    assert index.recipe.stored == ("inputs",)
    assert (index.recipe.eos, index.recipe.eos_id) == ("after_trim", vocabulary.sep_id)
    assert index.recipe.lengths == {"inputs": 64}
    return str(directory)


def documents_of(batches):
    """The tokens of each segment of each row, in order."""
    found = []
    for batch in batches:
        rows = zip(batch["encoder_input_tokens"], batch["encoder_segment_ids"], strict=True)
        for tokens, segments in rows:
            found += [tokens[segments == i].tolist() for i in range(1, segments.max() + 1)]
    return found


def test_pieces_are_whole_sentences_of_one_document(tmp_path):
    vocabulary = load_vocabulary(tokenizer_files.write_wordpiece(tmp_path))
    tokens = encoder_tokens(vocabulary)
    texts = ["The dog. The dogs.\nThe run.", "", "Running dogs run the dog run"]
    found = pieces(texts, vocabulary=vocabulary, tokens=tokens, length=9)
    the, dog, s, run, ning, stop = (
        vocabulary.pieces().index(p) for p in ("the", "dog", "##s", "run", "##ning", ".")
    )
    assert found == [
        [2, the, dog, stop, the, dog, s, stop],
        [2, the, run, stop],
        [2, run, ning, dog, s, run, the, dog],
        [2, run],
    ]


def test_sentences_keep_the_space_before_them(tmp_path):
    vocabulary = load_vocabulary(tokenizer_files.write_byte_level(tmp_path))
    [found] = pieces(
        ["Dog. Running."], vocabulary=vocabulary, tokens=encoder_tokens(vocabulary), length=50
    )
    assert found == [0, *vocabulary.encode("Dog. Running.")]


def test_special_tokens_that_a_text_spells_out_are_none(vocabulary):
    tokens = encoder_tokens(vocabulary)
    cls, sep, mask, pad = (vocabulary.names[role] for role in ("cls", "sep", "mask", "pad"))
    text = f"dog {sep} run {cls} dog. {mask} {pad} run{sep}"
    [found] = pieces([text], vocabulary=vocabulary, tokens=tokens, length=60)
    special = {tokens.cls_id, tokens.sep_id, tokens.mask_id, tokens.pad_id}
    assert found[0] == tokens.cls_id
    assert not special & {*found[1:]}
    assert found.count(tokens.unk_id) == 5
    # What stands for [CLS] in another vocabulary is text.
    other = "</s>" if cls == "[CLS]" else "[SEP]"
    [row] = pieces([other], vocabulary=vocabulary, tokens=tokens, length=60)
    assert row == [tokens.cls_id, *vocabulary.encode(other)]


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.slow
def test_nothing_is_lost_and_no_document_sees_another(data, vocabulary, pack):
    data = dataclasses.replace(data, pack=pack)
    batches = list(data_batches.eval_batches(data, vocabulary, split="train"))
    tokens = encoder_tokens(vocabulary)
    text = Path(data.directory, "prose.txt").read_text()
    expected = pieces(text.split("\n\n"), vocabulary=vocabulary, tokens=tokens, length=64)
    train = {str(ids) for ids in documents_of(batches)}
    held_out = {str(ids) for ids in documents_of(data_batches.eval_batches(data, vocabulary))}
    assert train | held_out == {str([*ids, tokens.sep_id]) for ids in expected}
    assert held_out
    assert not train & held_out
    for batch in batches:
        ids, segments = batch["encoder_input_tokens"], batch["encoder_segment_ids"]
        real = segments > 0
        assert set(batch) == {
            *("encoder_input_tokens", "encoder_segment_ids"),
            *("encoder_positions", "encoder_word_ids"),
        }
        assert all(value.dtype == np.int32 and value.shape == (4, 64) for value in batch.values())
        assert (ids[~real] == tokens.pad_id).all()
        assert not batch["encoder_word_ids"][~real].any()
        assert segments.max() == 1 or pack
        starts = real & (batch["encoder_positions"] == 0)
        assert (starts == (ids == tokens.cls_id) & real).all()
        special = np.isin(ids, [tokens.cls_id, tokens.sep_id]) | ~real
        assert ((batch["encoder_word_ids"] == 0) == special).all()
        np.testing.assert_array_equal(batch["encoder_word_ids"], tokens.word_ids(ids) * real)
    if pack:
        assert np.mean([batch["encoder_segment_ids"] > 0 for batch in batches[:-1]]) > 0.85


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.slow
def test_a_saved_iterator_goes_on(data, vocabulary, pack):
    data = dataclasses.replace(data, pack=pack, shuffle=True)
    batches = data_batches.train_batches(data, vocabulary, seed=1)
    list(itertools.islice(batches, 5))
    state = batches.state()
    expected = list(itertools.islice(batches, 20))
    again = data_batches.train_batches(data, vocabulary, seed=1)
    again.restore(state)
    assert_equal_batches(list(itertools.islice(again, 20)), expected)


@pytest.mark.gate("wordpiece")
@pytest.mark.slow
def test_the_cache_gives_the_same_rows_in_every_epoch(data, vocabulary, cache):
    data = dataclasses.replace(data, pack=False)
    from_cache = dataclasses.replace(data, cache=cache)
    one = data_batches.train_batches(from_cache, vocabulary, seed=3)
    other = data_batches.train_batches(data, vocabulary, seed=3)
    assert_equal_batches(list(itertools.islice(one, 300)), list(itertools.islice(other, 300)))
    assert one.epoch == other.epoch > 1
    one.close()
    assert_equal_batches(
        list(data_batches.eval_batches(from_cache, vocabulary)),
        list(data_batches.eval_batches(data, vocabulary)),
    )


def test_packed_rows_of_the_cache_hold_the_same_documents(data, vocabulary, cache):
    from_cache = dataclasses.replace(data, cache=cache)
    expected = documents_of(data_batches.eval_batches(data, vocabulary, split="train"))
    found = list(data_batches.eval_batches(from_cache, vocabulary, split="train"))
    assert sorted(documents_of(found)) == sorted(expected)
    tokens = encoder_tokens(vocabulary)
    for batch in found:
        words = tokens.word_ids(batch["encoder_input_tokens"]) * (batch["encoder_segment_ids"] > 0)
        np.testing.assert_array_equal(batch["encoder_word_ids"], words)
    batches = data_batches.train_batches(from_cache, vocabulary, seed=0)
    next(batches)
    state, expected = batches.state(), next(batches)
    batches.restore(state)
    assert_equal_batches([next(batches)], [expected])
    batches.close()


@pytest.mark.gate("wordpiece")
@pytest.mark.slow
def test_a_cache_is_read_without_tensorflow(data, vocabulary, cache):
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['tensorflow', 'seqio', 'tensorflow_datasets']))\n"
        "from t5x_lite.data import batches as data_batches\n"
        "from t5x_lite import layouts\n"
        "from t5x_lite.data.config import Data\n"
        "from t5x_lite.data.vocabularies.loading import load_vocabulary\n"
        f"path = {cache!r} + '/vocabulary'\n"
        f"data = Data(vocabulary=path, cache={cache!r}, layout=layouts.Encoder(), "
        "inputs_length=64)\n"
        "batches = data_batches.train_batches(data, load_vocabulary(path), seed=0)\n"
        "print(next(batches)['encoder_word_ids'].shape)\n"
        "batches.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "(128, 64)\n"


def test_a_cache_of_other_lengths_or_another_layout_is_refused(data, vocabulary, cache):
    longer = dataclasses.replace(data, cache=cache, inputs_length=128)
    with pytest.raises(
        InputError, match=r"was written for data\.inputs_length 64, but data\.inputs_length is 128"
    ):
        data_batches.train_batches(longer, vocabulary, seed=0)
    other = dataclasses.replace(data, cache=cache, layout=layouts.Seq2Seq())
    with pytest.raises(
        InputError, match="seq2seq needs the features inputs and targets, but the task has"
    ):
        data_batches.train_batches(other, vocabulary, seed=0)


def test_rows_that_hold_nothing_are_refused(data, vocabulary):
    with pytest.raises(InputError, match=r"data\.inputs_length must be at least 8 for rows of an"):
        data_batches.train_batches(dataclasses.replace(data, inputs_length=7), vocabulary, seed=0)


DOCUMENTED = (ROOT / "docs" / "guides" / "encoder_task.md").read_text()


@pytest.fixture
def arguments(tmp_path, vocabulary):
    return TaskArguments(
        vocabulary=vocabulary, directory=str(tmp_path), inputs_length=12, targets_length=8
    )


def test_the_documented_task_of_ones_own(arguments, tmp_path):
    code = DOCUMENTED.split("```python\n# tasks/dialogues.py\n")[1].split("```")[0]
    module = {}
    exec(compile(code, "tasks/dialogues.py", "exec"), module)
    for name in ("train", "validation"):
        (tmp_path / f"{name}.txt").write_text("The dog\nDogs run\nRunning\n\nThe\n")
    task = module["lines"](arguments)
    dataset = task.get_dataset(sequence_length={"inputs": 12}, split="train", shuffle=False)
    found = [one["inputs"].tolist() for one in dataset.as_numpy_iterator()]
    if arguments.vocabulary.cls_id == 2:
        assert found == [[2, 5, 6, 3, 6, 7, 8, 3], [2, 6, 7, 8, 3, 8, 9, 3]]
    tokens = encoder_tokens(arguments.vocabulary)
    assert [(row[0], row[-1], row.count(tokens.sep_id)) for row in found] == [
        (tokens.cls_id, tokens.sep_id, 2)
    ] * 2


def test_the_docstring_has_the_documented_task():
    docstring = inspect.getdoc(example_task) or ""
    code = textwrap.dedent(docstring[docstring.index("    def lines(") :].split("\n\n    a raw")[0])
    shown = DOCUMENTED.split("def lines(")[1].split("```")[0]
    for line in filter(None, code.strip().splitlines()[1:]):
        assert line in shown


def test_numbers_texts_and_lists_of_raw_examples():
    import tensorflow as tf

    seen = []

    def make(raw):
        seen.extend(raw)
        for one in raw:
            yield [
                {"ids": range(n), "score": [n / 2], "words": one["names"][:n], "of": one["text"]}
                for n in range(one["number"])
            ]

    columns: Any = {
        "text": ["a", "", "\u00e9 "],
        "number": [1, 0, 2],
        "names": tf.ragged.constant([["x"], [], ["y", "z"]]),
        "numbers": [[1, 2], [3, 4], [5, 6]],
        "kept": [0.5, 1.5, float("nan")],
    }
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    fields = {"ids": np.int32, "score": np.float32, "words": list, "of": str}
    found = [
        *make_examples(
            dataset, make=make, fields=fields, drop=("text", "number")
        ).as_numpy_iterator()
    ]
    assert [[one["text"], one["number"], one["names"], one["numbers"]] for one in seen] == [
        ["a", 1, ["x"], [1, 2]],
        ["", 0, [], [3, 4]],
        ["\u00e9 ", 2, ["y", "z"], [5, 6]],
    ]
    assert [one["ids"].tolist() for one in found] == [[], [], [0]]
    assert [one["words"].tolist() for one in found] == [[], [], [b"y"]]
    assert [one["of"].decode() for one in found] == ["a", "\u00e9 ", "\u00e9 "]
    assert [one["names"].tolist() for one in found] == [[b"x"], [b"y", b"z"], [b"y", b"z"]]
    assert [one["numbers"].tolist() for one in found] == [[1, 2], [5, 6], [5, 6]]
    np.testing.assert_array_equal([one["kept"] for one in found], [0.5, np.nan, np.nan])
    dtypes = {name: value.dtype for name, value in found[0].items() if name in ("ids", "score")}
    assert dtypes == {"ids": np.int32, "score": np.float32}
    (alone, *_) = make_examples(dataset, make=make, fields={"of": str}).as_numpy_iterator()
    assert alone == {"of": b"a"}
    none = make_examples(dataset, make=lambda raw: [[] for _ in raw], fields=fields)
    assert [*none.as_numpy_iterator()] == []


def test_blocks_change_nothing(monkeypatch):
    import tensorflow as tf

    from t5x_lite.data.tasks import encoder

    sizes = []

    def make(raw):
        sizes.append(len(raw))
        return [[{"ids": [one["number"]] * place} for place in range(3)] for one in raw]

    found = {}
    for block in (1, 4, 100):
        monkeypatch.setattr(encoder, "_AT_A_TIME", block)
        dataset = tf.data.Dataset.range(9).map(lambda number: {"number": number})
        examples = make_examples(dataset, make=make, fields={"ids": np.int32})
        found[block] = [one["ids"].tolist() for one in examples.as_numpy_iterator()]
    assert found[1] == found[4] == found[100] == [[n] * k for n in range(9) for k in range(3)]
    assert sorted(sizes) == [1] * 10 + [4, 4, 9]


def test_a_raw_example_of_another_shape_is_refused():
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensors({"image": tf.zeros([2, 2])})
    with pytest.raises(InputError, match=r"the field 'image' of raw examples has the shape \(2, 2"):
        make_examples(dataset, make=lambda raw: [[] for _ in raw], fields={"inputs": np.int32})
