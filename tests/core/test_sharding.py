import itertools
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import (
    MESH_AXES,
    MeshConfig,
    batch_part,
    batch_sharding,
    check_divisible,
    check_whole_rows,
    constrain,
    data_parallelism,
    hybrid_devices,
    is_axes,
    jit_rows,
    make_mesh,
    mesh_axes,
    near_devices,
    partition_spec,
    put_batch,
    put_whole,
    replicated,
    rounded_rows,
    shardings,
    traced_kind,
)

ROOT = pathlib.Path(__file__).resolve().parents[2]


def one_device_mesh():
    return make_mesh(MeshConfig(), devices=jax.devices()[:1])


def mesh_of_sizes(*sizes):
    """A mesh whose places are all the same device: shapes can be checked, nothing can run."""
    places = np.array(jax.devices()[:1] * int(np.prod(sizes)))
    return Mesh(places.reshape(sizes), MESH_AXES)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"data": 0}, "mesh sizes must be positive, or -1"),
        ({"fsdp": -2}, "mesh sizes must be positive, or -1"),
        ({"fsdp": -1}, "only one mesh size may be -1"),  # data is -1 too
    ],
)
def test_sizes_that_make_no_mesh(sizes, message):
    with pytest.raises(InputError, match=message):
        MeshConfig(**sizes)


def test_sizes_that_do_not_fit_the_devices():
    with pytest.raises(InputError, match="the number of devices, 1, is not divisible by the sizes"):
        make_mesh(MeshConfig(tensor=2), devices=jax.devices()[:1])
    with pytest.raises(InputError, match="needs 2 devices, but 1 are available; set one of"):
        make_mesh(MeshConfig(data=2), devices=jax.devices()[:1])


def test_a_mesh_of_one_device_is_a_mesh():
    mesh = one_device_mesh()
    assert dict(mesh.shape) == {"replica": 1, "data": 1, "fsdp": 1, "sequence": 1, "tensor": 1}
    assert data_parallelism(mesh) == 1


@pytest.mark.parametrize(
    ("logical", "expected"),
    [
        ((), PartitionSpec()),
        (("embed", "mlp"), PartitionSpec("fsdp", "tensor")),
        (("layers", "joined_kv", "embed"), PartitionSpec(None, "tensor", "fsdp")),
        (("vocab", "embed"), PartitionSpec("tensor", "fsdp")),
        (("relpos_buckets", "heads"), PartitionSpec(None, "tensor")),
        (("batch", "length"), PartitionSpec(("replica", "data", "fsdp"), "sequence")),
        ((None, "kv"), PartitionSpec(None, None)),
    ],
)
def test_partition_spec(logical, expected):
    assert partition_spec(logical) == expected


def test_partition_spec_of_an_unknown_name():
    with pytest.raises(ValueError, match=r"unknown logical axes \['width'\]; sharding.RULES has"):
        partition_spec(("embed", "width"))


def test_shardings_have_the_structure_of_the_axes():
    tree = shardings(one_device_mesh(), {"a": {"kernel": ("embed", "mlp")}, "scale": ("embed",)})
    assert tree["a"]["kernel"].spec == PartitionSpec("fsdp", "tensor")
    assert tree["scale"].spec == PartitionSpec("fsdp")


def test_is_axes():
    assert is_axes(("embed", None))
    assert is_axes(())
    assert not is_axes(("embed", 3))
    assert not is_axes({"kernel": ("embed",)})
    assert not is_axes(["embed"])


def test_batches_are_split_by_rows():
    mesh = one_device_mesh()
    rows = ("replica", "data", "fsdp")
    assert batch_sharding(mesh).spec == PartitionSpec(rows)
    assert batch_sharding(mesh, rank=2).spec == PartitionSpec(rows)
    long = mesh_of_sizes(1, 2, 1, 2, 1)
    assert batch_sharding(long).spec == PartitionSpec(rows)
    assert batch_sharding(long, rank=2).spec == PartitionSpec(rows, "sequence")
    assert mesh_axes("length") == ("sequence",)
    assert mesh_axes("batch") == rows
    assert mesh_axes(None) == mesh_axes("kv") == ()
    assert replicated(mesh).spec == PartitionSpec()


