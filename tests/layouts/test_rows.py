from functools import partial

import numpy as np
import pytest

from t5x_lite import layouts
from tests.layouts.laying_out import SEQIOS, made


@pytest.mark.parametrize("layout", [*SEQIOS, layouts.Encoder()])
def test_no_example_at_all(layout):
    found = made(layout, np.zeros(0, np.int64), num_rows=2, examples=[])
    assert set(found) == set(made(layout, [0, 0]))
    assert not np.any([value for name, value in found.items() if name == "decoder_loss_weights"])


def test_capacities():
    lengths = {"inputs": 10, "targets": 7}
    assert layouts.Seq2Seq().capacity(lengths) == (10, 7)
    assert layouts.PrefixLM().capacity(lengths) == layouts.ConcatLM().capacity(lengths) == (17,)
    assert layouts.LM().capacity(lengths) == (7,)
    assert layouts.Encoder().capacity(lengths) == (10,)
    assert layouts.Seq2Seq().packed_lengths(np.array([[4, 3]])).tolist() == [[4, 3]]
    assert layouts.PrefixLM().packed_lengths(np.array([[4, 3]])).tolist() == [[7]]


def seqio_rows(taken, sizes):
    """seqio's packing: an example goes to the last row or opens one, anew for each group."""
    group, found, free, row = max(sizes), [], np.zeros(len(sizes), int), -1
    for i, need in enumerate(taken):
        if i % group == 0 or (free < need).any():
            row, free = row + 1, np.array(sizes)
        free = free - need
        found.append(row)
    return np.array(found)


@pytest.mark.gate("layout0-True", "layout1-True", "layout3-False")
@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("layout", SEQIOS)
@pytest.mark.slow
def test_rows_are_those_of_seqio(layout, pack):
    from t5x_lite.data.elements import seqio, tf

    rng = np.random.default_rng(0)
    lengths = {"inputs": 14, "targets": 9}
    examples = [
        {
            k: rng.integers(1, 50, rng.integers(1, lengths[k] // 2 + 2)).tolist()
            for k in layout.features
        }
        for _ in range(40)
    ]
    columns = {k: tf.ragged.constant([e[k] for e in examples], tf.int32) for k in examples[0]}
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    dataset = dataset.map(lambda e: {k: tf.ensure_shape(v, [None]) for k, v in e.items()})
    converter = {
        "seq2seq": seqio.EncDecFeatureConverter,
        "lm": seqio.LMFeatureConverter,
        "prefix_lm": seqio.PrefixLMFeatureConverter,
        "concat_lm": partial(
            seqio.PrefixLMFeatureConverter,
            loss_on_targets_only=not layouts.ConcatLM().loss_on_inputs,
        ),
    }[layout.name](pack=pack)
    theirs = converter(dataset, {name: lengths[name] for name in layout.features})
    expected = list(theirs.as_numpy_iterator())
    if layout.name == "concat_lm":
        expected = [
            {name: value for name, value in row.items() if name != "decoder_causal_attention"}
            for row in expected
        ]

    rows = np.arange(40)
    if pack:
        sizes = np.array([[len(e[k]) for k in layout.features] for e in examples])
        rows = seqio_rows(layout.packed_lengths(sizes), layout.capacity(lengths))
        assert rows.max() < 30
    found = made(
        layout,
        rows,
        num_rows=len(expected),
        pack=pack,
        inputs=14,
        targets=9,
        examples=examples,
    )
    assert found == {name: [row[name].tolist() for row in expected] for name in expected[0]}
