"""Every old name leads to a module that is there."""

import importlib
import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

from t5x_lite.adapters.bottleneck import par_bn
from t5x_lite.adapters.config import Adapters
from t5x_lite.adapters.lora import Lora
from t5x_lite.config.file import from_json
from t5x_lite.core import renames
from t5x_lite.core.errors import InputError
from t5x_lite.core.renames import current, current_fields, current_paths, hint

FORMER = pathlib.Path(__file__).parents[1] / "golden" / "former_classes.txt"


@pytest.mark.parametrize("old", [f"t5x_lite.{name}" for name in renames._MODULES])
def test_a_new_name_is_there(old):
    spec = importlib.util.find_spec(current(old))
    assert spec is not None
    assert spec.origin is not None
    assert current(current(old)) == current(old)


@pytest.mark.parametrize("old", [f"t5x_lite.{name}" for name in renames._NAMES])
def test_a_name_that_left_its_module_is_read_there(old):
    module, _, name = old.rpartition(".")
    place, _, today = current(old).rpartition(".")
    expected = getattr(importlib.import_module(place), today)
    assert getattr(importlib.import_module(module), name) is expected


def test_every_public_class_of_version_0_1_is_imported_by_its_old_name():
    """139125c was the last commit with those names."""
    heavy = {"tensorflow_datasets", "apache_beam", "wandb", "mlflow", "uvicorn", "mteb"}
    lost = []
    for line in FORMER.read_text().splitlines():
        module, _, names = line.partition(": ")
        today = current(f"t5x_lite.{module}")
        try:
            there = importlib.import_module(today)
        except ModuleNotFoundError as error:
            lost += [line] if error.name not in heavy else []
            continue
        old = importlib.import_module(f"t5x_lite.{module}")
        for name in names.split():
            place, _, now = current(f"t5x_lite.{module}.{name}").rpartition(".")
            moved = place != f"t5x_lite.{module}"  # it has another name, or left its module
            found = getattr(importlib.import_module(place) if moved else there, now)
            lost += [] if getattr(old, name) is found else [f"{module}.{name}"]
    assert lost == []


def test_an_old_module_is_todays_with_one_line_of_warning(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from t5x_lite.records import lines\n"
        "from t5x_lite.records.lines import read_lines\n"
        "import t5x_lite.heads.classifier as heads\n"
        "from t5x_lite.data.formats.lines import read_lines as today\n"
        "assert lines.read_lines is read_lines is today\n"
        "assert heads.Classifier.__module__ == 't5x_lite.models.heads'\n"
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "mine.py")], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines() == [
        "t5x_lite.records.lines is renamed to t5x_lite.data.formats.lines; "
        "the old name will be removed in 0.3.0",
        "t5x_lite.heads.classifier is renamed to t5x_lite.models.heads; "
        "the old name will be removed in 0.3.0",
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("t5x_lite.records.nothing", "No module named 't5x_lite.records.nothing'"),
        ("t5x_lite.nothing", "No module named 't5x_lite.nothing'"),
    ],
)
def test_what_never_was_a_module_is_none(name, message):
    with pytest.raises(ModuleNotFoundError, match=f"^{message}$"):
        importlib.import_module(name)
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec("from t5x_lite.records.lines import Nothing")
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec("from t5x_lite.records import Nothing")


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
    assert current_paths([path]) == {path: today}
    assert current_paths([today]) == {today: today}


def test_a_head_was_the_objective_s():
    mlm = ["objective/head/dense/kernel", "mu/objective/head/bias", "objective/classifier/out/bias"]
    assert list(current_paths(mlm).values()) == [
        "heads/mlm/dense/kernel", "mu/heads/mlm/bias", "heads/classifier/out/bias",
    ]  # fmt: skip
    detection = ["objective/head/dense/kernel", "objective/head/out/bias"]
    assert list(current_paths(detection).values()) == [
        "heads/rtd/dense/kernel", "heads/rtd/out/bias",
    ]  # fmt: skip


def test_fields_of_an_experiment():
    old = {
        "type": "t5x_lite.config:Experiment",
        "objective": {"type": "t5x_lite.objectives.imported:Imported", "head": "deberta_rtd"},
        "init": "work",
        "init_step": 5,
        "init_rename": ["a -> b"],
        "init_fresh": [],
    }
    new = current_fields(old)
    assert new["objective"] == {"type": "t5x_lite.objectives.base:NoLoss"}
    assert [head["kind"] for head in new["heads"]] == ["deberta"]
    assert new["init"] == {
        "type": "t5x_lite.checkpoints.init:Init",
        "checkpoint": "work",
        "step": 5,
        "rename": ["a -> b"],
        "fresh": [],
    }
    assert not {"init_step", "init_rename", "init_fresh"} & set(new)
    assert current_fields(new) == new
    nothing = current_fields({**old, "init": "", "init_step": None, "init_rename": []})
    assert nothing["init"] == {"type": "t5x_lite.checkpoints.init:Init"}
    other = {"type": "t5x_lite.objectives.seq2seq:Seq2Seq", "init": "x"}
    assert current_fields(other) == other


def test_adapters_were_configs_and_are_lines():
    lora = {"type": "t5x_lite.adapters.lora:Lora", "name": "lora", "sites": ["mlp/in"], "rank": 4}
    lora |= {"alpha": 8.0, "rank_stabilised": True}
    block = {"type": "t5x_lite.adapters.bottleneck:Bottleneck", "name": "b", "sites": ["after_mlp"]}
    block |= {"reduction": 2.0, "reads": "input", "activation": "relu", "scale": 4.0, "init": "mam"}
    old = {"type": "t5x_lite.config.experiment:Experiment", "adapters": [lora, block]}
    new = current_fields(old)
    assert new["adapters"].pop("type") == "t5x_lite.adapters.config:Adapters"
    made = Adapters(add=tuple(new["adapters"]["add"]))
    expected = Lora(name="lora", sites=("mlp/in",), rank=4, rank_stabilised=True), par_bn(name="b")
    assert made.modules == expected
    assert current_fields({**old, "adapters": []})["adapters"]["add"] == []
    other = {**old, "adapters": [{"type": "mine:Own"}]}
    with pytest.raises(InputError, match=r"adapters.add: column .*"):
        Adapters(add=tuple(current_fields(other)["adapters"]["add"]))


def test_a_failed_import_says_the_new_name():
    with pytest.raises(ImportError) as caught:
        from t5x_lite.checkpoints import find_step  # noqa: F401
    assert hint(caught.value) == "; t5x_lite.checkpoints is t5x_lite.checkpoints.reading now"
    with pytest.raises(ImportError) as caught:
        from t5x_lite.config import Nothing  # noqa: F401
    assert hint(caught.value) == ""
    assert hint(ImportError("x", name="numpy")) == ""
    assert hint(ValueError("x")) == ""


@pytest.mark.parametrize("name", ["seq2seq", "lm", "prefix_lm", "concat_lm", "encoder", "labelled"])
def test_a_layout_by_name_is_that_of_today(name):
    node = {"type": "t5x_lite.config:Data", "vocabulary": "v", "task": "a:b", "pack": False}
    found = from_json(json.dumps({**node, "layout": name}), source="config.json")
    assert found.layout.name == name
