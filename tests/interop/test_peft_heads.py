"""Heads in modules_to_save."""

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.interop.peft import head_of, read_peft, to_module
from t5x_lite.models.heads import Classifier
from tests.interop.peft_files import (
    LORA,
    MODELS,
    bert_lora,
    hosts,
    norms,
    random,
    same,
    write,
    written,
)


def test_a_head_comes_along(tmp_path):
    head = {"classifier.weight": (3, 8), "classifier.bias": (3,)}
    kept = random(head | {"bert.pooler.dense.weight": (8, 8), "bert.pooler.dense.bias": (8,)})
    config = {**LORA, "task_type": "SEQ_CLS", "modules_to_save": ["classifier", "pooler"]}
    file = read_peft(write(tmp_path / "in", config, bert_lora() | kept))
    options = {"model": MODELS["bert"], "model_type": None}
    found = head_of(file.config_file, file.config, file.kept(), heads={}, **options)
    assert found == Classifier(num_classes=3)
    named = Classifier(num_classes=3, labels=("no", "perhaps", "yes"))
    heads = {"classifier": named}
    assert head_of(file.config_file, config, file.kept(), heads=heads, **options) == named
    of = hosts(head=found)
    made = to_module(file, of, name="rte", norms=norms)
    np.testing.assert_array_equal(
        made.arrays["heads/classifier/out/kernel"], kept["classifier.weight"].T
    )
    config, back = written(tmp_path, made, of=of)
    same(back, bert_lora() | kept)
    assert sorted(config["modules_to_save"]) == ["classifier", "pooler"]


def test_what_is_of_no_head(tmp_path):
    file = read_peft(write(tmp_path / "in", LORA, bert_lora() | random({"lm_head.weight": (2, 8)})))
    options = {"model_type": None, "heads": {}}
    # The output layer of a T5 is of the base: `base_change` reads it.
    assert head_of(file.config_file, LORA, file.kept(), model=MODELS["t5"], **options) is None
    assert head_of(file.config_file, LORA, {}, model=MODELS["t5"], **options) is None
    said = {**LORA, "task_type": "SEQ_CLS"}
    with pytest.raises(
        InputError, match=r"lm_head\.weight in modules_to_save belongs to no supported task head"
    ):
        head_of(file.config_file, said, file.kept(), model=MODELS["bert"], **options)
