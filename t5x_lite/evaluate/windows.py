"""The answer to a question whose context stands in windows, from the logits of each window.

Windows of 4, 4 and 3 tokens, 2 apart, and the tokens that count as the first of an answer, each in
the window in which it has most tokens around it:

    0 1 2 3              0 1 2
        2 3 4 5                3 4
            4 5 6                  5 6

Of all spans that begin so, are no longer than allowed and lie in one window, the likeliest is the
answer. The score of no answer is that of [CLS], the least over the windows. "" is the answer where
this score, less that of the best span, is above a threshold (Devlin et al. 2019, section 4.3;
google-research/bert run_squad.py, write_predictions). BERT looks at the 20 likeliest first and
last tokens of a window alone; here all spans are compared.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float


class Window(NamedTuple):
    """What a head says of one window.

    Attributes:
      first: float32 [n], logits of an answer's first token, of the context's tokens.
      last: float32 [n], of its last one.
      null: the sum of both at [CLS].
    """

    first: Float[np.ndarray, " n"]
    last: Float[np.ndarray, " n"]
    null: float


class Span(NamedTuple):
    """An answer: its first and last token in the context, and the sum of their logits."""

    first: int
    last: int
    score: float


def best_answer(windows: Sequence[Window], *, stride: int, longest: int) -> Span | None:
    """The likeliest span of a context; of equal ones that of the first window.

    Args:
      windows: of the context, in order; all but the last have the same number of tokens.
      stride: tokens from one window to the next; the tokens of a window, if these are fewer.
      longest: tokens of a span at most.

    Returns:
      None where the context has no tokens.
    """
    sizes = [len(window.first) for window in windows]
    best = None
    counting = in_most_context(sizes, stride=stride)
    for (start, counts), window in zip(counting, windows, strict=True):
        scores = np.where(counts, window.first, -np.inf)
        first, last, score = best_span(scores, window.last, longest=longest)
        if score > (-np.inf if best is None else best.score):
            best = Span(start + first, start + last, score)
    return best


def in_most_context(
    sizes: Sequence[int], *, stride: int
) -> list[tuple[int, Bool[np.ndarray, " _"]]]:
    """For each window its first token in the context, and which of its tokens count in it.

    A token counts in the window where the smaller of the numbers of tokens before and behind it is
    largest; of equal ones in the longest window, and then in the first (_check_is_max_context).

    Args:
      sizes: tokens of each window.
      stride: see `best_answer`.
    """
    step = min([stride, *sizes[:1]])
    starts = [step * number for number in range(len(sizes))]
    context = np.full((len(sizes), max(map(sum, zip(starts, sizes, strict=True)), default=0)), -1.0)
    for number, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        places = np.arange(size)
        around = np.minimum(places, size - 1 - places)
        context[number, start : start + size] = around + 0.01 * size
    chosen = np.argmax(context, axis=0) if len(sizes) else np.zeros(0, np.int64)
    return [
        (start, chosen[start : start + size] == number)
        for number, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]


def best_span(first: np.ndarray, last: np.ndarray, *, longest: int) -> Span:
    """The span with the largest sum of the logits of its ends; of equal ones the earliest.

    Args:
      first: logits of the first token, [n].
      last: logits of the last one, [n].
      longest: tokens of a span at most.

    Returns:
      Its first and last place, and the sum; (0, 0, -inf) where there are no tokens.
    """
    best = Span(0, 0, -np.inf)
    for width in range(min(longest, len(first))):
        sums = first[: len(first) - width].astype(np.float64) + last[width:]
        place = int(np.argmax(sums))
        if (sums[place], -place) > (best.score, -best.first):
            best = Span(place, place + width, float(sums[place]))
    return best
