"""Condenser and coCondenser against transformers' BERT and a few lines of PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scripts import encoder_goldens as goldens
from t5x_lite.commands.weights import export_hf, import_hf
from t5x_lite.core import trees
from t5x_lite.inference.loading import Loaded
from t5x_lite.interop.encoders import BERT, learner_shapes
from t5x_lite.interop.retrievers import SAFETENSORS, read_condenser
from t5x_lite.interop.rules import pieces
from t5x_lite.interop.tensor_files import read_safetensors
from t5x_lite.objectives import masked_lm
from t5x_lite.objectives.retromae import CoCondenser, Condenser

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
modeling = pytest.importorskip("transformers.models.bert.modeling_bert")

MASK, LENGTH, HEAD_LAYERS = 4, 10, 2
CONFIG = {
    **goldens.VARIANTS["bert"],
    "num_hidden_layers": 3,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


class Reference(torch.nn.Module):
    """The formulas of the paper around transformers' modules."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lm = goldens.random_model(CONFIG, seed=5)
        self.lm.config._attn_implementation = "eager"
        layers = [modeling.BertLayer(self.lm.config) for _ in range(HEAD_LAYERS)]
        self.c_head = torch.nn.ModuleList(layers)
        with torch.no_grad():
            for name, parameter in self.c_head.named_parameters():
                start = 1.0 if "LayerNorm.weight" in name else 0.0
                parameter.copy_(start + 0.2 * torch.randn_like(parameter))

    def losses(self, inputs, real, targets, chosen, *, skip):
        """The head's loss, the late one, and the last [CLS] states."""
        out = self.lm(inputs, attention_mask=real, output_hidden_states=True)
        late = out.hidden_states[-1]
        hidden = torch.cat([late[:, :1], out.hidden_states[skip][:, 1:]], dim=1)
        mask = torch.where(real[:, None, None] > 0, 0.0, torch.finfo(torch.float32).min)
        for layer in self.c_head:
            out_of = layer(hidden, mask)
            hidden = out_of[0] if isinstance(out_of, tuple) else out_of
        found = []
        for states in (hidden, late):
            logits = self.lm.cls(states)[chosen]
            found.append(torch.nn.functional.cross_entropy(logits, targets[chosen]))
        return (*found, late[:, 0])


def co_loss(summaries):
    scores = summaries @ summaries.T
    scores = scores.masked_fill(torch.eye(len(scores), dtype=bool), -torch.inf)
    return torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)) ^ 1)


def rows(number):
    rng = np.random.default_rng(3)
    sizes = rng.integers(5, LENGTH + 1, number)
    place = np.arange(LENGTH)[None]
    real = (place < sizes[:, None]).astype(np.int32)
    tokens = rng.integers(5, CONFIG["vocab_size"], (number, LENGTH)) * real
    tokens[:, 0] = 2
    tokens[np.arange(number), sizes - 1] = 3
    inner = real * (place > 0) * (place < sizes[:, None] - 1)
    words = np.cumsum(inner, axis=1) * inner
    named = {"input_tokens": tokens, "segment_ids": real, "word_ids": words}
    found = {f"encoder_{name}": jnp.asarray(value, jnp.int32) for name, value in named.items()}
    return {**found, "encoder_positions": jnp.asarray(place * real, jnp.int32)}


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    directory = tmp_path_factory.mktemp("condenser")
    reference = Reference().eval()
    source = directory / "source"
    reference.lm.save_pretrained(source)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]
    (source / "vocab.txt").write_text("\n".join(pieces) + "\n")
    state = {f"c_head.{name}": value for name, value in reference.c_head.state_dict().items()}
    torch.save({**state, "co_target": torch.arange(6)}, source / "model.pt")
    import_hf(source, directory / "ours", skip_from=1)
    return reference, directory


def their_gradients(reference, loaded):
    """The gradients of PyTorch by our paths."""
    model = loaded.learner.model
    head = loaded.learner.heads["mlm"]
    shapes = learner_shapes(model, head)
    rules = pieces(BERT.table(model, head, "bert"), shapes)
    of_lm = {name: value.grad for name, value in reference.lm.named_parameters()}
    found = {}
    of_head = {f"c_head.{n}": value.grad for n, value in reference.c_head.named_parameters()}
    for piece in rules:
        name = next(n for n in (piece.name, *piece.aliases) if n in of_lm)
        found.setdefault(piece.path, []).append(piece.to_ours(of_lm[name].numpy()))
    return found, of_head


