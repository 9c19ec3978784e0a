"""BGE-M3's heads beside a directory: read, written, and what is refused."""

import json

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import LazyArray
from t5x_lite.interop.retrievers import flag_embedding, flag_tokenizer, m3_files, read_m3
from t5x_lite.interop.tensor_files import read_torch, write_safetensors, write_torch
from t5x_lite.models.vector_heads import Dense, Lexical, MultiVector
from t5x_lite.objectives.m3 import m3
from tests.interop.torch_writer import archive, state_dict, tensor
from tests.models.modules import MODEL

SPECIALS = (0, 1, 2, 3)


def values(d_out, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(d_out, 6)).astype("f2"), rng.normal(size=d_out).astype("f2")


def write(path, weight, bias):
    """As torch.save(layer.state_dict()) does, in 16-bit numbers."""
    rows, columns = weight.shape
    tensors = {
        "weight": tensor(
            "0", "HalfStorage", weight.size, shape=(rows, columns), strides=(columns, 1)
        ),
        "bias": tensor("1", "HalfStorage", bias.size, shape=(rows,), strides=(1,)),
    }
    content = {"0": weight.tobytes(), "1": bias.tobytes()}
    archive(path, state_dict(**tensors), content)


def write_heads(directory, *, size=4):
    sparse, colbert = values(1, 0), values(size, 1)
    write(directory / "sparse_linear.pt", *sparse)
    write(directory / "colbert_linear.pt", *colbert)
    return sparse, colbert


def test_heads_of_a_release_and_back(tmp_path):
    sparse, colbert = write_heads(tmp_path)
    found = read_m3(tmp_path, MODEL, specials=SPECIALS)
    assert (found.lexical, found.multi_vector) == (Lexical(specials=SPECIALS), MultiVector(size=4))
    expected = {
        "heads/lexical/out/kernel": sparse[0].T,
        "heads/lexical/out/bias": sparse[1],
        "heads/multi_vector/out/kernel": colbert[0].T,
        "heads/multi_vector/out/bias": colbert[1],
    }
    assert set(found.shapes) == set(expected)
    for path, value in expected.items():
        np.testing.assert_array_equal(found.array(path), value)
    assert found.objective(Dense(pooling="cls")) == m3(vector_size=4, specials=SPECIALS)
    assert found.objective(None) == m3(vector_size=4, specials=SPECIALS)

    arrays = {
        path: LazyArray(x.shape, x.dtype, lambda x=x: np.ascontiguousarray(x))
        for path, x in expected.items()
    }
    heads = {"lexical": found.lexical, "multi_vector": found.multi_vector}
    written = m3_files(heads, MODEL, arrays, where="here")
    assert set(written) == {"sparse_linear.pt", "colbert_linear.pt"}
    for suffix in (".pt", ".safetensors"):  # exports of version 0.1.0 have the second
        target = tmp_path / f"again{suffix}"
        target.mkdir()
        for name, tensors in written.items():
            path = (target / name).with_suffix(suffix)
            if suffix == ".pt":
                write_torch(path, {n: a.read() for n, a in tensors.items()}, keep_dtype=True)
            else:
                write_safetensors(path, tensors)
        second = read_m3(target, MODEL, specials=SPECIALS)
        for path, value in expected.items():
            np.testing.assert_array_equal(second.array(path), value)
    again = read_torch(tmp_path / "again.pt" / "colbert_linear.pt")
    np.testing.assert_array_equal(again["weight"], colbert[0])
    np.testing.assert_array_equal(again["bias"], colbert[1])


def test_as_many_numbers_as_the_states_have(tmp_path):
    write_heads(tmp_path, size=6)
    assert read_m3(tmp_path, MODEL, specials=SPECIALS).multi_vector == MultiVector()
    assert m3_files({"lexical": Lexical()}, MODEL, {}, where="here") == {}


def test_what_is_wrong(tmp_path):
    assert read_m3(tmp_path, MODEL, specials=SPECIALS) is None
    write(tmp_path / "colbert_linear.pt", *values(4, 0))
    with pytest.raises(
        InputError, match=r"has only one head of a BGE-M3; add the other head, sparse_linear\.pt"
    ):
        read_m3(tmp_path, MODEL, specials=SPECIALS)
    write(tmp_path / "sparse_linear.pt", *values(2, 0))
    with pytest.raises(InputError, match=r"sparse_linear\.weight has shape \(2, 6\)"):
        read_m3(tmp_path, MODEL, specials=SPECIALS)
    archive(tmp_path / "sparse_linear.pt", state_dict())
    with pytest.raises(InputError, match=r"sparse_linear\.pt.*weight"):
        read_m3(tmp_path, MODEL, specials=SPECIALS)


def test_names_for_flag_embedding():
    def of(config):
        content = config if isinstance(config, bytes) else json.dumps(config).encode()
        files = {"tokenizer_config.json": content, "vocab.txt": b"x"}
        found = flag_tokenizer(files, {"cls": "[CLS]", "sep": "[SEP]"}, where="here")
        assert found["vocab.txt"] == b"x"
        return json.loads(found["tokenizer_config.json"])

    names = {"bos_token": "[CLS]", "eos_token": "[SEP]"}
    assert of({"cls_token": "[CLS]"}) == {"cls_token": "[CLS]", **names}
    assert of({"eos_token": None}) == names
    assert of({"eos_token": "</s>"}) == {"bos_token": "[CLS]", "eos_token": "</s>"}
    for damaged in (b"{", b"[]"):
        with pytest.raises(InputError, match=r"here: tokenizer_config\.json (is not|must be)"):
            of(damaged)


@pytest.mark.parametrize(
    ("heads", "line"),
    [
        ({"lexical": Lexical(), "multi_vector": MultiVector(size=4)}, ", colbert_dim=4)"),
        ({"lexical": Lexical(), "multi_vector": MultiVector()}, 'NAME")'),
        ({"lexical": Lexical(), "multi_vector": MultiVector(size=6)}, 'NAME")'),
        ({"multi_vector": MultiVector()}, ""),
    ],
)
def test_how_flag_embedding_loads_it(heads, line):
    assert flag_embedding(heads, MODEL).endswith(line)
    assert bool(flag_embedding(heads, MODEL)) == bool(line)
