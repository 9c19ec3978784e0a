"""PEFT's directories by hand: names, shapes and rules, without torch."""

import numpy as np
import pytest

from t5x_lite.adapters.lora import Ia3, Lora
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from t5x_lite.interop.peft import read_peft
from t5x_lite.objectives.base import NoLoss
from t5x_lite.objectives.learner import Learner
from tests.interop.peft_files import (
    IA3,
    LORA,
    MODELS,
    QUERY,
    bert_ia3,
    bert_lora,
    module,
    random,
    same,
    write,
    written,
)
from tests.interop.torch_writer import archive, state_dict, tensor


def test_lora_in_and_out(tmp_path):
    tensors = bert_lora()
    made = module(write(tmp_path / "in", LORA, tensors))
    assert made.adapter == Lora(name="rte", rank=2, alpha=4.0)
    start = "adapters/rte/encoder/attention"
    assert {path: array.shape for path, array in made.arrays.items()} == {
        f"{start}/query/a": (2, 8, 2), f"{start}/query/b": (2, 2, 8),
        f"{start}/value/a": (2, 8, 2), f"{start}/value/b": (2, 2, 8),
    }  # fmt: skip
    a = tensors["bert.encoder.layer.1.attention.self.value.lora_A.weight"]
    np.testing.assert_array_equal(made.arrays[f"{start}/value/a"][1], a.T)
    config, back = written(tmp_path, made)
    same(back, tensors)
    assert config["target_modules"] == ["query", "value"]
    assert (config["r"], config["lora_alpha"], config["task_type"]) == (2, 4, "SEQ_CLS")
    assert config["base_model_name_or_path"] == "some/base"


def test_dropout_in_and_out(tmp_path):
    made = module(write(tmp_path / "in", {**LORA, "lora_dropout": 0.1}, bert_lora()))
    assert made.adapter == Lora(name="rte", rank=2, alpha=4.0, dropout=0.1)
    assert written(tmp_path, made)[0]["lora_dropout"] == 0.1
    with pytest.raises(InputError, match=r"lora_dropout must be a number of at least 0, got 'x'"):
        module(write(tmp_path / "text", {**LORA, "lora_dropout": "x"}, bert_lora()))


@pytest.mark.parametrize("start", ["", "bert.", "transformer.bert."])
def test_any_beginning_of_names(tmp_path, start):
    made = module(write(tmp_path / "in", LORA, bert_lora(start=start)))
    same(made.arrays, module(write(tmp_path / "other", LORA, bert_lora())).arrays)


def test_patterns_in_and_out(tmp_path):
    """Layer 0 has rank 4 and alpha 12 at its query; the value is in layer 1 alone."""
    tensors = bert_lora(names=("query",)) | bert_lora(names=("value",), layers=(1,))
    wide = random({f"{QUERY}.lora_A.weight": (4, 8), f"{QUERY}.lora_B.weight": (8, 4)}, seed=1)
    config = {
        **LORA,
        "target_modules": r".*\.(0\.attention\.self\.query|1\.attention\.self\.(query|value))",
        "rank_pattern": {r"layer\.0\.attention\.self\.query": 4},
        "alpha_pattern": {r"0\.attention\.self\.query": 12},
    }
    made = module(write(tmp_path / "in", config, tensors | wide))
    assert made.adapter == Lora(
        name="rte",
        rank=2,
        alpha=4.0,
        rank_pattern=(("encoder/(0)/attention/query", 4),),
        alpha_pattern=(("encoder/(0)/attention/query", 12.0),),
    )
    a, b = (made.arrays[f"adapters/rte/encoder/attention/query/{leaf}"] for leaf in "ab")
    for layer, scale in ((0, 12 / 4), (1, 4 / 2)):
        name = f"bert.encoder.layer.{layer}.attention.self.query"
        theirs = {**tensors, **wide}
        product = theirs[f"{name}.lora_B.weight"] @ theirs[f"{name}.lora_A.weight"]
        assert made.adapter.scale_at(f"encoder/{layer}/attention/query") == scale
        np.testing.assert_allclose(a[layer] @ b[layer], product.T, rtol=1e-5, atol=1e-5)
    assert not made.arrays["adapters/rte/encoder/attention/value/b"][0].any()
    assert a.shape == (2, 8, 4)
    assert not a[1, :, 2:].any()
    config, back = written(tmp_path, made)
    zero = "bert.encoder.layer.0.attention.self.value"
    same(back, {n: x for n, x in {**tensors, **wide}.items() if not n.startswith(zero)})
    pattern = r"(?:.*\.)?(?:encoder\.layer\.(?:0)\.attention\.self\.query)"
    assert (config["rank_pattern"], config["alpha_pattern"]) == ({pattern: 4}, {pattern: 12})
    assert (config["r"], config["lora_alpha"]) == (2, 4)
    assert module(write(tmp_path / "again", config, back)).adapter == made.adapter
    assert config["target_modules"] == (
        r"(?:.*\.)?(?:encoder\.layer\.\d+\.attention\.self\.query|"
        r"encoder\.layer\.(?:1)\.attention\.self\.value)"
    )


