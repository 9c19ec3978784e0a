"""Unsupervised objectives of T5 (noise masks, inputs and targets) and UL2's mixture of denoisers.

A noise mask marks the tokens of a text that are noise (Raffel et al. 2020, section 3.3).

    spans  0 0 1 1 0 0 0 1     `random_spans_noise_mask`: the number of noise tokens and of spans is
                               fixed, their positions are random; the first token is kept, the last
                               is noise
    i.i.d. 1 0 0 1 1 0 0 0     `iid_noise_mask`: every token independently

All functions are written in NumPy, and their results depend only on (tokens, seed, epoch, index).
Random numbers come from `example_rng`. Only uniform doubles are sampled, because these do not
change between versions of NumPy, unlike its shuffling.

Source: t5/data/preprocessors.py in google-research/text-to-text-transfer-transformer
(random_spans_helper, random_spans_noise_mask, iid_noise_mask).

Tokens and a mask become inputs and targets (Raffel et al. 2020, section 3.3).

    tokens               10 11 12 13 14 15 16 17
    mask                  0  0  1  1  0  0  0  1
    `replace_spans`      inputs  10 11 99 14 15 16 98     targets  99 12 13 98 17
    `drop`               inputs  10 11 14 15 16           targets  12 13 17
    `replace_tokens`     inputs  10 11 99 99 14 15 16 99

The sentinels count down from 99. Masks of spans (sections 3.3.3 and 3.3.4) begin with a kept token
and end in noise, so their targets begin with a sentinel and do not end in a sentinel. The released
T5 code does this, although the paper's figure 2 shows a final sentinel. An i.i.d. mask can begin
and end with noise or with a kept token: inputs may then begin with a sentinel, and targets may end
in a sentinel. With `final_sentinel` all targets end in a sentinel, as in figure 2: if the text ends
in noise, the next sentinel is appended.

    `replace_spans(..., final_sentinel=True)`             targets  99 12 13 98 17 97

If there are more spans than sentinels, the ordinary token ids below them are also used, as in T5.

Source: t5/data/preprocessors.py in google-research/text-to-text-transfer-transformer
(noise_span_to_unique_sentinel, nonnoise_span_to_unique_sentinel, drop_noise_tokens,
noise_token_to_sentinel).

T5's unsupervised objectives, by their names in the paper (Raffel et al. 2020, section 3.3):

    tokens                     10 11 12 13 14 15 16 17
    span corruption            inputs 10 11 99 14 15 16 98    targets 99 12 13 98 17
    i.i.d., replace spans      inputs 99 11 12 98 15 16 17    targets 10 99 13 14 98
    i.i.d., drop tokens        inputs 11 12 15 16 17          targets 10 13 14
    BERT-style                 inputs 99 11 12 99 57 15 16 17, complete text in the targets
    MASS-style                 inputs 99 11 12 99 99 15 16 17, complete text in the targets
    deshuffling                inputs 13 10 16 11 17 12 14 15, complete text in the targets
    prefix language modelling  inputs 10 11 12                targets 13 14 15 16 17

With `final_sentinel` the targets of span corruption are 99 12 13 98 17 97. A language model has no
inputs and no corruption. EOS is added elsewhere. The seqio pipeline and an offline cache give the
same examples. `data.tasks.unsupervised` sets the length of the text before corruption.

Source: t5/data/preprocessors.py (denoise) and t5/models/gin/objectives in
google-research/text-to-text-transfer-transformer.

UL2's mixture of denoisers uses one of seven objectives for each example (Tay et al. 2022).

    denoiser  mean span, density                          mode token before the inputs
    R         3, 0.15 | 8, 0.15                           [NLU]
    X         3, 0.5 | 8, 0.5 | 64, 0.15 | 64, 0.5        [NLG]
    S         the rest of the text, a quarter on average  [S2S]

R and X are span corruption; S is prefix language modelling, without a sentinel. The denoiser of an
example, and its part of the chunk, depend only on (seed, epoch, index). To fill inputs of 512
tokens, denoisers need from 509 to 1004 tokens of text. A chunk has the maximum; denoisers that need
fewer tokens use a part with a random start. (The authors' code divides the text into chunks
separately for each denoiser, which one cache could not store.)

Source: "UL2: Unifying Language Learning Paradigms", table 1 and the code of appendix 9.2, which
samples denoisers uniformly; section 4 finds 20 % best for S. Modes as in the released checkpoints.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int, Int32

from t5x_lite.layouts.base import DENOISER, IID, PERMUTATION, PREFIX, example_rng


@functools.lru_cache(maxsize=4096)
def noise_counts(length: int, noise_density: float, *, mean_span_length: float) -> tuple[int, int]:
    """Return the number of noise tokens in a chunk, and the number of noise spans.

    Args:
      length: number of tokens of the chunk.
      noise_density: fraction of the tokens that are noise, between 0 and 1.
      mean_span_length: mean tokens of a span, >= 1.

    Returns:
      (noise tokens, spans): clip(round(length * density), 1, length - 1) and round(noise / mean),
      between 1 and the maximum that fits. Rounding is half to even, in float32 as in T5's
      random_spans_noise_mask: 0.15 of 190 tokens are 29. (0, 0) for a chunk of fewer than two
      tokens.

    Raises:
      ValueError: if noise_density or mean_span_length is out of range.
    """
    if not 0 < noise_density < 1:
        raise ValueError(f"noise_density must be between 0 and 1, but is {noise_density}")
    if mean_span_length < 1:
        raise ValueError(f"mean_span_length must be at least 1, but is {mean_span_length}")
    if length < 2:
        return 0, 0
    noise = int(np.rint(np.float32(length) * np.float32(noise_density)))
    noise = min(max(noise, 1), length - 1)
    spans = max(int(np.rint(np.float32(noise) / np.float32(mean_span_length))), 1)
    return noise, min(spans, noise, length - noise)


@functools.lru_cache(maxsize=256)
def random_spans_lengths(
    inputs_length: int,
    noise_density: float,
    mean_span_length: float,
    *,
    final_sentinel: bool = False,
) -> tuple[int, int]:
    """Return the chunk length for inputs of a given length, and the resulting targets length.

    Inputs of 512 tokens at density 0.15 and mean span length 3 need a chunk of 568 tokens and give
    targets of 114 tokens, including EOS, or 115 with a final sentinel. T5 computes lengths in
    float64 (random_spans_helper) and the mask in float32. If they differ, as for 172 tokens
    (targets of 38 and 40), this function returns the length that fits the mask.

    Args:
      inputs_length: number of tokens of the inputs, including EOS, >= 3.
      noise_density: fraction of the tokens that are noise.
      mean_span_length: mean tokens of a span.
      final_sentinel: if True, targets end in a sentinel (`replace_spans`).

    Returns:
      (tokens of the chunk, tokens of the targets including EOS).

    Raises:
      ValueError: if inputs_length < 3, which is one kept token, one sentinel and EOS.
    """

    def lengths(raw: int) -> tuple[int, int]:
        noise, spans = noise_counts(raw, noise_density, mean_span_length=mean_span_length)
        return raw - noise + spans + 1, noise + spans + 1

    if inputs_length < 3:
        raise ValueError(
            "span corruption needs an inputs_length of at least 3, but inputs_length is "
            f"{inputs_length}"
        )
    raw = 2
    while lengths(raw + 1)[0] <= inputs_length:
        raw += 1
    # T5's exception: at density 0.5 the targets must not be longer than the inputs.
    if noise_density == 0.5 and raw > 2 and lengths(raw)[1] > inputs_length:
        raw -= 1
    return raw, lengths(raw)[1] + final_sentinel


def _random_segments(rng: np.random.Generator, total: int, *, parts: int) -> Int[np.ndarray, " n"]:
    """Return `parts` random integers >= 1 with the sum `total`; all results are equally likely."""
    if parts == total:
        return np.ones(parts, np.int64)
    bounds = np.empty(parts + 1, np.int64)
    bounds[0], bounds[-1] = -1, total - 1
    bounds[1:-1] = rng.random(total - 1).argpartition(parts - 1)[: parts - 1]
    bounds.sort()
    return bounds[1:] - bounds[:-1]


def random_spans_noise_mask(
    length: int,
    rng: np.random.Generator,
    *,
    noise_density: float = 0.15,
    mean_noise_span_length: float = 3.0,
) -> Bool[np.ndarray, " n"]:
    """Return a random mask of noise spans; the first token is kept, and the last token is noise.

    Args:
      length: number of tokens of the chunk; below 2, the mask is all False.
      rng: random numbers from `example_rng`.
      noise_density: fraction of the tokens that are noise.
      mean_noise_span_length: mean tokens of a noise span.

    Returns:
      Mask [length], true where the token is noise.
    """
    noise, spans = noise_counts(length, noise_density, mean_span_length=mean_noise_span_length)
    if not spans:
        return np.zeros(length, bool)
    runs = np.empty(2 * spans, np.int64)
    runs[1::2] = _random_segments(rng, noise, parts=spans)
    runs[0::2] = _random_segments(rng, length - noise, parts=spans)
    cut = np.zeros(2 * spans, bool)
    cut[1::2] = True
    return cut.repeat(runs)


def iid_noise_mask(
    length: int, rng: np.random.Generator, *, noise_density: float = 0.15
) -> Bool[np.ndarray, " n"]:
    """Return a mask in which each token is noise with probability `noise_density`.

    Args:
      length: number of tokens of the chunk.
      rng: random numbers from `example_rng`.
      noise_density: probability that a token is noise, independently of the others.
    """
    return rng.random(length) < noise_density


def iid_targets_length(
    length: int, noise_density: float, *, final_sentinel: bool = False
) -> tuple[float, float]:
    """Return the mean and standard deviation of the targets length for i.i.d. noise.

    A token of the chunk adds one token to the targets if it is noise, if it is kept and follows
    noise, or if it is the first token. 511 tokens at density 0.15 give 142.5 on average.

    Args:
      length: number of tokens of the chunk, >= 1.
      noise_density: probability that a token is noise.
      final_sentinel: if True, a text that ends in noise adds one token.

    Returns:
      (mean, standard deviation), without EOS.
    """
    either = 1 - (1 - noise_density) ** 2
    # Two adjacent pairs share a token.
    both = noise_density + (1 - noise_density) * noise_density**2
    variance = (length - 1) * either * (1 - either)
    variance += 2 * max(length - 2, 0) * (both - either**2)
    mean = 1 + (length - 1) * either
    if final_sentinel:
        mean += noise_density
        variance += noise_density * (1 - noise_density)
        # Noise at the end is itself one of the targets.
        variance += 2 * min(length - 1, 1) * noise_density * (1 - either)
    return mean, math.sqrt(variance)


def iid_spans(length: int, noise_density: float) -> tuple[float, float]:
    """Return the mean and standard deviation of the number of noise spans of i.i.d. noise.

    Args:
      length: number of tokens of the chunk, >= 1.
      noise_density: probability that a token is noise.
    """
    begins = noise_density * (1 - noise_density)
    # A span begins at the first token, or where noise follows a kept token; never twice in a row.
    variance = begins + (length - 1) * begins * (1 - begins)
    variance -= 2 * max(length - 2, 0) * begins**2 + 2 * min(length - 1, 1) * noise_density * begins
    return noise_density + (length - 1) * begins, math.sqrt(variance)


def replace_spans(
    tokens: Int32[np.ndarray, " n"],
    mask: Bool[np.ndarray, " n"],
    sentinel_start: int,
    *,
    final_sentinel: bool = False,
) -> dict[str, Int32[np.ndarray, " _"]]:
    """Replace noise spans by sentinels in the inputs, and kept spans by sentinels in the targets.

    Args:
      tokens: token ids.
      mask: true where a token is noise.
      sentinel_start: id of the first sentinel; the next sentinels have descending ids.
      final_sentinel: True to end the targets in a sentinel also if the text ends in noise.

    Returns:
      {"inputs", "targets"}: token ids without EOS; without tokens both are empty.
    """
    if not len(tokens):
        return {"inputs": tokens, "targets": tokens}
    starts = np.empty(np.count_nonzero(changes := mask[1:] != mask[:-1]) + 1, np.int64)
    starts[0] = 0
    np.add(changes.nonzero()[0], 1, out=starts[1:])
    first = int(mask[0])  # noise spans are the first, third ... or the second, fourth ...
    kept = starts[first::2]
    targets = _with_sentinels(tokens, mask, kept, sentinel_start)
    if final_sentinel and mask[-1]:
        targets = np.append(targets, np.int32(sentinel_start - len(kept)))
    return {
        "inputs": _with_sentinels(tokens, ~mask, starts[1 - first :: 2], sentinel_start),
        "targets": targets,
    }


def _with_sentinels(
    tokens: np.ndarray, keep: np.ndarray, starts: np.ndarray, sentinel_start: int
) -> np.ndarray:
    """Return the kept tokens, with one sentinel at the start of each removed span."""
    marked, kept = tokens.copy(), keep.copy()
    marked[starts] = np.arange(sentinel_start, sentinel_start - len(starts), -1)
    kept[starts] = True
    return marked[kept]


def drop(
    tokens: Int32[np.ndarray, " n"], mask: Bool[np.ndarray, " n"]
) -> dict[str, Int32[np.ndarray, " _"]]:
    """Return kept tokens as inputs and noise tokens as targets, without sentinels.

    Returns:
      {"inputs", "targets"}: token ids without EOS.
    """
    return {"inputs": tokens[~mask], "targets": tokens[mask]}


def replace_tokens(
    tokens: Int32[np.ndarray, " n"],
    mask: Bool[np.ndarray, " n"],
    replacements: Int[np.ndarray, " n"] | int,
) -> dict[str, Int32[np.ndarray, " _"]]:
    """Replace each noise token in the inputs, and use the complete text as targets.

    Args:
      tokens: token ids.
      mask: true where a token is noise.
      replacements: replacement ids: one sentinel for all noise tokens, or an array with one id per
        token.

    Returns:
      {"inputs", "targets"}: token ids without EOS, both as long as `tokens`.
    """
    return {"inputs": np.where(mask, replacements, tokens).astype(np.int32), "targets": tokens}


def invert(
    inputs: Int[np.ndarray, " n"], targets: Int[np.ndarray, " m"], sentinel_start: int
) -> Int[np.ndarray, " _"]:
    """Return the original text of inputs and targets from `replace_spans`, as token ids.

    Args:
      inputs: int token ids [n] without EOS.
      targets: int token ids [m] without EOS.
      sentinel_start: id of the first sentinel. Ordinary tokens must not have ids of sentinels.

    Returns:
      The int32 token ids.

    Raises:
      ValueError: if inputs and targets do not belong to one text.
    """
    inputs, targets = np.asarray(inputs, np.int32), np.asarray(targets, np.int32)
    if not len(inputs) or not len(targets):
        return np.concatenate([inputs, targets])
    # The side that begins with a sentinel has the second span of the text, the fourth and so on.
    begin = [side[0] == sentinel_start for side in (inputs, targets)]
    if begin[0] == begin[1]:
        raise ValueError(
            "inputs and targets are not from one text: either inputs or targets must begin with "
            f"sentinel {sentinel_start}, but {'both' if begin[0] else 'neither'} of them do"
        )
    sides = [_split(side, sentinel_start) for side in (inputs, targets)]
    (kept, _), (noise, in_targets) = sides
    if in_targets == len(kept) + 1 and targets[-1] == sentinel_start - len(kept):
        sides[1] = noise, in_targets - 1  # the final sentinel replaces no span
    (first, after_first), (second, after_second) = reversed(sides) if begin[0] else sides
    if after_first != len(second) or after_second != len(first):
        raise ValueError(
            f"inputs and targets are not from one text: the numbers of sentinels are {after_first} "
            f"and {after_second}, but the numbers of spans are {len(second)} and {len(first)}"
        )
    spans: list[np.ndarray] = [np.zeros(0, np.int32)] * (len(first) + len(second))
    spans[0::2], spans[1::2] = first, second
    return np.concatenate(spans)


def _split(side: np.ndarray, sentinel_start: int) -> tuple[list[np.ndarray], int]:
    """Return the spans between sentinels in a row of token ids, and the number of sentinels."""
    spans, start, sentinel = [], 0, sentinel_start
    while len(found := np.flatnonzero(side[start:] == sentinel)):
        spans.append(side[start : start + found[0]])
        start, sentinel = start + found[0] + 1, sentinel - 1
    spans.append(side[start:])
    return [span for span in spans if len(span)], sentinel_start - sentinel


MODES = {"R": "[NLU]", "X": "[NLG]", "S": "[S2S]"}
"""Mode token before the inputs of each kind of UL2 denoiser."""


@dataclass(frozen=True)
class Denoiser:
    """One of UL2's seven denoisers, given by its letter, noise density and mean span length.

    The mean span length of S (prefix language modelling) is 0.
    """

    kind: Literal["R", "X", "S"]
    noise_density: float
    mean_span_length: float = 0.0


DENOISERS = (
    Denoiser("R", 0.15, 3.0),
    Denoiser("R", 0.15, 8.0),
    Denoiser("X", 0.5, 3.0),
    Denoiser("X", 0.5, 8.0),
    Denoiser("X", 0.15, 64.0),
    Denoiser("X", 0.5, 64.0),
    Denoiser("S", 0.25),
)
SEQUENTIAL_SHARE = 1 / len(DENOISERS)


def chunk_lengths(denoiser: Denoiser, inputs_length: int) -> tuple[int, int]:
    """Return the chunk length that fills a UL2 denoiser's inputs, and the maximum targets length.

    Args:
      denoiser: one of `DENOISERS`.
      inputs_length: number of tokens of the inputs, with EOS and without mode tokens; at least 4.

    Returns:
      (tokens of the chunk, maximum tokens of the targets including EOS).
    """
    if denoiser.kind == "S":
        return inputs_length - 1, _longest_suffix(inputs_length - 1, denoiser) + 1
    return random_spans_lengths(inputs_length, denoiser.noise_density, denoiser.mean_span_length)


def _longest_suffix(length: int, denoiser: Denoiser) -> int:
    return max(min(round(2 * denoiser.noise_density * length) - 1, length - 1), 1)


def _draw(
    counts: int,
    *,
    seed: int,
    epoch: int,
    index: int,
    room: tuple[int, ...],
    sequential_share: float,
) -> tuple[Denoiser, int, int, int]:
    """Sample a UL2 denoiser, and the start and length of its text."""
    which, where, suffix = example_rng(seed, epoch, index, stream=DENOISER).random(3)
    others = len(DENOISERS) - 1
    number = others
    if which >= sequential_share:
        number = min(int((which - sequential_share) / (1 - sequential_share) * others), others - 1)
    denoiser = DENOISERS[number]
    length = min(counts, room[number])
    start = int(where * (counts - length + 1))
    return denoiser, start, length, 1 + int(suffix * _longest_suffix(length, denoiser))


@functools.lru_cache(maxsize=64)
def _room(inputs_length: int, modes: tuple[int, ...]) -> tuple[int, ...]:
    taken = dict(zip(MODES, modes, strict=True))
    return tuple(chunk_lengths(d, inputs_length - taken[d.kind])[0] for d in DENOISERS)


def mixture_of_denoisers(
    tokens: Int[np.ndarray, " n"],
    *,
    seed: int,
    epoch: int,
    index: int,
    sentinel_start: int,
    inputs_length: int,
    r_mode: list[int],
    x_mode: list[int],
    s_mode: list[int],
    sequential_share: float = SEQUENTIAL_SHARE,
) -> dict[str, Int[np.ndarray, " _"]]:
    """Build the inputs and targets of a randomly chosen UL2 denoiser from a chunk of text.

    Args:
      tokens: token ids [n]; if there are fewer than two, targets are empty.
      seed: the run's seed.
      epoch: number of completed passes over the data.
      index: the chunk's position in the unshuffled data.
      sentinel_start: id of the first sentinel; the next sentinels have descending ids.
      inputs_length: number of tokens of the inputs, including mode tokens and EOS.
      r_mode: token ids before the inputs of an R denoiser.
      x_mode: token ids before the inputs of an X denoiser.
      s_mode: token ids before the inputs of the S denoiser.
      sequential_share: probability of the S denoiser; the other denoisers are equally likely.

    Returns:
      {"inputs", "targets"}: int32 token ids without EOS.
    """
    tokens = np.asarray(tokens, np.int32)
    modes = {"R": r_mode, "X": x_mode, "S": s_mode}
    denoiser, start, length, suffix = _draw(
        len(tokens),
        seed=seed,
        epoch=epoch,
        index=index,
        room=_room(inputs_length, tuple(len(mode) for mode in modes.values())),
        sequential_share=sequential_share,
    )
    text, mode = tokens[start : start + length], np.array(modes[denoiser.kind], np.int32)
    if length < 2:
        return {"inputs": np.concatenate([mode, text]), "targets": tokens[:0]}
    if denoiser.kind == "S":
        return {"inputs": np.concatenate([mode, text[:-suffix]]), "targets": text[-suffix:]}
    mask = random_spans_noise_mask(
        length,
        example_rng(seed, epoch, index),
        noise_density=denoiser.noise_density,
        mean_noise_span_length=denoiser.mean_span_length,
    )
    example = replace_spans(text, mask, sentinel_start)
    return {**example, "inputs": np.concatenate([mode, example["inputs"]])}


def mixture_of_denoisers_lengths(
    counts: Int[np.ndarray, " n"],
    *,
    seed: int,
    epochs: Int[np.ndarray, " n"],
    indices: Int[np.ndarray, " n"],
    inputs_length: int,
    r_mode: list[int],
    x_mode: list[int],
    s_mode: list[int],
    sequential_share: float = SEQUENTIAL_SHARE,
    **unused: object,
) -> Int[np.ndarray, "n 2"]:
    """Compute the lengths of the inputs and targets of `mixture_of_denoisers` for many chunks."""
    modes = {"R": len(r_mode), "X": len(x_mode), "S": len(s_mode)}
    room = _room(inputs_length, tuple(modes.values()))
    lengths = np.empty((len(counts), 2), np.int64)
    keys = zip(counts.tolist(), epochs.tolist(), indices.tolist(), strict=True)
    for row, (count, epoch, index) in enumerate(keys):
        denoiser, _, length, suffix = _draw(
            count,
            seed=seed,
            epoch=epoch,
            index=index,
            room=room,
            sequential_share=sequential_share,
        )
        cut, spans = suffix, 0
        if length < 2:
            cut = 0
        elif denoiser.kind != "S":
            cut, spans = noise_counts(
                length, denoiser.noise_density, mean_span_length=denoiser.mean_span_length
            )
        lengths[row] = modes[denoiser.kind] + length - cut + spans, cut + spans
    return lengths


_SPECIAL_TOKENS = 3
"""Number of first ids (padding, EOS, unknown) that are never used as random tokens."""


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
    """Turn a chunk of text into an example of span corruption.

    Args:
      tokens: token ids [n]. If there are fewer than two, inputs are the tokens and targets are
        empty.
      seed: the run's seed.
      epoch: number of completed passes over the data.
      index: the chunk's position in the unshuffled data.
      sentinel_start: id of the first sentinel, the vocabulary's last id; the next sentinels have
        descending ids.
      noise_density: fraction of the tokens that are noise.
      mean_noise_span_length: mean number of tokens of a noise span.
      final_sentinel: True to end the targets in a sentinel.

    Returns:
      {"inputs", "targets"}: int32 token ids without EOS.
    """
    tokens = np.asarray(tokens, np.int32)
    if len(tokens) < 2:
        return {"inputs": tokens, "targets": tokens[:0]}
    mask = random_spans_noise_mask(
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
    """Replace spans of i.i.d. noise by sentinels, as in the baseline objective of the T5 paper.

    The argument `noise_density` is the probability that a token is noise. If there are more spans
    than sentinels, ids of ordinary tokens are used.
    """
    tokens = np.asarray(tokens, np.int32)
    mask = _iid_mask(len(tokens), seed, epoch, index, noise_density=noise_density)
    return replace_spans(tokens, mask, sentinel_start, final_sentinel=final_sentinel)


def iid_drop_tokens(
    tokens: Int[np.ndarray, " n"], *, seed: int, epoch: int, index: int, noise_density: float = 0.15
) -> dict[str, Int[np.ndarray, " _"]]:
    """Remove i.i.d. noise tokens from the inputs; the targets are the removed tokens."""
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
    """Replace i.i.d. noise tokens by a sentinel or by random tokens, as in BERT.

    Args:
      tokens: token ids [n], which are the targets.
      seed: the run's seed.
      epoch: number of completed passes over the data.
      index: the chunk's position in the unshuffled data.
      sentinel_start: id of the sentinel, the vocabulary's last id; it is used for all spans.
      noise_density: probability that a token is noise.
      random_share: probability that a noise token becomes a random token of the vocabulary,
        excluding special tokens.

    Returns:
      {"inputs", "targets"}: int32 token ids without EOS.
    """
    tokens = np.asarray(tokens, np.int32)
    rng = example_rng(seed, epoch, index, stream=IID)
    mask = iid_noise_mask(len(tokens), rng, noise_density=noise_density)
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
    """Replace each noise token by the same sentinel, as in MASS.

    The targets are the complete text.
    """
    tokens = np.asarray(tokens, np.int32)
    mask = _iid_mask(len(tokens), seed, epoch, index, noise_density=noise_density)
    return replace_tokens(tokens, mask, sentinel_start)


def deshuffling(
    tokens: Int[np.ndarray, " n"], *, seed: int, epoch: int, index: int
) -> dict[str, Int[np.ndarray, " n"]]:
    """Shuffle the tokens of the inputs; the targets keep the original order.

    Every order of the tokens is equally likely.
    """
    tokens = np.asarray(tokens, np.int32)
    rng = example_rng(seed, epoch, index, stream=PERMUTATION)
    return {"inputs": tokens[rng.random(len(tokens)).argsort(kind="stable")], "targets": tokens}


def prefix_split(
    tokens: Int[np.ndarray, " n"], *, seed: int, epoch: int, index: int
) -> dict[str, Int[np.ndarray, " _"]]:
    """Split a chunk of text at a random position into inputs and targets (prefix language model).

    All splits of the tokens into two nonempty parts are equally likely. With fewer than two tokens,
    inputs are empty.
    """
    tokens = np.asarray(tokens, np.int32)
    start = _split_place(len(tokens), seed=seed, epoch=epoch, index=index)
    return {"inputs": tokens[:start], "targets": tokens[start:]}


def _iid_mask(
    length: int, seed: int, epoch: int, index: int, *, noise_density: float
) -> np.ndarray:
    rng = example_rng(seed, epoch, index, stream=IID)
    return iid_noise_mask(length, rng, noise_density=noise_density)


def _split_place(length: int, *, seed: int, epoch: int, index: int) -> int:
    places = max(length - 1, 0)
    draw = example_rng(seed, epoch, index, stream=PREFIX).random()
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
"""Functions (tokens, *, seed, epoch, index, **options) -> example, by their names in caches."""


# Lengths of inputs and targets, which an offline cache needs before the examples are built:
# (counts [n], *, seed, epochs [n], indices [n], **options) -> int64 [n, 2], without EOS.


def span_corruption_lengths(
    counts: Int[np.ndarray, " n"],
    *,
    noise_density: float = 0.15,
    mean_noise_span_length: float = 3.0,
    final_sentinel: bool = False,
    **_: object,
) -> Int[np.ndarray, "n 2"]:
    """Compute the lengths of the inputs and targets of `span_corruption` for many chunks."""
    different, inverse = np.unique(counts, return_inverse=True)
    lengths = np.empty((len(different), 2), np.int64)
    for row, count in enumerate(different.tolist()):
        cut, spans = noise_counts(count, noise_density, mean_span_length=mean_noise_span_length)
        lengths[row] = count - cut + spans, cut + spans + (final_sentinel and cut > 0)
    return lengths[inverse]


def same_lengths(counts: Int[np.ndarray, " n"], **_: object) -> Int[np.ndarray, "n 2"]:
    """Return the length of each chunk twice, as the length of its inputs and of its targets."""
    return np.stack([counts, counts], axis=1).astype(np.int64)


def one_by_one(
    corruption: Callable[..., Mapping[str, np.ndarray]],
) -> Callable[..., Int[np.ndarray, "n 2"]]:
    """Return a function that measures result lengths by running a corruption on each chunk.

    Args:
      corruption: function of `CORRUPTIONS` with result lengths that do not depend on the token ids.
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
"""Functions that compute the lengths of inputs and targets, by the corruption's name."""
