"""What adapter_config.json may say, and what is refused by its name."""

import contextlib
import re
import time

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.interop.peft import targets_of
from tests.interop.peft_files import LORA, bert_lora, hosts, module, write


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bias": "all"}, "bias 'all' is not supported"),
        ({"lora_bias": True}, "lora_bias"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa' changes the base"),
        ({"init_lora_weights": "olora"}, "changes the base"),
        ({"init_lora_weights": "corda"}, "changes the base"),
        ({"some_new_field": 3}, "some_new_field"),
        ({"peft_type": "P_TUNING"}, r"is not supported, only LoRA, .*, prompt and prefix"),
        ({"peft_type": "LOHA"}, "peft_type 'LOHA' is not supported, only LORA and IA3"),
        ({"r": "eight"}, "r must be a number of at least 1"),
        (
            {"r": 3},
            r"lora_A.weight has shape \(2, 8\), but its config and the base require \(3, 8\)",
        ),
        ({"rank_pattern": {"(": 3}}, "rank_pattern: '.' is not a regular expression"),
        ({"rank_pattern": [3]}, "rank_pattern must be an object"),
        ({"target_modules": ["query"]}, "the layers do not match target_modules"),
        ({"target_modules": ["query", "value", "key"]}, "missing"),
        ({"target_modules": 3}, "target_modules must be a list of names or a regular expression"),
        ({"use_dora": True}, "missing.*lora_magnitude_vector"),
        ({"use_dora": "yes"}, "use_dora must be true or false"),
    ],
)
def test_what_cannot_interchange_is_named(tmp_path, fields, message):
    with pytest.raises(InputError, match=message) as raised:
        module(write(tmp_path / "in", {**LORA, **fields}, bert_lora()))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("model", ["t5", "bert", "deberta"])
def test_targets_mean_these_layers_alone(model):
    known = list(hosts(model).places)
    for chosen in (known[:1], known[::2], [n for n in known if ".1." in n], known):
        found = targets_of(chosen, known)
        for prefix in ("", "bert."):
            named = [prefix + name for name in known]
            if isinstance(found, str):
                meant = {name for name in named if re.fullmatch(found, name)}
            else:
                meant = {name for name in named if name.endswith(tuple(f".{t}" for t in found))}
            assert meant == {prefix + name for name in chosen}
    every = [name for name in known if name.endswith((".v", ".value", ".value_proj"))]
    assert targets_of(every, known) in (["v"], ["value"], ["value_proj"])


@pytest.mark.parametrize("pattern", [r"(.*)*x", r"(?:.*.*)*=", r"(?:(?:(?:x?){99}){99}){99}z"])
@pytest.mark.parametrize(
    "field", ["target_modules", "exclude_modules", "rank_pattern", "alpha_pattern"]
)
def test_an_expression_that_could_take_for_ever_ends(field, pattern, tmp_path):
    value = {pattern: 2} if field.endswith("pattern") else pattern
    directory = write(tmp_path / "in", {**LORA, field: value}, bert_lora())
    begin = time.process_time()  # a loaded machine does not count
    with contextlib.suppress(InputError):
        module(directory)
    assert time.process_time() - begin < 10


def test_many_such_expressions_are_refused(tmp_path):
    value = {f"(.*)*{number}": 2 for number in range(1000)}
    directory = write(tmp_path / "in", {**LORA, "rank_pattern": value}, bert_lora())
    with pytest.raises(InputError, match="too many ways"):
        module(directory)
