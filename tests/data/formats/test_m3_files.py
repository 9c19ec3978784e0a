import json

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.vectors import M3Texts, Writer

TERMS = [{5: 0.5, 9: 0.25}, {}, {7: 1.0}]


class Killed(BaseException):
    pass


def write(directory, *, numbers="float16", killed=False):
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(3, 4)).astype(np.float32)
    vectors = [rng.normal(size=(n, 5)).astype(np.float32) for n in (2, 0, 3)]
    directory.mkdir(exist_ok=True)
    with Writer(directory, numbers=numbers) as writer:
        for some in (slice(0, 2), slice(2, 3))[writer.done // 2 :]:
            if killed and writer.done:
                raise Killed
            parts = {"dense": dense[some], "terms": TERMS[some], "vectors": vectors[some]}
            writer.write(["a", 'b"', "c"][some], **parts)
    return dense, vectors


@pytest.mark.parametrize("numbers", ["float16", "int8"])
def test_what_was_killed_is_gone_on_with(tmp_path, numbers):
    write(tmp_path / "whole", numbers=numbers)
    with pytest.raises(Killed):
        write(tmp_path / "m", numbers=numbers, killed=True)
    for path in (tmp_path / "m").iterdir():
        if path.name != "progress.json":
            path.write_bytes(path.read_bytes() + b"torn")
    (tmp_path / "m" / "torn").write_text("x")
    write(tmp_path / "m", numbers=numbers)
    alone, found = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("whole", "m")
    )
    assert found == alone


@pytest.mark.parametrize(
    ("numbers", "tolerance"), [("float32", 0), ("float16", 2e-3), ("int8", 2e-2)]
)
def test_what_is_written_is_read(tmp_path, numbers, tolerance):
    dense, vectors = write(tmp_path / "m", numbers=numbers)
    found = M3Texts(tmp_path / "m")
    assert found.ids == ["a", 'b"', "c"]
    np.testing.assert_array_equal(found.dense, dense)
    assert list(found.terms()) == TERMS
    for number, expected in enumerate(vectors):
        assert found.vectors(number).dtype == np.float32
        np.testing.assert_allclose(found.vectors(number), expected, atol=tolerance)
    stored = np.load(tmp_path / "m" / "multi_vector.npy")
    assert stored.dtype == np.dtype(numbers)
    assert stored.shape == (5, 5)


def test_one_head_alone(tmp_path):
    (tmp_path / "m").mkdir()
    writer = Writer(tmp_path / "m")
    writer.write(["a"], terms=[{3: 0.5}])
    writer.close()
    found = M3Texts(tmp_path / "m")
    assert [found.has(way) for way in ("dense", "lexical", "multi_vector")] == [False, True, False]
    assert found.dense is None


def test_what_is_wrong(tmp_path):
    with pytest.raises(InputError, match=r"has no ids\.txt"):
        M3Texts(tmp_path)
    write(tmp_path / "m")
    (tmp_path / "m" / "lexical.jsonl").write_text('{"5": 1}\n[]\n')
    with pytest.raises(InputError, match=r"lexical\.jsonl:2: must be an object"):
        list(M3Texts(tmp_path / "m").terms())
    (tmp_path / "m" / "lexical.jsonl").write_text('{"5": 1}\n')
    with pytest.raises(InputError, match=r"lexical\.jsonl has 1 texts, but ids\.txt has 3"):
        list(M3Texts(tmp_path / "m").terms())
    (tmp_path / "m" / "ids.txt").write_text(json.dumps("a") + "\n")
    with pytest.raises(InputError, match=r"dense\.npy has 3 texts"):
        M3Texts(tmp_path / "m")
    (tmp_path / "m" / "dense.npy").write_bytes(b"no")
    with pytest.raises(InputError, match=r"dense\.npy: cannot be read"):
        M3Texts(tmp_path / "m")
