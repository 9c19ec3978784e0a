"""T5 against transformers, on random tiny models; weights are copied by the table below."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core.trees import difference, flatten, unflatten
from t5x_lite.models.t5 import T5Config
from t5x_lite.nn.slots import bind, shapes
from t5x_lite.objectives.learner import Bound
from t5x_lite.objectives.likelihood import Seq2Seq

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

T5_1_1 = T5Config(
    vocab_size=40,
    d_model=16,
    d_kv=6,
    d_ff=24,
    num_heads=3,
    num_encoder_layers=2,
    num_decoder_layers=3,
    dropout_rate=0.0,
)
T5_1_0 = T5_1_1.replace(feed_forward="relu", tie_embeddings=True)

# transformers' names -> ours; {N} is the layer, whose arrays are stacked.
NAMES = [
    (r"shared\.weight", "token_embedding/table"),
    (r"lm_head\.weight", "lm_head/kernel"),
    (r"(\w+)\.final_layer_norm\.weight", r"\1/final_norm/scale"),
    (r"(\w+)\.block\.0\..*relative_attention_bias\.weight", r"\1/relative_bias/table"),
    (r"encoder\.block\.\d+\.layer\.0\.SelfAttention\.(\w)\.weight", r"encoder/layers/attention/\1"),
    (r"encoder\.block\.\d+\.layer\.0\.layer_norm\.weight", "encoder/layers/attention_norm/scale"),
    (r"encoder\.block\.\d+\.layer\.1\.layer_norm\.weight", "encoder/layers/mlp_norm/scale"),
    (r"decoder\.block\.\d+\.layer\.0\.SelfAttention\.(\w)\.weight",
     r"decoder/layers/self_attention/\1"),
    (r"decoder\.block\.\d+\.layer\.1\.EncDecAttention\.(\w)\.weight",
     r"decoder/layers/cross_attention/\1"),
    (r"decoder\.block\.\d+\.layer\.0\.layer_norm\.weight",
     "decoder/layers/self_attention_norm/scale"),
    (r"decoder\.block\.\d+\.layer\.1\.layer_norm\.weight",
     "decoder/layers/cross_attention_norm/scale"),
    (r"decoder\.block\.\d+\.layer\.2\.layer_norm\.weight", "decoder/layers/mlp_norm/scale"),
    (r"(\w+)\.block\.\d+\..*\.DenseReluDense\.(\w+)\.weight", r"\1/layers/mlp/\2/kernel"),
]  # fmt: skip
PROJECTIONS = {"q": "query", "k": "key", "v": "value", "o": "out"}


def our_path(name):
    for pattern, path in NAMES:
        if match := re.fullmatch(pattern, name):
            head, _, last = match.expand(path).rpartition("/")
            return f"{head}/{PROJECTIONS[last]}/kernel" if last in PROJECTIONS else f"{head}/{last}"
    raise KeyError(name)


def converted(config, model):
    """Our parameters from a transformers model's."""
    tied = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}
    tied |= {"lm_head.weight"} if config.tie_embeddings else set()
    stacks: dict[str, list[np.ndarray]] = {}
    for name, tensor in model.state_dict().items():
        if name not in tied:
            path = our_path(name)
            array = tensor.numpy()
            stacks.setdefault(path, []).append(array.T if path.endswith("kernel") else array)
    flat = {
        path: np.stack(arrays) if "/layers/" in path else arrays[0]
        for path, arrays in stacks.items()
    }
    _, abstract, _ = shapes(lambda rngs: config.build(rngs=rngs))
    expected = flatten(abstract)
    assert difference(expected, flat) == ""
    assert {path: leaf.shape for path, leaf in flat.items()} == {
        path: leaf.shape for path, leaf in expected.items()
    }
    return unflatten({path: jnp.asarray(leaf) for path, leaf in flat.items()})


def random_transformers_model(config):
    """A transformers T5 of the same sizes; no parameter is left at 0 or 1."""
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            d_kv=config.d_kv,
            d_ff=config.d_ff,
            num_heads=config.num_heads,
            num_layers=config.num_encoder_layers,
            num_decoder_layers=config.num_decoder_layers,
            feed_forward_proj=config.feed_forward,
            tie_word_embeddings=config.tie_embeddings,  # logits times d_model**-0.5 where True
        )
    ).eval()
    if not config.tie_embeddings:
        # transformers 5 ties a fresh 1.1 too, unlike the released checkpoints.
        model.lm_head.weight = torch.nn.Parameter(torch.empty(config.vocab_size, config.d_model))
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif "relative_attention_bias" in name or "shared" in name:
                parameter.normal_()
            else:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
    return model


def random_batch(config, *, inputs_lengths, targets_lengths):
    """Two padded rows in seqio's features."""
    rng = np.random.default_rng(0)

    def rows(lengths):
        tokens = rng.integers(2, config.vocab_size, size=(len(lengths), max(lengths)))
        return np.where(np.arange(max(lengths)) < np.array(lengths)[:, None], tokens, 0)

    inputs, targets = rows(inputs_lengths), rows(targets_lengths)
    return {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0))),
        "decoder_target_tokens": targets,
        "decoder_loss_weights": (targets > 0).astype(np.float32),
    }


# The second pair reaches the last of the relative position buckets.
@pytest.mark.parametrize("lengths", [((9, 5), (4, 7)), ((150, 140), (130, 20))])
@pytest.mark.parametrize("config", [T5_1_0, T5_1_1], ids=["1.0", "1.1"])
def test_logits_and_loss_equal_those_of_transformers(config, lengths):
    model = random_transformers_model(config)
    batch = random_batch(config, inputs_lengths=lengths[0], targets_lengths=lengths[1])
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    targets = tensors["decoder_target_tokens"]
    with torch.no_grad():
        theirs = model(
            input_ids=tensors["encoder_input_tokens"],
            attention_mask=(tensors["encoder_input_tokens"] > 0).long(),
            decoder_input_ids=tensors["decoder_input_tokens"],
            labels=targets.masked_fill(targets == 0, -100),
        )

    graphdef, _, _ = shapes(lambda rngs: Bound(config, Seq2Seq(z_loss=0.0), rngs=rngs))

    @jax.jit
    def ours(params, batch):
        learner = bind(graphdef, {"model": params})
        logits = learner.model(batch["encoder_input_tokens"], batch["decoder_input_tokens"])
        return logits, learner(batch).value()

    arrays = {name: jnp.asarray(array) for name, array in batch.items()}
    logits, loss = ours(converted(config, model), arrays)
    real = batch["decoder_target_tokens"] > 0
    np.testing.assert_allclose(
        np.asarray(logits)[real], theirs.logits.numpy()[real], rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(loss, theirs.loss.item(), rtol=1e-5)
