import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params

from t5x_lite import layouts
from t5x_lite.config.batches import row_lengths, row_shapes, step_flops
from t5x_lite.data.config import Data
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.deberta import DebertaConfig
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.lm import LMConfig
from t5x_lite.models.published import t5_1_1_base
from t5x_lite.models.t5 import T5Config, T5EncoderConfig
from t5x_lite.nn.slots import bind, shapes
from t5x_lite.objectives.contrastive import Contrastive
from t5x_lite.objectives.electra import Electra
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.likelihood import LanguageModel, Seq2Seq
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.objectives.retromae import RetroMAE
from t5x_lite.objectives.task_heads import Classify


def data(**fields):
    return Data(task="a:b", vocabulary="v", inputs_length=8, targets_length=5, **fields)


DECODER = ("target_tokens", "input_tokens", "loss_weights")
IDS = ("segment_ids", "positions")


@pytest.mark.parametrize(
    ("layout", "pack", "length", "more"),
    [
        (layouts.Seq2Seq(), True, 5, {f"encoder_{name}": 8 for name in ("input_tokens", *IDS)}),
        (layouts.Seq2Seq(), False, 5, {"encoder_input_tokens": 8}),
        (layouts.LM(), True, 5, {}),
        (layouts.PrefixLM(), True, 13, {"decoder_causal_attention": 13}),
        (layouts.ConcatLM(), False, 13, {}),
    ],
)
def test_row_lengths(layout, pack, length, more):
    names = (*DECODER, *IDS) if pack else DECODER
    expected = {f"decoder_{name}": length for name in names} | more
    assert row_lengths(data(layout=layout, pack=pack)) == expected


def test_pairs_have_several_passages_a_row():
    pairs = data(layout=layouts.Groups(negatives=2), pack=False)
    assert row_shapes(pairs)["query_tokens"] == (8,)
    assert row_shapes(pairs)["passage_tokens"] == (3, 5)
    assert row_lengths(pairs)["passage_tokens"] == 5


def test_step_flops(tiny_experiment):
    # One layer each of d_model 16, joined 16, d_ff 32 (gated), vocabulary 400; 4 rows of 32 and 16.
    layer = 4 * 16 * 16 + 3 * 16 * 32
    encoder = 32 * layer + 2 * 32 * 32 * 16
    decoder = 16 * layer + 2 * 16 * 16 * 16 + 2 * (32 + 16) * 16 * 16 + 2 * 32 * 16 * 16
    assert step_flops(tiny_experiment) == 3 * 4 * 2 * (encoder + decoder + 16 * 16 * 400)


def test_a_model_that_is_not_counted(tiny_experiment):
    other = dataclasses.replace(tiny_experiment, model=ModelConfig(vocab_size=400))
    assert step_flops(other) is None


def test_t5_1_1_base():
    # Multiplications of a row: 12 encoder layers, 12 decoder layers, the output.
    multiplications = 48_318_382_080 + 19_859_447_808 + 2_812_870_656
    row = {"encoder_input_tokens": (512,), "decoder_target_tokens": (114,)}
    assert t5_1_1_base().forward_flops(row) == 2 * multiplications


DECODER_SIZES = {"vocab_size": 70, "d_model": 16, "d_kv": 24, "d_ff": 40, "num_heads": 2}
T5 = T5Config(**DECODER_SIZES, num_encoder_layers=3, num_decoder_layers=2)
LM = LMConfig(**DECODER_SIZES, num_layers=3)
SIZES = {"vocab_size": 70, "d_model": 16, "d_ff": 40, "num_heads": 2, "num_layers": 3}
BERT = BertConfig(**SIZES, max_positions=16)
DEBERTA = DebertaConfig(**SIZES, max_positions=16, position_buckets=4, max_relative_positions=6)
SMALL = BERT.replace(d_model=8, d_ff=20, embedding_size=16, num_layers=1)
DECODED = {
    "decoder_target_tokens": (5,),
    "decoder_input_tokens": (5,),
    "decoder_loss_weights": (5,),
}
SEQ2SEQ = {"encoder_input_tokens": (6,), **DECODED}
ENCODER = {"encoder_input_tokens": (12,), "encoder_word_ids": (12,)}
LABELLED = {"encoder_input_tokens": (12,), "encoder_segment_ids": (12,), "labels": (1,)}
PAIRS = {
    f"{of}_{what}": shape
    for of, shape in {"query": (6,), "passage": (3, 9)}.items()
    for what in ("tokens", "segment_ids")
}