@pytest.mark.parametrize(
    ("objective", "skip"),
    [(Condenser, 0), (Condenser, 3), (CoCondenser, 1)],
)
def test_losses_and_gradients_of_all_parameters(imported, objective, skip):
    reference, directory = imported
    config = objective(mask_id=MASK, skip_from=skip, head_layers=HEAD_LAYERS, ratio=0.4)
    loaded = Loaded.from_checkpoint(str(directory / "ours"), step=None)
    learner = type(loaded.learner).of(loaded.learner.model, config)
    key, batch = jax.random.key(0), rows(6)
    noise, _ = masked_lm.noise_and_dropout(key)
    inputs, slots = config.draw(batch, vocab_size=CONFIG["vocab_size"], pad_id=0, key=noise)
    chosen = np.zeros((6, LENGTH), bool)
    for row, (positions, used) in enumerate(zip(slots.positions, slots.used, strict=True)):
        chosen[row, np.asarray(positions)[np.asarray(used) > 0]] = True
    assert chosen.sum() > 6
    reference.double().zero_grad()  # float64, so only our rounding counts
    head, late, summaries = reference.losses(
        torch.tensor(np.asarray(inputs), dtype=torch.long),
        torch.tensor(np.asarray(batch["encoder_segment_ids"])),
        torch.tensor(np.asarray(batch["encoder_input_tokens"]), dtype=torch.long),
        torch.tensor(chosen),
        skip=skip,
    )
    expected = head + late
    if objective is CoCondenser:
        expected = expected + co_loss(summaries)
        batch = {name: value.reshape(3, 2, LENGTH) for name, value in batch.items()}
    expected.backward()

    def value(params):
        loss = learner.whole_loss(params, batch, key)
        return loss.value(), loss.terms

    params = jax.tree.map(jnp.asarray, loaded.params)
    (found, terms), gradients = jax.jit(jax.value_and_grad(value, has_aux=True))(params)
    np.testing.assert_allclose(found, expected.item(), rtol=1e-5)
    np.testing.assert_allclose(terms["head"].total / terms["head"].weight, head.item(), rtol=1e-5)
    np.testing.assert_allclose(terms["late"].total / terms["late"].weight, late.item(), rtol=1e-5)

    ours = {path: np.asarray(leaf) for path, leaf in trees.flatten(gradients).items()}
    of_lm, of_head = their_gradients(reference, loaded)
    for path, layers in of_lm.items():
        there = np.stack(layers) if len(layers) > 1 else layers[0].reshape(ours[path].shape)
        check_close(ours.pop(path), there, path)
    found_head = read_condenser(
        directory / "source", learner.model, loaded.learner.heads["mlm"], mask_id=4, skip_from=skip
    )
    for piece in found_head.pieces:
        there = piece.to_ours(of_head[piece.name].numpy())
        check_close(ours[piece.path][piece.layer], there, piece.name)
    for path in {piece.path for piece in found_head.pieces}:
        del ours[path]
    assert not ours


def check_close(ours, theirs, name):
    """Relative in L2; a key's bias has no gradient but rounding."""
    distance = np.linalg.norm(ours - theirs)
    assert distance <= 5e-5 * np.linalg.norm(theirs) + 1e-7, (name, distance)


def test_model_pt_goes_in_and_out_bit_for_bit(imported, tmp_path):
    reference, directory = imported
    loaded = Loaded.from_checkpoint(str(directory / "ours"), step=None)
    assert loaded.learner.objective == Condenser(mask_id=4, skip_from=1, head_layers=2)
    export_hf(directory / "ours", tmp_path / "theirs")
    written = read_safetensors(tmp_path / "theirs" / SAFETENSORS)
    state = {f"c_head.{name}": value for name, value in reference.c_head.state_dict().items()}
    assert written.keys() == state.keys()
    for name, value in state.items():
        np.testing.assert_array_equal(written[name], value.numpy(), err_msg=name)
    back = transformers.BertForMaskedLM.from_pretrained(tmp_path / "theirs")
    for name, value in reference.lm.state_dict().items():
        assert torch.equal(back.state_dict()[name], value), name
    import_hf(tmp_path / "theirs", tmp_path / "again", skip_from=1)
    again = Loaded.from_checkpoint(str(tmp_path / "again"), step=None)
    jax.tree.map(np.testing.assert_array_equal, loaded.params, again.params)
