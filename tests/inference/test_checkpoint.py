"""Checkpoints between texts and tokens: lengths, ends, prompts, and ensembles."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.checkpoints import items as checkpoint_manifest
from t5x_lite.core.errors import InputError
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.inference.checkpoint import Checkpoint, check_finite, find_steps
from t5x_lite.inference.generate import Prediction
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.likelihood import LanguageModel


@pytest.fixture(scope="module")
def model(tiny_run):
    return Checkpoint.load([str(tiny_run)])


@pytest.fixture(scope="module")
def ensemble(tiny_run):
    """The steps 5 and 10 of one run."""
    steps = tiny_run / "checkpoints"
    return Checkpoint.load([str(steps / "5"), str(steps / "10")])


def with_layout(model, layout):
    """The model, as if its config were a language model's."""
    [member] = model.members
    experiment = dataclasses.replace(
        member.experiment,
        objective=LanguageModel(),
        data=dataclasses.replace(member.experiment.data, layout=layout),
    )
    return dataclasses.replace(model, members=(dataclasses.replace(member, experiment=experiment),))


def lists(rows):
    return [row.tolist() for row in rows]


def test_inputs_end_with_eos_and_are_cut_at_their_end(model):
    [word] = model.vocabulary.encode("the")
    fits = " ".join(["the"] * 31)
    rows, cut = model.inputs(["", "the", fits])
    assert lists(rows) == [[1], [word, 1], [word] * 31 + [1]]
    assert cut == []
    [last] = model.vocabulary.encode("a")
    rows, cut = model.inputs(["the", f"a {fits}", "the", fits + " a"])
    assert lists(rows) == [[word, 1], [last, *[word] * 30, 1], [word, 1], [word] * 31 + [1]]
    assert cut == [1, 3]
    assert {row.dtype for row in rows} == {np.dtype(np.int32)}


def test_a_shorter_or_longer_limit(tiny_run, model):
    assert model.inputs_length == 32
    short = dataclasses.replace(model, inputs_length=2)
    [word] = model.vocabulary.encode("the")
    assert lists(short.inputs(["the the"])[0]) == [[word, 1]]
    assert Checkpoint.load([str(tiny_run)], inputs_length=99).inputs_length == 99


def test_a_language_model_goes_on_with_its_inputs(model):
    plain = dataclasses.replace(with_layout(model, layouts.LM()), inputs_length=3)
    words = model.vocabulary.encode("the a the a")
    rows, cut = plain.inputs(["", "the a", "the a the a"])
    assert lists(rows) == [[], words[:2], words[-3:]]
    assert cut == [2]
    prefix = with_layout(model, layouts.PrefixLM())
    assert lists(prefix.inputs(["the"])[0]) == [[words[0], 1]]


def test_inputs_of_a_layout_with_words_end_in_them(model):
    words = model.vocabulary.encode(" target:")
    [the] = model.vocabulary.encode("the")
    layout = layouts.PrefixLM(separator=" target:")
    fits = len(words) + 2
    worded = dataclasses.replace(with_layout(model, layout), inputs_length=fits)
    rows, cut = worded.inputs(["", "the", "the the", "the the the"])
    expected = [[], [the], [the, the], [the, the]]
    assert lists(rows) == [[*text, *words] for text in expected]
    assert cut == [3]


def test_words_need_room_and_are_those_of_all_members(tiny_run, model, monkeypatch):
    from t5x_lite.inference import checkpoint as text_to_text

    worded = with_layout(model, layouts.PrefixLM(separator=" target:")).members[0]
    members = iter([worded, model.members[0], worded])
    monkeypatch.setattr(text_to_text, "load_both", lambda *_, **__: (next(members), None))
    with pytest.raises(
        InputError, match=r"encode inputs differently \(data\.layout\), but all checkpoints"
    ):
        Checkpoint.load([str(tiny_run)] * 2)
    length = len(model.vocabulary.encode(" target:"))
    with pytest.raises(InputError, match="leaves no room for text in inputs"):
        Checkpoint.load([str(tiny_run)], inputs_length=length)


def test_targets_are_never_cut_and_prompts_have_no_end(model):
    [word] = model.vocabulary.encode("the")
    assert lists(model.targets(["", " ".join(["the"] * 99)])) == [[1], [word] * 99 + [1]]
    assert model.prompts(["", ""]) is None
    assert lists(model.prompts(["", "the the"])) == [[], [word, word]]


def test_a_prompt_that_is_too_long_is_refused(model):
    short = dataclasses.replace(model, inputs_length=2)
    assert len(short.prompts(["the the"])[0]) == 2
    with pytest.raises(InputError) as raised:
        short.prompts(["the", "the the the"])
    assert str(raised.value) == (
        "text 1: the prompt has 3 tokens, but the maximum is 2; shorten it, or raise the maximum "
        "input length"
    )
    with pytest.raises(InputError, match=r"^f:7: the prompt has 3 tokens"):
        short.prompts(["the the the"], names=["f:7"])


@pytest.mark.parametrize("length", [0, -3])
def test_a_limit_of_nothing_is_refused(tiny_run, length):
    with pytest.raises(InputError, match=f"inputs_length must be at least 1, got {length}"):
        Checkpoint.load([str(tiny_run)], inputs_length=length)


def test_numbers_are_finite():
    check_finite("f:1", "the score", -1.0, 0.0)
    with pytest.raises(InputError) as raised:
        check_finite("f:1", "the score", -1.0, float("-inf"))
    assert str(raised.value) == (
        "f:1: the score is NaN or infinite; check the checkpoint's weights, or use float32 as the "
        "compute dtype"
    )


