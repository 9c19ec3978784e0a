import dataclasses
import sys
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data import batches as data_batches
from t5x_lite.data.cache.recipe import Recipe
from t5x_lite.data.config import Data, own_negative_caches
from t5x_lite.data.mixing import Mixing
from t5x_lite.data.mixtures import Member, Mixture
from t5x_lite.data.scheduled import each_cache, mixed_sources
from t5x_lite.data.sources import identity_of
from t5x_lite.layouts import Groups


@pytest.fixture
def caches(tmp_path, small_cache, recipes, pairs):
    """Two caches, of 30 and 10 training examples."""
    return tuple(
        str(
            small_cache(
                tmp_path / name,
                {"train": pairs(count, longest=4)},
                recipes.supervised,
                task=f"some.glue:{name}",
            )
        )
        for name, count in (("cola", 30), ("rte", 10))
    )


def data(cache, **mixing):
    return Data(cache=cache, vocabulary="bytes", mixing=Mixing(**mixing))


def test_rates_are_from_the_numbers_of_examples(caches):
    assert mixed_sources(data(caches)) == [
        (caches[0], Fraction(3, 4)),
        (caches[1], Fraction(1, 4)),
    ]
    equal = [(directory, Fraction(1, 2)) for directory in caches]
    assert mixed_sources(data(caches, by="equal")) == equal
    assert mixed_sources(data(caches, maximum=10)) == equal
    # The roots of 30 and 10: 0.63397 of the examples.
    assert mixed_sources(data(caches, temperature=2.0))[0][1] == Fraction(6340, 10_000)


def test_caches_of_one_task_are_mixed_by_their_own_numbers(tmp_path, small_cache, recipes, pairs):
    """As those of languages are: three caches of one task, and one of another task."""
    sizes = {"en": 30, "sw": 10, "xx": 20}
    made = {
        name: str(
            small_cache(tmp_path / name, {"train": pairs(count, longest=4)}, recipes.supervised)
        )
        for name, count in sizes.items()
    }
    languages = tuple(made.values())

    def rates(*directories, **mixing):
        mixed = mixed_sources(data(directories, **mixing))
        assert [directory for directory, _ in mixed] == list(directories)
        return [int(rate * 10_000) for _, rate in mixed]

    assert rates(*languages) == [5000, 1667, 3333]
    assert rates(*languages, by="equal") == [3334, 3333, 3333]
    # Shares of 30, 10 and 20 to the power 0.3.
    assert rates(*languages, temperature=1 / 0.3) == [3839, 2761, 3400]
    left = mixed_sources(data(languages, leave_out=("sw",)))
    assert left == [(made["en"], Fraction(6, 10)), (made["xx"], Fraction(4, 10))]
    assert mixed_sources(data(languages, leave_out=(made["sw"],))) == left
    other = small_cache(
        tmp_path / "rte", {"train": pairs(20, longest=4)}, recipes.supervised, task="some.glue:rte"
    )
    four = mixed_sources(data((*languages, str(other)), leave_out=("en", "xx")))
    assert four == [(made["sw"], Fraction(3333, 10_000)), (str(other), Fraction(6667, 10_000))]
    with pytest.raises(InputError, match="names a directory twice"):
        mixed_sources(data((made["en"], f"{made['en']}/")))


def test_each_alone(tmp_path, small_cache, recipes, pairs):
    """Those that have the split, with or without a rate."""
    made = []
    for name, splits in (("en", ("train", "validation")), ("sw", ("train",))):
        examples = {split: pairs(3, longest=4) for split in splits}
        made.append(str(small_cache(tmp_path / name, examples, recipes.supervised)))
    both = data((f"{made[0]}=1", f"{made[1]}=2"))
    found = each_cache(both, split="validation")
    assert {name: one.cache for name, one in found.items()} == {"en": made[0]}
    assert list(each_cache(both, split="train")) == ["en", "sw"]
    with pytest.raises(InputError, match="two caches have the name en, "):
        each_cache(data((made[0], f"{made[0]}/")), split="train")
    with pytest.raises(InputError, match="loss_of_each_cache needs caches"):
        each_cache(Data(task="a.b:c", vocabulary="bytes"), split="train")