def test_dora_begins_at_the_norms_of_the_base(tmp_path):
    tensors = bert_lora() | random(
        {
            f"bert.encoder.layer.{layer}.attention.self.{name}.lora_magnitude_vector": (8,)
            for layer in (0, 1)
            for name in ("query", "value")
        }
    )
    made = module(write(tmp_path / "in", {**LORA, "use_dora": True, "use_rslora": True}, tensors))
    assert made.adapter == Lora(name="rte", rank=2, alpha=4.0, rank_stabilised=True, dora=True)
    found = made.arrays["adapters/rte/encoder/attention/query/magnitude"]
    np.testing.assert_array_equal(found[0], tensors[f"{QUERY}.lora_magnitude_vector"] - 0.5)
    config, back = written(tmp_path, made)
    assert config["use_dora"]
    assert config["use_rslora"]
    for name, array in tensors.items():
        np.testing.assert_allclose(back[name], array, rtol=1e-6, atol=1e-6)


def test_ia3_of_bert_has_a_fourth_vector(tmp_path):
    tensors = bert_ia3()
    made = module(write(tmp_path / "in", IA3, tensors))
    assert made.adapter == Ia3(name="rte", attention_out=True)
    learner = Learner.of(MODELS["bert"], NoLoss(), adapters=(made.adapter,))
    own = {p: leaf.shape for p, leaf in flatten(learner.shapes).items() if "adapters/" in p}
    assert {path: array.shape for path, array in made.arrays.items()} == own
    config, back = written(tmp_path, made)
    same(back, tensors)
    assert config["target_modules"] == ["key", "output.dense", "value"]
    assert config["feedforward_modules"] == ["output.dense"]


