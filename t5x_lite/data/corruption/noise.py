"""Which tokens of a text are noise: the masks of T5's objectives (Raffel et al. 2020, section 3.3).

    spans  0 0 1 1 0 0 0 1     `random_spans_noise_mask`: the number of noise tokens and of spans is
                               fixed, their places are random; the first token is kept, the last cut
    i.i.d. 1 0 0 1 1 0 0 0     `iid_noise_mask`: every token on its own

What becomes of the noise stands in replacement.py, and the objectives made of both in
recipes.py. All of it is NumPy, and a pure function of (tokens, seed, epoch, index):
`example_rng` gives the random numbers. Only uniform doubles are drawn: unlike NumPy's shuffling,
these do not change between versions.

Source: t5/data/preprocessors.py in google-research/text-to-text-transfer-transformer
(random_spans_helper, random_spans_noise_mask, iid_noise_mask).
"""

import functools
import math
import threading

import numpy as np
from jaxtyping import Bool, Int

# Second half of the Philox key: another use of the same example gets other numbers.
SPANS, PREFIX, IID, PERMUTATION, DENOISER, GROUP = 1, 2, 3, 4, 5, 6
FEW_SHOT, DOCUMENT_SPANS, SEGMENTS = 7, 8, 9
_WORD = 2**64


class _Generator(threading.local):
    """A thread's generator: making one costs eight times what setting it does."""

    def __init__(self):
        self.bits = np.random.Philox(0)
        self.fresh = self.bits.state
        self.generator = np.random.Generator(self.bits)


_own = _Generator()


def example_rng(seed: int, epoch: int, index: int, *, stream: int = SPANS) -> np.random.Generator:
    """The random numbers of one example in one epoch.

    Philox is counter based: the seed is its key, and (index, epoch) are the high words of its
    counter, so that no two examples share numbers.

    Args:
      seed: the run's seed, taken modulo 2**64.
      epoch: how often the data were repeated before, >= 0.
      index: the example's position in the unshuffled data, >= 0.
      stream: what the numbers are for.

    Returns:
      This thread's generator, good until the thread's next call.
    """
    key, counter = _own.fresh["state"]["key"], _own.fresh["state"]["counter"]
    key[0], key[1] = seed % _WORD, stream
    counter[2], counter[3] = index, epoch
    _own.bits.state = _own.fresh
    return _own.generator


@functools.lru_cache(maxsize=4096)
def noise_counts(length: int, noise_density: float, *, mean_span_length: float) -> tuple[int, int]:
    """How many tokens are cut out of `length`, in how many spans.

    Args:
      length: tokens of the chunk.
      noise_density: share of the tokens to cut, between 0 and 1.
      mean_span_length: mean tokens of a span, >= 1.

    Returns:
      (noise tokens, spans): clip(round(length * density), 1, length - 1) and round(noise / mean),
      at least 1 and at most what fits. Rounding is half to even, in float32 as T5's
      random_spans_noise_mask does it: 0.15 of 190 tokens are 29. A chunk of fewer than two tokens
      cannot both keep and cut one: (0, 0).

    Raises:
      ValueError: if density or mean are out of range.
    """
    if not 0 < noise_density < 1:
        raise ValueError(f"noise_density must be between 0 and 1, got {noise_density}")
    if mean_span_length < 1:
        raise ValueError(f"mean_span_length must be at least 1, got {mean_span_length}")
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
    """The chunk length that fills inputs exactly, and the targets' length that goes with it.

    512 tokens of inputs at density 0.15 and mean span 3 need 568 raw tokens and give targets of
    114, EOS counted in both; a final sentinel makes them 115, of the same text. T5's
    random_spans_helper rounds in float64 and its mask in float32: where they differ (172 tokens:
    targets of 38 and 40) room is made for what the mask cuts.

    Args:
      inputs_length: tokens of the inputs, EOS included, >= 3.
      noise_density: share of the tokens to cut.
      mean_span_length: mean tokens of a span.
      final_sentinel: whether targets end in a sentinel (`replacement.replace_spans`).

    Returns:
      (raw tokens, targets length).

    Raises:
      ValueError: if inputs_length < 3: one kept token, one sentinel and EOS.
    """

    def lengths(raw: int) -> tuple[int, int]:
        noise, spans = noise_counts(raw, noise_density, mean_span_length=mean_span_length)
        return raw - noise + spans + 1, noise + spans + 1

    if inputs_length < 3:
        raise ValueError(
            f"span corruption needs an inputs_length of at least 3, got {inputs_length}"
        )
    raw = 2
    while lengths(raw + 1)[0] <= inputs_length:
        raw += 1
    # T5's exception: at density 0.5 the targets shall not be longer than the inputs.
    if noise_density == 0.5 and raw > 2 and lengths(raw)[1] > inputs_length:
        raw -= 1
    return raw, lengths(raw)[1] + final_sentinel


def _random_segments(rng: np.random.Generator, total: int, *, parts: int) -> Int[np.ndarray, " n"]:
    """`total` in `parts` positive summands, every such composition equally likely."""
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
    """Which tokens are cut out: kept and cut spans alternate, first kept, last cut.

    Args:
      length: tokens of the chunk; below 2 nothing is cut.
      rng: from `example_rng`.
      noise_density: share of the tokens to cut.
      mean_noise_span_length: mean tokens of a cut span.

    Returns:
      Mask [length], true where the token is cut out.
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
    """Which tokens are cut out: each with probability `noise_density`, on its own.

    Args:
      length: tokens of the chunk.
      rng: from `example_rng`.
      noise_density: share of the tokens to cut.

    Returns:
      Mask [length], true where the token is cut out.
    """
    return rng.random(length) < noise_density


def iid_targets_length(
    length: int, noise_density: float, *, final_sentinel: bool = False
) -> tuple[float, float]:
    """How long targets are where i.i.d. noise is kept and every other span is a sentinel.

    A token of the chunk gives one of the targets if it is noise, or kept and after noise; the first
    always does. 511 tokens at density 0.15 give 142.5 on average.

    Args:
      length: tokens of the chunk, >= 1.
      noise_density: share of the tokens to cut.
      final_sentinel: whether a text that ends in noise gives one more.

    Returns:
      (mean, standard deviation), without EOS.
    """
    either = 1 - (1 - noise_density) ** 2
    # Two neighbouring pairs share a token.
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
    """How many spans i.i.d. noise has, of noise and nearly as many of kept tokens.

    Args:
      length: tokens of the chunk, >= 1.
      noise_density: share of the tokens to cut.

    Returns:
      (mean, standard deviation) of the number of noise spans.
    """
    begins = noise_density * (1 - noise_density)
    # A span begins at the first token, or where noise follows what is kept; never at two in turn.
    variance = begins + (length - 1) * begins * (1 - begins)
    variance -= 2 * max(length - 2, 0) * begins**2 + 2 * min(length - 1, 1) * noise_density * begins
    return noise_density + (length - 1) * begins, math.sqrt(variance)
