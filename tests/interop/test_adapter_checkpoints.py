"""`import adapter` and `export adapter`: step directories on a base, and back."""

import dataclasses
import json
import logging
import shutil

import jax
import numpy as np
import pytest

from scripts import encoder_goldens as goldens
from t5x_lite.adapters.bottleneck import seq_bn
from t5x_lite.adapters.lora import Lora
from t5x_lite.checkpoints import items
from t5x_lite.checkpoints.items import find_damage, lazy_params
from t5x_lite.cli import main
from t5x_lite.commands.weights import export_adapter, import_adapter, import_hf
from t5x_lite.core.errors import InputError
from t5x_lite.inference.loading import Loaded, TrainedModule
from t5x_lite.interop.tensor_files import read_safetensors
from tests.encoder_checkpoint import write_checkpoint
from tests.interop import test_adapters_library as library
from tests.interop.peft_files import LORA, bert_lora, random, write

START = "adapters/adapter/encoder/attention"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A tiny BERT of two layers and 12 d_model, with the head of a masked language model."""
    return write_checkpoint(tmp_path_factory.mktemp("base"), "bert")


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "theirs", LORA, bert_lora(size=12))


def own_paths(directory):
    return set(lazy_params(directory / "params"))


@pytest.mark.slow
def test_a_module_leaves_the_rest_to_its_base(base, source, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    import_adapter(source, tmp_path / "ours", base=base)
    assert find_damage(tmp_path / "ours") is None
    assert own_paths(tmp_path / "ours") == {
        f"{START}/{site}/{leaf}" for site in ("query", "value") for leaf in "ab"
    }
    loaded = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None)
    assert loaded.learner.adapters == (Lora(name="adapter", rank=2, alpha=4.0),)
    plain = Loaded.from_checkpoint(str(base), step=None)
    for part in ("model", "heads"):
        jax.tree.map(np.testing.assert_array_equal, loaded.params[part], plain.params[part])
    found = TrainedModule.find("rte", str(tmp_path / "ours"))  # as adapters.load does
    found.check_base(plain.params)
    assert found.adapter == Lora(name="rte", rank=2, alpha=4.0)
    export_adapter(tmp_path / "ours", tmp_path / "back", no_head=True)
    assert f"exported adapter adapter of checkpoint {tmp_path}/ours" in caplog.text
    found, theirs = (
        read_safetensors(d / "adapter_model.safetensors") for d in (tmp_path / "back", source)
    )
    assert found.keys() == theirs.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    config = json.loads((tmp_path / "back" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "some/base"


def classified(directory):
    """A PEFT directory with a classifier of three classes, and the tensors of the classifier."""
    head = {"classifier.weight": (3, 12), "classifier.bias": (3,)}
    kept = random(head | {"bert.pooler.dense.weight": (12, 12), "bert.pooler.dense.bias": (12,)})
    config = {**LORA, "task_type": "SEQ_CLS", "modules_to_save": ["classifier", "pooler"]}
    return write(directory / "theirs", config, bert_lora(size=12) | kept), kept


@pytest.mark.slow
def test_a_classifier_comes_along_with_its_objective(base, tmp_path):
    source, kept = classified(tmp_path)
    config = json.loads((source / "adapter_config.json").read_text())
    import_adapter(source, tmp_path / "ours", base=base, name="rte")
    loaded = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None)
    assert "heads/classifier/out/kernel" in own_paths(tmp_path / "ours")
    assert set(loaded.learner.heads) == {"classifier", "mlm"}
    export_adapter(tmp_path / "ours", tmp_path / "back", name="rte")
    found = read_safetensors(tmp_path / "back" / "adapter_model.safetensors")
    for name, array in kept.items():
        np.testing.assert_array_equal(found[f"base_model.model.{name}"], array)
    short = {n: a for n, a in kept.items() if n.startswith("classifier")}
    source = write(tmp_path / "short", config, bert_lora(size=12) | short)
    with pytest.raises(InputError, match=r"array heads/classifier/dense/bias is missing in both"):
        import_adapter(source, tmp_path / "other", base=base)
    assert not (tmp_path / "other").exists()


def test_class_names_are_those_of_the_base(base, tmp_path, caplog):
    source, kept = classified(tmp_path)
    import_adapter(source, tmp_path / "plain", base=base)
    assert caplog.text.count("classes of head classifier are named LABEL_0, LABEL_1") == 1
    assert "id2label" in caplog.text
    golden = goldens.read("bert")
    config = golden.config | {"architectures": ["BertForSequenceClassification"]}
    config |= {"id2label": {"0": "no", "1": "maybe", "2": "yes"}}
    weights = {n: x for n, x in golden.weights.items() if not n.startswith("cls.")} | kept
    release = dataclasses.replace(golden, config=config, weights=weights)
    goldens.write_release(release, tmp_path / "release")
    shutil.copy(base.parent / "bert_source" / "vocab.txt", tmp_path / "release")
    shutil.copy(base.parent / "bert_source" / "tokenizer_config.json", tmp_path / "release")
    import_hf(tmp_path / "release", tmp_path / "named", dtype="float32")
    caplog.clear()
    import_adapter(source, tmp_path / "ours", base=tmp_path / "named")
    assert "LABEL_0" not in caplog.text
    loaded = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None)
    assert loaded.learner.heads["classifier"].labels == ("no", "maybe", "yes")


def test_an_export_without_a_base_name_warns(base, tmp_path, caplog):
    """A base that t5x_lite trained has no source, so PEFT cannot find it by itself."""
    shutil.copytree(base, tmp_path / "base")
    (tmp_path / "base" / "files" / "huggingface" / "source.json").unlink()
    items.write(tmp_path / "base")
    nameless = {**LORA, "base_model_name_or_path": None}
    source = write(tmp_path / "theirs", nameless, bert_lora(size=12))
    import_adapter(source, tmp_path / "ours", base=tmp_path / "base")
    export_adapter(tmp_path / "ours", tmp_path / "back")
    assert caplog.text.count("base_model_name_or_path is empty") == 1
    assert "--base-name" in caplog.text
    caplog.clear()
    export_adapter(tmp_path / "ours", tmp_path / "named", base_name="some/base")
    export_adapter(tmp_path / "ours", tmp_path / "sum", rank=1, base_name="some/base")
    assert "base_model_name_or_path" not in caplog.text
    export_adapter(tmp_path / "ours", tmp_path / "other", rank=1)
    assert caplog.text.count("base_model_name_or_path is empty") == 1


def test_another_base_is_refused(base, source, tmp_path):
    shutil.copytree(base, tmp_path / "base")
    import_adapter(source, tmp_path / "ours", base=tmp_path / "base")
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(InputError, match="holds only the trained parameters, but its base"):
        Loaded.from_checkpoint(str(tmp_path / "ours"), step=None)
    write_checkpoint(tmp_path, "roberta")
    (tmp_path / "roberta").rename(tmp_path / "base")
    with pytest.raises(InputError, match=r"is not the base of|lacks"):
        Loaded.from_checkpoint(str(tmp_path / "ours"), step=None)
    wide = write(tmp_path / "wide", LORA, bert_lora(size=16))
    with pytest.raises(InputError, match=r"the base require \(2, 12\)"):
        import_adapter(wide, tmp_path / "none", base=base)
    theirs, _, _ = library.tensors_of("bert", "seq_bn")
    narrow = library.write(tmp_path / "narrow", "seq_bn", library.CONFIGS["seq_bn"], theirs)
    with pytest.raises(
        InputError, match=r"adapter array adapters/\S+ has shape .*, but with the base"
    ):
        import_adapter(narrow, tmp_path / "none", base=base)
    assert not (tmp_path / "none").exists()


def test_commands(base, source, tmp_path, capsys):
    ours, back = str(tmp_path / "ours"), str(tmp_path / "back")
    assert main(["import", "adapter", str(source), ours, "--base", str(base)]) == 0
    assert main(["export", "adapter", ours, back, "--format", "peft", "--no-head"]) == 0
    assert f"{ours}: imported adapter adapter from {source}" in capsys.readouterr().err
    assert main(["import", "adapter", ours, str(tmp_path / "x"), "--base", str(base)]) == 2
    message = capsys.readouterr().err
    assert "contains no adapter_config.json" in message
    assert message.count("\n") == 1
    assert main(["export", "adapter", str(base), str(tmp_path / "x")]) == 2
    assert "has no adapter; export the model with `t5x-lite export hf`" in capsys.readouterr().err
    assert main(["export", "adapter", ours, str(tmp_path / "x"), "--name", "adaptor"]) == 2
    assert "has no adapter 'adaptor'; did you mean" in capsys.readouterr().err
    again = ["import", "adapter", str(source), str(tmp_path / "x"), "--base", ours]
    assert main(again) == 2
    assert "already has adapters" in capsys.readouterr().err


def test_a_head_that_no_directory_holds(base, source, tmp_path):
    import_adapter(source, tmp_path / "ours", base=base)
    experiment = json.loads((tmp_path / "ours" / "files" / "config.json").read_text())
    assert experiment["adapters"]["add"] == ["adapter = lora(rank=2, alpha=4.0)"]
    export_adapter(tmp_path / "ours", tmp_path / "back")  # the head is that of the base
    with pytest.raises(InputError, match="exists and is not empty"):
        export_adapter(tmp_path / "ours", tmp_path / "back")


def test_arrays_of_the_base_that_trained_beside_it(base, source, tmp_path):
    import_adapter(source, tmp_path / "ours", base=base)
    path = tmp_path / "ours" / "files" / "config.json"
    experiment = json.loads(path.read_text())
    experiment["adapters"]["train"] = ["adapter", "norms"]
    path.write_text(json.dumps(experiment))
    items.write(tmp_path / "ours")
    with pytest.raises(
        InputError, match=r"ours: model/.* was trained together with the adapter, but"
    ):
        export_adapter(tmp_path / "ours", tmp_path / "back")


def test_a_module_of_the_library_adapters(base, tmp_path):
    bottleneck = {"adapter_down.0.weight": (3, 12), "adapter_down.0.bias": (3,)}
    bottleneck |= {"adapter_up.weight": (12, 3), "adapter_up.bias": (12,)}
    tensors = random(
        {
            f"bert.encoder.layer.{layer}.output.adapters.sst.{leaf}": shape
            for layer in range(2)
            for leaf, shape in bottleneck.items()
        }
    )
    source = library.write(tmp_path / "theirs", "sst", library.BN, tensors)
    import_adapter(source, tmp_path / "ours", base=base, name="sst")
    loaded = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None)
    assert loaded.learner.adapters == (seq_bn(name="sst", reduction=4.0),)
    up = np.stack([tensors[f"bert.encoder.layer.{i}.output.adapters.sst.adapter_up.weight"].T
                   for i in range(2)])  # fmt: skip
    found = loaded.params["adapters"]["sst"]["encoder"]["after_mlp"]["up"]["kernel"]
    np.testing.assert_array_equal(found, up)
    assert (tmp_path / "ours" / "files" / "adapters" / "adapter_config.json").is_file()
    with pytest.raises(InputError, match=r"PEFT has no Bottleneck \(adapter 'sst'\)"):
        export_adapter(tmp_path / "ours", tmp_path / "back")