def test_a_file_of_torch(tmp_path):
    directory = write(tmp_path / "in", {**LORA, "target_modules": ["query"]}, {})
    (directory / "adapter_model.safetensors").unlink()
    tensors = bert_lora(names=("query",))
    named = {f"base_model.model.{name}": array for name, array in tensors.items()}
    content = state_dict(
        **{
            name: tensor(str(i), "FloatStorage", a.size, shape=a.shape, strides=(a.shape[1], 1))
            for i, (name, a) in enumerate(named.items())
        }
    )
    storages = {str(i): array.tobytes() for i, array in enumerate(named.values())}
    archive(directory / "adapter_model.bin", content, storages)
    found = module(directory).arrays["adapters/rte/encoder/attention/query/a"][0]
    np.testing.assert_array_equal(found.T, tensors[f"{QUERY}.lora_A.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({f"{QUERY}.lora_A.weight": None}, "missing.*lora_A"),
        ({f"{QUERY}.lora_A.weight": np.full((2, 8), np.nan, np.float32)}, "NaN or infinite"),
        ({f"{QUERY}.lora_A.weight": np.zeros((2, 8), np.int32)}, "has dtype int32, but weights"),
        ({f"{QUERY}.lora_A.weight": np.zeros((2, 12), np.float32)}, r"the base require \(2, 8\)"),
        ({f"{QUERY}.lora_embedding_A": np.zeros((2, 8), np.float32)}, "to no supported adapter"),
        ({"bert.encoder.layer.7.output.dense.lora_A.weight": np.zeros((2, 8), np.float32)},
         "the layer bert.encoder.layer.7.output.dense, but"),
        ({"bert.pooler.dense.lora_A.weight": np.zeros((2, 8), np.float32)}, "no such dense layer"),
        ({"lm_head.weight": np.zeros((2, 8), np.float32)},
         "lm_head.weight .* belongs neither to the base model, nor to"),
    ],
)  # fmt: skip
def test_what_is_damaged_or_of_another_base(tmp_path, change, message):
    tensors = {n: a for n, a in {**bert_lora(), **change}.items() if a is not None}
    with pytest.raises(InputError, match=message):
        module(write(tmp_path / "in", LORA, tensors))


def test_files_that_are_missing_or_cut(tmp_path):
    with pytest.raises(InputError, match="no such directory"):
        read_peft(tmp_path / "none")
    with pytest.raises(InputError, match=r"contains no adapter_config\.json"):
        read_peft(tmp_path)
    directory = write(tmp_path / "in", LORA, bert_lora())
    path = directory / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="truncated"):
        read_peft(directory)
    path.unlink()
    with pytest.raises(InputError, match=r"neither adapter_model.safetensors nor"):
        read_peft(directory)
    (directory / "adapter_config.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        read_peft(directory)


def test_ia3_that_no_module_of_ours_does(tmp_path):
    start = "bert.encoder.layer.0"
    reads = {**bert_ia3(), f"{start}.attention.self.key.ia3_l": np.ones((1, 8), np.float32)}
    with pytest.raises(InputError, match="feedforward_modules"):
        module(write(tmp_path / "a", IA3, reads))
    one = {**IA3, "target_modules": ".*0.*(key|value|output.dense)"}
    with pytest.raises(
        InputError, match="must be in all layers of encoder and decoder, but is only in"
    ):
        module(write(tmp_path / "b", one, bert_ia3(layers=(0,))))
    hidden = {n: a for n, a in bert_ia3().items() if "output" in n}
    with pytest.raises(InputError, match="scales no layer outputs"):
        module(write(tmp_path / "c", {**IA3, "target_modules": ["output.dense"]}, hidden))


def test_alphas_that_are_all_0(tmp_path):
    made = module(write(tmp_path / "in", {**LORA, "alpha_pattern": {".*": 0}}, bert_lora()))
    assert made.adapter == Lora(name="rte", rank=2, alpha=4.0)
    assert not any(array.any() for path, array in made.arrays.items() if path.endswith("/b"))
    with pytest.raises(InputError, match="lora_alpha must be a number of at least"):
        module(write(tmp_path / "zero", {**LORA, "lora_alpha": 0}, bert_lora()))


def test_shapes_are_compared_before_arrays_are_made(tmp_path):
    with pytest.raises(InputError, match=r"has shape \(2, 8\), but .* require \(100000000, 8\)"):
        module(write(tmp_path / "in", {**LORA, "r": 10**8}, bert_lora()))


def test_some_layers_of_targets_alone(tmp_path):
    config = {**LORA, "layers_to_transform": [1], "layers_pattern": "layer"}
    made = module(write(tmp_path / "in", config, bert_lora(layers=(1,))))
    assert not made.arrays["adapters/rte/encoder/attention/query/b"][0].any()
    tensors = bert_lora(names=("query", "value", "key"), layers=(1,))
    with pytest.raises(InputError, match=r"do not match target_modules: .*self\.key"):
        module(write(tmp_path / "other", config, tensors))