def test_rows_say_which_cache_they_are_of(caches):
    numbered = Data(
        cache=caches, vocabulary="bytes", adapter_of=("cola=1", f"{caches[1]}=0"), pack=False,
        batch_size=8, inputs_length=8, targets_length=8,
    )  # fmt: skip
    from t5x_lite.data.vocabularies.loading import Bytes

    vocabulary = Bytes()
    batches = data_batches.train_batches(numbered, vocabulary, seed=0)
    plain = data_batches.train_batches(
        dataclasses.replace(numbered, adapter_of=()), vocabulary, seed=0
    )
    ids = []
    for _ in range(5):
        batch, expected = next(batches), next(plain)
        own = batch.pop("adapter_ids")
        assert (own.shape, own.dtype) == ((8,), np.int32)
        assert batch.keys() == expected.keys()
        ids.append(own)
    # One of four of the first 40 examples is of the second cache.
    assert np.concatenate(ids).tolist().count(0) == 10
    alone = each_cache(numbered, split="train")["cola"]
    assert (
        next(data_batches.train_batches(alone, vocabulary, seed=0))["adapter_ids"].tolist()
        == [1] * 8
    )
    with pytest.raises(InputError, match=r"data\.adapter_of has no number for .*rte, only"):
        data_batches.train_batches(
            dataclasses.replace(numbered, adapter_of=("cola=0",)), vocabulary, seed=0
        )


