import pytest

from t5x_lite.core.errors import InputError
from tests.tasks.examples import pairs

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
    from t5x_lite.data.vocabularies.loading import load_vocabulary

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
    with pytest.raises(
        InputError, match=r"train\.tsv:2: column gold is 'yes', but must be one of no"
    ):
        pairs(glue._task(row, arguments), "train")


def test_a_byte_order_mark_is_no_part_of_the_header(glue, arguments, tmp_path):
    content = "\ufeffsentence\tlabel\nfine\t1\n"
    (tmp_path / "SST-2" / "train.tsv").write_text(content, encoding="utf-8")
    assert pairs(glue.sst2(arguments), "train") == [("sst2 sentence: fine", "positive")]


def test_the_labels_can_be_read_from_the_task(glue, arguments):
    from t5x_lite.data.loading import task_labels

    assert task_labels(glue.sst2(arguments)) == ("negative", "positive")


def test_sst2_metrics(glue, arguments):
    task = glue.sst2(arguments)
    texts = ["negative", "positive", "<unk>", "positively"]
    assert [task.postprocess_fn(t, example=None, is_target=True) for t in texts] == [0, 1, -1, -1]
    (accuracy,) = task.predict_metric_fns
    assert accuracy([0, 1, 1, 0], [0, 1, -1, 1]) == {"accuracy": 0.5}


def test_sst2_examples_for_metrics(glue, arguments):
    from t5x_lite.data import reading
    from t5x_lite.data.config import Data

    data = Data(
        task="tasks.glue:sst2",
        vocabulary="",
        directory=arguments.directory,
        inputs_length=64,
        targets_length=16,
    )
    (example,) = reading.eval_examples(data, arguments.vocabulary)
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
        (
            b"sentence\tlabel\nfine\t1\nfine\t2\n",
            "train.tsv:3: column label is '2', but must be one of 0, 1",
        ),
        (b"sentence\tlabel\nfine 1\n", "train.tsv:2: the line has 1 columns, but the header has 2"),
        (
            b"text\tlabel\nfine\t1\n",
            "train.tsv:1: the header lacks sentence; the columns are text, label",
        ),
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


OTHER_FILES = {
    "CoLA/train.tsv": "gj04\t1\t\tOur friends won't buy this.\ngj04\t0\t*\tThey drank the.\n",
    "CoLA/test.tsv": "index\tsentence\n0\tBill whistled.\n",
    "MRPC/train.tsv": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tHe ran.\tHe\n",
    "QQP/train.tsv": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
        "3\t1\t2\tWhy?\tWhy so?\t1\n4\t5\t6\t?\n"
    ),
    "STS-B/train.tsv": "index\tgenre\tsentence1\tsentence2\tscore\n0\tx\tA man.\tA man.\t4.750\n",
    "MNLI/train.tsv": "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tP\tH\tx\tneutral\n",
    "MNLI/dev_matched.tsv": "index\tsentence1\tsentence2\tgold_label\n0\tP1\tH1\tentailment\n",
    "MNLI/dev_mismatched.tsv": "index\tsentence1\tsentence2\tgold_label\n0\tP2\tH2\tneutral\n",
    "MNLI/test_mismatched.tsv": "index\tsentence1\tsentence2\n0\tP3\tH3\n",
    "QNLI/train.tsv": "index\tquestion\tsentence\tlabel\n0\tQ?\tS.\tnot_entailment\n",
    "RTE/train.tsv": "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tentailment\n",
    "WNLI/dev.tsv": (
        "index\tsentence1\tsentence2\tlabel\n0\tThe fish ate the worm. It was tasty.\t"
        "The worm was tasty.\t1\n"
    ),
    "diagnostic/diagnostic.tsv": "index\tsentence1\tsentence2\n0\tP\tH\n",
}


