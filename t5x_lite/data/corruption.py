"""The text side of T5's pretraining (Raffel et al. 2020, sections 3.1.4 and 3.3.1).

Span corruption: spans of tokens are cut out; each is replaced in the inputs by one sentinel, and
the targets list sentinel and span in turn. With sentinels counting down from 99:

    tokens   10 11 12 13 14 15 16 17
    mask      0  0  1  1  0  0  0  1
    inputs   10 11 99 14 15 16 98
    targets  99 12 13 98 17

Every row begins with a kept token and ends in a cut one, so targets begin with a sentinel and have
no closing one: the released T5 code does it so, although the paper's figure 2 shows one.

Prefix language modelling: the text is split at a random place.

    tokens   10 11 12 13 14 15 16 17
    inputs   10 11 12
    targets  13 14 15 16 17

EOS is not added here. Everything is NumPy, without a loop over tokens, and a pure function of
(tokens, seed, epoch, index): the seqio pipeline and an offline cache give the same examples.

Source: t5/data/preprocessors.py in google-research/text-to-text-transfer-transformer
(random_spans_helper, random_spans_noise_mask, noise_span_to_unique_sentinel;
random_prefix_noise_mask).
"""

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Bool, Int

# Second half of the Philox key: another corruption of the same example uses other numbers.
_SPANS, _PREFIX = 1, 2
_WORD = 2**64


