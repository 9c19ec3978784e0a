"""Classification heads against transformers', with the same weights."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.heads import Classifier

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

MODEL = BertConfig(vocab_size=9, d_model=8, d_ff=8, num_heads=2, num_layers=1)


def bert(config):
    from transformers.models.bert.modeling_bert import BertPooler

    pooler, out = BertPooler(config), torch.nn.Linear(8, 3)
    return pooler.dense, out, lambda hidden: out(pooler(hidden))


def roberta(config):
    from transformers.models.roberta.modeling_roberta import RobertaClassificationHead

    head = RobertaClassificationHead(config)
    return head.dense, head.out_proj, head


def electra(config):
    from transformers.models.electra.modeling_electra import ElectraClassificationHead

    head = ElectraClassificationHead(config)
    return head.dense, head.out_proj, head


def deberta(config):
    from transformers.models.deberta_v2.modeling_deberta_v2 import ContextPooler

    config.pooler_hidden_size, config.pooler_dropout, config.pooler_hidden_act = 8, 0.0, "gelu"
    pooler, out = ContextPooler(config), torch.nn.Linear(8, 3)
    return pooler.dense, out, lambda hidden: out(pooler(hidden))


@pytest.mark.parametrize("kind", [bert, roberta, electra, deberta])
def test_logits_are_those_of_transformers(kind):
    config = transformers.BertConfig(hidden_size=8, num_labels=3, hidden_dropout_prob=0.0)
    torch.manual_seed(0)
    dense, out, theirs = kind(config)
    head = Classifier(num_classes=3, kind=kind.__name__).build(MODEL, rngs=nnx.Rngs(0))
    for ours, layer in ((head.dense, dense), (head.out, out)):
        ours.kernel[...] = layer.weight.detach().numpy().T
        ours.bias[...] = layer.bias.detach().numpy()
    hidden = np.random.default_rng(0).normal(size=(2, 4, 8)).astype(np.float32)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(hidden)).numpy()
    np.testing.assert_allclose(head(jnp.asarray(hidden)), expected, rtol=1e-4, atol=1e-5)
