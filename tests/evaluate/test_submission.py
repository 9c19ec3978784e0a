"""Files for the benchmarks' servers: exact bytes, what is no label, and the strict check."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.core.errors import InputError
from t5x_lite.evaluate.submission import FORMATS, Answer, check, example_index, write

GLUE = {name: form for name, form in FORMATS.items() if form.benchmark == "GLUE"}
SUPER_GLUE = {name: form for name, form in FORMATS.items() if form.benchmark == "SuperGLUE"}


def answer(number, text="", value=None):
    return Answer(index=(number,), text=text, value=value)


def test_the_names_of_the_files():
    assert [form.file for form in GLUE.values()] == [
        "CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv", "MNLI-mm.tsv",
        "QNLI.tsv", "RTE.tsv", "WNLI.tsv", "AX.tsv",
    ]  # fmt: skip
    assert [form.file for form in SUPER_GLUE.values()] == [
        "BoolQ.jsonl", "CB.jsonl", "COPA.jsonl", "MultiRC.jsonl", "ReCoRD.jsonl", "RTE.jsonl",
        "WiC.jsonl", "WSC.jsonl", "AX-b.jsonl", "AX-g.jsonl",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "answers", "content"),
    [
        ("glue_cola", ["acceptable", "unacceptable"], "index\tprediction\n0\t1\n1\t0\n"),
        ("glue_sst2", ["positive", "negative"], "index\tprediction\n0\t1\n1\t0\n"),
        ("glue_mrpc", ["equivalent", "not_equivalent"], "index\tprediction\n0\t1\n1\t0\n"),
        ("glue_qqp", ["duplicate", "not_duplicate"], "index\tprediction\n0\t1\n1\t0\n"),
        (
            "glue_mnli_matched",
            ["neutral", "contradiction", "entailment"],
            "index\tprediction\n0\tneutral\n1\tcontradiction\n2\tentailment\n",
        ),
        (
            "glue_rte",
            ["not_entailment", "entailment"],
            "index\tprediction\n0\tnot_entailment\n1\tentailment\n",
        ),
        (
            "super_glue_boolq",
            ["True", "False"],
            '{"idx": 0, "label": "true"}\n{"idx": 1, "label": "false"}\n',
        ),
        (
            "super_glue_cb",
            ["neutral", "contradiction"],
            '{"idx": 0, "label": "neutral"}\n{"idx": 1, "label": "contradiction"}\n',
        ),
        (
            "super_glue_copa",
            ["choice1", "choice2"],
            '{"idx": 0, "label": 0}\n{"idx": 1, "label": 1}\n',
        ),
        (
            "super_glue_wic",
            ["False", "True"],
            '{"idx": 0, "label": "false"}\n{"idx": 1, "label": "true"}\n',
        ),
        (
            "super_glue_axg",
            ["entailment", "not_entailment"],
            '{"idx": 0, "label": "entailment"}\n{"idx": 1, "label": "not_entailment"}\n',
        ),
        (
            "super_glue_record",
            ["Ann Lee", "Zoë"],
            '{"idx": 0, "label": "Ann Lee"}\n{"idx": 1, "label": "Zo\\u00eb"}\n',
        ),
    ],
)
def test_words_become_labels(tmp_path, task, answers, content):
    given_answers = [answer(number, text) for number, text in enumerate(answers)]
    written = write(FORMATS[task], reversed(given_answers), tmp_path / "made")
    assert written.path == tmp_path / "made" / FORMATS[task].file
    assert written.path.read_bytes().decode() == content
    assert (written.rows, written.invalid, written.official) == (len(answers), 0, False)


def test_values_become_labels(tmp_path):
    said = [answer(0, "Bob", 1), answer(1, "the hat", 0), answer(2, "", -1)]
    write(FORMATS["super_glue_wsc"], said, tmp_path)
    assert (tmp_path / "WSC.jsonl").read_text() == (
        '{"idx": 0, "label": "True"}\n{"idx": 1, "label": "False"}\n{"idx": 2, "label": "False"}\n'
    )
    assert write(FORMATS["glue_wnli"], said, tmp_path).invalid == 1
    assert (tmp_path / "WNLI.tsv").read_text() == "index\tprediction\n0\t1\n1\t0\n2\t0\n"


def test_numbers_are_clipped(tmp_path):
    said = [answer(0, "3.4", 3.4), answer(1, "x", -1.0), answer(2, "9", 9.0), answer(3, "2", 2.0)]
    said.append(answer(4, "nan", float("nan")))
    written = write(FORMATS["glue_stsb"], said, tmp_path)
    assert (tmp_path / "STS-B.tsv").read_text() == (
        "index\tprediction\n0\t3.400\n1\t0.000\n2\t5.000\n3\t2.000\n4\t0.000\n"
    )
    assert written.invalid == 2
    assert written.default == "0.000"


def test_multirc_is_nested(tmp_path):
    said = [
        Answer(index=(7, 21, 0), text="True", value={"value": 1}),
        Answer(index=(5, 20, 1), text="False", value={"value": 0}),
        Answer(index=(5, 20, 0), text="True", value={"value": 1}),
        Answer(index=(5, 19, 3), text="maybe", value={"value": -1}),
    ]
    written = write(FORMATS["super_glue_multirc"], said, tmp_path)
    lines = [json.loads(line) for line in written.path.read_text().splitlines()]
    assert lines == [
        {
            "idx": 5,
            "passage": {
                "questions": [
                    {"idx": 19, "answers": [{"idx": 3, "label": 0}]},
                    {"idx": 20, "answers": [{"idx": 0, "label": 1}, {"idx": 1, "label": 0}]},
                ]
            },
        },
        {
            "idx": 7,
            "passage": {"questions": [{"idx": 21, "answers": [{"idx": 0, "label": 1}]}]},
        },
    ]
    assert (written.rows, written.invalid) == (2, 1)


def test_what_is_no_label_is_written_as_the_first(tmp_path):
    said = [answer(0, "acceptable "), answer(1, "nonsense"), answer(2, "")]
    written = write(FORMATS["glue_cola"], said, tmp_path)
    assert written.path.read_text() == "index\tprediction\n0\t1\n1\t0\n2\t0\n"
    assert written.invalid == 2


def test_copies_of_a_query_count_once_and_other_numbers_are_unique(tmp_path):
    said = [answer(3, "Ann"), answer(3, "Bob")]
    assert write(FORMATS["super_glue_record"], said, tmp_path).rows == 1
    assert (tmp_path / "ReCoRD.jsonl").read_text() == '{"idx": 3, "label": "Ann"}\n'
    with pytest.raises(InputError, match=r"glue:cola: two test examples have the index 3"):
        write(FORMATS["glue_cola"], said, tmp_path, where="glue:cola")
    assert not (tmp_path / "CoLA.tsv").exists()


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="cannot be written"):
        write(FORMATS["glue_cola"], [answer(0)], tmp_path / "file")


def test_the_official_number_of_rows(tmp_path):
    said = [answer(number, "choice1") for number in range(500)]
    assert write(FORMATS["super_glue_copa"], said, tmp_path).official


@pytest.mark.parametrize(
    ("task", "text", "message"),
    [
        ("glue_cola", "index\tprediction\n0\t1", "end with a newline"),
        ("glue_cola", "index\tprediction\r\n0\t1\r\n", "carriage returns"),
        ("glue_cola", "id\tprediction\n0\t1\n", "the header must be"),
        ("glue_cola", "0\t1\n", "the header must be"),
        ("glue_cola", "index\tprediction\n0 1\n", "line 2 must have an index and a prediction"),
        ("glue_cola", "index\tprediction\n0\t1\t1\n", "line 2 must have"),
        ("glue_cola", "index\tprediction\n-1\t1\n", "line 2 must have"),
        (
            "glue_cola",
            "index\tprediction\n0\t2\n",
            r"row \(0,\) must be one of \['0', '1'\], but is '2'",
        ),
        ("glue_cola", "index\tprediction\n0\t1\n0\t1\n", "two rows have the same index"),
        ("glue_cola", "index\tprediction\n1\t1\n0\t1\n", "must be sorted by index"),
        (
            "glue_cola",
            "index\tprediction\n0\t1\n",
            "2 row indices are missing from the file or unknown",
        ),
        ("glue_stsb", "index\tprediction\n0\t5.1\n", "must be between 0 and 5"),
        ("glue_stsb", "index\tprediction\n0\tnan\n", "must be between 0 and 5"),
        ("glue_stsb", "index\tprediction\n0\tx\n", "could not convert"),
        ("glue_ax", "index\tprediction\n0\tnot_entailment\n", "must be one of"),
        ("super_glue_boolq", '{"idx": 0, "label": "True"}\n', "but is 'True'"),
        ("super_glue_boolq", '{"idx": 0, "label": true}\n', "but is True"),
        ("super_glue_boolq", '{"label": "true", "idx": 0}\n', "a line must have"),
        ("super_glue_boolq", '{"idx": "0", "label": "true"}\n', "idx must be a whole number"),
        ("super_glue_boolq", "\n", "Expecting value"),
        ("super_glue_boolq", "[]\n", "a line must have"),
        ("super_glue_copa", '{"idx": 0, "label": true}\n', "but is True"),
        ("super_glue_copa", '{"idx": 0, "label": 1.0}\n', "but is 1.0"),
        ("super_glue_record", '{"idx": 0, "label": 1}\n', "must be a string"),
        ("super_glue_multirc", '{"idx": 0, "label": 1}\n', "a line must be"),
        ("super_glue_multirc", '{"idx": 0, "passage": {"questions": [1]}}\n', "not iterable"),
        (
            "super_glue_multirc",
            '{"idx": 0, "passage": {"questions": [{"idx": 0, "answers": []}]}}\n',
            "a question must have",
        ),
        (
            "super_glue_multirc",
            '{"idx": 0, "passage": {"questions": [{"idx": 0, "answers": [{"idx": 0}]}]}}\n',
            "an answer must have",
        ),
    ],
)
def test_a_wrong_file_is_refused(task, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        check(FORMATS[task], text, expected=[(0,), (1,), (2,)] if "missing" in message else None)
    assert str(caught.value).startswith(FORMATS[task].file)


@given(
    st.sampled_from(sorted({*GLUE, *SUPER_GLUE} - {"super_glue_multirc"})),
    st.dictionaries(
        st.integers(0, 10**6),
        st.tuples(
            st.sampled_from(["entailment", "True", "choice1", "acceptable", "ü\n\u2028\t x", ""]),
            st.sampled_from([0, 1, -1]),
        ),
        min_size=1,
        max_size=8,
    ),
)
@pytest.mark.slow
def test_what_is_written_passes_the_check(tmp_path_factory, task, answers):
    said = [
        Answer(index=(number,), text=text, value=float(value) if task == "glue_stsb" else value)
        for number, (text, value) in answers.items()
    ]
    written = write(FORMATS[task], said, tmp_path_factory.getbasetemp() / "property")
    text = written.path.read_bytes().decode()
    check(FORMATS[task], text, expected=[(number,) for number in answers])
    assert written.rows == len(answers)


def test_example_index():
    assert example_index({"idx": 7}, number=0) == (7,)
    assert example_index({}, number=3) == (3,)
    multirc = {"idx/paragraph": 1, "idx/question": 5, "idx/answer": 2}
    assert example_index(multirc, number=0) == (1, 5, 2)
    assert example_index({"idx/passage": 1, "idx/query": 9}, number=0) == (9,)


def test_a_file_for_conlleval(tmp_path):
    examples = [
        {"words": "EU\nrejects", "targets_pretokenized": "B-ORG O"},
        {"words": ".", "targets_pretokenized": "O"},
    ]
    answers = [
        Answer(index=(number,), text="", value=tags, example=example)
        for number, (tags, example) in enumerate(zip(("B-LOC O", "O"), examples, strict=True))
    ]
    written = write(FORMATS["tokens_conll"], answers[::-1], tmp_path)
    assert written.path == tmp_path / "test.txt"
    assert written.path.read_text() == "EU B-ORG B-LOC\nrejects O O\n\n. O O\n\n"
    assert (written.rows, written.invalid, written.official) == (5, 0, True)