def example_rng(seed: int, epoch: int, index: int, *, stream: int = _SPANS) -> np.random.Generator:
    """The random numbers of one example in one epoch.

    Philox is counter based: the seed is its key, and (index, epoch) are the high words of its
    counter, so that no two examples share numbers and making a generator costs microseconds.

    Args:
      seed: the run's seed, taken modulo 2**64.
      epoch: how often the data were repeated before, >= 0.
      index: the example's position in the unshuffled data, >= 0.
      stream: which corruption the numbers are for.
    """
    key = np.array([seed % _WORD, stream], np.uint64)
    counter = np.array([0, 0, index, epoch], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def noise_counts(length: int, noise_density: float, *, mean_span_length: float) -> tuple[int, int]:
    """How many tokens are cut out of `length`, in how many spans.

    Args:
      length: tokens of the chunk.
      noise_density: share of the tokens to cut, between 0 and 1.
      mean_span_length: mean tokens of a span, >= 1.

    Returns:
      (noise tokens, spans): clip(round(length * density), 1, length - 1) and round(noise / mean),
      at least 1 and at most what fits. Rounding is half to even. A chunk of fewer than two tokens
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
    noise = min(max(round(length * noise_density), 1), length - 1)
    spans = max(round(noise / mean_span_length), 1)
    return noise, min(spans, noise, length - noise)


def random_spans_lengths(
    inputs_length: int, noise_density: float, mean_span_length: float
) -> tuple[int, int]:
    """The chunk length that fills inputs exactly, and the targets' length that goes with it.

    512 tokens of inputs at density 0.15 and mean span 3 need 568 raw tokens and give targets of
    114, EOS counted in both.

    Args:
      inputs_length: tokens of the inputs, EOS included, >= 3.
      noise_density: share of the tokens to cut.
      mean_span_length: mean tokens of a span.

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
    return raw, lengths(raw)[1]


def _random_segments(rng: np.random.Generator, total: int, *, parts: int) -> Int[np.ndarray, " n"]:
    """`total` in `parts` positive summands, every such composition equally likely.

    Only uniform doubles are drawn: unlike NumPy's shuffling, these do not change between versions.
    """
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


def span_corruption(
    tokens: Int[np.ndarray, " n"],
    *,
    seed: int,
    epoch: int,
    index: int,
    sentinel_start: int,
    noise_density: float = 0.15,
    mean_noise_span_length: float = 3.0,
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

    Returns:
      {"inputs", "targets"}: int32 token ids without EOS.
    """
    tokens = np.asarray(tokens, np.int32)
    mask = random_spans_noise_mask(
        len(tokens),
        example_rng(seed, epoch, index),
        noise_density=noise_density,
        mean_noise_span_length=mean_noise_span_length,
    )
    starts = (mask[1:] > mask[:-1]).nonzero()[0] + 1  # the mask begins with a kept token
    spans = np.arange(len(starts))
    marked = tokens.copy()
    marked[starts] = sentinel_start - spans
    keep = ~mask
    keep[starts] = True
    # A span stands in the targets after all tokens cut before it and one sentinel for each span.
    sentinels = mask.cumsum()[starts] - 1 + spans
    cut = np.ones(int(mask.sum()) + len(starts), bool)
    cut[sentinels] = False
    targets = np.empty(len(cut), np.int32)
    targets[sentinels] = marked[starts]
    targets[cut] = tokens[mask]
    return {"inputs": marked[keep], "targets": targets}


def invert(
    inputs: Int[np.ndarray, " n"], targets: Int[np.ndarray, " m"], sentinel_start: int
) -> Int[np.ndarray, " _"]:
    """Puts the cut spans back: the tokens that `span_corruption` was given.

    Args:
      inputs: int token ids [n] without EOS.
      targets: int token ids [m] without EOS.
      sentinel_start: the first sentinel. No ordinary token may have a sentinel's id.

    Returns:
      The int32 token ids.

    Raises:
      ValueError: if the sentinels of inputs and targets are not the same, in the same order.
    """
    inputs, targets = np.asarray(inputs, np.int32), np.asarray(targets, np.int32)
    if not len(targets):
        return inputs
    # The k-th sentinel is sentinel_start - k: the longest such run that both sides hold.
    pieces, kept = [], 0
    expected, at = sentinel_start, 0
    while at < len(targets):
        where = np.flatnonzero(inputs[kept:] == expected)
        if targets[at] != expected or not len(where):
            raise ValueError(
                f"inputs and targets do not fit: sentinel {expected} must be at position {at} of "
                "the targets and in the inputs"
            )
        following = np.flatnonzero(targets[at + 1 :] == expected - 1)
        end = at + 1 + following[0] if len(following) else len(targets)
        pieces += [inputs[kept : kept + where[0]], targets[at + 1 : end]]
        kept, at, expected = kept + where[0] + 1, end, expected - 1
    return np.concatenate([*pieces, inputs[kept:]])


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


def _split_place(length: int, *, seed: int, epoch: int, index: int) -> int:
    """How many of `length` tokens are the prefix."""
    places = max(length - 1, 0)
    draw = example_rng(seed, epoch, index, stream=_PREFIX).random()
    return min(1 + int(draw * places), places)


# What an offline cache knows of them.


def span_corruption_lengths(
    counts: Int[np.ndarray, " n"],
    *,
    seed: int,
    epochs: Int[np.ndarray, " n"],
    indices: Int[np.ndarray, " n"],
    sentinel_start: int,
    noise_density: float = 0.15,
    mean_noise_span_length: float = 3.0,
) -> Int[np.ndarray, "n 2"]:
    """How long `span_corruption` makes inputs and targets, without making them.

    Args:
      counts: tokens of each chunk.
      seed: the run's seed; of no consequence here.
      epochs: how often the data were repeated before, for each chunk; of no consequence here.
      indices: the chunks' positions in the unshuffled data; of no consequence here.
      sentinel_start: of no consequence here.
      noise_density: share of the tokens to cut.
      mean_noise_span_length: mean tokens of a cut span.

    Returns:
      int64 (inputs, targets), without EOS.
    """
    del seed, epochs, indices, sentinel_start
    different, inverse = np.unique(counts, return_inverse=True)
    lengths = np.empty((len(different), 2), np.int64)
    for row, count in enumerate(different.tolist()):
        noise, spans = noise_counts(count, noise_density, mean_span_length=mean_noise_span_length)
        lengths[row] = count - noise + spans, noise + spans
    return lengths[inverse]


def prefix_split_lengths(
    counts: Int[np.ndarray, " n"],
    *,
    seed: int,
    epochs: Int[np.ndarray, " n"],
    indices: Int[np.ndarray, " n"],
) -> Int[np.ndarray, "n 2"]:
    """How long `prefix_split` makes inputs and targets; see `span_corruption_lengths`."""
    lengths = np.empty((len(counts), 2), np.int64)
    keys = zip(counts.tolist(), epochs.tolist(), indices.tolist(), strict=True)
    for row, (count, epoch, index) in enumerate(keys):
        start = _split_place(count, seed=seed, epoch=epoch, index=index)
        lengths[row] = start, count - start
    return lengths


CORRUPTIONS: Mapping[str, Callable[..., Mapping[str, np.ndarray]]] = {
    function.__name__: function for function in (span_corruption, prefix_split)
}
"""The corruptions that a cache can name, (tokens, *, seed, epoch, index, **options) -> example."""

LENGTHS: Mapping[str, Callable[..., np.ndarray]] = {
    "span_corruption": span_corruption_lengths,
    "prefix_split": prefix_split_lengths,
}
"""For each of them: (counts, *, seed, epochs, indices, **options) -> lengths [n, 2]."""
