"""PEFT's directories by hand: names, shapes and rules, without torch."""

import json

import jax
import numpy as np
import pytest

from t5x_lite.adapters.bottleneck import seq_bn
from t5x_lite.adapters.ia3 import Ia3
from t5x_lite.adapters.lora import Lora
from t5x_lite.errors import InputError
from t5x_lite.heads.classifier import Classifier
from t5x_lite.interop.module_hosts import hosts_of
from t5x_lite.interop.peft import read_peft, to_module
from t5x_lite.interop.peft_heads import head_of
from t5x_lite.interop.peft_writing import write_peft
from t5x_lite.interop.tensor_files import read_safetensors
from t5x_lite.learner import Learner
from t5x_lite.models.bert import BertConfig
from t5x_lite.models.deberta import DebertaConfig
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.base import NoLoss
from t5x_lite.trees import flatten
from tests.interop.peft_files import IA3, LORA, bert_ia3, bert_lora, random, write
from tests.interop.torch_writer import archive, state_dict, tensor

SIZES = {"vocab_size": 16, "d_model": 8, "d_ff": 16, "num_heads": 2}
ENCODER = {**SIZES, "num_layers": 2, "max_positions": 8}
MODELS = {
    "bert": BertConfig(**ENCODER),
    "deberta": DebertaConfig(**ENCODER, position_buckets=4),
    "t5": T5Config(**SIZES, d_kv=3, num_encoder_layers=2, num_decoder_layers=3),
}
QUERY = "bert.encoder.layer.0.attention.self.query"


def hosts(name="bert", head=None):
    return hosts_of(MODELS[name], head, where="work")


def norms(site):
    return np.full((hosts().kernels[site][0], hosts().kernels[site][2]), 0.5, np.float32)


def module(directory, *, of=None, name="rte"):
    return to_module(read_peft(directory), of or hosts(), name=name, norms=norms)


def written(tmp_path, made, *, of=None, adapter=None):
    out = tmp_path / "out"
    out.mkdir()
    write_peft(
        out,
        made.adapter if adapter is None else adapter,
        made.arrays,
        of or hosts(head=Classifier(num_classes=2)),
        norms=norms,
        base="some/base",
        where="work",
    )
    found = read_safetensors(out / "adapter_model.safetensors")
    tensors = {n.removeprefix("base_model.model."): np.asarray(a) for n, a in found.items()}
    return json.loads((out / "adapter_config.json").read_text()), tensors


def same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


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


@pytest.mark.parametrize("host", MODELS)
def test_sites_of_the_learner_have_names(host):
    """Every array that a module at all sites has, a file has, and nothing else."""
    everywhere = Lora(name="rte", rank=2, sites=(".*",))
    learner = Learner.of(MODELS[host], NoLoss(), adapters=(everywhere,))
    shapes = {p: leaf.shape for p, leaf in flatten(learner.shapes).items() if "adapters/" in p}
    table = hosts(host)
    assert shapes == {
        f"adapters/rte/{stack}/{site}/{leaf}": shape
        for (stack, site), (layers, size, out) in table.kernels.items()
        for leaf, shape in (("a", (layers, size, 2)), ("b", (layers, 2, out)))
    }
    kernels = flatten(learner.shapes)
    for site, path in table.paths.items():
        assert kernels[path].shape == table.kernels[site]


def test_names_of_t5():
    names = list(hosts("t5").places)
    assert "encoder.block.1.layer.0.SelfAttention.q" in names
    assert "decoder.block.2.layer.1.EncDecAttention.v" in names
    place = hosts("t5").places["decoder.block.2.layer.2.DenseReluDense.wi_1"]
    assert (place.stack, place.site, place.layer) == ("decoder", "mlp/in", 2)
    names = list(hosts("deberta").places)
    assert "encoder.layer.0.attention.self.query_proj" in names
    assert not [name for name in names if "pos_" in name]


@pytest.mark.parametrize("start", ["", "bert.", "transformer.bert."])
def test_any_beginning_of_names(tmp_path, start):
    made = module(write(tmp_path / "in", LORA, bert_lora(start=start)))
    same(made.arrays, module(write(tmp_path / "other", LORA, bert_lora())).arrays)


def test_patterns_become_zeros_and_factors(tmp_path):
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
    assert (made.adapter.rank, made.adapter.scale) == (4, 1.0)
    a, b = (made.arrays[f"adapters/rte/encoder/attention/query/{leaf}"] for leaf in "ab")
    for layer, scale in ((0, 12 / 4), (1, 4 / 2)):
        name = f"bert.encoder.layer.{layer}.attention.self.query"
        theirs = {**tensors, **wide}
        product = theirs[f"{name}.lora_B.weight"] @ theirs[f"{name}.lora_A.weight"]
        np.testing.assert_allclose(a[layer] @ b[layer], scale * product.T, rtol=1e-5, atol=1e-5)
    assert not made.arrays["adapters/rte/encoder/attention/value/b"][0].any()
    config, back = written(tmp_path, made)
    assert "bert.encoder.layer.0.attention.self.value.lora_A.weight" not in back
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


