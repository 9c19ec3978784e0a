"""Tiny encoders as transformers computes them: `python scripts/encoder_goldens.py`.

Writes tests/golden/encoders/<variant>.npz, from which the tests compare with transformers where it
is not installed: config.json, random weights (bfloat16, so that they are small and exact), and
transformers' last hidden states and head's logits for a batch with padding.

Run it only to add a variant, or after transformers has changed what it computes.
"""

import dataclasses
import json
import pathlib
import re
import sys
from typing import Any

import ml_dtypes
import numpy as np

DIRECTORY = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "encoders"
LENGTHS = (9, 5)
WEIGHT = "weight:"

_SIZES = {
    "vocab_size": 40, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 20, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 16, "type_vocab_size": 2,
    "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0,
}  # fmt: skip
_BERT = {**_SIZES, "model_type": "bert", "architectures": ["BertForMaskedLM"]}
_ROBERTA = {**_SIZES, "pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
_ELECTRA = {**_SIZES, "model_type": "electra", "embedding_size": 8}
VARIANTS: dict[str, dict[str, Any]] = {
    "bert": _BERT,
    "roberta": {**_ROBERTA, "model_type": "roberta", "architectures": ["RobertaForMaskedLM"]},
    "xlm_roberta": {
        **_ROBERTA,
        "model_type": "xlm-roberta",
        "architectures": ["XLMRobertaForMaskedLM"],
    },
    "electra_generator": {**_ELECTRA, "architectures": ["ElectraForMaskedLM"]},
    "electra_discriminator": {**_ELECTRA, "architectures": ["ElectraForPreTraining"]},
}
_DEBERTA_V3 = {
    **_SIZES, "model_type": "deberta-v2", "architectures": ["DebertaV2ForMaskedLM"],
    "type_vocab_size": 0, "layer_norm_eps": 1e-7, "relative_attention": True,
    "position_buckets": 4, "max_relative_positions": -1, "pos_att_type": "p2c|c2p",
    "share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False,
    "legacy": False,
}  # fmt: skip
DEBERTA: dict[str, dict[str, Any]] = {
    "deberta_v3": _DEBERTA_V3,
    "deberta_v2_convolution": {
        **_DEBERTA_V3,
        "num_hidden_layers": 3,
        "conv_kernel_size": 3,
        "conv_act": "gelu",
    },
    "deberta_v2_other": {
        **_DEBERTA_V3,
        "position_buckets": -1,
        "max_relative_positions": 12,
        "pos_att_type": "c2p|p2c",
        "share_att_key": False,
        "norm_rel_ebd": "none",
        "position_biased_input": True,
        "type_vocab_size": 2,
        "embedding_size": 8,
        "legacy": True,
    },
    # Rows longer than the farthest distance that has a row of its own.
    "deberta_v3_far": {**_DEBERTA_V3, "max_relative_positions": 4},
}


@dataclasses.dataclass(frozen=True)
class Golden:
    """One variant's file.

    Attributes:
      config: the content of config.json.
      weights: bfloat16, by transformers' names.
      hidden: float32 [2, S, D], the last layer's states; those of padding mean nothing.
      logits: float32, the head's: [2, S, V] of tokens, or [2, S] of detection.
    """

    config: dict[str, Any]
    weights: dict[str, np.ndarray]
    hidden: np.ndarray
    logits: np.ndarray


def read(variant: str, *, directory: pathlib.Path = DIRECTORY) -> Golden:
    """A variant's golden."""
    with np.load(directory / f"{variant}.npz") as file:
        weights = {
            name.removeprefix(WEIGHT): file[name].view(ml_dtypes.bfloat16)
            for name in file.files
            if name.startswith(WEIGHT)
        }
        config = json.loads(str(file["config"]))
        return Golden(config=config, weights=weights, hidden=file["hidden"], logits=file["logits"])


def write_release(golden: Golden, directory: pathlib.Path) -> None:
    """Writes config.json and model.safetensors without transformers."""
    from t5x_lite.interop.rules import LazyArray
    from t5x_lite.interop.tensor_files import write_safetensors

    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(golden.config))
    arrays = {
        name: LazyArray(weight.shape, weight.dtype, lambda weight=weight: weight)
        for name, weight in golden.weights.items()
    }
    write_safetensors(directory / "model.safetensors", arrays)


def random_batch(
    config: dict[str, Any], lengths: tuple[int, ...] = LENGTHS
) -> dict[str, np.ndarray]:
    """Padded rows of these lengths: tokens, and token types where there are several."""
    rng = np.random.default_rng(0)
    shape = (len(lengths), max(lengths))
    tokens = rng.integers(4, config["vocab_size"], size=shape)
    real = np.arange(shape[1]) < np.array(lengths)[:, None]
    types = np.arange(shape[1])[None] >= np.array(lengths)[:, None] // 2
    several = config.get("type_vocab_size", 2) > 1
    return {
        "tokens": np.where(real, tokens, config["pad_token_id"]).astype(np.int32),
        "token_types": np.where(real & types & several, 1, 0).astype(np.int32),
        "real": real,
    }


def random_model(config: dict[str, Any], *, seed: int) -> Any:
    """A transformers model of a config.json in which no weight is left at 0 or 1."""
    import torch
    import transformers

    cls = transformers.AutoConfig.for_model(config["model_type"]).__class__
    model = getattr(transformers, config["architectures"][0])(cls.from_dict(config)).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5) if _is_scale(name) else parameter.normal_(std=0.5)
            elif "embeddings.weight" in name:
                parameter.normal_()
            else:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
            parameter.copy_(parameter.bfloat16().float())
    return model


def _is_scale(name: str) -> bool:
    return "norm" in name.lower() and name.endswith("weight")


def own_weights(model: Any) -> dict[str, Any]:
    """The weights of a model without the second names of shared ones and without buffers."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {
        name: weight.contiguous()
        for name, weight in model.state_dict().items()
        if name in parameters and not re.search(r"decoder\.|generator_lm_head\.weight", name)
    }


def save(model: Any, config: dict[str, Any], directory: pathlib.Path) -> None:
    """Writes a directory like a release: config.json as it is, and model.safetensors."""
    import safetensors.torch

    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    weights = own_weights(model)
    safetensors.torch.save_file(weights, directory / "model.safetensors", {"format": "pt"})


def compute(model: Any, batch: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """transformers' last hidden states [B, S, D] and its head's logits."""
    import torch

    with torch.no_grad():
        out = model(
            input_ids=torch.from_numpy(batch["tokens"]).long(),
            attention_mask=torch.from_numpy(batch["real"]).long(),
            token_type_ids=torch.from_numpy(batch["token_types"]).long(),
            output_hidden_states=True,
        )
    return out.hidden_states[-1].numpy(), out.logits.numpy()


def write(variant: str, config: dict[str, Any], *, seed: int, directory: pathlib.Path) -> None:
    """Makes a variant's file."""
    model = random_model(config, seed=seed)
    hidden, logits = compute(model, random_batch(config))
    arrays: dict[str, Any] = {
        WEIGHT + name: weight.numpy().astype(ml_dtypes.bfloat16).view(np.uint16)
        for name, weight in own_weights(model).items()
    }
    path = directory / f"{variant}.npz"
    np.savez_compressed(path, config=json.dumps(config), hidden=hidden, logits=logits, **arrays)
    print(path.name, path.stat().st_size, "bytes", file=sys.stderr)


def main() -> None:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for seed, (variant, config) in enumerate({**VARIANTS, **DEBERTA}.items()):
        write(variant, config, seed=seed, directory=DIRECTORY)


if __name__ == "__main__":
    main()