def test_put_batch_keeps_values_and_splits_rows():
    mesh = one_device_mesh()
    rows = {"a": np.arange(6, dtype=np.int32).reshape(2, 3), "b": np.zeros((2, 1), np.float32)}
    batch = put_batch(rows, mesh)
    assert list(batch) == ["a", "b"]
    for name, value in batch.items():
        assert isinstance(value, jax.Array)
        assert value.sharding.spec[0] == ("replica", "data", "fsdp")
        np.testing.assert_array_equal(value, rows[name])


def test_put_whole_keeps_values_and_splits_rows():
    rows = {"a": np.arange(6, dtype=np.int32).reshape(2, 3), "label": np.zeros(2, np.float32)}
    batch = put_whole(rows, one_device_mesh())
    assert list(batch) == ["a", "label"]
    for name, value in batch.items():
        assert value.sharding.spec[0] == ("replica", "data", "fsdp")
        np.testing.assert_array_equal(value, rows[name])


def test_a_batch_that_does_not_divide():
    mesh = mesh_of_sizes(1, 2, 1, 4, 1)
    with pytest.raises(
        InputError, match=re.escape("axis 'batch' of a has size 3, not divisible by")
    ):
        put_whole({"a": np.zeros((3, 8), np.int32)}, mesh)
    expected = (
        "axis 'length' of a has size 6, not divisible by the size 4 of the mesh axes ('sequence',)"
    )
    with pytest.raises(InputError, match=re.escape(expected)):
        put_whole({"a": np.zeros((2, 6), np.int32)}, mesh)


def test_one_process_reads_the_whole_batch():
    assert batch_part(one_device_mesh()) == (0, 1)


def test_rows_are_rounded_up_to_what_the_devices_can_share():
    mesh = mesh_of_sizes(1, 2, 2, 1, 2)
    assert [rounded_rows(rows, mesh) for rows in (1, 4, 5, 8)] == [4, 4, 8, 8]
    assert rounded_rows(5, None) == 5


@pytest.mark.parametrize("mesh", [None, one_device_mesh()])
def test_jit_rows(mesh):
    def function(params, x, nothing, y):
        assert nothing is None
        return constrain(params["w"] * x, "batch", None) + y[:, None]

    call = jit_rows(function, mesh)
    x, y = np.arange(6.0, dtype=np.float32).reshape(3, 2), np.array([10, 20, 30], np.float32)
    for _ in range(2):
        got = call({"w": jnp.float32(2)}, x, None, y)
        assert np.asarray(got).tolist() == [[10, 12], [24, 26], [38, 40]]


def slices(*sizes):
    """Devices of slices of these sizes, numbered; only what arranging them looks at."""
    return [
        types.SimpleNamespace(
            slice_index=index, id=10 * index + i, platform="gpu", device_kind="", process_index=0
        )
        for index, size in enumerate(sizes)
        for i in range(size)
    ]


def test_the_slow_links_are_under_replica_then_data_then_fsdp():
    def ids(sizes, devices):
        return np.vectorize(lambda device: device.id)(hybrid_devices(sizes, devices)).tolist()

    # replica, data, fsdp, sequence, tensor
    assert ids((2, 1, 1, 1, 2), slices(2, 2)) == [[[[[0, 1]]]], [[[[10, 11]]]]]
    assert ids((1, 2, 1, 1, 2), slices(2, 2)) == [[[[[0, 1]]], [[[10, 11]]]]]
    assert ids((1, 1, 4, 1, 1), slices(2, 2)) == [[[[[0]], [[1]], [[10]], [[11]]]]]
    # Four slices: two along replica, two along data.
    assert ids((2, 2, 1, 1, 1), slices(1, 1, 1, 1)) == [[[[[0]]], [[[10]]]], [[[[20]]], [[[30]]]]]
    # A replica may be part of a slice: both halves of a slice lie next to each other.
    assert ids((4, 1, 1, 1, 1), slices(2, 2)) == [[[[[0]]]], [[[[1]]]], [[[[10]]]], [[[[11]]]]]


def test_gpus_without_a_slice_are_told_apart_by_their_process():
    def gpus(*processes):
        return [
            types.SimpleNamespace(id=i, process_index=process, platform="gpu", device_kind="")
            for i, process in enumerate(processes)
        ]

    arranged = hybrid_devices((1, 2, 1, 1, 2), gpus(0, 1, 0, 1))
    assert [device.id for device in arranged.flat] == [0, 2, 1, 3]


