import dataclasses

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.preprocessors import stsb
from t5x_lite.data.tasks.glue_files import GlueTask

MRPC = GlueTask(
    name="mrpc",
    directory="MRPC",
    template="sentence1: {sentence1} sentence2: {sentence2}",
    labels={"0": "not_equivalent", "1": "equivalent"},
    columns={"sentence1": "#1 String", "sentence2": "#2 String"},
    label_column="Quality",
)


def records(row, tmp_path, content, split):
    file = tmp_path / "rows.tsv"
    file.write_text(content, newline="")
    return list(row.records(file, split))


def test_records_have_the_features_of_tfds(tmp_path):
    content = '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t10\t11\tHe ran.\t"He ran\r\n'
    assert records(MRPC, tmp_path, content, "train") == [
        {"sentence1": "He ran.", "sentence2": '"He ran', "label": 1, "idx": 0}
    ]


def test_test_files_have_numbers_and_no_labels(tmp_path):
    content = "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n4\t10\t11\tA\tB\n9\t1\t1\tC\tD\n"
    found = records(MRPC, tmp_path, content, "test")
    assert [(r["idx"], r["label"]) for r in found] == [(4, -1), (9, -1)]
    labelled = "index\tQuality\t#1 String\t#2 String\n0\t1\tA\tB\n1\t\tC\tD\n"
    assert [r["label"] for r in records(MRPC, tmp_path, labelled, "test")] == [1, -1]


def test_the_text_is_prefix_and_template():
    record = {"sentence1": "A", "sentence2": "B", "label": 0, "idx": 2}
    assert MRPC.example(record) == {
        "inputs": "mrpc sentence1: A sentence2: B",
        "targets": "not_equivalent",
        "idx": 2,
    }
    own = dataclasses.replace(MRPC, prefix="Same?", template="{sentence1} / {sentence2}")
    assert own.example(record)["inputs"] == "Same? A / B"


def test_scores(tmp_path):
    row = GlueTask(
        name="stsb",
        directory="STS-B",
        template="sentence1: {sentence1} sentence2: {sentence2}",
        labels={},
        label_column="score",
        as_text=stsb,
    )
    content = "index\tsentence1\tsentence2\tscore\n0\tA\tB\t2.50\n"
    (record,) = records(row, tmp_path, content, "train")
    assert record["label"] == 2.5
    assert row.example(record)["targets"] == "2.4"
    (unknown,) = records(row, tmp_path, "index\tsentence1\tsentence2\n0\tA\tB\n", "test")
    assert row.example(unknown)["targets"] == "-1.0"
    for entry in ("high", "nan", ""):
        with pytest.raises(
            InputError, match=rf"rows\.tsv:2: column score must be a number, got '{entry}'"
        ):
            records(row, tmp_path, content.replace("2.50", entry), "train")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "Quality\t#1 String\t#2 String\n3\tA\tB\n",
            "rows.tsv:2: column Quality is '3', but must be one of 0, 1",
        ),
        ("#1 String\t#2 String\nA\tB\n", "rows.tsv:1: the header lacks Quality"),
        (
            "index\tQuality\t#1 String\t#2 String\n5\t1\tA\tB\n5\t1\tA\tB\n",
            "rows.tsv:3: index 5 occurs twice, first in",
        ),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path, content, message):
    with pytest.raises(InputError) as caught:
        records(MRPC, tmp_path, content, "validation")
    assert message in str(caught.value)
