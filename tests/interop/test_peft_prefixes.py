"""Prefix tuning of PEFT: what is read, written and refused; tests/oracle/test_peft.py runs it."""

import dataclasses
import json

import numpy as np
import pytest

from t5x_lite.adapters.prefix import Prefix
from t5x_lite.core.errors import InputError
from t5x_lite.interop.peft_prompts import is_prefix, read_prefix, write_peft
from t5x_lite.interop.tensor_files import read_safetensors, write_safetensors
from t5x_lite.models.heads import Classifier
from tests.interop.peft_files import hosts, lazy

CONFIG = {
    "peft_type": "PREFIX_TUNING", "task_type": "SEQ_2_SEQ_LM", "num_virtual_tokens": 2,
    "num_layers": 3, "num_attention_heads": 2, "token_dim": 6, "num_transformer_submodules": 2,
    "prefix_projection": True, "encoder_hidden_size": 8, "inference_mode": True,
}  # fmt: skip
BERT = {"num_layers": 2, "token_dim": 8, "num_transformer_submodules": 1, "task_type": "SEQ_CLS"}
# Two tokens of a T5 whose three decoder layers have keys and values of six numbers.
ROWS = np.arange(72, dtype=np.float32).reshape(2, 36)
OF_BERT = np.arange(64, dtype=np.float32).reshape(2, 32)


def no_norms(site):
    raise AssertionError(f"a prefix has no norms: {site}")


def write(directory, rows=ROWS, head=None, **fields):
    directory.mkdir()
    (directory / "adapter_config.json").write_text(json.dumps({**CONFIG, **fields}))
    tensors = {"prompt_embeddings": rows, **(head or {})}
    lazies = {name: lazy(array) for name, array in tensors.items()}
    write_safetensors(directory / "adapter_model.safetensors", lazies)
    return directory


def written(directory, adapter, arrays, of):
    directory.mkdir()
    write_peft(directory, adapter, arrays, of, norms=no_norms, base="some/base", where="step")
    config = json.loads((directory / "adapter_config.json").read_text())
    return config, read_safetensors(directory / "adapter_model.safetensors")


def test_a_t5_of_three_layers_reads_pairs_0_2_and_1(tmp_path):
    directory = write(tmp_path / "in")
    assert is_prefix(directory)
    file = read_prefix(directory)
    assert file.kept() == {}
    made = file.module(hosts("t5"), name="rte", norms=no_norms)
    left = {"encoder": False, "cross": False, "place": "left"}
    assert made.adapter == Prefix(name="rte", length=2, flat=True, **left)
    own = "adapters/rte/decoder/attention/prefix"
    assert set(made.arrays) == {f"{own}/keys", f"{own}/values"}
    keys = made.arrays[f"{own}/keys"]
    assert keys.shape == (3, 2, 2, 3)  # layers, tokens, heads, numbers
    # A row is k0 v0 k1 v1 k2 v2, six numbers each.
    np.testing.assert_array_equal(keys[0, 0].ravel(), ROWS[0, :6])
    np.testing.assert_array_equal(keys[1, 0].ravel(), ROWS[0, 24:30])
    np.testing.assert_array_equal(keys[2, 1].ravel(), ROWS[1, 12:18])
    config, tensors = written(tmp_path / "out", made.adapter, made.arrays, hosts("t5"))
    np.testing.assert_array_equal(tensors["prompt_embeddings"], ROWS)
    kept = {name: value for name, value in CONFIG.items() if name[:4] not in ("pref", "enco")}
    assert kept.items() <= config.items()


def test_a_bert_with_its_classifier(tmp_path):
    head = {
        "base_model.classifier.weight": np.ones((2, 8), np.float32),
        "base_model.classifier.bias": np.ones(2, np.float32),
    }
    file = read_prefix(write(tmp_path / "in", OF_BERT, head, **BERT))
    assert set(file.kept()) == {"classifier.weight", "classifier.bias"}
    of = hosts("bert", Classifier(num_classes=2))
    made = file.module(of, name="rte", norms=no_norms)
    assert made.arrays["heads/classifier/out/kernel"].shape == (8, 2)
    values = made.arrays["adapters/rte/encoder/attention/prefix/values"]
    np.testing.assert_array_equal(values[1, 0].ravel(), OF_BERT[0, 24:])
    config, tensors = written(tmp_path / "out", made.adapter, made.arrays, of)
    assert set(tensors) == {"prompt_embeddings", *head}
    np.testing.assert_array_equal(tensors["prompt_embeddings"], OF_BERT)
    assert (config["task_type"], config["modules_to_save"]) == ("SEQ_CLS", ["classifier"])


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"num_layers": 2}, "num_layers is 2, but the base's decoder has 3"),
        ({"num_attention_heads": 3}, "num_attention_heads is 3, .* has 2"),
        ({"token_dim": 8}, "token_dim is 8, .* has 6"),
        ({"num_transformer_submodules": 1}, "it must be 2 for an encoder-decoder"),
    ],
)
def test_a_directory_of_another_base(tmp_path, fields, match):
    file = read_prefix(write(tmp_path / "in", **fields))
    with pytest.raises(InputError, match=match):
        file.module(hosts("t5"), name="rte", norms=no_norms)


def test_what_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"but .* has 3 virtual tokens"):
        read_prefix(write(tmp_path / "a", num_virtual_tokens=3))
    with pytest.raises(
        InputError, match=r"other.weight is neither prompt_embeddings nor a tensor of a head"
    ):
        read_prefix(write(tmp_path / "b", head={"other.weight": ROWS}))
    narrow = read_prefix(write(tmp_path / "c", ROWS[:, :30]))
    with pytest.raises(InputError, match="has 30 columns, but 6 keys and values of size 6"):
        narrow.module(hosts("t5"), name="rte", norms=no_norms)
    with pytest.raises(InputError, match="PEFT does not support prefixes for deberta"):
        narrow.module(hosts("deberta"), name="rte", norms=no_norms)
    file = read_prefix(write(tmp_path / "d", OF_BERT, **BERT))
    made = file.module(hosts("bert"), name="rte", norms=no_norms)
    nowhere = dataclasses.replace(made.adapter, place="none")
    with pytest.raises(
        InputError, match=r"this prefix has no positions; only prefix\(place='left'\)"
    ):
        written(tmp_path / "e", nowhere, made.arrays, hosts("bert"))


def test_an_even_number_of_layers_shares_pairs(tmp_path):
    two = hosts("t5")
    kernels = {site: (2, *shape[1:]) for site, shape in two.kernels.items()}
    two = dataclasses.replace(two, kernels=kernels)
    rows = ROWS[:, :24]
    file = read_prefix(write(tmp_path / "in", rows, num_layers=2))
    made = file.module(two, name="rte", norms=no_norms)
    own = "adapters/rte/decoder/attention/prefix"
    keys = made.arrays[f"{own}/keys"]
    np.testing.assert_array_equal(keys[0], keys[1])
    _, tensors = written(tmp_path / "out", made.adapter, made.arrays, two)
    np.testing.assert_array_equal(tensors["prompt_embeddings"][:, :12], rows[:, :12])
    assert not tensors["prompt_embeddings"][:, 12:].any()
    other = {**made.arrays, f"{own}/keys": keys * np.array([1, 2], np.float32)[:, None, None, None]}
    with pytest.raises(InputError, match="equal prefixes for any two layers 1 apart, but"):
        written(tmp_path / "differs", made.adapter, other, two)
