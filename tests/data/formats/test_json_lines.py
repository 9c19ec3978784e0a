"""JSON lines: what is read, what is refused with file and line, and outputs that appear whole."""

import io
import sys
import types
from pathlib import Path

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats import lines
from t5x_lite.data.formats.lines import read_examples, writer
from tests.full_disk import MESSAGE, full_disk


@pytest.fixture(autouse=True)
def _own_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def read(content, *, fields=("inputs",)):
    Path("a.jsonl").write_bytes(content)
    return list(read_examples("a.jsonl", fields=fields))


def error(content, *, fields=("inputs",)):
    with pytest.raises(InputError) as raised:
        read(content, fields=fields)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_objects_and_where_they_stand():
    lines = read(b'{"inputs": "a", "id": 3}\n\n  \r\n{"inputs": "\xc3\xa9", "x": [null]}')
    assert lines == [
        ("a.jsonl:1", {"inputs": "a", "id": 3}),
        ("a.jsonl:4", {"inputs": "é", "x": [None]}),
    ]
    assert lines[1].where == "a.jsonl:4"


def test_an_empty_file_has_no_lines():
    assert read(b"") == read(b"\n\n") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"inputs": "a"}\n{"inputs": \n', "a.jsonl:2: not JSON (Expecting value at column 11)"),
        (b'{"inputs": "a"} {"inputs": "b"}', "a.jsonl:1: not JSON (Extra data at column 17)"),
        (b"[" * 100_000, "a.jsonl:1: not JSON that can be read (maximum recursion depth"),
        (b'{"inputs": "a", "n": ' + b"1" * 5000 + b"}", "a.jsonl:1: not JSON that can be read ("),
        (
            b'{"inputs": "a", "x": [NaN]}',
            "a.jsonl:1: not JSON that can be read (NaN is not a number",
        ),
        (b'{"inputs": "a", "x": -Infinity}', "a.jsonl:1: not JSON that can be read (-Infinity is"),
        (b'{"x": 1e999}', "a.jsonl:1: not JSON that can be read (1e999 is too large for a float)"),
        (b'\n{"inputs": "caf\xe9"}', "a.jsonl:2: not UTF-8 (byte 15); convert the file"),
        (b'{"inputs": "\\uD83D"}', "a.jsonl:1: an unpaired surrogate (\\ud...) is not valid text"),
        (b'{"inputs": "a", "x": "\\udead"}', "a.jsonl:1: an unpaired surrogate"),
        (b'["inputs"]', "a.jsonl:1: must be a JSON object, got list"),
        (b'"inputs"', "a.jsonl:1: must be a JSON object, got str"),
        (b'{"input": "a"}', "a.jsonl:1: must have \"inputs\", a string; it has ['input']"),
        (b'{"inputs": 3}', 'a.jsonl:1: "inputs" must be a string, got int'),
        (b'{"inputs": "a', "a.jsonl:1: not JSON (Unterminated string starting at column 12)"),
        (b"{}", 'a.jsonl:1: must have "inputs", a string; it has nothing'),
    ],
)
def test_a_wrong_line_is_named(content, message):
    assert error(content).startswith(message)


def test_a_whole_surrogate_pair_is_a_character():
    [line] = read(b'{"inputs": "\\ud83d\\ude00"}')
    assert line.record == {"inputs": "\N{GRINNING FACE}"}


def test_a_byte_order_mark_is_passed_over():
    [line] = read(b'\xef\xbb\xbf{"inputs": "a"}')
    assert line.record == {"inputs": "a"}


def test_every_field_is_needed():
    content = b'{"inputs": "a", "targets": "b"}\n{"inputs": "a"}'
    assert error(content, fields=("inputs", "targets")).startswith(
        'a.jsonl:2: must have "targets", a string'
    )


def test_an_optional_field_is_a_string_where_it_is_there():
    content = b'{"inputs": "a"}\n{"inputs": "b", "prompt": "c"}\n{"inputs": "a", "prompt": null}'
    Path("a.jsonl").write_bytes(content)
    lines = read_examples("a.jsonl", fields=("inputs",), optional=("prompt",))
    assert [next(lines).record.get("prompt") for _ in range(2)] == [None, "c"]
    with pytest.raises(InputError) as raised:
        next(lines)
    assert str(raised.value) == 'a.jsonl:3: "prompt" must be a string, got NoneType'


@pytest.mark.parametrize("value", ["-1", "4294967296", "1.0", "true", '"7"', "null"])
def test_a_number_is_whole_and_of_32_bits_where_it_is_there(value):
    Path("a.jsonl").write_text(f'{{}}\n{{"seed": 4294967295}}\n{{"seed": {value}}}')
    lines = read_examples("a.jsonl", fields=(), numbers=("seed",))
    assert [next(lines).record for _ in range(2)] == [{}, {"seed": 4294967295}]
    with pytest.raises(InputError) as raised:
        next(lines)
    assert str(raised.value) == (
        f'a.jsonl:3: "seed" must be a whole number from 0 to 4294967295, got {value}'
    )


