"""BERT, RoBERTa, XLM-R and ELECTRA directories against transformers itself."""

import jax
import numpy as np
import pytest

from scripts import encoder_goldens as goldens
from t5x_lite.commands.weights import export_hf, import_hf
from t5x_lite.inference.loading import Loaded
from tests.arrays import assert_equal_arrays, saved_arrays

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SPECIAL = {0: "[PAD] [UNK] [CLS] [SEP] [MASK]", 1: "[CLS] [PAD] [SEP] [UNK] [MASK]"}


def with_tokenizer(directory, config):
    pieces = [*SPECIAL[config["pad_token_id"]].split(), *"abcdefghijklmno"]
    (directory / "vocab.txt").write_text("\n".join(pieces) + "\n")


def check_numbers(directory, model, batch):
    """Hidden states and the head's logits of what was imported against the model's."""
    loaded = Loaded.from_checkpoint(str(directory), step=None)

    @jax.jit
    def run(params, tokens, token_types):
        learner = loaded.learner.bind(params)
        hidden = learner.model(tokens, token_types=token_types)
        (name,) = loaded.learner.heads
        head = learner.heads[name]
        table = (learner.model.tables()["token"],) if hasattr(head, "transform") else ()
        return hidden, head(learner.model.masked_lm_states(tokens, token_types=token_types), *table)

    ours = run(loaded.params, batch["tokens"], batch["token_types"])
    real = batch["real"]
    for array, theirs in zip(ours, goldens.compute(model, batch), strict=True):
        np.testing.assert_allclose(np.asarray(array)[real], theirs[real], rtol=1e-4, atol=1e-4)


def flipped(batch):
    """The same with padding on the left."""
    return {name: np.ascontiguousarray(array[:, ::-1]) for name, array in batch.items()}


SETTINGS = [
    ("bert", {}, flipped),
    ("bert", {"hidden_act": "gelu_new", "num_hidden_layers": 3, "num_attention_heads": 1}, None),
    ("bert", {"hidden_act": "relu", "type_vocab_size": 1, "layer_norm_eps": 1e-5}, None),
    ("roberta", {}, flipped),
    ("xlm_roberta", {"num_attention_heads": 2, "type_vocab_size": 2}, None),
    ("electra_generator", {"embedding_size": 12}, None),
    ("electra_generator", {}, flipped),
    ("electra_discriminator", {"hidden_act": "relu", "intermediate_size": 48}, None),
]


@pytest.mark.parametrize(("variant", "changes", "change"), SETTINGS)
def test_in_and_out_keeps_the_numbers(tmp_path, variant, changes, change):
    config = {**goldens.VARIANTS[variant], **changes}
    batch = goldens.random_batch(config)
    batch = batch if change is None else change(batch)
    model = goldens.random_model(config, seed=5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1e-3 * torch.randn_like(parameter)  # all of float32's bits
    model.save_pretrained(tmp_path / "source")
    with_tokenizer(tmp_path / "source", config)
    import_hf(tmp_path / "source", tmp_path / "ours")
    check_numbers(tmp_path / "ours", model, batch)
    export_hf(tmp_path / "ours", tmp_path / "theirs")
    back, info = type(model).from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for array, other in zip(
        goldens.compute(model, batch), goldens.compute(back.eval(), batch), strict=True
    ):
        np.testing.assert_array_equal(array, other)
    import_hf(tmp_path / "theirs", tmp_path / "again")
    assert_equal_arrays(saved_arrays(tmp_path / "ours"), saved_arrays(tmp_path / "again"))


@pytest.mark.parametrize("variant", ["bert", "roberta", "electra_discriminator"])
def test_an_encoder_alone(tmp_path, variant):
    config = goldens.VARIANTS[variant]
    whole = goldens.random_model(config, seed=6)
    encoder = whole.base_model
    encoder.save_pretrained(tmp_path / "source")
    with_tokenizer(tmp_path / "source", config)
    import_hf(tmp_path / "source", tmp_path / "ours")
    loaded = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None)
    batch = goldens.random_batch(config)
    found = jax.jit(
        lambda params, tokens, types: loaded.learner.bind_model(params).encode(
            tokens, token_types=types
        )
    )(loaded.params, batch["tokens"], batch["token_types"])
    expected, _ = goldens.compute(whole, batch)
    real = batch["real"]
    np.testing.assert_allclose(np.asarray(found)[real], expected[real], rtol=1e-4, atol=1e-4)
    export_hf(tmp_path / "ours", tmp_path / "theirs")
    back = transformers.AutoModel.from_pretrained(tmp_path / "theirs")
    assert type(back) is type(encoder)
    theirs, kept = back.state_dict(), encoder.state_dict()
    for name in kept:
        if "pooler" not in name:
            assert torch.equal(theirs[name], kept[name]), name


def test_the_tokenizer_of_what_is_written(tmp_path):
    config = goldens.VARIANTS["bert"]
    goldens.save(goldens.random_model(config, seed=7), config, tmp_path / "source")
    with_tokenizer(tmp_path / "source", config)
    import_hf(tmp_path / "source", tmp_path / "ours")
    export_hf(tmp_path / "ours", tmp_path / "theirs")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    vocabulary = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None).vocabulary
    text = "a b c zz o"
    assert tokenizer(text)["input_ids"] == [2, *vocabulary.encode(text), 3]
