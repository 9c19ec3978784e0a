"""Modules against PEFT itself: the same logits there and here, and the same tensors back."""

import dataclasses
import itertools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from scripts import encoder_goldens, goldens
from t5x_lite.adapters.config import Adapters
from t5x_lite.adapters.lora import DirectedBranch, LowRankBranch, PissaBranch
from t5x_lite.checkpoints import items
from t5x_lite.checkpoints.init import Init
from t5x_lite.cli import main
from t5x_lite.commands.deltas import compose
from t5x_lite.commands.weights import export_adapter, export_hf, import_adapter, import_hf
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.decoding.generate import decode
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.inference.loading import Loaded, learner_of
from t5x_lite.interop.tensor_files import read_safetensors
from t5x_lite.nn.dense import Dense
from t5x_lite.nn.slots import stacked, with_dropout
from tests.adapters.delta_directories import write_step

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

CONFIGS = {
    "everywhere": lambda: peft.LoraConfig(
        r=3, use_rslora=True, target_modules=["q", "k", "v", "o", "wi_0", "wi_1", "wo"]
    ),
    "patterns": lambda: peft.LoraConfig(
        r=2,
        target_modules=r".*(encoder.*\.q|\.1\..*\.v)",
        rank_pattern={r"block\.0\..*\.q": 4},
        alpha_pattern={r"block\.1\..*\.v": 5},
    ),
    "dora": lambda: peft.LoraConfig(r=2, use_dora=True, target_modules=["q", "wo"]),
    "ia3": lambda: peft.IA3Config(),
}
ENCODERS = {
    "bert": ("Bert", ["query", "output.dense"]),
    "roberta": ("Roberta", ["key", "intermediate.dense"]),
    "electra_discriminator": ("Electra", ["query", "value"]),
    "deberta_v3": ("DebertaV2", ["query_proj", "value_proj"]),
}
METHODS = {
    "lora": lambda targets: peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=targets),
    "dora": lambda targets: peft.LoraConfig(
        task_type="SEQ_CLS", r=2, target_modules=targets, use_dora=True
    ),
    "ia3": lambda _: peft.IA3Config(
        task_type="SEQ_CLS",
        target_modules=["key", "value", "key_proj", "value_proj", "output.dense"],
        feedforward_modules=["output.dense"],
    ),
    "prefix": lambda _: peft.PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3),
}


