"""refresh: which steps are searched for, what answers a query, and what a checkpoint finds."""

import dataclasses
import json
import shutil
import string
import threading
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t5x_lite.checkpoints import reading
from t5x_lite.checkpoints.items import lazy_params
from t5x_lite.commands.pairs import refresh
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.core.errors import InputError
from t5x_lite.data.cache import refreshes
from t5x_lite.data.config import Bucketed, Data, Refresh
from t5x_lite.data.formats.pairs import Pairs
from t5x_lite.data.tasks import encoder as pair_tasks
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.layouts import Groups
from t5x_lite.models.published import bert_base
from t5x_lite.objectives.contrastive import Contrastive
from t5x_lite.optim.config import AdamW, Constant
from t5x_lite.retrieval import refresh_search
from t5x_lite.retrieval.pairs import RULES, Document, Filters, Sieve, plain
from tests import tokenizer_files
from tests.config_files import saved
from tests.encoder_checkpoint import write_checkpoint

PASSAGES = ["a b", "c", "d e f", "g", "h a", "b c d", "a b"]
EXAMPLES = [("a", "a b"), ("c d", "c"), ("a", "g"), ("g", "h a")]
"""Queries and what answers them."""


def test_the_steps_that_are_needed(tmp_path):
    rule = Refresh(period=2, lag=1, directory=str(tmp_path))
    assert refresh_search.needed_steps(rule, 9) == [2, 4, 6]
    assert refresh_search.needed_steps(rule, 4) == []


@pytest.mark.slow
def test_a_search_has_the_nearest_passages_without_the_answers(tmp_path, compile_once, monkeypatch):
    checkpoint = str(write_checkpoint(tmp_path, "bert"))
    encoder = Checkpoint.load([checkpoint]).encoder(pooling="mean")
    texts = [*PASSAGES, *(query for query, _ in EXAMPLES)]
    rows = dict(zip(texts, encoder.rows(texts).rows, strict=True))
    refreshes.Passages.write(tmp_path / "r", [rows[text] for text in PASSAGES])
    pool = refreshes.Passages.open(tmp_path / "r")
    queries = refresh_search.CachedQueries(
        [{"query": rows[q], "positives": rows[p]} for q, p in EXAMPLES], pool
    )
    # "a" has two examples; "g" is a passage, too.
    assert queries.answers == [{0, 3, 6}, {1}, {3, 4}]
    assert queries.of_examples.tolist() == [0, 1, 0, 2]
    model = types.SimpleNamespace(encoder=lambda: encoder)
    monkeypatch.setattr(Checkpoint, "load", lambda *_, **__: model)
    monkeypatch.setattr(refresh_search, "_CHUNK_BATCHES", 1)
    rule = Refresh(period=2, lag=1, top=5, directory=str(tmp_path / "r"))
    found = refresh_search.search(rule, "w", 2, pool, queries, batch_size=2)
    embed = encoder.embedder(batch_size=2)
    scores = embed.run(encoder.params, [rows[q] for q, _ in EXAMPLES]) @ (
        embed.run(encoder.params, [rows[text] for text in PASSAGES]).T
    )
    for row, (numbers, query) in enumerate(zip(found, queries.of_examples, strict=True)):
        order = np.argsort(-scores[row], kind="stable").tolist()
        expected = [k for k in order if k not in queries.answers[query]][:5]
        assert numbers.tolist() == [*expected, *[-1] * (5 - len(expected))]
    assert not (tmp_path / "r" / "2.partial").exists()


def test_a_checkpoint_that_is_gone(monkeypatch):
    monkeypatch.setattr(reading, "saved_steps", lambda path: [4, 6])
    with pytest.raises(InputError, match="the checkpoint of step 2 was deleted"):
        refresh_search.wait_for("w", 2, once=False)
    assert refresh_search.wait_for("w", 4, once=False)
    assert not refresh_search.wait_for("w", 8, once=True)


def test_a_checkpoint_that_comes(monkeypatch):
    there = iter([[], [2], [2, 4]])
    monkeypatch.setattr(reading, "saved_steps", lambda path: next(there))
    monkeypatch.setattr(refresh_search, "POLL_SECONDS", 0.0)
    assert refresh_search.wait_for("w", 4, once=False)


