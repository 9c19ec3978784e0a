"""Seqio task of queries and passages, for contrastive objectives.

    {"query": "who wrote Emma", "pos": ["Jane Austen ...", "Emma is ..."], "neg": ["Emma S. ..."]}

An example holds the query, its positive passages and its pool of negatives. A negative with the
text or the id of a positive is dropped, even if the positive is on another line of the same query.
In files of more than 64 MiB, only the positives of the same line are compared.

    text -> tokens of all texts -> CacheDatasetPlaceholder -> (seed, epoch, index)

With data.layout.positives "each", every positive makes a separate example. The layout
(`layouts.groups`) samples the passages of a row, so a cache holds the pool. Texts that are too long
are truncated. Names of passages are hashes of their ids.

The same text may be query and passage (SimCSE): the encoder's dropout makes two views of it.
"""

import functools
import hashlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.formats.pairs import Answers, Pairs, from_json, without_answers
from t5x_lite.data.tasks import shuffling, text_source
from t5x_lite.data.tasks.encoder import Raw, check_lengths, example_task
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens, without_special
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.layouts.base import EncoderTokens
from t5x_lite.layouts.groups import ID_WIDTH, IDS, MOST_POSITIVES, Groups

_logger = logging.getLogger(__name__)

MORE = "more_positives"
"""Feature with the positives after the first `MOST_POSITIVES`, which are never sampled."""


def lines_of(
    files: Mapping[str, Sequence[Any]], make: Callable[[bytes, str], bytes]
) -> Callable[[], Iterable[Pairs]] | None:
    """Return a function that reads all lines of all splits, or None if the files are too large."""
    every = list(dict.fromkeys(path for paths in files.values() for path in paths))
    if not shuffling.fit_in_memory(every):
        return None
    return lambda: map(from_json, text_source.texts_of_files(every, make))


def pair_task(
    name: str,
    arguments: TaskArguments,
    *,
    source: Any,
    read: Callable[[str], Pairs] = from_json,
    one_to_one: bool = False,
    lines: Callable[[], Iterable[Pairs]] | None = None,
) -> Any:
    """Make a seqio.Task of queries and passages.

    Args:
      name: name of the task, for messages of seqio.
      arguments: arguments of the task function.
      source: seqio source of examples with "text".
      read: pure function from a text to a query with its passages.
      one_to_one: True if each text of the source makes one example.
      lines: function that reads all lines, to find a query's positives on other lines. If None,
        only the positives of the same text are used.
    """
    layout, vocabulary = arguments.layout, arguments.vocabulary
    if not isinstance(layout, Groups):
        layout.check(Groups.features)
        raise InputError(
            f"data.layout {layout.name} does not sample groups; set data.layout to Groups()"
        )
    check_lengths(arguments, ("inputs_length", "targets_length"))
    if one_to_one or layout.positives == "sample":
        source.one_to_one = True
    tokens = encoder_tokens(vocabulary)
    lengths = (arguments.inputs_length, arguments.targets_length)

    reading = threading.Lock()

    @functools.cache
    def known() -> Answers | None:
        return Answers(lines()) if lines is not None and layout.negatives else None

    def make(raw: Raw) -> list[list[dict[str, np.ndarray]]]:
        with reading:
            answers = known()
        found = [without_answers(read(one["text"]), answers) for one in raw]
        if not layout.negatives and any(one.negatives for one in found):
            with reading:
                _warn_of_unused_negatives()
        return examples_of_each(
            found,
            vocabulary=vocabulary,
            tokens=tokens,
            lengths=lengths,
            layout=layout,
        )

    features: dict[str, type] = dict.fromkeys(layout.features, np.int32)
    if layout.positives == "sample":
        features[MORE] = np.int32
    if layout.teacher:
        features["scores"] = np.float32
    if layout.known_positives:
        features |= dict.fromkeys(IDS, np.int32)
    return example_task(
        name, arguments, source=source, make=make, features=features, add_eos=(), keyed=True
    )


