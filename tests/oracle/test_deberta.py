"""DeBERTa v2 and v3 directories against transformers itself."""

import json

import jax
import numpy as np
import pytest

from scripts import encoder_goldens as goldens
from t5x_lite.commands.weights import export_hf, import_hf
from t5x_lite.inference.loading import Loaded
from t5x_lite.nn.disentangled import RelativePositions
from tests.arrays import assert_equal_arrays, saved_arrays

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

POSITIONS = "deberta.embeddings.position_embeddings.weight"


def with_tokenizer(directory):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]
    (directory / "vocab.txt").write_text("\n".join(pieces) + "\n")


def random_model(config, *, seed):
    model = goldens.random_model(config, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1e-3 * torch.randn_like(parameter)  # all of float32's bits
    return model


def ours_of(directory, batch):
    """Hidden states and the head's logits of what was imported."""
    loaded = Loaded.from_checkpoint(str(directory), step=None)

    @jax.jit
    def run(params, tokens, token_types):
        learner = loaded.learner.bind(params)
        states = learner.model.masked_lm_states(tokens, token_types=token_types)
        table = learner.model.tables()["token"]
        hidden = learner.model(tokens, token_types=token_types)
        return hidden, learner.heads.mlm(states, table)

    return run(loaded.params, batch["tokens"], batch["token_types"])


def flipped(batch):
    """The same with padding on the left."""
    return {name: np.ascontiguousarray(array[:, ::-1]) for name, array in batch.items()}


SETTINGS = [
    ("deberta_v3", {}, flipped),
    ("deberta_v3", {"position_buckets": 8, "max_relative_positions": 9}, None),
    ("deberta_v3", {"position_buckets": 6, "num_attention_heads": 1}, None),
    ("deberta_v3", {"pos_att_type": "p2c", "share_att_key": False}, None),
    ("deberta_v2_convolution", {}, flipped),
    ("deberta_v2_convolution", {"conv_kernel_size": 5, "conv_act": "tanh"}, None),
    ("deberta_v2_other", {}, flipped),
    ("deberta_v2_other", {"embedding_size": 12, "pos_att_type": ["c2p"]}, None),
]


@pytest.mark.parametrize(("variant", "changes", "change"), SETTINGS)
def test_in_and_out_keeps_the_numbers(tmp_path, variant, changes, change):
    config = {**goldens.DEBERTA[variant], **changes}
    batch = goldens.random_batch(config)
    batch = batch if change is None else change(batch)
    model = random_model(config, seed=5)
    model.save_pretrained(tmp_path / "source")
    with_tokenizer(tmp_path / "source")
    import_hf(tmp_path / "source", tmp_path / "ours")
    real, expected = batch["real"], goldens.compute(model, batch)
    for array, theirs in zip(ours_of(tmp_path / "ours", batch), expected, strict=True):
        np.testing.assert_allclose(np.asarray(array)[real], theirs[real], rtol=1e-4, atol=1e-4)
    export_hf(tmp_path / "ours", tmp_path / "theirs")
    back, info = type(model).from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for other, theirs in zip(goldens.compute(back.eval(), batch), expected, strict=True):
        np.testing.assert_allclose(other, theirs, rtol=1e-6, atol=1e-6)
    theirs, kept = back.state_dict(), model.state_dict()
    for name in kept.keys() & theirs.keys():
        assert torch.equal(theirs[name], kept[name]), name
    import_hf(tmp_path / "theirs", tmp_path / "again")
    assert_equal_arrays(saved_arrays(tmp_path / "ours"), saved_arrays(tmp_path / "again"))


@pytest.mark.parametrize("position_buckets", [8, 5, -1])
def test_rows_longer_than_the_farthest_distance(tmp_path, position_buckets):
    config = {
        **goldens.DEBERTA["deberta_v3"],
        "position_buckets": position_buckets,
        "max_relative_positions": 16,
        "max_position_embeddings": 48,
    }
    model = random_model(config, seed=6)
    model.save_pretrained(tmp_path / "source")
    with_tokenizer(tmp_path / "source")
    import_hf(tmp_path / "source", tmp_path / "ours")
    export_hf(tmp_path / "ours", tmp_path / "theirs")
    back = type(model).from_pretrained(tmp_path / "theirs").eval()
    for length in (12, 17, 40):
        batch = goldens.random_batch(config, (length, 9))
        real, expected = batch["real"], goldens.compute(model, batch)
        ours, again = ours_of(tmp_path / "ours", batch), goldens.compute(back, batch)
        for array, other, theirs in zip(ours, again, expected, strict=True):
            np.testing.assert_allclose(np.asarray(array)[real], theirs[real], rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(other[real], theirs[real], rtol=1e-6, atol=1e-6)


def test_the_enhanced_mask_decoder_with_the_layers_of_transformers(tmp_path):
    config = {**goldens.DEBERTA["deberta_v3"], "num_hidden_layers": 3}
    model, batch = random_model(config, seed=8), goldens.random_batch(config)
    source = tmp_path / "source"
    goldens.save(model, {**config, "enhanced_mask_decoder": True}, source)
    table = torch.randn(config["max_position_embeddings"], config["hidden_size"])
    weights = {**goldens.own_weights(model), POSITIONS: table}
    safetensors_torch.save_file(weights, source / "model.safetensors", {"format": "pt"})
    with_tokenizer(source)
    import_hf(source, tmp_path / "ours")
    encoder, embeddings = model.deberta.encoder, model.deberta.embeddings
    with torch.no_grad():
        real = torch.from_numpy(batch["real"]).long()
        out = model.deberta(
            torch.from_numpy(batch["tokens"]).long(), real, output_hidden_states=True
        )
        hidden = out.hidden_states[-2]
        query = hidden + table[: hidden.shape[1]]
        for _ in range(2):
            query, _ = encoder.layer[-1](
                hidden,
                encoder.get_attention_mask(real),
                query_states=query,
                relative_pos=encoder.get_rel_pos(hidden),
                rel_embeddings=encoder.get_rel_embedding(),
            )
        expected = model.lm_predictions(query, embeddings.word_embeddings).numpy()
    _, logits = ours_of(tmp_path / "ours", batch)
    np.testing.assert_allclose(
        np.asarray(logits)[batch["real"]], expected[batch["real"]], rtol=1e-4, atol=1e-4
    )
    export_hf(tmp_path / "ours", tmp_path / "theirs")
    written = safetensors_torch.load_file(tmp_path / "theirs" / "model.safetensors")
    assert torch.equal(written[POSITIONS], table)
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["enhanced_mask_decoder"]
    back = type(model).from_pretrained(tmp_path / "theirs").eval()
    # Bit for bit the weights: equal models differ in a last bit, as memory is aligned.
    tensors, exported = model.state_dict(), back.state_dict()
    head = {name for name in tensors if name.startswith("lm_predictions.")}
    for name in ("dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias"):
        transform = exported.pop(f"cls.predictions.transform.{name}")
        assert torch.equal(transform, tensors[f"lm_predictions.lm_head.{name}"])
    for name in ("bias", "decoder.bias"):
        bias = exported.pop(f"cls.predictions.{name}")
        assert torch.equal(bias, tensors["lm_predictions.lm_head.bias"])
    words = exported.pop("cls.predictions.decoder.weight")
    assert torch.equal(words, tensors["deberta.embeddings.word_embeddings.weight"])
    assert exported.keys() == tensors.keys() - head
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in exported.items())
    for other, theirs in zip(
        goldens.compute(back, batch), goldens.compute(model, batch), strict=True
    ):
        np.testing.assert_allclose(other, theirs, rtol=1e-6, atol=1e-6)


def test_a_discriminator(tmp_path):
    config = goldens.DEBERTA["deberta_v3"]
    model, size = random_model(config, seed=9), config["hidden_size"]
    weights = goldens.own_weights(model)
    for name, shape in {"dense": (size, size), "classifier": (1, size)}.items():
        weights[f"mask_predictions.{name}.weight"] = torch.randn(shape)
        weights[f"mask_predictions.{name}.bias"] = torch.randn(shape[:1])
    for name in ("weight", "bias"):
        weights[f"mask_predictions.LayerNorm.{name}"] = torch.randn(size)
    goldens.save(model, config, tmp_path / "source")
    path = tmp_path / "source" / "model.safetensors"
    safetensors_torch.save_file(weights, path, {"format": "pt"})
    with_tokenizer(tmp_path / "source")
    import_hf(tmp_path / "source", tmp_path / "ours")
    export_hf(tmp_path / "ours", tmp_path / "theirs")
    written = safetensors_torch.load_file(tmp_path / "theirs" / "model.safetensors")
    kept = {name for name in weights if not name.startswith("lm_predictions.")}
    assert written.keys() == kept
    for name in kept:
        assert torch.equal(written[name], weights[name]), name
    back = transformers.AutoModel.from_pretrained(tmp_path / "theirs").eval()
    theirs, encoder = back.state_dict(), model.deberta.state_dict()
    assert type(back) is type(model.deberta)
    for name, weight in encoder.items():
        assert torch.equal(theirs[name], weight), name


@pytest.mark.parametrize(
    ("position_buckets", "max_positions"),
    [(2, 9), (4, 20), (16, 100), (32, 128), (64, 512), (256, 512), (256, 2048)],
)
def test_buckets(position_buckets, max_positions):
    module = transformers.models.deberta_v2.modeling_deberta_v2
    length = 3 * max_positions
    distance = torch.arange(1 - length, length)
    theirs = module.make_log_bucket_position(distance, position_buckets, max_positions)
    relative = RelativePositions(position_buckets=position_buckets, max_positions=max_positions)
    expected = np.clip(theirs.long().numpy() + position_buckets, 0, 2 * position_buckets - 1)
    np.testing.assert_array_equal(relative.index(length), expected)
