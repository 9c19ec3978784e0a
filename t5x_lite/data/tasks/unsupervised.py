"""Unsupervised objectives of tasks: the chunk length of the text and the corruption of each chunk.

    Raffel et al. 2020                 here                               T5's name
    language model (table 2)           language_model                     lm
    the same, EOS ends the documents   full_language_model                full_lm
    prefix language model (table 2)    prefix_lm                          prefix_lm
    BERT-style (table 4)               bert_style                         iid_15_r10s90_f
    deshuffling (table 4)              deshuffling                        all_permute
    MASS-style (table 5)               mass_style                         iid_15_m_f
    replace spans (tables 5 and 6)     iid_replace_spans                  iid_{10,15,25,50}_u_u
    drop tokens (table 5)              iid_drop_tokens                    iid_15_d_d
    span corruption (table 7)          span_corruption                    span_{2,3,5,10}_15_u_u
    UL2 (Tay et al. 2022)              mixture_of_denoisers

Each function takes a task's arguments and returns an `Objective` for its lengths. It raises
InputError if the lengths are incompatible. A chunk of text fills the inputs, including EOS: 511
tokens for inputs of 512, or 568 for spans of 3 at 15 %. For inputs of 512, the paper's targets have
114 tokens (span_3_15_u_u; 126, 105 and 99 for spans of 2, 5 and 10), 103, 192, 256 and 512 (iid_10,
15, 25 and 50_u_u), 104 (iid_15_d_d), and otherwise 512. With `data.final_sentinel` the targets of
span corruption have one more token for the same text. Targets of i.i.d. noise have no maximum
length; longer targets are truncated, as in T5.

Source: t5/models/gin/objectives in google-research/text-to-text-transfer-transformer.
"""

import functools
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.data import denoising
from t5x_lite.data import denoising as noise
from t5x_lite.data import denoising as ul2
from t5x_lite.data.config import TaskArguments

_logger = logging.getLogger(__name__)

Corruption = Callable[..., Mapping[str, np.ndarray]]
"""Function from tokens, int32 [n], and the options seed, epoch and index to {"inputs", "targets"},
int32 [_] without EOS."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Unsupervised objective: the chunk length of the text, and the corruption of each chunk.

    Attributes:
      chunk_length: number of tokens in a chunk of text. The last chunk may be shorter.
      corruption: function from a chunk to an example; None if the chunk itself is the targets.
      join_documents: True to concatenate 128 documents before dividing them into chunks, so that
        few chunks are short.
      eos_of_documents: True if EOS ends each document, False if EOS ends each chunk.
    """

    chunk_length: int
    corruption: Corruption | None
    join_documents: bool = True
    eos_of_documents: bool = False