@functools.cache
def _warn_of_unused_negatives() -> None:
    _logger.warning(
        "the pairs have negatives, but data.layout.negatives is 0, so no row has negatives; set "
        "--data.layout.negatives N for N negatives in each row"
    )


def examples(pairs: Sequence[Pairs], **options: Any) -> list[dict[str, np.ndarray]]:
    """Return the examples of all queries, in order; options are as in `examples_of_each`."""
    return [one for own in examples_of_each(pairs, **options) for one in own]


def examples_of_each(
    pairs: Sequence[Pairs],
    *,
    vocabulary: Vocabulary,
    tokens: EncoderTokens,
    lengths: tuple[int, int],
    layout: Groups,
) -> list[list[dict[str, np.ndarray]]]:
    """Return the examples of each query, with each text as tokens [CLS] ... [SEP].

    Args:
      pairs: queries with their passages.
      vocabulary: vocabulary of the tokens.
      tokens: special tokens of the vocabulary.
      lengths: maximum tokens of a query and of a passage, [CLS] and [SEP] included.
      layout: layout that sets the size of the pool, and whether each positive makes an example.

    Returns:
      For each query, a list of examples: int32 "query"; int32 "positives", "negatives" and `MORE`,
        each the concatenation of its texts; float32 "scores" of positives and negatives, NaN if
        unknown; and `layouts.groups.IDS`, hashes of the passages' ids, 0 if unknown.
    """
    most = None if layout.positives == "each" else MOST_POSITIVES
    pools = [
        (
            one,
            one.positives[:most],
            one.negatives[: layout.negatives_top],
            [] if most is None else one.positives[most:],
        )
        for one in pairs
    ]
    every = [text for one, *texts in pools for text in (one.query, *itertools.chain(*texts))]
    encoded = iter(vocabulary.encode_batch(every))

    def row(length: int) -> np.ndarray:
        ids = without_special(next(encoded), tokens)
        return np.array([tokens.cls_id, *ids[: length - 2], tokens.sep_id], np.int32)

    made: list[list[dict[str, np.ndarray]]] = []
    for one, positives, negatives, more in pools:
        query = row(lengths[0])
        answers = [row(lengths[1]) for _ in positives]
        others = [row(lengths[1]) for _ in negatives]
        undrawn = [row(lengths[1]) for _ in more]
        right, wrong = _scores(one, len(answers), len(others))
        named, unnamed = _names(one, len(one.positives[:most]), len(others))
        made.append([])
        parts = [slice(None)] if layout.positives == "sample" else None
        for of in parts or [slice(place, place + 1) for place in range(len(answers))]:
            made[-1].append(
                {
                    "query": query,
                    "positives": _joined(answers[of]),
                    "negatives": _joined(others),
                    MORE: _joined(undrawn),
                    "scores": np.concatenate([right[of], wrong]),
                    "passage_ids": np.concatenate([named[of], unnamed]).reshape(-1),
                    "positive_ids": named[: layout.known_positives].reshape(-1),
                }
            )
    return made


def _joined(texts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int32), *texts])


def _scores(pairs: Pairs, positives: int, negatives: int) -> Iterator[np.ndarray]:
    """Yield the teacher's scores of the first positives, then of the first negatives."""
    for scores, count in ((pairs.positive_scores, positives), (pairs.negative_scores, negatives)):
        given = [np.nan] * count if scores is None else scores[:count]
        yield np.array(given, np.float32)


def _names(pairs: Pairs, positives: int, negatives: int) -> Iterator[np.ndarray]:
    """Yield hashes of the ids of the first positives, then of the first negatives, [n, ID_WIDTH].

    The hash of a passage without an id is 0.
    """
    for ids, count in ((pairs.positive_ids, positives), (pairs.negative_ids, negatives)):
        known = [] if ids is None else ids[:count]
        found = np.zeros((count, ID_WIDTH), np.int32)
        for row, one in enumerate(known):
            digest = hashlib.blake2b(one.encode(), digest_size=2 * ID_WIDTH).digest()
            found[row] = np.frombuffer(digest, "<u2")
        yield found
