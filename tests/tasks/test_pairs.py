import json

import pytest

from t5x_lite.data import elements
from t5x_lite.errors import InputError
from tests import tokenizer_files


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    from t5x_lite.vocabulary.loading import load_vocabulary

    return load_vocabulary(tokenizer_files.write_wordpiece(tmp_path_factory.mktemp("vocabulary")))


@pytest.fixture
def texts(tmp_path, vocabulary):
    """A function that gives query and passages of a task's examples, as text."""
    from t5x_lite.data import layouts
    from t5x_lite.data.config import TaskArguments
    from tasks import pairs

    def read(name, *, split="train"):
        arguments = TaskArguments(
            vocabulary=vocabulary,
            directory=str(tmp_path),
            inputs_length=10,
            targets_length=12,
            layout=layouts.Groups(negatives=1),
        )
        task = getattr(pairs, name)(arguments)
        dataset = task.get_dataset({"query": 10}, split, shuffle=False)
        shown = ("query", "positives", "negatives")
        return [
            tuple(vocabulary.decode(example[name].tolist()) for name in shown)
            for example in dataset.as_numpy_iterator()
        ]

    return read


def write(path, *records):
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(map(json.dumps, records)))


def test_jsonl(texts, tmp_path):
    write(tmp_path / "a.jsonl", {"query": "The dog", "pos": ["run", "dogs"], "neg": ["the"]})
    write(tmp_path / "validation.jsonl", {"query": "dog", "pos": ["dogs"]})
    assert texts("jsonl") == [("the dog", "run", "the"), ("the dog", "dogs", "the")]
    assert texts("jsonl", split="validation") == [("dog", "dogs", "")]


def test_a_line_that_is_no_pair_is_named(texts, tmp_path):
    from t5x_lite.data.quiet_tensorflow import tf

    write(tmp_path / "a.jsonl", {"query": "The dog", "pos": ["run"]}, {"query": "The dog"})
    write(tmp_path / "validation.jsonl", {"query": "dog", "pos": ["dogs"]})
    with pytest.raises(tf.errors.OpError) as caught:
        texts("jsonl")
    found = elements.input_error(caught.value)
    assert isinstance(found, InputError)
    assert str(found).endswith('a.jsonl:2: "pos" must have a passage that answers the query')


def test_the_same_text(texts, tmp_path):
    (tmp_path / "a.txt").write_text("The dog\n\nrun")
    (tmp_path / "validation.txt").write_text("dogs")
    assert texts("same_text") == [("the dog", "the dog", ""), ("run", "run", "")]


def test_beir(texts, tmp_path):
    write(tmp_path / "corpus.jsonl", *({"_id": w, "title": "The", "text": w} for w in ("dog", "a")))
    write(tmp_path / "queries.jsonl", {"_id": "1", "text": "Dogs"})
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "train.tsv").write_text("q\tc\ts\n1\tdog\t1\n1\ta\t0\n")
    assert texts("beir") == [("dogs", "the dog", "the a")]


def test_ms_marco(texts, tmp_path):
    (tmp_path / "collection.tsv").write_text("0\tdogs run\n1\tthe dog\n")
    (tmp_path / "queries.train.tsv").write_text("7\tDogs\n8\trun\n")
    (tmp_path / "qrels.train.tsv").write_text("7\t0\t1\t1\n")
    assert texts("marco") == [("dogs", "the dog", "")]


def test_titles_of_passages(texts, tmp_path):
    records = [("Dogs", "Dogs run"), ("", "the dog"), ("The dog", "The dog")]
    lines = ({"_id": str(n), "title": t, "text": x} for n, (t, x) in enumerate(records))
    write(tmp_path / "corpus.jsonl", *lines)
    assert texts("titles") == [("dogs", "run", "")]


def test_sts_b_has_grades(tmp_path, vocabulary):
    from t5x_lite.data import layouts
    from t5x_lite.data.config import TaskArguments
    from tasks import pairs

    def task(directory):
        return pairs.stsb(
            TaskArguments(
                vocabulary=vocabulary,
                directory=str(directory),
                inputs_length=10,
                targets_length=12,
                layout=layouts.Groups(teacher=True),
            )
        )

    with pytest.raises(InputError, match=r"no STS-B/train\.tsv in data\.directory"):
        task(tmp_path)
    (tmp_path / "STS-B").mkdir()
    lines = ["index\tsentence1\tsentence2\tscore", "0\tthe dog\tdogs run\t3.25", "1\trun\tthe\t0"]
    for name in ("train", "dev"):
        (tmp_path / "STS-B" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    dataset = task(tmp_path).get_dataset({"query": 10}, "train", shuffle=False)
    found = [
        (vocabulary.decode(one["query"].tolist()), one["scores"].tolist())
        for one in dataset.as_numpy_iterator()
    ]
    assert [scores for _, scores in found] == [[3.25], [0.0]]
    assert "the dog" in found[0][0]


@pytest.mark.parametrize(
    ("positives", "most", "needs_buffer"),
    [("each", 1, False), ("sample", 2, False), ("each", 2, True)],
)
def test_pairs_in_memory_are_permuted_as_a_whole(
    tmp_path, vocabulary, positives, most, needs_buffer
):
    from t5x_lite.data import layouts
    from t5x_lite.data.config import TaskArguments
    from tasks import pairs

    write(
        tmp_path / "train.jsonl",
        *({"query": "dog", "pos": ["run"] * k} for k in range(1, most + 1)),
    )
    write(tmp_path / "validation.jsonl", {"query": "dog", "pos": ["run"]})
    arguments = TaskArguments(
        vocabulary=vocabulary,
        directory=str(tmp_path),
        inputs_length=10,
        targets_length=12,
        layout=layouts.Groups(positives=positives),
    )
    passes = pairs.jsonl(arguments).source.passes("train", seed=0)
    assert (passes.size, passes.needs_buffer) == (most, needs_buffer)
