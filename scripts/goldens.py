"""Tiny models of every variant, as transformers computes them: `python scripts/goldens.py`.

Writes tests/golden/hf/<variant>.npz, from which the tests compare with transformers where it is not
installed: a config.json in the form of the release, random weights (bfloat16, so that they are
small and exact), and transformers' logits, loss, greedy outputs and beams for a batch with padding.

Run it only to add a variant, or after transformers has changed what it computes.
"""

import dataclasses
import json
import pathlib
import shutil
import sys
import tempfile
from typing import Any

import ml_dtypes
import numpy as np

DIRECTORY = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "hf"
NEW_TOKENS = 8
NUM_BEAMS = 4
INPUTS_LENGTHS, TARGETS_LENGTHS = (9, 5), (4, 8)
WEIGHT = "weight:"

# As in the releases, whose fields differ by age.
_SIZES = {
    "d_model": 16, "d_kv": 6, "d_ff": 24, "num_heads": 3, "num_layers": 2, "vocab_size": 400,
    "dropout_rate": 0.1, "initializer_factor": 1.0, "layer_norm_epsilon": 1e-06,
    "relative_attention_num_buckets": 32, "is_encoder_decoder": True, "use_cache": True,
    "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
_T5 = {**_SIZES, "model_type": "t5", "n_positions": 512, "output_past": True}
_T5_1_1 = {
    **_SIZES, "model_type": "t5", "num_decoder_layers": 2, "feed_forward_proj": "gated-gelu",
    "output_past": True, "tie_word_embeddings": False,
}  # fmt: skip
_NEWER = {
    "dense_act_fn": "gelu_new", "is_gated_act": True, "relative_attention_max_distance": 128,
    "n_positions": 512, "torch_dtype": "float32", "transformers_version": "4.23.1",
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "t5": _T5,
    "t5_1_1": _T5_1_1,
    "lm_adapted": {**_T5_1_1, "tokenizer_class": "T5Tokenizer"},
    "flan_t5": {**_T5_1_1, **_NEWER, "architectures": ["T5ForConditionalGeneration"]},
    "mt5": {**_T5_1_1, "model_type": "mt5", "tokenizer_class": "T5Tokenizer"},
    "umt5": {**_T5_1_1, **_NEWER, "model_type": "umt5", "scalable_attention": True},
    "byt5": {
        **_T5_1_1,
        "num_layers": 3,
        "vocab_size": 384,
        "tokenizer_class": "ByT5Tokenizer",
        "gradient_checkpointing": False,
    },
}


@dataclasses.dataclass(frozen=True)
class Golden:
    """One variant's file.

    Attributes:
      config: the content of config.json.
      weights: bfloat16, by transformers' names.
      logits: float32 [2, T, V] for `random_batch`; those of padding mean nothing.
      loss: the mean over its targets.
      greedy: what transformers generates for its inputs, without the start token.
      beams: int32 [2, NUM_BEAMS, NEW_TOKENS], the same of its beam search, best first.
      beam_scores: float32 [2, NUM_BEAMS].
    """

    config: dict[str, Any]
    weights: dict[str, np.ndarray]
    logits: np.ndarray
    loss: float
    greedy: np.ndarray
    beams: np.ndarray
    beam_scores: np.ndarray


def read(variant: str) -> Golden:
    """A variant's golden."""
    with np.load(DIRECTORY / f"{variant}.npz") as file:
        weights = {
            name.removeprefix(WEIGHT): file[name].view(ml_dtypes.bfloat16)
            for name in file.files
            if name.startswith(WEIGHT)
        }
        return Golden(
            config=json.loads(str(file["config"])),
            weights=weights,
            logits=file["logits"],
            loss=float(file["loss"]),
            greedy=file["greedy"],
            beams=file["beams"],
            beam_scores=file["beam_scores"],
        )


def write_release(golden: Golden, directory: pathlib.Path, *, spiece: pathlib.Path) -> None:
    """Writes a Hugging Face directory without transformers.

    Args:
      golden: whose config and weights.
      directory: is made.
      spiece: a SentencePiece model of 300 pieces.
    """
    from t5x_lite.interop.rules import LazyArray
    from t5x_lite.interop.tensor_files import write_safetensors

    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(golden.config))
    if golden.config.get("tokenizer_class") != "ByT5Tokenizer":
        shutil.copy(spiece, directory / "spiece.model")
    arrays = {
        name: LazyArray(weight.shape, weight.dtype, lambda weight=weight: weight)
        for name, weight in golden.weights.items()
    }
    write_safetensors(directory / "model.safetensors", arrays)


def random_batch(vocab_size: int) -> dict[str, np.ndarray]:
    """Two padded rows in seqio's features."""
    rng = np.random.default_rng(0)

    def rows(lengths: tuple[int, ...]) -> np.ndarray:
        tokens = rng.integers(2, vocab_size, size=(len(lengths), max(lengths)))
        real = np.arange(max(lengths)) < np.array(lengths)[:, None]
        return np.where(real, tokens, 0).astype(np.int32)

    inputs, targets = rows(INPUTS_LENGTHS), rows(TARGETS_LENGTHS)
    return {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0))),
        "decoder_target_tokens": targets,
        "decoder_loss_weights": (targets > 0).astype(np.float32),
    }


