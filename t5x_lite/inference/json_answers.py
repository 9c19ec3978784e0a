"""Processing of JSON lines by a checkpoint, for the commands predict and score.

Files of any size are processed in constant memory, in chunks of several batches. If input and
output are ordinary files, a killed command resumes after the last written chunk
(`t5x_lite.core.jobs`).

Inputs and targets above the maximum length are truncated, with a warning for the first text and the
total number at the end, or rejected.
"""

import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import LONGEST_LINE
from t5x_lite.core.jobs import ResumableWriter, is_resumable, resumable_writer
from t5x_lite.core.progress import counting, waiting
from t5x_lite.core.remote import AnyPath
from t5x_lite.data.formats import lines as json_lines
from t5x_lite.data.formats.lines import Line, count_lines, read_lines
from t5x_lite.decoding.config import Decoding
from t5x_lite.inference.answers import Asked, head_for
from t5x_lite.inference.checkpoint import Checkpoint, check_finite
from t5x_lite.inference.generate import Ranker
from t5x_lite.inference.loading import read_experiment
from t5x_lite.models.encoder import is_encoder
from t5x_lite.models.heads import Head

_logger = logging.getLogger(__name__)

LongInputs = Literal["cut", "refuse"]


class InputReader:
    """Tokenizer of input lines that truncates long inputs with a warning, or rejects them."""

    def __init__(self, long_inputs: LongInputs):
        self._long_inputs = long_inputs
        self._num_cut = 0

    def tokens(self, model: Checkpoint, lines: Sequence[Line]) -> list[np.ndarray]:
        """Return the token ids of the "inputs" of each line, int32.

        Raises:
          InputError: if an input is too long, and `long_inputs` is "refuse".
        """
        rows, cut = model.inputs([line.record["inputs"] for line in lines])
        self.tell(lines, cut, length=model.inputs_length)
        return rows

    def tell(self, lines: Sequence[Line], cut: Sequence[int], *, length: int) -> None:
        """Warn about the first truncated line, or raise InputError if `long_inputs` is "refuse"."""
        if cut and self._long_inputs == "refuse":
            raise InputError(
                f"{lines[cut[0]].where}: the input is longer than {length} tokens; shorten it, "
                "raise --inputs-length, or set --long-inputs cut to truncate it"
            )
        if cut and not self._num_cut:
            _logger.warning(
                "%s: truncating this input and all further long inputs to %d tokens "
                "(--inputs-length)",
                lines[cut[0]].where,
                length,
            )
        self._num_cut += len(cut)

    def report(self) -> None:
        """Log the number of truncated inputs, if more than one was truncated."""
        if self._num_cut > 1:
            _logger.warning(
                "truncated %d inputs that were longer than --inputs-length", self._num_cut
            )


class TargetReader:
    """Tokenizer of targets that truncates long targets with a warning, or rejects them."""

    def __init__(self, long_targets: LongInputs, length: int | None):
        self._long_targets = long_targets
        self._length = length
        self._num_cut = 0

    def tokens(
        self, model: Checkpoint, texts: Sequence[str], *, names: Sequence[str]
    ) -> list[np.ndarray]:
        """Return the token ids of each target with EOS, int32.

        Raises:
          InputError: if a target is too long, and `long_targets` is "refuse".
        """
        rows = model.targets(texts, length=self._length)
        if self._length is None:
            return rows
        for name, ids in zip(names, rows, strict=True):
            if len(ids) <= self._length:
                continue
            if self._long_targets == "refuse":
                raise InputError(
                    f"{name} is longer than {self._length} tokens; shorten it, raise "
                    "--targets-length, or set --long-inputs cut to truncate it"
                )
            if not self._num_cut:
                _logger.warning(
                    "%s is longer than %d tokens (--targets-length); truncating this and all "
                    "further long targets, so that log-likelihoods cover only the kept tokens",
                    name,
                    self._length,
                )
            self._num_cut += 1
        return [ids[: self._length] for ids in rows]

    def report(self) -> None:
        """Log the number of truncated targets, if more than one was truncated."""
        if self._num_cut > 1:
            _logger.warning(
                "truncated %d targets that were longer than --targets-length", self._num_cut
            )


CHUNK_BATCHES = 32
"""Number of batches per chunk; the lines of a chunk are sorted by length to reduce padding."""

Change = Callable[[Sequence[Line], int], Iterator[dict[str, Any]]]
"""Function (input lines, number of the first line) -> output lines."""


