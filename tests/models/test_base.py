import dataclasses

import pytest
from flax import nnx

from t5x_lite.models.base import ModelConfig


def test_replace_gives_a_copy_with_other_values():
    config = ModelConfig(vocab_size=8)
    assert config.replace(vocab_size=16) == ModelConfig(vocab_size=16)
    assert config.vocab_size == 8


def test_configs_are_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelConfig(vocab_size=8).vocab_size = 9  # type: ignore[misc]
    with pytest.raises(TypeError):
        ModelConfig(8)  # type: ignore[misc]


def test_an_architecture_defines_build():
    with pytest.raises(TypeError, match="ModelConfig does not define the method build"):
        ModelConfig(vocab_size=8).build(rngs=nnx.Rngs(0))
