"""Heads for tasks: what transformers saves, imported, exported and loaded by it again."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scripts import encoder_goldens as goldens
from t5x_lite.commands.weights import export_hf, import_hf
from t5x_lite.data.tasks.labelled import encode
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.inference.loading import Loaded
from t5x_lite.models.heads import Choice, Classifier, Span, Token, by_name, with_labels
from t5x_lite.objectives.task_heads import TagTokens
from tests import tokenizer_files

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SPECIAL = {0: "[PAD] [UNK] [CLS] [SEP] [MASK]", 1: "[CLS] [PAD] [SEP] [UNK] [MASK]"}
NAMES = {0: "no", 1: "perhaps", 2: "yes"}
FAMILIES = {
    "bert": ("Bert", "bert"),
    "roberta": ("Roberta", "roberta"),
    "xlm_roberta": ("XLMRoberta", "roberta"),
    "electra_discriminator": ("Electra", "electra"),
    "deberta_v3": ("DebertaV2", "deberta"),
}
KIN = {"xlm_roberta"}  # RoBERTa's modules under another name
TASKS = {
    "ForSequenceClassification": "classifier",
    "ForMultipleChoice": "choice",
    "ForTokenClassification": "token",
    "ForQuestionAnswering": "span",
}


def config_of(variant, suffix, **changes):
    base = goldens.DEBERTA if variant.startswith("deberta") else goldens.VARIANTS
    labels = {"id2label": NAMES, "label2id": {name: i for i, name in NAMES.items()}}
    several = labels if TASKS[suffix] in ("classifier", "token") else {}
    # ELECTRA's choice and DeBERTa's pooler drop states by rates of their own.
    return {
        **base[variant],
        "architectures": [FAMILIES[variant][0] + suffix],
        "pooler_hidden_size": base[variant]["hidden_size"],
        **several,
        **changes,
    }


def expected_head(variant, suffix):
    kind = FAMILIES[variant][1]
    labels = tuple(NAMES.values())
    return {
        "classifier": Classifier(num_classes=3, kind=kind, labels=labels),
        "choice": Choice(kind="bert" if kind == "roberta" else kind),
        "token": Token(num_classes=3, labels=labels),
        "span": Span(),
    }[TASKS[suffix]]


def saved(tmp_path, config):
    model = goldens.random_model(config, seed=5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1e-3 * torch.randn_like(parameter)  # all of float32's bits
    model.save_pretrained(tmp_path / "source")
    pieces = [*SPECIAL[config["pad_token_id"]].split(), *"abcdefghijklmno"]
    (tmp_path / "source" / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return model


def theirs_of(model, batch, *, choice):
    ids = {
        "input_ids": torch.from_numpy(batch["tokens"]).long(),
        "attention_mask": torch.from_numpy(batch["real"]).long(),
        "token_type_ids": torch.from_numpy(batch["token_types"]).long(),
    }
    with torch.no_grad():
        out = model(**{name: x[None] if choice else x for name, x in ids.items()})
    if hasattr(out, "start_logits"):
        return np.stack([out.start_logits.numpy(), out.end_logits.numpy()], axis=-1)
    return out.logits.numpy().reshape(-1, 1) if choice else out.logits.numpy()


def ours_of(directory, name, batch):
    loaded = Loaded.from_checkpoint(str(directory), step=None)

    @jax.jit
    def run(params, tokens, real, token_types):
        learner = loaded.learner.bind(params)
        hidden = learner.model(tokens, segment_ids=real, token_types=token_types)
        logits = learner.heads[name](hidden)
        return jnp.stack(logits, axis=-1) if name == "span" else logits

    real = batch["real"].astype(np.int32)
    return np.asarray(run(loaded.params, batch["tokens"], real, batch["token_types"]))


@pytest.mark.parametrize("suffix", TASKS)
@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(name, marks=pytest.mark.exhaustive) if name in KIN else name
        for name in FAMILIES
    ],
)
def test_in_and_out_keeps_the_logits(tmp_path, variant, suffix):
    config = config_of(variant, suffix)
    model = saved(tmp_path, config)
    batch = goldens.random_batch(config)
    expected = theirs_of(model, batch, choice=TASKS[suffix] == "choice")
    import_hf(tmp_path / "source", tmp_path / "ours")
    head = expected_head(variant, suffix)
    loaded = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None)
    assert by_name(loaded.experiment.heads) == {head.name: head}
    found = ours_of(tmp_path / "ours", head.name, batch)
    real = batch["real"] if head.name in ("token", "span") else np.ones(len(found), bool)
    np.testing.assert_allclose(found[real], expected[real], rtol=1e-5, atol=1e-5)

    export_hf(tmp_path / "ours", tmp_path / "theirs")
    back, info = type(model).from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    # Bit for bit the weights: equal models differ in a last bit, as memory is aligned.
    tensors = model.state_dict()
    assert back.state_dict().keys() == tensors.keys()
    for name, tensor in back.state_dict().items():
        assert torch.equal(tensor, tensors[name]), name
    again = theirs_of(back.eval(), batch, choice=TASKS[suffix] == "choice")
    np.testing.assert_allclose(again, expected, rtol=1e-6, atol=1e-6)
    assert back.config.architectures == config["architectures"]
    if head.name in ("classifier", "token"):
        assert back.config.id2label == NAMES
    import_hf(tmp_path / "theirs", tmp_path / "twice")
    assert Loaded.from_checkpoint(str(tmp_path / "twice"), step=None).experiment.heads == (head,)


def test_the_loss_of_tags_is_that_of_transformers(tmp_path):
    config = config_of("bert", "ForTokenClassification")
    model = saved(tmp_path, config)
    batch = goldens.random_batch(config)
    rng = np.random.default_rng(0)
    labels = np.where(batch["real"], rng.integers(0, 4, batch["tokens"].shape), 0)
    with torch.no_grad():
        expected = model(
            input_ids=torch.from_numpy(batch["tokens"]).long(),
            attention_mask=torch.from_numpy(batch["real"]).long(),
            labels=torch.from_numpy(np.where(labels > 0, labels - 1, -100)).long(),
        ).loss.item()
    import_hf(tmp_path / "source", tmp_path / "ours")
    loaded = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None)
    given = {
        "encoder_input_tokens": jnp.asarray(batch["tokens"]),
        "encoder_segment_ids": jnp.asarray(batch["real"].astype(np.int32)),
        "token_labels": jnp.asarray(labels.astype(np.int32)),
    }
    found = jax.jit(loaded.learner.loss)(loaded.params, given)
    assert loaded.experiment.objective == TagTokens(num_classes=3)
    np.testing.assert_allclose(found.value(), expected, rtol=1e-5)


def test_the_pieces_of_words_are_those_of_transformers(tmp_path):
    path = tokenizer_files.write_wordpiece(tmp_path)
    theirs = transformers.BertTokenizerFast(str(path))
    words = ["The", "dogs", "U.N.", "running", "(una)", "é"]
    row = theirs(words, is_split_into_words=True)
    starts = [row.word_ids().index(place) for place in range(len(words))]
    vocabulary = load_vocabulary(path)
    tokens = encoder_tokens(vocabulary)
    made = encode([words], vocabulary=vocabulary, tokens=tokens, length=64)
    assert made == [(row["input_ids"][:-1], starts)]


def test_a_cross_encoder_of_sentence_transformers(tmp_path):
    """One class, no names: a score."""
    config = config_of("bert", "ForSequenceClassification", id2label={0: "LABEL_0"}, label2id=None)
    model = saved(tmp_path, config)
    import_hf(tmp_path / "source", tmp_path / "ours")
    loaded = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None)
    assert loaded.experiment.heads == (Classifier(num_classes=1, kind="bert"),)
    batch = goldens.random_batch(config)
    expected = theirs_of(model, batch, choice=False)
    found = ours_of(tmp_path / "ours", "classifier", batch)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


# Fields of config.json that export writes otherwise than import found them, and why.
DIFFERENCES = {
    "transformers_version": "the version that wrote a directory; t5x_lite is not transformers",
    "torch_dtype": "the name of dtype before transformers 5",
    "legacy": "DeBERTa: the form that both 4.57 and 5 load",
    "enhanced_mask_decoder": "DeBERTa: Microsoft's decoder, a field that only t5x_lite reads",
}
UNUSUAL = {
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_dropout_prob": 0.25,
    "attention_probs_dropout_prob": 0.15,
    "layer_norm_eps": 1e-6,
    "initializer_range": 0.03,
    "classifier_dropout": 0.35,
    "cls_dropout": 0.35,
    "pooler_dropout": 0.2,
    "summary_last_dropout": 0.3,
    "finetuning_task": "mnli",
    "task_specific_params": {"summarization": {"prefix": "summarize: "}},
    "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
    "bos_token_id": 2,
    "eos_token_id": 3,
}
PROBLEMS = (
    None,
    "regression",
    "single_label_classification",
    "multi_label_classification",
)


def differences(found, expected):
    """Names of the fields that differ and are not explained."""
    missing = object()
    both = {
        name: (expected.get(name, missing), found.get(name, missing))
        for name in (expected.keys() | found.keys()) - DIFFERENCES.keys()
    }
    return {name: (before, after) for name, (before, after) in both.items() if before != after}


def both_configs(tmp_path):
    """config.json of the source and of its export."""
    import_hf(tmp_path / "source", tmp_path / "ours")
    export_hf(tmp_path / "ours", tmp_path / "theirs")
    return [
        json.loads((tmp_path / name / "config.json").read_text()) for name in ("theirs", "source")
    ]


def meaning_cases():
    """(family, end of the class's name, problem_type, number of classes)."""
    for problem in PROBLEMS:
        # transformers refuses exclusive classes of which there is one.
        for classes in (3,) if problem == PROBLEMS[2] else (1, 3):
            yield pytest.param("bert", "ForSequenceClassification", problem, classes)
    for variant in FAMILIES:
        for suffix in ("ForMaskedLM", *TASKS, "Model"):
            kept = variant in ("bert", "deberta_v3") or suffix == "ForSequenceClassification"
            marks = () if kept else (pytest.mark.exhaustive,)
            problem = (
                "multi_label_classification" if suffix == "ForSequenceClassification" else None
            )
            yield pytest.param(variant, suffix, problem, 3, marks=marks)


@pytest.mark.parametrize(("variant", "suffix", "problem", "classes"), meaning_cases())
def test_config_json_keeps_what_the_numbers_mean(tmp_path, variant, suffix, problem, classes):
    base = goldens.DEBERTA if variant.startswith("deberta") else goldens.VARIANTS
    names = {i: f"name {i}" for i in range(classes)}
    labels = {"id2label": names, "label2id": {name: i for i, name in names.items()}}
    config = {
        **base[variant],
        **UNUSUAL,
        "architectures": [FAMILIES[variant][0] + suffix],
        "problem_type": problem,
        **(labels if suffix in ("ForSequenceClassification", "ForTokenClassification") else {}),
    }
    if suffix == "ForMaskedLM" and FAMILIES[variant][0] != "Bert":
        config["hidden_act"] = "gelu"  # transformers' head has gelu whatever the model has
    saved(tmp_path, config)
    found, expected = both_configs(tmp_path)
    assert differences(found, expected) == {}
    assert found["architectures"] == config["architectures"]
    assert found.get("problem_type") == problem


def test_training_with_exclusive_classes_changes_what_the_numbers_mean():
    several = Classifier(num_classes=2, problem_type="multi_label_classification")
    [head] = with_labels((several,), several, ("no", "yes"))
    assert head == Classifier(num_classes=2, labels=("no", "yes"))
