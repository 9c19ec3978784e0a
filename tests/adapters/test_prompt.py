"""Prompts: rows before those of the tokens."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.adapters.grammar import parse_trees
from t5x_lite.adapters.lora import Lora
from t5x_lite.adapters.prefix import Prompt
from t5x_lite.config import Experiment
from t5x_lite.config.experiment import Adapters
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from t5x_lite.data.config import Data
from t5x_lite.decoding.generate import decode
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.lm import LMConfig
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import AdamW, Constant
from tests.adapters.hosts import ENCODER, HOSTS, SIZES, decoded, learner, outputs, random

PROMPT = Prompt(length=3, init="vocab", among=(3, 16))


def as_tokens(made, params):
    """A model whose table has the prompt's rows as new tokens at its end, and these tokens."""
    params = jax.tree.map(lambda x: x, params)
    own = params["adapters"]["prompt"]["encoder"]["prompt"]["rows"]
    table = params["model"]["token_embedding"]["table"]
    ids = np.random.default_rng(0).integers(3, 16, size=3)
    rows = own + table[ids]
    params["model"]["token_embedding"]["table"] = jnp.concatenate([table, rows])
    return {part: params[part] for part in params if part != "adapters"}


def test_a_t5_reads_and_decodes_as_with_three_more_tokens():
    made, batch = learner("t5", PROMPT)
    params = random(made.shapes)
    model, objective, _ = HOSTS["t5"]
    larger = Learner.of(model.replace(vocab_size=19), objective)
    inputs = batch["encoder_input_tokens"][:2]
    longer = jnp.concatenate([jnp.array([[16, 17, 18]] * 2), inputs], axis=1)
    targets = batch["decoder_input_tokens"][:2]
    decoding = Decoding(max_decode_length=4, num_beams=2, eos_id=1)

    @jax.jit
    def run(params):
        one = made.bind_model(params)
        wide = as_tokens(made, params)
        other = larger.bind_model(wide)
        beams = decode(one.prepared(), inputs, decoding=decoding)
        steps = decoded(one, inputs, targets[:, 1:])
        return one(inputs, targets), other(longer, targets), steps, beams

    found, expected, steps, beams = run(params)
    np.testing.assert_allclose(found, expected[..., :16], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(steps, found, rtol=1e-5, atol=1e-5)
    assert beams[0].shape[:2] == (2, 1)


@pytest.mark.parametrize("host", ["bert", "deberta"])
@pytest.mark.slow
def test_an_encoder_gives_the_tokens_alone(host):
    prompt = dataclasses.replace(PROMPT, init="uniform")
    made, batch = learner(host, prompt)
    params = random(made.shapes)
    found = outputs(made, params, batch)
    assert found.shape[:2] == batch["encoder_input_tokens"].shape
    wider = {n: jnp.pad(x, ((0, 0), (0, 2))) for n, x in batch.items() if n != "labels"}
    there = np.asarray(batch["encoder_segment_ids"])[..., None] > 0
    padded = outputs(made, params, wider)[:, :4]
    np.testing.assert_allclose(padded * there, found * there, rtol=1e-5, atol=1e-5)
    plain, _ = learner(host)
    base = {part: params[part] for part in params if part != "adapters"}
    assert np.abs(np.asarray(outputs(plain, base, batch) - found)[there[..., 0]]).max() > 0.001
    loss, grads = jax.value_and_grad(lambda p: made.loss(p, batch, None).value())(params)
    assert np.isfinite(loss)
    assert np.abs(flatten(grads)["adapters/prompt/encoder/prompt/rows"]).min() > 0


def test_it_begins_as_rows_of_the_table_and_alone_trains():
    made, _ = learner("t5", PROMPT)
    params = made.init(jax.random.key(0))
    rows = flatten(params)["adapters/prompt/encoder/prompt/rows"]
    np.testing.assert_array_equal(rows, np.zeros((3, 8)))
    (update,) = made.updates()
    assert set(flatten(update.part(made.shapes))) == {"adapters/prompt/encoder/prompt/rows"}
    uniform, _ = learner("t5", Prompt(length=5))
    rows = np.asarray(
        flatten(uniform.init(jax.random.key(0)))["adapters/prompt/encoder/prompt/rows"]
    )
    assert rows.shape == (5, 8)
    assert 0.3 < np.abs(rows).max() <= 0.5


def test_packed_rows_are_refused():
    model, _, batch = HOSTS["t5"]
    options = {"steps": 1, "optimizer": AdamW(schedule=Constant(value=0.1))}
    options |= {"adapters": Adapters(add=("p = prompt(length=2)",))}
    data = {"task": "tasks.text:span_corruption", "vocabulary": "v"}
    with pytest.raises(InputError, match=r"before each row, but data\.pack is True; set"):
        Experiment(model=model, objective=Seq2Seq(), data=Data(**data), **options)
    Experiment(model=model, objective=Seq2Seq(), data=Data(**data, pack=False), **options)
    made, batch = learner("t5", PROMPT)
    with pytest.raises(InputError, match="a prompt adapter does not support rows with several"):
        made.bind_model(random(made.shapes)).encode(
            batch["encoder_input_tokens"], segment_ids=batch["encoder_input_tokens"]
        )


def test_a_prompt_starts_from_the_tokens_of_a_text():
    for ids, length, expected in (((5, 7), 5, (5, 7, 5, 7, 5)), ((5, 7, 9), 2, (5, 7))):
        made, batch = learner("t5", Prompt(length=length, init="vocab", ids=ids))
        params = random(made.shapes)
        rows = params["adapters"]["prompt"]["encoder"]["prompt"]
        params["adapters"]["prompt"]["encoder"]["prompt"] = jax.tree.map(jnp.zeros_like, rows)
        bound, inputs = made.bind_model(params), batch["encoder_input_tokens"][:1]
        plain = Learner.of(*HOSTS["t5"][:2]).bind_model({"model": params["model"]})
        longer = jnp.concatenate([jnp.array([expected]), inputs], axis=1)
        targets = batch["decoder_input_tokens"][:1]
        found, want = bound(inputs, targets), plain(longer, targets)
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match="'prompt': ids contains 16, but the vocabulary has 16"):
        learner("t5", Prompt(init="vocab", ids=(3, 16)))


