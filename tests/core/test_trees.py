import numpy as np
import pytest

from t5x_lite.core import trees

TREE = {"encoder": {"norm": {"scale": 1}, "wi": 2}, "embedding": 3}


def test_flatten_gives_paths_in_the_order_of_the_tree():
    assert list(trees.flatten(TREE).items()) == [
        ("encoder/norm/scale", 1),
        ("encoder/wi", 2),
        ("embedding", 3),
    ]


def test_flatten_keeps_tuples_as_leaves_and_drops_empty_dicts():
    tree = {"wi": ("embed", "mlp"), "objective": {}}
    assert trees.flatten(tree) == {"wi": ("embed", "mlp")}


@pytest.mark.parametrize("key", [0, "", "a/b"])
def test_flatten_refuses_keys_that_make_no_path(key):
    with pytest.raises(ValueError, match="non-empty strings without '/'"):
        trees.flatten({"a": {key: 1}})


def test_unflatten_inverts_flatten():
    assert trees.unflatten(trees.flatten(TREE)) == TREE


@pytest.mark.parametrize("flat", [{"a": 1, "a/b": 2}, {"a/b": 2, "a": 1}, {"a": {}, "a/b": 2}])
def test_unflatten_refuses_a_leaf_with_paths_through_it(flat):
    with pytest.raises(ValueError, match="leaf"):
        trees.unflatten(flat)


@pytest.mark.parametrize("path", ["", "a//b", "/a", "a/"])
def test_unflatten_refuses_empty_parts(path):
    with pytest.raises(ValueError, match="non-empty parts"):
        trees.unflatten({path: 1})


def test_partition_splits_by_path_and_merge_restores():
    selected, rest = trees.partition(TREE, lambda path, leaf: path.startswith("encoder/"))
    assert selected == {"encoder": {"norm": {"scale": 1}, "wi": 2}}
    assert rest == {"embedding": 3}
    assert trees.merge(selected, rest) == TREE


def test_partition_sees_the_leaf():
    selected, _ = trees.partition(TREE, lambda path, leaf: leaf > 2)
    assert selected == {"embedding": 3}


def test_merge_refuses_the_same_path_twice():
    with pytest.raises(ValueError, match="but share encoder/wi"):
        trees.merge({"encoder": {"wi": 1}}, {"encoder": {"wi": 2}})


def test_rename_uses_the_first_rule_that_matches_the_whole_path():
    rules = [(r"encoder/(\w+)/scale", r"stack/\1/weight"), (r"encoder/(.*)", r"stack/\1")]
    assert trees.rename(TREE, rules) == {
        "stack": {"norm": {"weight": 1}, "wi": 2},
        "embedding": 3,
    }


def test_rename_lists_what_is_missing_and_unexpected():
    with pytest.raises(ValueError, match="missing: head/kernel; unexpected: embedding"):
        trees.rename(
            {"encoder": {"wi": 2}, "embedding": 3},
            [("encoder/wi", "wi")],
            expected=["wi", "head/kernel"],
        )


def test_rename_refuses_rules_without_effect_and_collisions():
    with pytest.raises(ValueError, match="but these match none: decoder"):
        trees.rename(TREE, [("decoder", "x")])
    with pytest.raises(ValueError, match="are renamed to 'embedding'"):
        trees.rename({"a": 1, "embedding": 3}, [("a", "embedding")])


def test_difference():
    assert trees.difference(["a", "b/c"], ["b/c", "d"]) == "missing: a; unexpected: d"
    assert trees.difference(["a"], ["a"]) == ""
    many = [f"p{i:02}" for i in range(12)]
    assert trees.difference(many, []).endswith("p09 and 2 more")


def test_count_parameters():
    tree = {"a": np.zeros((3, 4)), "b": {"c": np.zeros(5), "d": np.zeros(())}}
    assert trees.count_parameters(tree) == 18


def test_overlaid_replaces_leaves_and_keeps_the_rest():
    tree = {"model": {"wi": 1, "wo": 2}, "objective": {}}
    assert trees.overlaid(tree, {"model": {"wo": 3, "other": 4}}) == {
        "model": {"wi": 1, "wo": 3},
        "objective": {},
    }
