import gzip

import pytest

from t5x_lite.data import elements
from t5x_lite.data.tasks.text_source import json_objects, text_documents, text_lines
from t5x_lite.errors import InputError


@pytest.fixture(scope="module")
def stages():
    from t5x_lite.data.tasks import stages

    return stages


@pytest.fixture(scope="module")
def tf():
    from t5x_lite.data.quiet_tensorflow import tf

    return tf


def texts(dataset):
    return [example["text"].decode() for example in dataset.as_numpy_iterator()]


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_text_lines_skips_blank_lines_and_strips_the_others(stages, tmp_path):
    file = write(tmp_path / "a.txt", "one\n\n  two \r\n \nthree é")
    assert texts(text_lines([file])) == ["one", "two", "three é"]


def test_text_lines_reads_files_in_turn_by_128_lines(stages, tmp_path):
    a = write(tmp_path / "a.txt", "\n".join(f"a{i}" for i in range(130)))
    b = write(tmp_path / "b.txt", "\n".join(f"b{i}" for i in range(2)))
    found = texts(text_lines([a, b]))
    assert found[:128] == [f"a{i}" for i in range(128)]
    assert found[128:] == ["b0", "b1", "a128", "a129"]


def test_text_lines_keeps_the_lines_that_are_wanted(stages, tmp_path):
    file = write(tmp_path / "a.txt", "0\n1\n2\n3\n4")
    assert texts(text_lines([file], keep=lambda texts: (texts == "1") | (texts == "3"))) == [
        "1",
        "3",
    ]


def test_text_lines_reads_the_text_field_of_json_lines(stages, tmp_path):
    a = write(tmp_path / "a.jsonl", '{"text": "one\\ntwo", "url": "x"}\n\n{"text": "é"}\n')
    b = write(tmp_path / "b.txt", '{"text": "as it stands"}\n')
    assert texts(text_lines([a, b])) == ["one\ntwo", "é", '{"text": "as it stands"}']


def test_text_lines_reads_files_of_gzip(stages, tf, tmp_path):
    a = write(tmp_path / "a.txt.gz", gzip.compress("one\n\ntwo é\n".encode()))
    b = write(tmp_path / "c4-train.00000-of-00001.json.gz", gzip.compress(b'{"text": "three"}\n'))
    c = write(tmp_path / "c.txt", "four")
    assert texts(text_lines([a, str(b), c])) == ["one", "two é", "three", "four"]
    b.write_bytes(b.read_bytes()[:20])
    with pytest.raises(tf.errors.OpError) as caught:
        texts(text_lines([b]))
    assert isinstance(elements.input_error(caught.value), InputError)


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
        texts(text_lines([file]))
    error = elements.input_error(caught.value)
    assert isinstance(error, InputError)
    assert message in str(error)
    assert "\n" not in str(error)


def test_a_byte_order_mark_is_no_part_of_the_text(stages, tmp_path):
    mark = "\ufeff"
    a = write(tmp_path / "a.txt", f"{mark}one\n{mark}two, whose mark is not at the start\n")
    b = write(tmp_path / "b.jsonl", f'{mark}{{"text": "three"}}\n')
    assert texts(text_lines([a, b])) == [
        "one",
        f"{mark}two, whose mark is not at the start",
        "three",
    ]


def test_a_file_that_cannot_be_read_is_the_users_and_a_wrong_shape_is_not(stages, tf, tmp_path):
    file = write(tmp_path / "a.txt", "one")
    dataset = text_lines([file])
    file.unlink()
    with pytest.raises(InputError, match=r"cannot read .*a\.txt: No such file or directory"):
        text_lines([file])
    with pytest.raises(tf.errors.OpError) as caught:
        texts(dataset)
    error = elements.input_error(caught.value)
    assert isinstance(error, InputError)
    assert "a.txt" in str(error)
    ours = tf.errors.InvalidArgumentError(None, None, "shapes do not match")
    assert elements.input_error(ours) is ours


def test_text_documents_are_what_blank_lines_divide(stages, tmp_path):
    a = write(tmp_path / "a.txt", "\ufeff\n one \r\ntwo\n\n\n \t\nthree\n")
    b = write(tmp_path / "b.txt", "")
    c = write(tmp_path / "c.txt", "four\n\nfive")
    assert texts(text_documents([a, b, c])) == ["one\ntwo", "four", "three", "five"]


def test_text_documents_may_be_longer_than_a_block_of_lines(stages, tmp_path):
    documents = ["\n".join(f"{n}.{i}" for i in range(size)) for n, size in enumerate(SIZES)]
    file = write(tmp_path / "a.txt", "\n\n".join(documents))
    assert texts(text_documents([file])) == documents
    chosen = texts(text_documents([file], keep=lambda texts: texts == documents[3]))
    assert chosen == [documents[3]]


SIZES = (127, 1, 128, 300, 126, 2, 127)


def test_text_documents_takes_the_objects_of_json_lines_as_they_are(stages, tmp_path):
    a = write(tmp_path / "a.jsonl", '{"text": "one\\n\\ntwo"}\n')
    b = write(tmp_path / "b.txt", "three\n\nfour")
    assert texts(text_documents([a, b])) == ["three", "four", "one\n\ntwo"]
    assert texts(text_documents([a])) == ["one\n\ntwo"]


def test_text_documents_names_a_line_that_is_not_utf8(stages, tf, tmp_path):
    file = write(tmp_path / "a.txt", b"one\n\ncaf\xe9\n")
    with pytest.raises(tf.errors.OpError) as caught:
        texts(text_documents([file]))
    assert str(elements.input_error(caught.value)) == (f"{file}:3: not UTF-8: convert it to UTF-8")
    with pytest.raises(InputError, match="cannot read"):
        text_documents([tmp_path / "missing.txt"])


def test_json_objects_are_what_is_made_of_them(stages, tf, tmp_path):
    file = write(tmp_path / "a.jsonl", '{"n": 1}\n\n{"n": 20}\n[]\n')
    found = json_objects(
        [file],
        lambda record, where: f"{record['n']} at {where.rpartition('/')[2]}",
        keep=lambda lines: tf.strings.length(lines) > 2,
    )
    assert texts(found) == ["1 at a.jsonl:1", "20 at a.jsonl:3"]
    with pytest.raises(tf.errors.OpError) as caught:
        texts(json_objects([file], lambda record, where: ""))
    assert str(elements.input_error(caught.value)) == f"{file}:4: must be a JSON object, got list"