def test_objects_at_the_beginning_are_passed_over_unread():
    Path("a.jsonl").write_text('wrong\n\n{"inputs": "a"}\n{"inputs": "b"}\n')
    lines = list(read_examples("a.jsonl", fields=("inputs",), skip=1))
    assert lines == [("a.jsonl:3", {"inputs": "a"}), ("a.jsonl:4", {"inputs": "b"})]
    assert list(read_examples("a.jsonl", fields=("inputs",), skip=9)) == []


def test_a_line_that_is_too_long_is_refused_before_it_is_read():
    Path("a.jsonl").write_text('{"a": "12345"}\n{"a": "123456"}\n')
    lines = read_examples("a.jsonl", fields=("a",), longest=15)
    assert next(lines).record == {"a": "12345"}
    with pytest.raises(InputError) as raised:
        next(lines)
    assert str(raised.value) == (
        "a.jsonl:2: the line has more than 15 bytes; divide the line, or raise "
        "--longest-line (predict, score, embed)"
    )
    with open("b.jsonl", "wb") as file:
        file.truncate(1 << 40)  # no byte of it is on the disk
    with pytest.raises(InputError, match=r"^b\.jsonl:1: the line has more than 67108864 bytes; "):
        next(read_examples("b.jsonl", fields=()))


def test_lines_before_a_wrong_one_are_given():
    Path("a.jsonl").write_text('{"inputs": "a"}\nwrong\n')
    lines = read_examples("a.jsonl", fields=("inputs",))
    assert next(lines).record == {"inputs": "a"}
    with pytest.raises(InputError, match=r"^a\.jsonl:2: "):
        next(lines)


@pytest.mark.parametrize(
    ("path", "reason"), [("none.jsonl", "No such file or directory"), (".", "Is a directory")]
)
def test_a_file_that_cannot_be_read(path, reason):
    with pytest.raises(InputError) as raised:
        next(read_examples(path, fields=()))
    assert str(raised.value) == f"{path}: cannot be read ({reason})"


def test_standard_input_and_output(monkeypatch, capsys):
    content = io.BytesIO(b'{"inputs": "a"}\n{}\n')
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=content))
    lines = read_examples("-", fields=("inputs",))
    with writer("-") as file:
        file.write(next(lines).record)
    assert capsys.readouterr().out == '{"inputs": "a"}\n'
    with pytest.raises(InputError, match=r"^standard input:2: "):
        next(lines)
    assert not content.closed


def test_an_output_appears_whole():
    with writer("out.jsonl") as file:
        file.write({"b": "é", "a": [1, 2.5]}, {})
        assert not Path("out.jsonl").exists()
        file.write()
    assert Path("out.jsonl").read_bytes() == b'{"b": "\xc3\xa9", "a": [1, 2.5]}\n{}\n'
    assert [path.name for path in Path().iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_not_written(value):
    with pytest.raises(ValueError, match="not JSON compliant"), writer("out.jsonl") as file:
        file.write({"score": value})
    assert list(Path().iterdir()) == []


def fail_while_writing():
    with writer("out.jsonl") as file:
        file.write({"new": 1})
        raise RuntimeError


def test_an_output_appears_not_at_all_after_an_error():
    with pytest.raises(RuntimeError):
        fail_while_writing()
    assert list(Path().iterdir()) == []
    Path("out.jsonl").write_text("old")
    with pytest.raises(RuntimeError):
        fail_while_writing()
    assert Path("out.jsonl").read_text() == "old"


@pytest.mark.parametrize(
    ("path", "reason"), [("none/out", "No such file or directory"), (".", "Is a directory")]
)
def test_an_output_that_cannot_be_written(path, reason):
    with pytest.raises(InputError) as raised, writer(path):
        pass
    assert str(raised.value) == f"{path}: cannot be written ({reason})"


def test_the_writer_is_public():
    with writer("out.jsonl") as file:
        assert isinstance(file, lines.Writer)


def test_a_full_disk_is_named_with_the_output():
    with pytest.raises(InputError) as raised, full_disk(100), writer("out.jsonl") as file:
        file.write({"a": "x" * 180})
    assert str(raised.value) == f"out.jsonl: cannot be written ({MESSAGE})"
    assert list(Path().iterdir()) == []
    with (
        pytest.raises(InputError, match=r"^/dev/full: cannot be written \(No space left on device"),
        writer("/dev/full") as file,
    ):
        file.write({})
