"""T5's unsupervised objectives on tokens (Raffel et al. 2020, section 3.3), by their names there.

    tokens                     10 11 12 13 14 15 16 17
    span corruption            inputs 10 11 99 14 15 16 98    targets 99 12 13 98 17
    i.i.d., replace spans      inputs 99 11 12 98 15 16 17    targets 10 99 13 14 98
    i.i.d., drop tokens        inputs 11 12 15 16 17          targets 10 13 14
    BERT-style                 inputs 99 11 12 99 57 15 16 17, all of the text in the targets
    MASS-style                 inputs 99 11 12 99 99 15 16 17, all of the text in the targets
    deshuffling                inputs 13 10 16 11 17 12 14 15, all of the text in the targets
    prefix language modelling  inputs 10 11 12                targets 13 14 15 16 17

With `final_sentinel` the targets of span corruption are 99 12 13 98 17 97 (replacement.py). A
language model has no inputs, and no corruption. EOS is not added here. Everything is a pure
function of (tokens, seed, epoch, index): the seqio pipeline and an offline cache give the same
examples. What is noise and what becomes of it stand in noise.py and replacement.py; how long the
text is that a corruption gets, in tasks/unsupervised.py; UL2's mixture in mixture_of_denoisers.py.

Source: t5/data/preprocessors.py (denoise) and t5/models/gin/objectives in
google-research/text-to-text-transfer-transformer.
"""

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Int

from t5x_lite.data.corruption import noise
from t5x_lite.data.corruption.mixture_of_denoisers import (
    mixture_of_denoisers,
    mixture_of_denoisers_lengths,
)
from t5x_lite.data.corruption.noise import example_rng
from t5x_lite.data.corruption.replacement import drop, replace_spans, replace_tokens

_SPECIAL_TOKENS = 3
"""Padding, EOS and unknown: the first ids, which no random token is."""


def span_corruption(
    tokens: Int[np.ndarray, " n"],
    *,
    seed: int,
    epoch: int,
    index: int,
    sentinel_start: int,
    noise_density: float = 0.15,
    mean_noise_span_length: float = 3.0,
    final_sentinel: bool = False,
) -> dict[str, Int[np.ndarray, " _"]]:
    """One chunk of text as an example of span corruption.

    Args:
      tokens: token ids [n]. Of fewer than two nothing is cut: inputs are the tokens, targets empty.
      seed: the run's seed.
      epoch: how often the data were repeated before.
      index: the chunk's position in the unshuffled data.
      sentinel_start: the first sentinel, the vocabulary's last id; the others count down from it.
      noise_density: share of the tokens to cut.
      mean_noise_span_length: mean tokens of a cut span.
      final_sentinel: whether targets end in a sentinel.

    Returns:
      {"inputs", "targets"}: int32 token ids without EOS.
    """
    tokens = np.asarray(tokens, np.int32)
    if len(tokens) < 2:
        return {"inputs": tokens, "targets": tokens[:0]}
    mask = noise.random_spans_noise_mask(
        len(tokens),
        example_rng(seed, epoch, index),
        noise_density=noise_density,
        mean_noise_span_length=mean_noise_span_length,
    )
    return replace_spans(tokens, mask, sentinel_start, final_sentinel=final_sentinel)


def iid_replace_spans(
    tokens: Int[np.ndarray, " n"],
    *,
    seed: int,
    epoch: int,
    index: int,
    sentinel_start: int,
    noise_density: float = 0.15,
    final_sentinel: bool = False,
) -> dict[str, Int[np.ndarray, " _"]]:
    """The paper's baseline: i.i.d. noise, one sentinel for each span of it ("u_u").

    Args:
      tokens: token ids [n].
      seed: the run's seed.
      epoch: how often the data were repeated before.
      index: the chunk's position in the unshuffled data.
      sentinel_start: the first sentinel; the others count down from it, into the ordinary tokens
        where there are more spans than sentinels.
      noise_density: probability that a token is noise.
      final_sentinel: whether targets end in a sentinel where the text ends in noise, too.

    Returns:
      {"inputs", "targets"}: int32 token ids without EOS.
    """
    tokens = np.asarray(tokens, np.int32)
    mask = _iid_mask(len(tokens), seed, epoch, index, noise_density=noise_density)
    return replace_spans(tokens, mask, sentinel_start, final_sentinel=final_sentinel)