def moved(model, *, seed=0):
    """A PEFT model whose own parameters are away from their initial values."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=random)
    return model.eval()


def tensors_of(directory):
    return read_safetensors(directory / "adapter_model.safetensors")


def check_tensors(directory, other, *, exact=True):
    ours, theirs = tensors_of(directory), tensors_of(other)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        if exact:
            np.testing.assert_array_equal(array, theirs[name], err_msg=name)
        else:
            np.testing.assert_allclose(array, theirs[name], rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.fixture(scope="module")
def t5(tmp_path_factory, tiny_vocabulary):
    """A T5 1.1 with d_kv that does not divide d_model: their directory, and ours."""
    directory = tmp_path_factory.mktemp("t5")
    config = {**goldens.VARIANTS["t5_1_1"]}
    goldens.save(goldens.random_model(config, seed=5), config, directory / "base")
    (directory / "base" / "spiece.model").write_bytes(tiny_vocabulary.read_bytes())
    import_hf(directory / "base", directory / "ours")
    return directory


def t5_logits(model, batch):
    return goldens.compute(model, batch)[0]


def our_logits(directory, batch):
    loaded = Loaded.from_checkpoint(str(directory), step=None)
    run = jax.jit(
        lambda p: loaded.learner.bind_model(p)(
            jnp.asarray(batch["encoder_input_tokens"]), jnp.asarray(batch["decoder_input_tokens"])
        )
    )
    return np.asarray(run(loaded.params))


@pytest.mark.parametrize("name", CONFIGS)
def test_t5_in_and_out(t5, tmp_path, name):
    plain = goldens.load(t5 / "base")
    batch = goldens.random_batch(plain.config.vocab_size)
    real = batch["decoder_target_tokens"] > 0
    before = t5_logits(plain, batch)
    model = moved(peft.get_peft_model(plain, CONFIGS[name]()))
    theirs = t5_logits(model, batch)
    assert np.abs(theirs - before)[real].max() > 1e-2
    model.save_pretrained(tmp_path / "theirs")
    import_adapter(tmp_path / "theirs", tmp_path / "ours", base=t5 / "ours")
    found = our_logits(tmp_path / "ours", batch)
    np.testing.assert_allclose(found[real], theirs[real], rtol=1e-5, atol=1e-5)
    export_adapter(tmp_path / "ours", tmp_path / "back")
    check_tensors(tmp_path / "back", tmp_path / "theirs", exact=name != "dora")
    there = peft.PeftModel.from_pretrained(goldens.load(t5 / "base"), tmp_path / "back").eval()
    np.testing.assert_allclose(t5_logits(there, batch)[real], theirs[real], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("submodules", [1, 2])
def test_a_prompt_in_and_out(t5, tmp_path, submodules):
    plain = goldens.load(t5 / "base")
    batch = goldens.random_batch(plain.config.vocab_size)
    real = batch["decoder_target_tokens"] > 0
    before = t5_logits(plain, batch)
    config = peft.PromptTuningConfig(
        task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3, num_transformer_submodules=submodules
    )
    model = moved(peft.get_peft_model(plain, config))
    theirs = t5_logits(model, batch)
    assert np.abs(theirs - before)[real].max() > 1e-2
    model.save_pretrained(tmp_path / "theirs")
    import_adapter(tmp_path / "theirs", tmp_path / "ours", base=t5 / "ours")
    found = our_logits(tmp_path / "ours", batch)
    np.testing.assert_allclose(found[real], theirs[real], rtol=1e-5, atol=1e-5)
    export_adapter(tmp_path / "ours", tmp_path / "back")
    rows = tensors_of(tmp_path / "theirs")["prompt_embeddings"][:3]
    np.testing.assert_array_equal(tensors_of(tmp_path / "back")["prompt_embeddings"], rows)
    there = peft.PeftModel.from_pretrained(goldens.load(t5 / "base"), tmp_path / "back").eval()
    np.testing.assert_allclose(t5_logits(there, batch)[real], theirs[real], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("projection", [False, True])
def test_prefixes_in_and_out(t5, tmp_path, projection):
    """Logits of whole targets there, and tokens of greedy search."""
    plain = goldens.load(t5 / "base")
    batch = goldens.random_batch(plain.config.vocab_size)
    real = batch["decoder_target_tokens"] > 0
    before = t5_logits(plain, batch)
    sizes = plain.config
    config = peft.PrefixTuningConfig(
        task_type="SEQ_2_SEQ_LM",
        num_virtual_tokens=3,
        token_dim=sizes.num_heads * sizes.d_kv,
        prefix_projection=projection,
        encoder_hidden_size=5,
    )
    model = moved(peft.get_peft_model(plain, config))
    theirs = t5_logits(model, batch)
    assert np.abs(theirs - before)[real].max() > 1e-2
    model.save_pretrained(tmp_path / "theirs")
    import_adapter(tmp_path / "theirs", tmp_path / "ours", base=t5 / "ours")
    np.testing.assert_allclose(
        our_logits(tmp_path / "ours", batch)[real], theirs[real], rtol=1e-5, atol=1e-5
    )
    inputs = batch["encoder_input_tokens"][:1]
    with torch.no_grad():
        tokens = model.generate(
            input_ids=torch.from_numpy(inputs).long(), max_new_tokens=6, do_sample=False
        )[0, 1:].numpy()
    loaded = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None)
    search = Decoding(max_decode_length=6, eos_id=plain.config.eos_token_id)

    @jax.jit
    def run(params):
        return decode(loaded.learner.bind_model(params), jnp.asarray(inputs), decoding=search)

    found = run(loaded.params)
    np.testing.assert_array_equal(np.asarray(found[0])[0, 0, : len(tokens)], tokens)
    export_adapter(tmp_path / "ours", tmp_path / "back")
    there = peft.PeftModel.from_pretrained(goldens.load(t5 / "base"), tmp_path / "back").eval()
    np.testing.assert_allclose(t5_logits(there, batch)[real], theirs[real], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", ["lora(r=8)", "lora(r=2, alpha=6, init='pissa')"])
def test_a_module_of_ours_by_the_commands_of_the_guide(t5, tmp_path, method):
    """docs/guides/peft.md: the base by `export hf`, the module by `export adapter`."""
    base = Loaded.from_checkpoint(str(t5 / "ours"), step=None)
    start = Init(checkpoint=str(t5 / "ours"))
    config = dataclasses.replace(
        base.experiment, init=start, adapters=Adapters(add=(f"rte = {method}",))
    )
    theirs = {path: np.asarray(x) for path, x in trees.flatten(base.params).items()}
    rng = np.random.default_rng(0)
    shapes = trees.flatten({"adapters": learner_of(config).shapes["adapters"]})
    theta = {p: (0.3 * rng.normal(size=x.shape)).astype(np.float32) for p, x in shapes.items()}
    write_step(tmp_path / "rte", config, {**theirs, **theta}, base=(t5 / "ours", theirs))
    shutil.rmtree(tmp_path / "rte" / "files" / "vocabulary")
    shutil.copytree(t5 / "ours" / "files" / "vocabulary", tmp_path / "rte" / "files" / "vocabulary")
    items.write(tmp_path / "rte")
    there, module = tmp_path / "t5_for_transformers", tmp_path / "rte_for_peft"
    assert main(["export", "hf", str(t5 / "ours"), str(there)]) == 0
    line = ["export", "adapter", str(tmp_path / "rte"), str(module), "--format", "peft"]
    assert main(line) == 0
    plain = transformers.AutoModelForSeq2SeqLM.from_pretrained(there).eval()
    batch = goldens.random_batch(plain.config.vocab_size)
    real = batch["decoder_target_tokens"] > 0
    before = t5_logits(plain, batch)
    model = peft.PeftModel.from_pretrained(plain, module).eval()
    found, ours = t5_logits(model, batch), our_logits(tmp_path / "rte", batch)
    assert np.abs(found - before)[real].max() > 1e-2
    np.testing.assert_allclose(ours[real], found[real], rtol=1e-5, atol=1e-5)


OFTEN = {("bert", "lora"), ("bert", "dora"), ("bert", "ia3"), ("roberta", "ia3")}
OFTEN |= {("electra_discriminator", "lora"), ("deberta_v3", "lora")}
OFTEN |= {("bert", "prefix"), ("roberta", "prefix")}
CASES = [
    pytest.param(*case, marks=() if case in OFTEN else (pytest.mark.exhaustive, pytest.mark.slow))
    for case in itertools.product(ENCODERS, METHODS)
    if case != ("deberta_v3", "prefix")  # PEFT has none
]


@pytest.mark.parametrize(("variant", "method"), CASES)
def test_encoders_with_their_classifier(tmp_path, variant, method):
    kind, targets = ENCODERS[variant]
    labels = {0: "no", 1: "perhaps", 2: "yes"}
    golden = encoder_goldens.DEBERTA if variant == "deberta_v3" else encoder_goldens.VARIANTS
    config = {
        **golden[variant],
        "architectures": [f"{kind}ForSequenceClassification"],
        "id2label": labels,
        "label2id": {name: i for i, name in labels.items()},
        "pooler_hidden_size": golden[variant]["hidden_size"],
    }
    plain = encoder_goldens.random_model(config, seed=5)
    plain.save_pretrained(tmp_path / "base")
    special = {0: "[PAD] [UNK] [CLS] [SEP] [MASK]", 1: "[CLS] [PAD] [SEP] [UNK] [MASK]"}
    words = [*special[config["pad_token_id"]].split(), *"abcdefghijklmno"]
    (tmp_path / "base" / "vocab.txt").write_text("\n".join(words) + "\n")
    import_hf(tmp_path / "base", tmp_path / "base_of_ours")
    tokens = np.array([[2, 6, 7, 8, 3], [2, 9, 3, 0, 0]], np.int32)
    if config["pad_token_id"] == 1:
        tokens = np.array([[0, 6, 7, 8, 2], [0, 9, 2, 1, 1]], np.int32)
    mask = tokens != config["pad_token_id"]

    def logits(model):
        with torch.no_grad():
            return model(
                input_ids=torch.from_numpy(tokens).long(),
                attention_mask=torch.from_numpy(mask).long(),
            ).logits.numpy()

    model = moved(peft.get_peft_model(plain.eval(), METHODS[method](targets)))
    theirs = logits(model)
    model.save_pretrained(tmp_path / "theirs")
    import_adapter(tmp_path / "theirs", tmp_path / "ours", base=tmp_path / "base_of_ours")
    loaded = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None)

    @jax.jit
    def ours(params):
        bound = loaded.learner.bind(params)
        states = bound.model(jnp.asarray(tokens), segment_ids=jnp.asarray(mask, jnp.int32))
        return bound.heads.classifier(states)

    np.testing.assert_allclose(np.asarray(ours(loaded.params)), theirs, rtol=1e-5, atol=1e-5)
    export_adapter(tmp_path / "ours", tmp_path / "back")
    check_tensors(tmp_path / "back", tmp_path / "theirs", exact=method != "dora")
    export_hf(tmp_path / "base_of_ours", tmp_path / "base_back")
    automatic = transformers.AutoModelForSequenceClassification
    fresh = automatic.from_pretrained(tmp_path / "base_back")
    there = peft.PeftModel.from_pretrained(fresh, tmp_path / "back").eval()
    np.testing.assert_allclose(logits(there), theirs, rtol=1e-5, atol=1e-5)


SAVED = {
    "output": ["lm_head"],
    "tables": ["embed_tokens", "lm_head"],
    "embedding": ["embed_tokens"],
    "shared": ["shared"],
    "norms": ["final_layer_norm"],
}


@pytest.mark.parametrize(
    ("tied", "name"),
    [
        (True, "output"),
        (True, "embedding"),
        (False, "tables"),
        (False, "shared"),
        pytest.param(True, "tables", marks=pytest.mark.exhaustive),
        pytest.param(True, "shared", marks=pytest.mark.exhaustive),
        pytest.param(False, "output", marks=pytest.mark.exhaustive),
        pytest.param(False, "embedding", marks=pytest.mark.exhaustive),
        (True, "norms"),
    ],
)
def test_arrays_of_a_t5_that_trained_in_modules_to_save(tmp_path, tiny_vocabulary, tied, name):
    config = {**goldens.VARIANTS["t5" if tied else "t5_1_1"]}
    goldens.save(goldens.random_model(config, seed=5), config, tmp_path / "base")
    (tmp_path / "base" / "spiece.model").write_bytes(tiny_vocabulary.read_bytes())
    import_hf(tmp_path / "base", tmp_path / "plain")
    plain = goldens.load(tmp_path / "base")
    batch = goldens.random_batch(plain.config.vocab_size)
    real = batch["decoder_target_tokens"] > 0
    lora = peft.LoraConfig(
        task_type="SEQ_2_SEQ_LM", r=2, target_modules=["q"], modules_to_save=SAVED[name]
    )
    model = moved(peft.get_peft_model(plain, lora))
    parts = dict(model.named_parameters())
    tables = [p for n, p in parts.items() if "embed_tokens.modules_to_save" in n]
    for table in tables[1:]:  # a T5 here has one
        table.data.copy_(tables[0].data)
    theirs = t5_logits(model, batch)
    model.save_pretrained(tmp_path / "theirs")
    import_adapter(tmp_path / "theirs", tmp_path / "ours", base=tmp_path / "plain")
    found = our_logits(tmp_path / "ours", batch)
    np.testing.assert_allclose(found[real], theirs[real], rtol=1e-5, atol=1e-5)
    if name == "norms":
        with pytest.raises(
            InputError, match="final_norm/scale was trained together with the adapter"
        ):
            export_adapter(tmp_path / "ours", tmp_path / "back")
        return
    export_adapter(tmp_path / "ours", tmp_path / "back")
    there = peft.PeftModel.from_pretrained(goldens.load(tmp_path / "base"), tmp_path / "back")
    back = t5_logits(there.eval(), batch)
    np.testing.assert_allclose(back[real], theirs[real], rtol=1e-5, atol=1e-5)


def test_embeddings_of_encoder_and_decoder_that_differ(t5, tmp_path):
    lora = peft.LoraConfig(r=2, target_modules=["q"], modules_to_save=["embed_tokens"])
    moved(peft.get_peft_model(goldens.load(t5 / "base"), lora)).save_pretrained(tmp_path / "theirs")
    with pytest.raises(InputError, match=r"embeddings of encoder and decoder .* must be equal"):
        import_adapter(tmp_path / "theirs", tmp_path / "ours", base=t5 / "ours")
    assert not (tmp_path / "ours").exists()


def test_an_embedding_with_added_tokens(tmp_path):
    """A classifier on a BERT whose vocabulary has grown, with its tokenizer beside it."""
    config = {
        **encoder_goldens.VARIANTS["bert"],
        "architectures": ["BertForSequenceClassification"],
    }
    base = encoder_goldens.random_model(config, seed=5)
    base.save_pretrained(tmp_path / "base")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]
    (tmp_path / "base" / "vocab.txt").write_text("\n".join(words) + "\n")
    import_hf(tmp_path / "base", tmp_path / "plain")
    base.resize_token_embeddings(config["vocab_size"] + 2, mean_resizing=False)
    lora = peft.LoraConfig(
        task_type="SEQ_CLS",
        r=2,
        target_modules=["query"],
        modules_to_save=["classifier", "word_embeddings"],
    )
    model = moved(peft.get_peft_model(base, lora))
    model.save_pretrained(tmp_path / "theirs")
    with pytest.raises(
        InputError, match=r"embedding has 42 rows, but the base has 40 and the tokenizer is missing"
    ):
        import_adapter(tmp_path / "theirs", tmp_path / "ours", base=tmp_path / "plain")
    (tmp_path / "theirs" / "vocab.txt").write_text("\n".join([*words, "x", "y"]) + "\n")
    import_adapter(tmp_path / "theirs", tmp_path / "ours", base=tmp_path / "plain")
    loaded = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None)
    assert loaded.vocabulary.encode("x a y") == [20, 5, 21]
    ids = np.array([[2, 20, 5, 21, 3], [2, 6, 7, 20, 3]])
    with torch.no_grad():
        expected = model(input_ids=torch.from_numpy(ids)).logits.numpy()

    def run(params):
        bound = loaded.learner.bind(params)
        return bound.heads["classifier"](bound.model(jnp.asarray(ids, jnp.int32)))

    np.testing.assert_allclose(jax.jit(run)(loaded.params), expected, rtol=1e-5, atol=1e-5)
    export_adapter(tmp_path / "ours", tmp_path / "back")
    check_tensors(tmp_path / "back", tmp_path / "theirs")


def summed(model, weights):
    """The model with what its adapters add to it, weighted."""
    with torch.no_grad():
        for part in model.modules():
            if hasattr(part, "lora_A"):
                for name, weight in weights.items():
                    if name in part.lora_A:
                        part.base_layer.weight += weight * part.get_delta_weight(name)
    return model.unload().eval()


@pytest.mark.parametrize("rank", [None, 4])
def test_a_composition_of_loras_is_one_lora(t5, tmp_path, rank, capsys):
    """Ranks, scales and sites differ; the sum of the ranks is exact, a lower one is the nearest."""
    configs = {
        "a": peft.LoraConfig(r=2, lora_alpha=6, use_rslora=True, target_modules=["q", "wo"]),
        "b": peft.LoraConfig(r=3, lora_alpha=4, target_modules=["q", "v"]),
    }
    weights = {"a": 0.5, "b": -2.0}
    model = peft.get_peft_model(goldens.load(t5 / "base"), configs["a"], "a")
    model.add_adapter("b", configs["b"])
    for number, name in enumerate(configs):
        model.set_adapter(name)
        moved(model, seed=number)
    model.save_pretrained(tmp_path)
    for name in configs:
        import_adapter(tmp_path / name, tmp_path / f"our_{name}", base=t5 / "ours", name=name)
    compose(
        "0.5 * a - 2.0 * b",
        str(tmp_path / "delta"),
        delta=[f"{name}={tmp_path / f'our_{name}'}" for name in configs],
    )
    out = tmp_path / "out"
    command = ["export", "adapter", str(tmp_path / "delta"), str(out)]
    assert main([*command, *(["--rank", str(rank)] if rank else [])]) == 0
    line = f"exported {tmp_path / 'delta'} as one LoRA of rank {rank or 5}"
    assert line in capsys.readouterr().err
    said = json.loads((out / "adapter_config.json").read_text())
    assert (said["r"], said["lora_alpha"]) == (rank or 5, rank or 5)
    assert said["base_model_name_or_path"] == str(t5 / "base")  # where the base was imported from
    batch = goldens.random_batch(model.config.vocab_size)
    real = batch["decoder_target_tokens"] > 0
    expected = t5_logits(summed(model, weights), batch)[real]
    there = peft.AutoPeftModelForSeq2SeqLM.from_pretrained(out).eval()
    found = t5_logits(there, batch)[real]
    if rank is None:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    else:
        assert 1e-5 < np.abs(found - expected).max() < 0.5 * np.abs(expected).max()
    assert 'library_name: "peft"' in (out / "README.md").read_text()


class Fixed(torch.nn.Module):
    """PEFT's dropout layer with a given mask."""

    def __init__(self, mask):
        super().__init__()
        self.mask = torch.from_numpy(np.array(mask))

    def forward(self, x):
        return x * self.mask


