"""Tests of the protocol of trackers: what is refused, what is kept, what is shown."""

import sys

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.core.tracking import KnownIds, Tracking, find_trackers, flat
from t5x_lite.train.track import TensorBoard


@pytest.mark.parametrize("name", ["wand", "neptune", ":x", "module:"])
def test_an_unknown_tracker_is_refused(name):
    with pytest.raises(InputError, match="not one of tensorboard, wandb, mlflow"):
        Tracking(to=(name,))


def test_shipped_trackers_and_one_of_one_s_own(tmp_path, monkeypatch):
    (tmp_path / "my_trackers.py").write_text("class Webhook: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "t5x_lite_own_trackers", type(sys)("t5x_lite_own_trackers"))
    sys.modules["t5x_lite_own_trackers"].Webhook = dict
    found = find_trackers(Tracking(to=("tensorboard", "t5x_lite_own_trackers:Webhook")))
    assert found == {"tensorboard": TensorBoard, "t5x_lite_own_trackers:Webhook": dict}
    with pytest.raises(InputError, match="has no Webhok; did you mean Webhook"):
        find_trackers(Tracking(to=("t5x_lite_own_trackers:Webhok",)))
    with pytest.raises(InputError, match=r"tracking\.to no_such_module_at_all:x"):
        find_trackers(Tracking(to=("no_such_module_at_all:x",)))


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_extra_is_named_before_training(name, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(
        InputError, match=rf"needs the package {name}; run pip install .*\[{name}\]"
    ):
        find_trackers(Tracking(to=(name,)))


def test_ids_are_kept(tmp_path):
    ids = KnownIds(tmp_path)
    assert ids.get("wandb") is None
    ids.set("wandb", "a1")
    ids.set("mlflow", "b2")
    assert (KnownIds(tmp_path).get("wandb"), KnownIds(tmp_path).get("mlflow")) == ("a1", "b2")
    (tmp_path / "trackers.json").write_text("{")
    assert ids.get("wandb") is None


def test_a_config_by_the_names_of_its_options():
    config = {"steps": 3, "optimizer": {"schedule": {"value": 0.1}}, "heads": [{"name": "mlm"}]}
    assert flat(config | {"train": ["a", "b"]}) == {
        "steps": 3,
        "optimizer.schedule.value": 0.1,
        "heads.0.name": "mlm",
        "train": ["a", "b"],
    }
