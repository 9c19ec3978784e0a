"""Rules for other weights: which of theirs become which of ours, and what errors list."""

import pytest

from t5x_lite.checkpoints.init import InitRules
from t5x_lite.errors import InputError

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
    # What may stay fresh is used where the checkpoint holds it.
    assert rules.sources([*saved, "objective/head/bias"], OURS)["objective/head/bias"] == (
        "objective/head/bias"
    )


def test_the_first_rule_that_matches_is_used_and_a_pattern_matches_whole_paths():
    rules = InitRules.of(rename=["a -> model/a/kernel", "a|b -> model/b/kernel"])
    assert rules.sources(["a", "b", "objective/head/bias"], OURS)["model/b/kernel"] == "b"
    with pytest.raises(InputError, match="unexpected: ab"):
        rules.sources(["a", "b", "ab", "objective/head/bias"], OURS)


@pytest.mark.parametrize(
    ("rename", "fresh", "message"),
    [
        (["x.* -> y"], [], r"init_rename: no weights of the checkpoint match 'x\.\*'"),
        ([], ["x.*"], r"init_fresh: no parameters of the model match 'x\.\*'"),
        (["model/.* -> same"], [], "gives model/a/kernel and model/b/kernel the same name same"),
        (["a"], [], "init_rename 'a' must be \"their path -> our path\", or"),
        (["-> a"], [], "must be"),
        (["a( -> b"], [], r"init_rename 'a\( -> b': not a regular expression"),
        ([r"a -> \1"], [], "invalid group reference"),
        ([], ["("], r"init_fresh '\(': not a regular expression"),
    ],
)
def test_rules_that_are_wrong(rename, fresh, message):
    with pytest.raises(InputError, match=message):
        InitRules.of(rename=rename, fresh=fresh).sources(OURS, OURS)