def head_of(
    steps: Sequence[AnyPath],
    name: str | None,
    asked: Asked,
    *,
    decoding: Decoding,
    prompt: str,
) -> Head | None:
    """Return the encoder head that makes predictions, or None if the checkpoint is not an encoder.

    Raises:
      InputError: if the encoder has no such head, or an option is for another kind of model.
    """
    first, *others = steps
    experiment = read_experiment(first, checkpointing.step_files(first))
    if not is_encoder(experiment.model):
        if name is not None or asked != Asked():
            raise InputError(
                f"checkpoint {first}: {type(experiment.model).__name__.removesuffix('Config')} "
                "generates text, but the options --head, --probabilities, --threshold, "
                "--doc-stride, --longest-answer and --impossible-answers are for encoders; "
                "remove them"
            )
        return None
    head = head_for(experiment, name, where=first)
    if others:
        raise InputError("an ensemble cannot predict with a head; give a single --checkpoint")
    if decoding != Decoding() or prompt:
        raise InputError(
            f"checkpoint {first} predicts with its head {head.name!r}; remove --prompt and the "
            "options of beam search and sampling, which are for models that generate text"
        )
    asked.check(head, where=first)
    return head


_T = TypeVar("_T")


def _by_adapter(
    model: Checkpoint, make: Callable[[Checkpoint], _T]
) -> Callable[[Sequence[Line]], tuple[Checkpoint, _T, list[int] | None]]:
    """Return a function: lines -> the model that answers them, its program, and adapter ids.

    Lines without "adapter" have the model itself, and None instead of ids.
    """
    plain = make(model)
    by_row: list[_T] = []

    def for_lines(lines: Sequence[Line]) -> tuple[Checkpoint, _T, list[int] | None]:
        names = [line.record.get("adapter") for line in lines]
        own, ids = model.for_rows(names, where=[line.where for line in lines])
        if ids is None:
            return own, plain, None
        if not by_row:
            by_row.append(make(own))
        return own, by_row[0], ids

    return for_lines


def generating(
    steps: Sequence[AnyPath],
    decoding: Decoding,
    reader: InputReader,
    *,
    use: str | None,
    adapters: Sequence[str],
    inputs_length: int | None,
    prompt: str,
    batch_size: int,
) -> Change:
    """Load the model, and return a function that generates predictions for input lines.

    Sampling for a line depends on the line's number in the file (blank lines are not counted), not
    on its batch. A line with a field "seed" is sampled like the first line of a file with this
    --seed.
    """
    model = Checkpoint.load(steps, use=use, adapters=adapters, inputs_length=inputs_length)
    for_lines = _by_adapter(model, lambda one: one.generator(decoding, batch_size=batch_size))

    def answer(lines: Sequence[Line], first: int) -> Iterator[dict[str, Any]]:
        inputs = reader.tokens(model, lines)
        prompts = model.prompts(
            [line.record.get("prompt", prompt) for line in lines],
            names=[line.where for line in lines],
        )
        seeds = [line.record.get("seed") for line in lines]
        own, generator, ids = for_lines(lines)
        found = own.predictions(
            generator, inputs, prompts=prompts, seeds=seeds, offset=first, adapter_ids=ids
        )
        for line, predictions in zip(lines, found, strict=True):
            check_finite(line.where, "the score", *(one.score for one in predictions))
            record = {**line.record, "prediction": predictions[0].text}
            if decoding.num_return > 1:
                record["predictions"] = [
                    {"text": one.text, "score": one.score} for one in predictions
                ]
            yield record

    return answer


def answering(
    steps: Sequence[AnyPath],
    head: Head,
    asked: Asked,
    reader: InputReader,
    *,
    use: str | None,
    adapters: Sequence[str],
    inputs_length: int | None,
    batch_size: int,
) -> Change:
    """Load an encoder; return a function that predicts for input lines with one of its heads."""
    model = Checkpoint.load(steps, use=use, adapters=adapters, inputs_length=inputs_length)
    for_lines = _by_adapter(
        model, lambda one: one.answerer(batch_size=batch_size, head=head.name, asked=asked)
    )

    def answer(lines: Sequence[Line], _: int) -> Iterator[dict[str, Any]]:
        answerer, ids = for_lines(lines)[1:]
        encoded = answerer.encode([line.record for line in lines])
        cut = [place for place, one in enumerate(encoded) if one.cut]
        reader.tell(lines, cut, length=answerer.length)
        answers = answerer.answers(encoded, adapter_ids=ids)
        for line, found in zip(lines, answers, strict=True):
            yield {**line.record, **found}

    return answer


def scoring(
    model: Checkpoint, reader: InputReader, cutter: TargetReader, *, batch_size: int
) -> Change:
    for_lines = _by_adapter(model, lambda one: one.scorer(batch_size=batch_size))

    def add_score(lines: Sequence[Line], _: int) -> Iterator[dict[str, Any]]:
        targets = cutter.tokens(
            model,
            [line.record["targets"] for line in lines],
            names=[f"{line.where}: the target" for line in lines],
        )
        own, scorer, ids = for_lines(lines)
        values = scorer.run(own.params, reader.tokens(model, lines), targets, adapter_ids=ids)
        for line, ids, value in zip(lines, targets, values, strict=True):
            check_finite(line.where, "the log-likelihood", value)
            yield {**line.record, "log_likelihood": value, "num_tokens": len(ids)}

    return add_score


