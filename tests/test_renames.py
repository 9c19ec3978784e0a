"""Every old name leads to a module that is there."""

import importlib
import importlib.util

import pytest

from t5x_lite import renames
from t5x_lite.renames import current, current_path, hint


@pytest.mark.parametrize("old", [f"t5x_lite.{name}" for name in renames._MODULES])
def test_a_new_name_is_there(old):
    assert importlib.util.find_spec(current(old)) is not None
    assert current(current(old)) == current(old)


def test_names():
    assert current("t5x_lite.config") == "t5x_lite.config.experiment"
    assert current("t5x_lite.data.c4") == "t5x_lite.c4"
    assert current("t5x_lite.data.c4.beam") == "t5x_lite.c4.beam"
    assert current("t5x_lite.data.config") == "t5x_lite.data.config"
    assert current("tasks.mine") == "tasks.mine"


@pytest.mark.parametrize(
    ("path", "today"),
    [
        ("model/layers/wi/kernel", "model/layers/mlp/wi/kernel"),
        ("state/mu/objective/decoder/wo/bias", "state/mu/objective/decoder/mlp/wo/bias"),
        ("statistics/model/layers/wi/kernel/row", "statistics/model/layers/mlp/wi/kernel/row"),
        ("model/encoder/layers/mlp/wi/kernel", "model/encoder/layers/mlp/wi/kernel"),
        ("model/layers/attention/key/kernel", "model/layers/attention/key/kernel"),
        ("model/layers/ffn/wi/kernel", "model/layers/ffn/wi/kernel"),
    ],
)
def test_paths(path, today):
    assert current_path(path) == today
    assert current_path(today) == today


def test_a_failed_import_says_the_new_name():
    with pytest.raises(ImportError) as caught:
        importlib.import_module("t5x_lite.data.text_source")
    assert hint(caught.value) == (
        "; t5x_lite.data.text_source is t5x_lite.data.tasks.text_source now"
    )
    with pytest.raises(ImportError) as caught:
        from t5x_lite.data import stages  # noqa: F401
    assert hint(caught.value) == "; t5x_lite.data.stages is t5x_lite.data.tasks.stages now"
    with pytest.raises(ImportError) as caught:
        from t5x_lite.checkpoints import find_step  # noqa: F401
    assert hint(caught.value) == "; t5x_lite.checkpoints is t5x_lite.checkpoints.reading now"
    with pytest.raises(ImportError) as caught:
        from t5x_lite.config import Nothing  # noqa: F401
    assert hint(caught.value) == ""
    assert hint(ImportError("x", name="numpy")) == ""
    assert hint(ValueError("x")) == ""