def torus(kind, *shape, slice_index=None):
    """The chips of a TPU slice; only what arranging them looks at."""
    return [
        types.SimpleNamespace(
            slice_index=slice_index,
            id=i,
            platform="tpu",
            device_kind=kind,
            process_index=0,
            coords=coords,
            core_on_chip=0,
        )
        for i, coords in enumerate(itertools.product(*map(range, shape)))
    ]


@pytest.mark.parametrize(
    ("kind", "shape", "sizes"),
    [
        ("TPU v5", (4, 4, 4), (1, 32, 1, 1, 2)),
        ("TPU v5", (4, 4, 4), (1, 1, 8, 1, 8)),
        ("TPU v4", (2, 2, 4), (1, 2, 2, 1, 4)),
        ("TPU v6 lite", (8, 8, 1), (1, 1, 16, 1, 4)),
        ("TPU v5 lite", (16, 16, 1), (1, 64, 1, 1, 4)),
    ],
)
def test_a_mesh_axis_may_take_a_part_of_an_axis_of_the_torus(kind, shape, sizes):
    arranged = near_devices(sizes, torus(kind, *shape))
    assert arranged.shape == sizes
    assert sorted(device.id for device in arranged.flat) == list(range(arranged.size))
    for near in arranged.reshape(-1, sizes[-1]):  # the last mesh axis: a block of the torus
        widths = np.ptp([device.coords for device in near], axis=0) + 1
        assert np.prod(widths) == sizes[-1]
    half = [torus(kind, *shape, slice_index=index) for index in range(2)]
    doubled = hybrid_devices((2, *sizes[1:]), half[0] + half[1])
    assert doubled.shape == (2, *sizes[1:])
    assert [{device.slice_index for device in part.flat} for part in doubled] == [{0}, {1}]


def test_tensor_does_not_cross_slow_links():
    expected = "replica * data * fsdp must be a multiple of 2, because sequence and tensor need"
    with pytest.raises(InputError, match=re.escape(expected)):
        hybrid_devices((1, 1, 1, 1, 4), slices(2, 2))


def test_heads_are_not_cut():
    mesh = mesh_of_sizes(1, 1, 1, 1, 2)
    axes, shapes = {"query": ("embed", "joined_kv")}, {"query": jnp.zeros((4, 12))}
    check_divisible(mesh, axes, shapes, num_heads=4)
    check_divisible(mesh, axes, shapes)
    with pytest.raises(InputError, match="axis 'heads' of size 3 is not divisible by the"):
        check_divisible(mesh, axes, shapes, num_heads=3)


def test_check_divisible_names_axis_size_and_mesh_axes():
    mesh = mesh_of_sizes(1, 1, 4, 1, 2)
    axes = {"kernel": ("layers", "embed", "mlp"), "scale": ("embed",)}

    def shapes(embed, mlp):
        return {
            "kernel": jax.ShapeDtypeStruct((3, embed, mlp), jnp.float32),
            "scale": jax.ShapeDtypeStruct((embed,), jnp.float32),
        }

    check_divisible(mesh, axes, shapes(8, 6))
    expected = (
        "mesh: axis 'mlp' of size 5 is not divisible by the size 2 of the mesh axes ('tensor',)"
    )
    with pytest.raises(InputError, match=re.escape(expected)):
        check_divisible(mesh, axes, shapes(8, 5))
    with pytest.raises(InputError, match=re.escape("axis 'embed' of size 6")):
        check_divisible(mesh, axes, shapes(6, 6))


def test_constrain_without_a_mesh_is_the_identity():
    x = jnp.ones((2, 3))
    assert constrain(x, "batch", "length") is x


def test_constrain_on_a_mesh():
    mesh = one_device_mesh()
    with jax.set_mesh(mesh):
        traced = jax.make_jaxpr(lambda x: constrain(x, "batch", None))(jnp.ones((2, 3)))
    assert "sharding_constraint" in str(traced)
    assert "('replica', 'data', 'fsdp')" in str(traced)


