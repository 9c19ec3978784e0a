"""BGE-M3's scores, losses and gradients beside plain torch: vectors of the vocabulary, all pairs.

The reference is written from the paper's formulas, as FlagEmbedding's m3/modeling.py has them but
for padding, which takes no part in the maximum.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.checkpoints.reading import lazy_params
from t5x_lite.commands.weights import export_hf
from t5x_lite.layouts import Groups
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.vector_heads import Lexical, MultiVector
from t5x_lite.nn.slots import bind, shapes
from t5x_lite.objectives.m3 import m3, m3_v1
from tests.encoder_checkpoint import write_ranker
from tests.objectives.encoder_rows import groups

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch")

VOCAB, SIZE, SPECIALS = 40, 8, (0, 1, 2, 3)
CLS, SEP = 1, 2
# Repeated tokens, special tokens alone, one token, the unknown one.
BATCH = groups(
    [[CLS, 10, 11, 10, SEP], [CLS, SEP], [CLS, 12, 3, 12, SEP], [CLS, 13, SEP]],
    [
        [[CLS, 20, 10, 20, 11, SEP], [CLS, 10, 10, 10, SEP]],
        [[CLS, SEP], [CLS, 3, SEP]],
        [[CLS, 12, 24, 12, SEP], [CLS, 13, SEP]],
        [[CLS, 13, 13, 25, SEP], [CLS, 26, 27, 28, 29, SEP]],
    ],
)
MODEL = BertConfig(
    vocab_size=VOCAB, d_model=SIZE, d_ff=8, num_heads=2, num_layers=1, max_positions=8
)


def parameters(*, negative):
    """States of all texts and the heads' arrays; `negative` makes all similarities below 0."""
    rng = np.random.default_rng(0)
    found = {
        "queries": rng.normal(size=(4, 5, SIZE)),
        "passages": rng.normal(size=(8, 6, SIZE)),
        "w_lex": rng.normal(size=(SIZE, 1)),
        "b_lex": np.full(1, 2.0),  # so that common terms have weights
        "w_mul": rng.normal(size=(SIZE, 5)) / 3,
        "b_mul": rng.normal(size=5),
    }
    if negative:
        found["w_mul"], found["b_mul"] = np.eye(SIZE, 5), np.zeros(5)
        found["queries"], found["passages"] = abs(found["queries"]), -abs(found["passages"])
    return {name: x.astype(np.float32) for name, x in found.items()}


def ours(objective, arrays, *, step):
    heads = {}
    for config, kernel, bias in (
        (Lexical(specials=SPECIALS), "w_lex", "b_lex"),
        (MultiVector(size=5), "w_mul", "b_mul"),
    ):
        graphdef, _, _ = shapes(lambda rngs, config=config: config.build(MODEL, rngs=rngs))
        heads[config.name] = bind(
            graphdef, {"out": {"kernel": arrays[kernel], "bias": arrays[bias]}}
        )
    rows = {}
    for name, texts in (("query", "queries"), ("passage", "passages")):
        tokens, there = (
            BATCH[f"{name}_{x}"].reshape(arrays[texts].shape[:2]) for x in ("tokens", "segment_ids")
        )
        first = arrays[texts][:, 0]
        rows[texts] = first / jnp.linalg.norm(first, axis=1, keepdims=True)
        rows[f"{name}_terms"] = heads["lexical"].terms(arrays[texts], tokens, there)
        rows[f"{name}_vectors"] = heads["multi_vector"](arrays[texts], there)
    passages = {"passages", "passage_terms", "passage_vectors"}
    rows = {n: x.reshape(4, 2, *x.shape[1:]) if n in passages else x for n, x in rows.items()}
    return objective.joint(rows, BATCH, step=step).value()


