"""Configs to JSON and back: equal, and with one-line errors."""

import dataclasses
import json
import math
from typing import Any

import pytest

from t5x_lite.config.file import from_json, to_json
from t5x_lite.core import project
from t5x_lite.core.errors import InputError
from t5x_lite.models.encoder import BertConfig
from t5x_lite.objectives.electra import Electra
from t5x_lite.objectives.likelihood import Seq2Seq


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    size: int = 4

    def __post_init__(self):
        if self.size < 1:
            raise InputError("size must be at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Whole:
    part: Part
    value: Any = None


HERE = __name__


def test_text_is_readable():
    assert to_json(Whole(part=Part(size=2), value=("a", 1, 2.5, True, None, ()))) == (
        "{\n"
        f'  "type": "{HERE}:Whole",\n'
        '  "part": {\n'
        f'    "type": "{HERE}:Part",\n'
        '    "size": 2\n'
        "  },\n"
        '  "value": [\n'
        '    "a",\n    1,\n    2.5,\n    true,\n    null,\n    []\n'
        "  ]\n"
        "}\n"
    )


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -3, 1e-30, 0.1, math.inf, -math.inf, "", "é\n", (), ((1, 2), ("a",)), Part()],
)
def test_reloads_equal(value):
    config = Whole(part=Part(), value=value)
    again = from_json(to_json(config), source="config.json", any_module=True)
    assert again == config
    assert type(again.value) is type(value)


def test_a_field_that_came_later_says_what_was_done_before():
    sizes = {"vocab_size": 9, "d_model": 8, "d_ff": 8, "num_heads": 2, "num_layers": 1}
    electra = Electra(mask_id=4, generator=BertConfig(**sizes))
    node = json.loads(to_json(electra))
    assert node["generator"].pop("share_attention_dropout") is False
    assert from_json(json.dumps(node), source="c").generator.share_attention_dropout
    assert not from_json(to_json(electra), source="c").generator.share_attention_dropout


def test_a_missing_field_takes_its_default():
    text = json.dumps({"type": f"{HERE}:Whole", "part": {"type": f"{HERE}:Part"}})
    assert from_json(text, source="config.json", any_module=True) == Whole(part=Part())


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            {"type": f"{HERE}:Part", "sise": 2},
            "config.json: Part has no field sise; did you mean size?",
        ),
        ({"type": f"{HERE}:Prat"}, f"config.json: {HERE} has no config Prat; did you mean Part?"),
        ({"type": f"{HERE}:math"}, f"config.json: {HERE} has no config math"),
        ({"type": "no_such_module:A"}, "config.json: cannot import no_such_module"),
        ({"type": 3}, 'config.json: "type" must be "module:Class", got 3'),
        ({}, 'config.json: "type" must be "module:Class", got None'),
        ([], "config.json: not a config"),
        ({"type": f"{HERE}:Whole"}, "config.json: Whole: "),
        ({"type": f"{HERE}:Part", "size": 0}, "config.json: size must be at least 1"),
        (
            {"type": f"{HERE}:Whole", "part": {"type": f"{HERE}:Part", "size": 0}},
            "config.json: part: size must be at least 1",
        ),
        (
            {"type": f"{HERE}:Part", "size": {"type": "float"}},
            "config.json: size: expected a float",
        ),
        (
            {"type": f"{HERE}:Part", "size": {"type": "float", "value": "inf"}},
            "config.json: Part: size must be a whole number, got inf",
        ),
        (
            {"type": f"{HERE}:Part", "size": 1.5},
            "config.json: Part: size must be a whole number, got 1.5",
        ),
    ],
)
def test_what_is_wrong_is_one_line(node, message):
    with pytest.raises(InputError) as raised:
        from_json(json.dumps(node), source="config.json", any_module=True)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_malformed_json_names_the_line():
    with pytest.raises(InputError, match=r"^config.json:2: not JSON: "):
        from_json('{\n"a": }', source="config.json")


def test_brackets_without_end():
    with pytest.raises(InputError, match=r"^config.json: not JSON that can be read \(maximum rec"):
        from_json("[" * 100_000, source="config.json")


def test_what_cannot_be_read_again_is_not_written():
    @dataclasses.dataclass(frozen=True)
    class Local:
        pass

    with pytest.raises(InputError, match="another process could not import"):
        to_json(Local())
    with pytest.raises(
        InputError, match=r"^config value Whole.value\[1\] is a list, which cannot be saved"
    ):
        to_json(Whole(part=Part(), value=(1, [2])))


def test_a_checkpoint_names_classes_of_t5x_lite_alone():
    ours = Seq2Seq(z_loss=0.5)
    assert from_json(to_json(ours), source="c.json") == ours
    for value in (Part(), (1, (Part(),))):
        text = to_json(Whole(part=Part(), value=value)).replace(f"{HERE}:Whole", "t5x_lite.x:Y", 1)
        with pytest.raises(InputError) as raised:
            from_json(text, source="c.json")
        assert str(raised.value).startswith(
            f"c.json: the config uses the class {HERE}:Part, which is not part of"
        )
        assert "pass --trust-project" in str(raised.value)
    with project.trusting_checkpoints(True):
        assert from_json(to_json(Part()), source="c.json") == Part()
    project.name([HERE])  # as the config of the command does
    assert from_json(to_json(Part()), source="c.json") == Part()


def test_a_value_that_is_nested_deeply_is_one_line():
    text = json.dumps({"type": f"{HERE}:Whole", "value": "X"}).replace('"X"', "[" * 700 + "]" * 700)
    with pytest.raises(
        InputError, match=r"^config\.json: not a config: the JSON is nested too deeply$"
    ):
        from_json(text, source="config.json", any_module=True)
