import pytest

from t5x_lite.errors import InputError

FILES = {
    "train.tsv": "sentence\tlabel\nit 's \" charming \t1\nflat \t0\n",
    "dev.tsv": "sentence\tlabel\r\na gem\t1\r\n\r\n",
    "test.tsv": "index\tsentence\n0\tuneasy mishmash\n",
}


@pytest.fixture(scope="module")
def glue():
    from tasks import glue

    return glue


@pytest.fixture
def arguments(tmp_path, tiny_vocabulary):
    from t5x_lite.data.config import TaskArguments
    from t5x_lite.data.vocabulary import load_vocabulary

    folder = tmp_path / "SST-2"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_text(content, newline="")
    return TaskArguments(
        vocabulary=load_vocabulary(tiny_vocabulary),
        directory=str(tmp_path),
        inputs_length=64,
        targets_length=16,
    )


def pairs(task, split):
    dataset = task.source.get_dataset(split, shuffle=False)
    return [(e["inputs"].decode(), e["targets"].decode()) for e in dataset.as_numpy_iterator()]


def test_sst2_as_text(glue, arguments):
    task = glue.sst2(arguments)
    assert pairs(task, "train") == [
        ("sst2 sentence: it 's \" charming ", "positive"),
        ("sst2 sentence: flat ", "negative"),
    ]
    assert pairs(task, "validation") == [("sst2 sentence: a gem", "positive")]
    assert pairs(task, "test") == [("sst2 sentence: uneasy mishmash", "<unk>")]


def test_another_label_column(glue, arguments, tmp_path):
    import dataclasses

    (tmp_path / "SST-2" / "train.tsv").write_text("sentence\tgold\nfine\tyes\nbad\tno\n")
    row = dataclasses.replace(
        glue.SST2, label_column="gold", labels={"no": "negative", "yes": "positive"}
    )
    found = pairs(glue._task(row, arguments), "train")
    assert found == [("sst2 sentence: fine", "positive"), ("sst2 sentence: bad", "negative")]
    row = dataclasses.replace(row, labels={"no": "negative"})
    with pytest.raises(InputError, match=r"train\.tsv:2: gold 'yes' is none of no"):
        pairs(glue._task(row, arguments), "train")


def test_a_byte_order_mark_is_no_part_of_the_header(glue, arguments, tmp_path):
    content = "\ufeffsentence\tlabel\nfine\t1\n"
    (tmp_path / "SST-2" / "train.tsv").write_text(content, encoding="utf-8")
    assert pairs(glue.sst2(arguments), "train") == [("sst2 sentence: fine", "positive")]


def test_the_labels_can_be_read_from_the_task(glue, arguments):
    from t5x_lite.data.pipeline import task_labels

    assert task_labels(glue.sst2(arguments)) == ("negative", "positive")


def test_sst2_metrics(glue, arguments):
    task = glue.sst2(arguments)
    texts = ["negative", "positive", "<unk>", "positively"]
    assert [task.postprocess_fn(t, example=None, is_target=True) for t in texts] == [0, 1, -1, -1]
    (accuracy,) = task.predict_metric_fns
    assert accuracy([0, 1, 1, 0], [0, 1, -1, 1]) == {"accuracy": 0.5}


def test_sst2_examples_for_metrics(glue, arguments):
    from t5x_lite.data import pipeline
    from t5x_lite.data.config import Data

    data = Data(
        task="tasks.glue:sst2",
        vocabulary="",
        directory=arguments.directory,
        inputs_length=64,
        targets_length=16,
    )
    (example,) = pipeline.eval_examples(data, arguments.vocabulary)
    assert example.inputs_text == "sst2 sentence: a gem"
    assert example.targets_text == "positive"
    assert example.target == 1
    assert example.inputs.tolist() == [*arguments.vocabulary.encode("sst2 sentence: a gem"), 1]
    assert example.raw["inputs_pretokenized"] == "sst2 sentence: a gem"


def test_the_tasks_own_folder_will_do(glue, arguments, tmp_path):
    import dataclasses

    own = dataclasses.replace(arguments, directory=str(tmp_path / "SST-2"))
    assert len(pairs(glue.sst2(own), "train")) == 2


@pytest.mark.parametrize("directory", ["", "elsewhere"])
def test_a_folder_without_the_files_is_refused(glue, arguments, directory):
    import dataclasses

    with pytest.raises(InputError, match=r"no SST-2/train\.tsv in data\.directory"):
        glue.sst2(dataclasses.replace(arguments, directory=directory))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"sentence\tlabel\nfine\t1\nfine\t2\n", "train.tsv:3: label '2' is none of 0, 1"),
        (b"sentence\tlabel\nfine 1\n", "train.tsv:2: 1 columns, but the header has 2"),
        (b"text\tlabel\nfine\t1\n", "train.tsv:1: the header lacks sentence: it has text, label"),
        (b"sentence\tlabel\nfine\t1\ncaf\xe9\t1\n", "train.tsv:3: not UTF-8"),
        (b"", "train.tsv:1: the header lacks sentence, label"),
    ],
)
def test_a_bad_file_is_named_with_its_line(glue, arguments, tmp_path, content, message):
    (tmp_path / "SST-2" / "train.tsv").write_bytes(content)
    with pytest.raises(InputError) as caught:
        pairs(glue.sst2(arguments), "train")
    assert message in str(caught.value)
    (tmp_path / "SST-2" / "dev.tsv").unlink()
    with pytest.raises(InputError, match=r"cannot read .*dev\.tsv: No such file"):
        pairs(glue.sst2(arguments), "validation")
