import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.models.encoder import BertConfig, EncoderConfig, EncoderModel
from t5x_lite.nn.attention_pattern import document_positions
from t5x_lite.nn.slots import bind, shapes

SIZES = {
    "vocab_size": 11,
    "d_model": 6,
    "d_ff": 8,
    "num_heads": 2,
    "num_layers": 1,
    "max_positions": 7,
    "norm_epsilon": 1e-5,
    "dropout_rate": 0.5,
}
TYPED = BertConfig(token_types=2, **SIZES)
TOKENS = jnp.array([[2, 5, 6, 3], [2, 7, 3, 0]])


def filled(config):
    graphdef, abstract, _ = shapes(lambda rngs: config.build(rngs=rngs))
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape).astype(np.float32)), abstract
    )
    return bind(graphdef, params), params


def normed(total, params):
    total = np.asarray(total, np.float64)
    centred = total - total.mean(-1, keepdims=True)
    scaled = centred / np.sqrt(total.var(-1, keepdims=True) + 1e-5)
    return scaled * params["scale"] + params["bias"]


def expected_embeddings(params, tokens, rows, types=None):
    block = params["embedding"]
    total = np.asarray(block["token"])[tokens] + np.asarray(block["position"])[rows]
    if types is not None:
        total = total + np.asarray(block["token_type"])[types]
    return normed(total, block["norm"])


def check_rows(model, params, tokens, rows, types=None, **options):
    expected = expected_embeddings(params, np.asarray(tokens), np.asarray(rows), types)
    np.testing.assert_allclose(model.embeddings(tokens, **options), expected, atol=1e-5)


def test_embeddings_are_the_normalised_sum_of_three_tables():
    model, params = filled(TYPED)
    rows = np.arange(4)[None]
    check_rows(model, params, TOKENS, rows, types=np.zeros((2, 4), int))
    types = jnp.array([[0, 0, 1, 1], [0, 1, 1, 0]])
    check_rows(model, params, TOKENS, rows, types=np.asarray(types), token_types=types)
    places = jnp.array([[0, 1, 0, 1], [0, 1, 2, 3]])
    check_rows(model, params, TOKENS, places, types=np.zeros((2, 4), int), positions=places)


def test_one_token_type_is_that_of_all_tokens():
    model, params = filled(TYPED.replace(token_types=1))
    types = jnp.ones((2, 4), jnp.int32)
    rows = np.arange(4)[None]
    check_rows(model, params, TOKENS, rows, types=np.zeros((2, 4), int), token_types=types)
    plain, params = filled(TYPED.replace(token_types=0))
    check_rows(plain, params, TOKENS, rows, token_types=types)


def test_positions_of_roberta_count_what_is_no_padding():
    model, params = filled(TYPED.replace(token_types=0, pad_id=1, position_offset=2))
    tokens = jnp.array([[0, 5, 6, 2], [0, 7, 2, 1], [1, 0, 7, 2]])
    rows = np.array([[2, 3, 4, 5], [2, 3, 4, 1], [1, 2, 3, 4]])
    check_rows(model, params, tokens, rows)
    places = jnp.array([[0, 1, 0, 1], [0, 1, 2, 3], [0, 0, 1, 2]])
    rows = np.array([[2, 3, 2, 3], [2, 3, 4, 1], [1, 2, 3, 4]])
    check_rows(model, params, tokens, rows, positions=places)


def test_vectors_in_place_of_tokens():
    model, params = filled(TYPED.replace(position_offset=2, pad_id=1))
    token = np.asarray(params["embedding"]["token"])
    real = jnp.array([[2, 5, 6, 3]])
    vectors = jnp.asarray(token[np.asarray(real)])
    np.testing.assert_allclose(model.embed_vectors(vectors), model.embeddings(real), atol=1e-6)
    options = {"positions": jnp.array([[0, 1, 0, 1]]), "token_types": jnp.array([[0, 0, 1, 1]])}
    np.testing.assert_allclose(
        model.embed_vectors(vectors, **options), model.embeddings(real, **options), atol=1e-6
    )


def test_tables_by_name():
    model, params = filled(TYPED)
    tables = model.tables()
    assert {name: table.shape for name, table in tables.items()} == {
        "token": (11, 6),
        "position": (7, 6),
    }
    np.testing.assert_array_equal(tables["token"], params["embedding"]["token"])


def test_projection_of_narrow_tables():
    model, params = filled(TYPED.replace(embedding_size=3))
    assert model.tables()["token"].shape == (11, 3)
    x = model.embeddings(TOKENS)
    expected = np.asarray(x) @ params["projection"]["kernel"] + params["projection"]["bias"]
    np.testing.assert_allclose(model.project(x), expected, atol=1e-5)
    same, _ = filled(TYPED.replace(embedding_size=6))
    assert not hasattr(same, "projection")
    np.testing.assert_array_equal(same.project(same.embeddings(TOKENS)), same.embeddings(TOKENS))


