"""Rows of several modules in one run: each cache trains its own."""

import dataclasses

import numpy as np
import pytest

from t5x_lite.adapters.config import Adapters
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.init import Init
from t5x_lite.commands.texts import cache
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.core.errors import InputError
from t5x_lite.train.measuring import evaluate
from t5x_lite.train.training import train
from tests.config_files import saved


@pytest.fixture
def both(tmp_path, tiny_run, tiny_experiment):
    """Two caches of one task, and a run over them."""
    for name in ("en", "sw"):
        output = str(tmp_path / name)
        cache(saved(tiny_experiment, tmp_path), output=output, splits=("train", "validation"))
    data = dataclasses.replace(
        tiny_experiment.data,
        cache=tuple(f"{tmp_path / name}=1" for name in ("en", "sw")),
        adapter_of=("en=0", "sw=1"),
        pack=False,
    )
    return dataclasses.replace(
        tiny_experiment,
        data=data,
        init=Init(checkpoint=str(tiny_run)),
        adapters=Adapters(add=("a = lora(r=2)", "b = lora(r=2)"), use="MultiTask(a, b)"),
        evaluation=Evaluation(period=2, task_metrics=False, loss_of_each_cache=True),
        checkpoints=Checkpoints(period=2),
        steps=4,
        workdir=str(tmp_path / "run"),
    )


@pytest.mark.slow
def test_each_cache_trains_its_module(both, tmp_path):
    """And a module alone is measured afterwards, on the cache that is its own."""
    train(both)
    arrays = checkpointing.lazy_params(tmp_path / "run" / "checkpoints" / "4")
    moved = {path: np.abs(x.read()).max() for path, x in arrays.items() if path.endswith("/b")}
    assert {path.split("/")[1] for path in moved} == {"a", "b"}
    assert min(moved.values()) > 0
    own = dataclasses.replace(both, data=dataclasses.replace(both.data, cache=str(tmp_path / "en")))
    found = evaluate(own, [str(tmp_path / "run")], use="a")
    assert np.isfinite(found["validation/loss"])
    with pytest.raises(InputError, match="uses different adapters for different rows"):
        evaluate(own, [str(tmp_path / "run")])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"use": "MultiTask(a, b, None)", "task_metrics": True},
            "task metrics require a single adapter",
        ),
        (
            {"adapter_of": ()},
            r"MultiTask\(a, b\) of adapters\.use requires the adapter number of each example",
        ),
        (
            {"adapter_of": ("en=0", "sw=2")},
            "has the children 0 to 1, but the cache sw has the number 2",
        ),
        ({"use": "Stack(a, b)"}, "data.adapter_of requires a MultiTask block in adapters.use, or"),
    ],
)
def test_what_is_refused_before_anything_is_made(both, changes, message):
    wrong = dataclasses.replace(
        both,
        adapters=dataclasses.replace(both.adapters, use=changes.get("use", both.adapters.use)),
        data=dataclasses.replace(
            both.data, adapter_of=changes.get("adapter_of", both.data.adapter_of)
        ),
        evaluation=dataclasses.replace(
            both.evaluation, task_metrics=changes.get("task_metrics", False)
        ),
    )
    with pytest.raises(InputError, match=message):
        train(wrong)
