"""Options from dataclasses: names, changed leaves, one-line errors."""

import dataclasses
import math
import re
from typing import Annotated, Literal

import pytest

from t5x_lite.commands import COMMANDS
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import (
    Above,
    AtLeast,
    Count,
    In,
    OptionError,
    Rate,
    bounds_of,
    check_bounds,
    did_you_mean,
    nearest,
    option_names,
    parse,
    suggesting,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    size: int = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class WidePart(Part):
    width: float = 0.5
    inner: Part = dataclasses.field(default_factory=Part)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Whole:
    part: Part
    steps: int
    best: str | None = None
    names: tuple[str, ...] = ()
    pack: bool = True

    def __post_init__(self):
        if self.steps < 1:
            raise ValueError("steps must be at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Required:
    steps: int


WHOLE = Whole(part=WidePart(), steps=3)


def parsed(*args: str) -> Whole:
    return parse(Whole, args, prog="prog", default=WHOLE)[0]


def error(*args: str) -> str:
    with pytest.raises(OptionError) as raised:
        parsed(*args)
    return str(raised.value)


def test_nearest_name():
    assert nearest("d_modle", ["d_ff", "d_model"]) == "d_model"
    assert nearest("zzz", ["d_ff", "d_model"]) is None
    assert did_you_mean("d_modle", ["d_model"]) == "; did you mean d_model?"
    assert did_you_mean("zzz", ["d_model"]) == ""


def test_option_names_follow_the_values_of_the_default():
    assert option_names(WHOLE) == [
        "--part.size",
        "--part.width",
        "--part.inner.size",
        "--steps",
        "--best",
        "--names",
        "--pack",
    ]


def test_leaves_change_and_a_base_class_field_has_the_options_of_its_value():
    args = ["--part.width", "2", "--part.inner.size=9", "--steps", "7", "--best", "loss"]
    assert parsed(*args, "--names", "a", "b", "--pack", "False") == Whole(
        part=WidePart(width=2.0, inner=Part(size=9)),
        steps=7,
        best="loss",
        names=("a", "b"),
        pack=False,
    )
    assert parsed() == WHOLE
    assert parsed("--part.inner.size", "1").best is None
    assert parsed("--best", "None").best is None


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--part.widht", "2"], "unknown option --part.widht; did you mean --part.width?"),
        (["--width", "2"], "unknown option --width; did you mean --part.width?"),
        (["--part.widht=2"], "unknown option --part.widht; did you mean --part.width?"),
        (["--zzzz", "2"], "unknown option --zzzz; prog --help lists the options"),
        (["--steps", "x"], "--steps: must be a whole number, got 'x'"),
        (["--steps"], "Missing value for argument '--steps'. Expected 1 values"),
        (["--pack", "2"], "invalid choice '2' for argument '--pack'. Expected one of"),
        (["--steps", "0"], "steps must be at least 1"),
        (["7"], "unexpected argument '7'; prog --help lists the options"),
    ],
)
def test_what_is_wrong_is_one_line(args, message):
    told = error(*args)
    assert message in told
    assert "\n" not in told
    assert "│" not in told


@pytest.mark.parametrize("again", ["--steps 3", "--steps=3"])
def test_an_option_that_is_given_twice(again):
    with pytest.raises(OptionError) as raised:
        parsed("--steps", "2", *again.split())
    assert str(raised.value) == (
        "option --steps is given twice; give it once, followed by all of its values"
    )


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_wrapped_choices_of_a_missing_option_are_no_options(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(OptionError, match=r"^missing --input, --output, --rule; see prog --help$"):
        parse(COMMANDS["pairs"], [], prog="prog")


def test_missing_options_are_named():
    with pytest.raises(OptionError, match=r"^missing --steps; see prog --help$"):
        parse(Required, [], prog="prog")


def test_unknown_arguments_come_back_when_asked_for():
    config, unknown = parse(
        Required, ["--steps", "2", "--mesh.tensor", "4"], prog="prog", other_options=None
    )
    assert config == Required(steps=2)
    assert unknown == ["--mesh.tensor", "4"]


def test_help_goes_to_standard_output(capsys):
    with pytest.raises(SystemExit) as stop:
        parsed("--help")
    assert not stop.value.code
    assert "--part.inner.size INT" in capsys.readouterr().out


def test_a_function_suggests_its_own_keywords():
    @suggesting
    def load(*names, batch_size=1, step=None):
        return names, batch_size, step

    assert load("a", batch_size=2) == (("a",), 2, None)
    with pytest.raises(OptionError, match="load: unknown keyword batchsize; did you mean batch_s"):
        load("a", batchsize=2)
    with pytest.raises(
        OptionError, match="unknown keyword zzz; known keywords are batch_size, step"
    ):
        load("a", zzz=2)


@dataclasses.dataclass(frozen=True)
class Bounded:
    count: Count = 1
    rate: Rate | None = None
    share: Annotated[float, In(0, 1, "(]")] = 1.0
    above: Annotated[tuple[float, ...], Above(0)] = ()
    words: Annotated[int | Literal["auto"], AtLeast(1)] = "auto"
    choice: Literal["a", "b"] | None = None
    some: Literal["a"] | Literal["b"] = "a"
    open: Annotated[float | int, In(0, 1, "()")] = 0.5

    def __post_init__(self):
        check_bounds(self, prefix="some.")


@dataclasses.dataclass(frozen=True)
class OtherDefault(Bounded):
    count: int = 2


@pytest.mark.parametrize("config", [Bounded, OtherDefault])
def test_the_bounds_of_fields(config):
    assert bounds_of(config) == {
        "count": "at least 1",
        "rate": "in [0, 1)",
        "share": "in (0, 1]",
        "above": "above 0",
        "words": "at least 1",
        "open": "in (0, 1)",
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"count": 0}, "some.count must be at least 1: got 0"),
        ({"rate": 1.0}, "some.rate must be in [0, 1): got 1.0"),
        ({"rate": math.nan}, "some.rate must be in [0, 1): got nan"),
        ({"share": 0.0}, "some.share must be in (0, 1]: got 0.0"),
        ({"above": (1.0, 0.0)}, "some.above must be above 0: got (1.0, 0.0)"),
        ({"words": 0}, "some.words must be at least 1: got 0"),
        ({"above": (math.inf,)}, "some.above must be finite: got (inf,)"),
        ({"open": 0}, "some.open must be in (0, 1): got 0"),
        ({"choice": "c"}, "some.choice must be one of ('a', 'b', None): got 'c'"),
        ({"some": None}, "some.some must be one of ('a', 'b'): got None"),
        *(
            ({"count": value}, f"some.count must be a whole number: got {value!r}")
            for value in (True, 1.5, "2", (2,))
        ),
        ({"words": "all"}, "some.words must be a whole number: got 'all'"),
    ],
)
@pytest.mark.parametrize("config", [Bounded, OtherDefault])
def test_fields_outside_of_their_bounds_are_refused(config, fields, message):
    config(rate=0.0, share=1.0, above=(0.5,), words=3, choice="a")
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        config(**fields)