def ranking(
    model: Checkpoint,
    reader: InputReader,
    cutter: TargetReader,
    texts: Sequence[str],
    *,
    batch_size: int,
) -> Change:
    for_lines = _by_adapter(model, lambda one: Ranker(one.scorer(batch_size=batch_size)))
    candidates = cutter.tokens(
        model, texts, names=[f"the candidate {text[:40]!r}" for text in texts]
    )

    def add_ranks(lines: Sequence[Line], _: int) -> Iterator[dict[str, Any]]:
        own, ranker, ids = for_lines(lines)
        found = ranker.run(own.params, reader.tokens(model, lines), candidates, adapter_ids=ids)
        for line, values in zip(lines, found, strict=True):
            check_finite(line.where, "the log-likelihood", *values)
            yield {**line.record, "prediction": texts[int(np.argmax(values))], "scores": values}

    return add_ranks


def read_candidates(path: str, *, input: str, longest: int) -> list[str]:
    """Return the non-blank lines of a file of candidates.

    Raises:
      InputError: if all lines are blank, two lines are equal, or the file cannot be read.
    """
    if path == input == "-":
        raise InputError("--input and --candidates cannot both be standard input")
    found: dict[str, int] = {}
    for number, line in enumerate(read_lines([path], longest=longest), start=1):
        text = line.strip()
        if text in found:
            raise InputError(
                f"{path}:{number}: this candidate is the same as in line {found[text]}; remove "
                "one of the two"
            )
        if text:
            found[text] = number
    if not found:
        raise InputError(f"candidates {path} contains no candidate; write one candidate per line")
    return list(found)


def identity_of(
    command: str, input: str, steps: Sequence[AnyPath], **options: Any
) -> dict[str, Any]:
    """Return the command, input file and options, which must be equal to resume an output."""
    source = Path(input)
    known = source.stat() if source.is_file() else None
    if not options.get("adapters"):  # as in partial files of earlier versions
        options.pop("adapters", None)
    return {
        "command": command,
        "input": os.path.realpath(input),
        "size": known and known.st_size,
        "modified": known and known.st_mtime_ns,
        "checkpoints": [identity_of_step(step) for step in steps],
        **options,
    }


def identity_of_step(step: AnyPath) -> list[Any]:
    if isinstance(step, Path):
        return [os.path.realpath(step), (step / "params").stat().st_mtime_ns]
    return [str(step), None]  # a bucket's folders have no time


def stream(
    source: str,
    target: str,
    *,
    fields: Sequence[str],
    optional: Sequence[str] = (),
    numbers: Sequence[str] = (),
    check: Callable[[Line], None] = lambda line: None,
    longest: int = LONGEST_LINE,
    batch_size: int,
    identity: dict[str, Any],
    load: Callable[[], Change],
    steps: bool = True,
) -> None:
    """Write an output line for each input line, computed by the function that `load` returns."""
    chunk = CHUNK_BATCHES * batch_size
    with _output(source, target, identity=identity | {"chunk": chunk}, chunk=chunk) as file:
        lines = json_lines.read_examples(
            source,
            fields=fields,
            optional=optional,
            numbers=numbers,
            skip=file.done,
            longest=longest,
        )
        checked = (line for line in lines if check(line) is None)
        chunks = iter(lambda: list(itertools.islice(checked, chunk)), [])
        first = next(chunks, None)  # a wrong input is seen before a large model is loaded
        number = file.done
        if first is None:
            if not number:
                raise InputError(
                    "standard input is empty"
                    if source == "-"
                    else f"input {source} contains no line"
                )
            return
        if target != "-" and os.path.isfile(target):
            _logger.info(
                "output %s already exists; replacing it when the new output is complete", target
            )
        with waiting("loading the checkpoint"):
            change = load()
        with counting(
            "answering", unit="lines", total=count_lines(source), done=number, steps=steps
        ) as advance:
            for some in itertools.chain([first], chunks):
                file.write(*change(some, number))
                number += len(some)
                if not steps:
                    advance(len(some))


def _output(
    source: str, target: str, *, identity: dict[str, Any], chunk: int
) -> contextlib.AbstractContextManager[ResumableWriter | json_lines.Writer]:
    if is_resumable(target) and Path(source).is_file():
        return resumable_writer(target, identity=identity, chunk=chunk)
    return json_lines.writer(target)
