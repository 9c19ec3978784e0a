"""Passages behind inputs: which ones, how many words of them fit, and what is refused."""

import dataclasses
import json

import pytest

from t5x_lite import layouts
from t5x_lite.config.file import from_json, to_json
from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Augment, Data
from t5x_lite.data.preprocessors import Columns
from t5x_lite.data.sources import identity_of
from tests import tokenizer_files

pytest.importorskip("seqio")

PASSAGES = [
    {"_id": "d1", "title": "Dogs", "text": "the dog\nrun"},
    {"_id": "d2", "title": "", "text": "a cat"},
    {"_id": "d3", "title": "Long", "text": "run " * 200},
]
RANKED = {"q0": ["d2", "d1", "d3"], "q1": ["d3"], "q2": ["d1"]}
ROWS = [("q0", "what run"), ("q1", "the dog"), ("q2", "a")]


def write(root, *, ranked=RANKED, rows=ROWS, name="run.trec"):
    """A table of questions, a corpus, and a run with lines that are out of order."""
    for split in ("train", "validation"):
        table = [
            json.dumps({"id": i, "question": q, "second": "the dog", "answer": "dog"})
            for i, q in rows
        ]
        (root / f"{split}.jsonl").write_text("\n".join(table))
    (root / "corpus.jsonl").write_text("\n".join(map(json.dumps, PASSAGES)))
    lines = [
        f"{query} Q0 {document} {rank} {9 - rank}.5 x"
        for query, documents in ranked.items()
        for rank, document in enumerate(documents, start=1)
    ]
    (root / name).write_text("\n".join(sorted(lines, reverse=True)) + "\n")


@pytest.fixture
def data(tmp_path):
    (tmp_path / "files").mkdir()
    write(tmp_path / "files")
    return Data(
        task="tasks.files:text_to_text",
        vocabulary="",
        directory=str(tmp_path / "files"),
        columns=Columns(inputs="{question}", targets="{answer}", id="id"),
        augment=Augment(
            run=str(tmp_path / "files" / "run.trec"),
            passages=str(tmp_path / "files" / "corpus.jsonl"),
            k=2,
        ),
        batch_size=3,
        inputs_length=32,
        targets_length=8,
        pack=False,
    )


@pytest.fixture(scope="module")
def sentencepiece(tiny_vocabulary):
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    return load_vocabulary(tiny_vocabulary)


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory):
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    return load_vocabulary(tokenizer_files.write_wordpiece(tmp_path_factory.mktemp("vocabulary")))


def shown(data, vocabulary, **changes):
    from t5x_lite.data import reading

    return reading.eval_examples(dataclasses.replace(data, **changes), vocabulary)


def test_the_first_passages_stand_behind_each_input(data, sentencepiece):
    found = shown(data, sentencepiece, inputs_length=1024)
    assert [one.inputs_text for one in found][::2] == [
        "question: what run context: a cat Dogs the dog run",
        "question: a context: Dogs the dog run",
    ]
    assert found[1].inputs_text == "question: the dog context: Long " + " ".join(["run"] * 200)
    assert [one.targets_text for one in found] == ["dog"] * 3
    assert [one.raw["id"] for one in found] == ["q0", "q1", "q2"]


@pytest.mark.parametrize(
    "template", ["question: {inputs} context: {passages}", "{passages} so: {inputs}"]
)
@pytest.mark.parametrize("length", [8, 16, 24, 40, 64])
def test_passages_lose_words_and_the_question_none(data, sentencepiece, template, length):
    augment = dataclasses.replace(data.augment, template=template)
    one = shown(data, sentencepiece, augment=augment, inputs_length=length)[1]
    before, after = template.split("{passages}")
    begin, end = (part.replace("{inputs}", "the dog") for part in (before, after))
    text = one.inputs_text
    alone = len(sentencepiece.encode((begin + end).strip()))
    assert len(text.split()) >= len((begin + end).split())
    assert text.startswith(begin.strip())
    assert text.endswith(end.strip())
    assert one.inputs.tolist()[-1] == sentencepiece.eos_id
    if alone < length:
        assert len(sentencepiece.encode(text)) < length  # EOS has room
        assert sentencepiece.decode(one.inputs.tolist()) == text
        words = text.removeprefix(begin).removesuffix(end).split()
        more = f"{begin}{' '.join([*words, 'run'])}{end}"
        assert len(sentencepiece.encode(more)) >= length  # the next word does not fit


