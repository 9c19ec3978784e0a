"""UL2's mixture of denoisers: seven objectives, one of them for each example (Tay et al. 2022).

    denoiser  mean span, density                          its mode token stands before the inputs
    R         3, 0.15 | 8, 0.15                           [NLU]
    X         3, 0.5 | 8, 0.5 | 64, 0.15 | 64, 0.5        [NLG]
    S         the rest of the text, a quarter on average  [S2S]

R and X are span corruption; S is prefix language modelling, without a sentinel. Which denoiser an
example gets depends on (seed, epoch, index) alone, and so does the part of the chunk that it gets:
denoisers need from 509 to 1004 tokens to fill inputs of 512, a chunk has the most, and a denoiser
that needs fewer takes as many in a row from a random place. (The authors' code cuts the text into
chunks for each denoiser on its own, which one cache could not hold.)

Source: "UL2: Unifying Language Learning Paradigms", table 1 and the code of appendix 9.2, by which
denoisers are drawn uniformly; section 4 finds a share of 20 % best for S. Modes as in the released
checkpoints.
"""

import functools
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int

from t5x_lite.data.corruption import noise
from t5x_lite.data.corruption.noise import example_rng
from t5x_lite.data.corruption.replacement import replace_spans

MODES = {"R": "[NLU]", "X": "[NLG]", "S": "[S2S]"}
"""What is written before the inputs, for each kind of denoiser."""


@dataclass(frozen=True)
class Denoiser:
    """One of the seven; S has no mean span length of its own."""

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
    """How much text fills a denoiser's inputs, and how long its targets get at most.

    Args:
      denoiser: one of `DENOISERS`.
      inputs_length: tokens of the inputs with EOS, without the mode; at least 4.

    Returns:
      (tokens of text, targets length), EOS counted.
    """
    if denoiser.kind == "S":
        return inputs_length - 1, _longest_suffix(inputs_length - 1, denoiser) + 1
    return noise.random_spans_lengths(
        inputs_length, denoiser.noise_density, denoiser.mean_span_length
    )


def _longest_suffix(length: int, denoiser: Denoiser) -> int:
    """Suffixes are uniform from 1 to this: a quarter of the text on average, at density 0.25."""
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
    """What an example gets: denoiser, start and length of its text, and S's suffix."""
    which, where, suffix = example_rng(seed, epoch, index, stream=noise.DENOISER).random(3)
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
    """Tokens of text that each denoiser takes; `modes` are the lengths of R's, X's and S's."""
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
    """One chunk of text, or part of it, as an example of one of the denoisers.

    Args:
      tokens: token ids [n]; of fewer than two there are no targets.
      seed: the run's seed.
      epoch: how often the data were repeated before.
      index: the chunk's position in the unshuffled data.
      sentinel_start: the first sentinel; the others count down from it.
      inputs_length: tokens of the inputs, mode and EOS included.
      r_mode: token ids that stand before the inputs of an R denoiser.
      x_mode: those of an X denoiser.
      s_mode: those of the S denoiser.
      sequential_share: probability of S; the others are equally likely.

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
    mask = noise.random_spans_noise_mask(
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
    """How long `mixture_of_denoisers` makes inputs and targets, without making them.

    Args and results are those of the functions in `corruption.LENGTHS`.
    """
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
            cut, spans = noise.noise_counts(
                length, denoiser.noise_density, mean_span_length=denoiser.mean_span_length
            )
        lengths[row] = modes[denoiser.kind] + length - cut + spans, cut + spans
    return lengths
