"""Directories of PEFT, made by hand, and what the tests of them share."""

import json

import numpy as np

from t5x_lite.core.trees import LazyArray
from t5x_lite.interop.encoder_checkpoints import hosts_of
from t5x_lite.interop.peft import read_peft, to_module
from t5x_lite.interop.peft_prompts import write_peft
from t5x_lite.interop.tensor_files import read_safetensors, write_safetensors
from t5x_lite.models.deberta import DebertaConfig
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.heads import Classifier
from t5x_lite.models.t5 import T5Config

LORA = {
    "peft_type": "LORA", "task_type": None, "base_model_name_or_path": "some/base", "r": 2,
    "lora_alpha": 4, "lora_dropout": 0.0, "bias": "none", "target_modules": ["query", "value"],
    "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {}, "use_rslora": False,
    "use_dora": False, "init_lora_weights": True, "inference_mode": True, "loftq_config": {},
    "layer_replication": None, "layers_to_transform": None, "megatron_core": "megatron.core",
    "lora_bias": False, "trainable_token_indices": None, "peft_version": "0.21.2",
}  # fmt: skip
IA3 = {
    "peft_type": "IA3", "target_modules": ["key", "value", "output.dense"],
    "feedforward_modules": ["output.dense"], "init_ia3_weights": True, "modules_to_save": None,
}  # fmt: skip


def lazy(array):
    return LazyArray(array.shape, array.dtype, lambda: array)


def write(directory, config, tensors):
    """A directory with this config and tensors, which get the usual beginning of their names."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(config))
    named = {f"base_model.model.{name}": lazy(array) for name, array in tensors.items()}
    write_safetensors(directory / "adapter_model.safetensors", named)
    return directory


def random(shapes, *, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def bert_lora(*, rank=2, size=8, layers=(0, 1), names=("query", "value"), start="bert."):
    """LoRA's tensors of a BERT's attention."""
    return random(
        {
            f"{start}encoder.layer.{layer}.attention.self.{name}.{leaf}.weight": shape
            for layer in layers
            for name in names
            for leaf, shape in (("lora_A", (rank, size)), ("lora_B", (size, rank)))
        }
    )


def bert_ia3(*, size=8, d_ff=16, layers=(0, 1)):
    """The tensors of (IA)^3 on a BERT: the list's suffix means attention.output.dense, too."""
    shapes = {}
    for layer in layers:
        start = f"bert.encoder.layer.{layer}"
        shapes |= {
            f"{start}.attention.self.key.ia3_l": (size, 1),
            f"{start}.attention.self.value.ia3_l": (size, 1),
            f"{start}.attention.output.dense.ia3_l": (1, size),
            f"{start}.output.dense.ia3_l": (1, d_ff),
        }
    return random(shapes)


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
