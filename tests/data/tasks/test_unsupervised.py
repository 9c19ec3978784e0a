import dataclasses
import logging

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data import denoising
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.tasks import unsupervised
from t5x_lite.data.vocabularies.loading import load_vocabulary


@pytest.fixture(scope="module")
def arguments(tiny_vocabulary):
    """Of inputs and targets of 512 tokens."""
    return TaskArguments(
        vocabulary=load_vocabulary(tiny_vocabulary),
        directory="",
        inputs_length=512,
        targets_length=512,
    )


def options(objective):
    return objective.corruption.func, objective.corruption.keywords


def test_span_corruption_takes_the_text_that_fills_its_inputs(arguments):
    found = unsupervised.span_corruption(arguments)
    assert (found.chunk_length, found.join_documents) == (568, True)
    assert options(found) == (
        denoising.span_corruption,
        {"sentinel_start": 399, "noise_density": 0.15, "mean_noise_span_length": 3.0},
    )
    assert unsupervised.span_corruption(arguments, mean_noise_span_length=10.0).chunk_length == 591


def test_a_final_sentinel_takes_one_token_of_the_targets(arguments):
    ended = dataclasses.replace(arguments, targets_length=115, final_sentinel=True)
    found = unsupervised.span_corruption(ended)
    assert found.chunk_length == 568
    assert options(found)[1]["final_sentinel"] is True
    assert options(unsupervised.iid_replace_spans(arguments))[1].keys() == {
        "sentinel_start", "noise_density",
    }  # fmt: skip
    replaced = unsupervised.iid_replace_spans(dataclasses.replace(ended, targets_length=192))
    assert options(replaced)[1]["final_sentinel"] is True
    with pytest.raises(InputError, match=r"needs 115 tokens of .* is 114; set it to 115"):
        unsupervised.span_corruption(dataclasses.replace(ended, targets_length=114))


@pytest.mark.parametrize(
    "name",
    [
        "iid_drop_tokens",
        "bert_style",
        "mass_style",
        "deshuffling",
        "prefix_lm",
        "language_model",
        "full_language_model",
        "mixture_of_denoisers",
    ],
)
def test_objectives_without_spans_refuse_a_final_sentinel(arguments, name):
    ended = dataclasses.replace(arguments, final_sentinel=True)
    with pytest.raises(
        InputError, match=r"final_sentinel is only for span corruption .*; unset it"
    ):
        getattr(unsupervised, name)(ended)


@pytest.mark.parametrize(
    ("objective", "function", "joined"),
    [
        (unsupervised.iid_replace_spans, denoising.iid_replace_spans, True),
        (unsupervised.iid_drop_tokens, denoising.iid_drop_tokens, True),
        (unsupervised.bert_style, denoising.bert_style, True),
        (unsupervised.mass_style, denoising.mass_style, True),
        (unsupervised.deshuffling, denoising.deshuffling, False),
    ],
)
def test_the_others_take_as_many_tokens_as_the_inputs(arguments, objective, function, joined):
    found = objective(arguments)
    assert (found.chunk_length, found.join_documents) == (511, joined)
    assert getattr(found.corruption, "func", found.corruption) is function


def test_language_models_have_no_corruption(arguments):
    shorter = dataclasses.replace(arguments, targets_length=100)
    assert unsupervised.language_model(shorter) == unsupervised.Objective(
        chunk_length=99, corruption=None
    )
    assert unsupervised.full_language_model(shorter) == unsupervised.Objective(
        chunk_length=100, corruption=None, eos_of_documents=True
    )
    prefix = unsupervised.prefix_lm(shorter)
    assert (prefix.chunk_length, prefix.corruption) == (98, denoising.prefix_split)
    assert not prefix.join_documents


def test_ul2_takes_what_its_longest_denoiser_needs(arguments):
    found = unsupervised.mixture_of_denoisers(arguments, sequential_share=0.2)
    function, bound = options(found)
    assert function is denoising.mixture_of_denoisers
    assert bound["x_mode"] == arguments.vocabulary.encode("[NLG]")
    assert bound["sequential_share"] == 0.2
    room = 512 - len(bound["x_mode"])
    assert found.chunk_length == pytest.approx(room / 0.509, abs=4)


