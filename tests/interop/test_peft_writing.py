"""What is written for PEFT, and what it does not have."""

import dataclasses

import jax
import numpy as np
import pytest

from t5x_lite.adapters.bottleneck import seq_bn
from t5x_lite.adapters.lora import Ia3
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from t5x_lite.objectives.base import NoLoss
from t5x_lite.objectives.learner import Learner
from tests.interop.peft_files import (
    IA3,
    LORA,
    MODELS,
    bert_ia3,
    bert_lora,
    hosts,
    module,
    random,
    same,
    write,
    written,
)


def test_ia3_without_the_fourth_vector_needs_an_expression(tmp_path):
    tensors = {n: a for n, a in bert_ia3().items() if "attention.output" not in n}
    config = {**IA3, "target_modules": r".*(key|value|\d\.output\.dense)"}
    made = module(write(tmp_path / "in", config, tensors))
    assert made.adapter == Ia3(name="rte")
    config, back = written(tmp_path, made)
    same(back, tensors)
    assert config["feedforward_modules"] == r"(?:.*\.)?(?:encoder\.layer\.\d+\.output\.dense)"


def test_what_peft_does_not_have(tmp_path):
    with pytest.raises(InputError, match=r"PEFT has no Bottleneck \(adapter 'bottleneck'\)"):
        written(tmp_path, module(write(tmp_path / "in", LORA, bert_lora())), adapter=seq_bn())


def test_embeddings_do_not_interchange(tmp_path):
    made = module(write(tmp_path / "in", LORA, bert_lora()))
    adapter = dataclasses.replace(made.adapter, sites=("embedding", *made.adapter.sites))
    with pytest.raises(InputError, match="adapts the token embedding, but PEFT does not"):
        written(tmp_path, made, adapter=adapter)


def test_lora_of_t5_in_the_encoder_alone(tmp_path):
    """Of the decoder's sites there are zeros, which no step of training moves."""
    start = "encoder.block.{}.layer.0.SelfAttention.q"
    tensors = random(
        {
            f"{start.format(layer)}.{leaf}.weight": shape
            for layer in (0, 1)
            for leaf, shape in (("lora_A", (2, 8)), ("lora_B", (6, 2)))
        }
    )
    config = {**LORA, "target_modules": r"encoder\..*\.q"}
    of = hosts("t5")
    made = module(write(tmp_path / "in", config, tensors), of=of)
    assert made.adapter.sites == ("attention/query",)
    learner = Learner.of(MODELS["t5"], NoLoss(), adapters=(made.adapter,))
    own = {p: leaf.shape for p, leaf in flatten(learner.shapes).items() if "adapters/" in p}
    assert jax.tree.map(np.shape, dict(made.arrays)) == own
    config, back = written(tmp_path, made, of=of)
    same(back, tensors)
    assert config["task_type"] == "SEQ_2_SEQ_LM"
    assert config["target_modules"].startswith(r"(?:.*\.)?(?:encoder\.block\.\d+")


def test_modules_that_would_be_written_in_part(tmp_path):
    made = module(write(tmp_path / "in", LORA, bert_lora()))
    zeros = {path: np.zeros_like(array) for path, array in made.arrays.items()}
    with pytest.raises(
        InputError, match="adapter rte changes no layer, because all its weights are 0"
    ):
        written(tmp_path / "in", dataclasses.replace(made, arrays=zeros))
    more = {**made.arrays, "adapters/rte/encoder/pooler/a": np.zeros((8, 2), np.float32)}
    with pytest.raises(
        InputError, match="PEFT has no dense layer for the adapter at encoder/pooler"
    ):
        written(tmp_path, dataclasses.replace(made, arrays=more))
