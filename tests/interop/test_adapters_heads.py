"""Heads of the library `adapters`; test_adapters_setups.py runs those that it saved."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.lora import Lora
from t5x_lite.checkpoints.items import lazy_params
from t5x_lite.commands.weights import import_adapter, import_hf
from t5x_lite.core.errors import InputError
from t5x_lite.inference.loading import Loaded
from t5x_lite.interop.adapters_heads import LibraryHead, read_head, write_head
from t5x_lite.interop.peft import Module
from t5x_lite.models.heads import Choice, Classifier, Mlm, Span, Token
from t5x_lite.objectives.learner import heads_of
from tests.adapters.test_goldens import GOLDEN
from tests.interop.test_adapters_library import write_tensors

MODULE = Module(adapter=Lora(name="m"), arrays={})
TWO = {"head_type": "classification", "layers": 2, "num_labels": 3, "activation_function": "tanh"}
SHAPES = {"1.weight": (4, 4), "1.bias": (4,), "4.weight": (3, 4), "4.bias": (3,)}


def saved(directory, config, shapes=SHAPES):
    """A head of that config, with numbers in turn."""
    directory.mkdir()
    (directory / "head_config.json").write_text(json.dumps({"config": config, "name": "m"}))
    arrays = {
        f"heads.m.{name}": np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        for name, shape in shapes.items()
    }
    write_tensors(directory / "model_head.safetensors", arrays)
    return directory


def library_head(directory):
    found = read_head(directory)
    assert isinstance(found, LibraryHead)
    return found


def test_a_classifier_of_two_layers(tmp_path):
    labels = {"no": 0, "yes": 2, "perhaps": 1}
    found = library_head(saved(tmp_path / "in", {**TWO, "label2id": labels}))
    made = found.beside(MODULE)
    assert made.head == Classifier(num_classes=3, kind="roberta", labels=("no", "perhaps", "yes"))
    np.testing.assert_array_equal(
        made.arrays["heads/classifier/out/kernel"], np.arange(12.0).reshape(3, 4).T
    )
    assert set(made.arrays) == {
        f"heads/classifier/{layer}/{leaf}"
        for layer in ("dense", "out")
        for leaf in ("kernel", "bias")
    }
    assert read_head(tmp_path) is None


@pytest.mark.parametrize(
    "changes",
    [{"use_pooler": True}, {"layers": 1}, {"activation_function": "relu"}, {"bias": False}],
)
def test_a_head_like_none_of_ours_is_left_out(tmp_path, changes, caplog):
    found = library_head(saved(tmp_path / "in", {**TWO, **changes}))
    assert found.beside(MODULE) == MODULE
    assert "skipping the head, which t5x_lite does not support" in caplog.text


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_labels": "x"}, "head_config.json: num_labels must be a whole number, got 'x'"),
        ({"num_labels": None}, "head_config.json: the field num_labels is missing"),
        ({"label2id": ["no", "yes"]}, "label2id must be an object of whole numbers"),
        ({"label2id": {"no": "0", "yes": 1}}, "label2id must be an object of whole numbers"),
    ],
)
def test_a_damaged_config(tmp_path, changes, match):
    with pytest.raises(InputError, match=match):
        library_head(saved(tmp_path / "in", {**TWO, **changes})).beside(MODULE)


def test_tensors_that_are_not_those_of_the_config(tmp_path):
    few = library_head(saved(tmp_path / "few", TWO, {"1.weight": (4, 4)}))
    with pytest.raises(
        InputError, match=r"a Classifier head must have exactly the tensors heads.m.1.bias"
    ):
        few.beside(MODULE)
    more = library_head(saved(tmp_path / "more", {**TWO, "num_labels": 5}))
    with pytest.raises(InputError, match=r"heads.m has 3 outputs, but its config has 5"):
        more.beside(MODULE)
    (tmp_path / "more" / "head_config.json").write_text(json.dumps({"name": "m"}))
    with pytest.raises(InputError, match=r"must contain a head's name \(a string\) and config"):
        read_head(tmp_path / "more")


@pytest.mark.parametrize(
    ("head", "again"),
    [
        (Classifier(num_classes=2, labels=("a", "b")), Classifier(num_classes=2, kind="roberta",
                                                                   labels=("a", "b"))),
        (Classifier(num_classes=1, kind="deberta"), Classifier(num_classes=1, kind="electra")),
        (Classifier(num_classes=3, kind="roberta", problem_type="multi_label_classification"),
         Classifier(num_classes=3, kind="roberta", problem_type="multi_label_classification")),
        (Choice(kind="electra"), Choice(kind="electra")),
        (Token(num_classes=5), Token(num_classes=5)),
        (Span(), Span()),
    ],
)  # fmt: skip
def test_what_is_written_is_read(head, again, tmp_path):
    """In training alone do the kinds of one activation differ."""
    size = {"Choice": 1, "Span": 2}.get(type(head).__name__) or head.num_classes
    own = f"heads/{head.name}"
    arrays = {f"{own}/out/kernel": np.ones((4, size), np.float32)}
    arrays[f"{own}/out/bias"] = np.arange(size, dtype=np.float32)
    if isinstance(head, Classifier | Choice):
        arrays |= {f"{own}/dense/kernel": np.eye(4, dtype=np.float32)}
        arrays |= {f"{own}/dense/bias": np.ones(4, np.float32)}
    assert write_head(tmp_path, head, arrays, name="m", said={}, where="work")
    found = library_head(tmp_path)
    made = found.beside(MODULE)
    assert made.head == again
    for path, array in arrays.items():
        np.testing.assert_array_equal(made.arrays[path], array)


def test_a_head_that_the_library_does_not_have(tmp_path):
    assert not write_head(tmp_path, Mlm(), {}, name="m", said={}, where="work")
    assert not list(tmp_path.iterdir())


CLASSES = {
    "bert_classes": Classifier(num_classes=3, labels=("no", "perhaps", "yes")),
    "bert_span": Span(),
    "bert_mlm": Mlm(),
    "roberta_classes": Classifier(num_classes=3, kind="roberta"),
    "roberta_tokens": Token(num_classes=3),
    "deberta_classes": Classifier(num_classes=3, kind="deberta"),
    "electra_classes": Classifier(num_classes=3, kind="electra"),
    "setup": Token(num_classes=3),
    "t5": None,
}
SPECIAL = {0: "[PAD] [UNK] [CLS] [SEP] [MASK]", 1: "[CLS] [PAD] [SEP] [UNK] [MASK]"}


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "class_heads.npz") as file:
        return {name: file[name] for name in file.files}


def theirs_and_base(golden, name, directory, *, without=()):
    """The library's directory, and its model here."""
    hf, theirs = directory / "hf", directory / "theirs"
    hf.mkdir()
    config = json.loads(str(golden[f"{name}/config"]))
    config |= {"architectures": ["BertModel"]} if without else {}
    (hf / "config.json").write_text(json.dumps(config))
    start = f"{name}/base/"
    base = {k.removeprefix(start): x for k, x in golden.items() if k.startswith(start)}
    base = {k: x for k, x in base.items() if not k.endswith("embed_tokens.weight")}
    kept = {k: x for k, x in base.items() if not any(part in k for part in without)}
    write_tensors(hf / "model.safetensors", kept)
    if name == "t5":
        settings = {"tokenizer_class": "ByT5Tokenizer", "extra_ids": 0}
        (hf / "tokenizer_config.json").write_text(json.dumps(settings))
    else:
        pieces = [*SPECIAL[config["pad_token_id"]].split(), *"abcdefghijk"]
        (hf / "vocab.txt").write_text("\n".join(pieces) + "\n")
    import_hf(hf, directory / "base")
    start = f"{name}/file/"
    for key, content in golden.items():
        if key.startswith(start):
            path = theirs / key.removeprefix(start)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.tobytes())
    return theirs, directory / "base"