@pytest.mark.parametrize(
    ("density", "targets_length"), [(0.10, 103), (0.15, 192), (0.25, 256), (0.50, 512)]
)
def test_the_papers_lengths_fit(arguments, density, targets_length):
    paper = dataclasses.replace(arguments, targets_length=targets_length)
    unsupervised.iid_replace_spans(paper, noise_density=density)


def test_the_papers_length_of_dropped_tokens_fits(arguments):
    unsupervised.iid_drop_tokens(dataclasses.replace(arguments, targets_length=104))


@pytest.mark.parametrize(
    ("name", "lengths", "message"),
    [
        ("span_corruption", (2, 114), "data.inputs_length of at least 3, got 2"),
        (
            "span_corruption",
            (512, 113),
            "needs 114 tokens of targets, but data.targets_length is 113; set it to 114",
        ),
        (
            "iid_replace_spans",
            (512, 143),
            "needs 144 tokens of targets on average, but data.targets_length is 143; set it to "
            "187, which 999 of 1000 examples fit",
        ),
        ("iid_replace_spans", (2, 143), "data.inputs_length of at least 3, got 2"),
        ("iid_drop_tokens", (512, 77), "needs 78 tokens .* set it to 103"),
        ("bert_style", (512, 511), "needs 512 tokens of targets, .* set it to 512"),
        ("mass_style", (512, 114), "MASS-style .* set it to 512"),
        ("deshuffling", (512, 114), "deshuffling .* set it to 512"),
        ("language_model", (512, 2), "data.targets_length must be at least 3 for this task: got 2"),
        ("full_language_model", (512, 1), "data.targets_length must be at least 2"),
        ("prefix_lm", (512, 3), "data.inputs_length and data.targets_length must be at least 4"),
        ("mixture_of_denoisers", (512, 400), "UL2 .* set it to 50"),
        ("mixture_of_denoisers", (6, 400), "UL2 needs a data.inputs_length of at least"),
    ],
)
def test_lengths_that_do_not_go_together_are_refused(arguments, name, lengths, message):
    inputs_length, targets_length = lengths
    wrong = dataclasses.replace(
        arguments, inputs_length=inputs_length, targets_length=targets_length
    )
    with pytest.raises(InputError, match=message):
        getattr(unsupervised, name)(wrong)


def test_too_few_sentinels_are_refused_where_their_number_is_known(arguments, tiny_vocabulary):
    few = load_vocabulary(tiny_vocabulary, extra_ids=27)
    with pytest.raises(InputError, match="needs 28 sentinels, but the vocabulary has 27; raise"):
        unsupervised.span_corruption(dataclasses.replace(arguments, vocabulary=few))
    enough = load_vocabulary(tiny_vocabulary, extra_ids=28)
    just = dataclasses.replace(arguments, vocabulary=enough)
    unsupervised.span_corruption(just)
    with pytest.raises(InputError, match=r"needs 29 sentinels, but the vocabulary has 28"):
        unsupervised.span_corruption(dataclasses.replace(just, final_sentinel=True))


def test_ordinary_tokens_serve_as_sentinels_and_special_ones_do_not(
    arguments, tiny_vocabulary, caplog
):
    unsupervised._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        unsupervised.iid_replace_spans(arguments, noise_density=0.15)
        assert caplog.text == ""
        unsupervised.iid_replace_spans(arguments, noise_density=0.5)
        unsupervised.iid_replace_spans(arguments, noise_density=0.5)
    assert caplog.text.count("an example may have 151 spans, but the vocabulary has 100") == 1
    longer = dataclasses.replace(arguments, inputs_length=2048, targets_length=2048)
    with pytest.raises(InputError, match=r"this objective .* 2048 needs"):
        unsupervised.iid_replace_spans(longer, noise_density=0.5)
