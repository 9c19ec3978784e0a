"""What becomes of noise: from tokens and a mask to inputs and targets (Raffel et al. 2020, 3.3).

    tokens               10 11 12 13 14 15 16 17
    mask                  0  0  1  1  0  0  0  1
    `replace_spans`      inputs  10 11 99 14 15 16 98     targets  99 12 13 98 17
    `drop`               inputs  10 11 14 15 16           targets  12 13 17
    `replace_tokens`     inputs  10 11 99 99 14 15 16 99

With sentinels counting down from 99. Masks of section 3.3.3 and 3.3.4 begin with a kept token and
end in a cut one, so their targets begin with a sentinel and have no closing one: the released T5
code does it so, although the paper's figure 2 shows one. An i.i.d. mask may begin and end as it
likes: then inputs begin with a sentinel, or targets end in one. With `final_sentinel` all targets
end in one, as in the figure: where the text ends in noise, the next sentinel is appended.

    `replace_spans(..., final_sentinel=True)`             targets  99 12 13 98 17 97

Where there are more spans than sentinels, the ordinary tokens below them serve too, as in T5.

Source: t5/data/preprocessors.py in google-research/text-to-text-transfer-transformer
(noise_span_to_unique_sentinel, nonnoise_span_to_unique_sentinel, drop_noise_tokens,
noise_token_to_sentinel).
"""

import numpy as np
from jaxtyping import Bool, Int, Int32


def replace_spans(
    tokens: Int32[np.ndarray, " n"],
    mask: Bool[np.ndarray, " n"],
    sentinel_start: int,
    *,
    final_sentinel: bool = False,
) -> dict[str, Int32[np.ndarray, " _"]]:
    """One sentinel for each span of noise in the inputs, for each kept span in the targets.

    Args:
      tokens: token ids.
      mask: true where a token is noise.
      sentinel_start: the first sentinel; the others count down from it.
      final_sentinel: whether targets end in a sentinel where the text ends in noise, too.

    Returns:
      {"inputs", "targets"}: token ids without EOS; of no tokens both are empty.
    """
    if not len(tokens):
        return {"inputs": tokens, "targets": tokens}
    starts = np.empty(np.count_nonzero(changes := mask[1:] != mask[:-1]) + 1, np.int64)
    starts[0] = 0
    np.add(changes.nonzero()[0], 1, out=starts[1:])
    first = int(mask[0])  # spans of noise are the first, third ... or the second, fourth ...
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
    """The tokens to keep, and a sentinel for each of the other spans, which begin at `starts`."""
    marked, kept = tokens.copy(), keep.copy()
    marked[starts] = np.arange(sentinel_start, sentinel_start - len(starts), -1)
    kept[starts] = True
    return marked[kept]


def drop(
    tokens: Int32[np.ndarray, " n"], mask: Bool[np.ndarray, " n"]
) -> dict[str, Int32[np.ndarray, " _"]]:
    """Kept tokens in the inputs, noise in the targets, and nothing to say where it was.

    Args:
      tokens: token ids.
      mask: true where a token is noise.

    Returns:
      {"inputs", "targets"}: token ids without EOS.
    """
    return {"inputs": tokens[~mask], "targets": tokens[mask]}


def replace_tokens(
    tokens: Int32[np.ndarray, " n"],
    mask: Bool[np.ndarray, " n"],
    replacements: Int[np.ndarray, " n"] | int,
) -> dict[str, Int32[np.ndarray, " _"]]:
    """Each noise token replaced by one other in the inputs, and the whole text in the targets.

    Args:
      tokens: token ids.
      mask: true where a token is noise.
      replacements: what takes its place: a sentinel, or one id for each token.

    Returns:
      {"inputs", "targets"}: token ids without EOS, as many as there are tokens.
    """
    return {"inputs": np.where(mask, replacements, tokens).astype(np.int32), "targets": tokens}


def invert(
    inputs: Int[np.ndarray, " n"], targets: Int[np.ndarray, " m"], sentinel_start: int
) -> Int[np.ndarray, " _"]:
    """Puts the cut spans back: the tokens that `replace_spans` was given, with either ending.

    Args:
      inputs: int token ids [n] without EOS.
      targets: int token ids [m] without EOS.
      sentinel_start: the first sentinel. No ordinary token may have a sentinel's id.

    Returns:
      The int32 token ids.

    Raises:
      ValueError: if inputs and targets are not two sides of one text.
    """
    inputs, targets = np.asarray(inputs, np.int32), np.asarray(targets, np.int32)
    if not len(inputs) or not len(targets):
        return np.concatenate([inputs, targets])
    # Who begins with a sentinel has the second span of the text, the fourth and so on.
    begin = [side[0] == sentinel_start for side in (inputs, targets)]
    if begin[0] == begin[1]:
        raise ValueError(
            f"inputs and targets do not fit: sentinel {sentinel_start} must be at position 0 of "
            f"one of them, and is of {'both' if begin[0] else 'none'}"
        )
    sides = [_split(side, sentinel_start) for side in (inputs, targets)]
    (kept, _), (noise, in_targets) = sides
    if in_targets == len(kept) + 1 and targets[-1] == sentinel_start - len(kept):
        sides[1] = noise, in_targets - 1  # the final one stands for no span
    (first, after_first), (second, after_second) = reversed(sides) if begin[0] else sides
    if after_first != len(second) or after_second != len(first):
        raise ValueError(
            f"inputs and targets do not fit: {after_first} and {after_second} sentinels stand for "
            f"{len(second)} and {len(first)} spans"
        )
    spans: list[np.ndarray] = [np.zeros(0, np.int32)] * (len(first) + len(second))
    spans[0::2], spans[1::2] = first, second
    return np.concatenate(spans)


def _split(side: np.ndarray, sentinel_start: int) -> tuple[list[np.ndarray], int]:
    """The spans between the sentinels of one side, and how many sentinels there are."""
    spans, start, sentinel = [], 0, sentinel_start
    while len(found := np.flatnonzero(side[start:] == sentinel)):
        spans.append(side[start : start + found[0]])
        start, sentinel = start + found[0] + 1, sentinel - 1
    spans.append(side[start:])
    return [span for span in spans if len(span)], sentinel_start - sentinel