@pytest.mark.parametrize("dora", [False, True])
def test_training_with_dropout_of_the_input(dora):
    """Output, and gradient of A, of one layer in training with the same mask."""
    config = peft.LoraConfig(r=2, target_modules=["0"], lora_dropout=0.5, use_dora=dora)
    theirs = moved(peft.get_peft_model(torch.nn.Sequential(torch.nn.Linear(6, 4)), config)).train()
    layer = theirs.base_model.model[0]
    kernel, bias = (x.detach().numpy() for x in (layer.weight.T, layer.bias))
    dense = Dense(6, 4, axes=("embed", "mlp"), bias=True, rngs=nnx.Rngs(0))
    dense.kernel[...], dense.bias[...] = kernel, bias
    branch = (DirectedBranch if dora else LowRankBranch)(
        dense, rank=2, scale=4.0, rate=0.5, rngs=nnx.Rngs(0)
    )
    branch.a[...] = layer.lora_A["default"].weight.detach().numpy().T
    branch.b[...] = layer.lora_B["default"].weight.detach().numpy().T
    if dora:
        lengths = layer.lora_magnitude_vector["default"].weight.detach().numpy()
        branch.magnitude[...] = lengths - np.linalg.norm(kernel, axis=0)
    dense.slot = with_dropout(branch, jax.random.key(0), "attention/query")
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    layer.lora_dropout["default"] = Fixed(dense.slot.dropped(jnp.ones_like(x)))
    expected = theirs(torch.from_numpy(x))
    rows = jnp.asarray(x)
    np.testing.assert_allclose(dense(rows), expected.detach().numpy(), rtol=1e-5, atol=1e-5)
    expected.square().sum().backward()
    grads = nnx.grad(lambda layer: jnp.sum(jnp.square(layer(rows))))(dense)
    by_theirs = layer.lora_A["default"].weight.grad.numpy().T
    np.testing.assert_allclose(grads.slot.a[...], by_theirs, rtol=1e-4, atol=1e-5)


