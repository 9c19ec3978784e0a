import functools
import itertools
import json

import numpy as np
import pytest

from t5x_lite.errors import InputError


@pytest.fixture(scope="module")
def stages():
    from t5x_lite.data import stages

    return stages


@pytest.fixture(scope="module")
def tf():
    from t5x_lite.data.quiet_tensorflow import tf

    return tf


@pytest.fixture(scope="module")
def vocabulary(tiny_vocabulary):
    from t5x_lite.data.vocabulary import load_vocabulary

    return load_vocabulary(tiny_vocabulary)


def texts(dataset):
    return [example["text"].decode() for example in dataset.as_numpy_iterator()]


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_text_lines_skips_blank_lines_and_strips_the_others(stages, tmp_path):
    file = write(tmp_path / "a.txt", "one\n\n  two \r\n \nthree é")
    assert texts(stages.text_lines([file])) == ["one", "two", "three é"]


def test_text_lines_reads_files_in_turn_by_128_lines(stages, tmp_path):
    a = write(tmp_path / "a.txt", "\n".join(f"a{i}" for i in range(130)))
    b = write(tmp_path / "b.txt", "\n".join(f"b{i}" for i in range(2)))
    found = texts(stages.text_lines([a, b]))
    assert found[:128] == [f"a{i}" for i in range(128)]
    assert found[128:] == ["b0", "b1", "a128", "a129"]


def test_text_lines_keeps_the_lines_that_are_wanted(stages, tmp_path):
    file = write(tmp_path / "a.txt", "0\n1\n2\n3\n4")
    assert texts(stages.text_lines([file], keep=lambda texts: (texts == "1") | (texts == "3"))) == [
        "1",
        "3",
    ]


def test_text_lines_reads_the_text_field_of_json_lines(stages, tmp_path):
    a = write(tmp_path / "a.jsonl", '{"text": "one\\ntwo", "url": "x"}\n\n{"text": "é"}\n')
    b = write(tmp_path / "b.txt", '{"text": "as it stands"}\n')
    assert texts(stages.text_lines([a, b])) == ["one\ntwo", "é", '{"text": "as it stands"}']


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"good\n\ncaf\xe9 bad\n", "a.txt:3: not UTF-8"),
        ("a.txt", b"good\n" * 200 + b"\xff\n", "a.txt:201: not UTF-8"),
        (
            "a.jsonl",
            b'{"text": "good"}\n\n{"text": \n',
            "a.jsonl:3: not JSON (Expecting value at column 9)",
        ),
        ("a.jsonl", b"[" * 100_000, "a.jsonl:1: not JSON that can be read (maximum recursion"),
        ("a.jsonl", b'{"txt": "x"}\n', "a.jsonl:1: must have \"text\"; it has ['txt']"),
        ("a.jsonl", b"{}\n", 'a.jsonl:1: must have "text"; it has nothing'),
        ("a.jsonl", b"[1]\n", "a.jsonl:1: must be a JSON object, got list"),
        ("a.jsonl", b'{"text": 7}\n', 'a.jsonl:1: "text" must be a string, got int'),
    ],
)
def test_a_bad_line_is_named(stages, tf, tmp_path, name, content, message):
    file = write(tmp_path / name, content)
    with pytest.raises(tf.errors.OpError) as caught:
        texts(stages.text_lines([file]))
    error = stages.input_error(caught.value)
    assert isinstance(error, InputError)
    assert message in str(error)
    assert "\n" not in str(error)


def test_a_byte_order_mark_is_no_part_of_the_text(stages, tmp_path):
    mark = "\ufeff"
    a = write(tmp_path / "a.txt", f"{mark}one\n{mark}two, whose mark is not at the start\n")
    b = write(tmp_path / "b.jsonl", f'{mark}{{"text": "three"}}\n')
    assert texts(stages.text_lines([a, b])) == [
        "one",
        f"{mark}two, whose mark is not at the start",
        "three",
    ]


def test_a_file_that_cannot_be_read_is_the_users_and_a_wrong_shape_is_not(stages, tf, tmp_path):
    file = write(tmp_path / "a.txt", "one")
    dataset = stages.text_lines([file])
    file.unlink()
    with pytest.raises(InputError, match=r"cannot read .*a\.txt: No such file or directory"):
        stages.text_lines([file])
    with pytest.raises(tf.errors.OpError) as caught:
        texts(dataset)
    error = stages.input_error(caught.value)
    assert isinstance(error, InputError)
    assert "a.txt" in str(error)
    ours = tf.errors.InvalidArgumentError(None, None, "shapes do not match")
    assert stages.input_error(ours) is ours


def test_map_numpy_gives_what_the_function_gives_in_order(stages, tf):
    dataset = tf.data.Dataset.range(5).map(lambda n: {"n": n, "name": tf.strings.as_string(n)})
    signature = {
        "sum": tf.TensorSpec([], tf.int32),
        "row": tf.TensorSpec([None], tf.int64),
        "text": tf.TensorSpec([], tf.string),
    }

    def function(example):
        n = example["n"]
        return {"sum": n + 1, "row": np.arange(n), "text": example["name"] + b"!"}

    found = stages.map_numpy(dataset, function, signature)
    assert found.element_spec == signature
    assert [int(e["sum"]) for e in found.as_numpy_iterator()] == [1, 2, 3, 4, 5]
    last = list(found.as_numpy_iterator())[-1]
    assert last["row"].tolist() == [0, 1, 2, 3]
    assert last["text"] == b"4!"


