"""scripts/bench/train_step.py: our step and that in plain JAX, of the same weights and batches."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    for name in ("train_step", "plain_t5"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import train_step

    return train_step


@pytest.mark.exhaustive
def test_both_learn_the_same(bench, tmp_path):
    shape = bench.Shape(
        {"d_model": 16, "d_ff": 24, "heads": 2, "layers": 2, "d_kv": 4},
        rows=3,
        inputs=12,
        targets=7,
    )
    work = {
        "shape": dataclasses.asdict(shape),
        "vocabulary": 40,
        "dropout": 0.0,
        "dtype": "f32",
        "weights": str(tmp_path / "weights.npz"),
    }
    bench.write_weights(work)
    batches = bench.batches(work, steps=4)
    ours, plain = bench.our_step(work), bench.plain_jax_step(work)
    losses = [ours(batch) for batch in batches]
    np.testing.assert_allclose(losses, [plain(batch) for batch in batches], rtol=1e-5)
    assert losses[0] != losses[3]
    assert bench.step_flops(work) > 0


def test_a_growing_shape_has_the_targets_of_its_inputs(bench):
    import growth

    shape = growth.small(inputs=1024, layers=2)
    assert (shape.rows, shape.inputs, shape.targets) == (8, 1024, 228)
    assert shape.sizes == {"d_model": 512, "d_ff": 1024, "heads": 6, "layers": 2, "d_kv": 64}