@pytest.mark.parametrize(
    ("model", "objective", "row", "left_out"),
    [
        (T5.replace(feed_forward="relu"), Seq2Seq(), SEQ2SEQ, 0),
        (T5.replace(relative_bias_per_layer=True), Seq2Seq(), SEQ2SEQ, 0),
        (T5.replace(num_decoder_layers=3, share_layers=True), Seq2Seq(), SEQ2SEQ, 0),
        (LM, LanguageModel(), DECODED, 0),
        (BERT, MaskedLM(mask_id=4), ENCODER, 0),
        (BERT.replace(embedding_size=8), MaskedLM(mask_id=4), ENCODER, 0),
        # Once for all 4 rows: 8 rows of distances for each term and layer, and those of positions.
        (DEBERTA, MaskedLM(mask_id=4), ENCODER, 2 * 8 * 16 * 16 * 6 // 4),
        (
            DEBERTA.replace(
                enhanced_mask_decoder=True,
                position_terms=("c2p",),
                conv_kernel_size=3,
                embedding_size=8,
            ),
            MaskedLM(mask_id=4),
            ENCODER,
            2 * (8 * 16 * 16 * 4 + 12 * 8 * 16) // 4,
        ),
        (BERT, Electra(mask_id=4, generator=SMALL), ENCODER, 0),
        (BERT, RetroMAE(mask_id=4, bag_of_words=0.1, logits_chunk=4), ENCODER, 0),
        (BERT, RetroMAE(mask_id=4, decoder="basic", decoder_layers=2), ENCODER, 0),
        # Scores of 4 queries with 12 passages, twice who answers whom, twice 4 vectors with each
        # other (uniformity); a head of one vector a row, and the pooler.
        (BERT, Contrastive(), PAIRS, 2 * 12 * 16 + 2 * (2 * 4 * 12) + 2 * (2 * 4 * 16)),
        (BERT, Classify(num_classes=3), LABELLED, 2 * 16 * 19),
    ],
)
def test_a_loss_has_the_products_of_its_traced_program(model, objective, row, left_out):
    learner = Learner.of(model, objective)
    floats = {"decoder_loss_weights"}
    batch = {
        name: jax.ShapeDtypeStruct((4, *shape), jnp.float32 if name in floats else jnp.int32)
        for name, shape in row.items()
    }
    traced = jax.make_jaxpr(lambda params, batch: learner.whole_loss(params, batch).value())(
        learner.shapes, batch
    )
    expected = objective.forward_flops(model, row) + left_out
    assert 2 * products(traced.jaxpr) == 4 * expected


def products(jaxpr):
    """Multiplications of all matrix products of a traced function."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            inner = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
            total += inner * equation.outvars[0].aval.size
        repeats = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += repeats * sum(map(products, jaxprs_in_params(equation.params)))
    return total


def test_an_encoder_alone():
    config = T5EncoderConfig(**DECODER_SIZES, num_layers=3)
    graphdef, abstract, _ = shapes(lambda rngs: config.build(rngs=rngs))
    tokens = jax.ShapeDtypeStruct((4, 6), jnp.int32)
    traced = jax.make_jaxpr(lambda params, tokens: bind(graphdef, params)(tokens))(abstract, tokens)
    flops = config.forward_flops({"encoder_input_tokens": (6,)})
    assert 2 * products(traced.jaxpr) == 4 * flops
