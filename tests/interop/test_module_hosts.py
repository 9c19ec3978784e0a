"""Every site of a module has its name in transformers, and nothing else has."""

import pytest

from t5x_lite.adapters.lora import Lora
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from t5x_lite.interop.encoder_checkpoints import head_modules, hosts_of, refuse_views
from t5x_lite.models.heads import Classifier
from t5x_lite.models.lm import LMConfig
from t5x_lite.objectives.base import NoLoss
from t5x_lite.objectives.learner import Learner
from tests.interop.peft_files import MODELS, SIZES, hosts


@pytest.mark.parametrize("host", MODELS)
def test_sites_of_the_learner_have_names(host):
    """Every array that a module at all sites has, a file has, and nothing else."""
    everywhere = Lora(name="rte", rank=2, sites=(".*",))
    learner = Learner.of(MODELS[host], NoLoss(), adapters=(everywhere,))
    shapes = {p: leaf.shape for p, leaf in flatten(learner.shapes).items() if "adapters/" in p}
    table = hosts(host)
    assert shapes == {
        f"adapters/rte/{stack}/{site}/{leaf}": shape
        for (stack, site), (layers, size, out) in table.kernels.items()
        for leaf, shape in (("a", (layers, size, 2)), ("b", (layers, 2, out)))
    }
    kernels = flatten(learner.shapes)
    for site, path in table.paths.items():
        assert kernels[path].shape == table.kernels[site]


def test_names_of_t5():
    names = list(hosts("t5").places)
    assert "encoder.block.1.layer.0.SelfAttention.q" in names
    assert "decoder.block.2.layer.1.EncDecAttention.v" in names
    place = hosts("t5").places["decoder.block.2.layer.2.DenseReluDense.wi_1"]
    assert (place.stack, place.site, place.layer) == ("decoder", "mlp/in", 2)
    names = list(hosts("deberta").places)
    assert "encoder.layer.0.attention.self.query_proj" in names
    assert not [name for name in names if "pos_" in name]


def test_names_with_and_without_a_prefix():
    table = hosts("bert", head=Classifier(num_classes=2))
    assert next(iter(table.places)) == "bert.encoder.layer.0.attention.self.query"
    assert hosts().find("base.bert.encoder.layer.1.output.dense") == (
        "encoder.layer.1.output.dense",
        "base.bert.",
    )
    assert hosts().find("encoder.layer.2.output.dense") is None
    assert head_modules(table.pieces) == ("pooler", "classifier")
    table = hosts("deberta", head=Classifier(num_classes=2, kind="deberta"))
    assert set(head_modules(table.pieces)) == {"pooler", "classifier"}


def test_models_without_names():
    language_model = LMConfig(**SIZES, d_kv=4, num_layers=2)
    with pytest.raises(InputError, match="only a T5Config or an encoder"):
        hosts_of(language_model, None, where="work")
    with pytest.raises(InputError, match="work shares parameters between layers"):
        refuse_views("work", ["a view"])