def packed(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The rows of a padded batch in one row, with segment ids and two positions of padding."""
    sides = {"encoder": batch["encoder_input_tokens"], "decoder": batch["decoder_target_tokens"]}
    result = {}
    for side, tokens in sides.items():
        ids = [np.full((row > 0).sum(), i) for i, row in enumerate(tokens, start=1)]
        result[f"{side}_segment_ids"] = np.pad(np.concatenate(ids), (0, 2))[None].astype(np.int32)
    for name, tokens in batch.items():
        real = sides[name.split("_")[0]] > 0
        result[name] = np.pad(tokens[real], (0, 2))[None].astype(tokens.dtype)
    return result


def random_model(config: dict[str, Any], *, seed: int) -> Any:
    """A transformers model of a config.json in which no weight is left at 0 or 1."""
    import torch
    import transformers

    cls = transformers.AutoConfig.for_model(config["model_type"]).__class__
    model = transformers.AutoModelForSeq2SeqLM.from_config(cls.from_dict(config)).eval()
    if not config.get("tie_word_embeddings", True):
        # transformers 5 ties a fresh 1.1 too, unlike the released checkpoints.
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif "relative_attention_bias" in name or "shared" in name:
                parameter.normal_()
            else:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
            parameter.copy_(parameter.bfloat16().float())
    return model


def load(directory: pathlib.Path) -> Any:
    """What transformers makes of a directory; of an untied umT5, with the logits of the release.

    transformers 5 scales them as if it were tied; 4 and the original (t5x) do not.
    """
    import transformers

    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(directory).eval()
    declared = json.loads((directory / "config.json").read_text())
    if model.config.model_type == "umt5" and not declared.get("tie_word_embeddings", True):
        model.config.tie_word_embeddings = False
    return model


def save(model: Any, config: dict[str, Any], directory: pathlib.Path) -> None:
    """Writes a directory like a release: config.json as it is, and model.safetensors."""
    import safetensors.torch

    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    weights = own_weights(model, config)
    safetensors.torch.save_file(weights, directory / "model.safetensors", {"format": "pt"})


def own_weights(model: Any, config: dict[str, Any]) -> dict[str, Any]:
    """The weights of a model without the second names of its embedding."""
    copies = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}
    if config.get("tie_word_embeddings", True):
        copies.add("lm_head.weight")
    state = model.state_dict()
    return {name: weight.contiguous() for name, weight in state.items() if name not in copies}


def compute(model: Any, batch: dict[str, np.ndarray]) -> tuple[np.ndarray, float]:
    """transformers' logits [B, T, V] and loss."""
    import torch

    tensors = {name: torch.from_numpy(array).long() for name, array in batch.items()}
    inputs, targets = tensors["encoder_input_tokens"], tensors["decoder_target_tokens"]
    with torch.no_grad():
        out = model(
            input_ids=inputs,
            attention_mask=(inputs > 0).long(),
            decoder_input_ids=tensors["decoder_input_tokens"],
            labels=targets.masked_fill(targets == 0, -100),
        )
    return out.logits.numpy(), out.loss.item()


def generate(model: Any, inputs: np.ndarray) -> np.ndarray:
    """transformers' greedy tokens [B, NEW_TOKENS], 0 after the end."""
    import torch

    tokens = torch.from_numpy(inputs).long()
    out = model.generate(
        tokens,
        attention_mask=(tokens > 0).long(),
        do_sample=False,
        num_beams=1,
        max_new_tokens=NEW_TOKENS,
    ).numpy()[:, 1:]
    return np.pad(out, ((0, 0), (0, NEW_TOKENS - out.shape[1]))).astype(np.int32)


def beam_search(model: Any, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """transformers' beams [B, NUM_BEAMS, NEW_TOKENS], 0 after the end, and their scores."""
    import torch

    tokens = torch.from_numpy(inputs).long()
    out = model.generate(
        tokens,
        attention_mask=(tokens > 0).long(),
        do_sample=False,
        num_beams=NUM_BEAMS,
        num_return_sequences=NUM_BEAMS,
        max_new_tokens=NEW_TOKENS,
        return_dict_in_generate=True,
        output_scores=True,
    )
    shape = (len(inputs), NUM_BEAMS)
    found = out.sequences.numpy()[:, 1:].reshape(*shape, -1)
    missing = NEW_TOKENS - found.shape[-1]
    beams = np.pad(found, ((0, 0), (0, 0), (0, missing))).astype(np.int32)
    return beams, out.sequences_scores.numpy().astype(np.float32).reshape(shape)


def main() -> None:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for seed, (variant, config) in enumerate(VARIANTS.items()):
        with tempfile.TemporaryDirectory() as scratch:
            directory = pathlib.Path(scratch) / variant
            save(random_model(config, seed=seed), config, directory)
            model = load(directory)
        batch = random_batch(config["vocab_size"])
        logits, loss = compute(model, batch)
        beams, beam_scores = beam_search(model, batch["encoder_input_tokens"])
        arrays: dict[str, Any] = {
            WEIGHT + name: weight.numpy().astype(ml_dtypes.bfloat16).view(np.uint16)
            for name, weight in own_weights(model, config).items()
        }
        path = DIRECTORY / f"{variant}.npz"
        np.savez_compressed(
            path,
            config=json.dumps(config),
            logits=logits,
            loss=loss,
            greedy=generate(model, batch["encoder_input_tokens"]),
            beams=beams,
            beam_scores=beam_scores,
            **arrays,
        )
        print(path.name, path.stat().st_size, "bytes, loss", round(loss, 4), file=sys.stderr)


if __name__ == "__main__":
    main()