BODY = "a b c d e f g h i j k l m n o a c e g i k m o"
"""Words of the vocabulary, more than the 8 of the shortest text that is found inside another."""
SOURCES = {
    # The document, and the rule that makes its pair.
    "title_body": ({"title": "n m", "text": BODY}, "title_body"),
    "first_line_body": ({"text": f"n m\n{BODY}"}, "title_body"),
    "title_repeated": ({"title": "n m", "text": f"n m\n{BODY}"}, "title_body"),
    "title_abstract": ({"title": "n m", "abstract": BODY, "text": BODY}, "title_abstract"),
    "question_answer": ({"title": "n", "question": "n m", "answers": [BODY], "text": BODY}, None),
    "instruction_output": ({"instruction": "n m", "output": BODY, "text": f"n m {BODY}"}, None),
    "heading_section": ({"title": "n", "text": f"o o\n# n m\n{BODY}"}, "heading_section"),
    "sentences": ({"title": "n", "text": f"{BODY}. {BODY[::-1]}. {BODY[4:]}."}, "sentences"),
    "code_docstring": ({"docstring": "n m", "code": BODY, "text": BODY, "title": "k"}, None),
    "parallel": ({"src": "n m", "tgt": BODY, "title": "k", "text": BODY}, "parallel"),
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return Checkpoint.load([str(write_checkpoint(tmp_path_factory.mktemp("e"), "bert"))]).encoder()


def pool_of(encoder, directory, lines, *, length=64, **layout):
    corpus = directory / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = Data(
        task="tasks.pairs:jsonl",
        vocabulary="",
        layout=Groups(**layout),
        pack=False,
        targets_length=length,
        refresh=Refresh(period=1, directory=str(directory / "r")),
    )
    return refresh_search.tokenized_passages(data, encoder.loaded.vocabulary, [str(corpus)])


def queries_of(encoder, pairs, pool, *, length=64, **layout):
    vocabulary = encoder.loaded.vocabulary
    made = pair_tasks.examples(
        pairs,
        vocabulary=vocabulary,
        tokens=encoder_tokens(vocabulary),
        lengths=(16, length),
        layout=Groups(**layout),
    )
    return refresh_search.CachedQueries(made, pool, length=length)


@pytest.mark.parametrize(
    ("source", "length"),
    [
        (source, length)
        for source in SOURCES
        for length in (24, 64)
        # A truncated row of a document does not hold what stands behind its beginning.
        if length == 64 or source not in ("sentences", "heading_section")
    ],
)
def test_the_answer_of_each_rule_of_pairs_is_recognized(tmp_path, encoder, source, length):
    document, rule = SOURCES[source]
    sieve = Sieve(Filters(min_query_words=1, min_passage_words=1))
    raws = [sieve.keep(raw) for raw in RULES[rule or source](Document("f:1", document))]
    pairs = [Pairs(raw.query, [raw.passage]) for raw in raws if raw][:1]
    others = [{"title": "n m", "text": "h g f e d c b a h g f e"}, {"text": "c c"}]
    # A duplicate of the document under another id and title is an answer, too.
    lines = [*others, document, {**document, "title": "o o"}]
    pool = pool_of(encoder, tmp_path, lines, length=length)
    queries = queries_of(encoder, pairs, pool, length=length)
    assert [queries.answered_by(0, number) for number in range(4)] == [False, False, True, True]


@pytest.mark.parametrize("positives", ["each", "sample"])
def test_an_answer_is_recognized_by_its_id(tmp_path, encoder, positives):
    pool = pool_of(encoder, tmp_path, [{"_id": "x", "text": "a b"}, {"_id": "y", "text": "c"}])
    pairs = [Pairs("o", ["n", "k"], positive_ids=["z", "y"])]
    queries = queries_of(encoder, pairs, pool, known_positives=1, positives=positives)
    assert queries.answers == [{1}]
    assert (queries.num_answers, queries.num_unknown) == (2, 1)


def test_answers_behind_a_prompt_are_recognized(tmp_path, encoder):
    pool = pool_of(encoder, tmp_path, [{"_id": "x", "text": BODY}, {"_id": "y", "text": "c"}])
    queries = queries_of(encoder, [Pairs("o", [f"l l {BODY}"])], pool)
    assert [queries.answered_by(0, number) for number in range(2)] == [True, False]


def test_answers_that_are_not_in_the_pool_are_counted(tmp_path, encoder, caplog):
    pool = pool_of(encoder, tmp_path, [{"title": "n", "text": "a b"}, {"text": "c"}])
    queries = queries_of(encoder, [Pairs("o", ["a b", "k k"]), Pairs("m", ["c"])], pool)
    assert (queries.num_answers, queries.num_unknown) == (3, 1)
    queries.tell()
    assert "1 of 3 positives (33.3 %) are not in the passage files" in caplog.text
    caplog.clear()
    queries_of(encoder, [Pairs("o", ["c"])], pool).tell()
    assert not caplog.text


def test_special_tokens_in_passages_do_not_divide_them(tmp_path, encoder):
    text = "a [CLS] b [SEP] c"
    pool = pool_of(encoder, tmp_path, [{"text": text}])
    queries = queries_of(encoder, [Pairs("o", [text])], pool)
    assert queries.answers == [{0}]
    assert np.count_nonzero(pool.tokens(0) == pool.tokens(0)[0]) == 1


def test_passages_of_an_earlier_version_get_their_keys(tmp_path, encoder):
    lines = [{"title": "n", "text": "a b"}, {"text": "c"}]
    pool = pool_of(encoder, tmp_path, lines)
    (tmp_path / "r" / "passages" / "keys.npy").unlink()
    assert not refreshes.Passages.open(tmp_path / "r").keys.any()
    np.testing.assert_array_equal(pool_of(encoder, tmp_path, lines).keys, pool.keys)
    (tmp_path / "r" / "passages" / "keys.npy").unlink()
    with pytest.raises(InputError, match="has other passages than --passages"):
        pool_of(encoder, tmp_path, lines[:1])


def with_vocabulary(vocabulary):
    return types.SimpleNamespace(loaded=types.SimpleNamespace(vocabulary=vocabulary))


TITLED = {"title": "n m", "text": "the dog  ran\r\nto the sea \n\nand back e\u0301"}
VOCABULARIES = ["wordpiece", "byte_level", "unigram", "sentencepiece"]


@pytest.fixture
def any_vocabulary(request, tmp_path, tiny_vocabulary):
    if request.param == "sentencepiece":
        return with_vocabulary(load_vocabulary(str(tiny_vocabulary), extra_ids=4))
    write = getattr(tokenizer_files, f"write_{request.param}")
    return with_vocabulary(load_vocabulary(str(write(tmp_path))))


@pytest.mark.parametrize("any_vocabulary", VOCABULARIES, indirect=True)
@pytest.mark.parametrize("form", ["text", "title text", "plain text", "plain title text"])
@pytest.mark.parametrize("has_title", [True, False])
def test_an_answer_is_recognized_by_each_vocabulary(tmp_path, any_vocabulary, form, has_title):
    document = TITLED if has_title else {"text": TITLED["text"]}
    lines = [document, {"title": "b", "text": "another passage of the sea"}]
    pool = pool_of(any_vocabulary, tmp_path, lines)
    title = f"{document['title']} " if "title" in form and has_title else ""
    answer = title + document["text"].strip()
    pairs = [Pairs("who", [plain(answer) if "plain" in form else answer])]
    queries = queries_of(any_vocabulary, pairs, pool)
    assert queries.answers == [{0}]
    assert queries.num_unknown == 0


def test_answers_that_are_never_drawn_are_known(tmp_path, encoder, monkeypatch):
    monkeypatch.setattr(pair_tasks, "MOST_POSITIVES", 2)
    pool = pool_of(encoder, tmp_path, [{"_id": x, "title": "o", "text": x} for x in "abcde"])
    pairs = [Pairs("o", [*"abcd"], positive_ids=[*"xxxx"])]
    layouts: list[dict[str, Any]] = [
        {"positives": "sample"},
        {"positives": "sample", "known_positives": 1},
        {},
    ]
    for layout in layouts:
        queries = queries_of(encoder, pairs, pool, **layout)
        assert queries.answers == [{0, 1, 2, 3}]
        assert (queries.num_answers, queries.num_unknown) == (4, 0)


def test_rows_of_the_encoder_of_t5_have_no_cls(tmp_path, tiny_vocabulary, monkeypatch):
    vocabulary = load_vocabulary(str(tiny_vocabulary), extra_ids=4)
    model = types.SimpleNamespace(begins_with_cls=False)
    seen = []

    class Encoder:
        loaded = types.SimpleNamespace(
            vocabulary=vocabulary, experiment=types.SimpleNamespace(model=model)
        )
        params = None

        def embedder(self, *, batch_size):
            return self

        def run(self, params, rows, *, role):
            seen.extend(rows)
            return np.array([[len(row), sum(row) % 7.0, 1.0] for row in rows], np.float32)

    encoder = Encoder()
    texts = ["the dog ran", "to the sea", "and back", "a boat"]
    lines = [{"title": f"t{n}", "text": text} for n, text in enumerate(texts)]
    pool = pool_of(encoder, tmp_path, lines, begins_with_cls=False)
    pairs = [Pairs(f"t{n}", [text]) for n, text in enumerate(texts)]
    queries = queries_of(encoder, pairs, pool, begins_with_cls=False)
    model = types.SimpleNamespace(encoder=lambda: encoder)
    monkeypatch.setattr(Checkpoint, "load", lambda *_, **__: model)
    rule = Refresh(period=2, lag=1, top=4, directory=str(tmp_path / "r"))
    found = refresh_search.search(rule, "w", 2, pool, queries, batch_size=2)
    tokens = encoder_tokens(vocabulary)
    assert len(seen) == 8
    assert all(row[0] != tokens.cls_id and row[-1] == tokens.sep_id for row in seen)
    # Each query has all passages but its own answer.
    assert [sorted(row) for row in found.tolist()] == [
        [-1, *(k for k in range(4) if k != n)] for n in range(4)
    ]


def letters(rng, count):
    """A text of so many words of one letter, of which each is a piece."""
    return " ".join(rng.choice([*string.ascii_lowercase], count))


@pytest.fixture
def by_length(tmp_path):
    """A run over 24 pairs, with batches of 10 and of 24 tokens and a search by step 2."""
    rng = np.random.default_rng(0)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    passages = [letters(rng, int(rng.choice([4, 6, 14, 18]))) for _ in range(40)]
    lines = (json.dumps({"_id": f"p{k}", "text": text}) for k, text in enumerate(passages))
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "pairs").mkdir()
    for split in ("train", "validation"):
        rows = (
            {"query": letters(rng, 4), "pos": [text], "neg": [letters(rng, 4), letters(rng, 5)]}
            for text in passages[:24]
        )
        content = "\n".join(map(json.dumps, rows)) + "\n"
        (tmp_path / "pairs" / f"{split}.jsonl").write_text(content)
    return Experiment(
        model=bert_base(
            vocab_size=len(pieces),
            d_model=8,
            d_ff=16,
            num_heads=2,
            num_layers=1,
            max_positions=24,
        ),
        objective=Contrastive(temperature=0.05, pooling="mean"),
        data=Data(
            task="tasks.pairs:jsonl",
            directory=str(tmp_path / "pairs"),
            vocabulary=str(tmp_path / "vocab.txt"),
            layout=Groups(negatives=2),
            batches=Bucketed({10: 4, 24: 2}),
            batch_size=2,
            inputs_length=8,
            targets_length=24,
            pack=False,
            refresh=Refresh(period=2, top=5, directory=str(tmp_path / "run" / "refresh")),
        ),
        optimizer=AdamW(schedule=Constant(value=1e-3)),
        steps=5,
        workdir=str(tmp_path / "run"),
        checkpoints=Checkpoints(period=2, keep=5),
        evaluation=Evaluation(loss=False, task_metrics=False),
    )