def theirs(objective, arrays, *, distils):
    """The loss as the paper has it; one passage of each pair of equal ones would be left out."""
    tokens = [torch.tensor(np.array(BATCH[f"{n}_tokens"])).reshape(m, -1) for n, m in
              (("query", 4), ("passage", 8))]  # fmt: skip
    there = [torch.tensor(np.array(BATCH[f"{n}_segment_ids"])).reshape(m, -1) > 0 for n, m in
             (("query", 4), ("passage", 8))]  # fmt: skip
    states = [arrays["queries"], arrays["passages"]]
    norm = torch.nn.functional.normalize

    def sparse(x, ids):
        weights = torch.relu(x @ arrays["w_lex"] + arrays["b_lex"])[..., 0]
        each = torch.zeros(*ids.shape, VOCAB).scatter(2, ids[..., None].long(), weights[..., None])
        found = each.max(dim=1).values
        return found * torch.tensor([float(i not in SPECIALS) for i in range(VOCAB)])

    dense = norm(states[0][:, 0], dim=1) @ norm(states[1][:, 0], dim=1).T
    lexical = sparse(states[0], tokens[0]) @ sparse(states[1], tokens[1]).T
    asked, shown = (norm(x[:, 1:] @ arrays["w_mul"] + arrays["b_mul"], dim=-1) for x in states)
    pairs = torch.einsum("qid,pjd->qpij", asked, shown)
    pairs = pairs.masked_fill(~there[1][None, :, None, 1:], -torch.inf).max(dim=-1).values
    real = there[0][:, None, 1:].float()
    late = (pairs * real).sum(-1) / real.sum(-1)
    scores, tau = [dense, lexical, late], objective.temperature
    every = sum(w * s for w, s in zip(objective.weights, scores, strict=True))
    targets = torch.arange(4) * 2

    def info_nce(score):
        return torch.nn.functional.cross_entropy(score / tau, targets)

    teacher = torch.softmax(every.detach() / tau, dim=1)
    plain = [info_nce(s) for s in scores]
    soft = [-(teacher * torch.log_softmax(s / tau, dim=1)).sum(1).mean() for s in scores]
    first = sum(w * x for w, x in zip(objective.loss_weights, plain, strict=True))
    second = sum(w * x for w, x in zip(objective.loss_weights, soft, strict=True)) / 3
    if objective.combination == "sum":
        return first + second if distils else first
    first = (first + info_nce(every)) / 4
    return (first + second) / 2 if distils else first


@pytest.mark.parametrize(
    ("preset", "negative", "step"), [(m3, False, 5), (m3_v1, True, 5), (m3, True, 4)]
)
def test_loss_and_gradients(preset, negative, step):
    objective = preset(temperature=0.1, distill_from=5, specials=SPECIALS)
    arrays = parameters(negative=negative)
    value, slope = jax.jit(jax.value_and_grad(lambda x: ours(objective, x, step=jnp.int32(step))))(
        {name: jnp.asarray(x) for name, x in arrays.items()}
    )
    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in arrays.items()}
    expected = theirs(objective, tensors, distils=step >= 5)
    expected.backward()
    assert float(value) == pytest.approx(float(expected.detach()), rel=1e-5)
    for name, tensor in tensors.items():
        wanted = tensor.grad.numpy()
        assert np.linalg.norm(wanted) > 1e-3, name
        error = np.linalg.norm(np.asarray(slope[name]) - wanted) / np.linalg.norm(wanted)
        assert error < 1e-4, name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_loads_the_exported_heads(tmp_path, dtype):
    """weights_only=True, as FlagEmbedding's own loading, runs nothing that a file names."""
    objective = m3(specials=SPECIALS, vector_size=4)
    options = {"layout": Groups(), "targets_length": 12}
    checkpoint = write_ranker(tmp_path, objective=objective, **options)
    export_hf(checkpoint, tmp_path / "theirs", dtype=dtype)
    expected = lazy_params(checkpoint)
    for file, head in (("colbert_linear", "multi_vector"), ("sparse_linear", "lexical")):
        found = torch.load(tmp_path / "theirs" / f"{file}.pt", weights_only=True)
        assert list(found) == ["weight", "bias"]
        assert {x.dtype for x in found.values()} == {getattr(torch, dtype)}
        for name, leaf in (("weight", "kernel"), ("bias", "bias")):
            wanted = torch.tensor(expected[f"heads/{head}/out/{leaf}"].read().T)
            assert torch.equal(found[name], wanted.to(found[name].dtype))
        layer = torch.nn.Linear(*found["weight"].shape[::-1])
        layer.load_state_dict(found)