def test_an_encoder_keeps_both_texts(data, wordpiece):
    columns = dataclasses.replace(data.columns, second="{second}")
    own = {
        "task": "tasks.files:classify",
        "columns": columns,
        "layout": layouts.Labelled(),
        "augment": dataclasses.replace(data.augment, template="{passages} {inputs}"),
    }
    for length in (12, 16, 32):
        one = shown(data, wordpiece, inputs_length=length, **own)[1]
        ids = one.inputs.tolist()
        sides = wordpiece.decode(ids[: ids.index(wordpiece.sep_id)]).split()
        assert len(ids) <= length
        assert " ".join(sides).endswith("the dog")
        assert ids[-3:] == [*wordpiece.encode("the dog"), wordpiece.sep_id]


def test_training_on_the_fly_is_shuffled_and_resumes(data, sentencepiece):
    from t5x_lite.data import batches as data_batches

    batches = data_batches.train_batches(data, sentencepiece, seed=0)
    first = next(batches)
    texts = {sentencepiece.decode(row[row > 1].tolist()) for row in first["encoder_input_tokens"]}
    assert "question: a context: Dogs the dog run" in texts
    assert len(texts) == 3
    state = batches.state()
    expected = next(batches)["encoder_input_tokens"]
    again = data_batches.train_batches(data, sentencepiece, seed=0)
    again.restore(state)
    assert (next(again)["encoder_input_tokens"] == expected).all()
    other = dataclasses.replace(data, augment=dataclasses.replace(data.augment, k=1))
    with pytest.raises(
        InputError, match="the saved data position belongs to data with other settings: augment"
    ):
        data_batches.train_batches(other, sentencepiece, seed=0).restore(state)


def test_a_cache_holds_the_passages(data, sentencepiece, tmp_path):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.cache.making import write_cache

    index = write_cache(data, sentencepiece, tmp_path / "cache")
    assert index.recipe.lengths == {"inputs": 32, "targets": 8}  # passages were cut for these
    from_cache = dataclasses.replace(data, cache=str(tmp_path / "cache"), shuffle=False)
    stored = data_batches.train_batches(from_cache, sentencepiece, seed=0)
    live = data_batches.train_batches(
        dataclasses.replace(data, shuffle=False), sentencepiece, seed=0
    )
    name = "encoder_input_tokens"
    assert (next(stored)[name] == next(live)[name]).all()
    stored.close()
    for change, message in (
        (
            {"run": "", "passages": ""},
            r"written with data\.augment\.run '.*run\.trec', but data\.augment\.run is unset",
        ),
        ({"k": 1}, r"written with data\.augment\.k '2', but data\.augment\.k is '1'; set --data"),
    ):
        other = dataclasses.replace(from_cache, augment=dataclasses.replace(data.augment, **change))
        with pytest.raises(InputError, match=message):
            data_batches.train_batches(other, sentencepiece, seed=0)
    alone = dataclasses.replace(from_cache, task="", augment=Augment())
    data_batches.train_batches(alone, sentencepiece, seed=0).close()


