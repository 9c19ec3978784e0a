"""Searches against transformers' generate(), token for token, on 100 random inputs."""

import functools

import jax
import numpy as np
import pytest

from t5x_lite.core.trees import unflatten
from t5x_lite.decoding.generate import decode
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.interop.hf import model_pieces
from t5x_lite.models.t5 import T5Config
from t5x_lite.nn.slots import bind, shapes

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

EOS, VOCAB_SIZE, NUM_INPUTS = 1, 24, 100  # so few tokens that outputs end at all lengths
CONFIG = T5Config(
    vocab_size=VOCAB_SIZE,
    d_model=16,
    d_kv=6,
    d_ff=24,
    num_heads=3,
    num_encoder_layers=2,
    num_decoder_layers=2,
)


def random_rows(rng, *, shortest, longest):
    """Rows of tokens, padded with 0 on the right."""
    tokens = rng.integers(2, VOCAB_SIZE, size=(NUM_INPUTS, longest))
    lengths = rng.integers(shortest, longest + 1, size=(NUM_INPUTS, 1))
    return np.where(np.arange(longest) < lengths, tokens, 0).astype(np.int32)


INPUTS = random_rows(np.random.default_rng(0), shortest=1, longest=10)
PROMPTS = random_rows(np.random.default_rng(1), shortest=0, longest=3)


VARIANTS = {
    "t5_1_1": CONFIG,
    "t5": CONFIG.replace(feed_forward="relu", tie_embeddings=True),
    "umt5": CONFIG.replace(relative_bias_per_layer=True),
}


@functools.cache
def peer(variant):
    """A random model of transformers whose output layer makes clear choices."""
    torch.manual_seed(0)
    ours = VARIANTS[variant]
    umt5 = variant == "umt5"
    config = (transformers.UMT5Config if umt5 else transformers.T5Config)(
        vocab_size=VOCAB_SIZE,
        d_model=CONFIG.d_model,
        d_kv=CONFIG.d_kv,
        d_ff=CONFIG.d_ff,
        num_heads=CONFIG.num_heads,
        num_layers=CONFIG.num_encoder_layers,
        num_decoder_layers=CONFIG.num_decoder_layers,
        feed_forward_proj=ours.feed_forward,
        tie_word_embeddings=ours.tie_embeddings,
        decoder_start_token_id=0,
    )
    cls = "UMT5ForConditionalGeneration" if umt5 else "T5ForConditionalGeneration"
    model = getattr(transformers, cls)(config).eval()
    if umt5:
        model.config.tie_word_embeddings = False  # version 5 scales the logits otherwise
    if not ours.tie_embeddings:
        # transformers 5 ties a fresh 1.1 too, unlike the released checkpoints.
        model.lm_head.weight = torch.nn.Parameter(torch.empty(VOCAB_SIZE, config.d_model))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                # A tied output is scaled by d_model**-0.5.
                wide = 4.0 if ours.tie_embeddings else 1.0
                parameter.normal_(std=wide if "shared" in name else parameter.shape[1] ** -0.5)
    return model


@functools.cache
def search(variant):
    """Searches with the same weights: (decoding, prompts) -> tokens, scores."""
    config = VARIANTS[variant]
    graphdef, _, _ = shapes(lambda rngs: config.build(rngs=rngs))
    our_shapes, pieces = model_pieces(config)
    arrays = {path: np.empty(shape, np.float32) for path, shape in our_shapes.items()}
    weights = peer(variant).state_dict()
    for piece in pieces:
        piece.of(arrays[piece.path])[...] = piece.to_ours(weights[piece.name].numpy())
    params = unflatten(arrays)

    @functools.partial(jax.jit, static_argnames="decoding")
    def run(params, inputs, prompt, *, decoding):
        return decode(bind(graphdef, params), inputs, prompt=prompt, decoding=decoding)

    return lambda decoding, prompts: run(params, INPUTS, prompts, decoding=decoding)


def theirs(model, prompts, *, num_return, **options):
    """generate() on inputs with prompts of one length at a time; outputs up to the EOS, scores."""
    lengths = (prompts > 0).sum(1)
    outputs, scores = [[]] * NUM_INPUTS, np.zeros((NUM_INPUTS, num_return))
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        start = np.pad(prompts[rows, :length], ((0, 0), (1, 0)))
        with torch.no_grad():
            found = model.generate(
                input_ids=torch.from_numpy(INPUTS[rows]).long(),
                attention_mask=torch.from_numpy(INPUTS[rows] > 0).long(),
                decoder_input_ids=torch.from_numpy(start).long(),
                do_sample=False,
                num_return_sequences=num_return,
                return_dict_in_generate=True,
                output_scores=True,
                **options,
            )
        tokens = found.sequences[:, 1 + length :].reshape(len(rows), num_return, -1).tolist()
        for place, row in enumerate(rows):
            outputs[row] = [until_eos(ids) for ids in tokens[place]]
        if options["num_beams"] > 1:
            scores[rows] = found.sequences_scores.reshape(len(rows), num_return).numpy()
    return outputs, scores


def until_eos(ids):
    return tuple(ids[: ids.index(EOS) + 1] if EOS in ids else ids)


GREEDY = {"num_beams": 1}
BEAM = {"num_beams": 4, "num_return": 4}
CONSTRAINED = {"min_length": 3, "no_repeat_ngram": 2}


@pytest.mark.parametrize(
    ("variant", "settings", "prompts"),
    [
        ("t5", GREEDY | CONSTRAINED, True),
        ("t5", BEAM, True),
        ("umt5", BEAM, False),
        ("t5_1_1", GREEDY, False),
        ("t5_1_1", GREEDY | CONSTRAINED, True),
        ("t5_1_1", BEAM, False),
        ("t5_1_1", BEAM | {"num_return": 1}, True),
        ("t5_1_1", BEAM | {"early_stopping": True}, False),
        ("t5_1_1", BEAM | {"early_stopping": "never"}, False),
        ("t5_1_1", BEAM | {"length_penalty": 0.0}, False),
        ("t5_1_1", BEAM | {"length_penalty": -0.5}, True),
        ("t5_1_1", BEAM | {"length_penalty": 2.5, "early_stopping": "never"}, True),
        ("t5_1_1", BEAM | CONSTRAINED, True),
        ("t5_1_1", BEAM | {"no_repeat_ngram": 1, "early_stopping": True}, True),
    ],
)
def test_outputs_equal_those_of_generate(variant, settings, prompts):
    decoding = Decoding(max_decode_length=12, length_rule="hf", **settings)
    prompts = PROMPTS if prompts else np.zeros((NUM_INPUTS, 0), np.int32)
    tokens, scores = search(variant)(decoding, prompts if prompts.any() else None)
    beams = {"early_stopping": decoding.early_stopping, "length_penalty": decoding.penalty}
    expected, expected_scores = theirs(
        peer(variant),
        prompts,
        num_return=decoding.num_return,
        num_beams=decoding.num_beams,
        max_new_tokens=decoding.max_decode_length,
        min_new_tokens=decoding.min_length,
        no_repeat_ngram_size=decoding.no_repeat_ngram,
        **(beams if decoding.num_beams > 1 else {}),
    )
    found = [[until_eos(ids) for ids in row] for row in tokens.tolist()]
    # Not one tie among them.
    assert found == expected
    if decoding.num_beams > 1:
        np.testing.assert_allclose(scores, expected_scores, rtol=1e-4, atol=1e-4)
    if decoding.penalty <= 1.0:  # a greater one makes them all as long as can be
        assert len({len(ids) for row in found for ids in row}) >= 3
