"""A module that masks the heads that matter least, written beside its base."""

import json

import numpy as np
import pytest

from t5x_lite.commands.deltas import heads
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import OptionError
from t5x_lite.core.trees import flatten
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.inference.delta_files import load
from t5x_lite.inference.loading import Loaded
from tests.adapters.delta_directories import write_base, write_run
from tests.adapters.hosts import HOSTS, outputs


class Source:
    """Batches of one row, in place of a task's."""

    def train_batches(self, data, vocabulary, *, seed):
        assert (data.batch_size, data.pack, seed) == (1, False, 0)
        for row in range(8):
            yield {name: np.asarray(x)[row : row + 1] for name, x in HOSTS["bert"][2].items()}


@pytest.mark.slow
def test_half_of_the_heads(tmp_path, monkeypatch):
    monkeypatch.setattr("t5x_lite.data.batches.train_batches", Source().train_batches)
    monkeypatch.setattr(
        "t5x_lite.inference.loading.load_vocabulary", lambda *a, **k: load_vocabulary("bytes")
    )
    base = write_base(tmp_path / "bert", "bert")
    heads(str(tmp_path / "bert"), str(tmp_path / "half"), examples=2, keep=0.5)
    told = json.loads((tmp_path / "half" / "files" / "heads.json").read_text())
    importance = np.array(told["importance"]["encoder/attention/hidden"])
    assert (importance.shape, told["examples"], told["keep"]) == ((2, 2), 2, 0.5)
    loaded = Loaded.from_checkpoint(str(tmp_path / "half"), step=None)
    [mask] = flatten(loaded.params["adapters"]).values()
    each = importance / np.linalg.norm(importance, axis=1, keepdims=True)
    np.testing.assert_array_equal(mask, each >= np.sort(each, axis=None)[2])
    whole = Loaded.from_checkpoint(str(tmp_path / "bert"), step=None)
    merged = {**whole.params, "model": loaded.learner.merged(loaded.params)}
    np.testing.assert_allclose(
        outputs(loaded.learner, loaded.params, HOSTS["bert"][2]),
        outputs(whole.learner, merged, HOSTS["bert"][2]),
        atol=1e-5,
    )
    assert set(load(tmp_path / "half").parts) == {"model/layers/attention/out/kernel"}
    with pytest.raises(OptionError, match=r"--keep must be in \(0, 1\], got 2"):
        heads(str(tmp_path / "bert"), str(tmp_path / "more"), examples=1, keep=2.0)
    assert not (tmp_path / "more").exists()
    write_run(tmp_path / "a", "bert", base, "m = lora(r=2)")
    with pytest.raises(
        InputError, match=r"has adapters, .* merge the adapters by `t5x-lite merge`"
    ):
        heads(str(tmp_path / "a"), str(tmp_path / "b"), examples=1)