def iid_drop_tokens(
    tokens: Int[np.ndarray, " n"], *, seed: int, epoch: int, index: int, noise_density: float = 0.15
) -> dict[str, Int[np.ndarray, " _"]]:
    """I.i.d. noise, dropped from the inputs; the targets are what was dropped ("d_d").

    Args and results are those of `iid_replace_spans`, without sentinels.
    """
    tokens = np.asarray(tokens, np.int32)
    return drop(tokens, _iid_mask(len(tokens), seed, epoch, index, noise_density=noise_density))


def bert_style(
    tokens: Int[np.ndarray, " n"],
    *,
    seed: int,
    epoch: int,
    index: int,
    sentinel_start: int,
    noise_density: float = 0.15,
    random_share: float = 0.1,
) -> dict[str, Int[np.ndarray, " n"]]:
    """I.i.d. noise of which a tenth becomes random tokens, the rest sentinels ("r10s90_f").

    Args:
      tokens: token ids [n], which are the targets.
      seed: the run's seed.
      epoch: how often the data were repeated before.
      index: the chunk's position in the unshuffled data.
      sentinel_start: the one sentinel that is used, the vocabulary's last id.
      noise_density: probability that a token is noise.
      random_share: probability that noise becomes a random token of the vocabulary, special tokens
        left out.

    Returns:
      {"inputs", "targets"}: int32 token ids without EOS.
    """
    tokens = np.asarray(tokens, np.int32)
    rng = example_rng(seed, epoch, index, stream=noise.IID)
    mask = noise.iid_noise_mask(len(tokens), rng, noise_density=noise_density)
    chosen, which = rng.random((2, len(tokens)))
    others = _SPECIAL_TOKENS + (which * (sentinel_start + 1 - _SPECIAL_TOKENS)).astype(np.int32)
    return replace_tokens(tokens, mask, np.where(chosen < random_share, others, sentinel_start))


def mass_style(
    tokens: Int[np.ndarray, " n"],
    *,
    seed: int,
    epoch: int,
    index: int,
    sentinel_start: int,
    noise_density: float = 0.15,
) -> dict[str, Int[np.ndarray, " n"]]:
    """I.i.d. noise that becomes one and the same sentinel, token by token ("m_f").

    Args and results are those of `bert_style`, without random tokens.
    """
    tokens = np.asarray(tokens, np.int32)
    mask = _iid_mask(len(tokens), seed, epoch, index, noise_density=noise_density)
    return replace_tokens(tokens, mask, sentinel_start)


def deshuffling(
    tokens: Int[np.ndarray, " n"], *, seed: int, epoch: int, index: int
) -> dict[str, Int[np.ndarray, " n"]]:
    """The tokens in random order; the targets have them in theirs ("all_permute").

    Args:
      tokens: token ids [n].
      seed: the run's seed.
      epoch: how often the data were repeated before.
      index: the chunk's position in the unshuffled data.

    Returns:
      {"inputs", "targets"}: int32 token ids without EOS; every order is equally likely.
    """
    tokens = np.asarray(tokens, np.int32)
    rng = example_rng(seed, epoch, index, stream=noise.PERMUTATION)
    return {"inputs": tokens[rng.random(len(tokens)).argsort(kind="stable")], "targets": tokens}


def prefix_split(
    tokens: Int[np.ndarray, " n"], *, seed: int, epoch: int, index: int
) -> dict[str, Int[np.ndarray, " _"]]:
    """One chunk of text as an example of prefix language modelling.

    Args:
      tokens: token ids [n].
      seed: the run's seed.
      epoch: how often the data were repeated before.
      index: the chunk's position in the unshuffled data.

    Returns:
      {"inputs", "targets"}: int32 token ids without EOS, together the tokens. The inputs' length is
      uniform in [1, n - 1]; of fewer than two tokens there are no inputs.
    """
    tokens = np.asarray(tokens, np.int32)
    start = _split_place(len(tokens), seed=seed, epoch=epoch, index=index)
    return {"inputs": tokens[:start], "targets": tokens[start:]}


