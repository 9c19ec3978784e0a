"""The package from Python: what the commands do, without files."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t5x_lite
from t5x_lite.api import Model, Ranking
from t5x_lite.core.errors import InputError

TEXTS = ["the second argument", "", "a list"]


@pytest.fixture(scope="module")
def model(tiny_run, compile_once):
    return t5x_lite.load(tiny_run, batch_size=2)


@pytest.mark.slow
def test_the_package_imports_without_jax():
    program = "import sys, t5x_lite; assert 'jax' not in sys.modules; t5x_lite.load"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(AttributeError, match="has no attribute 'lode'"):
        _ = t5x_lite.lode


def test_generate_gives_the_best_text(model):
    texts = model.generate(TEXTS, max_decode_length=6)
    assert texts == [best.text for best, *_ in model.predict(TEXTS, max_decode_length=6)]
    assert model.generate(TEXTS[::-1], max_decode_length=6) == texts[::-1]
    assert model.generate([], max_decode_length=6) == []


def test_a_model_says_what_it_is(model, tiny_run):
    shown = repr(model)
    assert re.fullmatch(r"Model\(T5, [\d,]+ parameters, vocabulary [\d,]+, step \d+, .*\)", shown)
    assert str(tiny_run) in shown


def test_unknown_keywords_have_suggestions(model, tiny_run):
    with pytest.raises(InputError, match=r"unknown keyword num_beam; did you mean num_beams\?"):
        model.generate(TEXTS, num_beam=4)
    with pytest.raises(InputError, match="max_length has been renamed; use max_decode_length"):
        model.generate(TEXTS, max_length=4)
    with pytest.raises(ValueError, match="load: unknown keyword batchsize; did you mean batch_s"):
        t5x_lite.load(tiny_run, batchsize=2)


def test_what_is_compiled_serves_the_next_call(model, monkeypatch):
    texts = model.generate(TEXTS, max_decode_length=6)
    monkeypatch.setattr(type(model._model), "generator", None)
    assert model.generate(TEXTS, max_decode_length=6) == texts


def test_n_best(model):
    found = model.predict(TEXTS, max_decode_length=6, num_beams=2, num_return=2)
    assert [len(predictions) for predictions in found] == [2, 2, 2]
    assert all(first.score >= second.score for first, second in found)


@pytest.mark.slow
def test_seeds_of_texts(model):
    sampled = {"max_decode_length": 6, "temperature": 2.0}
    found = model.generate(["a"] * 4, seeds=[None, 5, 6, 5], **sampled)
    assert found[1] == found[3] != found[2]
    assert model.generate(["a"], seed=5, **sampled) == [found[1]]
    assert model.generate(["a"], **sampled) == [found[0]]
    with pytest.raises(InputError, match="there are 1 texts and 2 seeds"):
        model.generate(["a"], seeds=[1, 2], **sampled)
    with pytest.raises(InputError, match="seed must be from 0 to 4294967295, got 4294967296"):
        model.generate(["a"], seeds=[2**32], **sampled)


def test_broken_weights_are_no_numbers(model, monkeypatch):
    broken = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), model._model.params)
    monkeypatch.setattr(type(model._model), "params", broken)
    for answer, where in (
        (lambda: model.generate(TEXTS, max_decode_length=6), "text 0: the score"),
        (lambda: model.score([("a", "b")]), "pair 0: the log-likelihood"),
        (lambda: model.rank(["a"], ["b"]), "text 0: the log-likelihood"),
        (lambda: model.encode(TEXTS), "text 0: the vector"),
        (lambda: model.encode(TEXTS, per_token=True), "text 0: a state"),
    ):
        with pytest.raises(
            InputError, match=f"^{where} is NaN or infinite; check the checkpoint's"
        ):
            answer()


@pytest.mark.slow
def test_prompts_for_all_and_for_each(model):
    assert all(
        text.startswith("the second") for text in model.generate(TEXTS, prompts="the second")
    )
    each = model.generate(TEXTS, prompts=["the", "", "a list"])
    assert each[0].startswith("the")
    assert each[2].startswith("a list")
    with pytest.raises(InputError, match="there are 3 texts and 2 prompts"):
        model.generate(TEXTS, prompts=["the", "a"])


def test_score_and_rank_agree(model):
    candidates = ["is a list", "", "the"]
    ranked = model.rank(TEXTS, candidates)
    pairs = [(text, candidate) for text in TEXTS for candidate in candidates]
    alone = np.reshape(model.score(pairs), (3, 3))
    np.testing.assert_allclose([r.scores for r in ranked], alone, atol=1e-4)
    assert [r.prediction for r in ranked] == [candidates[i] for i in np.argmax(alone, axis=1)]
    assert isinstance(ranked[0], Ranking)
    assert np.all(alone < 0)


def test_encode(model):
    vectors = model.encode(TEXTS)
    states = model.encode(TEXTS, per_token=True)
    assert (vectors.shape, vectors.dtype) == ((3, 16), np.float32)
    assert len(states[1]) == 1  # the end
    np.testing.assert_allclose(vectors, [s.mean(axis=0) for s in states], atol=1e-5)
    assert model.encode([]).shape == (0, 16)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(model.encode(TEXTS, normalize=True), unit, atol=1e-5)
    with pytest.raises(InputError, match=r"rows of a T5Config do not; set pooling"):
        model.encode(TEXTS, pooling="cls")


def test_long_inputs_are_cut_with_a_warning(model, caplog):
    model.encode(["a", "the " * 40])
    assert caplog.messages == [
        "truncated 1 inputs to 32 tokens, the first of them text 1; to change the maximum length, "
        "use load(..., inputs_length=N)"
    ]


@pytest.mark.parametrize("call", ["generate", "encode"])
def test_one_text_is_not_a_list(model, call):
    with pytest.raises(InputError, match=r"but is a single string; give \['sst2 sentence: good'\]"):
        getattr(model, call)("sst2 sentence: good")


def test_choices_that_contradict_each_other(model):
    with pytest.raises(InputError, match="num_return 2 is above num_beams 1"):
        model.generate(TEXTS, num_return=2)
    with pytest.raises(InputError, match="argument candidates is empty"):
        model.rank(TEXTS, [])


@pytest.mark.slow
def test_load(tiny_run, model, compile_once):
    with pytest.raises(InputError, match="checkpoint none: no such directory"):
        t5x_lite.load("none")
    with pytest.raises(InputError, match="batch_size must be at least 1, got 0"):
        t5x_lite.load(tiny_run, batch_size=0)
    ensemble = t5x_lite.load(tiny_run, str(tiny_run / "checkpoints" / "10"), batch_size=2)
    np.testing.assert_allclose(ensemble.score([("a", "b")]), model.score([("a", "b")]), atol=1e-4)
    with pytest.raises(InputError, match="an ensemble cannot encode texts into vectors"):
        ensemble.encode(TEXTS)
    assert t5x_lite.load(tiny_run, step=5).score([("a", "b")]) != model.score([("a", "b")])
    # Step 10 alone was measured.
    best = t5x_lite.load(tiny_run, step="best", batch_size=2)
    assert best.score([("a", "b")]) == model.score([("a", "b")])


def test_the_readme_names_what_there_is():
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    _, section = readme.split("## From Python\n")
    block = section.partition("\n## ")[0].partition("```python\n")[2].partition("\n```")[0]
    code = ast.parse(block)
    assert code.body
    found = []
    for node in ast.walk(code):
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([node], []), "README.md", "exec"), {})
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "model":
            found.append(node.attr)
            assert callable(getattr(Model, node.attr))
    assert sorted(found) == ["encode", "generate", "rank", "score"]