def test_the_start_of_pissa():
    """A and B up to the signs of singular vectors, and what is left in the base."""
    linear = torch.nn.Linear(6, 4)
    kernel = jnp.asarray(linear.weight.detach().numpy().T.copy())[None]
    config = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["0"], init_lora_weights="pissa")
    layer = peft.get_peft_model(torch.nn.Sequential(linear), config).base_model.model[0]
    dense = stacked(lambda rngs: Dense(6, 4, axes=("embed", "mlp"), rngs=rngs), nnx.Rngs(0), num=1)
    branch = stacked(
        lambda rngs: PissaBranch(dense, rank=2, scale=3.0, rngs=rngs), nnx.Rngs(0), num=1
    )
    branch.set_layers((2,), (3.0,))
    branch.start(kernel)
    for ours, theirs in ((branch.a, layer.lora_A), (branch.b, layer.lora_B)):
        expected = theirs["default"].weight.detach().numpy().T
        np.testing.assert_allclose(np.abs(ours[...][0]), np.abs(expected), rtol=1e-4, atol=1e-5)
    rest = kernel[0] - 3.0 * branch.start_a[...][0] @ branch.start_b[...][0]
    np.testing.assert_allclose(rest, layer.weight.detach().numpy().T, rtol=1e-4, atol=1e-5)