def _iid_mask(
    length: int, seed: int, epoch: int, index: int, *, noise_density: float
) -> np.ndarray:
    rng = example_rng(seed, epoch, index, stream=noise.IID)
    return noise.iid_noise_mask(length, rng, noise_density=noise_density)


def _split_place(length: int, *, seed: int, epoch: int, index: int) -> int:
    """How many of `length` tokens are the prefix."""
    places = max(length - 1, 0)
    draw = example_rng(seed, epoch, index, stream=noise.PREFIX).random()
    return min(1 + int(draw * places), places)


CORRUPTIONS: Mapping[str, Callable[..., Mapping[str, np.ndarray]]] = {
    function.__name__: function
    for function in (
        span_corruption,
        iid_replace_spans,
        iid_drop_tokens,
        bert_style,
        mass_style,
        deshuffling,
        prefix_split,
        mixture_of_denoisers,
    )
}
"""The corruptions that a cache can name, (tokens, *, seed, epoch, index, **options) -> example."""


# How long they make inputs and targets, which an offline cache must know before it makes them:
# (counts [n], *, seed, epochs [n], indices [n], **options) -> int64 [n, 2], without EOS.


def span_corruption_lengths(
    counts: Int[np.ndarray, " n"],
    *,
    noise_density: float = 0.15,
    mean_noise_span_length: float = 3.0,
    final_sentinel: bool = False,
    **_: object,
) -> Int[np.ndarray, "n 2"]:
    """Inputs' and targets' lengths of `span_corruption`, which depend on nothing else."""
    different, inverse = np.unique(counts, return_inverse=True)
    lengths = np.empty((len(different), 2), np.int64)
    for row, count in enumerate(different.tolist()):
        cut, spans = noise.noise_counts(
            count, noise_density, mean_span_length=mean_noise_span_length
        )
        lengths[row] = count - cut + spans, cut + spans + (final_sentinel and cut > 0)
    return lengths[inverse]


def same_lengths(counts: Int[np.ndarray, " n"], **_: object) -> Int[np.ndarray, "n 2"]:
    """Those of a corruption that gives the whole text on both sides."""
    return np.stack([counts, counts], axis=1).astype(np.int64)


def one_by_one(
    corruption: Callable[..., Mapping[str, np.ndarray]],
) -> Callable[..., Int[np.ndarray, "n 2"]]:
    """Those of a corruption whose lengths are random: of as many tokens as the chunk has.

    Args:
      corruption: one whose lengths do not depend on what the tokens are.
    """

    def lengths(
        counts: Int[np.ndarray, " n"],
        *,
        seed: int,
        epochs: Int[np.ndarray, " n"],
        indices: Int[np.ndarray, " n"],
        **options: object,
    ) -> Int[np.ndarray, "n 2"]:
        found = np.empty((len(counts), 2), np.int64)
        tokens = np.zeros(int(counts.max(initial=0)), np.int32)
        keys = zip(counts.tolist(), epochs.tolist(), indices.tolist(), strict=True)
        for row, (count, epoch, index) in enumerate(keys):
            example = corruption(tokens[:count], seed=seed, epoch=epoch, index=index, **options)
            found[row] = len(example["inputs"]), len(example["targets"])
        return found

    return lengths


LENGTHS: Mapping[str, Callable[..., np.ndarray]] = {
    "span_corruption": span_corruption_lengths,
    "iid_replace_spans": one_by_one(iid_replace_spans),
    "iid_drop_tokens": one_by_one(iid_drop_tokens),
    "bert_style": same_lengths,
    "mass_style": same_lengths,
    "deshuffling": same_lengths,
    "prefix_split": one_by_one(prefix_split),
    "mixture_of_denoisers": mixture_of_denoisers_lengths,
}
"""For each of them its lengths."""
