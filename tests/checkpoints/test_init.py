"""Rules for other weights: which of theirs become which of ours, and what errors list."""

import pytest

from t5x_lite.checkpoints.init import Init, InitRules, summary
from t5x_lite.core.errors import InputError

OURS = ["model/a/kernel", "model/b/kernel", "objective/head/bias"]


def test_without_rules_the_names_must_be_the_same():
    assert InitRules().sources(OURS, OURS) == {path: path for path in OURS}
    with pytest.raises(InputError) as raised:
        InitRules().sources(["model/a/kernel", "model/c"], OURS)
    assert str(raised.value) == (
        "missing: model/b/kernel, objective/head/bias; unexpected: model/c"
    )


def test_rules_rename_leave_out_and_leave_fresh():
    rules = InitRules.of(
        rename=[r"net/(\w+)/w -> model/\1/kernel", "net/.* ->", "model/.*->"],
        fresh=["objective/.*"],
    )
    saved = ["net/a/w", "net/b/w", "net/c", "model/x"]
    assert rules.sources(saved, OURS) == {
        "model/a/kernel": "net/a/w",
        "model/b/kernel": "net/b/w",
    }
    # What is fresh begins anew though the checkpoint holds it.
    assert rules.sources([*saved, "objective/head/bias"], OURS) == rules.sources(saved, OURS)


def test_the_first_rule_that_matches_is_used_and_a_pattern_matches_whole_paths():
    rules = InitRules.of(rename=["a -> model/a/kernel", "a|b -> model/b/kernel"])
    assert rules.sources(["a", "b", "objective/head/bias"], OURS)["model/b/kernel"] == "b"
    with pytest.raises(InputError, match="unexpected: ab"):
        rules.sources(["a", "b", "ab", "objective/head/bias"], OURS)


@pytest.mark.parametrize(
    ("rename", "fresh", "message"),
    [
        (["x.* -> y"], [], r"init\.rename: no weights of the checkpoint match 'x\.\*'"),
        ([], ["x.*"], r"init\.fresh: no parameters of the model match 'x\.\*'"),
        (["model/.* -> same"], [], "maps both model/a/kernel and model/b/kernel to same"),
        (["a"], [], "init.rename 'a' must be \"checkpoint path -> model path\", or"),
        (["-> a"], [], "must be"),
        (["a( -> b"], [], r"init\.rename 'a\( -> b': invalid regular expression"),
        ([r"a -> \1"], [], "invalid group reference"),
        ([], ["("], r"init\.fresh '\(': invalid regular expression"),
    ],
)
def test_rules_that_are_wrong(rename, fresh, message):
    with pytest.raises(InputError, match=message):
        InitRules.of(rename=rename, fresh=fresh).sources(OURS, OURS)


PARTS = ["model/a", "heads/mlm/b", "heads/mlm/c", "objective/decoder/d"]


@pytest.mark.parametrize(
    ("wanted", "options", "expected", "told"),
    [
        # The usual case: from a masked language model with a decoder to a classifier.
        (
            ["model/a", "heads/mlm/b", "heads/mlm/c", "heads/classifier/e"],
            {},
            ["model/a", "heads/mlm/b", "heads/mlm/c"],
            "heads/classifier is newly initialized; objective of the checkpoint is not used",
        ),
        # Another objective, none of whose parameters are there.
        (["model/a", "objective/generator/d"], {}, ["model/a"],
         "objective is newly initialized; heads/mlm, objective of the checkpoint are not used"),
        (PARTS, {}, PARTS, ""),
        (PARTS, {"take": ("model", "heads/mlm")}, PARTS[:3],
         "objective is newly initialized; objective of the checkpoint is not used"),
        (PARTS, {"take": ("model", "heads")}, PARTS[:3],
         "objective is newly initialized; objective of the checkpoint is not used"),
        (PARTS, {"fresh": ("heads/mlm",)}, ["model/a", "objective/decoder/d"],
         "heads/mlm is newly initialized; heads/mlm of the checkpoint is not used"),
        (PARTS, {"fresh": ("objective/.*",)}, PARTS[:3],
         "objective is newly initialized; objective of the checkpoint is not used"),
    ],
)  # fmt: skip
def test_parts_come_by_their_names(wanted, options, expected, told):
    sources = Init(checkpoint="c", **options).rules().sources(PARTS, wanted)
    assert sources == {path: path for path in expected}
    assert summary(PARTS, wanted, sources) == told


@pytest.mark.parametrize(
    ("wanted", "options", "message"),
    [
        # The model, and a head or an objective of which both have something, must be whole.
        (["model/a", "model/b"], {}, "missing: model/b"),
        (["heads/mlm/b", "heads/mlm/c"], {}, "unexpected: model/a"),
        (["model/a", "heads/mlm/b"], {}, "unexpected: heads/mlm/c"),
        (["model/a", "objective/decoder/d", "objective/decoder/e"], {}, "missing: objective/dec"),
        (PARTS, {"take": ("modl",)}, r"match 'modl'; its parameter groups are model, heads/mlm"),
        (PARTS, {"fresh": ("heads/m",)}, r"match 'heads/m'; its parameter groups are model"),
    ],
)
def test_parts_that_do_not_fit(wanted, options, message):
    with pytest.raises(InputError, match=message):
        Init(checkpoint="c", **options).rules().sources(PARTS, wanted)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"step": 3}, r"init\.step 3 needs a checkpoint, but init\.checkpoint is not set"),
        ({"take": ("model",)}, r"init\.take \('model',\) needs a checkpoint"),
        ({"checkpoint": "c", "step": -1}, r"init\.step must be at least 0: got -1"),
    ],
)
def test_an_init_that_is_wrong(fields, message):
    with pytest.raises(InputError, match=message):
        Init(**fields)


def test_which_parts_are_kept_under_their_names():
    mlm = ["heads/mlm/bias", "heads/mlm/dense/kernel"]
    keeps = {
        (): True,
        ("take", ("model",)): False,
        ("take", ("model", "heads/mlm")): True,
        ("fresh", ("heads/mlm",)): False,
        ("rename", ("heads/mlm/(.*) ->",)): False,
        ("rename", (r"heads/mlm/(.*) -> heads/old/\1",)): False,
        ("rename", ("heads/mlm/bias ->",)): True,
    }
    for options, expected in keeps.items():
        init = Init(checkpoint="c", **dict([options] if options else []))
        assert init.keeps("heads/mlm", mlm) == expected, options
    assert Init(checkpoint="c").keeps("heads/dense", [])
    assert not Init(checkpoint="c", take=("model",)).keeps("heads/dense", [])


def test_a_part_without_parameters_may_be_named():
    init = Init(checkpoint="c", take=("model", "heads/dense"), fresh=("heads/dense",))
    assert init.rules(["heads/dense"]).sources(["model/a"], ["model/a"]) == {"model/a": "model/a"}
    with pytest.raises(InputError, match="no parameters of the checkpoint match 'heads/dense'"):
        init.rules().sources(["model/a"], ["model/a"])
