import dataclasses

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.pairs import Pairs, to_json
from t5x_lite.data.tasks import encoder as pair_task
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens
from t5x_lite.layouts import Groups
from t5x_lite.layouts.base import separate


def made(vocabulary, *pairs, lengths=(6, 5), layout=None):
    found = pair_task.examples(
        pairs,
        vocabulary=vocabulary,
        tokens=encoder_tokens(vocabulary),
        lengths=lengths,
        layout=layout or Groups(),
    )
    pieces = vocabulary.pieces()
    return [
        [" ".join(pieces[i] for i in example[name]) for name in Groups.features]
        for example in found
    ]


def test_each_answer_makes_an_example(vocabulary):
    pairs = Pairs("The dog", ["the", "dogs run"], ["run", ""])
    query, pool = "[CLS] the dog [SEP]", "[CLS] run [SEP] [CLS] [SEP]"
    assert made(vocabulary, pairs, Pairs("run", ["running"])) == [
        [query, "[CLS] the [SEP]", pool],
        [query, "[CLS] dog ##s run [SEP]", pool],
        ["[CLS] run [SEP]", "[CLS] run ##ning [SEP]", ""],
    ]
    assert made(vocabulary, pairs, layout=Groups(positives="sample")) == [
        [query, "[CLS] the [SEP] [CLS] dog ##s run [SEP]", pool]
    ]


def test_answers_that_are_never_drawn_are_kept_apart(vocabulary, monkeypatch):
    monkeypatch.setattr(pair_task, "MOST_POSITIVES", 2)
    pairs = [Pairs("the", ["the", "run", "dog", "dogs"], ["a"])]
    options = {"vocabulary": vocabulary, "tokens": encoder_tokens(vocabulary), "lengths": (6, 5)}
    (found,) = pair_task.examples(pairs, **options, layout=Groups(positives="sample"))
    assert [len(separate(found[name])) for name in ("positives", pair_task.MORE)] == [2, 2]
    found = pair_task.examples(pairs, **options, layout=Groups())
    assert [len(one[pair_task.MORE]) for one in found] == [0] * 4


def test_the_first_negatives_make_the_pool(vocabulary):
    pairs = Pairs("the", ["the"], ["run", "a", "b"])
    assert made(vocabulary, pairs, layout=Groups(negatives=1, negatives_top=2)) == [
        ["[CLS] the [SEP]", "[CLS] the [SEP]", "[CLS] run [SEP] [CLS] a [SEP]"]
    ]


def test_long_texts_are_cut_and_special_tokens_in_them_begin_no_passage(vocabulary):
    pairs = Pairs("the dogs run the dog", ["the [CLS] dog run"], ["dogs run the"])
    assert made(vocabulary, pairs) == [
        [
            "[CLS] the dog ##s run [SEP]",
            "[CLS] the [UNK] dog [SEP]",
            "[CLS] dog ##s run [SEP]",
        ]
    ]


def test_a_teachers_scores_are_those_of_the_texts(vocabulary):
    pairs = Pairs("the", ["the", "dog"], ["run", "a"], [2.0, 3.0], [-1.0, float("nan")])
    options = {"vocabulary": vocabulary, "tokens": encoder_tokens(vocabulary), "lengths": (6, 5)}
    first, second = pair_task.examples([pairs], **options, layout=Groups(negatives_top=1))
    assert (first["scores"].tolist(), second["scores"].tolist()) == ([2.0, -1.0], [3.0, -1.0])
    (whole,) = pair_task.examples([pairs], **options, layout=Groups(positives="sample"))
    np.testing.assert_array_equal(whole["scores"], np.float32([2, 3, -1, np.nan]))
    (without,) = pair_task.examples([Pairs("the", ["dog"])], **options, layout=Groups())
    assert np.isnan(without["scores"]).tolist() == [True]


def test_special_tokens_that_a_text_spells_out_are_unknown(vocabulary):
    pairs = Pairs("the [SEP] dog", ["[MASK] the [PAD]"], ["[CLS][SEP]"])
    assert made(vocabulary, pairs) == [
        ["[CLS] the [UNK] dog [SEP]", "[CLS] [UNK] the [UNK] [SEP]", "[CLS] [UNK] [UNK] [SEP]"]
    ]


