import functools
import json

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data import elements
from tests import tokenizer_files


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    return load_vocabulary(tokenizer_files.write_wordpiece(tmp_path_factory.mktemp("vocabulary")))


@pytest.fixture
def texts(tmp_path, vocabulary):
    """A function that gives query and passages of a task's examples, as text."""
    from t5x_lite import layouts
    from t5x_lite.data.config import TaskArguments
    from tasks import pairs

    def read(name, *, split="train", negatives=1):
        arguments = TaskArguments(
            vocabulary=vocabulary,
            directory=str(tmp_path),
            inputs_length=10,
            targets_length=12,
            layout=layouts.Groups(negatives=negatives),
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


def test_negatives_that_no_row_gets_are_warned_of_once(texts, tmp_path, caplog, monkeypatch):
    from t5x_lite.data.tasks import encoder as readers

    once = functools.cache(readers._warn_of_unused_negatives.__wrapped__)
    monkeypatch.setattr(readers, "_warn_of_unused_negatives", once)
    write(tmp_path / "a.jsonl", {"query": "dog", "pos": ["run"], "neg": ["the"]})
    write(tmp_path / "validation.jsonl", {"query": "dog", "pos": ["dogs"], "neg": ["a"]})
    texts("jsonl")
    assert caplog.messages == []
    for split in ("train", "validation"):
        texts("jsonl", split=split, negatives=0)
    (message,) = caplog.messages
    assert "set --data.layout.negatives N" in message


def test_a_negative_that_another_line_of_the_query_has_as_positive(texts, tmp_path):
    write(
        tmp_path / "a.jsonl",
        {"query": "The dog", "pos": ["run"], "neg": ["Dogs ", "the"]},
        {"query": "the  DOG", "pos": ["dogs"], "neg": ["run"]},
        {"query": "dog", "pos": ["the"], "neg": ["run"]},
    )
    write(tmp_path / "validation.jsonl", {"query": "a", "pos": ["dogs"]})
    assert texts("jsonl") == [
        ("the dog", "run", "the"),
        ("the dog", "dogs", ""),
        ("dog", "the", "run"),
    ]


def test_a_negative_with_the_id_of_a_positive_of_another_line(texts, tmp_path):
    write(
        tmp_path / "a.jsonl",
        {"query": "dog", "pos": ["run"], "pos_ids": ["7"], "neg": ["dogs"], "neg_ids": ["8"]},
        {"query": "dog", "pos": ["the"], "pos_ids": [8], "neg": ["dog"], "neg_ids": ["9"]},
    )
    write(tmp_path / "validation.jsonl", {"query": "a", "pos": ["dogs"]})
    assert texts("jsonl") == [("dog", "run", ""), ("dog", "the", "dog")]


def test_triplets_of_one_query(texts, tmp_path):
    (tmp_path / "train.tsv").write_text("dog\trun\tdogs\ndog\tdogs\tthe\n")
    (tmp_path / "validation.tsv").write_text("a\trun\tdogs\n")
    assert texts("triplets") == [("dog", "run", ""), ("dog", "dogs", "the")]


def test_questions_of_dpr_that_are_given_twice(texts, tmp_path):
    def question(positive, negative):
        one, other = ({"title": "", "text": text} for text in (positive, negative))
        return {"question": "dog", "positive_ctxs": [one], "hard_negative_ctxs": [other]}

    records = [question("run", "dogs"), question("dogs", "the")]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.json").write_text(json.dumps(records))
    assert texts("dpr") == [("dog", "run", ""), ("dog", "dogs", "the")]


def test_a_line_that_is_no_pair_is_named(texts, tmp_path):
    from t5x_lite.data.elements import tf

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
    from t5x_lite import layouts
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


@pytest.mark.parametrize("positives", ["each", "sample"])
@pytest.mark.parametrize("kind", ["jsonl", "beir"])
def test_pairs_in_memory_are_permuted_as_a_whole(tmp_path, vocabulary, kind, positives):
    from t5x_lite import layouts
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.config import Data

    answers = {"dog": ["a"], "run": ["b", "c"], "the": ["d", "e", "f"]}
    if kind == "jsonl":
        lines = [{"query": query, "pos": found} for query, found in answers.items()]
        write(tmp_path / "train.jsonl", *lines)
        write(tmp_path / "validation.jsonl", {"query": "dog", "pos": ["run"]})
    else:
        (tmp_path / "qrels").mkdir()
        write(tmp_path / "corpus.jsonl", *({"_id": text, "text": text} for text in "abcdef"))
        write(tmp_path / "queries.jsonl", *({"_id": query, "text": query} for query in answers))
        rows = [f"{query}\t{text}\t1\n" for query, found in answers.items() for text in found]
        (tmp_path / "qrels" / "train.tsv").write_text("".join(rows))
    data = Data(
        task=f"tasks.pairs:{kind}",
        vocabulary="",
        directory=str(tmp_path),
        batch_size=6 if positives == "each" else 3,
        inputs_length=10,
        targets_length=12,
        layout=layouts.Groups(positives=positives),
        pack=False,
    )
    batches = data_batches.train_batches(data, vocabulary, seed=0)
    assert batches.size == data.batch_size
    orders = []
    for _ in range(3):
        rows = next(batches)["passage_tokens"][:, 0]
        orders.append([vocabulary.decode([int(t) for t in row if t > 1][1:-1]) for row in rows])
    if positives == "each":
        assert all(sorted(order) == [*"abcdef"] for order in orders)
        # The answers of a query do not stay together.
        assert any(order.index("f") - order.index("d") not in (-2, -1, 1, 2) for order in orders)
    assert len({*map(tuple, orders)}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("positives", [1, 4])
def test_an_epoch_of_pairs_has_each_pair_once(tmp_path, vocabulary, positives):
    from t5x_lite import layouts
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.config import Data

    words = [a + b for a in "abcdefghij" for b in "abcdefghijkl"]
    texts = [f"{a} {b}" for a in words[:4] for b in words]  # 480
    lines = [{"query": f"q {n}", "pos": texts[n : n + positives]} for n in range(0, 480, positives)]
    write(tmp_path / "train.jsonl", *lines)
    write(tmp_path / "validation.jsonl", lines[0])
    data = Data(
        task="tasks.pairs:jsonl",
        vocabulary="",
        directory=str(tmp_path),
        layout=layouts.Groups(),
        batch_size=40,
        inputs_length=10,
        targets_length=12,
        pack=False,
    )
    batches = data_batches.train_batches(data, vocabulary, seed=0)
    for _ in range(2):
        rows = [row for _ in range(12) for row in next(batches)["passage_tokens"].tolist()]
        assert len({str(row) for row in rows}) == 480