def span_corruption(
    arguments: TaskArguments, *, noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> Objective:
    """Return the span-corruption objective: spans of tokens become sentinels.

    The targets list the sentinels and the tokens that they replace.

    Args:
      arguments: arguments of the task function.
      noise_density: fraction of the tokens to replace.
      mean_noise_span_length: mean length of a span, in tokens.

    Raises:
      InputError: if the lengths are incompatible, or there are too few sentinels.
    """
    inputs_length = arguments.inputs_length
    _check_inputs_length("span corruption", inputs_length, least=3)
    final = arguments.final_sentinel
    raw, needed = noise.random_spans_lengths(
        inputs_length, noise_density, mean_noise_span_length, final_sentinel=final
    )
    _check_targets_length("span corruption", arguments, needed=needed)
    _, spans = noise.noise_counts(raw, noise_density, mean_span_length=mean_noise_span_length)
    _check_sentinels("span corruption", arguments, spans=spans + final)
    function = partial(
        denoising.span_corruption,
        sentinel_start=arguments.vocabulary.sentinel_start,
        noise_density=noise_density,
        mean_noise_span_length=mean_noise_span_length,
        **_final(arguments),
    )
    return Objective(chunk_length=raw, corruption=function)


def iid_replace_spans(arguments: TaskArguments, *, noise_density: float = 0.15) -> Objective:
    """Return the paper's baseline objective: each span of i.i.d. noise becomes one sentinel.

    Args:
      arguments: arguments of the task function.
      noise_density: probability that a token is noise.

    Raises:
      InputError: if more than half of the targets would be truncated, or sentinels would overlap
        the vocabulary's special tokens.
    """
    length = _whole_chunk("i.i.d. noise", arguments)
    final = arguments.final_sentinel
    mean, deviation = noise.iid_targets_length(length, noise_density, final_sentinel=final)
    _check_mean_targets("i.i.d. noise", arguments, mean=mean, deviation=deviation)
    spans, deviation = noise.iid_spans(length, noise_density)
    _tell_of_sentinels(arguments, spans=math.ceil(spans + 4 * deviation) + final)
    function = partial(
        denoising.iid_replace_spans,
        sentinel_start=arguments.vocabulary.sentinel_start,
        noise_density=noise_density,
        **_final(arguments),
    )
    return Objective(chunk_length=length, corruption=function)


def iid_drop_tokens(arguments: TaskArguments, *, noise_density: float = 0.15) -> Objective:
    """Return the objective that drops i.i.d. noise tokens from the inputs and predicts them.

    The arguments are as in `iid_replace_spans`.
    """
    _no_final_sentinel("dropping tokens", arguments)
    length = _whole_chunk("dropping tokens", arguments)
    deviation = math.sqrt(length * noise_density * (1 - noise_density))
    mean = length * noise_density
    _check_mean_targets("dropping tokens", arguments, mean=mean, deviation=deviation)
    function = partial(denoising.iid_drop_tokens, noise_density=noise_density)
    return Objective(chunk_length=length, corruption=function)


def bert_style(
    arguments: TaskArguments, *, noise_density: float = 0.15, random_share: float = 0.1
) -> Objective:
    """Return the objective that predicts the full text from noised inputs, as in BERT.

    I.i.d. noise becomes sentinels or random tokens.

    Args:
      arguments: arguments of the task function.
      noise_density: probability that a token is noise.
      random_share: probability that noise becomes a random token.

    Raises:
      InputError: if targets_length is less than inputs_length.
    """
    _no_final_sentinel("BERT-style", arguments)
    function = partial(
        denoising.bert_style,
        sentinel_start=arguments.vocabulary.sentinel_start,
        noise_density=noise_density,
        random_share=random_share,
    )
    return Objective(chunk_length=_full_targets("BERT-style", arguments), corruption=function)


def mass_style(arguments: TaskArguments, *, noise_density: float = 0.15) -> Objective:
    """Return the objective that predicts the full text from inputs with one noise sentinel.

    Every token of i.i.d. noise becomes the same sentinel.

    The arguments are as in `bert_style`.
    """
    _no_final_sentinel("MASS-style", arguments)
    function = partial(
        denoising.mass_style,
        sentinel_start=arguments.vocabulary.sentinel_start,
        noise_density=noise_density,
    )
    return Objective(chunk_length=_full_targets("MASS-style", arguments), corruption=function)


def deshuffling(arguments: TaskArguments) -> Objective:
    """Return the objective that restores the order of a document's shuffled tokens.

    Raises:
      InputError: if targets_length is less than inputs_length.
    """
    _no_final_sentinel("deshuffling", arguments)
    return Objective(
        chunk_length=_full_targets("deshuffling", arguments),
        corruption=denoising.deshuffling,
        join_documents=False,
    )


def prefix_lm(arguments: TaskArguments) -> Objective:
    """Return the objective that splits a document at a random position into inputs and targets.

    A chunk of text is two tokens shorter than the minimum of inputs_length and targets_length. So
    no split is truncated and, if the lengths are equal, two examples fill a row of the "prefix_lm"
    layout. T5's chunk is one token longer.
    """
    _no_final_sentinel("a prefix language model", arguments)
    shorter = min(arguments.inputs_length, arguments.targets_length)
    return Objective(
        chunk_length=_chunk_length("inputs_length and data.targets_length", shorter, extra=2),
        corruption=denoising.prefix_split,
        join_documents=False,
    )


def language_model(arguments: TaskArguments) -> Objective:
    """Return the objective with the text itself as targets, in chunks of targets_length.

    The length of a chunk includes EOS.
    """
    _no_final_sentinel("a language model", arguments)
    length = _chunk_length("targets_length", arguments.targets_length, extra=1)
    return Objective(chunk_length=length, corruption=None)


def full_language_model(arguments: TaskArguments) -> Objective:
    """Return the language-model objective with EOS at the end of documents, not of chunks."""
    _no_final_sentinel("a language model", arguments)
    length = _chunk_length("targets_length", arguments.targets_length, extra=0)
    return Objective(chunk_length=length, corruption=None, eos_of_documents=True)


def mixture_of_denoisers(
    arguments: TaskArguments, *, sequential_share: float = ul2.SEQUENTIAL_SHARE
) -> Objective:
    """Return UL2's objective: the first tokens of an example name one of seven denoisers.

    Args:
      arguments: arguments of the task function.
      sequential_share: probability of the S denoiser; all other denoisers are equally likely.

    Raises:
      InputError: if the lengths are incompatible, or there are too few sentinels.
    """
    _no_final_sentinel("UL2", arguments)
    vocabulary, inputs_length = arguments.vocabulary, arguments.inputs_length
    modes = {kind: vocabulary.encode(text) for kind, text in ul2.MODES.items()}
    longest = max(len(mode) for mode in modes.values())
    _check_inputs_length("UL2", inputs_length, least=longest + 4)
    chunk = needed = spans = 0
    for denoiser in ul2.DENOISERS:
        room = inputs_length - len(modes[denoiser.kind])
        raw, targets_length = ul2.chunk_lengths(denoiser, room)
        chunk, needed = max(chunk, raw), max(needed, targets_length)
        if denoiser.kind != "S":
            counts = noise.noise_counts(
                raw, denoiser.noise_density, mean_span_length=denoiser.mean_span_length
            )
            spans = max(spans, counts[1])
    _check_targets_length("UL2", arguments, needed=needed)
    _tell_of_sentinels(arguments, spans=spans)
    function = partial(
        denoising.mixture_of_denoisers,
        sentinel_start=vocabulary.sentinel_start,
        inputs_length=inputs_length,
        r_mode=modes["R"],
        x_mode=modes["X"],
        s_mode=modes["S"],
        sequential_share=sequential_share,
    )
    return Objective(chunk_length=chunk, corruption=function)


# Checks of lengths and sentinels.


def _final(arguments: TaskArguments) -> dict[str, bool]:
    return {"final_sentinel": True} if arguments.final_sentinel else {}


def _no_final_sentinel(what: str, arguments: TaskArguments) -> None:
    if arguments.final_sentinel:
        raise InputError(
            "data.final_sentinel is only for span corruption and for i.i.d. noise with a sentinel "
            f"for each span, not for {what}; unset it"
        )


def _check_inputs_length(what: str, length: int, *, least: int) -> None:
    if length < least:
        raise InputError(f"{what} needs a data.inputs_length of at least {least}, got {length}")


def _check_targets_length(what: str, arguments: TaskArguments, *, needed: int) -> None:
    if arguments.targets_length < needed:
        raise InputError(
            f"{what} with data.inputs_length {arguments.inputs_length} needs {needed} tokens of "
            f"targets, but data.targets_length is {arguments.targets_length}; set it to {needed}"
        )


def _check_sentinels(what: str, arguments: TaskArguments, *, spans: int) -> None:
    sentinels = arguments.vocabulary.num_sentinels
    if spans > sentinels:
        raise InputError(
            f"{what} with data.inputs_length {arguments.inputs_length} needs {spans} sentinels, "
            f"but the vocabulary has {sentinels}; raise data.extra_ids"
        )


def _tell_of_sentinels(arguments: TaskArguments, *, spans: int) -> None:
    """Warn if ordinary tokens must serve as sentinels; raise InputError for special tokens."""
    vocabulary = arguments.vocabulary
    if vocabulary.sentinel_start - spans < vocabulary.unk_id:
        _check_sentinels("this objective", arguments, spans=spans)
    if spans > vocabulary.num_sentinels:
        _warn_once(
            f"an example may have {spans} spans, but the vocabulary has {vocabulary.num_sentinels} "
            "sentinels; the last ordinary tokens also serve as sentinels, as in T5 "
            "(data.extra_ids sets the number of sentinels of a new vocabulary)"
        )


@functools.cache
def _warn_once(message: str) -> None:
    _logger.warning(message)


def _whole_chunk(what: str, arguments: TaskArguments) -> int:
    _check_inputs_length(what, arguments.inputs_length, least=3)
    return arguments.inputs_length - 1


def _full_targets(what: str, arguments: TaskArguments) -> int:
    _check_targets_length(what, arguments, needed=arguments.inputs_length)
    return _whole_chunk(what, arguments)


def _check_mean_targets(
    what: str, arguments: TaskArguments, *, mean: float, deviation: float
) -> None:
    if arguments.targets_length < mean + 1:
        raise InputError(
            f"{what} with data.inputs_length {arguments.inputs_length} needs {round(mean) + 1} "
            f"tokens of targets on average, but data.targets_length is {arguments.targets_length}; "
            f"set it to {math.ceil(mean + 1 + 3.1 * deviation)}, which 999 of 1000 examples fit"
        )


def _chunk_length(field: str, length: int, *, extra: int) -> int:
    if length < extra + 2:
        raise InputError(f"data.{field} must be at least {extra + 2} for this task: got {length}")
    return length - extra