def test_an_activation_that_does_not_divide():
    mesh = jax.sharding.AbstractMesh((1, 2, 1, 2, 1), MESH_AXES)
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.make_jaxpr(lambda x: constrain(x, "batch", "length"))(jnp.ones((2, 4)))
        assert "'fsdp'), 'sequence')" in str(traced)
        # One token at a time, as in decoding: the length stays whole.
        traced = jax.make_jaxpr(lambda x: constrain(x, "batch", "length"))(jnp.ones((2, 1)))
        assert "'fsdp'), None)" in str(traced)
        with pytest.raises(InputError, match="axis 'batch' of size 3 is not divisible by the"):
            constrain(jnp.ones((3, 4)), "batch", "length")


EIGHT_DEVICES = """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from t5x_lite.models.t5 import T5Config
    from t5x_lite.nn.slots import bind, shapes
    from t5x_lite.objectives.learner import Bound

    from t5x_lite.objectives.likelihood import Seq2Seq
    from t5x_lite.core.sharding import (
        MeshConfig, batch_sharding, check_divisible, data_parallelism, make_mesh, shardings,
    )

    assert len(jax.devices()) == 8
    mesh = make_mesh(MeshConfig(fsdp=2))
    assert dict(mesh.shape) == {
        "replica": 1, "data": 4, "fsdp": 2, "sequence": 1, "tensor": 1
    }
    assert data_parallelism(mesh) == 8

    config = T5Config(
        vocab_size=32, d_model=8, d_kv=4, d_ff=16, num_heads=2, num_encoder_layers=1,
        num_decoder_layers=1, dropout_rate=0.0,
    )
    graphdef, abstract, axes = shapes(lambda rngs: Bound(config, Seq2Seq(), rngs=rngs))
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape, scale=0.3).astype(np.float32), abstract
    )
    batch = {
        "encoder_input_tokens": rng.integers(2, 32, size=(8, 6)),
        "decoder_input_tokens": rng.integers(2, 32, size=(8, 5)),
        "decoder_target_tokens": rng.integers(2, 32, size=(8, 5)),
        "decoder_loss_weights": np.tri(8, 5),  # rows weigh unlike: the sums are global
    }
    batch["encoder_input_tokens"][3, 4:] = 0


    def value_and_norm(params, batch):
        value, grads = jax.value_and_grad(lambda p: bind(graphdef, p)(batch).value())(params)
        return value, jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(grads)))


    def run(mesh_config, devices):
        mesh = make_mesh(mesh_config, devices=devices)
        check_divisible(mesh, axes, abstract)
        with jax.set_mesh(mesh):
            placed = jax.device_put(params, shardings(mesh, axes))
            rows = jax.device_put(batch, batch_sharding(mesh))
            results = jax.jit(value_and_norm)(placed, rows)
        kernel = placed["model"]["encoder"]["layers"]["mlp"]["wi_0"]["kernel"]
        arrays = kernel, rows["decoder_loss_weights"]
        return *map(float, results), *(x.addressable_shards[0].data.shape for x in arrays)


    one = run(MeshConfig(), jax.devices()[:1])
    data = run(MeshConfig(data=8), None)
    split = run(MeshConfig(data=1, fsdp=4, tensor=2), None)
    assert one[2:] == ((1, 8, 16), (8, 5)), one
    assert data[2:] == ((1, 8, 16), (1, 5)), data
    assert split[2:] == ((1, 2, 8), (2, 5)), split
    np.testing.assert_allclose(data[:2], one[:2], rtol=1e-5)
    np.testing.assert_allclose(split[:2], one[:2], rtol=1e-5)
"""


@pytest.mark.slow
def test_eight_devices_give_the_loss_and_gradient_of_one():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(EIGHT_DEVICES)],
        cwd=ROOT,
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_kind_of_the_devices_that_a_program_is_for():
    assert traced_kind() == jax.devices()[0].device_kind
    seen = []

    @jax.jit
    def program(x):
        seen.append(traced_kind())
        return x

    with jax.set_mesh(one_device_mesh()):
        program(1.0)
    assert seen == [jax.devices()[0].device_kind]


def test_a_length_that_is_whole_is_not_refused():
    check_whole_rows("the kernel", instead="--model.attention plain")
    with jax.set_mesh(one_device_mesh()):
        check_whole_rows("the kernel", instead="--model.attention plain")
