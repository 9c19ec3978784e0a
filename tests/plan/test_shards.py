"""Which axes a mesh cuts too narrow, and what to set."""

import jax
import pytest

from t5x_lite.core.sharding import MESH_AXES
from t5x_lite.plan.program import narrow_shards, widest, widest_fsdp

AXES = {"kernel": ("layers", "embed", "mlp"), "scale": ("embed",)}


def shapes(d_model, d_ff):
    return {
        "kernel": jax.ShapeDtypeStruct((24, d_model, d_ff), "float32"),
        "scale": jax.ShapeDtypeStruct((d_model,), "float32"),
    }


def mesh(**sizes):
    return {name: sizes.get(name, 1) for name in MESH_AXES}


@pytest.mark.parametrize(
    ("size", "parts", "expected"),
    [(2048, 64, 16), (4096, 64, 32), (4096, 32, 32), (2048, 48, 16), (768, 8, 4), (64, 8, 1)],
)
def test_widest(size, parts, expected):
    assert widest(size, parts) == expected


def test_a_narrow_shard_is_one_line_with_a_remedy():
    (line,) = narrow_shards(mesh(fsdp=64), AXES, shapes(2048, 5120))
    assert line == (
        "axis 'embed' of size 2048 is split over fsdp 64 into shards of 32, narrower than a tile "
        "of 128, so complete gradients are all-reduced; set --mesh.data 4 --mesh.fsdp 16"
    )


def test_what_is_set_makes_it_well():
    assert narrow_shards(mesh(data=4, fsdp=16), AXES, shapes(2048, 5120)) == []


def test_each_axis_has_its_line():
    first, second = narrow_shards(mesh(data=2, fsdp=8, tensor=16), AXES, shapes(768, 1024))
    assert first.endswith("set --mesh.data 4 --mesh.fsdp 4")
    assert second.startswith("axis 'mlp' of size 1024 is split over tensor 16 into shards of 64, ")
    assert second.endswith("set --mesh.data 4 --mesh.tensor 8")


def test_small_models_and_vectors_do_not_count():
    assert narrow_shards(mesh(fsdp=8), AXES, shapes(64, 64)) == []
    assert narrow_shards(mesh(fsdp=8), {"x": AXES["scale"]}, {"x": shapes(512, 1)["scale"]}) == []


@pytest.mark.parametrize(("d_model", "parts", "expected"), [(2048, 64, 16), (64, 64, 64)])
def test_widest_fsdp(d_model, parts, expected):
    assert widest_fsdp(AXES, shapes(d_model, 256), parts) == expected