@pytest.mark.slow
def test_a_run_with_batches_by_length_and_a_search_beside_it(by_length, tmp_path, compile_once):
    """From files to weights; runs that resume before and after the search have the same ones."""
    from t5x_lite.commands.texts import cache
    from t5x_lite.train import training

    cache(saved(by_length, tmp_path), output=str(tmp_path / "cache"))
    data = dataclasses.replace(by_length.data, cache=str(tmp_path / "cache"))
    experiment = dataclasses.replace(by_length, data=data)
    workdir = Path(experiment.workdir)

    def search():
        while not (workdir / "config.json").is_file():
            time.sleep(0.05)
        refresh(str(workdir), passages=[str(tmp_path / "corpus.jsonl")], batch_size=8)

    thread = threading.Thread(target=search, daemon=True)
    thread.start()
    training.train(experiment)
    thread.join(timeout=60)
    assert refreshes.is_whole(workdir / "refresh", 2)
    last = workdir / "checkpoints" / "5"
    whole = {path: array.read() for path, array in lazy_params(last / "params").items()}
    for lost in (("5",), ("4", "5")):
        for step in lost:
            shutil.rmtree(workdir / "checkpoints" / step)
        training.train(experiment)
        for path, array in lazy_params(last / "params").items():
            np.testing.assert_array_equal(array.read(), whole[path])
