import json

import pytest


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
    from t5x_lite.vocabulary.loading import load_vocabulary

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
    from t5x_lite.data.config import Data
    from t5x_lite.data.live import pipeline
    from t5x_lite.data.live import tasks as live_tasks

    data = Data(
        task="tasks.squad:squad",
        vocabulary="",
        directory=arguments.directory,
        inputs_length=64,
        targets_length=16,
    )
    first, second = pipeline.eval_examples(data, arguments.vocabulary)
    assert first.targets_text == "Rain"
    assert [first.target, second.target] == [["Rain", "a lot"], [" ( a lot ) "]]
    assert first.raw["id"] == "q1"
    postprocess, (metric,) = live_tasks.task_metrics(pipeline.load_task(data, arguments.vocabulary))
    predictions = [postprocess("A lot!", example=e.raw) for e in (first, second)]
    assert metric([first.target, second.target], predictions) == {"exact_match": 1.0, "f1": 1.0}