def test_a_prompt_stands_before_what_is_predicted(model):
    [word] = model.vocabulary.encode("the")

    class Fixed:
        def run(self, params, inputs, *, prompts, seeds, offset, adapter_ids):
            assert (params, inputs, seeds, offset) == (model.params, rows, [None, 5], 3)
            return [[Prediction(text="the", ids=(word, 1), score=-1.0)]] * 2

    rows = model.inputs(["a", "b"])[0]
    generator = model.generator(Decoding(), batch_size=2)
    generator.run = Fixed().run
    prompts = model.prompts(["", "so the"])
    found = model.predictions(generator, rows, prompts=prompts, seeds=[None, 5], offset=3)
    assert [[one.text for one in all_of_one] for all_of_one in found] == [["the"], ["so the the"]]
    assert found[1][0].ids == (word, 1)
    without = model.predictions(generator, rows, seeds=[None, 5], offset=3)
    assert [one.text for [one] in without] == ["the", "the"]


def test_one_checkpoint_has_its_own_parameters(model):
    assert model.params is model.members[0].params


@pytest.mark.slow
def test_an_ensemble_scores_by_the_average_of_the_logits(ensemble, compile_once):
    inputs, targets = ensemble.inputs(["the second argument"])[0], ensemble.targets(["a list"])
    assert sorted(ensemble.params) == ["0", "1"]
    [got] = ensemble.scorer(batch_size=1).run(ensemble.params, inputs, targets)
    encoder = jnp.asarray(inputs)
    decoder = jnp.asarray([[0, *targets[0][:-1]]])
    logits = [
        np.asarray(jax.jit(m.learner.bind_model(m.params))(encoder, decoder), np.float64)
        for m in ensemble.members
    ]
    assert np.max(np.abs(logits[0] - logits[1])) > 0.01
    mean = np.mean(logits, axis=0)[0]
    log_probabilities = mean - np.log(np.sum(np.exp(mean), axis=-1, keepdims=True))
    by_hand = sum(log_probabilities[i, token] for i, token in enumerate(targets[0]))
    assert got == pytest.approx(by_hand, abs=1e-4)


def test_an_ensemble_of_a_model_with_itself_predicts_what_it_does(tiny_run, model, compile_once):
    twice = Checkpoint.load([str(tiny_run), str(tiny_run)])
    texts = ["the second argument", ""]
    found = []
    for one in (model, twice):
        generator = one.generator(Decoding(max_decode_length=6), batch_size=2)
        found.append(one.predictions(generator, one.inputs(texts)[0]))
    assert [p.text for [p] in found[0]] == [p.text for [p] in found[1]]
    np.testing.assert_allclose(
        [p.score for [p] in found[0]], [p.score for [p] in found[1]], atol=1e-4
    )


def test_an_ensemble_needs_one_vocabulary(tiny_run, tmp_path, english_lines):
    from t5x_lite.data.vocabularies.loading import train_sentencepiece

    other = tmp_path / "other"
    shutil.copytree(tiny_run / "checkpoints" / "5", other)
    train_sentencepiece(english_lines[:300], size=300, output_dir=other / "files" / "vocabulary")
    checkpoint_manifest.write(other)
    with pytest.raises(InputError) as raised:
        Checkpoint.load([str(tiny_run), str(other)])
    assert str(raised.value) == (
        f"the checkpoints {tiny_run}/checkpoints/10 and {other} have different vocabularies, but "
        "all checkpoints of an ensemble must have the same vocabulary"
    )


def test_an_ensemble_needs_logits_of_one_size_and_one_way_of_reading(model, monkeypatch):
    from t5x_lite.inference import checkpoint as text_to_text

    [member] = model.members

    def load(other):
        found = iter([member, other])
        monkeypatch.setattr(text_to_text.Loaded, "from_checkpoint", lambda *_, **__: next(found))
        return Checkpoint.load([member.directory, member.directory])

    larger = member.experiment.model.replace(vocab_size=512)
    experiment = dataclasses.replace(member.experiment, model=larger)
    with pytest.raises(InputError, match=r"have the model\.vocab_size 400 and 512"):
        load(dataclasses.replace(member, experiment=experiment))
    with pytest.raises(InputError, match=r"encode inputs differently \(data\.layout\)"):
        load(with_layout(model, layouts.LM()).members[0])


def test_what_a_model_lacks_is_said(model, ensemble, monkeypatch):
    from t5x_lite.models.lm import LM
    from t5x_lite.models.t5 import T5Encoder

    with pytest.raises(InputError, match="an ensemble cannot encode texts into vectors"):
        ensemble.encoder(pooling="mean", normalize=False)
    monkeypatch.setattr(Learner, "model_type", LM)
    model.generator(Decoding(), batch_size=1)
    with pytest.raises(InputError, match="checkpoints/10: LM has no encoder"):
        model.encoder(pooling="mean", normalize=False)
    monkeypatch.setattr(Learner, "model_type", T5Encoder)
    model.encoder(pooling="mean", normalize=False)
    with pytest.raises(
        InputError, match="checkpoints/10: T5Encoder is an encoder and cannot generate text; use"
    ):
        model.generator(Decoding(), batch_size=1)
    with pytest.raises(
        InputError, match="T5Encoder is an encoder and cannot score targets; use embed"
    ):
        model.scorer(batch_size=1)


def test_no_checkpoint(tiny_run):
    with pytest.raises(InputError, match="no checkpoint directory is given"):
        find_steps([])
    assert find_steps([str(tiny_run)], step=5) == [tiny_run / "checkpoints" / "5"]
