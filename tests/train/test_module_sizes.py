"""The bytes of a module of T5-base: of a run's checkpoint, and of the directory for PEFT."""

import dataclasses

import numpy as np
import pytest

from t5x_lite.checkpoints.init import BASE_FILE, Base, Init, Leaf, digests
from t5x_lite.checkpoints.reading import Checkpoints
from t5x_lite.commands.weights import export_adapter
from t5x_lite.config.file import to_json
from t5x_lite.core import trees
from t5x_lite.core.trees import count_parameters, flatten
from t5x_lite.inference.delta_files import load, save
from t5x_lite.inference.loading import learner_of
from t5x_lite.models.published import t5_base
from tests.adapters.delta_directories import experiment, write_step

NUM_PARAMETERS = 884_736
MOST = 4 * NUM_PARAMETERS + 100_000


def bytes_below(directory):
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@pytest.mark.slow
def test_lora_of_rank_8(tmp_path):
    """Queries and values of all 36 attentions; the base is all zeros, of which no array is made."""
    start = Init(checkpoint=str(tmp_path / "t5"))
    config = dataclasses.replace(experiment("t5", "rte = lora(r=8)", init=start), model=t5_base())
    shapes = learner_of(config).shapes
    assert count_parameters(shapes["adapters"]) == NUM_PARAMETERS
    zeros = {
        path: np.broadcast_to(np.float32(0), leaf.shape)
        for path, leaf in flatten({"model": shapes["model"]}).items()
    }
    plain = dataclasses.replace(experiment("t5"), model=t5_base())
    there = write_step(tmp_path / "t5", plain, zeros)
    # Of a base only its smallest array is read by who needs no other one.
    smallest = min(zeros, key=lambda path: (zeros[path].size, path))
    known = digests({smallest: zeros[smallest]})
    base = Base(str(there), "", {path: Leaf(path, known.get(path, "0" * 16)) for path in zeros})
    rng = np.random.default_rng(0)
    theta = {
        path: rng.standard_normal(leaf.shape).astype(np.float32)
        for path, leaf in flatten({"adapters": shapes["adapters"]}).items()
    }
    files = {"config.json": to_json(config).encode(), BASE_FILE: base.content()}
    with Checkpoints(tmp_path / "run") as checkpoints:
        params = base.rest(trees.unflatten({**zeros, **theta}))
        checkpoints.save(5, params=params, optimizer={"count": np.int32(5)}, files=files)
    step = tmp_path / "run" / "checkpoints" / "5"
    save(load(step), tmp_path / "delta")
    export_adapter(step, tmp_path / "peft")
    sizes = {
        "checkpoint": bytes_below(step / "params"),
        "delta": bytes_below(tmp_path / "delta" / "params"),
        "peft": (tmp_path / "peft" / "adapter_model.safetensors").stat().st_size,
    }
    assert all(3 * NUM_PARAMETERS < size <= MOST for size in sizes.values()), sizes
