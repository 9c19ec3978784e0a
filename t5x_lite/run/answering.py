"""`t5x-lite predict` and `t5x-lite score`: JSON lines through a checkpoint, without TensorFlow."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from t5x_lite.data import json_lines
from t5x_lite.errors import InputError
from t5x_lite.evaluate.generate import Generator
from t5x_lite.evaluate.score import Scorer
from t5x_lite.run.parts import Loaded

CHUNK = 4096
"""Lines of a file that are held at a time."""


def predict(
    checkpoint: str,
    *,
    step: int | None = None,
    input: str,
    output: str,
    batch_size: int = 32,
    max_decode_length: int = 64,
) -> None:
    """Answers the inputs of a file: JSONL {"inputs"} -> {"inputs", "prediction"}, in order.

    Args:
      checkpoint: a work directory or a step directory.
      step: of a work directory; None is the newest.
      input: a file, or "-".
      output: a file, or "-"; other fields of a line are kept.
      batch_size: inputs decoded at once.
      max_decode_length: tokens decoded at most.

    Raises:
      InputError: the checkpoint or a line is wrong; the output is not written then.
    """
    loaded = Loaded.from_checkpoint(checkpoint, step=step)
    generator = Generator(
        loaded.parts.bind_model,
        loaded.vocabulary,
        batch_size=batch_size,
        max_decode_length=max_decode_length,
    )

    def answer(records: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        inputs = loaded.inputs([r["inputs"] for r in records])
        for record, text in zip(records, generator.run(loaded.params, inputs), strict=True):
            yield {**record, "prediction": text}

    _transform(input, output, fields=("inputs",), change=answer)


def score(
    checkpoint: str, *, step: int | None = None, input: str, output: str, batch_size: int = 32
) -> None:
    """Scores given targets: JSONL {"inputs", "targets"} gets "log_likelihood", "num_tokens".

    Args:
      checkpoint: a work directory or a step directory.
      step: of a work directory; None is the newest.
      input: a file, or "-".
      output: a file, or "-".
      batch_size: examples scored at once.

    Raises:
      InputError: the checkpoint or a line is wrong; the output is not written then.
    """
    loaded = Loaded.from_checkpoint(checkpoint, step=step)
    scorer = Scorer(loaded.parts.bind_model, batch_size=batch_size)

    def add_score(records: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        inputs = loaded.inputs([r["inputs"] for r in records])
        targets = loaded.targets([r["targets"] for r in records])
        values = scorer.run(loaded.params, inputs, targets)
        for record, ids, value in zip(records, targets, values, strict=True):
            yield {**record, "log_likelihood": value, "num_tokens": len(ids)}

    _transform(input, output, fields=("inputs", "targets"), change=add_score)


def _transform(
    source: str,
    target: str,
    *,
    fields: Sequence[str],
    change: Callable[[Sequence[dict[str, Any]]], Iterable[Mapping[str, Any]]],
) -> None:
    """Streams JSON lines through a function, a chunk at a time."""
    lines = json_lines.read_examples(source, fields=fields)
    count = 0
    with json_lines.writer(target) as file:
        while chunk := [line.record for line in itertools.islice(lines, CHUNK)]:
            for record in change(chunk):
                file.write(record)
            count += len(chunk)
        if not count:
            raise InputError(f"{source}: no line to read")