def test_rows_say_which_caches_have_negatives_of_their_own(tmp_path, small_cache, monkeypatch):
    """Those that are named, and those whose directory's name says so."""
    names = ("query", "positives", "negatives")
    recipe = Recipe(
        stored=names,
        outputs=dict.fromkeys(names, False),
        eos="none",
        eos_id=1,
        lengths=dict.fromkeys(names, 4),
        fixed={"positives": "each", "negatives_top": 200},
    )
    monkeypatch.setattr("t5x_lite.data.batches.tokens_for", lambda *_: None)
    made = {}
    for first, name in enumerate(("nli", "sts", "classes_no_in_batch_neg")):
        examples = [[np.array([3, 50 * first + 10 + k, 4], np.int32)] * 3 for k in range(6)]
        made[name] = str(small_cache(tmp_path / name, {"train": examples}, recipe))

    def of(*caches, own=()):
        return Data(
            cache=caches, vocabulary="bytes", layout=Groups(), batch_size=6, inputs_length=4,
            targets_length=4, pack=False, own_negatives=own,
        )  # fmt: skip

    data = of(*made.values(), own=("sts",))
    from t5x_lite.data.vocabularies.loading import Bytes

    batches, sources = data_batches.train_batches(data, Bytes(), seed=0), []
    for _ in range(3):
        batch = next(batches)
        sources += [token // 50 for token in batch["query_tokens"][:, 1].tolist()]
        assert batch["own_negatives"].dtype == np.int32
        assert batch["own_negatives"].tolist() == [int(k > 0) for k in sources[-6:]]
    assert {*sources} == {0, 1, 2}
    assert own_negative_caches(data) == [made["sts"], made["classes_no_in_batch_neg"]]
    assert own_negative_caches(of(f"{made['nli']}/", own=(f"{made['nli']}/",))) == [made["nli"]]
    assert "own_negatives" not in next(data_batches.train_batches(of(made["nli"]), Bytes(), seed=0))
    assert identity_of(of(made["nli"]), seed=0) != identity_of(
        of(made["nli"], own=("nli",)), seed=0
    )
    with pytest.raises(
        InputError, match=r"data\.own_negatives names snli, but data\.cache has only "
    ):
        of(made["nli"], own=("snli",))
    with pytest.raises(
        InputError, match=r"own_negatives requires data\.cache and data\.layout Groups"
    ):
        Data(cache="a", vocabulary="bytes", own_negatives=("a",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adapter_of": ("cola",)}, "must be CACHE=NUMBER, such as mnli=0, but one is 'cola'"),
        (
            {"adapter_of": ("cola=-1",)},
            "CACHE=NUMBER, such as mnli=0, but one is 'cola=-1'",
        ),
        ({"adapter_of": ("cola=0", "cola=1")}, "gives two different numbers to the cache cola"),
        ({"adapter_of": ("cola=0",), "pack": True}, "needs caches with one example per row"),
        (
            {"adapter_of": ("cola=0",), "cache": "", "task": "a:b"},
            "needs caches with one example per row",
        ),
    ],
)
def test_numbers_that_cannot_be(options, message):
    with pytest.raises(InputError, match=message):
        Data(**{"cache": ("a/cola", "a/rte"), "vocabulary": "bytes", "pack": False, **options})


def test_one_is_left_out(caches):
    assert mixed_sources(data(caches, leave_out=("glue_cola",))) == [(caches[1], Fraction(1))]
    assert mixed_sources(data(caches, leave_out=("some.glue:rte",))) == [(caches[0], Fraction(1))]
    with pytest.raises(InputError, match="removes all tasks"):
        mixed_sources(data(caches, leave_out=("some.glue",)))


def test_rates_that_are_given_stand(caches):
    given = (f"{caches[0]}=1", f"{caches[1]}=3")
    assert mixed_sources(data(given)) == [
        (caches[0], Fraction(1, 4)),
        (caches[1], Fraction(3, 4)),
    ]
    assert mixed_sources(data(caches[0])) == [(caches[0], 1)]
    for cache in (given, caches[0]):
        with pytest.raises(InputError, match="several caches without rates"):
            mixed_sources(data(cache, temperature=2.0))
    with pytest.raises(InputError, match="has no rate"):
        mixed_sources(data((f"{caches[0]}=1", caches[1])))


def test_what_cannot_be_mixed_is_refused(caches, tmp_path, small_cache, recipes, pairs):
    with pytest.raises(InputError, match="twice"):
        mixed_sources(data((caches[0], caches[0])))
    held_out = small_cache(
        tmp_path / "held_out", {"validation": pairs(3)}, recipes.supervised, task="some.glue:ax"
    )
    with pytest.raises(InputError, match="no training examples"):
        mixed_sources(data((*caches, str(held_out))))


@pytest.fixture
def named(monkeypatch):
    """A module with the mixture of the tasks that the caches were made of, and one without rte."""
    module = ModuleType("some_mixtures")
    members = tuple(Member(task=f"some.glue:{name}") for name in ("cola", "rte", "mnli"))
    same = tuple(dataclasses.replace(m, shared_examples="same") for m in members[:2])
    text = Member(task="some.glue:rte", rate=90.0, unlabelled=True)
    labelled = Member(task="some.glue:rte", rate=90.0)
    vars(module).update(
        all=Mixture(members=members),
        without=Mixture(members=members[::2]),
        shared=Mixture(members=(*same, members[2])),
        text=Mixture(members=(members[0], text)),
        constant=Mixture(members=(members[0], labelled)),
        limited=Mixture(members=(dataclasses.replace(members[0], maximum=10), members[1])),
    )
    monkeypatch.setitem(sys.modules, "some_mixtures", module)


@pytest.mark.usefixtures("named")
def test_a_mixture_s_constant_rates_and_shared_examples_count(
    caches, tmp_path, small_cache, recipes, pairs
):
    def rates(task, *directories, **mixing):
        mixed = dataclasses.replace(data(directories or caches, **mixing), task=task)
        return [rate for _, rate in mixed_sources(mixed)]

    third = small_cache(
        tmp_path / "mnli", {"train": pairs(20)}, recipes.supervised, task="some.glue:mnli"
    )
    three = (*caches, str(third))
    again = small_cache(
        tmp_path / "again", {"train": pairs(2)}, recipes.supervised, task="some.glue:mnli"
    )
    with pytest.raises(InputError, match="names 2 caches"):
        rates("some_mixtures:all", *three, str(again))
    # 30 and 10 examples count half each, beside 20 others; by itself, one is whole.
    eighths = [Fraction(3, 8), Fraction(1, 8), Fraction(4, 8)]
    assert rates("some_mixtures:shared", *three) == eighths
    assert rates("", *three)[2] == Fraction(3333, 10_000)
    alone = rates("some_mixtures:shared", *three, leave_out=("rte",))
    assert alone == [Fraction(6, 10), Fraction(4, 10)]
    assert rates("some_mixtures:text") == [Fraction(1, 4), Fraction(3, 4)]
    assert rates("some_mixtures:text", maximum=10) == [Fraction(1, 10), Fraction(9, 10)]
    assert rates("some_mixtures:text", unlabelled=10) == [Fraction(3, 4), Fraction(1, 4)]
    assert rates("some_mixtures:limited") == [Fraction(1, 2), Fraction(1, 2)]
    with pytest.raises(InputError, match="do not change the constant rates of glue_rte"):
        rates("some_mixtures:constant", maximum=10)


def test_caches_say_whether_they_hold_unlabelled_text(
    caches, tmp_path, small_cache, recipes, pairs, chunks
):
    def rates(*directories, **mixing):
        return [rate for _, rate in mixed_sources(data(directories, **mixing))]

    spans = small_cache(tmp_path / "spans", {"train": chunks(20)}, recipes.spans, task="some.c4:s")
    lm = small_cache(tmp_path / "lm", {"train": chunks(20)}, recipes.targets, task="some.c4:lm")
    for text in (str(spans), str(lm)):
        assert rates(*caches, text) == [
            Fraction(1, 2),
            Fraction(1667, 10_000),
            Fraction(3333, 10_000),
        ]
        assert rates(*caches, text, unlabelled=60)[2] == Fraction(6, 10)
        assert rates(*caches, text, unlabelled=60, maximum=10)[2] == Fraction(6, 8)
    with pytest.raises(InputError, match="the mixture has no unlabelled text"):
        rates(*caches, unlabelled=60)


@pytest.mark.usefixtures("named")
def test_batches_of_caches_without_rates(caches, byte_vocabulary):
    def first(**settings):
        mixed = dataclasses.replace(
            data(caches), batch_size=4, inputs_length=8, targets_length=8, **settings
        )
        return next(data_batches.train_batches(mixed, byte_vocabulary, seed=0))

    assert first()["encoder_input_tokens"].shape == (4, 8)
    for name, value in first(task="some_mixtures:all").items():
        np.testing.assert_array_equal(value, first()[name])
    assert not data_batches.has_task_metrics(data(caches))
    with pytest.raises(InputError, match=r"the caches in data\.cache are of some\.glue:cola, "):
        first(task="some_mixtures:without")


def test_caches_without_a_held_out_split_are_passed_over(
    caches, tmp_path, small_cache, recipes, pairs, byte_vocabulary
):
    third = small_cache(
        tmp_path / "mnli",
        {"train": pairs(20), "validation": pairs(6)},
        recipes.supervised,
        task="some.glue:mnli",
    )
    settings = {"batch_size": 4, "inputs_length": 32, "targets_length": 32, "pack": False}
    mixed = dataclasses.replace(data((*caches, str(third))), **settings)
    alone = dataclasses.replace(data(str(third)), **settings)
    for one, other in zip(
        data_batches.eval_batches(mixed, byte_vocabulary),
        data_batches.eval_batches(alone, byte_vocabulary),
        strict=True,
    ):
        np.testing.assert_array_equal(one["encoder_input_tokens"], other["encoder_input_tokens"])
    with pytest.raises(InputError, match="has no split 'test'; its splits are train"):
        data_batches.eval_batches(mixed, byte_vocabulary, split="test")