def test_pissa_that_peft_converted(t5, tmp_path):
    """PEFT's conversion to a LoRA of twice the rank fits the original base."""
    plain = goldens.load(t5 / "base")
    batch = goldens.random_batch(plain.config.vocab_size)
    real = batch["decoder_target_tokens"] > 0
    before = t5_logits(plain, batch)
    config = peft.LoraConfig(
        r=2, target_modules=["q", "v"], init_lora_weights="pissa", rank_pattern={"v": 3}
    )
    model = peft.get_peft_model(plain, config)
    model.peft_config["default"].init_lora_weights = True
    model.save_pretrained(tmp_path / "start")
    model.peft_config["default"].init_lora_weights = "pissa"
    theirs = t5_logits(moved(model), batch)
    assert np.abs(theirs - before)[real].max() > 1e-2
    model.save_pretrained(tmp_path / "pissa")
    with pytest.raises(InputError, match="init_lora_weights 'pissa' changes the base, so"):
        import_adapter(tmp_path / "pissa", tmp_path / "refused", base=t5 / "ours")
    model.save_pretrained(
        tmp_path / "plain", path_initial_model_for_weight_conversion=str(tmp_path / "start")
    )
    import_adapter(tmp_path / "plain", tmp_path / "ours", base=t5 / "ours")
    np.testing.assert_allclose(
        our_logits(tmp_path / "ours", batch)[real], theirs[real], rtol=1e-4, atol=1e-4
    )
