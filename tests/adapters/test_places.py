"""Where composed modules stand, and which of them a block has no place for."""

import re

import pytest

from t5x_lite.adapters.adapter_tree import (
    BlockTree,
    DenseTree,
    HiddenTree,
    check_places,
    places_of,
    tree_class,
)
from t5x_lite.adapters.bottleneck import seq_bn
from t5x_lite.adapters.grammar import parse_trees
from t5x_lite.adapters.lora import Lora
from t5x_lite.adapters.sparse import Norms
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from tests.adapters.hosts import learner

MODULES = {
    "a": seq_bn(name="a", reduction=4.0),
    "b": seq_bn(name="b", reduction=4.0),
    "x": Lora(name="x", rank=2),
    "t": Lora(name="t", rank=2, sites=("embedding",)),
    "n": Norms(name="n"),
}


def of(host, use):
    """A learner whose modules are composed so."""
    names = [name for name in MODULES if re.search(rf"\b{name}\b", use)]
    return learner(host, *[MODULES[name] for name in names], use=parse_trees(use))


def test_places():
    places = {"a": (("encoder", "after_mlp"),), "x": (("encoder", "mlp/in"),)}
    (tree,) = parse_trees("Stack(a, x)")
    assert places_of(tree, places) == [("encoder", "after_mlp"), ("encoder", "mlp/in")]
    assert tree_class("after_mlp") is BlockTree
    assert tree_class("mlp/hidden") is HiddenTree
    assert tree_class("mlp/in") is DenseTree
    check_places((tree,), places, {"a": "Bottleneck", "x": "Lora"})


def test_fusions_have_layers_where_their_modules_stand():
    made, _ = of("bert", "Fuse(a, Stack(b, a))")
    fusion = {
        p: x.shape for p, x in flatten(made.shapes).items() if p.startswith("adapters/fusion")
    }
    at = "adapters/fusion/a_b/encoder/after_mlp"
    assert fusion == {
        f"{at}/query/kernel": (2, 8, 8),
        f"{at}/query/bias": (2, 8),
        f"{at}/key/kernel": (2, 8, 8),
        f"{at}/key/bias": (2, 8),
        f"{at}/value/kernel": (2, 8, 8),
    }
    assert all(made.trains(path) for path in fusion)
    static, _ = of("bert", "Fuse(a, b, static=True, name='f')")
    assert not any("value" in path for path in flatten(static.shapes) if "/fusion/f/" in path)


@pytest.mark.parametrize(
    ("host", "use", "message"),
    [
        (
            "bert",
            "Fuse(a, Stack(b, x))",
            r"Fuse > Stack > lora 'x' uses the site encoder/attention",
        ),
        ("t5", "Split(a, b, splits=(1, 'rest'))", "Split > bottleneck 'a' is in a decoder"),
        (
            "bert",
            "Stack(a, n)",
            "Stack > norms 'n' is at no layer position .site. of the model, so a block cannot",
        ),
        ("bert", "Average(a, t)", "Average > lora 't' is at no layer"),
        (
            "bert",
            "Stack(a, b), a",
            "'a' and another adapter both use the site encoder/after_mlp; .* as Stack\\(a, b\\)",
        ),
        ("bert", "Fuse(a, b, name='at')", "the name 'at' is reserved and not allowed for a fusion"),
    ],
)
def test_what_has_no_place(host, use, message):
    with pytest.raises(InputError, match=message):
        of(host, use)
