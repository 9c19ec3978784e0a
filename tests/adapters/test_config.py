"""The modules of a run as strings."""

import pytest

from t5x_lite.adapters.composition import Fuse, Stack
from t5x_lite.adapters.config import HEAD, Adapters
from t5x_lite.adapters.lora import Lora
from t5x_lite.config import load
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import covers


def test_modules_and_what_they_train():
    made = Adapters(add=("rte = lora(r=8)", "b = seq_bn()"))
    assert [module.name for module in made.modules] == ["rte", "b"]
    assert made.modules[0] == Lora(name="rte")
    assert made.trained == ()
    assert Adapters().modules == ()
    assert made.canonical() == Adapters(add=("rte = lora()", "b = seq_bn()"))


@pytest.mark.parametrize(
    ("train", "trains", "still"),
    [
        ((), ("adapters/rte/a", "heads/classifier/out/bias", "objective/x"), ("adapters/nli/a",)),
        (("nli",), ("adapters/nli/a",), ("adapters/rte/a", "heads/mlm/bias", "model/norm/scale")),
        (
            ("rte", "head", "norms"),
            ("heads/mlm/bias", "model/decoder/final_norm/scale", "model/layers/mlp_norm/bias"),
            ("model/layers/mlp/wi/kernel",),
        ),
        (("base",), ("model/embedding/table",), ("adapters/rte/a",)),
    ],
)
def test_what_trains_beside_a_loaded_module(train, trains, still):
    add = ("rte = lora()", "nli = seq_bn()")  # of loaded modules, as stated when they were read
    load = ("nli=work/nli", "rte=work/rte") if train else ("nli=work/nli",)
    made = Adapters(add=add, load=load, train=train)
    assert made.used == ("rte", "nli")
    for path in trains:
        assert any(covers(pattern, path) for pattern in made.trained), path
    for path in still:
        assert not any(covers(pattern, path) for pattern in made.trained), path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"add": ("rte = lora(",)}, "^adapters.add: column 11 of"),
        ({"add": ("a = lora()", "a = seq_bn()")}, "two adapters are called a"),
        ({"load": ("work/rte",)}, "adapters.load must be NAME=DIR, got 'work/rte'"),
        ({"load": ("a=x", "a=y")}, "^adapters.load has two adapters called a"),
        ({"load": ("head=x",)}, "may not be called 'head'"),
        (
            {"add": ("rte = lora()",), "use": "rto"},
            "the unknown adapter 'rto'; did you mean rte.* are rte",
        ),
        ({"use": "rte"}, "the unknown adapter 'rte'; add it with --adapters.add"),
        (
            {"add": ("a = lora()",), "use": "Fuse(a, b)"},
            "adapters.use names the unknown adapter 'b'",
        ),
        ({"add": ("a = lora()",), "use": "Fuse(a"}, "adapters.use: column 5 of"),
        (
            {"add": ("a = lora()", "b = seq_bn()"), "use": "a"},
            "adapter 'b' of adapters.add would never be trained",
        ),
        ({"add": ("rte = lora()",), "train": ("rtee",)}, "'rtee'; did you mean rte.* rte, head"),
        (
            {"add": ("a = lora()",), "load": ("b=x",), "use": "a", "train": ("b",)},
            "names 'b', which is not in use and would not be trained",
        ),
        (
            {"add": ("a = lora()", "b = seq_bn()"), "train": ("b", "head")},
            "'a' of adapters.add would never be trained, because adapters.train does",
        ),
        (
            {"add": ("a = seq_bn()",), "train": ("a", "fusion")},
            "which needs a Fuse block, but adapters.use '' has no such block",
        ),
        (
            {"base_dtype": "bfloat16"},
            "base_dtype bfloat16 needs a frozen base model; add an adapter with",
        ),
    ],
)
def test_settings_that_are_wrong(options, message):
    with pytest.raises(InputError, match=message):
        Adapters(**options)


def test_another_dtype_of_the_base_is_refused():
    with pytest.raises(InputError, match=r"adapters\.base-dtype"):
        load("configs/adapt/tiny.py", ["--adapters.base-dtype", "float16"])


def test_a_loaded_module_that_was_not_read():
    with pytest.raises(InputError, match=r"'a' of adapters.load work/a has not been read"):
        assert Adapters(load=("a=work/a",)).modules


def test_what_is_composed():
    made = Adapters(
        add=("a = seq_bn()", "b = seq_bn()"), use="Stack( a,Fuse(b, a))", load=("b=work/b",)
    )
    assert made.used == ("a", "b")
    assert made.composition == (Stack(("a", Fuse(("b", "a")))),)
    assert made.canonical().use == "Stack(a, Fuse(b, a))"
    assert made.trained == (HEAD, "adapters/fusion/.*", "adapters/a")
    assert made.unpackable == ""
    routed = Adapters(add=("a = lora()", "b = lora()"), use="Stack(Route(a, b))")
    assert routed.unpackable == "Route by example computes one set of weights for each row"
    assert (
        Adapters(add=("a = seq_bn()",), use="Fuse(a)", train=("a", "fusion")).trained[1]
        == "adapters/fusion/.*"
    )
    assert Adapters(add=("a = lora()", "b = ia3()")).composition == ("a", "b")
