import dataclasses
import importlib.util
import logging
import subprocess
import sys

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.nn import pallas_attention
from t5x_lite.nn.pallas_attention import fitting
from t5x_lite.nn.pallas_kernels import Layout

BASE = Layout(
    num_queries=2048, num_keys=2048, num_heads=12, d_kv=64, query_block=0, key_block=0,
    causal=False, skips=False, buckets=32, bidirectional=True, max_distance=128,
)  # fmt: skip


@pytest.fixture(autouse=True)
def fresh():
    pallas_attention.tell.cache_clear()


def block(asked, *, kind, length=2048):
    def layout_of(block):
        return dataclasses.replace(
            BASE, num_queries=length, num_keys=length, query_block=block, key_block=block
        )

    return fitting(layout_of, asked, kind=kind, itemsize=2).key_block


@pytest.mark.parametrize(
    ("kind", "length", "asked", "taken"),
    [
        ("TPU v4", 512, 512, 512),
        ("TPU v4", 2048, 512, 256),  # of 512 the compiler says 28.10 MiB
        ("TPU v4", 2048, 384, 256),  # 17.42
        ("TPU v4", 8192, 256, 256),
        ("TPU v5 lite", 2048, 512, 512),
        ("TPU v5p", 8192, 1024, 512),
        ("TPU v6 lite", 8192, 512, 512),
        ("TPU7x", 2048, 512, 512),
        ("TPU v99", 2048, 4096, 4096),
        ("cpu", 2048, 4096, 4096),
    ],
)
def test_the_block_that_fits(kind, length, asked, taken):
    assert block(asked, kind=kind, length=length) == taken


def test_a_smaller_block_is_told_once(caplog):
    with caplog.at_level(logging.WARNING):
        block(512, kind="TPU v4")
        block(512, kind="TPU v4")
        block(256, kind="TPU v4")
    assert caplog.messages == [
        "the attention kernel uses blocks of 256 tokens, because rows of 2048 tokens in blocks of "
        "512 need 28.3 of the 16 MiB of VMEM of a TPU v4"
    ]


def test_rows_that_fit_in_no_block_are_refused():
    with pytest.raises(InputError) as raised:
        block(256, kind="TPU v4", length=16384)
    assert str(raised.value) == (
        "the attention kernel does not fit into the TPU's VMEM: rows of 16384 tokens in blocks of "
        "128 need 18.3 of the 16 MiB of VMEM of a TPU v4; set --model.attention blocked"
    )


PROGRAM = """
import dataclasses
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from t5x_lite.nn import masks
from t5x_lite.nn.pallas_attention import pallas_attention
from t5x_lite.nn.attention_pattern import RelativeTable
from t5x_lite.plan.program import topology_devices
from t5x_lite.core.sharding import MeshConfig, make_mesh

mesh = make_mesh(MeshConfig(), devices=topology_devices("v4:2x2x1"))
rows = NamedSharding(mesh, PartitionSpec("data"))
x = jax.ShapeDtypeStruct((4, 2048, 2, 64), jnp.bfloat16, sharding=rows)
table = jax.ShapeDtypeStruct((32, 2), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec()))

def loss(query, key, value, table):
    visible = dataclasses.replace(masks.of_encoder(jnp.ones((4, 2048), jnp.int32)), block_size=512)
    bias = RelativeTable(table=table, bidirectional=True, max_distance=128)
    return jnp.sum(pallas_attention(query, key, value, visible=visible, bias=bias) ** 2)

with jax.set_mesh(mesh):
    jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).lower(x, x, x, table).compile()
print("compiled")
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra `plan`")
def test_a_block_that_is_too_large_compiles_for_a_v4():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "compiled\n"), done.stderr[-2000:]
    assert done.stderr.count("rows of 2048 tokens in blocks of 512 need") == 1