def test_ia3_without_the_fourth_vector_needs_an_expression(tmp_path):
    tensors = {n: a for n, a in bert_ia3().items() if "attention.output" not in n}
    config = {**IA3, "target_modules": r".*(key|value|\d\.output\.dense)"}
    made = module(write(tmp_path / "in", config, tensors))
    assert made.adapter == Ia3(name="rte")
    config, back = written(tmp_path, made)
    same(back, tensors)
    assert config["feedforward_modules"] == r"(?:.*\.)?(?:encoder\.layer\.\d+\.output\.dense)"


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
    ("fields", "message"),
    [
        ({"bias": "all"}, "bias 'all' is not supported"),
        ({"lora_bias": True}, "lora_bias"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa' moves the base"),
        ({"init_lora_weights": "olora"}, "moves the base"),
        ({"init_lora_weights": "corda"}, "moves the base"),
        ({"some_new_field": 3}, "some_new_field"),
        ({"peft_type": "PREFIX_TUNING"}, "prompts and prefixes come later"),
        ({"peft_type": "LOHA"}, "peft_type 'LOHA' cannot interchange; LORA and IA3 can"),
        ({"r": "eight"}, "r must be a number from 1"),
        ({"r": 3}, r"lora_A.weight has shape \(2, 8\), and its config and the base say \(3, 8\)"),
        ({"rank_pattern": {"(": 3}}, "rank_pattern: '.' is no regular expression"),
        ({"rank_pattern": [3]}, "rank_pattern must be an object"),
        ({"target_modules": ["query"]}, "the layers are not those of target_modules"),
        ({"target_modules": ["query", "value", "key"]}, "missing"),
        ({"target_modules": 3}, "target_modules must be names or a regular expression"),
        ({"use_dora": True}, "missing.*lora_magnitude_vector"),
        ({"use_dora": "yes"}, "use_dora must be true or false"),
    ],
)
def test_what_cannot_interchange_is_named(tmp_path, fields, message):
    with pytest.raises(InputError, match=message) as raised:
        module(write(tmp_path / "in", {**LORA, **fields}, bert_lora()))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({f"{QUERY}.lora_A.weight": None}, "missing.*lora_A"),
        ({f"{QUERY}.lora_A.weight": np.full((2, 8), np.nan, np.float32)}, "NaN or infinite"),
        ({f"{QUERY}.lora_A.weight": np.zeros((2, 8), np.int32)}, "holds int32, not weights"),
        ({f"{QUERY}.lora_A.weight": np.zeros((2, 12), np.float32)}, r"the base say \(2, 8\)"),
        ({f"{QUERY}.lora_embedding_A": np.zeros((2, 8), np.float32)}, "of no module that is"),
        ({"bert.encoder.layer.7.output.dense.lora_A.weight": np.zeros((2, 8), np.float32)},
         "the base has no dense layer bert.encoder.layer.7.output.dense"),
        ({"bert.pooler.dense.lora_A.weight": np.zeros((2, 8), np.float32)}, "no dense layer"),
        ({"lm_head.weight": np.zeros((2, 8), np.float32)}, "lm_head.weight .* is of no head"),
    ],
)  # fmt: skip
def test_what_is_damaged_or_of_another_base(tmp_path, change, message):
    tensors = {n: a for n, a in {**bert_lora(), **change}.items() if a is not None}
    with pytest.raises(InputError, match=message):
        module(write(tmp_path / "in", LORA, tensors))


def test_files_that_are_missing_or_cut(tmp_path):
    with pytest.raises(InputError, match="no such directory"):
        read_peft(tmp_path / "none")
    with pytest.raises(InputError, match=r"holds no adapter_config\.json"):
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
    with pytest.raises(InputError, match="in some layers or stacks alone is not supported"):
        module(write(tmp_path / "b", one, bert_ia3(layers=(0,))))
    hidden = {n: a for n, a in bert_ia3().items() if "output" in n}
    with pytest.raises(InputError, match="no output of a layer is scaled"):
        module(write(tmp_path / "c", {**IA3, "target_modules": ["output.dense"]}, hidden))


def test_what_peft_does_not_have(tmp_path):
    with pytest.raises(InputError, match="PEFT has no Bottleneck as module 'bottleneck'"):
        written(tmp_path, module(write(tmp_path / "in", LORA, bert_lora())), adapter=seq_bn())


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