@pytest.mark.parametrize(
    ("name", "split", "expected"),
    [
        (
            "cola",
            "train",
            [
                ("cola sentence: Our friends won't buy this.", "acceptable"),
                ("cola sentence: They drank the.", "unacceptable"),
            ],
        ),
        ("cola", "test", [("cola sentence: Bill whistled.", "<unk>")]),
        ("mrpc", "train", [("mrpc sentence1: He ran. sentence2: He", "equivalent")]),
        ("qqp", "train", [("qqp question1: Why? question2: Why so?", "duplicate")]),
        ("stsb", "train", [("stsb sentence1: A man. sentence2: A man.", "4.8")]),
        ("mnli", "train", [("mnli hypothesis: H premise: P", "neutral")]),
        ("mnli", "validation", [("mnli hypothesis: H1 premise: P1", "entailment")]),
        ("mnli_matched", "validation", [("mnli hypothesis: H1 premise: P1", "entailment")]),
        ("mnli_mismatched", "validation", [("mnli hypothesis: H2 premise: P2", "neutral")]),
        ("mnli_mismatched", "test", [("mnli hypothesis: H3 premise: P3", "<unk>")]),
        ("qnli", "train", [("qnli question: Q? sentence: S.", "not_entailment")]),
        ("rte", "train", [("rte sentence1: A sentence2: B", "entailment")]),
        (
            "wnli",
            "validation",
            [("wsc: The fish ate the worm. *It* was tasty.", "The worm")],
        ),
        ("ax", "test", [("mnli hypothesis: H premise: P", "<unk>")]),
    ],
)
def test_text_and_targets(glue, arguments, tmp_path, name, split, expected):
    for file, content in OTHER_FILES.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(content)
    assert pairs(getattr(glue, name)(arguments), split) == expected


def test_the_prefix_and_the_template_are_fields(glue, arguments):
    import dataclasses

    row = dataclasses.replace(glue.SST2, prefix="Is it good?", template="{sentence}|")
    assert pairs(glue._task(row, arguments), "validation") == [("Is it good? a gem|", "positive")]


def test_official_files_are_what_tfds_makes_of_them(glue, tmp_path):
    """Its own readers, without a download: the records are equal."""
    import tensorflow_datasets as tfds

    for name, row in {
        "cola": glue.COLA,
        "qqp": glue.QQP,
        "stsb": glue.STSB,
        "qnli": glue.QNLI,
        "rte": glue.RTE,
    }.items():
        builder = tfds.text.Glue(config=name, data_dir=str(tmp_path))
        file = tmp_path / "train.tsv"
        file.write_text(OTHER_FILES[f"{row.directory}/train.tsv"].replace("3\t1", "0\t1"))
        expected = [
            {**record, "label": builder.info.features["label"].encode_example(record["label"])}
            for _, record in builder._generate_examples(file, "train")
        ]
        assert list(row.records(file, "train")) == expected


def test_a_template_and_a_prefix_of_one_s_own(glue, arguments, tmp_path):
    import dataclasses

    worded = dataclasses.replace(arguments, template="{sentence} Good?", prefix="review:")
    assert pairs(glue.sst2(worded), "train")[0][0].startswith("review: ")
    assert pairs(glue.sst2(worded), "train")[0][0].endswith(" Good?")
    (tmp_path / "MNLI").mkdir()
    columns = "sentence1\tsentence2\tgold_label\n"
    (tmp_path / "MNLI" / "train.tsv").write_text(f"{columns}It rains.\tIt is wet.\tneutral\n")
    order = "premise: {premise} hypothesis: {hypothesis}"
    [(text, target)] = pairs(glue.mnli(dataclasses.replace(arguments, template=order)), "train")
    assert (text, target) == ("mnli premise: It rains. hypothesis: It is wet.", "neutral")
    (tmp_path / "STS-B").mkdir()
    (tmp_path / "STS-B" / "train.tsv").write_text("sentence1\tsentence2\tscore\nA\tB\t2.5\n")
    swapped = dataclasses.replace(arguments, template="{sentence2} / {sentence1}")
    assert pairs(glue.stsb(swapped), "train") == [("stsb B / A", "2.4")]


def test_a_column_that_is_not_there_is_refused(glue, arguments):
    import dataclasses

    with pytest.raises(InputError) as error:
        glue.sst2(dataclasses.replace(arguments, template="{text}"))
    assert str(error.value) == (
        "data.template '{text}' names 'text'; the task's columns are sentence"
    )


def test_words_do_not_reach_a_head(glue, arguments):
    from t5x_lite import layouts
    from t5x_lite.data.config import Data
    from t5x_lite.data.loading import load_task

    data = Data(
        task="tasks.glue:sst2",
        vocabulary="",
        directory=arguments.directory,
        layout=layouts.Labelled(),
        pack=False,
        prefix="review:",
    )
    with pytest.raises(
        InputError, match=r"data\.prefix cannot be set, because .* with data\.layout labelled"
    ):
        load_task(data, arguments.vocabulary)