def test_a_run_for_each_split(data, sentencepiece, tmp_path):
    write(tmp_path / "files", ranked={"0": ["d1"], "1": ["d2"], "2": ["d2"]}, name="v.trec")
    (tmp_path / "files" / "v.trec").rename(tmp_path / "files" / "validation.trec")
    numbered = dataclasses.replace(data.columns, id="")
    run = str(tmp_path / "files" / "{split}.trec")
    augment = dataclasses.replace(data.augment, run=run)
    first, *_ = shown(data, sentencepiece, augment=augment, columns=numbered)
    assert first.inputs_text == "question: what run context: Dogs the dog run"
    augment = dataclasses.replace(augment, run=run.replace("{split}", "validation"))
    with pytest.raises(
        InputError, match=r"the example ids of task files are row numbers, .* \{split\}"
    ):
        shown(data, sentencepiece, augment=augment, columns=numbered)


def test_ids_that_the_run_lacks(data, sentencepiece, tmp_path, caplog):
    write(tmp_path / "files", ranked={"q0": ["d2"], "other": ["d1"]})
    message = r"2 of the 3 examples of the split validation have no passages in the run, .* 'q1'"
    with pytest.raises(InputError, match=message):
        shown(data, sentencepiece)
    kept = dataclasses.replace(data.augment, missing="keep")
    found = shown(data, sentencepiece, augment=kept)
    assert [one.inputs_text for one in found] == [
        "question: what run context: a cat",
        "question: the dog context:",
        "question: a context:",
    ]
    assert "2 of the 3 examples of the split validation have no passages" in caplog.text
    write(tmp_path / "files", ranked={"other": ["d1"]})
    with pytest.raises(InputError, match="3 of the 3 examples"):
        shown(data, sentencepiece, augment=kept)
    write(tmp_path / "files", ranked={**RANKED, "q2": ["d9"]})
    with pytest.raises(
        InputError, match=r"1 passages of the run are not in .*corpus\.jsonl, such as 'd9'"
    ):
        shown(data, sentencepiece)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run": "none.trec"}, r"none\.trec: No such file"),
        ({"passages": "none.jsonl"}, r"none\.jsonl"),
    ],
)
def test_files_that_are_missing(data, sentencepiece, changes, message):
    augment = dataclasses.replace(data.augment, **changes)
    with pytest.raises(InputError, match=message):
        shown(data, sentencepiece, augment=augment)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "3 of the 3 examples of the split validation have no passages"),
        ("q0 Q0 d1 x 1.0 y\n", r"run\.trec:1: "),
        ("q0 d1\n", r"run\.trec:1: "),
    ],
)
def test_runs_that_are_wrong(data, sentencepiece, tmp_path, content, message):
    (tmp_path / "files" / "run.trec").write_text(content)
    with pytest.raises(InputError, match=message):
        shown(data, sentencepiece)


def test_tasks_without_an_input_text(data, wordpiece, sentencepiece, tmp_path):
    from t5x_lite.data import batches as data_batches

    (tmp_path / "files" / "prose.txt").write_text("the dog run " * 40)
    masked = {"task": "tasks.encoder:lines", "layout": layouts.Encoder(), "columns": Columns()}
    with pytest.raises(InputError, match="are not a single text"):
        next(data_batches.train_batches(dataclasses.replace(data, **masked), wordpiece, seed=0))
    mixture = dataclasses.replace(data, task="tasks.mixtures:glue", columns=Columns())
    with pytest.raises(
        InputError, match=r"data\.augment\.run contains the example ids of one task"
    ):
        next(data_batches.train_batches(mixture, sentencepiece, seed=0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "data.augment.k must be at least 1: got 0"),
        ({"run": "a"}, "belong together"),
        ({"passages": "a"}, "belong together"),
        ({"template": "{inputs}"}, "template must contain {passages}"),
        ({"template": "{inputs} {passages} {x}"}, "names the field 'x'"),
        ({"passage": "{title}"}, "passage must contain {text}"),
    ],
)
def test_settings_that_are_wrong(options, message):
    with pytest.raises(InputError, match=message):
        Augment(**options)


def test_settings_are_kept_in_configs(data):
    assert from_json(to_json(data), source="x") == data
    assert "augment" not in identity_of(dataclasses.replace(data, augment=Augment()), seed=0)
    assert identity_of(data, seed=0)["augment"]["k"] == 2
