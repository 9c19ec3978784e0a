"""Lines to configs and back, and one line for each thing that can be wrong."""

import sys
from pathlib import Path

import pytest

from t5x_lite.adapters.bottleneck import Bottleneck, double_seq_bn, par_bn
from t5x_lite.adapters.delta_merging import Union
from t5x_lite.adapters.grammar import METHODS, parse_module, write_module
from t5x_lite.adapters.lora import Lora
from t5x_lite.core import project
from t5x_lite.core.errors import InputError

LINES = {
    "rte = lora(r=8)": Lora(name="rte"),
    " rte=lora(rank=4, alpha=16, rslora=True)": Lora(
        name="rte", rank=4, alpha=16.0, rank_stabilised=True
    ),
    "a = lora(sites='mlp/in')": Lora(name="a", sites=("mlp/in",)),
    "a = lora(sites=['mlp/\\w+', 'attention/.*'])": Lora(
        name="a", sites=("mlp/\\w+", "attention/.*")
    ),
    "b = seq_bn(reduction=4, scale=.5)": Bottleneck(name="b", reduction=4.0, scale=0.5),
    "u = seq_bn(reduction=4) + lora(r=2)": Union(
        name="u", members=(Bottleneck(reduction=4.0), Lora(rank=2))
    ),
    "b = double_seq_bn()": double_seq_bn(name="b"),
    "b = par_bn(activation='relu')": par_bn(name="b"),
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_a_config_and_back(line):
    found = parse_module(line)
    assert found == LINES[line]
    assert all(type(value) is type(vars(LINES[line])[name]) for name, value in vars(found).items())
    assert parse_module(write_module(found)) == found


def test_every_method_is_in_the_reference():
    page = (Path(__file__).parents[2] / "docs/reference/adapter_methods.md").read_text()
    assert [method for method in METHODS if f"`{method}(" not in page] == []


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_written_in_few_words(method):
    assert write_module(METHODS[method](name="x")) == f"x = {method}()"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rte = lora(r=8", r"^column 11 of 'rte = lora\(r=8': '\(' was never closed$"),
        ("rte = lora(r=8,, alpha=1)", r"^column 16 of .*: invalid syntax"),
        ("rte lora()", r"^column 5 of .*: invalid syntax"),
        ("", "^column 1 of '': expected NAME = METHOD"),
        ("lora(r=8)", r"^column 1 of .*: expected NAME = METHOD"),
        ("a = b = lora()", "expected NAME = METHOD"),
        ("a = lora(); b = lora()", "column 13 of .*: expected NAME = METHOD"),
        ("rte = lorra(r=8)", "column 7 .*: unknown adapter method lorra; did you mean lora"),
        ("rte = os.system('x')", "Python module os has no adapter class system"),
        ("rte = lora", r"a method needs brackets, such as lora\(\)"),
        ("rte = 3", r"column 7 of .*: expected METHOD\(OPTION=VALUE"),
        ("rte = lora(8)", "column 12 of .*: options of lora have names"),
        ("a = copy('model', 3)", "column 10 of .*: of must be a tuple of a string: got"),
        ("a = copy('model', of='model')", "an option is given twice"),
        (
            "a = copy(of='model', sites='mlp')",
            "column 5 .*: adapter .*not support the option sites; select what to copy with of",
        ),
        ("a = layers(last=0)", "column 5 of .*: last must be at least 1: got 0"),
        ("rte = lora(**{})", "options of lora have names"),
        (
            "rte = lora(rnk=8)",
            "column 12 .*: method lora has no option rnk; did you mean rank.* rank [(]or r[)]",
        ),
        ("b = seq_bn(r=8)", "seq_bn has no option r"),
        ("b = seq_bn(name='x')", "seq_bn has no option name"),
        ("rte = lora(r='8')", "column 14 of .*: r must be a whole number: got '8'"),
        ("rte = lora(r=True)", "r must be a whole number: got True"),
        ("rte = lora(r=rank)", "column 14 .*: the value of r must be a number, string or tuple"),
        ("rte = lora(sites=(1,))", "sites must be a tuple of a string"),
        ("b = seq_bn(init='mum')", "init must be 'bert' or 'mam' or 'houlsby': got 'mum'"),
        ("rte = lora(r=0)", "column 7 of .*: rank must be at least 1: got 0"),
        ("rte = lora(r=1, rank=2)", "an option is given twice"),
        ("é.x = lora()", "column 1 of .*: the name of an adapter must be an identifier"),
        ("RTE = lora()", "lower-case letters"),
        (
            "head = lora()",
            "column 1 of .*: an adapter may not be called 'head'",
        ),
        ("a = hyper(tasks=0)", "column 5 of .*: tasks must be at least 1: got 0"),
        ("a = sparse(density=2)", r"column 5 .*: density must be in \(0, 1\]: got 2.0"),
        (
            "a = Stack(b, c)",
            "column 5 of .*: the block Stack composes adapters and is only allowed in adapters.use",
        ),
        (
            "u = lora() + parbn()",
            "column 14 of .*: unknown adapter method parbn; did you mean par_bn",
        ),
        ("é = parbn(x='é')", "column 5 of .*: unknown adapter method parbn; did you mean par_bn"),
        ("u = lora() - par_bn()", "column 5 of .*: expected METHOD"),
        ("a = lora(alpha=0)", "column 5 of .*: alpha must be finite and not 0, got 0.0"),
        ("a = lora(alpha=1e999)", "column 16 of .*: alpha must be a finite number"),
        (f"a = lora(alpha={10**400})", "alpha must be a finite number"),
        ("b = seq_bn(reduction=0)", "reduction must be above 0, got 0.0"),
        ("b = seq_bn(scale=0)", "scale must be finite and not 0, got 0.0"),
        ("a = lora(\nr=8)", "^column 10 of .*: an adapter must be described on one line"),
        ("p = params(train='(')", "is not a regular expression"),
        ("a = lora(r=1)\0", "column"),
        ("a = " + "(" * 300, "column"),
    ],
)
def test_a_line_that_is_wrong(line, message):
    with pytest.raises(InputError, match=message) as raised:
        parse_module(line)
    assert "\n" not in str(raised.value)


METHOD = """
import dataclasses
from t5x_lite.adapters.lora import Lora

@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(Lora):
    extra: int = 3
"""


def test_a_custom_method_is_named_by_its_class_and_only_read_where_that_is_trusted(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "methods_of_mine.py").write_text(METHOD)
    line = "m = methods_of_mine.Mine(r=4, extra=5)"
    with pytest.raises(InputError, match=r"column 5 of .* not part of t5x_lite.*--trust-project"):
        parse_module(line)
    before = project.opened()
    try:
        with project.trusting_checkpoints(True):
            adapter = parse_module(line)
            assert (type(adapter).__name__, adapter.rank, adapter.extra) == ("Mine", 4, 5)
            assert write_module(adapter) == "m = methods_of_mine.Mine(rank=4, extra=5)"
            with pytest.raises(InputError, match=r"has no adapter class Min; did you mean Mine\?"):
                parse_module("m = methods_of_mine.Min()")
            with pytest.raises(InputError, match="cannot be imported"):
                parse_module("m = methods_of_nobody.Mine()")
        assert parse_module(write_module(adapter)) == adapter  # its module is loaded now
    finally:
        project.open_again(before)
        sys.modules.pop("methods_of_mine", None)
