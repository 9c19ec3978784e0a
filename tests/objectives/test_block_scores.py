import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.objectives.contrastive import of_lexical, of_multi_vectors, own_block, own_group


def test_the_passages_of_a_block_and_of_a_row():
    # Four rows of two passages: passage j has the number 10 i + j in row i.
    scores = jnp.arange(4)[:, None] * 10 + jnp.arange(8)
    of_block = own_block(scores, 2)
    np.testing.assert_array_equal(
        of_block, [[0, 1, 2, 3], [10, 11, 12, 13], [24, 25, 26, 27], [34, 35, 36, 37]]
    )
    np.testing.assert_array_equal(own_group(of_block, 2, 2), [[0, 1], [12, 13], [24, 25], [36, 37]])


@pytest.mark.exhaustive
def test_blocks_are_parts_of_one_block():
    rng = np.random.default_rng(0)
    query, passage = (rng.integers(4, 9, shape).astype(np.int32) for shape in ((4, 5), (4, 2, 6)))
    batch = {
        "query_tokens": jnp.asarray(query),
        "query_segment_ids": jnp.ones_like(query),
        "passage_tokens": jnp.asarray(passage),
        "passage_segment_ids": jnp.ones_like(passage).at[1, 1, 3:].set(0),
    }
    shapes = {
        "query_terms": (4, 5),
        "passage_terms": (4, 2, 6),
        "query_vectors": (4, 4, 3),
        "passage_vectors": (4, 2, 5, 3),
    }
    rows = {name: jnp.asarray(rng.random(shape), jnp.float32) for name, shape in shapes.items()}
    for scores in (of_lexical, of_multi_vectors):
        whole = scores(rows, batch, block=4)
        assert whole.shape == (4, 8)
        np.testing.assert_allclose(
            scores(rows, batch, block=2), own_block(whole, 2), rtol=1e-6, atol=1e-6
        )