def test_documents_are_concatenated_in_groups_and_split(stages, tf, vocabulary):
    documents = [f"document number {i} has these words" for i in range(300)]
    dataset = tf.data.Dataset.from_tensor_slices({"text": documents})
    features = stages.features(vocabulary)
    found = stages.chunk_documents(dataset, features, length=50)
    chunks = [e["tokens"].tolist() for e in found.as_numpy_iterator()]
    expected = []
    for start in range(0, 300, 128):
        group = vocabulary.encode_batch(documents[start : start + 128])
        tokens = list(itertools.chain.from_iterable(group))
        expected += [tokens[i : i + 50] for i in range(0, len(tokens), 50)]
    assert chunks == [chunk for chunk in expected if len(chunk) > 1]


@pytest.mark.parametrize(("length", "sizes"), [(3, [3, 2]), (4, [4]), (5, [5]), (6, [5])])
def test_a_last_chunk_of_one_token_is_dropped(stages, tf, vocabulary, length, sizes):
    words = ("a", "the", "of", "to", "is")
    word = next(word for word in words if len(vocabulary.encode(word)) == 1)
    dataset = tf.data.Dataset.from_tensor_slices({"text": [word] * 5})
    found = stages.chunk_documents(dataset, stages.features(vocabulary), length=length)
    assert [len(e["tokens"]) for e in found.as_numpy_iterator()] == sizes


def test_epochs_count_how_often_the_first_index_came_by(stages, tf):
    dataset = stages.number(tf.data.Dataset.from_tensor_slices({"x": [7, 8, 9]})).repeat(3)
    found = [
        (int(e["epoch"]), int(e["index"]), int(e["x"]))
        for e in stages.count_epochs(dataset).as_numpy_iterator()
    ]
    assert found == [(e, i, 7 + i) for e in range(3) for i in range(3)]


def test_epochs_of_a_shard_that_does_not_begin_at_0(stages, tf):
    dataset = stages.number(tf.data.Dataset.from_tensor_slices({"x": [7, 8, 9, 10]}))
    shard = dataset.shard(2, 1).repeat(2)
    found = [
        (int(e["epoch"]), int(e["index"])) for e in stages.count_epochs(shard).as_numpy_iterator()
    ]
    assert found == [(0, 1), (0, 3), (1, 1), (1, 3)]


def test_corruption_gets_seed_epoch_and_index(stages, tf):
    from t5x_lite.data.corruption import span_corruption

    tokens = np.arange(3, 53, dtype=np.int32)
    dataset = tf.data.Dataset.from_tensor_slices({"tokens": np.stack([tokens, tokens])})
    dataset = stages.count_epochs(stages.number(dataset).repeat(2))
    options = {"sentinel_start": 99, "noise_density": 0.15, "mean_noise_span_length": 3.0}
    function = functools.partial(span_corruption, **options)
    found = list(stages.corrupt(dataset, function, seed=5).as_numpy_iterator())
    keys = [(0, 0), (0, 1), (1, 0), (1, 1)]
    for (epoch, index), example in zip(keys, found, strict=True):
        expected = span_corruption(tokens, seed=5, epoch=epoch, index=index, **options)
        assert example["inputs"].tolist() == expected["inputs"].tolist()
        assert example["targets"].tolist() == expected["targets"].tolist()
    assert len({json.dumps(example["inputs"].tolist()) for example in found}) == 4


@pytest.mark.parametrize(
    ("lengths", "extra_ids", "message"),
    [
        ((2, 114), 100, "data.inputs_length of at least 3, got 2"),
        (
            (512, 113),
            100,
            "gives 114 tokens of targets, but data.targets_length is 113: set it to 114",
        ),
        ((512, 114), 27, "needs 28 sentinels, but the vocabulary has 27: raise data.extra_ids"),
    ],
)
def test_lengths_that_do_not_go_together_are_refused(
    stages, tiny_vocabulary, lengths, extra_ids, message
):
    from t5x_lite.data.config import TaskArguments
    from t5x_lite.data.vocabulary import load_vocabulary

    arguments = TaskArguments(
        vocabulary=load_vocabulary(tiny_vocabulary, extra_ids=extra_ids),
        directory="",
        inputs_length=lengths[0],
        targets_length=lengths[1],
    )
    with pytest.raises(InputError, match=message):
        stages.span_corruption_preprocessors(
            arguments, noise_density=0.15, mean_noise_span_length=3.0
        )


def test_text_pairs_and_documents_may_be_empty(stages):
    assert list(stages.text_pairs([], [])) == []
    assert list(stages.text_documents([])) == []
    assert texts(stages.text_documents(["a", "é"])) == ["a", "é"]
