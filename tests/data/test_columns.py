import gzip

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.preprocessors import Columns

STARS = Columns(inputs="review: {text}", targets="{stars}", labels=("1=bad", "5=good"))


def examples(columns, tmp_path, name, content, split="train"):
    file = tmp_path / name
    file.write_text(content, newline="")
    return list(columns.examples([file], split))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.jsonl", '{"text": "Fine, \\"yes\\".", "stars": 5}\n{"text": "No", "stars": "1"}\n'),
        ("train.csv", 'text,stars\n"Fine, ""yes"".",5\nNo,1\n'),
        ("train.tsv", 'stars\ttext\n5\t"Fine, ""yes""."\n1\tNo\n'),
    ],
)
def test_rows_become_text(tmp_path, name, content):
    assert examples(STARS, tmp_path, name, content) == [
        {"inputs": 'review: Fine, "yes".', "targets": "good", "id": "0"},
        {"inputs": "review: No", "targets": "bad", "id": "1"},
    ]


def test_files_may_be_compressed(tmp_path):
    (tmp_path / "train.csv.gz").write_bytes(gzip.compress(b"text,stars\nFine,5\n"))
    (tmp_path / "dev.jsonl.gz").write_bytes(gzip.compress(b'{"text": "No", "stars": 1}\n'))
    splits = STARS.splits(str(tmp_path))
    assert [example["targets"] for example in STARS.examples(splits["train"], "train")] == ["good"]
    (held_out,) = STARS.examples(splits["validation"], "validation")
    assert held_out["targets"] == "bad"


def test_free_text_and_several_columns(tmp_path):
    columns = Columns(inputs="{a} | {b}", targets="{c} {a}", id="key", quoting=False)
    content = 'a\tb\tc\tkey\n"x\ty\tz"\tk1\n'
    assert examples(columns, tmp_path, "train.tsv", content) == [
        {"inputs": '"x | y', "targets": 'z" "x', "id": "k1"}
    ]


def test_entries_of_json_are_written_as_json_does(tmp_path):
    columns = Columns(inputs="{n}", targets="{yes}", labels=("true", "false"))
    content = '{"n": 3.5, "yes": true, "other": null}\n{"n": "x", "yes": "false"}\n'
    found = examples(columns, tmp_path, "train.jsonl", content)
    assert [(e["inputs"], e["targets"]) for e in found] == [("3.5", "true"), ("x", "false")]


def test_a_test_split_may_lack_targets(tmp_path):
    (example,) = examples(STARS, tmp_path, "test.csv", "text\nFine\n", split="test")
    assert example["targets"] == "<unk>"
    (example,) = examples(STARS, tmp_path, "test.csv", "text,stars\nFine,5\n", split="test")
    assert example["targets"] == "good"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.csv", "text\nFine\n", "train.csv:1: the header lacks stars; the columns are text"),
        (
            "train.jsonl",
            '{"text": "Fine"}',
            "train.jsonl:1: column 'stars' is missing; the columns are text",
        ),
        (
            "train.csv",
            "text,stars\na,1\nb,3\n",
            "train.csv:3: column label is '3', but must be one of 1, 5",
        ),
        (
            "train.csv",
            'text,stars\na "b,1\n',
            "train.csv:2: an unquoted entry contains a quotation mark",
        ),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path, name, content, message):
    with pytest.raises(InputError) as caught:
        examples(STARS, tmp_path, name, content)
    assert message in str(caught.value)


def test_two_rows_with_one_id_are_refused(tmp_path):
    columns = Columns(inputs="{text}", targets="{text}", id="key")
    with pytest.raises(
        InputError,
        match=r"train\.csv:4: column key has the id 'k', which is also in .*train\.csv:2",
    ):
        examples(columns, tmp_path, "train.csv", "text,key\na,k\nb,l\nc,k\n")


def test_columns_that_say_nothing_are_refused():
    with pytest.raises(InputError, match=r"data\.columns\.inputs must name a column in braces"):
        Columns(targets="{stars}").check()
    with pytest.raises(InputError, match=r"data\.columns\.targets must name .* but is 'stars'"):
        Columns(inputs="{text}", targets="stars").check()
    with pytest.raises(InputError, match=r"data\.columns\.labels has '1' twice"):
        Columns(labels=("1=a", "1=b"))


def test_rows_of_several_files_come_one_after_the_other(tmp_path):
    (tmp_path / "a.csv").write_text("text,stars\nFine,5\n")
    (tmp_path / "b.jsonl").write_text('{"text": "No", "stars": 1}\n')
    columns = Columns(inputs="{text}", targets="{stars}", train=("a.*", "b.jsonl"))
    splits = columns.splits(str(tmp_path))
    found = [(one["inputs"], one["id"]) for one in columns.examples(splits["train"], "train")]
    assert found == [("Fine", "0"), ("No", "1")]


def test_validation_may_be_a_part_of_the_training_rows(tmp_path):
    (tmp_path / "train.csv").write_text("text,stars\n" + "".join(f"{i},1\n" for i in range(100)))
    columns = Columns(inputs="{text}", targets="{stars}", hold_out=10)
    splits = columns.splits(str(tmp_path))
    assert splits["validation"] == splits["train"]
    held_out = [one for one in columns.examples(splits["train"], "train") if columns.held_out(one)]
    assert 4 <= len(held_out) <= 16
    (tmp_path / "dev.csv").write_text("text,stars\nFine,5\n")
    assert columns.splits(str(tmp_path))["validation"] == (tmp_path / "dev.csv",)
    with pytest.raises(InputError, match="hold_out must be 0 or at least 2, but is 1"):
        Columns(hold_out=1)


def test_labels_may_come_from_the_data(tmp_path):
    (tmp_path / "train.csv").write_text("text,stars,word\na,10,yes\nb,9,no\nc,10,a=b\n")
    tables = Columns().splits(str(tmp_path))["train"]
    assert Columns(inputs="{text}", targets="{stars}").known_labels(tables) == ("9", "10")
    assert Columns(inputs="{text}", targets="{stars}", labels=("10",)).known_labels(tables) == (
        "10",
    )
    with pytest.raises(InputError, match="the label 'a=b' contains '='"):
        Columns(inputs="{text}", targets="{word}").known_labels(tables)


def test_an_empty_label_is_refused_in_each_format(tmp_path, caplog):
    columns = Columns(inputs="{text}", targets="{stars}")
    files = {"a.csv": "text,stars\na,1\nb,\n", "a.jsonl": '{"text": "b", "stars": ""}'}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(InputError, match=rf"{name}:\d: the label '.stars.' is empty; fill it"):
            columns.known_labels([tmp_path / name])
    (tmp_path / "one.csv").write_text("text,stars\na,1\nb,1\n")
    assert columns.known_labels([tmp_path / "one.csv"]) == ("1",)
    assert "all training rows have the label '1'" in caplog.text


def test_an_empty_entry_is_refused_where_it_is_used(tmp_path):
    with pytest.raises(InputError, match=r"train\.jsonl:1: column 'text' is empty \(null\)"):
        examples(STARS, tmp_path, "train.jsonl", '{"text": null, "stars": 1}')


def test_the_second_text_of_a_pair(tmp_path):
    columns = Columns(inputs="{a}", second="{b}", targets="{c}")
    (example,) = examples(columns, tmp_path, "train.csv", "a,b,c\nx,y,z\n")
    assert example == {"inputs": "x", "second": "y", "targets": "z", "id": "0"}
