"""What a step leaves to its base: names, digests, and where the base is looked for."""

import json
import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from t5x_lite.checkpoints.init import BASE_FILE, Base, Leaf, base_at, digests
from t5x_lite.core.errors import InputError

KERNEL = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_digest_is_of_the_numbers_and_of_nothing_else():
    [digest] = digests({"kernel": KERNEL}).values()
    assert digest == reference(KERNEL)
    same = {"jax": jnp.asarray(KERNEL), "half": jnp.asarray(KERNEL, jnp.bfloat16)}
    same["wide"] = KERNEL.astype(np.float64)
    assert set(digests(same).values()) == {digest}
    swapped = KERNEL[:, [1, 0, 2]]
    others = {"swapped": swapped, "flat": KERNEL.reshape(6), "turned": KERNEL.reshape(3, 2)}
    others |= {"negative": -KERNEL, "other": KERNEL + np.float32(1e-6), "scalar": np.float32(0)}
    found = digests(others)
    assert len({digest, *found.values()}) == 1 + len(others)


def reference(array):
    """The digest by whole numbers of Python."""
    import hashlib

    def mixed(x):
        x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
        x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
        return x ^ x >> 16

    sums = [0, 0]
    for place, bits in enumerate(array.reshape(-1).view(np.uint32).tolist()):
        first = mixed(bits ^ mixed((place + 0x9E3779B9) % 2**32))
        second = mixed((first + place * 0x85EBCA77 + 0xC2B2AE3D) % 2**32)
        sums = [(sums[0] + first) % 2**32, (sums[1] + second) % 2**32]
    content = repr(array.shape).encode() + np.array(sums, np.uint32).tobytes()
    return hashlib.sha256(content).hexdigest()[:16]


@pytest.fixture
def base(tmp_path):
    params = {"model": {"kernel": KERNEL, "bias": KERNEL[0]}, "adapters": {"a": KERNEL}}
    sources = {"model/kernel": "model/old", "model/bias": "model/bias"}
    there, steps = tmp_path / "t5" / "checkpoints" / "20", tmp_path / "lora" / "checkpoints"
    return Base.of(params, sources, base=there, steps=steps)


def test_a_base_and_its_file(base, tmp_path):
    assert base.checkpoint == str(tmp_path / "t5" / "checkpoints" / "20")
    assert base.relative == "../../../t5/checkpoints/20"
    assert base.arrays["model/kernel"] == Leaf("model/old", reference(KERNEL))
    assert base.rest({"model": {"kernel": 1, "bias": 2}, "adapters": {"a": 3}}) == {
        "adapters": {"a": 3}
    }
    assert Base.read({BASE_FILE: base.content()}, where="x") == base
    assert Base.read({"config.json": b""}, where="x") is None
    content = json.loads(base.content())
    assert content["digest"] == base.digest
    moved = Base("/elsewhere", "", base.arrays)
    assert moved.digest == base.digest


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "Expecting property name"),
        (b"[]", "list indices"),
        (b'{"version": 2}', "version 2 of base.json is not supported, only version 1"),
        (b'{"version": 1, "checkpoint": "x"}', "'arrays'"),
        (b'{"version": 1, "checkpoint": "x", "relative": "", "arrays": {"a": 3}}', "int"),
    ],
)
def test_a_damaged_file(content, reason):
    with pytest.raises(InputError, match=rf"checkpoint work/7: files/base.json is dam.*{reason}"):
        Base.read({BASE_FILE: content}, where="work/7")


def test_other_numbers(base):
    assert base.other({"model/kernel": KERNEL}) is None
    assert base.other({"model/bias": KERNEL[0], "model/kernel": KERNEL + 1}) == "model/old"


def test_a_run_in_a_bucket_knows_where_a_local_base_is(base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    steps = epath.Path("gs://bucket/lora/checkpoints")
    found = Base.of({"a": KERNEL}, {"a": "a"}, base=Path("t5/checkpoints/20"), steps=steps)
    assert (found.checkpoint, found.relative) == (base.checkpoint, "")


def test_where_it_is_looked_for(base, tmp_path, monkeypatch):
    step = tmp_path / "moved" / "lora" / "checkpoints" / "5"
    found = [os.fspath(path.relative_to(tmp_path)) for path in base.candidates(step)]
    links = ["moved/lora/checkpoints/base", "moved/lora/base"]
    assert found == [
        *(f"{link}{end}" for link in links for end in ("/checkpoints/20", "/20", "")),
        "t5/checkpoints/20",
        "moved/t5/checkpoints/20",
    ]
    monkeypatch.chdir(tmp_path)
    again = base.candidates(step.relative_to(tmp_path))
    assert [os.fspath(path.relative_to(tmp_path)) for path in again] == found
    assert str(base.missing(step)).endswith(f"a link at {tmp_path / links[1]}")


def test_a_directory_that_is_given_is_the_only_one(base, tmp_path):
    step, given = tmp_path / "lora" / "checkpoints" / "5", tmp_path / "t5"
    given.mkdir()
    (tmp_path / "link").symlink_to(given)
    with base_at(str(given)):
        assert list(base.candidates(step)) == [given]
        assert f"but {given} holds no checkpoint" in str(base.missing(step))
        assert str(given) not in map(str, base.candidates(given / "checkpoints" / "20"))
        assert len(list(base.candidates(tmp_path / "link" / "checkpoints" / "20"))) > 1
        assert list(base.candidates(epath.Path("gs://bucket/lora/5"))) == [given]
