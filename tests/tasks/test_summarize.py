import pytest


@pytest.fixture
def arguments(tmp_path, tiny_vocabulary):
    from t5x_lite.data.config import TaskArguments
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    (tmp_path / "validation.jsonl").write_text(
        '{"article": "It rained. Ann left.", "highlights": "Rain .\\nAnn is gone ."}\n'
    )
    return TaskArguments(
        vocabulary=load_vocabulary(tiny_vocabulary),
        directory=str(tmp_path),
        inputs_length=64,
        targets_length=16,
    )


def test_articles_are_summarized(arguments):
    from tasks import summarize

    task = summarize.cnn_dailymail(arguments)
    (example,) = task.source.get_dataset("validation", shuffle=False).as_numpy_iterator()
    assert {name: text.decode() for name, text in example.items()} == {
        "inputs": "summarize: It rained. Ann left.",
        "targets": "Rain .\nAnn is gone .",
    }
    assert [metric.__name__ for metric in task.predict_metric_fns] == ["rouge"]
