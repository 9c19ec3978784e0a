import pytest

from tests.tasks.examples import pairs


@pytest.fixture
def arguments(tmp_path, tiny_vocabulary):
    from t5x_lite.data.config import TaskArguments
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    (tmp_path / "enro").mkdir()
    for name, text in {
        "ende/train.en": 'That is good.\nA "b"\n',
        "ende/train.de": "Das ist gut.\nÄ „b“\n",
        "enro/test.en": "Yes.\n",
        "enro/test.ro": "Da.\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return TaskArguments(
        vocabulary=load_vocabulary(tiny_vocabulary),
        directory=str(tmp_path),
        inputs_length=64,
        targets_length=16,
    )


def test_sentences_are_translated(arguments):
    from tasks import wmt

    assert pairs(wmt.ende(arguments), "train") == [
        ("translate English to German: That is good.", "Das ist gut."),
        ('translate English to German: A "b"', "Ä „b“"),
    ]
    assert pairs(wmt.enro(arguments), "test") == [("translate English to Romanian: Yes.", "Da.")]


def test_the_papers_tasks():
    from tasks import wmt

    rows = (wmt.ENDE, wmt.ENFR, wmt.ENRO, wmt.ENDE_14, wmt.ENFR_14)
    assert [(row.tfds, row.prefix) for row in rows] == [
        ("wmt_t2t_translate/de-en", "translate English to German:"),
        ("wmt15_translate/fr-en", "translate English to French:"),
        ("wmt16_translate/ro-en", "translate English to Romanian:"),
        ("wmt14_translate/de-en", "translate English to German:"),
        ("wmt14_translate/fr-en", "translate English to French:"),
    ]