def test_what_cannot_be():
    for fields, message in (
        ({"ids": (3,)}, "adapter 'prompt': ids are set, but init is 'uniform'; set init='vocab'"),
        ({"length": 0}, "length must be at least 1: got 0"),
        ({"among": (5, 5)}, r"among of a prompt must be two ascending token ids, got \(5, 5\)"),
        ({"sites": ("mlp",)}, "a prompt supports only the site 'prompt'"),
    ):
        with pytest.raises(InputError, match=message):
            Prompt(**fields)
    with pytest.raises(
        InputError,
        match=r"'prompt': among=\(3, 17\) selects .* of 16 tokens; set among=\(3, 16\)",
    ):
        learner("t5", Prompt(init="vocab", among=(3, 17)))
    learner("t5", Prompt(init="vocab"))  # of a smaller table all
    narrow = BertConfig(**{**ENCODER, "embedding_size": 4})
    with pytest.raises(InputError, match="init 'vocab' needs a token embedding of width 8 "):
        Learner.of(narrow, HOSTS["bert"][1], adapters=(PROMPT,))
    made, _ = learner("bert", Prompt(), Lora())
    with pytest.raises(
        InputError, match="the adapter at prompt cannot be merged into the model's kernels"
    ):
        made.merged(random(made.shapes))
    model, objective, _ = HOSTS["bert"]
    use = parse_trees("Stack(prompt, lora)")
    with pytest.raises(InputError, match="prompt 'prompt' inserts a prompt before the tokens"):
        Learner.of(model, objective, adapters=(Prompt(), Lora()), use=use)
    with pytest.raises(
        InputError, match="'b' and another adapter both use the site encoder/prompt"
    ):
        learner("bert", Prompt(), Prompt(name="b"))
    lm = LMConfig(**SIZES, d_kv=4, num_layers=1).build(rngs=nnx.Rngs(0))
    with pytest.raises(
        InputError, match=r"needs a model with an encoder, but a LM .* use prefix\(\)"
    ):
        Prompt().build(lm, rngs=nnx.Rngs(0))