def result_of(directory, golden, name, head):
    """What the checkpoint gives for the library's inputs."""
    loaded = Loaded.from_checkpoint(str(directory), step=None)
    ids = jnp.asarray(golden[f"{name}/ids"])

    def run(params):
        bound: Any = loaded.learner.bind(params)
        if head is None:
            return bound.model(ids, jnp.asarray(golden[f"{name}/targets"]))
        if head.name == "mlm":
            table = bound.model.embedding.token[...]
            return bound.heads["mlm"](bound.model(ids), table)
        found = bound.heads[head.name](bound.model(ids))
        return jnp.stack(found, -1) if isinstance(found, tuple) else found

    return np.asarray(jax.jit(run)(loaded.params))


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_a_head_of_a_transformers_class_comes_along(golden, name, tmp_path, caplog):
    source, base = theirs_and_base(golden, name, tmp_path)
    import_adapter(source, tmp_path / "ours", base=base)
    assert "left out" not in caplog.text
    head = CLASSES[name]
    found = result_of(tmp_path / "ours", golden, name, head)
    np.testing.assert_allclose(found, golden[f"{name}/out"], rtol=1e-5, atol=1e-5)
    experiment = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None).experiment
    assert head is None or head in heads_of(experiment.objective, experiment.heads).values()


def test_the_base_s_pooler_is_used_although_no_head_of_it_reads_it(golden, tmp_path, caplog):
    name = "bert_classes"
    source, base = theirs_and_base(golden, name, tmp_path, without=("classifier",))
    import_adapter(source, tmp_path / "ours", base=base)
    assert "left out" not in caplog.text
    found = result_of(tmp_path / "ours", golden, name, CLASSES[name])
    np.testing.assert_allclose(found, golden[f"{name}/out"], rtol=1e-5, atol=1e-5)


def test_without_the_base_s_pooler_the_head_is_left_out(golden, tmp_path, caplog):
    name = "bert_classes"
    source, base = theirs_and_base(golden, name, tmp_path, without=("pooler", "classifier"))
    import_adapter(source, tmp_path / "ours", base=base)
    assert "importing the adapter without its head: array heads/" in caplog.text
    assert "array heads/classifier/dense/" in caplog.text
    assert not [path for path in lazy_params(tmp_path / "ours" / "params") if "heads" in path]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_labels": "x"}, "num_labels must be a whole number, got 'x'"),
        ({"label2id": ["a"]}, "label2id must be an object of whole numbers"),
        (
            {"model_class": None},
            r"head's name \(a string\) and config \(an object\), or a model_class",
        ),
        ({"config": {}}, r"head's name \(a string\) and config \(an object\), or a model_class"),
    ],
)
def test_a_damaged_config_of_a_class_head(tmp_path, changes, match):
    said = {"name": None, "config": None, "model_class": "BertForTokenClassification", **changes}
    (tmp_path / "head_config.json").write_text(json.dumps(said))
    write_tensors(
        tmp_path / "model_head.safetensors", {"classifier.bias": np.zeros((2,), np.float32)}
    )
    with pytest.raises(InputError, match=match):
        read_head(tmp_path)
