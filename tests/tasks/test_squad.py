import dataclasses
import json

import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from tests import tokenizer_files
from tests.data.formats import test_released_files as released


def question(number, *answers):
    found = [{"text": text, "answer_start": 0} for text in answers]
    return {"id": f"q{number}", "question": "What fell?", "answers": found}


def write(directory, name, *questions):
    paragraphs = [{"context": "Rain (a lot) fell.", "qas": list(questions)}]
    content = {"version": "1.1", "data": [{"title": "Rain", "paragraphs": paragraphs}]}
    (directory / name).write_text(json.dumps(content))


@pytest.fixture
def arguments(tmp_path, tiny_vocabulary):
    from t5x_lite.data.config import TaskArguments
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    write(tmp_path, "train-v1.1.json", question(0, "Rain"))
    write(tmp_path, "dev-v1.1.json", question(1, "Rain", "a lot"), question(2, "(a lot)"))
    return TaskArguments(
        vocabulary=load_vocabulary(tiny_vocabulary),
        directory=str(tmp_path),
        inputs_length=64,
        targets_length=16,
    )


def test_questions_are_asked_with_and_without_their_context(arguments):
    from tasks import squad

    def inputs(task):
        (example,) = task.source.get_dataset("train", shuffle=False).as_numpy_iterator()
        assert example["targets"] == b"Rain"
        return example["inputs"].decode()

    expected = "question: What fell ? context: Rain ( a lot ) fell . "
    assert inputs(squad.squad(arguments)) == expected
    assert inputs(squad.closed_book(arguments)) == "squad trivia question: What fell ? "


def test_the_best_of_all_answers_counts(arguments):
    from t5x_lite.data import loading, reading
    from t5x_lite.data.config import Data

    data = Data(
        task="tasks.squad:squad",
        vocabulary="",
        directory=arguments.directory,
        inputs_length=64,
        targets_length=16,
    )
    first, second = reading.eval_examples(data, arguments.vocabulary)
    assert first.targets_text == "Rain"
    assert [first.target, second.target] == [["Rain", "a lot"], [" ( a lot ) "]]
    assert first.raw["id"] == "q1"
    postprocess, (metric,) = loading.task_metrics(loading.load_task(data, arguments.vocabulary))
    predictions = [postprocess("A lot!", example=e.raw) for e in (first, second)]
    assert metric([first.target, second.target], predictions) == {"exact_match": 1.0, "f1": 1.0}


def test_squad_v2_is_for_a_head_on_an_encoder(arguments, tmp_path):
    from t5x_lite.data.tasks.labelled import task_form
    from t5x_lite.data.vocabularies.loading import load_vocabulary
    from tasks import squad

    for name in ("train-v2.0.json", "dev-v2.0.json"):
        write(
            tmp_path,
            name,
            {**question(0, "Rain"), "is_impossible": False},
            {**question(1), "is_impossible": True},
        )
    with pytest.raises(InputError, match=r"data\.layout is seq2seq, but SQuAD 2\.0 is only"):
        squad.squad_v2(arguments)
    vocabulary = load_vocabulary(tokenizer_files.write_wordpiece(tmp_path))
    for layout in (layouts.Windows(), layouts.Labelled()):
        own = dataclasses.replace(arguments, vocabulary=vocabulary, layout=layout)
        task = squad.squad_v2(own)
        form = task_form(task)
        assert form is not None
        assert (form.nulls, form.head) == (True, "span")
        read = task.get_dataset({"inputs": 64, "labels": 2}, "validation", shuffle=False)
        answered, impossible = read.as_numpy_iterator()
        assert answered["labels"].tolist() == [12, 15]  # r a i n, a token each
        assert impossible["labels"].tolist() == [1, 1]  # [CLS]
    write(tmp_path, "dev-v2.0.json", question(0, "Rain"))
    with pytest.raises(InputError, match=r"dev-v2\.0\.json: data\[0\].*must have \"is_impossible"):
        task.source.get_dataset("validation", shuffle=False)


@pytest.fixture
def trivia(arguments, tmp_path):
    pages = {"A.txt": "Rain (a lot) fell.", "B.txt": "Nothing."}
    for name, text in pages.items():
        released.write(tmp_path / "evidence" / "wikipedia" / name, text)
    records = [released.trivia(1, answer="A lot", pages=[*pages])]
    for split in ("train", "dev"):
        content = released.trivia_file(*records)
        released.write(tmp_path / "qa" / f"wikipedia-{split}.json", content)
        released.write(tmp_path / "qa" / f"web-{split}.json", content)
    return arguments


def test_trivia_qa_reads_a_question_with_each_page(trivia):
    from tasks import squad

    task = squad.trivia_qa(trivia)
    (example,) = task.source.get_dataset("train", shuffle=False).as_numpy_iterator()
    assert example["inputs"] == b"question: Who is 1 ? context: Rain ( a lot ) fell . "
    assert example["targets"] == b"a lot"
    assert example["id"] == b"tc_1--A.txt"
    rows = list(task.source.get_dataset("validation", shuffle=False).as_numpy_iterator())
    assert [row["id"] for row in rows] == [b"tc_1--A.txt", b"tc_1--B.txt"]
    assert rows[1]["targets"] == b"A lot"
    assert list(rows[0]["answers"]) == [b"a lot", b"A lot", b"A lot . "]
    (metric,) = task.predict_metric_fns
    assert metric([["A \u2018lot\u2019"]], ["the_lot"]) == {"exact_match": 1.0, "f1": 1.0}
    (alone,) = squad.trivia_qa_closed_book(trivia).source.get_dataset("train").as_numpy_iterator()
    assert alone["inputs"] == b"trivia question: Who is 1 ? "
    assert alone["targets"] == b"A lot"


def test_trivia_qa_for_a_head_on_an_encoder(trivia, tmp_path):
    from t5x_lite.data.vocabularies.loading import load_vocabulary
    from tasks import squad

    path = tokenizer_files.write_wordpiece(tmp_path)
    own = dataclasses.replace(trivia, vocabulary=load_vocabulary(path), layout=layouts.Windows())
    (row,) = squad.trivia_qa_web(own).source.get_dataset("train", shuffle=False).as_numpy_iterator()
    assert (row["label"], row["label_end"]) == (6, 11)
    with pytest.raises(InputError, match=r"has no wikipedia-train\.json of TriviaQA"):
        squad.trivia_qa(dataclasses.replace(trivia, directory=str(tmp_path / "evidence")))