def test_a_key_turns_dropout_on():
    model, _ = filled(TYPED)
    key = jax.random.key(3, impl="unsafe_rbg")
    dropped = model.embeddings(TOKENS, key=key)
    plain = np.asarray(model.embeddings(TOKENS))
    kept = np.asarray(dropped) != 0
    assert 10 < kept.sum() < 38
    np.testing.assert_allclose(np.asarray(dropped)[kept], 2 * plain[kept], rtol=1e-5)


def test_what_a_token_sees():
    model, _ = filled(TYPED)
    padded = model.visibility(TOKENS).dense(4)
    np.testing.assert_array_equal(padded[:, 0, 0], [[1, 1, 1, 1], [1, 1, 1, 0]])
    packed = model.visibility(TOKENS, jnp.array([[1, 1, 2, 0], [1, 1, 1, 1]])).dense(4)
    np.testing.assert_array_equal(
        packed[0, 0], [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    )


def test_document_positions():
    ids = jnp.array([[1, 1, 1, 2, 2, 0, 0], [1, 2, 2, 2, 2, 2, 2]])
    expected = [[0, 1, 2, 0, 1, 0, 0], [0, 0, 1, 2, 3, 4, 5]]
    np.testing.assert_array_equal(document_positions(ids), expected)


def test_a_padding_token_inside_a_document_has_no_position():
    """As in transformers modeling_roberta.py, create_position_ids_from_input_ids, by document."""
    model, _ = filled(TYPED.replace(position_offset=2, pad_id=1, max_positions=10))
    tokens = jnp.array([[3, 1, 4, 1, 5, 3, 1, 1]])
    segments = jnp.array([[1, 1, 1, 2, 2, 2, 2, 0]])
    real, given = tokens != 1, document_positions(segments)
    rows = model._position_rows(8, real=real, positions=given)
    np.testing.assert_array_equal(rows, [[2, 1, 3, 1, 2, 3, 1, 1]])
    rows = model._position_rows(8, real=real, positions=None)
    np.testing.assert_array_equal(rows, [[2, 1, 3, 1, 4, 5, 1, 1]])


def test_a_row_that_is_longer_than_the_table():
    model, _ = filled(TYPED.replace(position_offset=2, pad_id=1))
    assert model.embeddings(jnp.ones((1, 5), jnp.int32)).shape == (1, 5, 6)
    with pytest.raises(InputError, match="rows have 6 tokens, but the model has only 5"):
        model.embeddings(jnp.ones((1, 6), jnp.int32))
    # Packed documents may be shorter than their row.
    positions = jnp.array([[0, 1, 2, 0, 1, 2, 3, 4]])
    found = model.embeddings(jnp.full((1, 8), 4), positions=positions)
    assert np.isfinite(found).all()


def test_padding_may_be_longer_than_the_table():
    model, _ = filled(TYPED)
    row = jnp.array([[2, 5, 3] + [0] * 9])
    got = model(row, segment_ids=(row > 0).astype(jnp.int32))[:, :3]
    np.testing.assert_allclose(got, model(row[:, :3]), rtol=1e-5, atol=1e-6)


def test_an_architecture_must_say_what_its_layers_are():
    config = EncoderConfig(**SIZES)
    graphdef, abstract, _ = shapes(lambda rngs: EncoderModel(config, rngs=rngs))
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), abstract)
    with pytest.raises(TypeError, match="does not define the method apply_layers"):
        bind(graphdef, params)(TOKENS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "model.num_layers must be at least 1: got 0"),
        ({"embedding_size": 0}, "model.embedding_size must be at least 1"),
        ({"num_heads": 4}, "model.d_model must be a multiple of model.num_heads: got 6 and 4"),
        ({"token_types": -1}, "model.token_types must be at least 0"),
        ({"pad_id": 11}, "model.pad_id must be in"),
        ({"dropout_rate": 1.0}, "model.dropout_rate must be in"),
        ({"attention_dropout_rate": -0.1}, "model.attention_dropout_rate must be in"),
        ({"norm_epsilon": 0.0}, "model.norm_epsilon must be above 0"),
        ({"remat": "dot"}, "model.remat must be one of"),
        ({"attention_block": 0}, "model.attention_block must be at least 1"),
        ({"attention": "cudnn"}, "multiple of 8 and at most 256, but d_kv is 3"),
        (
            {"attention": "cudnn", "d_model": 16},
            "does not support dropout for each query and key; set --model.share-attention-drop",
        ),
    ],
)
def test_refuses(changes, message):
    with pytest.raises(InputError, match=message):
        EncoderConfig(**{**SIZES, **changes})


def test_the_layer_has_the_models_sizes():
    layer = TYPED.replace(activation="relu", attention_dropout_rate=0.2).layer
    assert (layer.d_model, layer.d_ff, layer.num_heads, layer.activation) == (6, 8, 2, "relu")
    assert (layer.dropout_rate, layer.attention_dropout_rate) == (0.5, 0.2)
    assert layer.norm_epsilon == 1e-5


def test_the_head_that_a_family_is_published_with():
    from t5x_lite.models.published import bert_base, deberta_v3_base, roberta_base

    kinds = [make().classifier_kind for make in (bert_base, roberta_base, deberta_v3_base)]
    assert kinds == ["bert", "roberta", "deberta"]
    assert bert_base().to_finetune() == bert_base(attention="auto", unroll="auto")
