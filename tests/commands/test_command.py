"""A function as a command: its options, its bounds, and calls from Python."""

import dataclasses
import typing
from typing import Annotated

import pytest

from t5x_lite.cli import main
from t5x_lite.commands import COMMANDS, summaries
from t5x_lite.commands.command import command
from t5x_lite.core.option_types import (
    SHARED,
    Files,
    Natural,
    OptionalPositive,
    Overrides,
    Positive,
    Positives,
)
from t5x_lite.core.options import OptionError, parse

calls: list[tuple] = []


@dataclasses.dataclass(frozen=True)
class Shared:
    """What two commands share.

    Attributes:
      size: of a thing.
    """

    size: Positive = 3


@command
def measure(
    files: Files,
    *,
    shared: Annotated[Shared, SHARED] = Shared(),
    depth: OptionalPositive = None,
    cuts: Positives = (5, 20),
    offset: Natural = 0,
) -> None:
    """Measure files.

    Nothing is written.

    Args:
      files: that are measured.
      shared: what is shared.
      depth: of each.
      cuts: of the curve.
      offset: that is added.
    """
    calls.append((files, shared, depth, cuts, offset))


def test_parameters_are_options_and_those_of_a_shared_dataclass_stand_among_them():
    fields = {field.name: field.default for field in dataclasses.fields(measure.options)}
    assert fields.pop("files") is dataclasses.MISSING
    assert fields == {"size": 3, "depth": None, "cuts": (5, 20), "offset": 0}
    assert typing.get_type_hints(measure.options)["files"] == tuple[str, ...]
    about, _, attributes = str(measure.options.__doc__).partition("Attributes:\n")
    assert about == "Measure files.\n\n    Nothing is written.\n\n    "
    assert "files: that are measured." in attributes
    assert "size: of a thing." in attributes


@command
def train(config: str, overrides: Overrides = (), *, dry_run: bool = False) -> None:
    """Train.

    Args:
      config: what to train.
      overrides: options that are fields of the config.
      dry_run: only tells.
    """
    calls.append((config, overrides, dry_run))


def test_overrides_get_what_else_stands_on_the_line():
    assert train.options.takes_overrides
    assert not measure.options.takes_overrides
    assert [field.name for field in dataclasses.fields(train.options)] == ["config", "dry_run"]
    calls.clear()
    options = train.options(config="c.py", dry_run=True)
    options.run(["--steps", "3"])
    train("c.py", ["--steps", "3"], dry_run=True)
    assert calls == [("c.py", ["--steps", "3"], True)] * 2


def test_a_command_line_and_a_call_give_the_function_the_same():
    calls.clear()
    options, _ = parse(measure.options, ["--files", "a", "b", "--size", "4"], prog="measure")
    options.run([])
    measure(["a"], shared=Shared(4), cuts=[1])
    assert calls == [
        (("a", "b"), Shared(4), None, (5, 20), 0),
        (["a"], Shared(4), None, [1], 0),
    ]
    assert measure.__doc__ == measure.function.__doc__


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"depth": 0}, "--depth must be at least 1, got 0"),
        ({"cuts": (5, 0)}, "--cuts must be at least 1, got 0"),
        ({"offset": -1}, "--offset must be at least 0, got -1"),
        ({"shared": Shared(0)}, "--size must be at least 1, got 0"),
        ({"depth": 1 << 63}, "--depth must be below 2^63"),
        ({"detph": 3}, "unknown keyword detph; did you mean depth?"),
    ],
)
def test_what_a_call_refuses(given, message):
    with pytest.raises(OptionError, match=message.replace("?", r"\?").replace("^", r"\^")):
        measure(["a"], **given)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("search --vectors a --queries q --output r --depth 0", "--depth must be at least 1"),
        ("search --vectors a --queries q --output r --step -1", "--step must be at least 0"),
        ("search --vectors a --queries q --output r --batch-size 0", "--batch-size must be at"),
        ("bm25 search --index d --queries q --output r --depth 0", "--depth must be at least 1"),
        ("fuse --runs a --output r --k 0", "--k must be at least 1"),
        ("fuse --runs a --output r --rrf-k -1", "--rrf-k must be at least 0"),
        ("evaluate-run --runs a --qrels q --cuts 5 0", "--cuts must be at least 1"),
        ("pairs --input a --output o --rule ict --min-query-words 0", "--min-query-words must be"),
        ("pairs --input a --output o --rule ict --max-queries 0", "--max-queries must be at least"),
        ("pairs --input a --output o --rule ict --seed -1", "--seed must be at least 0"),
        ("synthesize requests --articles a --output o --number 0", "--number must be at least 1"),
        (
            "synthesize collect --articles a --answers b --output o --max-words 0",
            "--max-words must",
        ),
        ("mine --input i --output o --rankings r --negatives 0", "--negatives must be at least 1"),
        ("mine --input i --output o --rankings r --last 0", "--last must be at least 1"),
        ("mine --input i --output o --rankings r --first -1", "--first must be at least 0"),
        ("mine --input i --output o --checkpoint w --step -1", "--step must be at least 0"),
        ("mine --input i --output o --checkpoint w --query-length 0", "--query-length must be"),
        ("refresh w --passages a --batch-size 0", "--batch-size must be at least 1"),
        ("embed --checkpoint w --input i --output o.npy --step -1", "--step must be at least 0"),
        ("embed --checkpoint w --input i --output o.npy --mcls 0", "--mcls must be at least 1"),
        ("embed --checkpoint w --input i --output o.npy --bag-top -1", "--bag-top must be at"),
        ("rerank --checkpoint w --input i --output o --query-length 0", "--query-length must be"),
        ("rerank --checkpoint w --input i --output o --step -1", "--step must be at least 0"),
        ("score-pairs --checkpoint w --input i --output o --negatives-top 0", "--negatives-top"),
        ("hybrid --corpus c --queries q --output o --rerank 0", "--rerank must be at least 1"),
        ("evaluate-suite beir --directory d --output o --runs r --depth 0", "--depth must be at"),
        ("evaluate-suite beir --directory d --output o --step -1", "--step must be at least 0"),
        (
            "evaluate-suite beir --directory d --output o --query-length 0",
            "--query-length must be at least 1",
        ),
        ("evaluate-sts --input i --checkpoint w --batch-size 0", "--batch-size must be at least 1"),
        ("index build --vectors a --output d --threads 0", "--threads must be at least 1"),
        ("index search --index d --queries q --output r --nprobe 0", "--nprobe must be at least 1"),
        ("index bench --indexes d --vectors a --queries q --nprobe 0", "--nprobe must be at"),
        ("vocab --input a --output v --size 0", "--size must be at least 1"),
        ("vocab --input a --output v --size 9 --seed -1", "--seed must be at least 0"),
        ("cache configs/tiny_pretrain.py --output c --num-workers 0", "--num-workers must be at"),
        ("c4 --input a --output o --num-shards 0", "--num-shards must be at least 1"),
        ("extend s d --positions 0", "--positions must be at least 1, got 0"),
        ("extend s d --positions 8 --seed -1", "--seed must be at least 0, got -1"),
        ("heads s d --examples 0", "--examples must be at least 1, got 0"),
    ],
)
def test_numbers_that_are_too_small(line, message, capsys):
    assert main(line.split()) == 2
    assert message in capsys.readouterr().err


def test_the_first_line_of_a_function_is_the_summary_of_its_command():
    assert (
        summaries()["search"]["search"]
        == "Find the nearest vectors of a corpus for each query, by exact search."
    )
    assert COMMANDS["search"] is COMMANDS["search"]