@pytest.mark.gate("each")
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(Groups(negatives=2), id="each"),
        pytest.param(Groups(negatives=2, positives="sample", teacher=True), id="sample"),
    ],
)
@pytest.mark.slow
def test_a_task_and_its_cache_give_the_same_rows(vocabulary, tmp_path, english_lines, layout):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.cache.making import write_cache
    from t5x_lite.data.config import Data

    lines = [
        to_json(
            Pairs(
                line[:30],
                [line[:60], line[30:50]],
                english_lines[: n % 6],
                [0.1 * n, -0.5],
                [0.01 * place for place in range(n % 6)],
            )
        )
        for n, line in enumerate(english_lines[:60])
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(lines[:50]))
    (tmp_path / "validation.jsonl").write_text("\n".join(lines[50:]))
    options = {
        "task": "tasks.pairs:jsonl",
        "vocabulary": "",
        "directory": str(tmp_path),
        "layout": layout,
        "batch_size": 8,
        "inputs_length": 12,
        "targets_length": 20,
        "pack": False,
        "shuffle": False,
    }
    data = Data(**options)
    index = write_cache(data, vocabulary, tmp_path / "cache")
    assert index.recipe.lengths == {"query": 12, "positives": 20, "negatives": 20}
    from_cache = Data(**options, cache=str(tmp_path / "cache"))
    one = data_batches.train_batches(data, vocabulary, seed=0)
    other = data_batches.train_batches(from_cache, vocabulary, seed=0)
    drawn = []
    for number in range(14):  # into the second epoch
        if number == 9:
            position = one.state()
            one = data_batches.train_batches(data, vocabulary, seed=0)
            one.restore(position)
        expected, found = next(one), next(other)
        shapes = {
            "query_tokens": (8, 12),
            "query_segment_ids": (8, 12),
            "passage_tokens": (8, 3, 20),
            "passage_segment_ids": (8, 3, 20),
        }
        shapes |= {"teacher_scores": (8, 3)} if layout.teacher else {}
        assert {name: value.shape for name, value in found.items()} == shapes
        for name, value in found.items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)
        drawn += zip(found["query_tokens"].tolist(), found["passage_tokens"].tolist(), strict=True)
    epoch = 100 if layout.positives == "each" else 50
    assert len(drawn) > epoch
    again = list(zip(drawn, drawn[epoch:], strict=False))
    assert all(one[0] == other[0] for one, other in again)
    assert any(one[1] != other[1] for one, other in again)  # other negatives
    other.close()
    expected = list(data_batches.eval_batches(data, vocabulary))
    assert len(expected) == (3 if layout.positives == "each" else 2)
    assert expected[-1]["passage_segment_ids"][4:].sum() == 0
    for got, wanted in zip(
        data_batches.eval_batches(from_cache, vocabulary), expected, strict=True
    ):
        for name, value in got.items():
            np.testing.assert_array_equal(value, wanted[name])
    # The pool is in the cache: how many are drawn of it is said where it is read.
    fewer = dataclasses.replace(layout, negatives=1)
    data_batches.train_batches(
        dataclasses.replace(from_cache, layout=fewer), vocabulary, seed=0
    ).close()
    with pytest.raises(
        InputError, match=r"was written for data\.targets_length 20, but data\.targets_length is 24"
    ):
        data_batches.train_batches(
            dataclasses.replace(from_cache, targets_length=24), vocabulary, seed=0
        )
    for changed, message in (
        (
            {"positives": "sample" if layout.positives == "each" else "each"},
            "but the cache was made with",
        ),
        (
            {"negatives_top": 300},
            r"the cache has only the first 200 negatives of each query; .*-top 200, or write",
        ),
    ):
        other = dataclasses.replace(layout, teacher=False, **changed)
        with pytest.raises(InputError, match=message):
            data_batches.train_batches(
                dataclasses.replace(from_cache, layout=other), vocabulary, seed=0
            )


def test_every_answer_makes_an_example_however_many_there_are(vocabulary):
    pairs = Pairs("the", ["dog"] * 250, ["run"])
    assert len(made(vocabulary, pairs)) == 250
    (sampled,) = made(vocabulary, pairs, layout=Groups(positives="sample"))
    assert sampled[1].count("dog") == 200


def unnumbered(arguments):
    """A task of one's own that forgets to number its examples."""
    import seqio

    from tasks import pairs

    task = pairs.jsonl(arguments)
    keep = [step for step in task.preprocessors if isinstance(step, seqio.CacheDatasetPlaceholder)]
    return task.replace(preprocessors=[task.preprocessors[0], *keep])


def test_a_task_needs_not_number_its_examples(vocabulary, tmp_path, monkeypatch):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data import loading, mixtures
    from t5x_lite.data.config import Data

    line = to_json(Pairs("the", ["dog"], ["run"]))
    (tmp_path / "train.jsonl").write_text(line)
    (tmp_path / "validation.jsonl").write_text(line)
    for module in (loading, mixtures):
        monkeypatch.setattr(module, "find_task", lambda name: unnumbered)
    data = Data(
        task="my:own", vocabulary="", directory=str(tmp_path), layout=Groups(), pack=False,
        inputs_length=8, targets_length=8,
    )  # fmt: skip
    assert next(data_batches.train_batches(data, vocabulary, seed=0))["query_tokens"].any()


def test_names_are_those_of_the_passages(vocabulary):
    options = {"vocabulary": vocabulary, "tokens": encoder_tokens(vocabulary), "lengths": (6, 5)}
    pairs = Pairs("the", ["the", "dog"], ["run"], positive_ids=["7", "8"], negative_ids=["8"])
    layout = Groups(known_positives=2)
    first, second = (
        {name: example[name].reshape(-1, 4).tolist() for name in ("passage_ids", "positive_ids")}
        for example in pair_task.examples([pairs], **options, layout=layout)
    )
    seven, eight = first["positive_ids"]
    assert first == {"passage_ids": [seven, eight], "positive_ids": [seven, eight]}
    assert second == {"passage_ids": [eight, eight], "positive_ids": [seven, eight]}
    assert seven != eight
    assert all(0 <= number < 2**16 for number in seven)
    (without,) = pair_task.examples([Pairs("the", ["dog"])], **options, layout=layout)
    assert not without["passage_ids"].any()
