"""A checkpoint as an encoder: rows, lengths, pooling, and retrieval with parameters in memory."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.config.evaluation import Retrieval
from t5x_lite.core.errors import InputError
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.evaluate.retrieval import retrieval_evaluator
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.loading import Loaded
from t5x_lite.inference.text_encoder import TextEncoder, Vectors, trained_length
from t5x_lite.objectives.contrastive import Contrastive
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.retromae import RetroMAE
from tests.encoder_checkpoint import write_checkpoint

TEXTS = ["a b", "c d e f g h i j k l m n o a b c d"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, compile_once):
    return write_checkpoint(tmp_path_factory.mktemp("encoder"), "bert")


@pytest.fixture(scope="module")
def loaded(checkpoint):
    return Loaded.from_checkpoint(str(checkpoint), step=None)


def states(loaded, rows):
    """Of each row by itself, so without padding."""
    encode = jax.jit(lambda params, tokens: loaded.learner.bind_model(params).encode(tokens))
    return [np.asarray(encode(loaded.params, row[None]))[0] for row in rows]


@pytest.mark.slow
def test_vectors_are_those_of_the_rows_without_padding(loaded):
    encoder = TextEncoder.of(loaded)
    rows, longer = encoder.rows(TEXTS)
    assert (encoder.length, longer) == (16, [1])
    assert rows[0].tolist() == [2, 5, 6, 3]
    by_hand = states(loaded, rows)
    mean = [state.mean(axis=0) for state in by_hand]
    unit = [vector / np.linalg.norm(vector) for vector in mean]
    found = encoder.embedder(batch_size=3).run(encoder.params, rows)
    np.testing.assert_allclose(found, unit, atol=1e-5)
    encoder = TextEncoder.of(loaded, pooling="cls", normalize=False)
    found = encoder.embedder(batch_size=3).run(encoder.params, rows)
    np.testing.assert_allclose(found, [state[0] for state in by_hand], atol=1e-5)


@pytest.mark.slow
def test_roberta_pads_with_1_and_counts_positions_from_2(tmp_path):
    loaded = Loaded.from_checkpoint(str(write_checkpoint(tmp_path, "roberta")), step=None)
    encoder = TextEncoder.of(loaded, normalize=False)
    rows, _ = encoder.rows(TEXTS)
    assert (encoder.length, rows[0].tolist()) == (14, [0, 5, 6, 2])
    found = encoder.embedder(batch_size=3).run(encoder.params, rows)
    [alone] = states(loaded, rows[:1])
    np.testing.assert_allclose(found[0], alone.mean(axis=0), atol=1e-5)


def test_what_the_objective_says(loaded):
    experiment = loaded.experiment
    assert Vectors.of(experiment) == Vectors(pooling="mean", normalize=True)
    pairs = dataclasses.replace(
        experiment.data, layout=layouts.Groups(), pack=False, inputs_length=8, targets_length=12
    )
    contrastive = dataclasses.replace(
        experiment, objective=Contrastive(pooling="cls", normalize=False), data=pairs
    )
    assert Vectors.of(contrastive) == Vectors(pooling="cls", normalize=False)
    asked = Vectors.of(contrastive, pooling="mean", normalize=True)
    assert asked == Vectors(pooling="mean", normalize=True)
    assert (trained_length(contrastive), contrastive.model.begins_with_cls) == (12, True)
    retromae = dataclasses.replace(experiment, objective=RetroMAE(mask_id=4))
    assert Vectors.of(retromae).pooling == "cls"


def test_what_cannot_be_asked_for(loaded, tiny_experiment, monkeypatch):
    with pytest.raises(
        InputError, match="16 tokens, but inputs_length sets the length of texts to 17"
    ):
        TextEncoder.of(loaded, length=17)
    with pytest.raises(InputError, match=r"but rows of a T5Config do not; set"):
        Vectors.of(tiny_experiment, pooling="cls")
    from t5x_lite.models.lm import LM

    monkeypatch.setattr(Learner, "model_type", LM)
    with pytest.raises(InputError, match=r"checkpoint .*: LM has no encoder"):
        TextEncoder.of(loaded)


def test_retrieval_with_parameters_in_memory(loaded, tmp_path):
    pytest.importorskip("pytrec_eval")
    (tmp_path / "qrels").mkdir()
    texts = {"corpus": "abcd", "queries": "ab"}
    for name, letters in texts.items():
        lines = [json.dumps({"_id": f"{name}{c}", "text": f"{c} {c} e"}) for c in letters]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    (tmp_path / "qrels" / "test.tsv").write_text("\nqueriesa\tcorpusa\t1\nqueriesb\tcorpusb\t1\n")
    vocabulary = load_vocabulary(loaded.vocabulary.model_path.parent)
    options = {"split": "test", "batch_size": 3}
    evaluator = retrieval_evaluator(
        loaded.experiment, loaded.learner, vocabulary, Retrieval(directory=str(tmp_path)), **options
    )
    # A query is its document.
    assert evaluator.run(loaded.params) == dict.fromkeys(evaluator.names(), 1.0)
    settings = Retrieval(directory=str(tmp_path), document_length=17)
    with pytest.raises(InputError, match=r"document_length must be above 2 .* at most 16"):
        retrieval_evaluator(loaded.experiment, loaded.learner, vocabulary, settings, **options)


@pytest.mark.slow
def test_a_bag_of_words_stands_behind_the_state_of_cls(loaded):
    encoder = TextEncoder.of(loaded, pooling="cls", normalize=False)
    rows, _ = encoder.rows(["a b", "c"])
    plain = encoder.embedder(batch_size=2).run(encoder.params, rows)
    found = encoder.embedder(batch_size=2, bag_top=3).run(encoder.params, rows)
    size, width = loaded.experiment.model.vocab_size, plain.shape[1]
    assert found.shape == (2, width + size)
    np.testing.assert_allclose(found[:, :width], plain, atol=1e-6)

    @jax.jit
    def logits(params, tokens):
        bound = loaded.learner.bind(params)
        return bound.heads["mlm"](bound.model(tokens), bound.model.tables()["token"])

    for row, vector in zip(rows, found[:, width:], strict=True):
        best = np.asarray(logits(loaded.params, row[None]))[0, 1:].max(axis=0)
        kept = np.sort(np.argsort(-best)[:3])
        assert np.flatnonzero(vector).tolist() == kept.tolist()
        np.testing.assert_allclose(vector[kept], best[kept], atol=1e-5)


def test_a_bag_needs_the_head_of_a_masked_language_model(tmp_path):
    headless = Checkpoint.load([str(write_checkpoint(tmp_path, "electra_discriminator"))]).encoder()
    with pytest.raises(InputError, match=r"has no masked language model head \(mlm\)"):
        headless.embedder(batch_size=1, bag_top=2)
