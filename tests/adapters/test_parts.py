import pytest

from t5x_lite.adapters.bottleneck import Bottleneck
from t5x_lite.adapters.config import HEAD
from t5x_lite.adapters.lora import Lora
from t5x_lite.adapters.sparse import BitFit, Norms, Params
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import count_parameters, flatten, partition
from t5x_lite.models.published import bert_base
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.task_heads import Classify
from tests.adapters.hosts import learner


def trained(made):
    return partition(made.shapes, lambda path, _: made.trains(path))[0]


def test_the_biases_of_bert_base():
    made = Learner.of(bert_base(), Classify(num_classes=2), adapters=(BitFit(),))
    found = trained(made)
    assert count_parameters(found["model"]) == 102_144
    assert all(path.endswith("/bias") for path in flatten(found["model"]))
    assert "heads" in found


def test_the_biases_of_t5():
    made, _ = learner("t5", BitFit())
    found = trained(made)
    assert all(path.endswith("norm/scale") for path in flatten(found["model"]))
    assert len(flatten(found["model"])) == 2 + 1 + 3 + 1
    sites = [p.removeprefix("bitfit/decoder/") for p in flatten(made.shapes["adapters"])]
    assert {"cross_attention/out/bias", "mlp/gate/bias", "mlp/in/bias"} <= set(sites)


def test_norms_and_chosen_paths():
    made, _ = learner("bert", Norms())
    assert set(flatten(trained(made)["model"])) == {
        f"{norm}/{part}"
        for norm in ("embedding/norm", "layers/attention_norm", "layers/mlp_norm")
        for part in ("scale", "bias")
    }
    made, _ = learner("bert", Params(train=("model/layers/mlp", ".*/query/kernel")))
    assert "layers/attention/query/kernel" in flatten(trained(made)["model"])
    assert "layers/attention/query/bias" not in flatten(trained(made)["model"])
    assert "layers/mlp/wi/bias" in flatten(trained(made)["model"])
    with pytest.raises(InputError, match="'params': 'modle' matches no parameter of the model"):
        learner("bert", Params(train=("modle",)))
    made, _ = learner("bert", Params(train=(".*",)), train=("adapters/params",))
    assert trained(made).keys() == {"model"}
    with pytest.raises(InputError, match=r"'params' selects no parameters; set train='model/"):
        learner("bert", Params())
    with pytest.raises(InputError, match=r"train: '\(' is not a regular expression"):
        Params(train=("(",))


@pytest.mark.parametrize("host", ["bert", "deberta"])
def test_biases_by_the_module_s_name(host):
    """The module has no arrays of its own there; its name means what it trains."""
    made, _ = learner(host, BitFit(), train=("adapters/bitfit", HEAD))
    found = flatten(trained(made))
    assert {path.split("/")[0] for path in found} == {"model", "heads"}
    assert all(path.endswith("/bias") for path in found if path.startswith("model/"))
    with pytest.raises(InputError, match="train: the pattern 'adapters/bit' matches no parameter"):
        learner(host, BitFit(), train=("adapters/bit",))


def test_what_nothing_reads_of_a_frozen_module():
    adapters = (Bottleneck(name="a", leave_out=(0,)), Lora(name="b"))
    for train, unused in ((("adapters/b",), False), (("adapters/a/encoder",), True), ((), True)):
        made, _ = learner("bert", *adapters, train=train)
        assert made.num_unused() > 0
        assert made.num_unused(trained=True) == made.num_unused() * unused
