"""Merging against PEFT: its combinations of factors, its SVD, and TIES where both agree."""

import numpy as np
import pytest

from t5x_lite.adapters.delta import Delta
from t5x_lite.adapters.delta_merging import Linear, PeftLinear, Svd, Ties, merge
from t5x_lite.adapters.delta_parts import Dense, LowRank

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
merge_utils = pytest.importorskip("peft.utils.merge_utils")

pytestmark = pytest.mark.oracle

PATH = "model/q/kernel"
WEIGHTS = [0.5, 0.25]


class Net(torch.nn.Module):
    """One layer with a LoRA."""

    def __init__(self):
        super().__init__()
        self.q = torch.nn.Linear(6, 5, bias=False)

    def forward(self, x):
        """The layer."""
        return self.q(x)


@pytest.fixture(scope="module")
def theirs():
    """A model with two random adapters, and ours of the same numbers."""
    torch.manual_seed(0)
    config = peft.LoraConfig(r=3, lora_alpha=6, target_modules=["q"], init_lora_weights=False)
    model = peft.get_peft_model(Net(), config, adapter_name="a")
    model.add_adapter("b", config)
    layer = model.base_model.model.q
    deltas = [
        Delta(
            {
                PATH: LowRank(
                    layer.lora_A[name].weight.detach().numpy().T,
                    layer.lora_B[name].weight.detach().numpy().T,
                    layer.scaling[name],
                )
            }
        )
        for name in "ab"
    ]
    return model, layer, deltas


@pytest.mark.parametrize(
    ("kind", "how", "options"),
    [("linear", PeftLinear(), {}), ("svd", Svd(rank=2), {"svd_rank": 2}), ("cat", Linear(), {})],
)
def test_the_product_of_a_weighted_adapter(theirs, kind, how, options):
    model, layer, deltas = theirs
    model.add_weighted_adapter(["a", "b"], WEIGHTS, kind, combination_type=kind, **options)
    expected = layer.get_delta_weight(kind).detach().numpy().T
    found = merge(deltas, how, weights=WEIGHTS).parts[PATH].dense()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_ties_of_one_array():
    """PEFT trims each array by itself: of one array both are the same."""
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((6, 5)).astype(np.float32) for _ in range(3)]
    tensors = [torch.from_numpy(value) for value in values]
    expected = merge_utils.ties(tensors, torch.ones(3), density=0.2).numpy()
    found = merge([Delta({PATH: Dense(value)}) for value in values], Ties(density=0.2))
    np.testing.assert_allclose(found.parts[PATH].dense(), expected, atol=1e-6)
